"""Plans of thousands of steps: described, rewritten and pickled as they are; run as far as Python lets calls nest."""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Callable, Iterator

import pytest

import asyncdata as ad
from asyncdata.plan.node import walk
from asyncdata.planner.rules import rewrite

D = ad.Dataset
Step = Callable[[ad.Dataset], ad.Dataset]

STEPS: dict[str, Step] = {
    "map": lambda ds: ds.map(int),
    "map in threads": lambda ds: ds.map(int, 1, executor="thread"),
    "filter": lambda ds: ds.filter(_always),
    "take": lambda ds: ds.take(5),
    "skip": lambda ds: ds.skip(0),
    "shuffle": lambda ds: ds.shuffle(2, seed=1),
    "batch, unbatch": lambda ds: ds.batch(1).unbatch(),
    "prefetch": lambda ds: ds.prefetch(1),
    "repeat": lambda ds: ds.repeat(1),
    "concatenate": lambda ds: ds.concatenate(D.range(1)),
    "zip": lambda ds: D.zip(ds, D.range(3)).map(_first),
    "enumerate": lambda ds: ds.enumerate().map(_first),
    "options": lambda ds: ds.with_options(ad.Options()),
    "cache": lambda ds: ds.cache(),
    "flat_map": lambda ds: ds.flat_map(D.from_tensors),
    "scan": lambda ds: ds.scan(0, _keep),
    "shard": lambda ds: ds.shard(1, 0),
    "unique": lambda ds: ds.unique(),
    "take_while": lambda ds: ds.take_while(_always),
}


def _always(_x: int) -> bool:
    return True


def _first(one: int, _other: int) -> int:
    return one


def _keep(state: int, x: int) -> tuple[int, int]:
    return state, x


def chain(step: Step, count: int) -> ad.Dataset:
    """The same step again and again."""
    dataset = D.range(3)
    for _ in range(count):
        dataset = step(dataset)
    return dataset


@pytest.fixture
def more_calls() -> Iterator[None]:
    """Four times as many calls may nest."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(4 * before)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.parametrize("kind", STEPS)
def test_thousands_of_steps_are_planned(kind: str, samples: Callable[[int, int], int]) -> None:
    """What is said of them is what is said of a few; and a pickle of them is as good."""
    deep, shallow = chain(STEPS[kind], samples(700, 2000)), chain(STEPS[kind], 2)
    assert deep.element_spec == shallow.element_spec
    if kind != "concatenate":
        assert deep.cardinality() == shallow.cardinality()
    again = pickle.loads(pickle.dumps(deep))
    assert again.element_spec == deep.element_spec
    assert again._node.depth == deep._node.depth
    assert rewrite(deep._node, ad.Options()).depth == deep._node.depth


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["map", "filter", "shuffle", "flat_map", "batch, unbatch", "zip", "scan"])
def test_too_many_steps_are_one_error_that_says_how_many_can_run(kind: str) -> None:
    """And so many can."""
    with pytest.raises(ad.PipelineError, match=r"steps deep; (\d+) can always run") as caught:
        list(chain(STEPS[kind], 700))
    found = re.search(r"steps deep; (\d+) can always", str(caught.value))
    assert found is not None
    each = max(1, _steps(STEPS[kind], 3) - _steps(STEPS[kind], 2))
    count = (int(found[1]) - 2) // each
    assert sorted(map(int, chain(STEPS[kind], count))) == [0, 1, 2]


def _steps(step: Step, count: int) -> int:
    """How many there are once they have been rewritten."""
    return sum(bool(node.inputs) for node in walk(rewrite(chain(step, count)._node, ad.Options())))


@pytest.mark.usefixtures("more_calls")
def test_following_the_advice_helps() -> None:
    """Where more calls may nest, more steps can run."""
    assert list(chain(STEPS["map"], 600)) == [0, 1, 2]


def test_a_deep_pipeline_reaches_the_loader_process() -> None:
    """The plan is sent as it is, however deep."""
    dataset = chain(STEPS["map"], 200).with_options(ad.Options(isolate=True))
    assert list(dataset) == [0, 1, 2]
