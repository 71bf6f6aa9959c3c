"""Settings that change at any time change neither elements, nor their order, nor states."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.runtime.tuning import knob
from tests.integration.test_exactly_once import Draw, check
from tests.runtime.stages.restless import Restless
from tests.samples import samples


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five files of records."""
    path = tmp_path_factory.mktemp("files")
    for number in range(5):
        with ad.TFRecordWriter(str(path / f"{number}.tfrecord")) as writer:
            writer.write_many([bytes([number, row]) * (1 + row * 37 % 100) for row in range(10 + 3 * number)])
    return path


@pytest.fixture(autouse=True)
def runtime() -> Iterator[ad.Runtime]:
    """Two worker processes for all pipelines of a test."""
    with ad.Runtime(ad.Options(num_workers=2, memory_limit_bytes=64 << 20, seed=1)) as runtime:
        yield runtime


def source(rnd: random.Random, folder: Path) -> ad.Dataset:
    """Records of files, or numbers, or what a generator yields."""
    cycle, block = rnd.randint(1, 4), rnd.randint(1, 3)
    kind = rnd.choice(["files", "range", "generator"])
    if kind == "files":
        return ad.Dataset.list_files(str(folder / "*.tfrecord"), shuffle=False).interleave(
            ad.TFRecordDataset, cycle_length=cycle, block_length=block
        )
    if kind == "generator":
        return ad.Dataset.from_generator(_generated)
    return ad.Dataset.range(20).interleave(
        lambda n: ad.Dataset.range(int(n) % 7).map(_later, num_parallel_calls=ad.AUTOTUNE), cycle, block
    )


def _generated() -> Iterator[bytes]:
    for number in range(70):
        yield b"%d" % number


async def _later(x: Any) -> Any:
    for _ in range(len(x) % 3 if isinstance(x, bytes) else int(x) % 3):
        await asyncio.sleep(0)
    return x


def _same(x: Any) -> Any:
    return x


def _arrays(x: Any) -> Any:
    return np.full(3, len(x) if isinstance(x, bytes) else int(x)), str(x)


def pipeline(rnd: random.Random, folder: Path) -> ad.Dataset:
    """Steps whose settings are found, in any order, with some between them."""
    ds = source(rnd, folder)
    for _ in range(rnd.randint(2, 5)):
        step = rnd.choice(["async", "process", "thread", "prefetch", "shuffle", "batch"])
        if step == "async":
            ds = ds.map(_later, num_parallel_calls=ad.AUTOTUNE)
        elif step in ("process", "thread"):
            ds = ds.map(_same, num_parallel_calls=ad.AUTOTUNE, executor=step)
        elif step == "prefetch":
            ds = ds.prefetch(ad.AUTOTUNE)
        elif step == "shuffle":
            ds = ds.shuffle(rnd.randint(1, 20), seed=3)
        else:
            ds = ds.batch(rnd.randint(1, 4)).unbatch()
    return ds.map(_arrays, num_parallel_calls=rnd.choice([None, ad.AUTOTUNE]))


STATES = (8, 31)


def drained(ds: ad.Dataset) -> tuple[list[Any], dict[int, Any]]:
    """The elements, and some states between them."""
    elements, states = [], {}
    with ds.iterator(epoch=0) as it:
        for numbers, text in it:
            elements.append((numbers.tolist(), text))
            if it.position in STATES:
                states[it.position] = it.state_dict()
    return elements, states


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(samples(4, 300)))
def test_elements_order_and_states_stay_the_same(seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is turned, and when: the same elements in the same order, and states that go on at the same place."""
    ds = pipeline(random.Random(seed), folder)
    elements, states = drained(ds)
    monkeypatch.setattr(knob, "Knob", Restless)
    again, restless = drained(ds)
    assert again == elements
    monkeypatch.undo()
    for at, state in restless.items():
        with ds.iterator(state=state) as it:
            assert [(numbers.tolist(), text) for numbers, text in it] == elements[at:]
    monkeypatch.setattr(knob, "Knob", Restless)
    for at, state in states.items():
        with ds.iterator(state=state) as it:
            assert [(numbers.tolist(), text) for numbers, text in it] == elements[at:]


@pytest.mark.parametrize("seed", range(3, samples(7, 300)))
def test_without_an_order_every_element_comes_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also through states of pipelines that pass elements on as they are ready."""
    monkeypatch.setattr(knob, "Knob", Restless)
    check(Draw(seed, []), seed)
