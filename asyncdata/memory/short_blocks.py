"""Blocks of a few small elements. Each costs what any block costs, so several of them are better handled together."""

from __future__ import annotations

from typing import Final

from asyncdata.memory.block import Block
from asyncdata.memory.columns import ObjectColumn
from asyncdata.memory.structure import element_bytes

SHORT_ROWS: Final = 64
SHORT_BYTES: Final = 64 << 10
"""So much is handled together at the most."""


def short_bytes(block: Block) -> int:
    """The bytes of a block of fewer than `SHORT_ROWS`, bare objects included; more than `SHORT_BYTES` of any other."""
    if not 0 < len(block) < SHORT_ROWS:
        return SHORT_BYTES + 1
    objects = [column.items for column in block.columns if isinstance(column, ObjectColumn)]
    return block.payload_bytes(len(block)) + sum(element_bytes(item) for items in objects for item in items)
