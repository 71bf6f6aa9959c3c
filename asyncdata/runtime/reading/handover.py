"""Reads that worker processes do: what the system has in memory of local files, copied straight into the arena.

    stage loop ──request──▶ worker: preadv(page cache ─▶ slab) ──▶ FOUND: the read is done
                                                              └──▶ else: the I/O loop does it, as any other

The process that iterates then neither copies these bytes nor waits for threads that do. A worker gets a read only where
it ends soon: when one has nothing else to do, or when all that workers do is as brief. So no read waits for a user's
function, nor for memory that such a function waits for. What is not in memory, or is wrong in any way, is left to
the storage layer, with its threads, limits and messages; after a few such reads the workers are asked less often.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from asyncdata.errors import WorkerDiedError
from asyncdata.memory.pickling import dumps
from asyncdata.storage.local.at_hand import FOUND, UNSUPPORTED, CopyAtHand, encode_request
from asyncdata.storage.local.reader import path_of
from asyncdata.storage.urls import scheme_of
from asyncdata.types import ObjectInfo
from asyncdata.workers.pool import WorkerPool

_LEAST_BYTES: Final = 1 << 18
"""Smaller reads cost less than a message to a worker."""

_MOST_PASSED: Final = 64
_NOT_ASKED: Final = b"not asked"


class Handover:
    """See the module's text; used on the stage loop.

    Args:
        pool: The worker processes, once there are any; then always the same.
    """

    def __init__(self, pool: Callable[[], WorkerPool | None]) -> None:
        self._pool = pool
        self._program = 0
        self._able = True
        self._misses = 0
        self._to_pass = 0
        self.reads = 0
        self.bytes = 0
        self.under_way = 0

    def request(self, source: ObjectInfo | str, position: int, offset: int, length: int) -> bytes | None:
        """The request to `run` for a read, or None: it is not for workers, or not now.

        Args:
            source: The object; one about which nothing is known is not for workers.
            position: Of the first byte in the object.
            offset: Of its place in the arena.
            length: Bytes.
        """
        if length < _LEAST_BYTES or not self._able or isinstance(source, str) or source.version is None:
            return None
        pool = self._pool()
        if pool is None or not pool.ends_brief_ones_soon or scheme_of(source.url) != "file":
            return None
        if self._to_pass:
            self._to_pass -= 1
            return None
        if "%" in source.url and source.url[:5].lower() == "file:":
            return None  # what it means may depend on the files there are, and this loop waits for no disk
        try:
            return encode_request(path_of(source.url), source.version, position, offset, length)
        except ValueError:
            return None  # a manifest may say anything: the read tells what is wrong with it

    async def run(self, request: bytes, length: int) -> bool:
        """Whether a worker had all the bytes at hand, and has copied them.

        Cancelled, it returns when no worker uses the memory any more.
        """
        self.under_way += 1
        try:
            answer = await self._ask(request)
        except Exception:  # noqa: BLE001 -- dead workers, a closed pool: the I/O loop reads instead
            answer = b""
        finally:
            self.under_way -= 1
        if answer == FOUND:
            self._misses = 0
            self.reads += 1
            self.bytes += length
            return True
        if answer == _NOT_ASKED:
            return False
        self._able = self._able and answer != UNSUPPORTED
        self._misses = min(2 * self._misses + 1, _MOST_PASSED)
        self._to_pass = self._misses
        return False

    async def _ask(self, request: bytes) -> bytes:
        pool = self._pool()
        if pool is None or not pool.ends_brief_ones_soon:
            return _NOT_ASKED  # that may have changed since the request was made
        if not self._program:
            self._program = pool.register(dumps(CopyAtHand()), brief=True)
        return await pool.run(self._program, request, grant=_needs_nothing, restart=_give_up)


def _give_up() -> None:
    """The worker died. Begun anew, a read might have to wait behind what takes long."""
    raise WorkerDiedError("a worker process died while it copied", attempts=1)


async def _needs_nothing(nbytes: int) -> tuple[int, int]:
    raise AssertionError(f"a copy asks for {nbytes} bytes of memory")
