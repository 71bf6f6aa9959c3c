"""TLS contexts for the range client and for aiohttp, from the same three options."""

from __future__ import annotations

import ssl


def make_tls_context(*, verify: bool, ca_file: str | None) -> ssl.SSLContext:
    """A client context; verified against the system's authorities, or those in ``ca_file``, unless told otherwise."""
    context = ssl.create_default_context(cafile=ca_file)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
