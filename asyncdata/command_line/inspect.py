"""``asyncdata inspect``: what files are, and what is in their first records."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from asyncdata.command_line.file_kinds import FileKind
from asyncdata.command_line.findings import Finding, FindingsList
from asyncdata.command_line.located_files import LocatedFile, add_file_arguments, locate
from asyncdata.command_line.result_printer import FAILED, FOUND, OK, ResultPrinter, size
from asyncdata.command_line.summaries import FieldSummaries, Sizes
from asyncdata.errors import AsyncdataError, CorruptRecordError
from asyncdata.formats.example.scalar import features_of
from asyncdata.formats.signatures import look_of
from asyncdata.observe.progress import Display
from asyncdata.options import Options
from asyncdata.wording import grouped

HELP: Final = "report the format of files, and the sizes and contents of their records"

_IMAGES: Final[Mapping[str, str]] = {"a JPEG image": "jpg", "a PNG image": "png", "a GIF": "gif"}
_MOST_FINDINGS: Final = 100
_END: Final = object()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that only this command has."""
    add_file_arguments(parser)
    limit = "read at most this many records of each kind of file (default: 1000; 0: all)"
    parser.add_argument("--limit", type=_count, default=1000, metavar="N", help=limit)
    images = "write JPEG, PNG and GIF images that are in the records to this directory"
    parser.add_argument("--save-images", type=Path, metavar="DIR", help=images)


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of records")
    return min(int(text), sys.maxsize)


