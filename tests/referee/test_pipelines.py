"""TensorFlow as the referee: whole pipelines, and the order of interleave, element for element."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import asyncdata as ad
from tests.referee import pipelines
from tests.referee.process import Referee
from tests.samples import SOAK, drawing, samples

OPTIONS = ad.Options(num_workers=0, seed=1)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Files for the sources of drawn pipelines, some of them empty."""
    return pipelines.write_files(tmp_path_factory.mktemp("files"), (3, 0, 1, 5))


def check(plan: pipelines.Plan, referee: Referee, *, any_order: bool) -> None:
    """Both give the same elements, both fail or neither does, and what is known of their number agrees."""
    expected = referee.ask("tf_pipelines", plan)
    if expected is None or "MakeIterator" in (expected["error"] or ""):
        return  # TensorFlow crashed, or refused static shapes that it has worked out, before the first element
    found = pipelines.answer(plan)
    context = json.dumps(plan), expected["error"], found["error"]
    if expected["cardinality"] is None:
        # Refused where it was written, for shapes that are known there; here at the first element, if there is one.
        assert found["elements"] == [], context
        return
    if any_order and len(expected["elements"]) == pipelines.MOST:
        # Which of more elements come first is chance.
        assert len(found["elements"]) == pipelines.MOST, context
        return
    if found["error"] and expected["error"] is None and leaves_out(plan):
        # TensorFlow drops the errors of elements that no window contains; here no error is dropped.
        count = len(found["elements"])
        assert any_order or found["elements"] == expected["elements"][:count], context
        return
    if any_order and expected["error"] is None:
        for elements in (expected["elements"], found["elements"]):
            elements.sort(key=lambda element: json.dumps(element, sort_keys=True))
    if not (any_order and expected["error"]):
        assert found["elements"] == expected["elements"], context
    assert (found["error"] is None) == (expected["error"] is None), context
    if expected["cardinality"] == ad.UNKNOWN_CARDINALITY and found["cardinality"] >= 0 and not expected["error"]:
        # More is known than TensorFlow knows; then it is true.
        assert found["cardinality"] == len(expected["elements"]), context
    elif not (found["cardinality"] == ad.UNKNOWN_CARDINALITY and '"unbatch"' in context[0]):
        # How many rows a batch has, TensorFlow knows by tracing the functions of maps and scans.
        assert found["cardinality"] == expected["cardinality"], context


def leaves_out(plan: pipelines.Plan) -> bool:
    """Whether there are elements between the windows of a plan."""
    if plan["op"] == "windows" and plan["shift"] > (plan["size"] - 1) * plan["stride"] + 1:
        return True
    return any(leaves_out(each) for each in (*plan.get("inputs", ()), *([plan["input"]] if "input" in plan else [])))


@pytest.mark.slow
@pytest.mark.leaks("TensorFlow's process dies of some pipelines; the next one belongs to the module's fixture")
@pytest.mark.timeout(7200 if SOAK else 600)
def test_random_pipelines_give_what_tensorflow_gives(referee: Referee, files: dict[str, list[str]]) -> None:
    """Pipelines of up to six steps over all kinds of sources and transformations, element for element."""

    @drawing(60, 2500)
    @given(drawn=pipelines.plans(files))
    def run(drawn: tuple[pipelines.Plan, bool]) -> None:
        plan, any_order = drawn
        check(plan, referee, any_order=any_order)

    before = referee.deaths
    with ad.Runtime(ad.Options(num_workers=2, seed=1)):
        run()
    assert referee.deaths - before <= samples(1, 25), "TensorFlow crashed too often to be a referee"


def unseeded() -> Iterator[pipelines.Plan]:
    """Orders that are drawn without a seed, of so many elements that no two of them are alike by chance."""
    source = {"op": "range", "start": 0, "stop": 80, "step": 1}
    rows = {"op": "interleave", "function": "repeat", "cycle": 3, "block": 2, "input": source}
    numbered = {"op": "enumerate", "start": 0, "input": rows}
    befores: list[pipelines.Plan] = [
        source,
        {"op": "filter", "rest": 1, "input": source},
        {"op": "unbatch", "input": {"op": "batch", "batch_size": 3, "drop_remainder": False, "input": source}},
        {"op": "map", "function": "first", "parallel": None, "input": numbered},
    ]
    for before, stays in itertools.product(befores, (None, True, False)):
        other = {"op": "map", "function": "affine", "parallel": None, "input": before}
        shuffled = {"op": "shuffle", "size": 60, "input": before, "reshuffle": stays}
        yield shuffled
        yield {"op": "sample", "inputs": [before, other], "weights": [0.5, 0.5], "rerandomize": stays}
        yield {"op": "map", "function": "affine", "parallel": 2, "input": shuffled}
        yield {"op": "shuffle", "size": 60, "input": shuffled, "reshuffle": stays}
        yield {
            "op": "map",
            "function": "first",
            "parallel": None,
            "input": {"op": "zip", "inputs": [shuffled, other], "as_dict": False},
        }


@pytest.mark.slow
@pytest.mark.timeout(3600 if SOAK else 600)
def test_unseeded_orders_have_tensorflows_laws(referee: Referee) -> None:
    """Same order again, in repetitions and beside itself; disjoint splits; or none of it: as TensorFlow has it."""
    plans = list(unseeded())
    with ad.Runtime(ad.Options(num_workers=2)):
        check_orders(plans[:: samples(14, 1)], referee)


