"""`Offload`: anything that runs a blocking call off the loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Offload(Protocol):
    """Threads that blocking calls run in; see `workers.threads.ThreadPool`."""

    async def run(self, fn: Callable[..., T], /, *args: Any) -> T:
        """Calls ``fn(*args)`` in a thread and returns what it returns."""
