"""Nodes that read one file each. Many files are an `Interleave` of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from asyncdata.plan.node import Node
from asyncdata.spec import ArraySpec, BytesSpec, StrSpec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FramedFile(Node):
    """The records of a file of consecutive records, as a framer finds them.

    Attributes:
        url: The file.
        compression: Of the file, or None.
        format: What the user wrote: ``TextLineDataset``.
        framer: Makes the framer, see `asyncdata.formats.framing`.
        arguments: The framer's, by name.
        spec: What a record is made of, see `element_spec`.
    """

    url: str
    compression: str | None
    format: str
    framer: Callable[..., Any]
    arguments: Mapping[str, Any]
    spec: Any

    @property
    def label(self) -> str:
        return self.format

    @property
    def by_header(self) -> bool:
        """Whether the file's beginning says how all of it is to be read."""
        return bool(self.arguments.get("by_header"))

    @property
    def settings(self) -> dict[str, Any]:
        return {"url": self.url, "compression": self.compression, "framer": self.framer, **self.arguments}

    def element_spec(self, of: Callable[[Node], Any]) -> Any:
        return self.spec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WholeFile(Node):
    """The object as one element: its bytes, or a tuple of these and what belongs to them.

    Attributes:
        url: The file.
        compression: Of the file, or None.
        with_url: Whether the URL comes in front of the bytes.
        beside: Arrays and numbers that come behind the bytes: the file's label.
    """

    name: ClassVar[str] = "FileDataset"

    url: str
    compression: str | None
    with_url: bool
    beside: tuple[Any, ...] = ()

    def element_spec(self, of: Callable[[Node], Any]) -> Any:
        beside = tuple(ArraySpec(np.shape(value), np.asarray(value).dtype) for value in self.beside)
        parts = (*((StrSpec(),) if self.with_url else ()), BytesSpec(), *beside)
        return parts if len(parts) > 1 else parts[0]

    def cardinality(self, of: Callable[[Node], int]) -> int:
        return 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PickedRows(Node):
    """Those elements of files that lie at some places; the planner makes it for a pipeline that goes on from a state.

    Attributes:
        source: Reads all elements.
        places: Where the elements lie, see `asyncdata.runtime.state.places`.
        parts: Of several sources, each reads those of these elements that its files have.
        repeated: Whether the source is repeated behind it.
        stage: What reads them already; None: they are still to be read.
    """

    source: Node
    places: Any
    parts: int = 1
    repeated: bool = False
    stage: Any = None

    @property
    def steps(self) -> int:
        return 0  # it stands for its source

    @property
    def label(self) -> str:
        return self.source.label

    def element_spec(self, of: Callable[[Node], Any]) -> Any:
        return of(self.source)

    def cardinality(self, of: Callable[[Node], int]) -> int:
        return len(self.places)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TarSamples(Node):
    """The samples of a tar file: its members grouped by key, as dicts."""

    name: ClassVar[str] = "TarDataset"

    url: str
    compression: str | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ParquetRows(Node):
    """The rows of a Parquet file as dicts; `filters` are alternatives of conditions (column, operator, value)."""

    name: ClassVar[str] = "ParquetDataset"

    url: str
    columns: tuple[str, ...] | None
    filters: tuple[tuple[tuple[str, str, Any], ...], ...]
