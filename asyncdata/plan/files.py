"""Nodes that read one file each, a kind per format. Many files are an `Interleave` of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from asyncdata.plan.node import Node


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextLines(Node):
    """The lines of a text file, as ``bytes``; those of white space are left out if `skip_blank`."""

    name: ClassVar[str] = "TextLineDataset"

    url: str
    compression: str | None
    skip_blank: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FixedLengthRecords(Node):
    """Records of one length between a header and a footer, as ``bytes``."""

    name: ClassVar[str] = "FixedLengthRecordDataset"

    url: str
    compression: str | None
    record_bytes: int
    header_bytes: int
    footer_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WholeFile(Node):
    """The object as one element: its bytes, or its URL and its bytes."""

    name: ClassVar[str] = "FileDataset"

    url: str
    compression: str | None
    with_url: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JsonLines(Node):
    """The values of a file of JSON texts, one per line, as Python objects."""

    name: ClassVar[str] = "JsonLinesDataset"

    url: str
    compression: str | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CsvRows(Node):
    """The rows of a CSV file as tuples, or as dicts where the columns have names.

    `dtypes` (numpy's names, or ``"bytes"``) and `defaults` (None: required) are those of the columns that are wanted;
    `selected` their numbers, None for all there are; `names` the keys of a dict, found in the file's header if
    `by_header`.
    """

    name: ClassVar[str] = "CsvDataset"

    url: str
    compression: str | None
    dtypes: tuple[str, ...]
    defaults: tuple[Any, ...]
    header: bool
    delimiter: bytes
    quotes: bool
    na_value: bytes
    selected: tuple[int, ...] | None
    names: tuple[str, ...] | None = None
    by_header: bool = False


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
