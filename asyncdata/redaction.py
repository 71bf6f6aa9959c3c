"""Leaves secrets out of texts: what is shown, logged or listed goes through here, URLs and sentences about them alike.

A signed URL is a password. The name of a query's value says whether it is one; user names and passwords stand before
the host. Texts are made of URLs in many places, so it is the text that is looked at, not the place.
"""

from __future__ import annotations

import re
from typing import Final

# A name alone is no secret where it is none of a web server: abfs://container@account.
_USER: Final = re.compile(r"(?i)\b(?:(https?://)[^/?#\s]*|([a-z][a-z0-9+.-]*://)[^/?#\s:@]*:[^/?#\s]*)@")
# Of a sentence, the last character of a value is not the punctuation behind it.
_VALUE: Final = re.compile(
    r"(?i)([?&;#][^?&;#=\s]*(?:signature|credential|token|secret|password|passwd|delegation|auth|key|sig)=)"
    r"(?!…)[^&#\s\"'<>]*[^&#\s\"'<>,.;:)\]}]"
)


def redact(text: str) -> str:
    """A URL, or a text with URLs in it, without user names, passwords and signed query values.

    Example::

        >>> redact("no answer from https://me:pw@host/x?part=1&Signature=abc, tried twice")
        'no answer from https://host/x?part=1&Signature=…, tried twice'
    """
    if "@" in text:
        text = _USER.sub(r"\1\2", text)
    return _VALUE.sub(r"\1…", text) if "=" in text else text
