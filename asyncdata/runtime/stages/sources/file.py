"""The frame of stages that read one file: its account, its order, its name in errors, and its end where it fails."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from asyncdata.errors import AsyncdataError, StateError
from asyncdata.memory.accounts import Account
from asyncdata.memory.advance import Mark, Rows
from asyncdata.memory.block import Block
from asyncdata.runtime.error_policy import Guard
from asyncdata.runtime.stage import Stage, StageContext
from asyncdata.storage.changed import object_resized, same_content
from asyncdata.types import ObjectInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file, and what its reading is a part of.

    Attributes:
        url: The file.
        account: Charged with what is received, until it is handed on.
        downstream: The account that is charged then.
        order: Place among its siblings, for who is served first.
        any_order: Whether the stage below takes rows of this file and its like as they come.
        version: What the epoch was begun with, if the state that it continues says so.
        size: What a manifest says, if it says no version.
    """

    url: str
    account: Account
    downstream: Account
    order: int
    any_order: bool = False
    version: str | None = None
    size: int | None = None


def refuse_changed(url: str, version: str | None, before: str | None) -> None:
    """Compares the version of an object with the one in a state, if that is known.

    Raises:
        StateError: They differ.
    """
    if before is not None and not same_content(url, version, before):
        raise StateError(
            f"the object has changed since the state was taken: version {version} here, {before} in the state",
            url=url,
            version=version,
        )


def refuse_resized(info: ObjectInfo, said: int | None) -> None:
    """Compares the size of an object that was opened with what a manifest says, if it says no version.

    Raises:
        ObjectChangedError: They differ.
    """
    if said is not None and info.size != said:
        raise object_resized(ObjectInfo(url=info.url, size=said), info.size, start=None, found=info.version)


class FileStage(Stage):
    """See the module's docstring.

    Args:
        context: What every stage is given.
        file: What is read.
        reserve_bytes: What its account needs while it is being read.
    """

    def __init__(self, context: StageContext, file: SourceFile, reserve_bytes: int) -> None:
        super().__init__(context)
        self.url = file.url
        self._file = file
        self._budget = context.budget
        self._account = file.account
        self._reserve_bytes = reserve_bytes
        self._number: int | None = None
        self._from_record = 0
        self._version = file.version
        self._started = False
        self._closed = False

    @abstractmethod
    async def _next_block(self, limit: int) -> Block | None:
        """The next rows, None at the end; may wait."""

    async def _pull(self, limit: int) -> Block | None:
        if self._closed:
            return None
        block = None if self._from_record else self._pull_ready(limit)
        if block is not None:
            return block
        self._begin()
        self._budget.wait(self._account)
        try:
            block = await self._next_block(limit)
            while self._from_record and block is not None and not len(block := self._behind(block)):
                block = await self._next_block(limit)
            return block
        except AsyncdataError as error:
            self._complete(error)
            raise
        finally:
            self._budget.wait(self._account, False)

    def pull_ready(self, limit: int) -> Block | None:
        """See `Stage`; nothing while what was delivered before is passed over."""
        return None if self._from_record else super().pull_ready(limit)

    def restore(self, mark: Mark) -> None:
        """See `Stage`; a file that cannot be read from anywhere is read from its beginning."""
        self._from_record, self._version = mark["record"], mark["version"] or self._version

    def _behind(self, block: Block) -> Block:
        """What a block has of the records that were not delivered before."""
        if not len(block):
            return block
        passed = int(np.searchsorted(block.origin[:, 1], self._from_record))
        if passed < len(block):
            self._from_record = 0
        if passed:
            head, block = block.split(passed)
            head.release()
        return block

    def _begin(self) -> None:
        """The file is one of those that are read in turn."""
        if not self._started:
            self._started = True
            self._budget.reserve(self._account, self._reserve_bytes)
            if self._file.any_order:
                self._budget.begin(self._account)

    def _complete(self, error: AsyncdataError) -> None:
        """Says where an error happened."""
        error.url = error.url or self.url
        error.stage = error.stage or self.label

    def _enter(self, info: ObjectInfo | None) -> None:
        """The file is open: elements can be named by it."""
        if self._number is None:
            version = info.version if info is not None else None
            refuse_changed(self.url, version, self._version)
            if info is not None:
                refuse_resized(info, self._file.size)
            self._number = self.context.sources.add(self.context.path, self.url, version, is_file=True)

    def _origin(self, first: int, offsets: Rows) -> Rows:
        """Provenance of consecutive records from number `first` on, which begin at these offsets."""
        assert self._number is not None
        origin = np.zeros((len(offsets), 4), np.int64)
        origin[:, 0] = self._number
        origin[:, 1] = np.arange(first, first + len(offsets))
        origin[:, 3] = offsets
        return origin

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            await super().aclose()
            self._budget.close(self._account)


class GuardedStage(Stage):
    """Passes on what its source delivers, and ends where the source fails in a way that ends one shard only.

    Args:
        context: What every stage is given.
        source: Reads the shard.
        guard: Counts; one for all shards of one step.
        size: Of the object, if it is known by then.
    """

    def __init__(self, context: StageContext, source: Stage, guard: Guard, size: Callable[[], int | None]) -> None:
        super().__init__(context, (source,))
        self._source = source
        self._guard = guard
        self._size = size
        self._ended = False

    def restore(self, mark: Mark) -> None:
        """See `Stage`."""
        self._source.restore(mark)

    async def _pull(self, limit: int) -> Block | None:
        if self._ended:
            return None
        try:
            block = await self._source.pull(limit)
        except Exception as error:
            if not self._guard.ends_shard(error):
                raise
            over = self._guard.end_shard(error, self._size)
            if over is not None:
                raise over from error
            self._ended = True
            return None
        if block is not None:
            self._guard.passed(len(block))
        return block

    def _pull_ready(self, limit: int) -> Block | None:
        block = None if self._ended else self._source.pull_ready(limit)
        if block is not None:
            self._guard.passed(len(block))
        return block

    @property
    def draining(self) -> bool:
        """Also when it has ended early."""
        return self._ended or super().draining
