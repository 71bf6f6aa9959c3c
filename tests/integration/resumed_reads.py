"""What a pipeline reads when it goes on from a state."""

from __future__ import annotations

import json
import random
from typing import Any

import asyncdata as ad
from fake_gcs import FakeGCS
from fake_gcs.journal import Entry


def read_after_resume(
    server: FakeGCS, dataset: ad.Dataset, options: ad.Options, count: int
) -> tuple[Any, list[Any], int]:
    """Takes so many elements, and goes on from their state in another Runtime: it, what was left, the bytes sent."""
    state, _, rest, requests = resumed(server, dataset, options, count)
    return state, rest, sum(entry.sent for entry in requests)


def resumed(
    server: FakeGCS, dataset: ad.Dataset, options: ad.Options, count: int
) -> tuple[Any, list[Any], list[Any], list[Entry]]:
    """Likewise: the state, what was left for the first iterator and for the one behind the state, and its requests."""
    with ad.Runtime(options), dataset.iterator() as it:
        for _ in range(count):
            next(it)
        state = json.loads(json.dumps(it.state_dict()))
        left = list(it)
    before = len(server.journal)
    with ad.Runtime(options):
        rest = list(dataset.iterator(state=state))
    return state, left, rest, [entry for entry in list(server.journal)[before:] if entry.range]


def resumed_often(dataset: ad.Dataset, draw: random.Random, most: int) -> list[Any]:
    """All elements, of iterators each of which begins at the state of the one before it."""
    found: list[Any] = []
    state, ended = None, False
    while not ended:
        with dataset.iterator(epoch=None if state else 2, state=state) as it:
            for _ in range(draw.randint(0, most)):
                element = next(it, None)
                if ended := element is None:
                    break
                found.append(element)
            state = json.loads(json.dumps(it.state_dict()))
    assert list(dataset.iterator(state=state)) == [], "behind the end"
    return found
