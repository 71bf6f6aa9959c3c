"""`snapshot`: what the first complete run of the input delivered, in a directory of shards.

    path/snapshot.json                the shards and what they are made of, written last: a directory without it holds
                                      no snapshot
    path/shard-0-3f2a91c0.blocks      elements of shard 0, as `formats.block_file` has them

The first run passes the input's elements on and writes each to the shard that the user's function names. Later runs
read what the user's function makes of a dataset of the shards.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from asyncdata.errors import DataError, refused
from asyncdata.memory.advance import EMPTY, Rows
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ArrayColumn, Column, ObjectColumn, RefColumn
from asyncdata.replacing import remove_left_behind, replacing
from asyncdata.runtime.stage import Stage, StageContext
from asyncdata.runtime.stages.store.freshness import Freshness
from asyncdata.runtime.stages.store.recording import Recorder
from asyncdata.runtime.stages.store.stored import FileWriter
from asyncdata.runtime.state.filling import Told
from asyncdata.runtime.state.marker import FirstMark, Marker
from asyncdata.runtime.user_code import UserFunction, call_rows
from asyncdata.types import Json

MANIFEST: Final = "snapshot.json"
_VERSIONS: Final = (1, 2)
"""The first one does not say what the elements are made of."""


class SnapshotStage(Stage):
    """See the module's docstring.

    Args:
        context: What every stage is given.
        path: The directory.
        shard_of: Names the shard of an element; None puts all into one.
        make_input: Makes the input's last stage; called when it is needed.
        make_reader: Makes the stage that reads the files of a complete snapshot.
        image_bytes: Size of the pieces that are written.
        codec: What they are packed by, or None.
        freshness: Compares what they are made of; None for what no plan was made of.
    """

    def __init__(
        self,
        context: StageContext,
        path: str,
        shard_of: Callable[..., int] | None,
        make_input: Callable[[], Stage],
        make_reader: Callable[[list[str]], Stage],
        image_bytes: int,
        codec: str | None = None,
        freshness: Freshness | None = None,
    ) -> None:
        super().__init__(context)
        self._codec = codec
        self._freshness = freshness
        self._path = Path(path)
        self._shard_of = None if shard_of is None else UserFunction(shard_of, context)
        self._make_input = make_input
        self._make_reader = make_reader
        self._threads = context.threads
        self._image_bytes = image_bytes
        self._run = secrets.token_hex(4)
        self._source: Stage | None = None
        self._writes = False
        self._kept = False
        self._shards: dict[int, Recorder] = {}
        self._files: dict[int, str] = {}
        self._error: Exception | None = None
        self._marker = Marker()
        self._first = FirstMark()
        self._ended = False

    async def _pull(self, limit: int) -> Block | None:
        if self._ended:
            return None
        if self._source is None:
            try:
                files, made_of = await self._threads.run(read_manifest, self._path)
            except OSError as error:
                raise refused("the snapshot cannot be read", error, url=str(self._path), stage=self.label) from error
            if self._freshness is not None:
                await (self._freshness.begin() if files is None else self._freshness.check(made_of))
            self._writes = files is None
            if self._writes:
                await self._threads.run(_remove_left_behind, self._path)
            if files is not None and self._freshness is not None and not self._freshness.fits():
                # Its order is another one than that of the elements which were delivered.
                files = None
            self._kept = files is not None
            self._source = (
                self._make_input() if files is None else self._make_reader([str(self._path / file) for file in files])
            )
            self.inputs = (self._source,)
        block = await (self._pass_on(self._source, limit) if self._writes else self._source.pull(limit))
        if block is None:
            return None
        passed = self._marker.rows
        if self._freshness is None:
            told = {}
        else:
            if self._writes and block.advance.ordered:
                self._first.feed(block.advance)
                self._freshness.begins(self._first.begins)
            told = Told(self._freshness.filling, self._kept).to_mark()
        return self._marker.mark(block, lambda row, state: {"at": passed + row, "input": state, **told})

    async def _pass_on(self, source: Stage, limit: int) -> Block | None:
        if self._error is not None:
            raise self._error
        await self._pause()
        if self._block is None:
            self._block = await source.pull(limit)
        block = self._block
        if block is None:
            await self._finish()
            return None
        if len(block):
            block = await self._write(block, limit)
        else:
            self._block = None
        # From here on the block is in no attribute where it would be found: nothing waits any more.
        return block

    async def _write(self, block: Block, limit: int) -> Block:
        """Writes the first rows of a block to their shards, and gives them on."""
        shards = [0] * min(len(block), limit)
        if self._shard_of is not None:
            shards, self._error = call_rows(self._shard_of, block, limit)
            if not shards:
                assert self._error is not None
                raise self._error
        by_shard: dict[int, list[int]] = {}
        for row, number in enumerate(shards):
            by_shard.setdefault(number, []).append(row)
        for number, some in by_shard.items():
            rows = np.array(some)
            columns = tuple(_some(column, rows) for column in block.columns)
            await self._recorder(number).keep(Block(block.structure, columns, block.origin[rows], EMPTY))
        self._block = None
        if len(shards) < len(block):
            block, self._block = block.split(len(shards))
        return block

    def _recorder(self, number: int) -> Recorder:
        recorder = self._shards.get(number)
        if recorder is None:
            name = f"shard-{number}-{self._run}.blocks"
            filling = FileWriter(self.context, self._path / name, self._codec)
            recorder = self._shards[number] = Recorder(filling, self._image_bytes)
            self._files[number] = name
        return recorder

    async def _finish(self) -> None:
        made_of = None if self._freshness is None else await self._freshness.finish()
        for number, recorder in list(self._shards.items()):
            await recorder.finish()
            del self._shards[number]
        files = [self._files[number] for number in sorted(self._files)]
        await self._threads.run(write_manifest, self._path, files, made_of, self.label)
        self._files = {}
        self._ended = True

    def prepare(self) -> None:
        """Whether the input is needed is known at the first pull."""

    @property
    def draining(self) -> bool:
        """When what is read drains."""
        return self._ended or (self._source is not None and super().draining)

    async def aclose(self) -> None:
        self._ended = True
        shards, self._shards = list(self._shards.values()), {}
        files, self._files = set(self._files.values()), {}
        async with contextlib.AsyncExitStack() as ends:  # of which each is run, also if another one fails
            ends.push_async_callback(super().aclose)
            if files:
                ends.callback(_remove_unnamed, self._path, files)
            for recorder in reversed(shards):
                ends.push_async_callback(recorder.discard)


def _some(column: Column, rows: Rows) -> Column:
    """Some rows, which still belong to the block."""
    if isinstance(column, RefColumn):
        return column.pick(rows)
    if isinstance(column, ArrayColumn):
        return ArrayColumn(column.array[rows])
    return ObjectColumn([column.items[row] for row in rows.tolist()])


def read_manifest(path: Path) -> tuple[list[str] | None, Any]:
    """The files of a complete snapshot, in order of shard, None when there is none; and what they are made of.

    Raises:
        DataError: There is something else in its place.
    """
    try:
        text = (path / MANIFEST).read_bytes()
    except FileNotFoundError:
        return None, None
    try:
        names = json.loads(text)
        files = [str(file) for file in names["files"]]
        known = names["version"] in _VERSIONS
        made_of = names.get("made_of")
    except (ValueError, KeyError, TypeError) as error:
        raise DataError("the list of a snapshot's shards cannot be read", url=str(path / MANIFEST)) from error
    if not known or any("/" in file or file in ("", ".", "..") for file in files):
        raise DataError("the list of a snapshot's shards is none of ours", url=str(path / MANIFEST))
    return files, made_of


def write_manifest(path: Path, files: list[str], made_of: Json, label: str) -> None:
    """Says that a snapshot is complete. Of two runs that write at the same time, the later one wins.

    Raises:
        SystemResourceError: It cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refused("the snapshot cannot be written", error, url=str(path), stage=label) from error
    with replacing(path / MANIFEST, "the snapshot", label) as file:
        file.write(json.dumps({"version": _VERSIONS[-1], "files": files, "made_of": made_of}).encode())


def _remove_unnamed(path: Path, files: set[str]) -> None:
    """Removes shards of a run that failed: nobody reads them, unless its manifest was written before that."""
    with contextlib.suppress(OSError, DataError):  # nobody knows then
        named, _ = read_manifest(path)
        for name in files.difference(named or ()):
            (path / name).unlink(missing_ok=True)


def _remove_left_behind(path: Path) -> None:
    """What killed runs left of their shards."""
    with contextlib.suppress(OSError):  # nothing is there yet
        remove_left_behind(path, r"shard-.*\.blocks")
