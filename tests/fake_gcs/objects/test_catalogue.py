"""Generations under concurrency."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from fake_gcs import FakeGCS
from fake_gcs.errors import GCSError
from fake_gcs.objects.catalogue import Catalogue
from fake_gcs.objects.memory import MemoryBacking
from fake_gcs.objects.preconditions import NOTHING, Preconditions
from tests.fake_gcs.asking import ask, send

WRITERS = 8


def test_one_of_many_that_want_to_create_wins(server: FakeGCS) -> None:
    """Of concurrent writers with ``ifGenerationMatch=0`` exactly one succeeds, and its bytes are there."""
    gate = threading.Barrier(WRITERS)

    def write(number: int) -> int:
        gate.wait()
        path = "/upload/storage/v1/b/bkt/o?uploadType=media&name=x&ifGenerationMatch=0"
        return ask(server, "POST", path, str(number).encode() * 100_000).status

    with ThreadPoolExecutor(WRITERS) as pool:
        statuses = list(pool.map(write, range(WRITERS)))
    assert sorted(statuses) == [200] + [412] * (WRITERS - 1)
    assert server.read("bkt", "x") == str(statuses.index(200)).encode() * 100_000


def test_increments_under_preconditions_are_not_lost(server: FakeGCS) -> None:
    """Read, add one, write if nobody wrote: with retries every increment counts."""
    server.put("bkt", "n", b"0")

    def add(_: int) -> None:
        while True:
            got = ask(server, "GET", "/bkt/n")
            condition = f"ifGenerationMatch={got.headers['x-goog-generation']}"
            path = f"/upload/storage/v1/b/bkt/o?uploadType=media&name=n&{condition}"
            if ask(server, "POST", path, str(int(got.body) + 1).encode()).status == 200:
                return

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(20)))
    assert server.read("bkt", "n") == b"20"


def test_the_last_of_many_writers_wins_whole(server: FakeGCS) -> None:
    """Without conditions the highest generation is live and is nobody's mixture."""
    bodies = [bytes([65 + number]) * 300_000 for number in range(WRITERS)]
    with ThreadPoolExecutor(WRITERS) as pool:
        answers = list(pool.map(lambda body: ask(server, "PUT", "/bkt/x", body), bodies))
    generations = [int(answer.headers["x-goog-generation"]) for answer in answers]
    assert len(set(generations)) == WRITERS
    assert server.read("bkt", "x") == bodies[generations.index(max(generations))]


def test_held_objects_stay(server: FakeGCS) -> None:
    """An object under hold can be neither deleted nor replaced."""
    server.put("bkt", "x", b"1", temporaryHold=True)
    assert ask(server, "DELETE", "/bkt/x").status == 403
    assert ask(server, "PUT", "/bkt/x", b"2").status == 403
    send(server, "PATCH", "/storage/v1/b/bkt/o/x", {"temporaryHold": False})
    assert ask(server, "DELETE", "/bkt/x").status == 204


def test_generations_only_grow() -> None:
    """However fast versions are made, each has a higher generation than all before it."""
    catalogue = Catalogue(MemoryBacking())
    catalogue.create_bucket("bkt")
    seen = []
    for number in range(1000):
        writer = catalogue.new_body()
        checksums = writer.checksum.value()
        name = f"o{number % 10}"
        seen.append(catalogue.commit("bkt", name, writer.finish(), checksums, {}, conditions=NOTHING).generation)
    assert seen == sorted(set(seen))


def test_a_refused_commit_changes_nothing() -> None:
    """After a failed condition the old version is live and the name list is as it was."""
    catalogue = Catalogue(MemoryBacking())
    catalogue.create_bucket("bkt")
    writer = catalogue.new_body()
    with pytest.raises(GCSError):
        catalogue.commit("bkt", "x", writer.finish(), None, {}, conditions=Preconditions(generation=7))
    assert catalogue.live_names("bkt", refresh=True)[0] == []
