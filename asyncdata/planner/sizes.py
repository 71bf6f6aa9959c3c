"""Divides the memory limit before anything is known about the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from asyncdata.errors import MemoryLimitError
from asyncdata.memory.verdict import limit_in_words
from asyncdata.options import AUTOTUNE, Options
from asyncdata.plan.combining import Concatenate
from asyncdata.plan.grouping import PaddedBatch, RaggedBatch, Rebatch
from asyncdata.plan.node import Node, walk
from asyncdata.plan.transformations import Batch, Interleave, Map, MapBatch

_UNIT: Final = 1 << 16
_NEAR_CHUNK: Final = 8 << 20
_FAR_CHUNK: Final = 4 << 20
_SOURCES_SHARE: Final = 8
_CONSUMER_SHARE: Final = 2 / 8
_CONSUMER_FINE_SHARE: Final = 3 / 8
_CONSUMER_RESERVE: Final = 8
_TASKS_SHARE: Final = 16
_WORKER_NODES: Final = (Map, MapBatch)
_BATCH_NODES: Final = (Batch, PaddedBatch, RaggedBatch, Rebatch)
_STAGES_AT_FULL_SHARE: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Reserved minimums; what is left is shared by read-ahead, shuffle buffers and everything that grows.

    Attributes:
        chunk_bytes: Slab of one chunk of one current shard, headroom included; of local files.
        far_chunk_bytes: The same for shards that lie elsewhere.
        task_bytes: Scratch and output of the soonest worker task of each stage.
        consumer_bytes: Reserved for batches the consumer holds.
        lease_bytes: Slabs the consumer may hold before it gets private copies.
        fine_lease_bytes: The same as long as all of them are small: what is left for others is not in large pieces.
    """

    chunk_bytes: int
    far_chunk_bytes: int
    task_bytes: int
    consumer_bytes: int
    lease_bytes: int
    fine_lease_bytes: int


def current_shards(node: Node) -> int:
    """How many shards a plan reads in turn, as far as it says so itself; 1 for a source of any kind.

    Inputs that are read side by side add up; of a concatenation one is read at a time.
    """
    found: dict[int, int] = {}
    for each in reversed(list(walk(node))):
        counts = [found[id(child)] for child in each.inputs]
        if isinstance(each, Interleave):
            found[id(each)] = each.cycle_length
        else:
            found[id(each)] = max(counts) if isinstance(each, Concatenate) else sum(counts) or 1
    return found[id(node)]


def worker_stages(plan: Node) -> int:
    """How many stages of a plan share the memory for what tasks make.

    A few batches have as much for their outputs as one worker stage each; many divide what four would have.
    """
    nodes = list(walk(plan))
    workers = sum(isinstance(node, _WORKER_NODES) for node in nodes)
    batches = sum(isinstance(node, _BATCH_NODES) for node in nodes)
    return max(workers, -(-(workers + batches) // _STAGES_AT_FULL_SHARE))


def shards_of_inputs(node: Node, shards: int) -> list[int]:
    """For each input of a node, of how many times its own shards the memory must do, so that all sum up to `shards`.

    Args:
        node: Reads its inputs side by side.
        shards: The product of the cycle lengths around it.
    """
    counts = [current_shards(child) for child in node.inputs]
    return [-(-shards * sum(counts) // count) for count in counts]


def divide(options: Options, *, current_shards: int, worker_stages: int = 1, parts: int = 1) -> Shares:
    """Divides the limit.

    Args:
        options: The limit, and the size of a read that is wished for.
        current_shards: Shards that are read in turn: the product of the cycle lengths above a source.
        worker_stages: Stages that give work to workers.
        parts: Pipelines among which the user's limit is divided; the options have one part of it.

    Raises:
        MemoryLimitError: Not even chunks of 64 KiB fit.
    """
    limit = options.memory_limit_bytes
    room = limit // _SOURCES_SHARE // max(current_shards, 1)
    if room < _UNIT:
        raise MemoryLimitError(
            f"{limit_in_words(limit, parts)} is too small to read {current_shards} shards in turn; at least "
            f"{_UNIT * _SOURCES_SHARE * current_shards * parts} is needed, or a smaller cycle_length"
        )
    return Shares(
        chunk_bytes=_chunk(options.chunk_bytes, _NEAR_CHUNK, room),
        far_chunk_bytes=_chunk(options.chunk_bytes, _FAR_CHUNK, room),
        task_bytes=max(_UNIT, limit // _TASKS_SHARE // max(worker_stages, 1) // _UNIT * _UNIT),
        consumer_bytes=limit // _CONSUMER_RESERVE // _UNIT * _UNIT,
        lease_bytes=int(limit * _CONSUMER_SHARE) // _UNIT * _UNIT,
        fine_lease_bytes=int(limit * _CONSUMER_FINE_SHARE) // _UNIT * _UNIT,
    )


def _chunk(wished: int, usual: int, room: int) -> int:
    return max(_UNIT, min(usual if wished == AUTOTUNE else wished, room) // _UNIT * _UNIT)
