"""JAX: batches as jax arrays, on one device or over a mesh; the only file that imports jax.

On the CPU an array is the memory of the batch where that begins on a 64-byte boundary, as all leaves that workers write
do: jax keeps the array alive, the array keeps the slab. What jax has no type for stays on the host.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, TypeGuard

import jax
import numpy as np
import numpy.typing as npt
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from asyncdata import arguments
from asyncdata.dataset.dataset import Dataset
from asyncdata.dataset.handles import node_of
from asyncdata.errors import PipelineError, StateError
from asyncdata.feed.even import Least
from asyncdata.feed.feeding import Feed
from asyncdata.feed.own_batches import EpochPlace
from asyncdata.feed.ranks import Division, Share, share_of
from asyncdata.feed.run import Conversion, Hand
from asyncdata.memory.narrow import halved
from asyncdata.memory.structure import flatten, leaf_names, map_leaves, unflatten
from asyncdata.planner.fuse import rows_of_batches, with_narrow_batches
from asyncdata.types import Element

Dtypes: TypeAlias = Literal["jax"] | None

_KINDS: Final = "?biufc"
_AS_MANY_ROWS: Final = (
    "an array is made of the rows of all processes, so each of them must give as many every time. Use "
    "drop_remainder=True, or even='pad' to evaluate on all rows"
)


class JaxFeed(Feed):
    """Epochs of a dataset as jax arrays; `asyncdata.feed.jax` makes it."""

    def __init__(self, dataset: Dataset, division: Division, *, sharding: Any, depth: int, dtypes: Dtypes) -> None:
        super().__init__(dataset, division)
        if sharding is not None:
            arguments.instance("sharding", sharding, Sharding, "a jax.sharding.Sharding, such as NamedSharding")
        self._sharding = sharding
        self._depth = depth
        self._dtypes = dtypes
        self._known_share: Share | None = None
        self._rows: dict[int, int] = {}
        self._compared = False  # the first batches of all processes
        self._most_rows = rows_of_batches(node_of("dataset", dataset)) or 0

    def _check_process(self) -> None:
        """Any process will do."""

    def _state(self, place: EpochPlace) -> dict[str, Any]:
        """Includes the rows to which shorter batches are filled up, because only a shorter one may be left."""
        return {**super()._state(place), "rows": self._most_rows}

    def _load(self, states: Sequence[Mapping[str, Any]]) -> None:
        super()._load(states)
        rows = [state.get("rows", 0) for state in states]
        if not all(isinstance(number, int) for number in rows):
            raise StateError(f"the state of a feed says that its batches have {rows} rows, which are no numbers")
        self._most_rows = max(self._most_rows, *rows)

    def _distributed(self) -> tuple[int, int] | None:
        if self._sharding is None:
            return jax.process_index(), jax.process_count()
        return self._share.rank, self._share.world

    def _processes(self) -> int:
        if self._division.world == 1 and self._sharding_processes == 1:
            return 1  # the user says that this one is alone, whatever jax knows
        return max(int(jax.process_count()), self._rank().world)

    @property
    def _share(self) -> Share:
        if self._known_share is None:
            self._known_share = share_of(jax.process_index(), _rows_by_process(self._sharding))
        return self._known_share

    @property
    def _sharding_processes(self) -> int:
        """How many processes make an array together."""
        return 1 if self._sharding is None else len({device.process_index for device in self._sharding.device_set})

    @property
    def _is_joint(self) -> bool:
        """Whether arrays are made of rows of several ranks, and every process gives some."""
        if self._sharding is None or self._share.world == 1:
            return False
        return self._sharding_processes == int(jax.process_count())

    def _least(self) -> Least:
        if jax.process_count() < self._rank().world:
            raise PipelineError(
                f"even={self._division.even!r}: the ranks must agree on the number of steps, because it is not known "
                f"in advance, and jax knows {jax.process_count()} of {self._rank().world} processes. Call "
                "jax.distributed.initialize() first, or give even=None"
            )
        return _least

    def _as_written(self, dataset: Dataset) -> Dataset:
        if self._dtypes != "jax" or jax.config.jax_enable_x64:
            return dataset
        return Dataset(with_narrow_batches(node_of("dataset", dataset)))

    def _hand(self) -> Hand:
        return Conversion(self._on_device, self._depth)

    def _on_device(self, batch: Element) -> Any:
        pads = self._division.even == "pad"
        self._compare(_rows_of(batch[1] if pads else batch), pads=pads)
        if pads:
            batch = self._filled(*batch)
        leaves, structure = flatten(batch, whole_ragged=True)
        made: list[Any] = []
        for leaf in leaves:
            array = np.asarray(leaf) if isinstance(leaf, np.generic) else leaf
            if not _is_known(array):
                made.append(leaf)
                continue
            try:
                self._check_rows(len(made), array)
                made.append(self._placed(narrowed(array, self._dtypes)))
            except PipelineError as error:
                error.complete(leaf=leaf_names(structure)[len(made)] or None)
                raise
        return unflatten(structure, iter(made))

    def _compare(self, rows: int, *, pads: bool) -> None:
        """Asks the others for the rows of their first batches, which one process alone cannot know to be shorter.

        All processes convert it at the same step. Behind it, each of them knows the rows that the others have.
        """
        if self._compared or not self._is_joint:
            return
        least, most = _least([rows, -(max(rows, self._most_rows) if pads else rows)])
        self._compared = True
        if pads:
            self._most_rows = -most
        elif least != -most:
            raise PipelineError(f"the first batches of the processes have {least} to {-most} rows: {_AS_MANY_ROWS}")

    def _filled(self, batch: Element, mask: npt.NDArray[np.bool_]) -> Element:
        """A shorter batch with as many rows as others have, because all must be divided alike; these do not count."""
        rows = len(mask) if mask.ndim else 0
        self._most_rows = max(self._most_rows, rows)
        more = self._most_rows - rows
        if not rows or not more:
            return batch, mask

        def filled(leaf: Any) -> Any:
            if _is_known(leaf) and leaf.ndim and len(leaf) == rows:
                return np.concatenate([leaf, np.repeat(leaf[-1:], more, axis=0)])
            return leaf

        return map_leaves(filled, batch, whole_ragged=True), np.concatenate([mask, np.zeros(more, np.bool_)])

    def _check_rows(self, leaf: int, array: npt.NDArray[Any]) -> None:
        """Of other rows, the processes would make arrays of different shapes, and compute different things."""
        if self._sharding is None or not array.ndim or jax.process_count() == 1 or self._share.world == 1:
            return
        before = self._rows.setdefault(leaf, len(array))
        if len(array) != before:
            raise PipelineError(f"a batch of {len(array)} rows comes after batches of {before}: {_AS_MANY_ROWS}")

    def _placed(self, array: npt.NDArray[Any]) -> Any:
        sharding = self._sharding
        if sharding is None:
            return jax.device_put(array)
        if isinstance(sharding, NamedSharding) and len(sharding.spec) > array.ndim:
            spec = PartitionSpec(*sharding.spec[: array.ndim])
            sharding = NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind)
        if array.ndim and len(array) % self._share.parts:
            raise PipelineError(
                f"a batch of {len(array)} rows cannot be divided among {self._share.parts} groups of devices of this "
                "process: choose a batch size that can, and drop_remainder=True"
            )
        # Without a shape jax takes the array for a part along each axis that is divided among processes, and it is one
        # along the rows alone.
        shape = (len(array) * self._share.world, *array.shape[1:]) if array.ndim else ()
        return jax.make_array_from_process_local_data(sharding, array, shape)


def _rows_of(batch: Element) -> int:
    """The rows of its first leaf that has any; 0 if it is no batch."""
    leaves, _ = flatten(batch, whole_ragged=True)
    return next((len(leaf) for leaf in leaves if _is_known(leaf) and leaf.ndim), 0)


def _is_known(leaf: Any) -> TypeGuard[npt.NDArray[Any]]:
    """Whether jax has the type; those of the package ml_dtypes, such as bfloat16, are of numpy's kind "V"."""
    if not isinstance(leaf, np.ndarray) or isinstance(leaf, np.ma.MaskedArray):
        return False
    dtype: np.dtype[Any] = leaf.dtype
    if dtype.kind in _KINDS:
        return dtype.itemsize <= (16 if dtype.kind == "c" else 8)  # not numpy's long double
    return dtype.kind == "V" and bool(jax.dtypes.issubdtype(dtype, np.number))


