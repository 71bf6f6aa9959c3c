"""Feeds on a real GPU: what arrives is what was sent, however late the device copies; skipped where there is none.

The tests' own settings keep JAX on the CPU: ``JAX_PLATFORMS=cuda,cpu`` lets its tests run here.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata import feed
from tests.feed.installed import needed

ROWS = 1 << 18
MEMORY = 96 << 20
"""So little that slabs and staging memory are used again all the time."""


def made(number: Any) -> Any:
    """A row that no other row resembles, in several types."""
    values = np.random.default_rng(int(number)).integers(-100, 100, ROWS, np.int32)
    return {
        "i4": values,
        "f4": values.astype(np.float32) / 8,
        "u1": (values & 255).astype(np.uint8),
        "name": f"row {number}",
        "number": number,
    }


def batches(count: int, size: int, executor: str) -> ad.Dataset:
    """Several megabytes each; the last one is shorter."""
    ds = ad.Dataset.range(count).map(made, num_parallel_calls=2, executor=executor).batch(size)
    return ds.with_options(ad.Options(num_workers=2, memory_limit_bytes=MEMORY, isolate=False))


def check(found: list[Any], count: int, size: int) -> None:
    """Every row once, in order, each value right."""
    assert [batch["number"].tolist() for batch in found] == [
        list(range(begin, min(begin + size, count))) for begin in range(0, count, size)
    ]
    for batch in found:
        for row, number in enumerate(batch["number"].tolist()):
            expected = made(number)
            for name in ("i4", "f4", "u1"):
                assert np.array_equal(batch[name][row], expected[name]), (number, name)
            assert batch["name"].tolist()[row] == expected["name"]


@pytest.fixture(scope="module")
def torch() -> Any:
    """The package, where it has a GPU; what the driver opens belongs to no test."""
    needed("torch")
    import torch  # noqa: PLC0415 -- behind the check

    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU here")
    matrix = torch.ones((256, 256)).pin_memory().cuda()
    (matrix @ matrix).sum().item()
    return torch


class TestTorch:
    """PyTorch's GPU."""

    @pytest.mark.parametrize("executor", ["thread", "process"])
    @pytest.mark.parametrize("pin", [None, False])
    @pytest.mark.parametrize("depth", [1, 3])
    def test_what_arrives_is_what_was_sent(self, torch: Any, executor: str, pin: bool | None, depth: int) -> None:
        """Batches are read behind long work of the device, and dropped by the host long before that."""
        busy = torch.ones((4096, 4096), device="cuda")
        ds = batches(23, 2, executor)
        fed = feed.torch(ds, device="cuda", pin=pin, depth=depth)
        for _ in range(2):
            kept = []
            for batch in fed:
                for _ in range(10):
                    busy = (busy @ busy).clamp(0, 1)
                kept.append(
                    {key: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for key, leaf in batch.items()}
                )
                assert batch["f4"].is_cuda
                del batch
                torch.empty(3 * ROWS, device="cuda").fill_(-7)  # takes memory of the device that became free
            found = [
                {key: leaf.cpu().numpy() if isinstance(leaf, torch.Tensor) else leaf for key, leaf in batch.items()}
                for batch in kept
            ]
            check(found, 23, 2)

    def test_the_trainer_may_use_a_stream_of_its_own(self, torch: Any) -> None:
        """What was told to the stream that is current when a batch is taken happens behind the copy."""
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            fed = feed.torch(batches(20, 2, "process"), device="cuda")
            sums = [batch["i4"].sum(dtype=torch.int64) for batch in fed]
        expected = [
            int(made(number)["i4"].sum(dtype=np.int64) + made(number + 1)["i4"].sum(dtype=np.int64))
            for number in range(0, 20, 2)
        ]
        stream.synchronize()
        assert [int(each) for each in sums] == expected

    def test_batches_can_be_kept(self, torch: Any) -> None:
        """All of an epoch, on the device, unchanged by later epochs."""
        fed = feed.torch(batches(24, 4, "process"), device="cuda")
        kept = list(fed)
        list(fed)
        check([{k: v.cpu().numpy() if isinstance(v, torch.Tensor) else v for k, v in b.items()} for b in kept], 24, 4)

    def test_nothing_is_left_on_the_device(self, torch: Any) -> None:
        """Left in the middle, at an error, and at the end: the memory of the device is free again."""

        def failing(number: Any) -> Any:
            if number == 30:
                raise ValueError("no such row")
            return np.full(ROWS, number)

        torch.cuda.synchronize()
        gc.collect()
        before = torch.cuda.memory_allocated()
        fed = feed.torch(batches(24, 4, "thread"), device="cuda", depth=3)
        for number, _ in enumerate(fed):
            if number == 2:
                break
        for _ in fed:
            pass
        broken = feed.torch(ad.Dataset.range(60).map(failing).batch(4), device="cuda")
        with pytest.raises(ValueError, match="no such row"):
            for _ in broken:
                pass
        del _, fed, broken
        gc.collect()
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == before


