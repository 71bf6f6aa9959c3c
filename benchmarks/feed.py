"""What handing a batch to a framework adds to a numpy loop: CPU time per step and copies; Markdown tables.

    python -m benchmarks.feed [--python PYTHON] [--quick]

A feed is compared with a loop over its own dataset, which gives the same batches as numpy arrays. Each framework's own
loader is compared with a loop over the arrays that it is given, which lie in memory. So each figure is what the loader
adds, and not what it costs to read. With Keras the loop calls ``train_on_batch`` of a model with one weight, and the
loaders feed `fit`.

A step multiplies two small matrices. Every cell is a process of its own, which counts its own CPU time, all threads: a
round of the one, a round of the other, medians of several. A copy is counted where the framework's array is not the
memory of numpy's. Without a framework its rows are left out.

A second table says how much of the time of copies to a GPU is hidden behind steps that are as long as four copies: the
wall time of a loop that is fed, less that of the steps alone, is what is not hidden of that of the copies alone. The
clock begins behind the first batch. Once steps run ahead of the device, and once each of them is waited for, as where a
loop prints its loss.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

import asyncdata as ad
from asyncdata import feed
from benchmarks.conditions import conditions
from benchmarks.launch import run_json
from benchmarks.servers import REPOSITORY
from benchmarks.table import markdown

TRAINERS_PYTHON: Final = REPOSITORY / ".cache" / "trainers" / "bin" / "python"
ROUNDS: Final = 9
SHAPES: Final = {"32 KiB": (32, 256), "9.6 MB": (64, 37_500)}
"""Of a batch of float32."""

CELLS: Final = {
    "torch": ("feed.torch", "DataLoader(batch_size=None)", "StatefulDataLoader(batch_size=None)"),
    "jax": ("feed.jax", "Grain and device_put"),
    "tensorflow": ("feed.tensorflow", "tf.data from_generator", "tf.data from_tensor_slices, batch"),
    "keras": ("feed.keras", "keras PyDataset"),
}


KNOWN: Final[list[Any]] = []
"""The last arrays that a loader was given."""


def noted(array: Any) -> Any:
    """The same array; the last ones are known."""
    KNOWN.append(array)
    del KNOWN[:-16]
    return array


def dataset(shape: tuple[int, ...], count: int, targets: Any = None) -> ad.Dataset:
    """Batches that cost little, with the same targets beside each of them if there are any."""
    kept = arrays(shape, 8)

    def make(number: int) -> Any:
        batch = noted(kept[number % 8])
        return batch if targets is None else (batch, targets)

    return ad.Dataset.range(count).map(make)


def arrays(shape: tuple[int, ...], count: int) -> list[Any]:
    """As many batches in memory, which begin on 64-byte boundaries; a few of them, again and again."""
    few = []
    for number in range(min(count, 8)):
        space = np.empty(int(np.prod(shape)) * 4 + 64, np.uint8)
        begin = -space.ctypes.data % 64
        few.append(space[begin : begin + int(np.prod(shape)) * 4].view(np.float32).reshape(shape))
        few[-1][:] = number
    KNOWN.extend(few)
    return [few[number % len(few)] for number in range(count)]


class Cell:
    """A loader, and the loop that it is compared with.

    Args:
        bare: Iterates numpy's arrays.
        loader: Iterates the framework's.
        address: Where an array of the framework begins.
    """

    def __init__(
        self, bare: Callable[[], Iterable[Any]], loader: Callable[[], Iterable[Any]], address: Callable[[Any], int]
    ) -> None:
        self.bare = bare
        self.loader = loader
        self.address = address


def of_numpy(array: Any) -> int:
    """Where an array begins."""
    return int(array.__array_interface__["data"][0])


def torch_cell(name: str, shape: tuple[int, ...], count: int) -> Cell:
    """PyTorch's."""
    import torch  # noqa: PLC0415 -- one framework per process
    from torch.utils.data import DataLoader, IterableDataset  # noqa: PLC0415 -- likewise

    address = torch.Tensor.data_ptr
    if name == "feed.torch":
        ds = dataset(shape, count)
        return Cell(lambda: ds, lambda: feed.torch(ds), address)
    kept = arrays(shape, count)

    class Arrays(IterableDataset):  # type: ignore[misc]  # torch is not there where types are checked
        """The arrays, as tensors that share their memory."""

        def __iter__(self) -> Iterator[Any]:
            return map(torch.from_numpy, kept)

    if name.startswith("Stateful"):
        from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: PLC0415 -- likewise

        return Cell(lambda: kept, lambda: StatefulDataLoader(Arrays(), batch_size=None), address)
    return Cell(lambda: kept, lambda: DataLoader(Arrays(), batch_size=None), address)


