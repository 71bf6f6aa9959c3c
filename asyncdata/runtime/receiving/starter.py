"""Starts receiving processes, and ends those that their owner could not."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Final

from asyncdata.memory.arena import Arena
from asyncdata.runtime.receiving.receiver import ReceiverProcess
from asyncdata.storage.receivers import Receiver
from asyncdata.workers.channel import has_seqpacket
from asyncdata.workers.spawn import Launched, Spawner, SpawnPlan, absolute_path, launch

_PROGRAM: Final = "asyncdata.runtime.receiving.receiver_process"


class ReceiverStarter:
    """One for each Runtime.

    Args:
        arena: What the processes map.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._spawner = Spawner("asyncdata-receivers")
        self._numbers = itertools.count(1)
        self._begun: list[ReceiverProcess] = []

    async def begin(self, lost: Callable[[Receiver], None]) -> ReceiverProcess:
        """Starts a process, which takes reads when it is ``ready``. On the loop of the reads.

        Args:
            lost: Called when it has ended by itself.

        Raises:
            OSError: It cannot be started.
        """
        plan = SpawnPlan(
            executable=sys.executable,
            arena_fd=self._arena.fd,
            arena_bytes=self._arena.nbytes,
            handler="",
            path=absolute_path(sys.path, os.getcwd()),
            stream=not has_seqpacket(),
            pidfd=True,
            program=_PROGRAM,
        )
        name = f"asyncdata-io-{next(self._numbers) + 1}"
        launched = await self._spawner.submit(partial(launch, plan, name), Launched.discard)
        receiver = ReceiverProcess(self._arena, launched, lost)
        self._begun.append(receiver)
        return receiver

    def descriptors(self) -> list[int]:
        """What a forked child must not use."""
        return [descriptor for receiver in self._begun for descriptor in receiver.descriptors()]

    def kill(self) -> None:
        """Ends what still runs, at once."""
        for receiver in self._begun:
            receiver.kill()

    def close(self) -> None:
        """Ends the thread that started them, behind all of them."""
        self._spawner.close()
