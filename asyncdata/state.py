"""States of iterators: in files and objects, divided among other readers, and described.

Files and objects are written as a whole or not at all, and checked when they are read.

The list of files that an epoch was begun with is the same in all states of the epoch, and may be long. So it is a file
of its own beside the states, named by its digest and written once; states of few files contain it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import stat
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from asyncdata import arguments
from asyncdata.errors import ObjectNotFoundError, StateError, StorageError
from asyncdata.options import Options, read_environment
from asyncdata.replacing import replacing
from asyncdata.runtime.state.description import FileCursor, StateDescription, describe, diff
from asyncdata.runtime.state.division import split
from asyncdata.runtime.state.document import check
from asyncdata.runtime.state.json_codec import compressed
from asyncdata.runtime.state.listings import digest_of, lines_of
from asyncdata.storage.backends import check_storage
from asyncdata.storage.fetch import Fetcher
from asyncdata.storage.local.paths import path_of
from asyncdata.storage.urls import is_local

__all__ = ["FileCursor", "StateDescription", "describe", "diff", "load", "save", "split"]

T = TypeVar("T")

_MOST_BYTES: Final = 1 << 30
_INSIDE: Final = 4096
"""Characters of a listing that a state contains; a longer one lies beside it."""
_DIGEST: Final = re.compile("[0-9a-f]{32}")


def save(path_or_url: str | os.PathLike[str], state: Mapping[str, Any], options: Options | None = None) -> None:
    """Writes a state. What is there already is replaced as a whole: a crash leaves the old state or the new one.

    A local file is durable when this returns. An object is written with one request. A long list of input files is
    written once to a file beside the states, ``listing-….jsonl``.

    Args:
        path_or_url: A local path or a ``gs://`` URL.
        state: Of ``state_dict()``.
        options: For ``gs://``: ``storage``, ``retry`` and ``timeouts`` are used.

    Raises:
        StateError: It is no state.
        StorageError: The object cannot be written.
        SystemResourceError: The file cannot be written.

    Example:
        >>> import tempfile, asyncdata as ad
        >>> ds = ad.Dataset.range(5)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with ds.iterator() as it:
        ...         numbers = [int(next(it)) for _ in range(2)]
        ...         ad.state.save(f"{folder}/state.json", it.state_dict())
        ...     with ds.iterator(state=ad.state.load(f"{folder}/state.json")) as it:
        ...         [int(number) for number in it]
        [2, 3, 4]
    """
    url = arguments.url("path_or_url", path_or_url)
    check(state)
    beside = {_beside(url, digest): body for digest, body in _long_listings(state)}
    if beside:
        state = {**state, "listings": [_without_long_data(part) for part in state["listings"]]}
    try:
        data = json.dumps(state, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise StateError(f"the state was changed, and is not JSON-serializable any more: {error}", url=url) from None
    if is_local(url):
        _write_files(url, data, beside)
    else:
        _run(_write_objects(url, data, beside, options or Options()))


def load(path_or_url: str | os.PathLike[str], options: Options | None = None) -> dict[str, Any]:
    """Reads a state that `save` wrote.

    Args:
        path_or_url: Where it is: a local path, or a URL of any scheme that can be read.
        options: For URLs: ``storage``, ``retry`` and ``timeouts`` are used.

    Raises:
        ObjectNotFoundError: There is none, as before the first `save`. It is a FileNotFoundError, too.
        StorageError: It cannot be read.
        StateError: It is truncated, too large, of a later version, or no state at all.

    Example:
        >>> import asyncdata as ad
        >>> try:
        ...     state = ad.state.load("no-such-state.json")
        ... except FileNotFoundError:
        ...     state = None  # the first run begins at the beginning
        >>> it = ad.Dataset.range(5).iterator(state=state)
    """
    url = arguments.url("path_or_url", path_or_url)
    data = _read(url, options)
    try:
        state = json.loads(data)
    except (ValueError, RecursionError):
        message = f"not a saved state: the file is truncated or is not JSON ({len(data)} bytes)"
        raise StateError(message, url=url) from None
    try:
        check(state)
        for part in _listings_of(state):
            if "data" in part:
                lines_of(part)
            else:
                part["data"] = _read_listing(url, part.get("digest"), options)
    except StateError as error:
        error.complete(url=url)
        raise
    found: dict[str, Any] = state
    return found


# --- listings ----------------------------------------------------------------------------------------------------


def _listings_of(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = state.get("listings", [])
    if not isinstance(found, list) or not all(isinstance(part, dict) for part in found):
        raise StateError("the state is damaged: `listings` must be a list of objects")
    return found


def _long_listings(state: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Digests and lines of the listings that do not belong inside the state."""
    for part in _listings_of(state):
        if "data" in part:
            body = lines_of(part)
            if len(part["data"]) > _INSIDE:
                yield part["digest"], body


