"""A consumer that is killed at any moment, and goes on from the state it wrote last, uses every element once."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import asyncdata as ad
from fake_gcs import FakeGCS, Fault, Profile, Rule
from tests.faults.programs import Program, program
from tests.integration.shards import shard_bytes
from tests.integration.test_exactly_once import Draw, leaves
from tests.samples import SOAK, samples

_BODY = """
import json
from tests.integration.test_exactly_once import Draw, leaves, spin

def commit(used, state):
    with open({path!r} + ".new", "w") as file:
        json.dump([used, state], file)
    os.replace({path!r} + ".new", {path!r})

used, state = json.load(open({path!r})) if os.path.exists({path!r}) else [[], None]
{make}
with dataset.iterator(state=state) as it:
    commit(used, it.state_dict())
    say("used")
    for element in it:
        used += [list(leaf) for leaf in leaves([element]).elements()]
        commit(used, it.state_dict())
        say("used")
    commit(used, it.state_dict())
say("end")
"""


def life(source: str, uses: int, draw: random.Random) -> bool:
    """Kills the program once it has used so many elements, and some time after that; whether it came to the end."""
    with program(source) as running:
        ended = False
        for _ in range(uses):
            ended = heard(running) == "end"
            if ended:
                break
        if not ended:
            time.sleep(draw.uniform(0.0, 0.03))
        running.popen.kill()
    return ended


def heard(running: Program) -> str:
    """The program's next word."""
    assert running.popen.stdout is not None
    word = running.popen.stdout.readline().strip()
    if word not in {"used", "end"}:
        running.popen.kill()
        raise AssertionError(running.popen.communicate()[1][-4000:])
    return word


def all_lives(path: Path, make: str, kills: int, seed: int, most_uses: int) -> Counter[tuple[int, int]]:
    """What all lives together have used."""
    draw = random.Random(seed)
    source = _BODY.format(path=str(path), make=make)
    for _ in range(kills):
        if life(source, draw.randint(0, most_uses), draw):
            break
    assert life(source, 1 << 30, draw)
    used: list[Any] = json.loads(path.read_text())[0]
    return Counter((place, number) for place, number in used)


def put_numbers(server: FakeGCS, shards: int, count: int) -> None:
    """Shards of so many records each, in a bucket that stalls now and then."""
    for shard in range(shards):
        numbers = range(count * shard, count * (shard + 1))
        server.put("bucket", f"{shard:03}.tfrecord", shard_bytes(b"%d" % number for number in numbers))
    stall = Fault(kind="stall", seconds=(0.1, 1.0), after_fraction=(0.0, 1.0))
    server.profile = Profile(name="stalls", rules=(Rule(fault=stall, rate=0.05),))


@pytest.mark.timeout(7200 if SOAK else 600)
def test_every_record_once_per_epoch(tmp_path: Path) -> None:
    """From a store that stalls, through two steps without an order and a shuffle, in two epochs."""
    shards = samples(8, 40)
    with FakeGCS(buckets=["bucket"]) as server:
        put_numbers(server, shards, 200)
        make = f"""
storage = {{"gs": {{"endpoint_url": {server.url!r}, "token": "anon"}}}}
dataset = ad.Dataset.list_files("gs://bucket/*.tfrecord", shuffle=False)
dataset = dataset.interleave(ad.TFRecordDataset, 4, num_parallel_calls=4, deterministic=False).shuffle(1000)
dataset = dataset.map(lambda record: spin(int(record)), 4, executor="thread", deterministic=False).batch(32).repeat(2)
dataset = dataset.with_options(ad.Options(storage=storage))
"""
        used = all_lives(tmp_path / "state", make, samples(4, 200), 1, 4)
    assert used == Counter({(0, number): 2 for number in range(200 * shards)})


@pytest.mark.parametrize("seed", range(samples(1, 30)))
def test_random_pipelines(seed: int, tmp_path: Path) -> None:
    """With `take`, `enumerate`, `zip`, `filter` and the rest of what has a state."""
    drawn = Draw(seed, [])
    make = f"dataset = Draw({seed}, []).make()"
    used = all_lives(tmp_path / "state", make, 3, seed, 6)
    expected = leaves(list(drawn.make(deterministic=True)))
    if drawn.is_exact:
        assert used == expected, drawn
    else:
        assert sum(used.values()) <= sum(expected.values()) or "filter" in repr(drawn), drawn


_READER = """
storage = {{"gs": {{"endpoint_url": {url!r}, "token": "anon"}}}}
dataset = ad.Dataset.list_files("gs://bucket/*.tfrecord", shuffle=True, seed=1).interleave(ad.TFRecordDataset, 3)
dataset = dataset.shard({count}, {index}).map(int, 2, executor="thread", deterministic={ordered}).shuffle(40)
dataset = dataset.batch({size}).with_options(ad.Options(storage=storage, seed=1))
"""


def readers(folder: Path, makes: list[str], states: list[Any], draw: random.Random, most: int) -> Counter[Any]:
    """Lives of some readers at the same time, of which each is killed at a random moment; what they have used.

    Args:
        folder: Where they leave it.
        makes: Their pipelines.
        states: Theirs in turn; then those that each wrote last.
        draw: Draws the moments.
        most: Elements that one of them uses at the most; 0: all that are left.
    """
    paths = [folder / f"reader-{index}" for index in range(len(makes))]
    with ExitStack() as stack:
        running: list[Program] = []
        for path, make, state in zip(paths, makes, states, strict=True):
            path.write_text(json.dumps([[], state]))
            running.append(stack.enter_context(program(_BODY.format(path=str(path), make=make))))
        left = [draw.randint(1, most) if most else 1 << 30 for _ in makes]
        while any(left):
            index = draw.choice([index for index, uses in enumerate(left) if uses])
            left[index] = 0 if heard(running[index]) == "end" else left[index] - 1
            if not left[index]:
                running[index].popen.kill()
    used: Counter[Any] = Counter()
    for index, path in enumerate(paths):
        heard_of, states[index] = json.loads(path.read_text())
        used.update(map(tuple, heard_of))
    return used


@pytest.mark.sampled
@pytest.mark.timeout(7200 if SOAK else 600)
@pytest.mark.parametrize("ordered", [True, False])
def test_readers_that_are_killed_and_divided(ordered: bool, tmp_path: Path) -> None:
    """N readers are killed at random, their states become those of M readers, and so on: each record is used once."""
    draw = random.Random(int(ordered))
    records = samples(70, 5000)
    with FakeGCS(buckets=["bucket"]) as server:
        put_numbers(server, 7, records)

        def makes(count: int) -> list[str]:
            fields = {"url": server.url, "count": count, "ordered": ordered, "size": draw.randint(1, 32)}
            return [_READER.format(index=index, **fields) for index in range(count)]

        states: list[Any] = [None] * draw.randint(2, samples(3, 16))
        used = readers(tmp_path, makes(len(states)), states, draw, samples(6, 60))
        for _ in range(samples(1, 20)):
            states = ad.state.split(states, draw.randint(1, samples(3, 16)))
            used += readers(tmp_path, makes(len(states)), states, draw, samples(6, 60))
        states = ad.state.split(states, 2)
        used += readers(tmp_path, makes(2), states, draw, 0)
    assert used == Counter({(0, number): 1 for number in range(7 * records)})