def narrowed(array: npt.NDArray[Any], dtypes: Dtypes) -> npt.NDArray[Any]:
    """The array in the type that jax keeps of it; a copy where the batch was not written so.

    Raises:
        PipelineError: That is another type, and nobody said that it may be.
        UnbatchableError: A value does not fit into it.
    """
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    kept = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))
    if kept == array.dtype:
        return array
    if dtypes != "jax":
        raise PipelineError(
            f"jax would make {kept} of {array.dtype}: dtypes='jax' allows it, .astype in a map function does it where "
            "the batch is made, and jax.config.update('jax_enable_x64', True) keeps the type"
        )
    return halved(array, kept)


def _rows_by_process(sharding: Any) -> dict[int, set[tuple[int, int]]]:
    """The intervals of rows that the devices of each process hold, of as many rows as there are devices."""
    count = len(sharding.device_set)
    axes = max(len(getattr(sharding, "spec", ())), 1)
    rows: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for device, indices in sharding.devices_indices_map((count,) * axes).items():
        begin, end, _ = indices[0].indices(count)
        rows[device.process_index].add((begin, end))
    return rows


def _least(numbers: list[int]) -> list[int]:
    """See `even.Least`; in the thread of the trainer, because all processes must compute in the same order."""
    try:
        found: list[int] = multihost_utils.process_allgather(np.array(numbers, np.int32)).min(axis=0).tolist()
    except (RuntimeError, ValueError) as error:
        raise PipelineError(
            "no answer from the other processes (how many batches or rows they have): one has exited, or cannot be "
            "reached"
        ) from error
    return found
