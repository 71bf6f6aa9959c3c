"""Whole requests, for tests that talk to one connection."""

from __future__ import annotations

from asyncdata.storage.http1.client import build_frame
from asyncdata.storage.urls import Origin


def build_get(origin: Origin, target: str, headers: tuple[tuple[str, str], ...], start: int, length: int) -> bytes:
    """The head of a GET of the bytes ``[start, start + length)``."""
    return build_frame(origin, target, headers) % (start, start + length - 1)
