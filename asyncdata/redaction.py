"""Removes secrets from texts. All texts that are shown, logged or listed pass through here, not only URLs.

A signed URL is a password. User names and passwords precede the host. Query values are removed unless their names show
that they are harmless, and web URLs lose their fragments. Texts are made of URLs in many places, so this module
examines the text itself. Where the URL ends is known only of a URL alone: it may contain white space. In a sentence,
white space ends it, except between a user name or password and the @ behind them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

# Without the scheme's letters, of which there may be a megabyte: every search here takes time linear in the text.
_SCHEME: Final = re.compile(r"(?i)((?<![a-z0-9+.-])(?:abfss?|wasbs?)(?=://))?(?<=[a-z0-9+.-]):+/+")
_SLASHES: Final = re.compile("/*")
_AUTHORITY: Final = re.compile("[^/?#]*")
_PORTLESS: Final = r":(?!\d*(?:[/?#]|$))"
_PASSWORD: Final = re.compile(rf"[^\s/?#@]*{_PORTLESS}")
_PASSWORD_ALONE: Final = re.compile(rf"[^/?#@]*{_PORTLESS}")
"""Where a password begins that may hold a slash; a port does not begin there."""
_BLANK_OR_AT: Final = re.compile(r"[\s@]")
_CONTAINER: Final = re.compile(r"[^\s/?#@:]+@")
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
# A value that is shown ends where another may begin; one that is hidden may hold these characters.
_VALUE: Final = re.compile(
    rf"(?i)([?&;#])(?:(?:{'|'.join(map(re.escape, sorted(_SHOWN)))})=[^?&;#]*|([^?&;#=/]*)=([^&#]*))"
)
# In names of objects and patterns of the other schemes, also of hdfs, sftp and ftp, ? is a character or a wildcard.
_WEB: Final = re.compile(r"(?i)(?:https?|webhdfs):+/+[^?#]*")
_NAME: Final = re.compile(r"[\w.%\[\]-]*")
_PIECE: Final = re.compile("[^?;]+")
_TOKEN: Final = re.compile(r"\S+")
_URL: Final = re.compile(r"\s*[\w+.:-]+:/")
_WORD: Final = re.compile(r"%[0-9a-fA-F]{2}|(\w{6,})")
"""Of a URL that libraries may show with some of its characters escaped."""
_PLACES: Final = frozenset(
    ("account_name", "backend", "ca_file", "config_dir", "delegation_token_file", "project", "region", "user_project")
)
"""Names of options that are shown."""
_PUNCTUATION: Final = "'\",.;:)]}>…"
"""In a sentence, the last character of a value is not the punctuation behind it."""
_LEAST_SECRET: Final = 6


def redact(text: str) -> str:
    """A text with URLs in it, without user names, passwords, and values of queries that may be secret.

    Example::

        >>> redact("no answer from https://me:pw@host/x?part=1&Signature=abc, tried twice")
        'no answer from https://host/x?part=1&Signature=…, tried twice'
    """
    text = _without_users(text, alone=False)
    if "=" in text or (("?" in text or "#" in text) and ":/" in text):
        text = _TOKEN.sub(lambda found: _without_values(found[0], _PUNCTUATION), text)
    return text


def redact_url(text: str) -> str:
    """As `redact`, of a text that is one URL to its end if it begins with a scheme."""
    if not _URL.match(text):
        return redact(text)
    # Whoever gets the text next takes it for a sentence, which must leave it as it is.
    return redact(_without_values(_without_users(text, alone=True), ""))


def redact_about(text: str, url: str) -> str:
    """As `redact`, also without the single words of this URL that `redact_url` removes."""
    shown = redact_url(url)
    if shown == url:
        return redact(text)
    removed = {*_WORD.findall(url)}.difference(_WORD.findall(shown))
    return redact(_WORD.sub(lambda found: "…" if found[1] in removed else found[0], text) if removed else text)


def redact_value(value: Any) -> Any:
    """As `redact_url`, of each text inside of lists, tuples and dicts."""
    if isinstance(value, str):
        return redact_url(value)
    if type(value) in (list, tuple):
        return type(value)(map(redact_value, value))
    if type(value) is dict:
        return {redact_value(key): redact_value(each) for key, each in value.items()}
    return value


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


def _without_users(text: str, *, alone: bool) -> str:
    if "@" not in text:
        return text
    kept: list[str] = []
    done = stop = 0
    begun = _PASSWORD_ALONE if alone else _PASSWORD
    for found in _SCHEME.finditer(text):
        begin = found.end()
        if begin < done:
            continue
        kept.append(text[done:begin])
        done = begin
        while True:
            end = text.rfind("@", done, _AUTHORITY.match(text, done).end()) + 1  # type: ignore[union-attr]  # matches ""
            if not end and (password := begun.match(text, done)):
                if stop < password.end():
                    stop = _place_of_at(text, password.end(), alone=alone)
                end = stop + 1 if text[stop : stop + 1] == "@" else 0
            if not end or (found[1] and _CONTAINER.fullmatch(text, done, end)):
                break
            # What is behind it, after slashes as well, is examined in the same way.
            done = _SLASHES.match(text, end).end()  # type: ignore[union-attr]  # matches ""
            kept.append(text[end:done])
    return "".join([*kept, text[done:]])


def _place_of_at(text: str, start: int, *, alone: bool) -> int:
    """Where the next @ is, or in a sentence white space before it; or the text's end."""
    if alone:
        place = text.find("@", start)
        return len(text) if place < 0 else place
    found = _BLANK_OR_AT.search(text, start)
    return found.start() if found else len(text)


def _without_values(token: str, punctuation: str) -> str:
    """A part of a text, without the values of queries; the punctuation behind them is not theirs."""

    def hide(found: re.Match[str]) -> str:
        return found[0] if found[2] is None else f"{found[1]}{found[2]}={_hidden(found[3], punctuation)}"

    web = _WEB.search(token)
    if not web:
        return _VALUE.sub(hide, token)
    query, mark, fragment = token[web.end() :].partition("#")
    query = "&".join(_part(part, punctuation) for part in query.split("&"))
    return f"{_VALUE.sub(hide, token[: web.end()])}{query}{mark}{_hidden(fragment, punctuation)}"


def _part(text: str, punctuation: str) -> str:
    """A part of a web URL's query, in which ? and ; may separate others; behind one that is hidden, they are its."""
    for found in _PIECE.finditer(text):
        name, _, _ = found[0].partition("=")
        if name.rstrip(punctuation).lower() not in _SHOWN and found[0].strip(punctuation):
            shown, hidden = text[: found.start()], text[found.start() :]
            name, equals, value = hidden.partition("=")
            # With the padding of base64 behind it, or characters that no name has, it is a value.
            if equals and value.strip("=" + punctuation.rstrip("…")) and _NAME.fullmatch(name):
                shown, hidden = f"{shown}{name}=", value
            return shown + _hidden(hidden, punctuation)
    return text


def _hidden(part: str, punctuation: str) -> str:
    bare = part.rstrip(punctuation)
    return f"…{part[len(bare) :].lstrip('…')}" if bare else part
