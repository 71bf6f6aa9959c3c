"""The part of a plan whose elements have no fixed order."""

from __future__ import annotations

import pytest

import asyncdata as ad
from asyncdata.planner.unordered import unordered_part

D = ad.Dataset


def mixed(count: int) -> ad.Dataset:
    return D.range(count).map(abs, 2, deterministic=False)


def test_an_ordered_plan_has_none() -> None:
    """Parallel steps keep the order unless they say otherwise."""
    part = unordered_part(D.range(9).map(abs, 2).shuffle(3).batch(2)._node, deterministic=True)
    assert (part.steps, part.causes, part.refused) == (frozenset(), (), None)


def test_it_reaches_from_what_mixes_to_the_end() -> None:
    """Its inputs are ordered."""
    ordered = D.range(9).shuffle(2)
    plan = D.zip((mixed(9), ordered)).batch(2)._node
    part = unordered_part(plan, deterministic=True)
    assert id(plan) in part.steps
    assert id(ordered._node) not in part.steps
    assert id(ordered._node) in part.numbers
    assert part.causes == ("map(abs)",)


def test_what_steps_say_counts_more_than_the_option() -> None:
    """As with tf.data's ``options.deterministic``."""
    plan = D.range(9).map(abs, 2).map(repr, 2, deterministic=True)._node
    assert unordered_part(plan, deterministic=False).causes == ("map(abs)",)
    files = ad.TFRecordDataset(["a", "b"])._node
    assert unordered_part(files, deterministic=False).causes == ()
    in_turn = ad.TFRecordDataset(["a", "b"], num_parallel_reads=2)._node
    assert unordered_part(in_turn, deterministic=False).causes


@pytest.mark.parametrize(
    ("dataset", "refused"),
    [
        (mixed(9).take_while(bool), "take_while"),
        (mixed(9).scan(0, lambda a, b: (a, b)).batch(2), None),
        (mixed(9).scan(0, lambda a, b: (a, b)).batch(2).shuffle(3), "and shuffle"),
        (mixed(9).batch(2).flat_map(D.from_tensor_slices), "other ones in every run"),
        (mixed(9).enumerate().flat_map(lambda _n, _x: D.range(3)), "other ones in every run"),
        (mixed(9).filter(bool).shuffle(3).take(2).flat_map(D.range), "other ones in every run"),
        (mixed(9).filter(bool).skip(2).shuffle(3).take(-1).flat_map(D.range).take(2), None),
        (D.range(9).take(2).interleave(D.range, deterministic=False), None),
        (D.range(9).unique().scan(0, lambda a, b: (a, b)).map(abs, 2, deterministic=False), None),
    ],
)
def test_what_cannot_be_resumed(dataset: ad.Dataset, refused: str | None) -> None:
    """Steps that remember what has passed; datasets of elements that are made of several, or that came first."""
    found = unordered_part(dataset._node, deterministic=True).refused
    assert found is None if refused is None else refused in str(found)


def test_fusion_changes_no_number() -> None:
    """A map that becomes one step with the batch behind it, prefetching, and more maps."""
    one = mixed(9).skip(1).batch(3).repeat(2)._node
    other = mixed(9).map(repr, 2, deterministic=False).skip(1).prefetch(2).batch(3).prefetch(1).repeat(2)._node
    numbers = [sorted(unordered_part(plan, deterministic=True).numbers.values()) for plan in (one, other)]
    assert numbers == [[0, 1, 2]] * 2
