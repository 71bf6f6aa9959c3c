"""Which bucket and object names are allowed."""

from __future__ import annotations

import re

from fake_gcs.errors import invalid

MAX_OBJECT_NAME_BYTES = 1024
"""Longest object name in UTF-8, GCS's own limit."""

_BUCKET = re.compile(r"[a-z0-9_](?:[a-z0-9._-]{1,220})[a-z0-9_]\Z", re.ASCII)


def check_bucket_name(name: str) -> str:
    """The name itself, if a bucket may be called so.

    Raises:
        GCSError: 400.
    """
    if not _BUCKET.match(name) or ".." in name or name.startswith("_"):
        raise invalid(f"Invalid bucket name: '{name[:250]}'", code="InvalidBucketName")
    return name


def check_object_name(name: str) -> str:
    r"""The name itself, if an object may be called so: 1 to 1024 bytes of UTF-8, no CR or LF, not ``.`` or ``..``.

    Raises:
        GCSError: 400.
    """
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise invalid("The object name is not valid UTF-8.", code="InvalidURI") from None
    if not 1 <= size <= MAX_OBJECT_NAME_BYTES:
        raise invalid("The object name must have 1 to 1024 bytes.", code="InvalidURI")
    if "\r" in name or "\n" in name or name in {".", ".."} or "\0" in name or name.startswith(".well-known/acme-"):
        raise invalid("The object name is not allowed.", code="InvalidURI")
    return name
