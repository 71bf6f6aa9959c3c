"""TLS contexts for the range client and for aiohttp, from the same three options."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from asyncdata.errors import StorageError


def verifies_tls(options: Mapping[str, Any]) -> bool:
    """What the storage option ``verify_tls`` says; nothing but False turns the verification off."""
    value = options.get("verify_tls", True)
    if not isinstance(value, bool):
        raise StorageError(f"the storage option 'verify_tls' must be True or False, not {value!r}")
    return value


def make_tls_context(*, verify: bool, ca_file: str | None) -> ssl.SSLContext:
    """A client context; verified against the system's authorities, or those in ``ca_file``, unless told otherwise."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ValueError, TypeError) as error:  # ssl.SSLError among it
        raise unusable_ca_file(ca_file, error) from None
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def unusable_ca_file(ca_file: object, error: Exception) -> StorageError:
    """The error for the option ``ca_file``, by what came of an attempt to use it."""
    why = (isinstance(error, OSError) and error.strerror) or type(error).__name__
    return StorageError(f"the option 'ca_file' does not name a file of certificates: {ca_file} ({why})")
