"""Batches that are kept: whoever holds any part of one keeps it whole and unchanged, however long the pipeline goes on.

Slabs are reused all the time; what a kept array shows would change at once if its memory were given back too early.
"""

from __future__ import annotations

import ctypes
import gc
import random
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from tests.integration.shards import records, write_shards
from tests.patience import LIMIT_S

MIB = 1 << 20


def widen(x: int) -> Any:
    """32 KiB that all say the same."""
    return np.full(4096, x, np.int64)


def wide_batches(count: int, executor: str, limit_mib: int) -> ad.Dataset:
    """Batches of 256 KiB each."""
    options = ad.Options(memory_limit_bytes=limit_mib * MIB)
    parallel = None if executor == "inline" else 2
    return ad.Dataset.range(8 * count).map(widen, parallel, executor=executor).batch(8).with_options(options)


def is_batch(array: Any, number: int) -> bool:
    """Whether an array still is what it was delivered as."""
    return bool((array == np.arange(8 * number, 8 * number + 8)[:, None]).all())


@pytest.mark.sampled
@pytest.mark.parametrize("executor", ["inline", "thread", "process"])
@pytest.mark.parametrize("limit_mib", [8, 16])
def test_a_list_of_ten_times_the_memory_limit(executor: str, limit_mib: int) -> None:
    """Keeping everything never blocks; arrays are writable and begin on 64-byte boundaries."""
    batches = list(wide_batches(40 * limit_mib, executor, limit_mib))
    assert sum(batch.nbytes for batch in batches) == 10 * limit_mib * MIB
    for number, batch in enumerate(batches):
        assert is_batch(batch, number)
        assert batch.flags.writeable
        assert batch.ctypes.data % 64 == 0
        batch[:] = 0


def test_a_list_of_records_of_ten_times_the_memory_limit(tmp_path: Path) -> None:
    """The same for batches of byte strings, which are views of what was read."""
    paths = write_shards(tmp_path, 4, 200, 50_000)
    options = ad.Options(memory_limit_bytes=4 * MIB, chunk_bytes=MIB // 4)
    batches = list(ad.TFRecordDataset(paths).batch(16).with_options(options))
    assert [item for batch in batches for item in batch] == [item for i in range(4) for item in records(i, 200, 50_000)]


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "array": lambda batch: batch,
    "slice": lambda batch: batch[3:7, ::2],
    "slice of a slice": lambda batch: batch[2:][1:5][:, 100:][:, 7],
    "transposed": lambda batch: batch.T,
    "reshaped": lambda batch: batch.reshape(-1)[5::3],
    "retyped": lambda batch: batch.view(np.uint8),
    "memoryview": memoryview,
    "ctypes": lambda batch: (ctypes.c_int64 * batch.size).from_buffer(batch),
    "interface": lambda batch: np.asarray(_Interface(batch)),
}


