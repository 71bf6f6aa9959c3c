"""feed.torch: tensors that are the batch's own memory, for plain loops, DataLoaders and stateful loaders."""

from __future__ import annotations

import contextlib
import copy
import gc
import json
import pickle
import random
import subprocess
import sys
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pytest

import asyncdata as ad
from asyncdata import feed
from tests.architecture.tree import ROOT
from tests.feed.installed import needed
from tests.patience import LIMIT_S
from tests.samples import samples

needed("torch")
import torch  # noqa: E402 -- behind the check


class Pair(NamedTuple):
    """A namedtuple as an element."""

    number: Any
    text: Any


DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]


@pytest.mark.parametrize("executor", ["inline", "thread", "process"])
@pytest.mark.parametrize("isolate", [False, True])
def test_tensors_are_the_memory_of_the_batch(executor: str, *, isolate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all types of numbers: no copy between the pipeline and the tensor, and it may be written to."""
    seen: list[int] = []

    def watched(array: Any) -> Any:
        seen.append(array.__array_interface__["data"][0])
        return from_numpy(array)

    from_numpy = torch.from_numpy
    monkeypatch.setattr(torch, "from_numpy", watched)
    ds = ad.Dataset.range(7).map(
        lambda number: {dtype: np.full((2, 3), number, dtype) for dtype in DTYPES}, 2, executor=executor
    )
    ds = ds.batch(3).with_options(ad.Options(isolate=isolate, num_workers=1))
    batches = list(feed.torch(ds))
    assert [len(batch["i8"]) for batch in batches] == [3, 3, 1]
    addresses = [batch[dtype].data_ptr() for batch in batches for dtype in DTYPES]
    assert addresses == seen
    for number, batch in enumerate(batches):
        for dtype in DTYPES:
            assert batch[dtype].numpy().dtype == dtype
            assert batch[dtype][0].tolist() == np.full((2, 3), 3 * number, dtype).tolist()
            batch[dtype].zero_()
    assert all(not batch[dtype].any() for batch in batches for dtype in DTYPES)


def test_a_tensor_lives_in_the_arena() -> None:
    """The tensor is the delivered array: the same address, on a 64-byte boundary, and the slab stays while it lives."""
    ds = ad.Dataset.range(8).map(lambda number: np.full(100, number, np.float32), 1, executor="thread").batch(4)
    with ds.iterator() as it:
        array = next(it)
        tensor = feed_pytorch().on_host(array)
        assert tensor.data_ptr() == array.__array_interface__["data"][0]
        assert tensor.data_ptr() % 64 == 0
        expected = array.tolist()
        del array
        gc.collect()
        list(it)
    assert tensor.tolist() == expected


def feed_pytorch() -> Any:
    """The file that imports torch."""
    from asyncdata.feed import pytorch  # noqa: PLC0415 -- only here, where torch is

    return pytorch


def test_what_torch_has_no_type_for_stays_what_it_is() -> None:
    """Texts, byte strings, ragged rows, objects, dates; in any nest."""
    rows = ad.Dataset.range(4).map(
        lambda i: {"pair": Pair(i, f"text {i}"), "bytes": (b"x" * int(i),), "rows": np.arange(i), "when": f"{i}"}
    )
    (batch,) = feed.torch(rows.ragged_batch(4))
    assert isinstance(batch["pair"], Pair)
    assert isinstance(batch["pair"].number, torch.Tensor)
    assert isinstance(batch["pair"].text, ad.BytesArray)
    assert batch["bytes"][0].tolist() == [b"", b"x", b"xx", b"xxx"]
    assert isinstance(batch["rows"], ad.RaggedArray)
    assert batch["rows"].to_list() == [[], [0], [0, 1], [0, 1, 2]]
    days = np.array(["2026-01-01"], "M8[D]")
    (found,) = feed.torch(ad.Dataset.from_tensors({"days": days, "long": np.zeros(2, np.longdouble), "none": "x"}))
    assert found["days"].dtype == days.dtype
    assert found["long"].dtype == np.longdouble
    assert found["none"] == "x"
    masked, day = np.ma.array([1, 2], mask=[True, False]), np.datetime64("2026-01-01")
    (found,) = feed.torch(ad.Dataset.range(1).map(lambda _: {"masked": masked, "day": day}))
    assert found["masked"].tolist() == [None, 2]
    assert (type(found["day"]), found["day"]) == (np.datetime64, day)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=">i4"),
        np.arange(6)[::-1],
        np.arange(12).reshape(3, 4)[:, ::2],
        np.broadcast_to(np.arange(3.0), (2, 3)),
        np.zeros((0, 3), np.float32),
        np.float16(1.5),
        np.bool_(True),
        np.array(7, np.uint16),
        np.arange(4, dtype=np.uint64),
        np.array([(1, 2), (3, 4)], [("flag", "u1"), ("number", "i4")])["number"],
    ],
    ids=str,
)
@pytest.mark.filterwarnings("error")
def test_odd_arrays_become_tensors(array: Any) -> None:
    """Other byte orders and strides, read-only memory, no rows, no axes: right values, and writable."""
    if isinstance(array, np.ndarray) and array.ndim:
        array.flags.writeable = False
    tensor = feed_pytorch().on_host(array)
    assert tensor.shape == array.shape
    assert tensor.tolist() == array.tolist()
    tensor.zero_()


@pytest.mark.parametrize("shape", [(3, 4), (0, 2), (), (1,)])
def test_staging_memory_holds_any_type(shape: tuple[int, ...]) -> None:
    """One after the other in the same bytes, which grow with the largest; here without a device that pins them."""
    copies = object.__new__(feed_pytorch()._DeviceCopies)
    spaces: dict[int, Any] = {}

    def space(slot: int, number: int, nbytes: int) -> Any:
        if number not in spaces or len(spaces[number]) < nbytes:
            spaces[number] = torch.empty(nbytes, dtype=torch.uint8)
        return spaces[number][:nbytes]

    copies._pin, copies._space, copies._stream = True, space, contextlib.nullcontext()
    for dtype in DTYPES:
        array = np.asarray(np.random.default_rng(0).uniform(0, 9, shape)).astype(dtype)
        staged = copies.stage(0, {"a": array, "b": array[..., None], "name": "x"})
        assert staged["name"] == "x"
        for leaf, expected in ((staged["a"], array), (staged["b"], array[..., None])):
            assert leaf.numpy().dtype == array.dtype
            np.testing.assert_array_equal(leaf.numpy(), expected)
    assert len(spaces) == 2


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_types_that_numpy_lacks_are_those_of_torch(dtype: str) -> None:
    """A map behind the batch converts to them; no copy, and such a tensor goes through staging memory, too."""
    kind = getattr(pytest.importorskip("ml_dtypes", reason="JAX brings it along: make feeds"), dtype)
    ds = ad.Dataset.range(6).map(float).batch(3).map(lambda batch: {"x": batch.astype(kind)}, executor="inline")
    for number, batch in enumerate(feed.torch(ds)):
        assert batch["x"].dtype == getattr(torch, dtype)
        assert batch["x"].float().tolist() == [3.0 * number, 3.0 * number + 1, 3.0 * number + 2]
    array = np.arange(3, 6).astype(kind)
    assert feed_pytorch()._as_numpy(batch["x"]).tobytes() == array.tobytes()
    assert feed_pytorch().on_host(array).data_ptr() == array.__array_interface__["data"][0]
    assert feed_pytorch().on_host(array[1:2].reshape(())).tolist() == 4.0
    swapped = array.astype(array.dtype.newbyteorder())
    assert feed_pytorch().on_host(swapped).tolist() == [3.0, 4.0, 5.0]


def test_read_only_elements_are_never_changed() -> None:
    """Elements that the dataset itself holds are copied: writing to a tensor does not change the next epoch."""
    batches = feed.torch(ad.Dataset.from_tensors(np.arange(4)).repeat(2))
    for _ in range(2):
        for tensor in batches:
            assert tensor.tolist() == [0, 1, 2, 3]
            tensor.zero_()


def losses(batches: Any, weight: Any, stop: int | None = None) -> list[float]:
    """A training loop of a few steps."""
    found = []
    for batch in batches:
        loss = ((batch.float() - weight) ** 2).mean()
        found.append(loss.item())
        weight += 0.1 * (batch.float().mean() - weight)
        if len(found) == stop:
            break
    return found


def numbers() -> ad.Dataset:
    """Ten batches, the last one short, in another order in each epoch."""
    return ad.Dataset.range(98).shuffle(98, seed=1).map(abs, 2, executor="thread").batch(10)


LOADERS = {
    "feed": lambda batches: batches,
    "DataLoader": lambda batches: batches.dataloader(),
}


@pytest.mark.parametrize("loader", LOADERS)
def test_a_loop_goes_on_at_every_step(loader: str) -> None:
    """Stopped behind any step of two epochs, and begun again with the state: the same losses."""
    batches = feed.torch(numbers())
    weight = torch.zeros(())
    whole = [losses(LOADERS[loader](batches), weight) for _ in range(2)]
    for stop in random.Random(0).sample(range(1, 20), samples(5, 19)):
        batches, weight = feed.torch(numbers()), torch.zeros(())
        found = [losses(LOADERS[loader](batches), weight, stop)]
        if stop > 10:
            found.append(losses(LOADERS[loader](batches), weight, stop - 10))
        checkpoint = pickle.dumps({"weight": weight, "data": batches.state_dict()})
        loaded = pickle.loads(checkpoint)
        batches = feed.torch(numbers())
        batches.load_state_dict(loaded["data"])
        while batches.epoch < 2:
            found.append(losses(LOADERS[loader](batches), loaded["weight"]))
        assert list(chain(*found)) == list(chain(*whole))


RESUME = """
import json, sys
import asyncdata as ad
from asyncdata import feed
from tests.feed.test_pytorch import numbers
from torchdata.stateful_dataloader import StatefulDataLoader

loader = StatefulDataLoader(feed.torch(numbers()), batch_size=None, num_workers=0)
loader.load_state_dict(json.load(sys.stdin))
print(json.dumps([[batch.tolist() for batch in loader] for _ in range(2)]))
"""


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata calls it
def test_a_stateful_dataloader_goes_on_in_a_fresh_process() -> None:
    """torchdata's StatefulDataLoader keeps the feed's state, and resumes with it at every step."""
    needed("torchdata")
    from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: PLC0415 -- behind the check

    def loader() -> Any:
        return StatefulDataLoader(feed.torch(numbers()), batch_size=None, num_workers=0)

    first = loader()
    whole = [[batch.tolist() for batch in first] for _ in range(2)]
    stateful = loader()
    states = [json.loads(json.dumps(stateful.state_dict())) for _ in stateful]
    for step, state in enumerate(states[:-1], start=1):
        again = loader()
        again.load_state_dict(copy.deepcopy(state))
        assert [batch.tolist() for batch in again] == whole[0][step:]
        assert [batch.tolist() for batch in again] == whole[1]
    assert json.loads(printed(RESUME, json.dumps(states[3]))) == [whole[0][4:], whole[1]]


WORKERS = """
from asyncdata.errors import PipelineError
from tests.feed.test_pytorch import feed, numbers
from torch.utils.data import DataLoader

try:
    list(DataLoader(feed.torch(numbers()), batch_size=None, num_workers=1))
except PipelineError as error:
    print(error)
"""


def test_a_worker_of_a_dataloader_is_told() -> None:
    """It would read everything as often as there are workers."""
    assert "num_workers=0" in printed(WORKERS)


def printed(program: str, given: str = "") -> str:
    """What a program prints in a process of its own."""
    outcome = subprocess.run(
        [sys.executable, "-c", program],
        input=given,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


def test_a_feed_can_be_sent_to_another_process() -> None:
    """With the place where it begins; what runs is not sent."""
    batches = feed.torch(numbers())
    iterator = iter(batches)
    next(iterator)
    state = batches.state_dict()
    batches.load_state_dict(state)
    again = pickle.loads(pickle.dumps(batches))
    assert again.state_dict() == state
    assert [batch.tolist() for batch in again] == [batch.tolist() for batch in batches]


def test_batches_can_be_kept() -> None:
    """All of an epoch, also when they are more than the memory limit, and after the feed is gone."""
    ds = ad.Dataset.range(64).map(lambda number: np.full(1 << 16, number, np.int32), 1, executor="thread").batch(2)
    kept = list(feed.torch(ds.with_options(ad.Options(memory_limit_bytes=4 << 20))))
    gc.collect()
    assert [batch[:, 0].tolist() for batch in kept] == [[i, i + 1] for i in range(0, 64, 2)]


def test_wrong_arguments_are_named() -> None:
    """When the feed is made."""
    for settings, message in (
        ({"pin": True}, "device"),
        ({"depth": 0}, "depth"),
        ({"device": "nowhere"}, "nowhere"),
        ({"even": "odd"}, "even"),
        ({"deadline_s": 0}, "deadline_s"),
        ({"deadline_s": float("inf")}, "deadline_s"),
        ({"world": 2}, "both rank and world"),
    ):
        with pytest.raises((ValueError, RuntimeError), match=message):
            feed.torch(numbers(), **settings)
    with pytest.raises(TypeError, match="dataset must be a Dataset"):
        feed.torch([1, 2])  # type: ignore[arg-type]  # what is tried
    assert isinstance(feed.torch(numbers()), torch.utils.data.IterableDataset)
