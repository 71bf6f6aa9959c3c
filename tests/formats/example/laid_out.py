"""Records side by side, as readers of many get them, and what the parser of single records makes of each."""

from __future__ import annotations

from typing import Any

import numpy as np

from asyncdata.errors import CorruptRecordError
from asyncdata.formats.example.fields import SPARE_BYTES
from asyncdata.formats.example.scalar import ScalarReader
from asyncdata.formats.example.wanted import Wanted


def laid_out(records: list[bytes]) -> tuple[Any, Any]:
    """The records side by side, and where they are."""
    sizes = np.array([len(record) for record in records])
    rows = np.stack((np.cumsum(sizes) - sizes + 3, sizes), axis=1)
    return np.frombuffer(b"abc" + b"".join(records) + bytes(SPARE_BYTES), np.uint8), rows


def values(columns: list[Any], row: int) -> list[Any]:
    """The values of one record."""
    return [column[row] if isinstance(column[row], bytes) else column[row].item() for column in columns]


def alone(record: bytes, wanted: list[Wanted]) -> list[Any] | None:
    """What the parser of single records makes of it; None where that is an error."""
    try:
        found = ScalarReader(wanted).read(record)
    except CorruptRecordError:
        return None
    return [value if isinstance(value, bytes) else value.item() for value in found]
