"""PyTorch: batches as tensors, on the host or on a device; the only file that imports torch.

On the host a tensor is the memory of the batch itself, not a copy: torch keeps the array alive, the array keeps the
slab. What torch has no type for stays what it is: byte strings, texts, `RaggedArray`, objects.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import weakref
from collections.abc import Iterator
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from asyncdata.dataset.dataset import Dataset
from asyncdata.errors import PipelineError
from asyncdata.feed.even import Least
from asyncdata.feed.feeding import Feed
from asyncdata.feed.ranks import Division
from asyncdata.feed.run import Conversion, Hand
from asyncdata.feed.staging import Staging, StagingRing
from asyncdata.memory.structure import map_leaves
from asyncdata.types import Element

_KINDS: Final = "?biufc"
_OF_BITS: Final = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
"""Types of the package ml_dtypes, which torch has, too, and does not know as numpy's."""

_ONLY_BITS: Final = frozenset(getattr(torch, name) for name in _OF_BITS)

_PINNED: Final = ("cuda", "xpu")
"""Devices that copy from pinned memory without the processor."""


class TorchFeed(Feed, IterableDataset):  # type: ignore[misc]  # torch is not there where types are checked
    """Epochs of a dataset as PyTorch's tensors; `asyncdata.feed.torch` makes it."""

    stays_here: ClassVar[tuple[str, ...]] = (*Feed.stays_here, "_slots", "_votes")

    def __init__(
        self, dataset: Dataset, division: Division, *, device: Any, pin: bool | None, depth: int, deadline_s: float
    ) -> None:
        super().__init__(dataset, division)
        self._device = None if device is None else torch.device(device)
        on_host = self._device is None or self._device.type == "cpu"
        if on_host and pin:
            raise ValueError("pin=True needs device=...: pinned memory is only used for copies to a device")
        self._pins = self._device is not None and self._device.type in _PINNED if pin is None else pin
        self._depth = depth
        self._deadline_s = deadline_s
        self._slots: StagingRing | None = None
        self._votes: _Votes | None = None

    def dataloader(self) -> Any:
        """A ``torch.utils.data.DataLoader`` that passes the feed's batches on, for trainers that insist on one.

        It adds no process and no copy. ``Accelerator.prepare`` leaves it as it is: the feed has sharded the batches and
        copies them to the device.
        """
        loader = DataLoader(self, batch_size=None, num_workers=0, collate_fn=_same)
        # So Accelerate marks what it has prepared. It would shard the batches of each rank once more.
        loader._is_accelerate_prepared = True  # noqa: SLF001 -- there is no public way
        return loader

    def _check_process(self) -> None:
        if get_worker_info() is not None:
            raise PipelineError(
                "a feed cannot run in a DataLoader worker, because every worker would read the whole dataset. Use "
                "num_workers=0, because the pipeline has processes of its own; or iterate the feed without a DataLoader"
            )

    def _distributed(self) -> tuple[int, int] | None:
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return None
        return distributed.get_rank(), distributed.get_world_size()

    def _least(self) -> Least:
        if self._distributed() is None:
            raise PipelineError(
                f"even={self._division.even!r}: the ranks must agree on the number of steps, because it is not known "
                "in advance. Call torch.distributed.init_process_group() first, or give even=None"
            )
        return self._agreement()

    def _agreement(self) -> _Votes:
        if self._votes is None:
            self._votes = _Votes(self._deadline_s)
        return self._votes

    def _gather(self, state: dict[str, Any]) -> list[dict[str, Any]]:
        return self._agreement().gather(state)

    def _hand(self) -> Hand:
        if self._device is None or self._device.type == "cpu":
            return Conversion(on_host)
        if self._slots is None:
            device = self._device
            if device.index is None:  # a thread has no current device of its own choice
                device = torch.device(device.type, torch.accelerator.current_device_index())
            self._slots = StagingRing(_DeviceCopies(device, pin=self._pins), self._depth + 1)
        return Staging(self._slots, self._depth)


def _same(batch: Any) -> Any:
    return batch


def on_host(batch: Element) -> Any:
    """The batch with tensors in the place of arrays and numbers."""
    return map_leaves(_tensor, batch, whole_ragged=True)


def _tensor(leaf: Any) -> Any:
    array = np.array(leaf) if isinstance(leaf, np.generic) else leaf
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
        return leaf
    found = _shared(array)
    return leaf if found is None else found


def _shared(leaf: npt.NDArray[Any]) -> Any:
    """The tensor that shares the memory of an array, or that of a copy; None where torch has no type for it."""
    if not leaf.dtype.isnative:
        leaf = leaf.astype(leaf.dtype.newbyteorder("="))
    if leaf.dtype.name in _OF_BITS:
        bits = f"u{leaf.dtype.itemsize}"
        return _shared(leaf.view(bits)).view(getattr(torch, leaf.dtype.name))
    if leaf.dtype.kind not in _KINDS or leaf.dtype.itemsize > 16:
        return None
    if not leaf.flags.writeable or any(stride < 0 or stride % leaf.itemsize for stride in leaf.strides):
        # Writing to a tensor over read-only memory is undefined, and torch knows neither negative strides nor those
        # of a field of packed records.
        leaf = leaf.copy()
    try:
        return torch.from_numpy(leaf)
    except TypeError:
        return None  # such as numpy's long double