@pytest.fixture(scope="module")
def jax() -> Any:
    """The package, where it has a GPU; what the driver opens belongs to no test."""
    needed("jax")
    import jax  # noqa: PLC0415 -- behind the check

    if jax.default_backend() != "gpu":
        pytest.skip("jax finds no GPU here")
    matrix = jax.numpy.ones((256, 256))
    (matrix @ matrix).block_until_ready()
    return jax


class TestJax:
    """JAX' GPU."""

    @pytest.mark.parametrize("executor", ["thread", "process"])
    @pytest.mark.parametrize("depth", [0, 3])
    @pytest.mark.parametrize("sharded", [False, True])
    def test_what_arrives_is_what_was_sent(self, jax: Any, executor: str, depth: int, sharded: bool) -> None:
        """The device copies from the pipeline's memory; that is used again only when it has."""
        square = jax.jit(lambda each: jax.numpy.clip(each @ each, 0, 1))
        busy = jax.numpy.ones((4096, 4096))
        sharding = None
        if sharded:
            mesh = jax.make_mesh((1,), ("data",))
            sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
        fed = feed.jax(batches(23, 2, executor), sharding=sharding, depth=depth, dtypes="jax")
        for _ in range(2):
            kept = []
            for batch in fed:
                for _ in range(10):
                    busy = square(busy)
                kept.append({key: leaf + 0 if isinstance(leaf, jax.Array) else leaf for key, leaf in batch.items()})
                assert {device.platform for device in batch["f4"].devices()} == {"gpu"}
                del batch
            found = [
                {key: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf for key, leaf in batch.items()}
                for batch in kept
            ]
            check(found, 23, 2)

    def test_batches_can_be_kept(self, jax: Any) -> None:
        """All of an epoch, on the device, unchanged by later epochs."""
        fed = feed.jax(batches(24, 4, "process"), dtypes="jax")
        kept = list(fed)
        list(fed)
        check([{k: np.asarray(v) if isinstance(v, jax.Array) else v for k, v in b.items()} for b in kept], 24, 4)


class TestKeras:
    """Keras' `fit` on JAX' or PyTorch's GPU."""

    def test_fit_learns_what_is_fed(self) -> None:
        """The loss of a linear model on a linear function goes to zero."""
        needed("keras")
        import keras  # noqa: PLC0415 -- behind the check

        if keras.backend.backend() == "jax":
            import jax  # noqa: PLC0415 -- behind the check

            if jax.default_backend() != "gpu":
                pytest.skip("jax finds no GPU here")
        else:
            needed("torch")
            import torch  # noqa: PLC0415 -- behind the check

            if not torch.cuda.is_available():
                pytest.skip("torch finds no GPU here")

        def pair(number: Any) -> Any:
            x = np.random.default_rng(int(number)).normal(size=4).astype(np.float32)
            return x, x.sum(keepdims=True)

        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
        fed = feed.keras(ad.Dataset.range(2048).map(pair).batch(32, drop_remainder=True))
        history = model.fit(fed, epochs=3, verbose=0)
        fed.close()
        assert history.history["loss"][-1] < 1e-3
