r"""Glob patterns as data: where to list, and which names match. Pure.

A range in braces, ``{0000..0127}``, is not a wildcard but an enumeration: the pattern means every name that it
spells out, and each of them must exist. `numbered` expands it before any backend sees the pattern.

Wildcards: ``*`` matches any run of characters without ``/`` (as a whole segment: at least one), ``?`` one such
character, ``[abc]`` ``[a-z]`` ``[!a]`` one of a set, ``{a,b}`` alternatives (they nest), ``**`` any run across ``/``;
as a whole segment ``**`` also matches no segment at all; more stars in a row are as two. There is no escape character:
a backslash is an ordinary character, as in object names.

::

    b/train-*.{rec,gz}  ──expand──▶ b/train-*.rec, b/train-*.gz ──▶ GlobPattern(prefix="b/train-", regex)
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass
from typing import Final

from asyncdata.errors import UnsupportedURLError
from asyncdata.redaction import redact_url

_WILDCARD: Final = re.compile(r"[*?[]")
_MAX_ALTERNATIVES: Final = 10_000
_RANGE: Final = re.compile(r"\{(-?[0-9]{1,18})\.\.(-?[0-9]{1,18})(?:\.\.(-?[0-9]{1,18}))?\}")
_MAX_NUMBERED: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobPattern:
    """One pattern without braces.

    Attributes:
        text: The pattern.
        prefix: What every match begins with: the text before the first wildcard.
        regex: Matches whole names.
    """

    text: str
    prefix: str
    regex: re.Pattern[str]

    @property
    def is_literal(self) -> bool:
        """It has no wildcard: the pattern is the one name it matches."""
        return len(self.prefix) == len(self.text)

    @property
    def is_shallow(self) -> bool:
        """No match has a ``/`` after the prefix, so that a listing need not descend."""
        rest = self.text[len(self.prefix) :]
        return "/" not in rest and "**" not in rest

    def matches(self, name: str) -> bool:
        """Whether the whole name matches. Names that end in ``/`` are folder markers, never objects."""
        return self.regex.match(name) is not None and not name.endswith("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbered:
    """The names that a pattern with ranges in braces spells out.

    Attributes:
        patterns: One pattern for each combination of numbers, in order.
        covering: One glob that matches all of them and little else; None where they differ in length, have wildcards,
            or lie in different buckets.
        tail: How many characters at the end of a name tell the patterns apart, where there is a covering glob.
    """

    patterns: list[str]
    covering: str | None
    tail: int


def numbered(pattern: str) -> Numbered | None:
    """The names that ranges in braces enumerate; None for a pattern without a range.

    A range counts up or down, both ends included, in steps of 1 or of the third number. Where an end is written with
    leading zeros, all numbers have the width of the longer end, as in a shell (bash manual, "Brace Expansion").

    Example::

        >>> numbered("x-{08..10}.rec").patterns
        ['x-08.rec', 'x-09.rec', 'x-10.rec']
    """
    first = _RANGE.search(pattern)
    if first is None:
        return None
    counts = [_numbers(found) for found in _RANGE.finditer(pattern)]
    if math.prod(len(numbers) for numbers in counts) > _MAX_NUMBERED:
        raise UnsupportedURLError(
            f"the pattern's ranges name more than {_MAX_NUMBERED} files", url=redact_url(pattern)[:200]
        )
    texts = [""]
    covering, end = "", 0
    alike = True
    for found, numbers in zip(_RANGE.finditer(pattern), counts, strict=True):
        between = pattern[end : found.start()]
        texts = [text + between + number for text in texts for number in numbers]
        shared = sum(1 for _ in itertools.takewhile(lambda digits: len(set(digits)) == 1, zip(*numbers, strict=False)))
        covering += between + numbers[0][:shared] + "[0-9]" * (len(numbers[0]) - shared)
        alike &= len({len(number) for number in numbers}) == 1
        end = found.end()
    rest = pattern[end:]
    patterns = [text + rest for text in dict.fromkeys(texts)]
    in_bucket = "/" not in pattern[: first.start()].partition("://")[2]
    alike &= not has_wildcard(patterns[0]) and not in_bucket
    return Numbered(
        patterns=patterns,
        covering=covering + rest if alike else None,
        tail=len(patterns[0]) - first.start() if alike else 0,
    )


def _numbers(found: re.Match[str]) -> list[str]:
    low, high = found[1], found[2]
    step = abs(int(found[3] or 1)) or 1
    begin, end = int(low), int(high)
    padded = any(re.match("-?0[0-9]", text) for text in (low, high))
    width = max(len(low), len(high)) if padded else 0
    if abs(end - begin) // step >= _MAX_NUMBERED:
        raise UnsupportedURLError(
            f"the range {found[0]} names more than {_MAX_NUMBERED} files", url=redact_url(found.string)[:200]
        )
    numbers = range(begin, end + 1, step) if begin <= end else range(begin, end - 1, -step)
    return [f"{number:0{width}d}" for number in numbers]


def has_wildcard(pattern: str) -> bool:
    """Whether the pattern is more than the name of one object."""
    return (
        _WILDCARD.search(pattern) is not None
        or _RANGE.search(pattern) is not None
        or expand_braces(pattern) != [pattern]
    )


def compile_glob(pattern: str) -> list[GlobPattern]:
    """The brace-free patterns that together mean ``pattern``; at least one."""
    return [
        GlobPattern(text=text, prefix=_literal_prefix(text), regex=re.compile(translate(text)))
        for text in dict.fromkeys(expand_braces(pattern))
    ]


def expand_braces(pattern: str) -> list[str]:
    """Every combination of alternatives; braces without a comma or without a partner are ordinary characters.

    Example::

        >>> expand_braces("a{b,c{d,e}}")
        ['ab', 'acd', 'ace']
    """
    found = _first_group(pattern)
    if found is None:
        return [pattern]
    start, stop, alternatives = found
    tails = expand_braces(pattern[stop:])
    heads = [pattern[:start] + text for alternative in alternatives for text in expand_braces(alternative)]
    if len(heads) * len(tails) > _MAX_ALTERNATIVES:
        raise UnsupportedURLError(
            f"the pattern has more than {_MAX_ALTERNATIVES} alternatives", url=redact_url(pattern)[:200]
        )
    return [head + tail for head in heads for tail in tails]


def _first_group(pattern: str) -> tuple[int, int, list[str]] | None:
    """(start, stop, alternatives) of the first brace group that has a comma at its own level."""
    opened: list[tuple[int, list[int]]] = []
    groups: list[tuple[int, int, list[int]]] = []
    for at, char in enumerate(pattern):
        if char == "{":
            opened.append((at, []))
        elif char == "," and opened:
            opened[-1][1].append(at)
        elif char == "}" and opened:
            start, commas = opened.pop()
            if commas:
                groups.append((start, at, commas))
    if not groups:
        return None
    start, end, commas = min(groups)
    cuts = [start, *commas, end]
    return start, end + 1, [pattern[left + 1 : right] for left, right in itertools.pairwise(cuts)]


def _literal_prefix(pattern: str) -> str:
    found = _WILDCARD.search(pattern)
    if found is None:
        return pattern
    return pattern[: found.start()]


def translate(pattern: str) -> str:
    """A regular expression, anchored at its end, for a brace-free pattern."""
    segments = pattern.split("/")
    last = len(segments) - 1
    parts: list[str] = []
    for index, segment in enumerate(segments):
        slash = "" if index == last else "/"
        if len(segment) > 1 and not segment.strip("*"):
            parts.append(".*" if index == last else "(?:.+/)?")
        elif segment == "*":
            parts.append(f"[^/]+{slash}")
        else:
            parts.append(_translate_segment(segment) + slash)
    return f"(?s:{''.join(parts)})\\Z"


def _translate_segment(segment: str) -> str:
    parts: list[str] = []
    at = 0
    while at < len(segment):
        char = segment[at]
        at += 1
        if char == "*":
            end = len(segment) - len(segment[at:].lstrip("*"))
            # Many stars are no more than two, and would each multiply the time of a search.
            parts.append(".*" if end > at else "[^/]*")
            at = end
        elif char == "?":
            parts.append("[^/]")
        elif char == "[" and (end := _set_end(segment, at)) > 0:
            parts.append(_translate_set(segment[at:end]))
            at = end + 1
        else:
            parts.append(re.escape(char))
    return "".join(parts)


def _set_end(segment: str, at: int) -> int:
    """Index of the bracket that closes the set opened before ``at``, or -1: then it is an ordinary character."""
    first = at + 1 if segment.startswith("!", at) else at
    return segment.find("]", first + 1)


def _translate_set(body: str) -> str:
    negated = body.startswith("!")
    members = body[1:] if negated else body
    parts: list[str] = []
    at = 0
    while at < len(members):
        if at + 2 < len(members) and members[at + 1] == "-":
            low, high = members[at], members[at + 2]
            if low <= high:
                parts.append(f"{re.escape(low)}-{re.escape(high)}")
            at += 3
        else:
            parts.append(re.escape(members[at]))
            at += 1
    if not parts:  # only ranges that run backwards: nothing is in the set
        return "[^/]" if negated else "(?!)"
    # A set never matches the separator, negated or not.
    return f"(?!/)[{'^' if negated else ''}{''.join(parts)}]"
