"""Nodes: frozen trees that say what they read from."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from asyncdata.options import Options
from asyncdata.plan.node import Node, rebuilt, walk
from asyncdata.plan.sources import Items, Range, TFRecordFile, byte_order
from asyncdata.plan.transformations import Batch, MapBatch, Prefetch, Repeat, Shuffle, Take, WithOptions


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Both(Node):
    """A node with two kinds of inputs."""

    first: Node
    others: tuple[Node, ...]
    numbers: tuple[int, ...] = (1, 2)


def source(stop: int = 3) -> Range:
    return Range(start=0, stop=stop, step=1, dtype="<i8")


def test_inputs_are_the_fields_that_are_nodes() -> None:
    """Nodes and tuples of nodes are inputs, in the order of the fields; they can be replaced."""
    a, b, c = source(1), source(2), source(3)
    both = Both(first=a, others=(b, c))
    assert both.inputs == (a, b, c)
    changed = both.with_inputs((c, b, a))
    assert isinstance(changed, Both)
    assert (changed.first, changed.others, changed.numbers) == (c, (b, a), (1, 2))
    assert both.inputs == (a, b, c)
    assert list(walk(both)) == [both, a, b, c]
    assert a.inputs == ()


def test_what_is_read_twice_stays_one_step_when_a_plan_is_changed() -> None:
    """Each step is changed once, however many steps read it."""
    changes: list[Node] = []

    def change(old: Node, new: Node) -> Node:
        changes.append(old)
        return dataclasses.replace(new, count=2) if isinstance(new, Take) else new

    shared = Take(input=source(), count=1)
    plan = Both(first=Take(input=shared, count=3), others=(shared, source()))
    changed = rebuilt(plan, change)
    assert isinstance(changed, Both)
    assert isinstance(changed.first, Take)
    assert changed.first.input is changed.others[0]
    assert [each.count for each in walk(changed) if isinstance(each, Take)] == [2, 2, 2]
    assert len(changes) == len({id(each) for each in changes}) == 5


def test_labels_are_tf_datas_words() -> None:
    """A node is called what the user wrote."""
    assert source().label == "range"
    assert Take(input=source(), count=1).label == "take"
    assert WithOptions(input=source(), options=Options()).label == "with_options"
    assert TFRecordFile(url="u", compression=None).label == "TFRecordDataset"
    assert Items(items=()).label == "from_tensors"


def test_nodes_do_not_change() -> None:
    """A plan that is running cannot be changed under it."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        source().stop = 5  # type: ignore[misc]  # must fail


def test_depth_counts_the_users_steps() -> None:
    """What follows, what works ahead and what the planner adds or joins does not move a node."""
    shuffle = Shuffle(input=source(), buffer_size=3, seed=1, reshuffle=True)
    assert shuffle.depth == 2
    for above in (Take(input=shuffle, count=2), Prefetch(input=shuffle, buffer_size=1)):
        assert above.inputs[0].depth == 2
    ahead = Prefetch(input=source(), buffer_size=1)
    assert Shuffle(input=ahead, buffer_size=3, seed=1, reshuffle=True).depth == 2
    fused = MapBatch(
        input=source(),
        functions=(abs, abs),
        rng=(False, False),
        parallelism=1,
        deterministic=None,
        executor="thread",
        zero_copy=False,
        size=2,
        drop_remainder=False,
    )
    assert fused.depth == 4
    assert Repeat(input=WithOptions(input=fused, options=Options()), count=2).depth == 5
    assert Both(first=Batch(input=source(), size=1, drop_remainder=False), others=(fused,)).depth == 3


def test_arrays_of_a_plan_are_read_only_and_native() -> None:
    """Elements of a plan cannot be changed through it, and are in this machine's byte order."""
    array = np.arange(6, dtype=">i4").reshape(2, 3)[:, ::2]
    kept = byte_order(array)
    assert kept.tolist() == array.tolist()
    assert kept.dtype.isnative
    assert kept.flags.c_contiguous
    with pytest.raises(ValueError, match="read-only"):
        kept[0, 0] = 1
    plain = np.arange(3)
    byte_order(plain)
    plain[0] = 5
