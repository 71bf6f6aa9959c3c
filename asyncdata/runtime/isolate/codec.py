"""Takes a delivery apart for another process, and puts it together there: offsets, kinds and shapes, no payload.

Data in the arena is sent as rows of (offset, length) with a description. Elements outside of the arena (of sources that
are not batched, mostly small) are pickled, with their arrays beside the pickle. The structure is the same for most
deliveries of a pipeline, and is sent only when it changes.
"""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import cloudpickle  # type: ignore[import-untyped]  # ships no types
import numpy as np
import numpy.typing as npt

from asyncdata.errors import PipelineError
from asyncdata.memory import pickling_by_value
from asyncdata.memory.advance import Advance, Marks, Rows
from asyncdata.memory.structure import Structure
from asyncdata.memory.used import Used
from asyncdata.runtime.consumer.delivery import ColumnParts, Delivery
from asyncdata.runtime.isolate import out_of_band
from asyncdata.runtime.memory.packing import RefLeaf
from asyncdata.runtime.state.news import News


class _Contents(NamedTuple):
    columns: ColumnParts
    in_arena: bool
    origin: Rows
    marks: Marks
    used: tuple[Rows, Rows | None] | None
    ordered: bool
    news: News | None


def dump_structure(structure: Structure) -> bytes:
    """Pickled so that a namedtuple of ``__main__`` is the consumer's own class again."""
    return pickling_by_value.dumps(cloudpickle, structure)


def load_structure(body: bytes) -> Structure:
    """What `dump_structure` made."""
    structure: Structure = pickle.loads(body)  # noqa: S301 -- from a process of this pipeline
    return structure


def wrap(delivery: Delivery) -> out_of_band.Buffers:
    """The delivery without its structure and its base.

    Raises:
        PipelineError: An element is made of something that cannot be pickled.
    """
    advance = delivery.advance
    contents = _Contents(
        delivery.columns,
        delivery.base is not None,
        delivery.origin,
        advance.marks,
        None if advance.used is None else (advance.used.pairs, advance.used.ends),
        advance.ordered,
        delivery.news,
    )
    plain = tuple(contents)
    if all(isinstance(column, RefLeaf) and column.leaves is None for column in delivery.columns):
        return out_of_band.dump(plain, pickle.dumps)
    try:
        return out_of_band.dump_object(plain)
    except Exception as error:
        kinds = sorted({type(item).__qualname__ for column in delivery.columns for item in _objects(column)})
        raise PipelineError(
            f"an element ({', '.join(kinds)}) cannot be sent from the loader process to its consumer: "
            f"{type(error).__name__}: {error}. With isolate=True elements consist of numbers, arrays, bytes, str and "
            "other objects that can be pickled"
        ) from error


def _objects(column: RefLeaf | npt.NDArray[Any] | list[Any]) -> list[Any]:
    return column if isinstance(column, list) else []


def unwrap(
    contents: Any, structure: Structure, base: npt.NDArray[np.uint8] | None, *, to_copy: bool = False
) -> Delivery:
    """The delivery in the consumer's process.

    Args:
        contents: What came of `wrap`'s pieces.
        structure: How leaves nest.
        base: The arena, through a lease.
        to_copy: See `Delivery`.
    """
    columns, in_arena, origin, marks, used, ordered, news = _Contents(*contents)
    advance = Advance(len(origin), marks, None if used is None else Used(*used), ordered=ordered)
    delivery = Delivery(structure, columns, base if in_arena else None, origin, advance, to_copy=to_copy and in_arena)
    delivery.news = news
    return delivery
