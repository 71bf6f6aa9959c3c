"""English for messages: the article of a type's name, and the plural of what is counted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

_LIKE_YOU: Final = re.compile("(?i)u(int|ni|s|uid|r[il])")
"""Names that begin with the sound of "you", such as uint8, UserDict and UUID."""

_MOST: Final = 20
_LONGEST: Final = 60
"""Names that a list shows, and characters of a name."""


def with_article(name: str) -> str:
    """``an int``, ``a list``."""
    vowel = name[:1].lower() in tuple("aeiou") and not _LIKE_YOU.match(name)
    return f"{'an' if vowel else 'a'} {name}"


def kind_of(value: Any) -> str:
    """The type of a value with its article; None is ``None``."""
    return "None" if value is None else with_article(type(value).__name__)


def counted(count: int, noun: str, nouns: str | None = None) -> str:
    """``1 file``, ``2000 files``, as data errors show numbers: they can be searched for.

    Args:
        count: How many there are.
        noun: What they are.
        nouns: Its plural, if more than an s is different.
    """
    return f"{count} {_number_of(count, noun, nouns)}"


def grouped(count: int, noun: str, nouns: str | None = None) -> str:
    """``1 file``, ``2,000 files``: as `counted`, for reports."""
    return f"{count:,} {_number_of(count, noun, nouns)}"


def _number_of(count: int, noun: str, nouns: str | None) -> str:
    return noun if count == 1 else nouns or f"{noun}s"


def listed(names: Sequence[str]) -> str:
    """The names of what there is: the first ones, and of each the beginning."""
    shown = [repr(name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…") for name in names[:_MOST]]
    return ", ".join(shown) + (", …" if len(names) > _MOST else "")
