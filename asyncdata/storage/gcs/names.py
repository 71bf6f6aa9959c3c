"""Divides the listing of one prefix among several listers while it runs. Pure: makes no requests.

GCS lists names in order, 1,000 per page, and accepts two bounds: ``startOffset`` (inclusive) and ``endOffset``
(exclusive). A *span* is such a half-open interval. Invariant: the finished and the unfinished spans together partition
the space of names, without overlaps or gaps. A cut only divides one span in two. Where it is decides how fast a listing
is, never what it finds.

::

    first page of [a, ∞) ─▶ names a…f, and there are more ─▶ [f, j) goes on │ [j, p) │ [p, ∞) by other listers
    a lister is idle     ─▶ the span with most left is cut again, where its last page says the names go on

If a span is cut while one of its pages is in flight, the page may contain names beyond the new end; they are left to
the other span. Nothing is requested in parallel before a first page has shown that there are more names.
"""

from __future__ import annotations

import itertools
import string
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

_POSITIONS: Final = 12
"""Characters behind the common beginning that tell names apart, as far as cutting is concerned."""

_WORTHWHILE_PAGES: Final = 2.0
_FIRST_LISTERS: Final = 4
"""Listers for each full page that was seen: a listing of three pages is not worth sixteen requests."""

_CLASSES: Final = (string.digits, "abcdef" + string.digits, string.ascii_lowercase, string.ascii_uppercase)


@dataclass(frozen=True, slots=True)
class Question:
    """One page to be asked for.

    Attributes:
        span: Number of the span.
        start: ``startOffset``; empty for none.
        end: ``endOffset``; empty for none. It is the same for all pages of a span, because page tokens depend on it.
        token: ``pageToken``; None for the first page.
    """

    span: int
    start: str
    end: str
    token: str | None


@dataclass(slots=True)
class _Span:
    start: str
    end: str
    asked_end: str
    page: tuple[str, str] | None = None
    """First and last name of the last page that had any; then, too, there are more."""


@dataclass(slots=True)
class NameSpace:
    """The state of one listing; see the module's text.

    Attributes:
        prefix: What every name begins with.
        listers: The most questions under way at a time.
        questions: Questions asked so far.
        probes: Those of them whose span turned out to be empty.
    """

    prefix: str
    listers: int
    questions: int = 0
    probes: int = 0
    _spans: dict[int, _Span] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _confirmed: int = 0

    def begin(self) -> Question:
        """The first question."""
        return self._open("", "")

    def answered(self, question: Question, names: Sequence[str], token: str | None) -> tuple[int, list[Question]]:
        """Takes a page in.

        Args:
            question: What was asked.
            names: All names and common prefixes of the page, sorted.
            token: Of the next page; None behind the last one.

        Returns:
            How many of the leading names count (the others belong to another span), and what to ask now.
        """
        span = self._spans[question.span]
        kept = len(names) if not span.end else bisect_left(names, span.end)
        if kept:
            span.page = (names[0], names[kept - 1])
        elif not names and token is None and span.page is None:
            self.probes += 1
        asked: list[Question] = []
        if token is None or kept < len(names):
            del self._spans[question.span]
        else:
            self.questions += 1
            self._confirmed += bool(kept)
            asked.append(Question(question.span, question.start, question.end, token))
        asked.extend(self._occupy())
        return kept, asked

    def _open(self, start: str, end: str) -> Question:
        number = next(self._numbers)
        self._spans[number] = _Span(start, end, end)
        self.questions += 1
        return Question(number, start, end, None)

    def _occupy(self) -> list[Question]:
        """Cuts spans for the listers that have nothing to do."""
        idle = min(self.listers, _FIRST_LISTERS * self._confirmed) - len(self._spans)
        if idle < 1 or self.probes > self.questions // 2 + self.listers:
            return []
        shares: dict[int, int] = {}
        left = {
            number: pages_left(self.prefix, *span.page, span.end) for number, span in self._spans.items() if span.page
        }
        for _ in range(idle):
            number = max(left, key=lambda number: left[number] / (1 + shares.get(number, 0)), default=None)
            if number is None or left[number] / (1 + shares.get(number, 0)) < _WORTHWHILE_PAGES:
                break
            shares[number] = shares.get(number, 0) + 1
        asked: list[Question] = []
        for number, more in shares.items():
            span = self._spans[number]
            assert span.page is not None
            cuts = find_cuts(self.prefix, *span.page, span.end, more)
            for start, end in itertools.pairwise([*cuts, span.end]):
                asked.append(self._open(start, end))
            if cuts:
                span.end = cuts[0]
        return asked


