"""The interface between asyncdata and a store, and the specification from which a reader is opened.

A reader makes *one* attempt per call; the Fetcher handles retries, limits and the order of requests. A reader belongs
to the event loop on which it was opened, and is closed there.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

from asyncdata.errors import StorageError
from asyncdata.options import RetryOptions, TimeoutOptions
from asyncdata.storage.attempt import Attempt
from asyncdata.storage.proxies import Proxies, check_proxy
from asyncdata.storage.reader_promises import check_info
from asyncdata.types import ObjectInfo


@runtime_checkable
class RangeReader(Protocol):
    """URL to bytes, one attempt at a time.

    The law of buffers: on return, raise or cancellation of a read, nothing writes into its buffer any more. A class
    that derives from this one has an `open_read` that is `stat` and a read.
    """

    async def stat(self, url: str) -> ObjectInfo:
        """Size and version of one object.

        Raises:
            ObjectNotFoundError: There is none.
        """
        ...

    async def glob(self, pattern: str) -> list[ObjectInfo]:
        """The objects that match, sorted by URL; empty where none does.

        Wildcards are ``*`` and ``?`` (never across ``/``), ``[..]``, ``{a,b}`` and ``**``. A pattern without any is
        that one object.
        """
        ...

    async def read_into(self, info: ObjectInfo, start: int, buffer: memoryview, attempt: Attempt | None = None) -> int:
        """Fills ``buffer`` with the bytes ``[start, start + len(buffer))`` of the version in ``info``.

        Args:
            info: The object and its version.
            start: Offset of the first byte.
            buffer: Where the bytes go.
            attempt: Limits of this attempt, and where to tell what was seen; a reader without a wire ignores it.

        Returns:
            ``len(buffer)``.

        Raises:
            TransientStorageError: The attempt failed; of a ``ReadFailedError``, ``filled`` leading bytes are valid.
            ObjectChangedError: The object is not the version in ``info`` any more, or has another size.
            StorageError: Anything else that another attempt would not mend.
        """
        ...

    async def open_read(self, url: str, buffer: memoryview, attempt: Attempt | None = None) -> tuple[ObjectInfo, int]:
        """Reads the beginning of an object about which nothing is known; the answer serves as ``stat``.

        Returns:
            What the object is, and how many bytes were written: ``min(size, len(buffer))``.
        """
        info = check_info(await self.stat(url), "stat")
        return info, await self.read_into(info, 0, buffer[: min(info.size, len(buffer))], attempt)

    async def aclose(self) -> None:
        """Closes connections, files and threads. Reads must have ended before."""
        ...


class RunOfFiles(NamedTuple):
    """Whole files that were read one after the other into one buffer, without a gap.

    Attributes:
        infos: The files that were read: the first ones of those that were asked for.
        need: Size of the next one, which did not fit; 0: it must be read by itself, which says why; None: there was no
            time for it, or there is none.
        seconds: What it took.
    """

    infos: Sequence[ObjectInfo]
    need: int | None
    seconds: float


@runtime_checkable
class RunReader(Protocol):
    """What a reader can do, too, that opens a file in less time than it takes to ask for it."""

    async def read_run(self, urls: Sequence[str], versions: Sequence[str | None], buffer: memoryview) -> RunOfFiles:
        """Reads small files, as far as they fit, for a few milliseconds at the most.

        Args:
            urls: The files.
            versions: What they must be, where that is known.
            buffer: Where the bytes go.
        """
        ...


@runtime_checkable
class ObjectWriter(Protocol):
    """What a reader can do, too, whose store takes a whole object in one request."""

    async def write(self, url: str, data: bytes) -> None:
        """Makes the object, or replaces it; nobody sees a part of it."""
        ...


def option_of_names(options: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What an option holds whose value is a dict; empty if it is not set.

    Raises:
        StorageError: It is no dict.
    """
    given = options.get(name) or {}
    if not isinstance(given, Mapping):
        raise StorageError(f"the storage option {name!r} must be a dict of names and values")
    return {str(key): value for key, value in given.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSpec:
    """How to open a reader, here or in another process. Picklable; its repr names option keys, never their values.

    Attributes:
        scheme: The URL scheme it serves; also the key under which one reader is shared.
        backend: Makes the reader of this; or the module whose ``open_reader`` does, imported when it is opened, so
            that a program pays only for the backends it uses.
        options: What ``Options.storage`` holds for the scheme.
        timeouts: Limits of one attempt.
        max_connections: Upper limit of connections per host, or of threads where a backend works with these.
        retry: For what a reader has to try again by itself: a page of a long listing.
        proxies: What the environment says about HTTP proxies.
    """

    scheme: str
    backend: str | Callable[[ReaderSpec], RangeReader]
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    timeouts: TimeoutOptions = field(default_factory=TimeoutOptions)
    max_connections: int = 32
    retry: RetryOptions = field(default_factory=RetryOptions)
    proxies: Proxies = field(default_factory=Proxies)

    def proxies_with(self, option: object) -> Proxies:
        """The proxies, with the option ``proxy`` of the scheme, which outranks the environment."""
        chosen = check_proxy(option)
        return self.proxies if chosen is None else Proxies(always=chosen)

    def open(self) -> RangeReader:
        """Makes the reader; to be called on the running loop that will use it.

        Raises:
            StorageError: What was made is no reader, or was not made.
        """
        backend = self.backend
        reader: RangeReader = (
            importlib.import_module(backend).open_reader(self) if isinstance(backend, str) else backend(self)
        )
        if not isinstance(reader, RangeReader):
            raise StorageError(
                f"the backend of {self.scheme}:// made {type(reader).__name__} instead of a reader with the methods of "
                "asyncdata.storage.RangeReader"
            )
        return reader
