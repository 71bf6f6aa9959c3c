"""States in files and objects: as a whole or not at all, and nothing else is taken for one."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import signal
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import asyncdata as ad
from asyncdata.runtime.state.document import with_checksum
from fake_gcs import FakeGCS, Fault, Profile, Rule
from tests.patience import LIMIT_S
from tests.samples import samples

KILLS = samples(16, 400)


def state_of(count: int, total: int = 100) -> dict[str, Any]:
    """A state behind so many elements."""
    with ad.Dataset.range(total).shuffle(50).with_options(ad.Options(seed=1)).iterator() as it:
        for _ in range(count):
            next(it)
        return it.state_dict()


def options(server: FakeGCS) -> ad.Options:
    """For a bucket of a server."""
    retry = ad.RetryOptions(initial_delay_s=0.001, max_delay_s=0.01)
    return ad.Options(storage={"gs": {"endpoint_url": server.url, "token": "anon"}}, retry=retry)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    """From a path, a text or a file:// URL; a later state replaces it, and nothing else is left behind."""
    for place in (tmp_path / "a.json", str(tmp_path / "a.json"), f"file://{tmp_path}/a.json"):
        for count in (7, 30):
            ad.state.save(place, state_of(count))
            assert ad.state.load(place) == state_of(count)
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


async def test_inside_a_running_loop(tmp_path: Path) -> None:
    """Objects are written and read in a thread of their own."""
    with FakeGCS(buckets=["bucket"]) as server:
        ad.state.save("gs://bucket/run 1/état.json", state_of(5), options(server))
        assert ad.state.load("gs://bucket/run 1/état.json", options(server)) == state_of(5)
    ad.state.save(tmp_path / "a", state_of(6))
    await asyncio.sleep(0)
    assert ad.state.load(tmp_path / "a") == state_of(6)


def test_an_object_is_written_with_one_request() -> None:
    """Which is repeated when the server fails; the object is the old state until one succeeds."""
    unwell = Rule(fault=Fault(kind="status", status=503), operations="storage.objects.insert", nth=(1, 2))
    profile = Profile(rules=(unwell,))
    with FakeGCS(buckets=["bucket"], profile=profile) as server:
        ad.state.save("gs://bucket/state", state_of(9), options(server))
        asked = [(entry.operation, entry.status) for entry in server.journal]
        assert asked == [("storage.objects.insert", 503)] * 2 + [("storage.objects.insert", 200)]
        assert ad.state.load("gs://bucket/state", options(server)) == state_of(9)
        with pytest.raises(ad.StorageError, match="gs://missing/state"):
            ad.state.save("gs://missing/state", state_of(9), options(server))
        # More than what aiohttp sends as it is without a warning.
        large = with_checksum({**state_of(9), "more": "x" * (3 << 20)})
        ad.state.save("gs://bucket/large", large, options(server))
        assert ad.state.load("gs://bucket/large", options(server)) == large


def test_other_stores_are_refused() -> None:
    """By name; nothing is written anywhere."""
    with pytest.raises(ad.UnsupportedURLError, match=r"local paths and to gs://"):
        ad.state.save("memory://x/state", state_of(1))


