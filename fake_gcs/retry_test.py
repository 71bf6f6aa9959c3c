"""Google's Retry Test API: a client registers which of its next calls shall fail, and how.

    POST /retry_test {"instructions": {"storage.objects.get": ["return-503", "stall-for-1s-after-128K"]}}
    -> {"id": ..., "instructions": ..., "completed": false}

Requests that carry the id in ``x-retry-test-id`` use up the instructions of their operation, one each.
"""

from __future__ import annotations

import math
import re
import secrets
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fake_gcs.errors import GCSError, invalid
from fake_gcs.faults import Fault

_MAX_TESTS = 10_000
_UNITS = {"": 1, "B": 1, "K": 1024, "M": 1024 * 1024}

_FORMS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"return-(\d{3})-after-(\d{1,9})([BKM]?)\Z"), "status-after"),
    (re.compile(r"return-(\d{3})\Z"), "status"),
    (re.compile(r"return-broken-stream-final-chunk-after-(\d{1,9})([BKM]?)\Z"), "truncate-after"),
    (re.compile(r"return-broken-stream-after-(\d{1,9})([BKM]?)\Z"), "truncate-after"),
    (re.compile(r"return-broken-stream\Z"), "truncate"),
    (re.compile(r"return-reset-connection\Z"), "reset"),
    (re.compile(r"return-reset-connection-after-(\d{1,9})([BKM]?)\Z"), "reset-after"),
    (re.compile(r"stall-for-(\d{1,5})s-after-(\d{1,9})([BKM]?)\Z"), "stall-after"),
    (re.compile(r"stall-at-(\d{1,9})([BKM]?)\Z"), "stall-at"),
)


def parse_instruction(text: str) -> Fault:
    """The fault that an instruction asks for.

    Raises:
        GCSError: 400 for an instruction that is not known.
    """
    for pattern, form in _FORMS:
        if match := pattern.match(text):
            words = match.groups()
            try:
                return _fault(form, words)
            except ValueError as error:
                raise invalid(f"Invalid retry test instruction {text!r}: {error}") from None
    raise invalid(f"Unknown retry test instruction: {text[:100]!r}")


def _fault(form: str, words: tuple[str, ...]) -> Fault:
    if form == "status":
        return Fault(kind="status", status=int(words[0]))
    if form == "status-after":
        return Fault(kind="status", status=int(words[0]), after_bytes=int(words[1]) * _UNITS[words[2]])
    if form == "truncate":
        return Fault(kind="truncate", after_bytes=0)
    if form == "reset":
        return Fault(kind="reset")
    if form == "stall-after":
        return Fault(kind="stall", seconds=float(words[0]), after_bytes=int(words[1]) * _UNITS[words[2]])
    size = int(words[0]) * _UNITS[words[1]]
    if form == "stall-at":
        return Fault(kind="stall", after_bytes=size)
    return Fault(kind="reset" if form == "reset-after" else "truncate", after_bytes=size)


@dataclass(slots=True)
class RetryTest:
    """One registered test.

    Attributes:
        key: Its id.
        pending: What is left to happen, by operation.
        transport: ``HTTP``; nothing else is spoken here.
    """

    key: str
    pending: dict[str, deque[tuple[str, Fault]]]
    transport: str = "HTTP"

    @property
    def completed(self) -> bool:
        """Whether every instruction was used up."""
        return not any(self.pending.values())

    def as_resource(self) -> dict[str, Any]:
        """As the API shows it."""
        instructions = {name: [text for text, _ in queue] for name, queue in self.pending.items()}
        return {
            "id": self.key,
            "instructions": instructions,
            "transport": self.transport,
            "completed": self.completed,
        }


class RetryTests:
    """All registered tests."""

    def __init__(self) -> None:
        self._tests: dict[str, RetryTest] = {}

    def create(self, instructions: Mapping[str, Any], transport: str = "HTTP") -> RetryTest:
        """Register a test; 400 when it can not be understood."""
        if not instructions:
            raise invalid("A retry test needs instructions.")
        pending: dict[str, deque[tuple[str, Fault]]] = {}
        for operation, texts in instructions.items():
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise invalid(f"The instructions of {operation[:100]} must be a list of texts.")
            pending[operation] = deque((text, parse_instruction(text)) for text in texts)
        if len(self._tests) >= _MAX_TESTS:
            del self._tests[next(iter(self._tests))]
        test = RetryTest(secrets.token_hex(16), pending, transport)
        self._tests[test.key] = test
        return test

    def get(self, key: str) -> RetryTest:
        """A test by its id; 404 when there is none."""
        test = self._tests.get(key)
        if test is None:
            raise GCSError(404, f"Retry test not found: {key[:100]}")
        return test

    def delete(self, key: str) -> None:
        """Forget a test; 404 when there is none."""
        self.get(key)
        del self._tests[key]

    def list(self) -> list[RetryTest]:
        """All tests, oldest first."""
        return list(self._tests.values())

    def take(self, key: str, operation: str, start: int = 0, stop: float = math.inf) -> Fault | None:
        """The next fault for an operation of a test, or None.

        A request that uploads the bytes from ``start`` to ``stop`` of an object does not use up the fault whose place
        lies behind them. Where it lies in them, the fault counts from ``start``.
        """
        test = self._tests.get(key)
        queue = test.pending.get(operation) if test else None
        if not queue:
            return None
        fault = queue[0][1]
        if fault.after_bytes is not None:
            if fault.after_bytes >= stop:
                return None
            fault = replace(fault, after_bytes=max(0, fault.after_bytes - start))
        queue.popleft()
        return fault
