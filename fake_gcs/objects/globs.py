"""GCS's ``matchGlob`` patterns as regular expressions.

``*`` and ``?`` stop at a slash, ``**`` does not, ``[abc]`` and ``[!a-z]`` are sets, ``{a,b}`` alternatives, and a
backslash takes the next character literally.
"""

from __future__ import annotations

import re

from fake_gcs.errors import invalid

MAX_PATTERN = 1024
"""Longest pattern that is taken, in characters."""


def compile_glob(pattern: str) -> re.Pattern[str]:
    """A regular expression that matches whole names.

    Raises:
        GCSError: 400 for unbalanced brackets and for patterns that are too long.
    """
    if len(pattern) > MAX_PATTERN:
        raise invalid("matchGlob is too long")
    out: list[str] = []
    depth = index = 0
    while index < len(pattern):
        char = pattern[index]
        if char == "*":
            text, index = _stars(pattern, index)
        elif char == "[":
            text, index = _set(pattern, index + 1)
        elif char == "\\" and index + 1 < len(pattern):
            text, index = re.escape(pattern[index + 1]), index + 2
        else:
            text, deeper = _single(char, depth)
            depth += deeper
            index += 1
        out.append(text)
    if depth:
        raise invalid("matchGlob has an open brace")
    return re.compile("".join(out) + r"\Z", re.DOTALL)


def _single(char: str, depth: int) -> tuple[str, int]:
    """A character that means something by itself, and by how much the braces get deeper."""
    if char == "{":
        return "(?:", 1
    if char == "}" and depth:
        return ")", -1
    if char == "," and depth:
        return "|", 0
    return ("[^/]" if char == "?" else re.escape(char)), 0


def _stars(pattern: str, start: int) -> tuple[str, int]:
    index = start
    while index < len(pattern) and pattern[index] == "*":
        index += 1
    if index - start == 1:
        return "[^/]*", index
    if pattern[index : index + 1] == "/" and (start == 0 or pattern[start - 1] == "/"):
        return "(?:.*/)?", index + 1
    return ".*", index


def _set(pattern: str, start: int) -> tuple[str, int]:
    end = pattern.find("]", start + 2 if pattern[start : start + 1] in {"!", "^"} else start + 1)
    if end < 0:
        raise invalid("matchGlob has an open bracket")
    inner = pattern[start:end]
    negated = inner[:1] in {"!", "^"}
    members = _members(inner[1:] if negated else inner)
    return f"[{'^/' if negated else ''}{members}]", end + 1


def _members(text: str) -> str:
    """Characters and ranges of a set, each end escaped by itself."""
    out: list[str] = []
    index = 0
    while index < len(text):
        if text[index + 1 : index + 2] == "-" and index + 2 < len(text):
            first, last = text[index], text[index + 2]
            if first > last:
                raise invalid("matchGlob has a malformed set")
            out.append(f"{re.escape(first)}-{re.escape(last)}")
            index += 3
        else:
            out.append(re.escape(text[index]))
            index += 1
    return "".join(out)
