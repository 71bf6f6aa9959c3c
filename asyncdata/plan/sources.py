"""Nodes without an input: the sources of elements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from asyncdata.plan.node import Node
from asyncdata.spec import ArraySpec, BytesSpec, StrSpec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Range(Node):
    """``start, start + step, …`` below (or above) `stop`, of one integer dtype."""

    start: int
    stop: int
    step: int
    dtype: str

    def element_spec(self, of: Callable[[Node], Any]) -> Any:
        return ArraySpec((), self.dtype)

    def cardinality(self, of: Callable[[Node], int]) -> int:
        return len(range(self.start, self.stop, self.step))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TensorSlices(Node):
    """Element i is the i-th row of every array, in the nest that `structure` describes.

    Attributes:
        arrays: One per leaf.
        structure: See above.
        drawn_by: The function that put the rows in an order that it drew itself, without a seed; None for none.
    """

    name: ClassVar[str] = "from_tensor_slices"

    arrays: tuple[npt.NDArray[Any], ...]
    structure: Any
    drawn_by: str | None = None

    def cardinality(self, of: Callable[[Node], int]) -> int:
        return len(self.arrays[0])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Items(Node):
    """A tuple of elements, kept as they are."""

    name: ClassVar[str] = "from_tensors"

    items: tuple[Any, ...]

    def cardinality(self, of: Callable[[Node], int]) -> int:
        return len(self.items)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Generator(Node):
    """What a generator function yields; called anew for every iteration. The function may be async.

    `signature` is the spec of its elements, where it was given. Where the generator tells its own state, `get_state` is
    called every so many elements (`state_every`), and `set_state` before the generator begins again.
    """

    name: ClassVar[str] = "from_generator"

    function: Callable[..., Any]
    args: tuple[Any, ...]
    signature: Any = None
    get_state: Callable[[], Any] | None = None
    set_state: Callable[[Any], Any] | None = None
    state_every: int = 1

    def element_spec(self, of: Callable[[Node], Any]) -> Any:
        return self.signature


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ListFiles(Node):
    """URLs that match the patterns, in order of URL, or shuffled as a whole."""

    draws: ClassVar[int] = 1

    patterns: tuple[str, ...]
    shuffle: bool
    seed: int | None

    def element_spec(self, of: Callable[[Node], Any]) -> Any:
        return StrSpec()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ManifestFile(Node):
    """URLs that a manifest file names, in its order, or shuffled as a whole."""

    name: ClassVar[str] = "from_manifest"
    draws: ClassVar[int] = 1

    url: str
    shuffle: bool
    seed: int | None

    def element_spec(self, of: Callable[[Node], Any]) -> Any:
        return StrSpec()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TFRecordFile(Node):
    """The records of one TFRecord file as ``bytes``."""

    name: ClassVar[str] = "TFRecordDataset"

    url: str
    compression: str | None

    def element_spec(self, of: Callable[[Node], Any]) -> Any:
        return BytesSpec()


def byte_order(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array in this machine's byte order, contiguous, read-only: what a plan may hold."""
    out = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False)).view()
    out.flags.writeable = False
    return out