class _Interface:
    """A foreign holder that knows only the array interface."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self.__array_interface__ = array.__array_interface__


def test_foreign_holders_keep_the_memory() -> None:
    """A slice, a memoryview, a ctypes array: each keeps what it shows, beyond batch, iterator and Runtime."""
    rng = random.Random(3)
    kept: list[tuple[str, Any, bytes]] = []

    def content(holder: str, view: Any) -> bytes:
        return bytes(view if holder == "ctypes" else np.ascontiguousarray(view))

    def keep(holder: str, batch: Any) -> tuple[str, Any, bytes]:
        view = HOLDERS[holder](batch)
        return holder, view, content(holder, view)

    for batch in wide_batches(600, "process", 8):
        if rng.random() < 0.1:
            holder = list(HOLDERS)[len(kept) % len(HOLDERS)]
            kept.append(keep(holder, batch))
    assert len(kept) > 5 * len(HOLDERS)
    del batch
    gc.collect()
    list(wide_batches(50, "inline", 8))  # other pipelines come and go
    for holder, view, before in kept:
        assert content(holder, view) == before, holder


@pytest.mark.sampled
def test_kept_batches_are_untouched_while_slabs_are_reused() -> None:
    """At any moment every array that is held shows what it was delivered as."""
    rng = random.Random(11)
    held: dict[int, Any] = {}
    with ad.Runtime(ad.Options(memory_limit_bytes=12 * MIB), pipelines=1):
        for executor in ("inline", "thread", "process"):
            held.clear()
            for number, batch in enumerate(wide_batches(200, executor, 12)):
                held[number] = batch
                if len(held) > 12:
                    del held[rng.choice(list(held))]
                if number % 20 == 0:
                    assert all(is_batch(array, at) for at, array in held.items())
    assert all(is_batch(array, at) for at, array in held.items())


def test_writing_into_a_batch_changes_no_other() -> None:
    """The consumer owns what it was given."""
    seen = []
    for number, batch in enumerate(wide_batches(100, "process", 8)):
        assert is_batch(batch, number)
        batch[:] = -1
        seen.append(batch)
        if len(seen) > 3:
            assert (seen.pop(0) == -1).all()


def test_batches_end_in_other_threads_and_finalizers() -> None:
    """A lease may end anywhere: in a thread, in ``__del__``, in a garbage cycle, after all was closed."""

    class Keeper:
        def __init__(self, batch: Any) -> None:
            self.batch = batch
            self.itself = self

        def __del__(self) -> None:
            self.copy = self.batch[:1] * 2
            del self.batch

    handed: list[Any] = []

    def drop() -> None:
        while handed:
            handed.pop()

    for number, batch in enumerate(wide_batches(200, "process", 8)):
        assert is_batch(batch, number)
        if number % 3 == 0:
            handed.append(batch)
        elif number % 3 == 1:
            Keeper(batch)
        if number % 20 == 0:
            thread = threading.Thread(target=drop)
            thread.start()
            thread.join()
            gc.collect()
    late = batch
    del batch
    assert is_batch(late, 199)
    thread = threading.Thread(target=handed.clear)
    thread.start()
    thread.join()


def test_the_memory_of_a_batch_goes_with_its_last_view() -> None:
    """Neither earlier nor later, and without a garbage collection: seen on the object beneath the arrays."""
    gc.disable()
    try:
        with wide_batches(10, "process", 8).iterator() as iterator:
            batch = next(iterator)
            lease = batch
            while isinstance(lease, np.ndarray):
                lease = lease.base
            gone = weakref.ref(lease)
            del lease
        view = batch[2:5, 7]
        del batch, iterator
        assert gone() is not None
        assert (view == np.arange(2, 5)).all()
        del view
        assert gone() is None
    finally:
        gc.enable()


def test_private_copies_are_counted() -> None:
    """A consumer that keeps more than its share gets copies; one that does not gets none."""
    for keep, expected in ((False, False), (True, True)):
        kept = []
        with wide_batches(100, "process", 8).iterator() as iterator:
            for batch in iterator:
                if keep:
                    kept.append(batch)
                if len(kept) == 60:
                    break
            del batch
        copies = [array for array in kept if _is_private(array)]
        assert bool(copies) is expected


def _is_private(array: Any) -> bool:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.base is None


def test_kept_batches_at_the_end_of_the_interpreter() -> None:
    """Views in globals, in cycles and in ``builtins`` are freed while everything else is being taken apart."""
    source = """
import builtins, sys
import numpy as np
import asyncdata as ad
def widen(x):
    return np.full(1000, x)
it = iter(ad.Dataset.range(8000).map(widen, 2).batch(8))
builtins.first = next(it)
second = next(it)[2:]
cycle = [next(it)]
cycle.append(cycle)
sys.modules["kept"] = next(it)
class Late:
    def __init__(self, batch): self.batch = batch
    def __del__(self): assert (self.batch[:, 0] == [32, 33, 34, 35, 36, 37, 38, 39]).all()
late = Late(next(it))
"""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", source],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_torch_tensors_keep_the_memory() -> None:
    """``torch.from_numpy`` shares memory, and holds it like every other view; only where torch is installed."""
    torch = pytest.importorskip("torch", reason="torch is not installed: tensors were not tested")
    kept = []
    for number, batch in enumerate(wide_batches(150, "process", 8)):
        tensor = torch.from_numpy(batch)
        assert tensor.data_ptr() == batch.ctypes.data
        if number % 10 == 0:
            kept.append((number, tensor[1:, ::2]))
        del tensor
    del batch
    gc.collect()
    list(wide_batches(50, "inline", 8))
    for number, tensor in kept:
        assert (tensor == torch.arange(8 * number + 1, 8 * number + 8)[:, None]).all()
