"""TLS contexts for the range client and for aiohttp, from the same three options."""

from __future__ import annotations

import ssl

from asyncdata.errors import StorageError


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
