"""The source of each element: the numbers in its provenance, and their names."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from asyncdata.errors import AsyncdataError
from asyncdata.memory.advance import Rows
from asyncdata.plan.transformations import Map
from asyncdata.redaction import redact_url
from asyncdata.workers.failure import annotate


@dataclass(frozen=True, slots=True)
class NamedSource:
    """One shard, or one source that is not a file.

    Attributes:
        name: URL, or the stage's label.
        version: Generation or ETag of a shard.
        is_file: Whether `name` is a URL.
    """

    name: str
    version: str | None
    is_file: bool


_MOST_NAMES: Final = 1 << 16
_UNNAMED: Final = NamedSource("a dataset", None, is_file=False)


class LyingFiles:
    """Files whose elements can be read by themselves.

    Args:
        numbers: Of the sources.

    Attributes:
        numbers: Of the sources.
        again: Of those of them whose elements come several times.
        maps: What is made of the elements where datasets of one file each are: by the place of these in the plan the
            steps of the first one. Files whose elements pass others are not among these.
    """

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self.numbers = set(numbers)
        self.again: set[int] = set()
        self.maps: dict[str, Sequence[Map]] = {}

    @property
    def is_bare(self) -> bool:
        """Whether elements are as they are in the files."""
        return not any(self.maps.values())


class SourceTable:
    """Names behind source numbers; one per pipeline.

    A source's number follows from its place in the plan and the element that opened it, so it is the same in every
    run and every process, whatever the order of opening. Files are remembered; of the inner datasets that are none,
    which may be as many as there are elements, only the first ones are known by name.

    Attributes:
        lying: Files whose elements can be read by themselves, by how many elements they were made of.
    """

    def __init__(self) -> None:
        self._sources: dict[int, NamedSource] = {}
        self._moved: set[int] = set()
        self.lying: defaultdict[int, LyingFiles] = defaultdict(LyingFiles)

    def __len__(self) -> int:
        return len(self._sources)

    def __getitem__(self, number: int) -> NamedSource:
        return self._sources.get(number, _UNNAMED)

    def _named(self, number: int) -> NamedSource:
        """The source that a number was given, or moved from. Only for words: elements behind a cache lie in no file."""
        numbers = (number, *(number ^ by for by in tuple(self._moved)))
        return next((self._sources[each] for each in numbers if each in self._sources), _UNNAMED)

    def version(self, number: int) -> str | None:
        """The version of a file."""
        return self[number].version

    @staticmethod
    def number(path: tuple[int | str, ...], name: str) -> int:
        """The number of a source at this place of the plan."""
        digest = hashlib.blake2b(repr((path, name)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1

    def add(self, path: tuple[int | str, ...], name: str, version: str | None = None, *, is_file: bool = False) -> int:
        """The number of a source that was just opened at this place of the plan."""
        number = self.number(path, name)
        if is_file or len(self._sources) < _MOST_NAMES:
            self._sources[number] = NamedSource(name, version, is_file)
        return number

    def move(self, path: tuple[int | str, ...]) -> int:
        """What the numbers of sources are moved by (exclusive or), where the same elements are used at this place."""
        by = self.number(path, "a use")
        if len(self._moved) < _MOST_NAMES:
            self._moved.add(by)
        return by

    def place(self, origin: Rows) -> dict[str, Any]:
        """Where an element lies, as the errors' keyword arguments."""
        number, record, _, offset = origin.tolist()
        source = self._named(number)
        if not source.is_file:
            return {"record": record}
        return {"url": source.name, "version": source.version, "record": record, "offset": offset}

    def locate(self, error: BaseException, stage: str, origin: Rows) -> None:
        """Says of an error which element it is about, in a note, and in the attributes if it has them."""
        if isinstance(error, AsyncdataError):
            error.complete(stage=stage, **self.place(origin))
        annotate(error, f"in {stage}, {self.name_element(origin)}")

    def locate_rows(self, error: BaseException, stage: str, origins: Rows) -> None:
        """Likewise of an error that is about one of several elements, or about all of them."""
        if len(origins) == 1:
            self.locate(error, stage, origins[0])
        elif len(origins):
            annotate(error, f"in {stage}, {self.name_element(origins[0])} to {self.name_element(origins[-1])}")

    def name_element(self, origin: Rows) -> str:
        """An element in words."""
        number, record, _, offset = origin.tolist()
        source = self._named(number)
        if not source.is_file:
            return f"element {record} of {source.name}"
        return f"record {record} of {redact_url(source.name)} (byte offset {offset}, version {source.version})"