def _without_long_data(part: dict[str, Any]) -> dict[str, Any]:
    long = len(part.get("data", "")) > _INSIDE
    return {name: value for name, value in part.items() if name != "data" or not long}


def _beside(url: str, digest: str) -> str:
    folder, slash, _ = url.rpartition("/")
    return f"{folder}{slash}listing-{digest}.jsonl"


def _read_listing(url: str, digest: Any, options: Options | None) -> str:
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise StateError("the state is damaged: a listing has no digest")
    place = _beside(url, digest)
    try:
        body = _read(place, options)
    except ObjectNotFoundError:
        raise StateError("the list of the files that the epoch was begun with is not there", url=place) from None
    if digest_of(body) != digest:
        raise StateError("the list of the files that the epoch was begun with is damaged", url=place)
    return compressed(body)


# --- places ------------------------------------------------------------------------------------------------------


def _read(url: str, options: Options | None) -> bytes:
    return _read_file(url) if is_local(url) else _run(_read_object(url, options or Options()))


def _check_size(size: int, url: str) -> None:
    if size > _MOST_BYTES:
        raise StateError(f"not a saved state: {size} bytes, and a state has at most {_MOST_BYTES}", url=url)


def _write_files(url: str, data: bytes, beside: Mapping[str, bytes]) -> None:
    """The listings first: there is no state without its listings."""
    for place, body in [*beside.items(), (url, data)]:
        path = Path(path_of(place))
        if place == url or _size_of(path) != len(body):
            with replacing(path, "the state", "state.save") as file:
                file.write(body)


def _size_of(path: Path) -> int:
    """Bytes of a file; negative where none can be seen, and whoever writes it finds out why."""
    try:
        found = path.stat()
    except OSError:
        return -1
    return found.st_size if stat.S_ISREG(found.st_mode) else -1


def _open_at_once(path: str, flags: int) -> int:
    """Does not wait until somebody writes to a FIFO."""
    return os.open(path, flags | os.O_NONBLOCK)


def _read_file(url: str) -> bytes:
    try:
        with open(path_of(url), "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise StateError("not a saved state: this is not a regular file", url=url)
            _check_size(os.fstat(file.fileno()).st_size, url)
            return file.read()
    except FileNotFoundError:
        raise ObjectNotFoundError("there is no such state", url=url) from None
    except OSError as error:
        raise StorageError(f"the state cannot be read: {error.strerror}", url=url) from error


def _run(work: Coroutine[Any, Any, T]) -> T:
    """In a separate thread, so that it also works inside a running event loop."""
    with ThreadPoolExecutor(1, thread_name_prefix="asyncdata-state") as thread:
        return thread.submit(asyncio.run, work).result()


async def _write_objects(url: str, data: bytes, beside: Mapping[str, bytes], options: Options) -> None:
    check_storage(options.storage)
    fetcher = Fetcher(options, read_environment())
    try:
        for place, body in beside.items():
            try:
                known = (await fetcher.stat(place)).size
            except ObjectNotFoundError:
                known = -1
            if known != len(body):
                await fetcher.write(place, body)
        await fetcher.write(url, data)
    finally:
        await fetcher.aclose()


async def _read_object(url: str, options: Options) -> bytes:
    check_storage(options.storage)
    fetcher = Fetcher(options, read_environment())
    try:
        info = await fetcher.stat(url)
        _check_size(info.size, url)
        data = bytearray(info.size)
        await fetcher.read(info, 0, memoryview(data))
        return bytes(data)
    finally:
        await fetcher.aclose()
