"""A state, whenever it is taken, gives a fresh iterator exactly the elements that were left."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import asyncdata as ad
from tests.referee import pipelines
from tests.samples import SOAK, samples

D = ad.Dataset


def text(element: Any) -> str:
    """An element in a form that can be compared."""
    return json.dumps(pipelines.plain(element), sort_keys=True)


def run(it: ad.PipelineIterator) -> tuple[list[str], list[Any], str | None]:
    """All elements, the state in front of each and behind the last one, and the error that ended it."""
    elements: list[str] = []
    states = [it.state_dict()]
    try:
        for element in it:
            elements.append(text(element))
            states.append(it.state_dict())
    except Exception as error:  # noqa: BLE001 -- compared
        return elements, states, type(error).__name__
    return elements, states, None


def check(dataset: ad.Dataset, again: ad.Dataset, places: random.Random, most: int) -> None:
    """Restores the states of one dataset into iterators of an equal one."""
    with dataset.iterator() as it:
        try:
            elements, states, error = run(it)
        except ad.StateError as refused:
            assert "as they are ready" in str(refused)  # noqa: PT017 -- either outcome is right
            return
    chosen = range(len(states)) if len(states) <= most else sorted(places.sample(range(len(states)), most))
    for count in chosen:
        state = json.loads(json.dumps(states[count]))
        with again.iterator(state=state) as it:
            assert it.position == count
            rest, later, ending = run(it)
        assert (rest, ending) == (elements[count:], error), f"after {count} of {len(elements)}: {state}"
        if count < len(states) - 1:
            # And once more from there.
            middle = places.randrange(count, len(states))
            with again.iterator(state=json.loads(json.dumps(later[middle - count]))) as it:
                assert run(it)[::2] == (elements[middle:], error), f"after {count}, then {middle}"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Files of several formats, some of them empty."""
    folder = tmp_path_factory.mktemp("files")
    written: dict[str, list[str]] = {"records": [], "lines": [], "fixed": [], "examples": []}
    for i, count in enumerate((30, 0, 1, 50)):
        records = [b"%d" % (100 * i + j) * (j % 3) for j in range(count)]
        path = folder / f"{i}.tfrecord"
        with ad.TFRecordWriter(path) as writer:
            writer.write_many(records)
        written["records"].append(str(path))
        path = folder / f"{i}.examples"
        with ad.TFRecordWriter(path) as writer:
            writer.write_many([pipelines.example(100 * i + j) for j in range(count)])
        written["examples"].append(str(path))
        path = folder / f"{i}.txt"
        path.write_bytes(b"\r\n".join(records) + (b"\n" if i % 2 else b""))
        written["lines"].append(str(path))
        path = folder / f"{i}.bin"
        path.write_bytes(b"h" + bytes(range(97, 97 + count)) * 3 + b"ff")
        written["fixed"].append(str(path))
    return written


@pytest.fixture(autouse=True)
def runtime() -> Iterator[None]:
    """One for all pipelines of a test."""
    with ad.Runtime(ad.Options(num_workers=2)):
        yield


@pytest.mark.slow
@pytest.mark.timeout(7200 if SOAK else 600)
def test_random_pipelines_are_resumed_at_every_step(files: dict[str, list[str]]) -> None:
    """Of the whole vocabulary, with functions in workers and without; the Dataset is written anew for it."""

    @settings(
        max_examples=samples(60, 2000),
        derandomize=not SOAK,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        print_blob=True,
    )
    @given(drawn=pipelines.plans(files), seed=st.integers())
    def attempt(drawn: tuple[pipelines.Plan, bool], seed: int) -> None:
        plan, _ = drawn
        try:
            dataset, again = pipelines.build(plan).take(60), pipelines.build(plan).take(60)
        except Exception:  # noqa: BLE001 -- refused where it is written
            return
        check(dataset, again, random.Random(seed), samples(5, 20))

    attempt()


# --- every source ----------------------------------------------------------------------------------------------------


def sources(folder: Path, compression: str | None) -> dict[str, ad.Dataset]:
    """A dataset of each format, of some thousand records or of large ones."""
    numbers = np.arange(3000)
    suffix = {"GZIP": ".gz", None: ""}[compression]
    records = folder / f"records{suffix}"
    with ad.TFRecordWriter(records, compression) as writer:
        writer.write_many([b"%d" % n * (n % 5) for n in numbers])
    large = folder / f"large{suffix}"
    with ad.TFRecordWriter(large, compression) as writer:
        writer.write_many([bytes([n]) * 100_000 for n in range(60)])
    opened = gzip.open if compression else open
    lines = folder / f"lines.txt{suffix}"
    with opened(lines, "wb") as file:
        file.write(b"".join(b"line %d\r\n" % n for n in numbers))
    table = folder / f"table.csv{suffix}"
    with opened(table, "wb") as file:
        file.write(b"a,b\n" + b"".join(b'%d,"x ""%d""\n y"\n' % (n, n) for n in numbers))
    return {
        "records": ad.TFRecordDataset(str(records), compression),
        "large": ad.TFRecordDataset(str(large), compression),
        "lines": ad.TextLineDataset(str(lines), compression),
        "csv": ad.CsvDataset(str(table), [np.int64, bytes], header=True, compression_type=compression),
    }


@pytest.mark.parametrize("compression", [None, "GZIP"])
@pytest.mark.parametrize("name", ["records", "large", "lines", "csv"])
def test_files_are_read_on(name: str, compression: str | None, tmp_path: Path) -> None:
    """From the place where they were left, also behind batches, shuffles and functions in workers."""
    dataset = sources(tmp_path, compression)[name]
    places = random.Random(3)
    check(dataset, dataset, places, samples(4, 40))
    shuffled = dataset.shuffle(300, seed=3).batch(50)
    check(shuffled, shuffled, places, samples(4, 40))
