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
    except OSError as error:  # ssl.SSLError among it
        why = error.strerror or type(error).__name__
        raise StorageError(f"the option 'ca_file' does not name a file of certificates: {ca_file} ({why})") from None
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
