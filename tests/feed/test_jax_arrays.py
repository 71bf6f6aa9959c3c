"""feed.jax: arrays that are the batch's own memory, over devices and processes, in types that nobody changed."""

from __future__ import annotations

import gc
import json
import socket
from itertools import chain
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata import feed
from asyncdata.errors import PipelineError, StateError, UnbatchableError
from tests.feed.installed import needed
from tests.feed.jax_rank import BATCH, COUNTS, EVALUATED, TABLE, WHOLE
from tests.feed.rank_processes import answers_of

needed("jax")
import jax  # noqa: E402 -- behind the check
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding  # noqa: E402 -- behind the check

from asyncdata.feed.jax_arrays import narrowed  # noqa: E402 -- imports jax

DEVICES = jax.devices()  # the threads of the backend begin here, and belong to no test
DTYPES = ["?", "i1", "i2", "i4", "u1", "u2", "u4", "f2", "f4", "c8"]


def address(array: Any) -> int:
    """Where a numpy array begins."""
    return int(array.__array_interface__["data"][0])


@pytest.mark.parametrize("executor", ["thread", "process"])
@pytest.mark.parametrize("isolate", [False, True])
def test_arrays_are_the_memory_of_the_batch(executor: str, *, isolate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all types that jax keeps: no copy between the pipeline and the device, though batches are sent ahead."""
    seen: list[int] = []
    put = jax.device_put

    def watched(array: Any) -> Any:
        seen.append(address(array))
        return put(array)

    monkeypatch.setattr(jax, "device_put", watched)
    ds = ad.Dataset.range(10).map(
        lambda i: {dtype: np.full((2, 3), i, dtype) for dtype in DTYPES}, 2, executor=executor
    )
    batches = list(feed.jax(ds.batch(4).with_options(ad.Options(isolate=isolate, num_workers=1))))
    gc.collect()
    assert seen == [batch[dtype].unsafe_buffer_pointer() for batch in batches for dtype in DTYPES]
    for number, batch in enumerate(batches):
        assert batch["?"].shape == (2 if number == 2 else 4, 2, 3)
        for dtype in DTYPES:
            assert batch[dtype].dtype == np.dtype(dtype)
            assert batch[dtype][0].tolist() == np.full((2, 3), 4 * number, dtype).tolist()


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_divided_arrays_are_the_memory_of_the_batch(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each device has its rows where the pipeline wrote them, if they begin on 64-byte boundaries."""
    begins: list[int] = []
    make = jax.make_array_from_process_local_data

    def watched(sharding: Any, array: Any, *shape: Any) -> Any:
        begins.append(address(array))
        return make(sharding, array, *shape)

    monkeypatch.setattr(jax, "make_array_from_process_local_data", watched)
    ds = ad.Dataset.range(32).map(lambda i: np.full(64, i, np.float32), 1, executor=executor).batch(8)
    batches = list(feed.jax(ds, sharding=NamedSharding(jax.make_mesh((4,), ("d",)), PartitionSpec("d"))))
    for begin, batch in zip(begins, batches, strict=True):
        for part in batch.addressable_shards:
            assert part.data.unsafe_buffer_pointer() == begin + part.index[0].start * 64 * 4


@pytest.mark.parametrize("spec", [("d",), ("d", None, None), (None,), ("d", "m")])
def test_batches_are_divided_over_devices(spec: tuple[Any, ...]) -> None:
    """Along the first axes as the sharding says; a leaf with fewer axes takes as many parts of it as it has."""
    mesh = jax.make_mesh((2, 2), ("d", "m"))
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    ds = (
        ad.Dataset.range(16).map(lambda i: (np.full((4, 2), i, np.float32), np.int32(i)), 1, executor="thread").batch(8)
    )
    for number, (images, labels) in enumerate(feed.jax(ds, sharding=sharding)):
        assert images.sharding.is_equivalent_to(sharding, 3)
        assert labels.sharding.is_equivalent_to(NamedSharding(mesh, PartitionSpec(*spec[:1])), 1)
        assert labels.tolist() == list(range(8 * number, 8 * number + 8))
        assert np.asarray(images)[:, 0, 0].tolist() == labels.tolist()
    single = SingleDeviceSharding(DEVICES[3])
    assert [labels.device for _, labels in feed.jax(ds, sharding=single)] == [DEVICES[3]] * 2


def test_leaves_with_fewer_axes_are_in_the_same_memory() -> None:
    """As the sharding says, though they use a part of it alone."""
    rows = NamedSharding(jax.make_mesh((4,), ("d",)), PartitionSpec("d", None), memory_kind="pinned_host")
    ds = ad.Dataset.range(8, output_type=np.int32).map(lambda i: (np.full(2, i, np.int32), i)).batch(4)
    for batch in feed.jax(ds, sharding=rows):
        assert [leaf.sharding.memory_kind for leaf in batch] == ["pinned_host"] * 2


def test_a_batch_that_cannot_be_divided_is_refused() -> None:
    """The error has both numbers, and the leaf."""
    sharding = NamedSharding(jax.make_mesh((4,), ("d",)), PartitionSpec("d"))
    ds = ad.Dataset.range(63).map(lambda i: {"x": np.float32(i)}).batch(63)
    with pytest.raises(PipelineError, match=r"63 rows cannot be divided among 4 .*leaf x"):
        list(feed.jax(ds, sharding=sharding))


def test_padding_makes_batches_divisible() -> None:
    """With even="pad" a shorter batch has as many rows as the others, and the mask says which of them count."""
    sharding = NamedSharding(jax.make_mesh((4,), ("d",)), PartitionSpec("d"))
    numbers = ad.Dataset.range(21, output_type=np.int32).map(lambda i: {"x": np.full(2, i), "one": np.float32(i)})
    for ds in (numbers.batch(8).prefetch(1), numbers.batch(4).rebatch(8), numbers.batch(8).map(lambda batch: batch)):
        for number, (batch, mask) in enumerate(feed.jax(ds, sharding=sharding, even="pad", dtypes="jax")):
            x, one, counts = (np.asarray(leaf) for leaf in (batch["x"], batch["one"], mask))
            assert (x.shape, one.shape) == ((8, 2), (8,))
            assert one[counts].tolist() == list(range(8 * number, min(8 * number + 8, 21)))
            assert (x[:, 1] == one).all()
        assert number == 2
    few = list(feed.jax(numbers.take(3).batch(8), sharding=sharding, even="pad", dtypes="jax"))
    assert [mask.tolist() for _, mask in few] == [[True] * 3 + [False] * 5]
    elements = list(feed.jax(ad.Dataset.range(3, output_type=np.int32), even="pad"))
    assert [(int(element), bool(mask)) for element, mask in elements] == [(0, True), (1, True), (2, True)]


def test_a_type_is_never_changed_in_silence() -> None:
    """An error names both types; dtypes="jax" narrows, and refuses what does not fit."""
    ds = ad.Dataset.from_tensor_slices({"a": [1, -5], "b": [0.5, np.inf]}).batch(2)
    with pytest.raises(PipelineError, match=r"int32 of int64: dtypes='jax' .*leaf a"):
        list(feed.jax(ds))
    (batch,) = feed.jax(ds, dtypes="jax")
    assert (batch["a"].dtype, batch["a"].tolist()) == (np.int32, [1, -5])
    assert (batch["b"].dtype, batch["b"].tolist()) == (np.float32, [0.5, np.inf])


WIDE = {"i8": np.int32, "u8": np.uint32, "f8": np.float32, "c16": np.complex64}


@pytest.mark.parametrize("executor", ["inline", "thread", "process"])
@pytest.mark.parametrize("made", ["batch", "padded_batch", "rebatch"])
def test_batches_are_written_in_the_types_of_jax(executor: Any, made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With dtypes="jax": the array is the memory that the batch was collected in, and nobody converts it again."""
    seen: list[int] = []
    put = jax.device_put

    def watched(array: Any) -> Any:
        seen.append(address(array))
        return put(array)

    def never(*_: Any) -> Any:
        raise AssertionError("a batch was converted behind the pipeline")

    monkeypatch.setattr(jax, "device_put", watched)
    monkeypatch.setattr("asyncdata.feed.jax_arrays.halved", never)
    ds = ad.Dataset.range(10).map(lambda i: {kind: np.full((2, 3), i, kind) for kind in WIDE}, 1, executor=executor)
    ds = ds.batch(3).rebatch(4) if made == "rebatch" else getattr(ds, made)(4)
    fed = feed.jax(ds.prefetch(2).take(8).with_options(ad.Options(num_workers=1)), dtypes="jax")
    batches = list(fed)
    assert seen == [batch[kind].unsafe_buffer_pointer() for batch in batches for kind in WIDE]
    assert [len(batch["i8"]) for batch in batches] == [4, 4, 2]
    for number, batch in enumerate(batches):
        for kind, dtype in WIDE.items():
            assert batch[kind].dtype == dtype
            assert batch[kind][0].tolist() == np.full((2, 3), 4 * number, dtype).tolist()
    monkeypatch.undo()
    assert {kind: leaf.dtype for kind, leaf in next(iter(fed.dataset)).items()} == {
        kind: np.dtype(kind) for kind in WIDE
    }


@pytest.mark.parametrize("behind", [lambda ds: ds, lambda ds: ds.map(dict), lambda ds: ds.cache()])
def test_a_value_that_does_not_fit_is_one_error(behind: Any) -> None:
    """Whether the batch is written so or converted: type, message, leaf, and the batches before it."""
    ds = ad.Dataset.range(10).map(lambda i: {"a": i, "b": 2**31 if i == 6 else i}, 1, executor="thread").batch(3)
    steps = iter(feed.jax(behind(ds), dtypes="jax", depth=0))
    assert [next(steps)["b"].tolist() for _ in range(2)] == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(UnbatchableError, match=r"type int64 is too large for int32, the type that jax .*leaf b"):
        next(steps)


def test_states_and_epochs_are_those_of_the_dataset() -> None:
    """A run with dtypes="jax" goes on where one without it stopped, and the other way round."""
    ds = ad.Dataset.range(23).map(np.float64).shuffle(23, seed=1).batch(4)
    halved, whole = feed.jax(ds, dtypes="jax"), feed.jax(ds.map(lambda batch: batch.astype(np.float32)))
    expected = [[batch.tolist() for batch in whole] for _ in range(2)]
    assert [[batch.tolist() for batch in halved] for _ in range(2)] == expected
    state = feed.jax(ds, dtypes="jax")
    steps = iter(state)
    next(steps)
    with state.dataset.iterator(state=state.state_dict()["pipeline"]) as rest:
        assert [batch.tolist() for batch in rest] == expected[0][1:]
    jax.config.update("jax_enable_x64", True)
    try:
        assert {batch.dtype.name for batch in feed.jax(ds, dtypes="jax")} == {"float64"}
    finally:
        jax.config.update("jax_enable_x64", False)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 1e39, -1e300, np.uint64(2**32), 1e60j])
def test_a_value_that_does_not_fit_is_refused(value: Any) -> None:
    """Whatever its type; the largest that fit are kept."""
    with pytest.raises(PipelineError, match="too large for"):
        narrowed(np.array([value]), "jax")
    assert narrowed(np.array([2**31 - 1, -(2**31)]), "jax").tolist() == [2**31 - 1, -(2**31)]
    assert np.isnan(narrowed(np.array([np.nan]), "jax")).all()
    assert narrowed(np.arange(3, dtype=">i4"), None).tolist() == [0, 1, 2]


def test_ranks_that_jax_does_not_know_cannot_agree() -> None:
    """Each would take its own number of steps, and call that even; where the number is known, nobody is asked."""
    ds = ad.Dataset.range(10, output_type="int32")
    unknown = ds.filter(lambda number: number != 1)
    for rank in range(2):
        assert len(list(feed.jax(ds, rank=rank, world=2))) == 5
        with pytest.raises(PipelineError, match=r"jax\.distributed\.initialize\(\) first, or give even=None"):
            list(feed.jax(unknown, rank=rank, world=2))
    assert [len(list(feed.jax(unknown, rank=rank, world=2, even=None))) for rank in range(2)] == [5, 4]


def test_a_sharding_of_another_kind_is_named() -> None:
    """When the feed is made: a mesh or a PartitionSpec alone is no sharding."""
    with pytest.raises(TypeError, match=r"sharding must be a jax.sharding.Sharding"):
        feed.jax(ad.Dataset.range(8).batch(4), sharding=PartitionSpec("rows"))


def test_what_jax_has_no_type_for_stays_on_the_host() -> None:
    """Texts, ragged rows, long doubles, masks; elements without axes and batches without rows become arrays."""
    rows = ad.Dataset.range(3).map(lambda i: {"text": f"{i}", "rows": np.arange(i), "number": np.float32(i)})
    (batch,) = feed.jax(rows.ragged_batch(3))
    assert isinstance(batch["text"], ad.BytesArray)
    assert batch["rows"].to_list() == [[], [0], [0, 1]]
    assert isinstance(batch["number"], jax.Array)
    masked: Any = np.ma.array([1, 2], "i4", mask=[True, False])
    long = np.zeros(2, np.longdouble)
    (found,) = feed.jax(ad.Dataset.range(1).map(lambda _: {"masked": masked, "long": long, "both": long + 1j}))
    assert found["masked"].tolist() == [None, 2]
    assert (found["long"].dtype, found["both"].dtype) == (np.longdouble, np.clongdouble)
    assert [number.tolist() for number in feed.jax(ad.Dataset.range(3, output_type=np.int32))] == [0, 1, 2]
    (empty,) = feed.jax(ad.Dataset.from_tensors(np.zeros((0, 3), np.float32)))
    assert empty.shape == (0, 3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int4"])
def test_types_that_numpy_lacks_are_those_of_jax(dtype: str) -> None:
    """A map behind the batch converts to them; on one device, and over several."""
    kind = getattr(jax.numpy, dtype)
    ds = ad.Dataset.range(8, output_type=np.int32).batch(4).map(lambda batch: batch.astype(kind), executor="inline")
    for sharding in (None, NamedSharding(jax.make_mesh((4,), ("d",)), PartitionSpec("d"))):
        for number, batch in enumerate(feed.jax(ds, sharding=sharding)):
            assert isinstance(batch, jax.Array)
            assert batch.dtype == kind
            assert batch.astype(np.int32).tolist() == list(range(4 * number, 4 * number + 4))


def test_padding_goes_on_at_every_step() -> None:
    """If only reading tells how many rows a batch has, the state knows it: only a shorter one may be left."""
    sharding = NamedSharding(jax.make_mesh((4,), ("d",)), PartitionSpec("d"))

    def numbers() -> Any:
        ds = ad.Dataset.range(22, output_type=np.int32).batch(8).map(lambda batch: batch + 1)
        return feed.jax(ds, sharding=sharding, even="pad")

    whole = [(batch.tolist(), mask.tolist()) for batch, mask in numbers()]
    batches = numbers()
    for step, _ in enumerate(batches, start=1):
        again = numbers()
        again.load_state_dict(json.loads(json.dumps(batches.state_dict())))
        assert [(batch.tolist(), mask.tolist()) for batch, mask in again] == whole[step:]
    with pytest.raises(StateError, match="no numbers"):
        numbers().load_state_dict({**batches.state_dict(), "rows": "8"})


@pytest.mark.parametrize("depth", [0, 2])
def test_training_goes_on_at_every_step(depth: int) -> None:
    """What was sent ahead is not counted: the states give the rest of the epoch, and the next one."""

    def numbers() -> Any:
        ds = ad.Dataset.range(23, output_type=np.int32).shuffle(23, seed=1).batch(4)
        return feed.jax(ds, depth=depth)

    batches = numbers()
    whole = [[batch.tolist() for batch in batches] for _ in range(2)]
    batches = numbers()
    for step, _ in enumerate(batches, start=1):
        again = numbers()
        again.load_state_dict(json.loads(json.dumps(batches.state_dict())))
        assert [[batch.tolist() for batch in again] for _ in range(2)] == [whole[0][step:], whole[1]]


def test_batches_can_be_kept() -> None:
    """More than the memory limit, after the feed is gone: nothing writes to an array that is alive."""
    ds = ad.Dataset.range(64).map(lambda i: np.full(1 << 16, i, np.int32), 1, executor="thread").batch(2)
    kept = list(feed.jax(ds.with_options(ad.Options(memory_limit_bytes=4 << 20))))
    gc.collect()
    assert [np.asarray(batch)[:, -1].tolist() for batch in kept] == [[i, i + 1] for i in range(0, 64, 2)]


def test_processes_take_the_same_steps_with_rows_of_their_own() -> None:
    """Two processes of jax.distributed: unknown numbers of batches, and global arrays made of both parts."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    ranks = answers_of([(("tests.feed.jax_rank", coordinator, str(rank)), devices) for rank in range(2)])
    steps = [count // BATCH for count in COUNTS]
    for even, expected in (("drop", min(steps)), ("agree", min(steps)), ("pad", max(steps)), ("repeat", max(steps))):
        assert [len(rank[even]) for rank in ranks] == [expected] * 2
        given = list(chain(*chain(*(rank[even] for rank in ranks))))
        assert even == "repeat" or len(set(given)) == len(given)
    assert [rank["alone"] for rank in ranks] == [[each, 1] for each in steps]  # they have asked nobody
    whole = [list(chain(*rank["whole"])) for rank in ranks]
    assert sorted(whole[0] + whole[1]) == list(range(WHOLE))
    assert ranks[0]["sums"] == ranks[1]["sums"]
    assert sum(ranks[0]["sums"]) == sum(range(WHOLE))
    assert ranks[0]["same"] == ranks[1]["same"]
    for rank in ranks:
        assert rank["columns"] == [TABLE.tolist(), [len(TABLE)]]
        assert "a batch of 2 rows comes after batches of 4" in rank["short"]
        # Nobody knows in advance how many rows the first batches have: one process has four, the other one three.
        assert rank["first"][:-1] == [[2 * BATCH], sum(range(1, 8)), BATCH]
        assert "the first batches of the processes have 3 to 4 rows" in rank["first"][-1]
    for number, (sums, names) in enumerate(ranks[0]["evaluated"]):
        count = EVALUATED[number // 2]
        assert ranks[1]["evaluated"][number][0] == sums
        assert sum(sums) == sum(range(count))
        assert sorted(map(int, names + ranks[1]["evaluated"][number][1])) == list(range(count))
    assert "one has exited" in ranks[0]["died"]