def jax_cell(name: str, shape: tuple[int, ...], count: int) -> Cell:
    """JAX's, on the CPU."""
    import jax  # noqa: PLC0415 -- one framework per process

    def address(array: Any) -> int:
        return int(array.unsafe_buffer_pointer())

    if name == "feed.jax":
        ds = dataset(shape, count)
        return Cell(lambda: ds, lambda: feed.jax(ds), address)
    import grain  # noqa: PLC0415 -- likewise

    kept = arrays(shape, count)
    source = grain.MapDataset.source(kept).to_iter_dataset()
    return Cell(lambda: kept, lambda: map(jax.device_put, source), address)


def tensorflow_cell(name: str, shape: tuple[int, ...], count: int) -> Cell:
    """TensorFlow's."""
    import tensorflow as tf  # noqa: PLC0415 -- one framework per process

    def address(tensor: Any) -> int:
        return of_numpy(np.from_dlpack(tensor))

    signature = tf.TensorSpec(shape, tf.float32)
    if name == "feed.tensorflow":
        ds = dataset(shape, count)
        return Cell(lambda: ds, lambda: feed.tensorflow(ds, output_signature=signature), address)
    kept = arrays(shape, count)
    if name.endswith("from_generator"):
        fed = tf.data.Dataset.from_generator(lambda: iter(kept), output_signature=signature)
    else:
        fed = tf.data.Dataset.from_tensor_slices(np.concatenate(kept[:8])).batch(shape[0]).repeat(-(-count // 8))
        fed = fed.take(count)
    return Cell(lambda: kept, lambda: fed, address)


def keras_cell(name: str, shape: tuple[int, ...], count: int) -> Cell:
    """Keras', on JAX."""
    import keras  # noqa: PLC0415 -- one framework per process

    model = keras.Sequential([keras.Input(shape[1:]), keras.layers.Lambda(lambda x: x[:, :1]), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    targets = np.zeros((shape[0], 1), np.float32)
    kept = arrays(shape, count)

    class Arrays(keras.utils.PyDataset):  # type: ignore[misc]  # keras is not there where types are checked
        """The arrays."""

        def __len__(self) -> int:
            return count

        def __getitem__(self, index: int) -> Any:
            return kept[index], targets

    def bare() -> Iterator[None]:
        for batch in kept:
            model.train_on_batch(batch, targets)
            yield None

    def fit() -> Iterator[None]:
        if name == "feed.keras":
            fed = feed.keras(dataset(shape, count, targets), steps=count)
            model.fit(fed, verbose=0)
            fed.close()
        else:
            model.fit(Arrays(), verbose=0, shuffle=False)
        yield from [None] * count

    return Cell(bare, fit, lambda _: 0)


STEPS_PER_COPY: Final = 4


class Device:
    """What is measured on a GPU.

    Args:
        send: Copies an array there; nobody waits for it.
        loaders: By name, what brings the arrays there.
        square: Multiplies two large matrices there.
        wait: Returns when all of that is done.
    """

    def __init__(
        self,
        send: Callable[[Any], Any],
        loaders: dict[str, Callable[[], Iterable[Any]]],
        square: Callable[[], Any],
        wait: Callable[[Any], Any],
    ) -> None:
        self.send = send
        self.loaders = loaders
        self.square = square
        self.wait = wait


def torch_device(count: int) -> Device | None:
    """PyTorch's GPU."""
    import torch  # noqa: PLC0415 -- one framework per process
    from torch.utils.data import DataLoader  # noqa: PLC0415 -- likewise

    if not torch.cuda.is_available():
        return None
    matrix = torch.ones((2048, 2048), device="cuda")
    shape = SHAPES["9.6 MB"]
    space = torch.empty(shape).pin_memory()
    tensors = list(map(torch.from_numpy, arrays(shape, count)))

    def dataloader() -> Iterator[Any]:
        loader = DataLoader(tensors, batch_size=None, pin_memory=True)
        return (batch.to("cuda", non_blocking=True) for batch in loader)

    return Device(
        lambda array: space.copy_(torch.from_numpy(array)).to("cuda", non_blocking=True),
        {
            "feed.torch(device=...)": lambda: feed.torch(dataset(shape, count), device="cuda"),
            "DataLoader(pin_memory=True)": dataloader,
        },
        lambda: matrix @ matrix,
        lambda _: torch.cuda.synchronize(),
    )


def jax_device(count: int) -> Device | None:
    """JAX's GPU."""
    import jax  # noqa: PLC0415 -- one framework per process

    if jax.default_backend() != "gpu":
        return None
    matrix = jax.numpy.ones((2048, 2048))
    square = jax.jit(lambda each: each @ each)
    shape = SHAPES["9.6 MB"]
    loaders: dict[str, Callable[[], Iterable[Any]]] = {
        "feed.jax": lambda: feed.jax(dataset(shape, count)),
        "jax.device_put of each array": lambda: map(jax.device_put, arrays(shape, count)),
    }
    return Device(jax.device_put, loaders, lambda: square(matrix), jax.block_until_ready)


DEVICE_MAKERS: Final = {"torch": torch_device, "jax": jax_device}


class Loops:
    """Loops over so many batches, and how long they take, with a number of products in each step.

    Args:
        device: Where the steps are.
        count: How many batches.
    """

    def __init__(self, device: Device, count: int) -> None:
        self._device = device
        self._count = count
        self._kept = arrays(SHAPES["9.6 MB"], count)

    def copies(self) -> float:
        """Nothing but copies, one after the other."""
        device = self._device
        begin = time.perf_counter()
        for array in self._kept:
            device.wait(device.send(array))
        return time.perf_counter() - begin

    def steps(self, squares: int, *, wait: bool, batches: Iterable[Any] | None = None) -> float:
        """Steps, with a batch before each of them if there are any; the clock begins behind the first batch."""
        device = self._device
        waiting = iter(range(self._count + 1) if batches is None else batches)
        next(waiting)
        device.wait(device.square())
        begin = time.perf_counter()
        done = None
        for _ in waiting:
            for _ in range(squares):
                done = device.square()
            if wait:
                device.wait(done)
        device.wait(done)
        return time.perf_counter() - begin


def hidden(framework: str, rounds: int) -> dict[str, list[list[float]]]:
    """By loader, how much of copies to the GPU is hidden behind steps, round by round; nothing without a GPU.

    First behind steps that run ahead of the device, then behind steps that are waited for one by one.
    """
    count = 200
    device = DEVICE_MAKERS[framework](count + 1)
    if device is None:
        return {}
    loops = Loops(device, count)
    loops.copies(), loops.steps(1, wait=False)  # the first time fills caches
    squares = max(1, round(STEPS_PER_COPY * loops.copies() / loops.steps(1, wait=False)))
    found: dict[str, list[list[float]]] = {name: [[], []] for name in device.loaders}
    for number in range(rounds + 1):
        for mode, wait in enumerate((False, True)):
            copies, steps = loops.copies(), loops.steps(squares, wait=wait)
            for name, loader in device.loaders.items():
                fed = loops.steps(squares, wait=wait, batches=loader())
                if number:
                    found[name][mode].append(1 - (fed - steps) / copies)
    return found


MAKERS: Final = {"torch": torch_cell, "jax": jax_cell, "tensorflow": tensorflow_cell, "keras": keras_cell}


def measured(framework: str, name: str, size: str, rounds: int) -> dict[str, Any]:
    """One cell, in this process."""
    shape = SHAPES[size]
    count = 2000 if size == "32 KiB" else 300
    cell = MAKERS[framework](name, shape, count)
    small = np.ones((32, 32), np.float32)
    times: dict[str, list[float]] = {"bare": [], "loader": []}
    for number in range(rounds + 1):
        for side, loop in (("bare", cell.bare), ("loader", cell.loader)):
            begin = time.process_time()
            steps = 0
            for _ in loop():
                small @ small
                steps += 1
            if number:  # the first round fills caches
                times[side].append((time.process_time() - begin) / steps * 1e6)
    added = [with_it - without for with_it, without in zip(times["loader"], times["bare"], strict=True)]
    return {"added_us": added, "bare_us": times["bare"], "copies": copies(cell, framework)}


def copies(cell: Cell, framework: str) -> str:
    """Whether the framework's arrays are the memory of numpy's."""
    if framework == "keras":
        return "-"  # `fit` copies, whatever it is given
    kept = [(batch, cell.address(batch)) for batch, _ in zip(cell.loader(), range(8), strict=False)]
    known = {of_numpy(array) for array in KNOWN}
    return str(int(not known.issuperset(address for _, address in kept)))


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=str(TRAINERS_PYTHON), help="an interpreter that has the frameworks")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--cell", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--device", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    rounds = 3 if given.quick else ROUNDS
    if given.cell:
        try:
            print(json.dumps(measured(given.cell[0], given.cell[1], given.cell[2], rounds)))
        except ModuleNotFoundError:
            print("null")
        return
    if given.device:
        print(json.dumps(hidden(given.device, rounds)))
        return
    if not Path(given.python).exists():
        print("The frameworks are not installed here: make trainers")
        return
    print(conditions(packages=("asyncdata", "numpy")))
    print("\nAdded CPU us per step, median of rounds; copies on the host\n")
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax", "PYTHONWARNINGS": "ignore"}
    rows = []
    for framework, names in CELLS.items():
        for name in names:
            cells = {}
            for size in SHAPES:
                command = [given.python, "-m", "benchmarks.feed", "--cell", framework, name, size]
                cells[size] = run_json(command + ["--quick"] * given.quick, {**os.environ, **quiet})
            if None in cells.values():
                continue  # the framework or the loader is not installed
            rows.append([name, *(f"{statistics.median(cell['added_us']):.0f}" for cell in cells.values())])
            rows[-1].append(cells["9.6 MB"]["copies"])
    print(markdown(["loader", *(f"batch of {size}" for size in SHAPES), "copies"], rows))
    print("\nCopies of 9.6 MB to a GPU: the part that is hidden behind steps, median of rounds\n")
    rows = []
    for framework in DEVICE_MAKERS:
        command = [given.python, "-m", "benchmarks.feed", "--device", framework]
        loud = {key: value for key, value in quiet.items() if key != "JAX_PLATFORMS"}
        found = run_json(command + ["--quick"] * given.quick, {**os.environ, **loud})
        rows += [[name, *(f"{statistics.median(parts):.2f}" for parts in modes)] for name, modes in found.items()]
        if not found:
            rows.append([f"feed.{framework}", "not measured: no GPU", "not measured: no GPU"])
    print(markdown(["loader", "steps run ahead", "each step is waited for"], rows))


if __name__ == "__main__":
    main()
