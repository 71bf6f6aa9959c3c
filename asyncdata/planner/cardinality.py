"""How many elements a plan gives, as far as that is known without running it. The rules are tf.data's."""

from __future__ import annotations

from functools import singledispatch
from typing import Final

from asyncdata.memory.structure import flatten
from asyncdata.plan import combining, files, grouping, sequence, sources, transformations
from asyncdata.plan.node import Node
from asyncdata.planner.element_spec import element_spec
from asyncdata.planner.upwards import Upwards

INFINITE_CARDINALITY: Final = -1
"""What `Dataset.cardinality` says of a dataset without an end."""

UNKNOWN_CARDINALITY: Final = -2
"""What `Dataset.cardinality` says when only running the dataset would tell."""


@singledispatch
def _rule(node: Node) -> int:
    """A kind of node is given its rule by ``@_rule.register``; without one its number is unknown."""
    del node
    return UNKNOWN_CARDINALITY


cardinality: Final = Upwards[int](_rule)
"""The number of elements, or one of the two constants above."""


def _unknown(node: Node) -> int:
    del node
    return UNKNOWN_CARDINALITY


def _infinite(node: Node) -> int:
    del node
    return INFINITE_CARDINALITY


def _of_input(node: Node) -> int:
    return cardinality(node.inputs[0])


_kind: type[Node]

for _kind in (
    sources.Generator,
    sources.ListFiles,
    sources.ManifestFile,
    sources.TFRecordFile,
    files.TextLines,
    files.FixedLengthRecords,
    files.JsonLines,
    files.CsvRows,
    files.TarSamples,
    files.ParquetRows,
    transformations.Filter,
    transformations.IgnoreErrors,
    transformations.Interleave,
    sequence.TakeWhile,
    sequence.Unique,
    sequence.RejectionResample,
    grouping.Rebatch,
    grouping.StoredFile,
    grouping.GroupByWindow,
):
    _rule.register(_kind)(_unknown)

for _kind in (sequence.Counter, sequence.Random):
    _rule.register(_kind)(_infinite)

for _kind in (
    transformations.Map,
    transformations.Shuffle,
    transformations.Prefetch,
    transformations.WithOptions,
    transformations.Check,
    sequence.Enumerate,
    sequence.Scan,
    grouping.Cache,
    grouping.Snapshot,
):
    _rule.register(_kind)(_of_input)


@_rule.register
def _range(node: sources.Range) -> int:
    return len(range(node.start, node.stop, node.step))


@_rule.register
def _slices(node: sources.TensorSlices) -> int:
    return len(node.arrays[0])


@_rule.register
def _items(node: sources.Items) -> int:
    return len(node.items)


@_rule.register
def _whole_file(node: files.WholeFile) -> int:
    del node
    return 1


@_rule.register
def _contents(node: grouping.Contents) -> int:
    return len(node.rows)


@_rule.register
def _repeat(node: transformations.Repeat) -> int:
    once = cardinality(node.input)
    if node.count == 0 or once == 0:
        return 0
    if node.count is None or once == INFINITE_CARDINALITY:
        return INFINITE_CARDINALITY
    return once if once < 0 else once * node.count


@_rule.register
def _take(node: transformations.Take) -> int:
    there = cardinality(node.input)
    if node.count < 0 or there == UNKNOWN_CARDINALITY:
        return there
    return node.count if there == INFINITE_CARDINALITY else min(there, node.count)


@_rule.register
def _skip(node: transformations.Skip) -> int:
    there = cardinality(node.input)
    if node.count < 0:
        return 0
    return there if there < 0 else max(0, there - node.count)


@_rule.register(transformations.Batch)
@_rule.register(transformations.MapBatch)
@_rule.register(grouping.PaddedBatch)
@_rule.register(grouping.RaggedBatch)
def _batch(
    node: transformations.Batch | transformations.MapBatch | grouping.PaddedBatch | grouping.RaggedBatch,
) -> int:
    there = cardinality(node.input)
    if there < 0:
        return there
    return there // node.size if node.drop_remainder else -(-there // node.size)


@_rule.register
def _unbatch(node: grouping.Unbatch) -> int:
    there = cardinality(node.input)
    shapes = [getattr(leaf, "shape", None) for leaf in flatten(element_spec(node.input))[0]]
    rows = next((shape[0] for shape in shapes if shape and shape[0] is not None), None)
    if there == UNKNOWN_CARDINALITY or rows is None:
        return UNKNOWN_CARDINALITY
    return INFINITE_CARDINALITY if there == INFINITE_CARDINALITY else there * rows


@_rule.register
def _window(node: grouping.Window) -> int:
    there = cardinality(node.input)
    if there < 0:
        return there
    if not node.drop_remainder:
        return -(-there // node.shift)
    reach = (node.size - 1) * node.stride + 1
    return max(0, (there - reach) // node.shift + 1)


@_rule.register
def _shard(node: sequence.Shard) -> int:
    there = cardinality(node.input)
    if there < 0:
        return there
    return there // node.num_shards + (node.index < there % node.num_shards)


@_rule.register
def _assert_cardinality(node: sequence.AssertCardinality) -> int:
    return node.count


@_rule.register
def _zip(node: combining.Zip) -> int:
    counts = [cardinality(child) for child in node.datasets]
    if UNKNOWN_CARDINALITY in counts:
        return UNKNOWN_CARDINALITY
    return min((count for count in counts if count >= 0), default=INFINITE_CARDINALITY)


@_rule.register
def _concatenate(node: combining.Concatenate) -> int:
    counts = [cardinality(child) for child in node.datasets]
    for special in (INFINITE_CARDINALITY, UNKNOWN_CARDINALITY):
        if special in counts:
            return special
    return sum(counts)


@_rule.register(combining.SampleFrom)
@_rule.register(combining.ChooseFrom)
def _sample(node: combining.SampleFrom | combining.ChooseFrom) -> int:
    counts = [cardinality(child) for child in node.datasets]
    choices = [node.choice] if isinstance(node, combining.ChooseFrom) else node.varying
    endless = all(cardinality(child) == INFINITE_CARDINALITY for child in choices)
    enough = all if node.stop_on_empty else any
    return (
        INFINITE_CARDINALITY if endless and enough(c == INFINITE_CARDINALITY for c in counts) else UNKNOWN_CARDINALITY
    )
