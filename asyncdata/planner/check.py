"""Where payload checksums are verified: in front of whatever reads payloads outside of a worker task.

Worker tasks verify what they are given themselves. Everything else that shows payloads to somebody (an inline or
awaited function, a predicate, a batch or window of raw records, a cache, the consumer) gets a `Check` in front of it.
What needs no check passes through one for the price of a look at the leaf.
"""

from __future__ import annotations

from asyncdata.options import Options
from asyncdata.plan.combining import Zip
from asyncdata.plan.grouping import Cache, Contents, GroupByWindow, PaddedBatch, RaggedBatch, Snapshot, Window
from asyncdata.plan.node import Node, walk
from asyncdata.plan.sequence import RejectionResample, Scan, TakeWhile, Unique
from asyncdata.plan.sources import Generator, Items, ListFiles, Range, TensorSlices, TFRecordFile
from asyncdata.plan.transformations import Batch, Check, Filter, IgnoreErrors, Interleave, Map, MapBatch

CHECKSUMS = "__checksums__"
"""Attribute of a function: whether the dataset that it returns has payloads with checksums."""

_READS_PAYLOADS = (
    *(RejectionResample, Scan, TakeWhile, Unique, IgnoreErrors, Filter, Batch),
    *(PaddedBatch, RaggedBatch, Window, GroupByWindow, Cache, Snapshot),
    Interleave,  # its function may be given records, not names of files
)
_SHOWS_CHECKED = (
    *(Range, TensorSlices, Items, Generator, ListFiles, Check, Map, MapBatch, Batch),
    *(PaddedBatch, RaggedBatch, Window, Contents, Cache, Snapshot),
)


def insert_check(node: Node, options: Options) -> Node:
    """A `Check` as the input of a node that shows payloads to somebody.

    Also in front of `zip`, behind which an element has the provenance of its first part only: what is found damaged
    must be named.
    """
    if isinstance(node, Zip) and options.check_crc:
        inputs = tuple(Check(input=child) if _may_be_unchecked(child) else child for child in node.inputs)
        return node.with_inputs(inputs)
    reads = isinstance(node, _READS_PAYLOADS) or (
        isinstance(node, Map) and node.executor in ("inline", "vectorized", "async")
    )
    if not options.check_crc or not reads or not _may_be_unchecked(node.inputs[0]):
        return node
    return node.with_inputs((Check(input=node.inputs[0]),))


def check_output(node: Node, options: Options) -> Node:
    """A `Check` in front of the consumer, if raw records reach it."""
    return Check(input=node) if options.check_crc and _may_be_unchecked(node) else node


def will_check(node: Node) -> bool:
    """Whether it is certain, before anything is read, that payloads with checksums come out of this plan."""
    return any(
        isinstance(each, TFRecordFile)
        or (isinstance(each, Interleave) and bool(getattr(each.function, CHECKSUMS, False)))
        for each in walk(node)
    )


def _may_be_unchecked(node: Node) -> bool:
    waiting = [node]
    while waiting:
        found = waiting.pop()
        if isinstance(found, TFRecordFile | Interleave | GroupByWindow):
            return True
        if not isinstance(found, _SHOWS_CHECKED):
            waiting.extend(found.inputs)
    return False