def find_cuts(prefix: str, first: str, last: str, end: str, count: int) -> list[str]:
    """At most ``count`` names, in order, that cut the interval from ``last`` to ``end``, both exclusive.

    Args:
        prefix: What every name begins with.
        first: First name of the page that ended with ``last``.
        last: Where the listing has come to.
        end: Where it ends; empty for nowhere.
        count: At least 1.
    """
    scale = _Scale(prefix, first, last)
    border = _successor(scale.context)
    is_inner = bool(border) and (not end or border < end)
    low, high = scale.number(last), scale.number(end) if end and not is_inner else scale.top
    parts = count if is_inner else count + 1
    texts = {scale.context + scale.text(low + (high - low) * part // parts) for part in range(1, parts)}
    if is_inner:
        texts.add(border)
    return sorted(text for text in texts if last < text and (not end or text < end))


def pages_left(prefix: str, first: str, last: str, end: str) -> float:
    """A guess how many pages like the last one lie between it and the end."""
    scale = _Scale(prefix, first, last)
    inside = not end or end.startswith(scale.context)
    high = scale.number(end) if end and inside else scale.top
    return (high - scale.number(last)) / max(1, scale.number(last) - scale.number(first))


class _Scale:
    """Names that go on as those of one page do, as numbers: each position has the characters of its class."""

    def __init__(self, prefix: str, first: str, last: str) -> None:
        same = len(_same_beginning(first, last))
        while same > len(prefix) and first[same - 1].isalnum():
            same -= 1
        self.context = first[:same]
        rests = [first[same : same + _POSITIONS], last[same : same + _POSITIONS]]
        self._alphabets = [
            _alphabet({rest[at] for rest in rests if at < len(rest)}) for at in range(max(map(len, rests)))
        ]
        self.top = 1
        for alphabet in self._alphabets:
            self.top *= len(alphabet) + 1

    def number(self, name: str) -> int:
        """The place of a name on the scale; names that do not fit lie where they would be sorted in."""
        if not name.startswith(self.context):
            return 0 if name < self.context else self.top
        value, unit = 0, self.top
        rest = name[len(self.context) :]
        for at, alphabet in enumerate(self._alphabets):
            unit //= len(alphabet) + 1
            if at >= len(rest):
                break
            index = bisect_left(alphabet, rest[at])
            fits = index < len(alphabet) and alphabet[index] == rest[at]
            value += (index + fits) * unit  # 0 represents the end of the name
            if not fits:
                break
        return value

    def text(self, value: int) -> str:
        """The beginning of a name at a place of the scale."""
        parts: list[str] = []
        unit = self.top
        for alphabet in self._alphabets:
            unit //= len(alphabet) + 1
            index, value = divmod(value, unit)
            if index == 0:
                break
            parts.append(alphabet[index - 1])
        return "".join(parts)


def _alphabet(seen: set[str]) -> list[str]:
    """The characters seen at one position, and their like."""
    for known in _CLASSES:
        if seen <= set(known):
            return sorted(known)
    full = set(seen)
    for known in (string.digits, string.ascii_lowercase, string.ascii_uppercase):
        if seen & set(known):
            full |= set(known)
    return sorted(full)


def _same_beginning(one: str, other: str) -> str:
    count = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:count]


def _successor(text: str) -> str:
    """The first text behind all that begin with this one; empty when there is none."""
    while text:
        code = ord(text[-1]) + 1
        if 0xD800 <= code <= 0xDFFF:
            code = 0xE000  # surrogates are no characters
        if code <= 0x10FFFF:
            return text[:-1] + chr(code)
        text = text[:-1]
    return ""
