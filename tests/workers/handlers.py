"""What the workers of the tests run: the program is a function, called with everything the handler got."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Need = Callable[[int], tuple[int, int]]


def call_program(arena: memoryview, program: Any, payload: bytes, need: Need) -> bytes:
    """Runs a program that takes all there is."""
    reply: bytes = program(arena, payload, need)
    return reply


def call_on_payload(arena: memoryview, program: Any, payload: bytes, need: Need) -> bytes:
    """Runs a program that takes the payload alone."""
    reply: bytes = program(payload)
    return reply


def echo(arena: memoryview, program: Any, payload: bytes, need: Need) -> bytes:
    """Does nothing."""
    return payload


not_a_function = 3