def check_orders(plans: list[pipelines.Plan], referee: Referee) -> None:
    """Both have the same laws, for each of the plans."""
    for plan in plans:
        expected = referee.ask("tf_pipelines", {"op": "laws", "plan": plan, "split": 20})
        found = pipelines.laws(plan, 20)
        assert expected is not None, json.dumps(plan)
        if not expected["same again"]:
            # Splits of two orders may be disjoint by chance.
            del expected["disjoint splits"], found["disjoint splits"]
        elif plan["op"] == "sample":
            # TensorFlow draws one order for every place of the dataset in a graph, asyncdata one for the dataset.
            expected |= {"same in repetitions": True, "same beside itself": True, "disjoint splits": [True, True]}
        assert found == expected, json.dumps(plan)


def rotations(longest: int) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Lengths of inner datasets, cycle_length and block_length: all of them, up to small numbers."""
    for count in range(longest + 1):
        for lengths in itertools.product(range(4), repeat=count):
            for cycle, block in itertools.product(range(1, 5), range(1, 4)):
                yield lengths, cycle, block


def interleaved(lengths: tuple[int, ...], cycle: int, block: int) -> list[int]:
    """The order in which asyncdata reads datasets of these lengths."""

    def make(number: Any) -> ad.Dataset:
        return ad.Dataset.range(10 * number, 10 * number + lengths[int(number)])

    ds = ad.Dataset.range(len(lengths)).interleave(make, cycle_length=cycle, block_length=block)
    return [int(x) for x in ds]


@pytest.mark.slow
@pytest.mark.timeout(3600 if SOAK else 600)
def test_interleave_has_tensorflows_order(referee: Referee) -> None:
    """Every cycle_length, block_length and every combination of lengths up to a small number, empty ones included."""
    cases = list(rotations(samples(2, 4)))
    expected = referee.ask("tf_pipelines", {"op": "orders", "cases": cases})
    assert expected is not None
    with ad.Runtime(OPTIONS):
        for case, order in zip(cases, expected["orders"], strict=True):
            assert interleaved(*case) == order, case


def in_whole_blocks(lengths: tuple[int, ...], cycle: int, block: int) -> bool:
    """Whether every dataset ends with a block. Where one does not, TensorFlow's old order is a matter of time."""
    return cycle <= 3 and all(length % block == 0 for length in lengths)


@pytest.mark.slow
@pytest.mark.timeout(3600 if SOAK else 600)
def test_the_old_parallel_interleave_has_tensorflows_order(referee: Referee) -> None:
    """Not sloppy, with every combination of lengths up to a small number, in whole blocks."""
    cases = [case for case in rotations(samples(2, 4)) if in_whole_blocks(*case)]
    expected = referee.ask("tf_pipelines", {"op": "legacy orders", "cases": cases})
    assert expected is not None
    with ad.Runtime(OPTIONS):
        for (lengths, cycle, block), order in zip(cases, expected["orders"], strict=True):

            def make(number: Any, lengths: tuple[int, ...] = lengths) -> ad.Dataset:
                return ad.Dataset.range(10 * number, 10 * number + lengths[int(number)])

            ds = ad.Dataset.range(len(lengths)).parallel_interleave(make, cycle, block, sloppy=False)
            assert [int(x) for x in ds] == order, (lengths, cycle, block)


RESAMPLED = [
    ([1 / 3, 1 / 3, 1 / 3], [0.6, 0.1, 0.3]),
    ([0.5, 0.25, 0.25], None),
    ([0.6, 0.1, 0.3], [0.6, 0.1, 0.3]),
    ([0.0, 0.5, 0.5], [0.6, 0.1, 0.3]),
    ([0.2, 0.3, 0.5], [0.5, 0.2, 0.3]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("target", "initial"), RESAMPLED)
def test_resampling_keeps_as_much_as_tensorflow(
    target: list[float], initial: list[float] | None, referee: Referee
) -> None:
    """Of each class and in all as many elements as TensorFlow gives, within what chance allows; epoch for epoch."""
    epochs, count = 3, samples(1500, 4000)
    case = {"op": "resampled", "count": count, "target": target, "initial": initial, "seed": 3, "epochs": epochs}
    expected = referee.ask("tf_pipelines", case)
    assert expected is not None
    classes = np.array([1, 2, 2, 2, 0, 0, 0, 0, 0, 0])
    with ad.Runtime(OPTIONS):
        ds = ad.Dataset.range(count).rejection_resample(lambda x: classes[int(x) % 10], target, initial, seed=3)
        found = [[int(kind) for kind, _ in ds] for _ in range(epochs)]
        again = [int(kind) for kind, _ in ds.repeat(epochs)]
    both = [np.bincount(numbers, minlength=3) for numbers in (*expected["classes"], *found)]
    theirs, ours = np.mean(both[:epochs], axis=0), np.mean(both[epochs:], axis=0)
    # Six standard deviations of sums of so many draws; where one of two inputs ends, chance adds up twice.
    assert (np.abs(theirs - ours) < 6 * 2 * np.sqrt(np.maximum(theirs, 16))).all(), (theirs, ours)
    assert abs(len(again) - epochs * ours.sum()) < 6 * 2 * np.sqrt(epochs * ours.sum() + 16)
