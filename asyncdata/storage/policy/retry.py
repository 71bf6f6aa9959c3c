"""What is retried, and when. Pure: the caller provides the clock and the random number.

The law is full jitter: the n-th delay is uniform in [0, min(max_delay, initial * 2^(n-1))]. A server that names a time
(``Retry-After``) gets no request before it. No attempt starts after the deadline, and there are never more than
``max_attempts``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from asyncdata.errors import TransientStorageError
from asyncdata.options import RetryOptions

RETRYABLE: Final[tuple[type[BaseException], ...]] = (TransientStorageError,)
"""The whole table: everything else in the tree means that the same request would fail in the same way."""

_MAX_DOUBLINGS: Final = 60


def is_retryable(error: BaseException) -> bool:
    """Whether another attempt at the same request may succeed."""
    return isinstance(error, RETRYABLE)


def next_delay_s(
    error: BaseException, *, attempt: int, elapsed_s: float, options: RetryOptions, draw: Callable[[], float]
) -> float | None:
    """Seconds to wait before the next attempt, or None to give up.

    Args:
        error: What ended the last attempt.
        attempt: How many attempts were made; at least 1.
        elapsed_s: Time since the first one began.
        options: The limits.
        draw: A uniform random number in [0, 1).
    """
    if not is_retryable(error) or attempt >= options.max_attempts:
        return None
    ceiling = min(options.max_delay_s, options.initial_delay_s * 2.0 ** min(attempt - 1, _MAX_DOUBLINGS))
    delay = ceiling * draw()
    if isinstance(error, TransientStorageError) and error.retry_after_s is not None:
        delay = max(delay, error.retry_after_s)
    return delay if elapsed_s + delay <= options.deadline_s else None