class _Kind:
    """The files of one kind, and what is known about them."""

    def __init__(self, kind: FileKind, files: list[LocatedFile]) -> None:
        self.kind = kind
        self.urls = [each.info.url for each in files]
        self.file_sizes = Sizes()
        for each in files:
            self.file_sizes.add(max(0, each.info.size))
        self.record_sizes = Sizes()
        self.fields = FieldSummaries()
        self.records = 0
        self.is_all = False
        self.examples: bool | None = None if kind.format == "tfrecord" else False
        self.findings: list[Finding] = []

    def add(self, record: Any) -> Any:
        """One more record; returns what is in it."""
        self.records += 1
        if isinstance(record, bytes):
            self.record_sizes.add(len(record))
        if self.examples is not False:
            record = self._as_example(record)
        elif self.kind.format == "csv":
            record = dict(zip(self.kind.columns, map(_number, record), strict=True))
        if not isinstance(record, bytes):
            self.fields.add(record)
        return record

    def _as_example(self, record: bytes) -> Any:
        try:
            features = features_of(record)
        except CorruptRecordError:
            features = {}
        # The first record decides: any bytes may look like an Example without features.
        self.examples = bool(features) if self.examples is None else self.examples
        return features if self.examples else record

    @property
    def estimate(self) -> int | None:
        """About how many records all files have."""
        if self.is_all or self.kind.compression or not self.record_sizes.total or self.kind.format != "tfrecord":
            return None
        stored = self.record_sizes.total + 16 * self.record_sizes.count
        return round(self.file_sizes.total * self.record_sizes.count / stored)

    def document(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {
            "format": self.kind.format,
            "compression": self.kind.compression,
            "look": self.kind.look or None,
            "files": len(self.urls),
            "first_file": self.urls[0],
            "bytes": self.file_sizes.total,
            "file_bytes": self.file_sizes.figures(),
            "records": self.records,
            "is_all": self.is_all,
            "records_estimated": self.estimate,
            "record_bytes": self.record_sizes.figures(),
            "examples": bool(self.examples),
            "fields": {name: summary.figures() for name, summary in self.fields.summaries.items()},
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
        }

    def lines(self) -> Iterator[str]:
        """The same for people."""
        more = "" if len(self.urls) == 1 else f" and {grouped(len(self.urls) - 1, 'more file')}"
        yield f"{self.urls[0]}{more}"
        yield f"  format   {self.kind}{', tf.train.Example' if self.examples else ''}"
        yield f"  size     {size(self.file_sizes.total)}{_figures(self.file_sizes)}"
        if self.kind.format != "other":
            about = "" if self.estimate is None else f"; about {self.estimate:,} in all"
            first = "" if self.is_all else f", the first{about}"
            yield f"  records  {self.records:,}{first}{_figures(self.record_sizes)}"
        width = max((len(name) for name in self.fields.summaries), default=0)
        for name, summary in self.fields.summaries.items():
            yield f"    {name:{width}}  {_words(summary.figures(), self.records)}"
        if self.fields.left_out:
            yield f"    and more fields, in {self.fields.left_out:,} places"
        for finding in self.findings:
            yield f"  {finding}"


def _figures(sizes: Sizes) -> str:
    figures = sizes.figures()
    if figures is None or sizes.count == 1:
        return ""
    return f" ({', '.join(f'{name} {size(value)}' for name, value in figures.items())})"


def _words(figures: Mapping[str, Any], records: int) -> str:
    shapes = figures["shapes"]
    parts = ["/".join(figures["dtypes"]) or "no values"]
    if shapes is None:
        parts.append("many shapes")
    elif shapes and shapes != [[]]:
        parts.append("shape " + " or ".join(f"({', '.join(map(str, shape))})" for shape in shapes))
    if figures.get("min_bytes") is not None:
        parts.append(f"{size(figures['min_bytes'])} to {size(figures['max_bytes'])}")
    elif figures.get("min") is not None:
        parts.append(f"{figures['min']:.6g} to {figures['max']:.6g}")
    parts += figures["looks"]
    if figures["records"] < records:
        parts.append(f"in {figures['records']:,} of them")
    return ", ".join(parts)


def _number(value: bytes) -> Any:
    """A CSV value as a number, if it is one."""
    for kind in (np.int64, np.float64):
        try:
            return kind(value)
        except (ValueError, OverflowError):
            continue
    return value


class _Images:
    """Writes the images that are in records, named by numbers alone: names in the data decide no path."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._left = limit or None
        self.written = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise NotADirectoryError(f"--save-images needs a directory, and {folder} is none") from None

    def save(self, value: Any) -> None:
        """Writes the images among the values of a record."""
        if isinstance(value, Mapping):
            for each in value.values():
                self.save(each)
        elif isinstance(value, np.ndarray) and value.dtype.kind == "O":
            for each in value.ravel().tolist():
                self.save(each)
        elif isinstance(value, bytes) and self._left != 0:
            ending = _IMAGES.get(look_of(value[:16], file=False))
            if ending is not None:
                (self._folder / f"{self.written:06d}.{ending}").write_bytes(value)
                self.written += 1
                self._left = None if self._left is None else self._left - 1


def run(arguments: argparse.Namespace, options: Options, results: ResultPrinter, display: Display) -> int:
    """Looks into the files and tells what is there."""
    located = asyncio.run(locate(arguments.url, options, display, arguments.format))
    images = None if arguments.save_images is None else _Images(arguments.save_images, arguments.limit)
    unreadable = [str(error) for error in located.unreadable]
    kinds = []
    for kind, files in located.by_kind().items():
        one = _Kind(kind, files)
        kinds.append(one)
        if kind.format != "other":
            unreadable += _read(one, arguments.limit, options, images, display)
        display.clear()
        for line in one.lines():
            results.say(line)
    display.close()
    if images is not None:
        results.say(f"{grouped(images.written, 'image')} in {arguments.save_images}")
    for text in unreadable:
        results.complain(text)
    results.document(
        kinds=[one.document() for one in kinds],
        images_written=None if images is None else images.written,
        unreadable=unreadable,
    )
    return FAILED if unreadable else FOUND if any(one.findings for one in kinds) else OK


def _read(one: _Kind, limit: int, options: Options, images: _Images | None, display: Display) -> list[str]:
    """Reads records; returns why files could not be read."""
    unreadable = []
    with FindingsList() as findings:
        records = one.kind.records(one.urls, in_order=True)
        iterator = records.with_options(dataclasses.replace(options, errors=findings.policy)).iterator()
        try:
            with iterator:
                wanted = itertools.islice(iterator, limit) if limit else iterator
                for record in wanted:
                    content = one.add(record)
                    if images is not None:
                        images.save(content)
                    display.show(one.records, lambda: f"records of {grouped(len(one.urls), 'file')}")
                one.is_all = not limit or one.records < limit or next(iterator, _END) is _END
        except AsyncdataError as error:
            unreadable.append(str(error))
        for finding in findings.new():
            if finding.of_storage:
                unreadable.append(str(finding))
            elif len(one.findings) < _MOST_FINDINGS:
                one.findings.append(finding)
    return unreadable
