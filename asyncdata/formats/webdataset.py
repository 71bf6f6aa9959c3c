"""WebDataset's convention: consecutive members of a tar file whose names differ only in their extension are one sample.

The key of a member is its path up to the first dot of its last component, its extension what follows that dot, in small
letters. Names without a dot are no part of any sample, nor is what is called ``__so__`` or lies in a folder of such a
name.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_NAME: Final = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)")
_META: Final = re.compile(r"__[^/]*__($|/)")

KEY: Final = "__key__"


class Part(NamedTuple):
    """A member's place in its sample."""

    key: str
    extension: str


def part_of(name: str) -> Part | None:
    """Which part of which sample a member is; None for none."""
    if _META.match(name):
        return None
    found = _NAME.fullmatch(name)
    return None if found is None else Part(found[1], found[2].lower())
