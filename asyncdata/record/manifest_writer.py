"""Writes manifests: stored listings for ``Dataset.from_manifest``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from asyncdata import arguments
from asyncdata.errors import ObjectNotFoundError, UnsupportedURLError
from asyncdata.options import Options, read_environment
from asyncdata.replacing import replacing
from asyncdata.storage.backends import check_storage
from asyncdata.storage.fetch import Fetcher
from asyncdata.storage.groups import gather_bounded
from asyncdata.storage.local.paths import path_of
from asyncdata.storage.manifest_files import format_entry
from asyncdata.storage.urls import scheme_of
from asyncdata.types import ObjectInfo

_GLOBS_AT_A_TIME: Final = 16


@arguments.suggests
def write_manifest(
    file_pattern: str | Sequence[str], path: str | os.PathLike[str], options: Options | None = None
) -> int:
    """Lists files and writes their URLs, sizes and versions, sorted by URL, one JSON object per line.

    The local file appears when it is complete, and replaces a file of the same name.

    Args:
        file_pattern: A URL or glob, or several, as for ``Dataset.list_files``.
        path: Path of the local file.
        options: ``storage``, ``retry`` and ``timeouts`` are used.

    Returns:
        The number of files in the manifest.

    Raises:
        ObjectNotFoundError: A pattern matches nothing.

    Example:
        >>> import tempfile, asyncdata as ad
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("a.rec", "b.rec"):
        ...         ad.TFRecordWriter(f"{folder}/{name}").close()
        ...     count = ad.write_manifest(f"{folder}/*.rec", f"{folder}/all.jsonl")
        ...     count, len(list(ad.Dataset.from_manifest(f"{folder}/all.jsonl")))
        (2, 2)
    """
    patterns = arguments.urls("file_pattern", file_pattern)
    chosen = options or Options()
    check_storage(chosen.storage)
    if scheme_of(name := arguments.url("path", path)) != "file":
        raise UnsupportedURLError("a manifest is written to local file systems only", url=name)
    if not patterns:
        raise ValueError("write_manifest needs at least one pattern")
    # A separate thread, so that it also works inside a running event loop.
    with ThreadPoolExecutor(1, thread_name_prefix="asyncdata-manifest") as thread:
        infos = thread.submit(asyncio.run, _list(patterns, chosen)).result()
    with replacing(Path(path_of(name)), "the manifest", "write_manifest") as file:
        file.writelines(f"{format_entry(info)}\n".encode() for info in infos)
    return len(infos)


async def _list(patterns: tuple[str, ...], options: Options) -> list[ObjectInfo]:
    fetcher = Fetcher(options, read_environment())
    try:
        groups = await gather_bounded(fetcher.glob, patterns, min(_GLOBS_AT_A_TIME, len(patterns)))
    finally:
        await fetcher.aclose()
    for pattern, infos in zip(patterns, groups, strict=True):
        if not infos:
            raise ObjectNotFoundError("no file matches the pattern", url=pattern)
    found = {info.url: info for infos in groups for info in infos}
    return [found[url] for url in sorted(found)]