def damaged(data: bytes) -> dict[str, tuple[bytes, str]]:
    """Contents that are no state, and what is said of them."""
    later = json.dumps({**json.loads(data), "asyncdata_state": 99}).encode()
    return {
        "empty": (b"", "truncated"),
        "cut": (data[: len(data) // 2], "truncated"),
        "one byte less": (data[:-1], "truncated"),
        "text": (b"not a state", "not JSON"),
        "binary": (bytes(range(256)), "not JSON"),
        "deep": (b"[" * 100_000, "not JSON"),
        "another": (b'{"step": 3}', "this is not a state"),
        "list": (b"[1, 2]", "this is not a state"),
        "later": (later, "version 99"),
    }


@pytest.mark.parametrize("what", damaged(b"{}"))
def test_what_is_no_state(what: str, tmp_path: Path) -> None:
    """Each is an error of one kind that names the file."""
    path = tmp_path / "checkpoint"
    ad.state.save(path, state_of(20))
    content, message = damaged(path.read_bytes())[what]
    path.write_bytes(content)
    with pytest.raises(ad.StateError, match=message) as caught:
        ad.state.load(path)
    assert str(path) in str(caught.value)


def _list_of(listing: dict[str, Any]) -> bytes:
    return zlib.decompress(base64.b64decode(listing["data"]))


def test_a_changed_list_of_files_is_no_state(tmp_path: Path) -> None:
    """Which files an epoch was begun with is as much a part of the state as its position."""
    path = tmp_path / "state"
    for number in range(3):
        (tmp_path / f"{number}.txt").write_bytes(b"text")
    dataset = ad.Dataset.list_files(f"{tmp_path}/*.txt", seed=1)
    with dataset.iterator() as it:
        next(it)
        state = it.state_dict()
    ad.state.save(path, state)
    content = path.read_bytes()
    (listing,) = state["listings"]
    for place in range(content.index(b'"listings"'), content.index(b'"checksum"')):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            (loaded,) = ad.state.load(path)["listings"]
        except ad.StateError:
            continue
        # Bits that fill up the last character, or the last byte of what is compressed, mean nothing.
        assert _list_of(loaded) == _list_of(listing)
    changes = ({"of": "other"}, {"digest": "0" * 32}, {"data": None}, {"data": listing["data"][:-4]}, {"more": 1})
    for wrong in ([], [listing] * 2, *([{**listing, **change}] for change in changes)):
        with pytest.raises(ad.StateError, match="damaged"):
            dataset.iterator(state={**state, "listings": wrong})
        with pytest.raises(ad.StateError, match="damaged"):
            ad.state.save(path, {**state, "listings": wrong})
    without = {key: value for key, value in state.items() if key != "listings"}
    with pytest.raises(ad.StateError, match="lists of files"):
        dataset.iterator(state=without)


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    """It is refused before it is read; so is a directory, and what is not there can be told from both."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate((1 << 30) + 1)
    with pytest.raises(ad.StateError, match=f"{(1 << 30) + 1} bytes") as caught:
        ad.state.load(path)
    assert caught.value.url == str(path)
    with pytest.raises(ad.StorageError, match="directory"):
        ad.state.load(tmp_path)
    with pytest.raises(FileNotFoundError, match="no-such"):
        ad.state.load(tmp_path / "no-such")
    with pytest.raises(ad.SystemResourceError, match="no-such"):
        ad.state.save(tmp_path / "no-such" / "state", state_of(1))


def test_a_list_of_files_that_has_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody can know whether it is there already, whoever writes it says so."""
    monkeypatch.setattr("asyncdata.state._INSIDE", 0)
    (tmp_path / "a.txt").write_bytes(b"text")
    with ad.Dataset.list_files(f"{tmp_path}/*.txt", seed=1).iterator() as it:
        next(it)
        state = it.state_dict()
    with pytest.raises(ad.SystemResourceError, match=r"the state cannot be written.*listing-"):
        ad.state.save(tmp_path / ("x" * 300) / "state", state)
    ad.state.save(tmp_path / "state", state)
    assert ad.state.load(tmp_path / "state") == state


@pytest.mark.parametrize("wrong", [{}, {"weights": 1}, [1], None, {"asyncdata_state": 99}])
def test_what_cannot_be_saved(wrong: Any, tmp_path: Path) -> None:
    """A dictionary of the trainer's is found out now, not after the crash; the file stays as it was."""
    path = tmp_path / "state"
    ad.state.save(path, state_of(3))
    with pytest.raises(ad.StateError):
        ad.state.save(path, wrong)
    with pytest.raises(ad.StateError, match="JSON"):
        ad.state.save(path, {**state_of(4), "weights": {1, 2}})
    assert ad.state.load(path) == state_of(3)


def test_secrets_are_not_saved(tmp_path: Path) -> None:
    """Those of URLs and of storage options, wherever in the plan they are."""
    secret = "s3cr3t-Wörd"
    url = f"https://me:{secret}@host/data.tfrecord?X-Goog-Signature={secret}#{secret}"
    storage = {"https": {"headers": {"Authorization": f"Bearer {secret}"}}}
    several = [
        ad.Dataset.list_files([url, f"gs://b/*?sig={secret}"]),
        ad.TFRecordDataset(url),
        ad.TFRecordDataset([url, url]),
        ad.TextLineDataset(url),
        ad.Dataset.from_tensors(url),
        ad.Dataset.from_tensor_slices([url, url]),
        ad.Dataset.from_manifest(url),
        ad.Dataset.range(3).interleave(lambda _: ad.TFRecordDataset(url)).shuffle(3),
    ]
    for number, dataset in enumerate(several):
        it = dataset.with_options(ad.Options(storage=storage)).iterator()
        ad.state.save(tmp_path / str(number), it.state_dict())
        it.close()
        text = (tmp_path / str(number)).read_text(encoding="utf-8")
        assert "s3cr3t" not in text
        assert ad.state.load(tmp_path / str(number))["position"] == 0


KILLED = """
import os, signal, sys, threading
import asyncdata as ad
from asyncdata.runtime.state.document import VERSION, with_checksum

path, how, count = sys.argv[1], sys.argv[2], int(sys.argv[3])

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def after(frame, event, argument):
    global count
    if event == "line":
        count -= 1
        if count < 0:
            die()
    return after

def race():
    for _ in range(count * 2000):
        pass
    die()

states = [
    with_checksum({"asyncdata_state": VERSION, "number": number, "rest": "x" * number * 50_000}) for number in (1, 2, 3)
]
for state in states:
    ad.state.save(path, state)  # everything is imported then
if how == "line":
    sys.settrace(after)
else:
    threading.Thread(target=race, daemon=True).start()
while True:
    for state in states:
        ad.state.save(path, state)
"""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_at_any_moment(tmp_path: Path) -> None:
    """Behind any line of the code, or at any time while the system writes: the file is one of the states, whole."""
    script = tmp_path / "killed.py"
    script.write_text(KILLED, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(Path(ad.__file__).parents[1])}

    def attempt(number: int) -> int:
        places = random.Random(number)
        # Some 650 lines make a save.
        how, count = ("line", places.randrange(2000)) if number % 2 else ("time", places.randrange(1, 200))
        path = tmp_path / f"state {number}"
        done = subprocess.run(
            [sys.executable, str(script), str(path), how, str(count)], env=environment, check=False, timeout=LIMIT_S
        )
        assert done.returncode == -signal.SIGKILL
        state = ad.state.load(path)
        assert len(state["rest"]) == state["number"] * 50_000, f"killed by {how} {count}"
        return int(state["number"])

    with ThreadPoolExecutor(4) as threads:
        found = set(threads.map(attempt, range(KILLS)))
    assert len(found) > 1, "all of them were killed at one moment"
