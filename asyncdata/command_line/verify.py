"""``asyncdata verify``: reads files to their ends and names every place where they are wrong.

Records are read by the library's own pipelines under an error policy, so that what is found here is what a training run
would stumble over, checksums and lengths included.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from asyncdata.command_line.file_kinds import FileKind
from asyncdata.command_line.findings import Finding, FindingsList
from asyncdata.command_line.located_files import LocatedFile, LocatedFiles, add_file_arguments, locate
from asyncdata.command_line.result_printer import FAILED, FOUND, OK, ResultPrinter, size
from asyncdata.dataset.dataset import Dataset
from asyncdata.errors import AsyncdataError, MissingPackageError
from asyncdata.observe.progress import Display
from asyncdata.options import Options
from asyncdata.wording import grouped

HELP: Final = "check every length and checksum of files"

_EVERY_S: Final = 0.5
"""Seconds between two looks at what was found."""
_WITHOUT_CHECKS: Final = ("text", "other")
_SMALL_BYTES: Final = 4096
_SMALL_AT_ONCE: Final = 256
"""Small records are taken by the batch, which costs a third of the time."""
_MOST_LISTED: Final = 10_000
"""The most findings that a document lists; as text all of them are printed."""


class Check:
    """One run of the command.

    Args:
        options: Of the storage and the memory.
        results: Prints the findings.
        display: Where progress is shown.
    """

    def __init__(self, options: Options, results: ResultPrinter, display: Display) -> None:
        self._options = dataclasses.replace(options, check_object_crc=True)
        self._results = results
        self._display = display
        self.records = 0
        self.bytes = 0
        self.found = 0
        self.wrong_files: set[str] = set()
        self.listed: list[Finding] = []
        self.unreadable: list[str] = []

    def all(self, located: LocatedFiles) -> None:
        """Checks files of all kinds."""
        for error in located.unreadable:
            self._unread(str(error))
        for kind, files in located.by_kind().items():
            urls = [each.info.url for each in files]
            if kind.format in _WITHOUT_CHECKS:
                self._pass(kind.pieces(urls), _none)
                continue
            records = kind.records(urls, in_order=False)
            if small := all((each.first_record_bytes or _SMALL_BYTES) < _SMALL_BYTES for each in files):
                records = records.batch(_SMALL_AT_ONCE)
            self._pass(records, len if small else _one)
            rest = _not_read_whole(kind, files)
            if rest:
                self._pass(FileKind("other").pieces(rest), _none)

    def _pass(self, dataset: Dataset, count: Callable[[Any], int]) -> None:
        """Reads one dataset to its end."""
        with FindingsList() as findings:
            iterator = dataset.with_options(dataclasses.replace(self._options, errors=findings.policy)).iterator()
            try:
                with iterator:
                    due = time.monotonic() + _EVERY_S
                    for element in iterator:
                        self.records += count(element)
                        if time.monotonic() >= due:
                            self._tell(findings.new())
                            due = time.monotonic() + _EVERY_S
                        self._display.show(self.records, self._so_far)
            except MissingPackageError:
                raise
            except AsyncdataError as error:
                self._unread(f"{error}. This ended the check of all files of the same kind")
            stats = iterator.stats()
            self.bytes += int(stats.fetch["bytes"])
            self._tell(findings.new())
            if lost := stats.skipped.lines_lost:
                self.found += lost
                self._results.say(f"{grouped(lost, 'more finding')}, which came faster than they could be listed")

    def _so_far(self) -> str:
        return f"records, {grouped(self.found, 'finding')}"

    def _tell(self, findings: list[Finding]) -> None:
        for finding in findings:
            if finding.of_storage:
                self._unread(str(finding))
                continue
            self.found += 1
            self.wrong_files.add(finding.url)
            if len(self.listed) < _MOST_LISTED:
                self.listed.append(finding)
            self._display.clear()
            self._results.say(str(finding))

    def _unread(self, text: str) -> None:
        self.unreadable.append(text)
        self._display.clear()
        self._results.complain(text)


def _one(_record: Any) -> int:
    return 1


def _none(_piece: Any) -> int:
    """Pieces of bytes are no records."""
    return 0


def _not_read_whole(kind: FileKind, files: list[LocatedFile]) -> list[str]:
    """The files whose checksum the store knows, of formats whose readers pass over parts of a file."""
    if kind.format not in ("tar", "parquet"):
        return []
    return [each.info.url for each in files if each.info.crc32c is not None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that only this command has."""
    add_file_arguments(parser)


def run(arguments: argparse.Namespace, options: Options, results: ResultPrinter, display: Display) -> int:
    """Checks the files and tells what is wrong with them."""
    located = asyncio.run(locate(arguments.url, options, display, arguments.format))
    check = Check(options, results, display)
    check.all(located)
    display.close()
    files = len(located.files)
    summary = f"{grouped(files, 'file')}, {grouped(check.records, 'record')}, {size(check.bytes)} read: "
    wrong = f"{grouped(check.found, 'finding')} in {grouped(len(check.wrong_files), 'file')}"
    good = "nothing wrong" if not check.unreadable else "nothing wrong in what was read" if files else "nothing checked"
    unknown = [each.info for each in located.by_kind().get(FileKind("other"), []) if each.info.crc32c is None]
    if unknown:
        first = f"{grouped(len(unknown), 'file')} of unknown format, the first {unknown[0].url}"
        results.say(f"{first}: only read, because nothing in it can be checked")
    results.say(summary + (wrong if check.found else good))
    results.document(
        files=files,
        formats=dict(Counter(str(each.kind) for each in located.files)),
        records=check.records,
        bytes=check.bytes,
        object_checksums=sum(each.info.crc32c is not None for each in located.files),
        findings=[dataclasses.asdict(finding) for finding in check.listed],
        findings_in_all=check.found,
        unreadable=check.unreadable,
    )
    return FAILED if check.unreadable else FOUND if check.found else OK