def _as_numpy(tensor: Any) -> Any:
    """The memory of a tensor of the host; as plain bits where numpy lacks its type."""
    if tensor.dtype in _ONLY_BITS:
        tensor = tensor.view(torch.uint8 if tensor.itemsize == 1 else torch.uint16)
    return tensor.numpy()


class _Votes:
    """Asks the other ranks, in a group of its own: gradients are exchanged meanwhile in others.

    Args:
        deadline_s: How long a rank waits for the others.
    """

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        with self._missing("whether they are there"):
            self._group = torch.distributed.new_group(backend="gloo", timeout=datetime.timedelta(seconds=deadline_s))
        # At exit groups end with the process, or before it by destroy_process_group().
        weakref.finalize(self, _leave, self._group).atexit = False

    def __call__(self, values: list[int]) -> list[int]:
        """See `even.Least`."""
        least = torch.tensor(values, dtype=torch.int64)
        with self._missing("how many batches they have"):
            torch.distributed.all_reduce(least, op=torch.distributed.ReduceOp.MIN, group=self._group)
        found: list[int] = least.tolist()
        return found

    @contextlib.contextmanager
    def _missing(self, what: str) -> Iterator[None]:
        """A rank that has ended or does something else is missed, at the deadline at the latest."""
        try:
            yield
        except RuntimeError as error:
            raise PipelineError(
                f"no answer from the other ranks ({what}): a rank has exited, or left its loop more than "
                f"deadline_s={self._deadline_s:g} seconds ago"
            ) from error

    def gather(self, state: dict[str, Any]) -> list[dict[str, Any]]:
        """The states of all ranks. They travel as JSON, because what torch would pickle is executed when it is read."""
        text = json.dumps(state, allow_nan=False).encode()
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(torch.distributed.get_world_size())]
        with self._missing("their states"):
            torch.distributed.all_gather(sizes, torch.tensor([len(text)]), group=self._group)
            longest = max(int(size) for size in sizes)
            mine = torch.zeros(longest, dtype=torch.uint8)
            mine[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
            texts = [torch.zeros_like(mine) for _ in sizes]
            torch.distributed.all_gather(texts, mine, group=self._group)
        return [json.loads(bytes(each[: int(size)].tolist())) for each, size in zip(texts, sizes, strict=True)]


def _leave(group: Any) -> None:
    """Closes the connections of a group, of which every feed that votes has one."""
    with contextlib.suppress(ValueError):  # all groups have ended before
        torch.distributed.destroy_process_group(group)


class _DeviceCopies:
    """Copies to a device on a stream of their own, from pinned memory.

    Args:
        device: Where to.
        pin: Whether batches are put into pinned memory first.
    """

    def __init__(self, device: Any, *, pin: bool) -> None:
        self._device = device
        self._pin = pin
        self._stream = torch.Stream(device=device)
        self._pinned: dict[tuple[int, int], Any] = {}

    def stage(self, slot: int, batch: Element) -> Any:
        """See `Copies`."""
        batch = on_host(batch)
        if not self._pin:
            return batch
        number = 0

        def staged(leaf: Any) -> Any:
            nonlocal number
            if not isinstance(leaf, torch.Tensor):
                return leaf
            number += 1
            space = self._space(slot, number, leaf.nbytes).view(leaf.dtype).view(leaf.shape)
            # Not copy_: its threads, one for each core, take these from the pipeline's workers, and spin.
            np.copyto(_as_numpy(space), _as_numpy(leaf))
            return space

        with self._stream:  # and its device: pinned memory belongs to one
            return map_leaves(staged, batch, whole_ragged=True)

    def _space(self, slot: int, number: int, nbytes: int) -> Any:
        """Pinned memory of a leaf, which is allocated again only for a larger batch."""
        space = self._pinned.get((slot, number))
        if space is None or len(space) < nbytes:
            space = self._pinned[slot, number] = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        return space[:nbytes]

    def start(self, staged: Any) -> tuple[Any, Any]:
        """See `Copies`."""

        def sent(leaf: Any) -> Any:
            return leaf.to(self._device, non_blocking=self._pin) if isinstance(leaf, torch.Tensor) else leaf

        with self._stream:
            arriving = map_leaves(sent, staged, whole_ragged=True)
            return arriving, self._stream.record_event()

    def wait(self, event: Any) -> None:
        """See `Copies`."""
        event.synchronize()

    def use_behind(self, event: Any, batch: Any) -> None:
        """See `Copies`."""
        stream = torch.accelerator.current_stream(self._device)
        stream.wait_event(event)

        def used(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                leaf.record_stream(stream)
            return leaf

        map_leaves(used, batch, whole_ragged=True)
