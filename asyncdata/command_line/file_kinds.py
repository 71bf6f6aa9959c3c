"""What a file is: its format and compression, by its first bytes, else by its name. Pure.

First bytes that belong to one format decide, because names lie. Damaged first bytes decide nothing, so that a damaged
``x.tfrecord`` is a damaged TFRecord file and not a file of an unknown format.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from asyncdata.dataset.dataset import Dataset
from asyncdata.dataset.files import (
    CsvDataset,
    JsonLinesDataset,
    ParquetDataset,
    TarDataset,
    TextLineDataset,
    TFRecordDataset,
    framed,
)
from asyncdata.errors import CompressionError
from asyncdata.formats import crc32c
from asyncdata.formats.compression import Decompressor
from asyncdata.formats.framing import Frames, Place, Refs
from asyncdata.formats.signatures import look_of
from asyncdata.formats.tar_headers import BLOCK, HeaderError, parse_header
from asyncdata.formats.tfrecord import HEADER_BYTES
from asyncdata.memory.structure import LEAF, Structure
from asyncdata.options import AUTOTUNE

HEAD_BYTES: Final = 1 << 16
"""So many first bytes are looked at."""

FORMATS: Final = ("tfrecord", "text", "csv", "jsonl", "tar", "parquet", "other")

_AT_ONCE: Final = 16
"""Files that are read at a time."""

_COMPRESSIONS: Final = {"gzip": "GZIP", "zlib": "ZLIB", "zstd": "ZSTD"}
_COMPRESSION_NAMES: Final = {
    ".gz": "GZIP",
    ".gzip": "GZIP",
    ".tgz": "GZIP",
    ".zlib": "ZLIB",
    ".zst": "ZSTD",
    ".zstd": "ZSTD",
}
_FORMAT_NAMES: Final = {
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".tfrec": "tfrecord",
    ".tar": "tar",
    ".tgz": "tar",
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".txt": "text",
}
_SHARD: Final = re.compile(r"-[0-9]{2,}-of-[0-9]{2,}$")


@dataclass(frozen=True, slots=True)
class FileKind:
    """How to read a file.

    Attributes:
        format: One of `FORMATS`.
        compression: ``"GZIP"``, ``"ZLIB"``, ``"ZSTD"`` or None.
        look: What a file of another format looks like; empty if like nothing that is known.
        columns: Names of the columns of CSV.
        delimiter: What separates them.
        header: Whether the first row names them.
    """

    format: str
    compression: str | None = None
    look: str = ""
    columns: tuple[str, ...] = ()
    delimiter: str = ","
    header: bool = False

    def __str__(self) -> str:
        name = self.look or self.format
        return name if self.compression is None else f"{name}, {self.compression}"

    def open(self, url: str) -> Dataset:
        """The records of one file; of a file of another format its bytes, piece by piece."""
        match self.format:
            case "tfrecord":
                return TFRecordDataset(url, self.compression)
            case "text":
                return TextLineDataset(url, self.compression)
            case "jsonl":
                return JsonLinesDataset(url, self.compression)
            case "tar":
                return TarDataset(url, self.compression)
            case "parquet":
                return ParquetDataset(url)
            case "csv":
                return CsvDataset(url, [b""] * len(self.columns), self.compression, self.header, self.delimiter)
            case _:
                return self._bytes_of(url)

    def _bytes_of(self, url: str) -> Dataset:
        return Dataset(framed("bytes", PieceFramer, url, self.compression, None))

    def records(self, urls: list[str], *, in_order: bool) -> Dataset:
        """The records of many files, several of which are read at a time."""
        return self._interleaved(self.open, urls, in_order=in_order)

    def pieces(self, urls: list[str]) -> Dataset:
        """All bytes of many files, whatever their format, in any order."""
        return self._interleaved(self._bytes_of, urls, in_order=False)

    @staticmethod
    def _interleaved(opener: Callable[[str], Dataset], urls: list[str], *, in_order: bool) -> Dataset:
        if len(urls) == 1:
            return opener(urls[0])
        names = Dataset.from_tensor_slices(np.array(urls, object))
        return names.interleave(
            opener, _AT_ONCE, 16 if in_order else 256, num_parallel_calls=AUTOTUNE, deterministic=in_order
        )


class PieceFramer:
    """Pieces of a file of any format, which no record begins or ends in."""

    structure: Structure = LEAF
    in_thread = False

    def frame(
        self, view: memoryview, start: int, stop: int, *, limit: int, remaining: int | None, last: bool, place: Place
    ) -> Frames:
        """See `Framer`: everything that is there is one piece."""
        del view, limit, remaining, last, place
        rows = np.array([[start, stop - start]] if stop > start else [], np.int64).reshape(-1, 2)
        return Frames(starts=rows[:, 0], values=(Refs(rows),), stop=stop)


def kind_of(name: str, head: bytes, size: int, chosen: str | None = None) -> FileKind:
    """What a file is.

    Args:
        name: Its URL.
        head: Its first `HEAD_BYTES` bytes, or all of them.
        size: Of the whole file.
        chosen: The format, if the user names it.
    """
    by_name, packed = _by_name(name)
    if _by_signature(head):
        packed = None  # a length may begin like a compressed file
    elif not _is_text(head) and look_of(head, file=False) in _COMPRESSIONS:
        packed = _COMPRESSIONS[look_of(head, file=False)]
    content = _decompressed(packed, head) if packed else head
    found = chosen or _by_signature(content) or by_name or _by_look(content)
    kind = FileKind(found, packed)
    if found == "csv":
        return _csv(kind, content, "\t" if ".tsv" in name.lower() else ",")
    if found == "other":
        return replace(kind, look=look_of(content, file=False) or ("" if size else "an empty file"))
    return replace(kind, compression=None) if found == "parquet" else kind


def first_record_bytes(kind: FileKind, head: bytes) -> int | None:
    """Length of the first record of a TFRecord file; None for other files."""
    content = _decompressed(kind.compression, head) if kind.compression else head
    return int.from_bytes(content[:8], "little") if _by_signature(content) == kind.format == "tfrecord" else None


def _by_name(name: str) -> tuple[str | None, str | None]:
    """Format and compression that a name claims."""
    parts = [f".{_SHARD.sub('', part)}" for part in name.rpartition("/")[2].lower().split(".")[1:]]
    packed = _COMPRESSION_NAMES.get(parts[-1]) if parts else None
    return next((_FORMAT_NAMES[part] for part in reversed(parts) if part in _FORMAT_NAMES), None), packed


def _by_signature(content: bytes) -> str | None:
    """The format that these first bytes are of beyond doubt, whatever the name."""
    if len(content) >= HEADER_BYTES and content[8:12] == crc32c.masked_checksum(content[:8]).to_bytes(4, "little"):
        return "tfrecord"
    if content.startswith(b"PAR1"):
        return "parquet"
    try:
        parse_header(content[:BLOCK].ljust(BLOCK, b"\0"))
    except HeaderError:
        return None
    return "tar"


def _by_look(content: bytes) -> str:
    """The format of a file whose name says nothing."""
    if not _is_text(content):
        return "other"
    try:
        return "jsonl" if isinstance(json.loads(content.partition(b"\n")[0]), dict) else "text"
    except ValueError:
        return "text"


def _is_text(content: bytes) -> bool:
    try:
        # Not final: a character may be cut off at the end.
        return bool(codecs.getincrementaldecoder("utf-8")().decode(content)) and b"\0" not in content
    except UnicodeDecodeError:
        return False


def _decompressed(kind: str, head: bytes) -> bytes:
    """The first bytes of a compressed file, as many as its first bytes hold."""
    room, filled = bytearray(HEAD_BYTES), 0
    decoder = Decompressor(kind)
    decoder.feed(head)
    try:
        while count := decoder.read_into(memoryview(room)[filled:]):
            filled += count
    except CompressionError:  # raised behind what could be decompressed
        pass
    return bytes(room[:filled])


def _csv(kind: FileKind, content: bytes, delimiter: str) -> FileKind:
    """The first row names the columns, if it holds no number and the second one does."""
    rows = csv.reader(io.StringIO(content.decode(errors="replace")), delimiter=delimiter)
    try:
        first, second = next(rows, []), next(rows, [])
    except csv.Error:
        return replace(kind, columns=("0",), delimiter=delimiter)
    header = any(map(_is_number, second)) and not any(map(_is_number, first))
    names = first if header else [str(number) for number in range(max(1, len(first)))]
    return replace(kind, columns=tuple(names), delimiter=delimiter, header=header)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
