"""Removes secrets from texts. All texts that are shown, logged or listed pass through here, not only URLs.

A signed URL is a password. User names and passwords precede the host. Query values are removed unless their names show
that they are harmless, and web URLs lose their fragments. Texts are made of URLs in many places, so this module
examines the text itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

# Everything up to the last @ in front of the path; a password that holds a slash reaches beyond it, a port does not.
_USER: Final = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*:+/+)(?:[^\s/?#]*|[^\s/?#@]*:(?!\d*(?:[/?#]|$))[^\s@]*)@")
_CONTAINER: Final = re.compile(r"(?i)(?:abfss?|wasbs?)://[^\s/?#@:]+@")
"""Azure's use of this place: abfs://container@account."""
_SHOWN: Final = frozenset(
    (
        "alt",
        "delimiter",
        "endoffset",
        "fields",
        "format",
        "generation",
        "length",
        "matchglob",
        "maxresults",
        "offset",
        "op",
        "part",
        "partnumber",
        "prefix",
        "projection",
        "recursive",
        "startoffset",
        "uploadtype",
        "version",
        "versionid",
        "versions",
        "expires",
        "x-amz-algorithm",
        "x-amz-date",
        "x-amz-expires",
        "x-goog-algorithm",
        "x-goog-date",
        "x-goog-expires",
    )
)
"""Names of values that are shown: what was asked for, and since when and for how long it was signed."""
# Of a sentence, the last character of a value is not the punctuation behind it.
_VALUE: Final = re.compile(r"(?i)([?&;#])([^?&;#=/\s\"'<>]*)=(?!…)([^&#\s\"<>]*[^&#\s\"'<>,.;:)\]}])")
_WEB: Final = re.compile(r"(?i)(\b(?:https?|s?webhdfs)://[^\s?#\"<>]*)(\?[^\s#\"<>]*)?(#[^\s\"<>]*)?")
_PLACES: Final = frozenset(
    ("account_name", "backend", "ca_file", "config_dir", "delegation_token_file", "project", "region", "user_project")
)
"""Names of options that are shown."""
_PUNCTUATION: Final = "'\",.;:)]}…"
_LEAST_SECRET: Final = 6


def redact(text: str) -> str:
    """A URL, or a text with URLs in it, without user names, passwords, and values of queries that may be secret.

    Example::

        >>> redact("no answer from https://me:pw@host/x?part=1&Signature=abc, tried twice")
        'no answer from https://host/x?part=1&Signature=…, tried twice'
    """
    if "@" in text:
        text = _USER.sub(_without_user, text)
    if "=" in text:
        text = _VALUE.sub(_without_value, text)
    return _WEB.sub(_without_bare, text) if ("?" in text or "#" in text) and "://" in text else text


def mask(text: str, options: Mapping[str, Any]) -> str:
    """A text without the words that options of storage hold, but for URLs, names and places."""
    for word in sorted(_words(options), key=len, reverse=True):
        text = text.replace(word, "…")
    return redact(text)


def _words(options: Mapping[str, Any]) -> set[str]:
    found: set[str] = set()
    for name, value in options.items():
        if isinstance(value, Mapping):
            found |= _words(value)
        elif isinstance(value, str) and name not in _PLACES:
            found |= {word for word in (value, *value.split()) if len(word) >= _LEAST_SECRET and "://" not in word}
    return found


def _without_user(found: re.Match[str]) -> str:
    return found[0] if _CONTAINER.fullmatch(found[0]) else found[1]


def _without_value(found: re.Match[str]) -> str:
    return found[0] if found[2].lower() in _SHOWN else f"{found[1]}{found[2]}=…"


def _without_bare(found: re.Match[str]) -> str:
    """What is in a web URL's query without a name, and its fragment."""
    query, fragment = found[2] or "", found[3] or ""
    if query:
        parts = re.split("([&;])", query[1:])
        query = "?" + "".join(part if part in "&;" or "=" in part else _unnamed(part) for part in parts)
    return f"{found[1]}{query}{fragment and '#' + _hidden(fragment[1:])}"


def _unnamed(part: str) -> str:
    return part if part.rstrip(_PUNCTUATION).lower() in _SHOWN else _hidden(part)


def _hidden(part: str) -> str:
    bare = part.rstrip(_PUNCTUATION)
    return f"…{part[len(bare) :]}" if bare else part
