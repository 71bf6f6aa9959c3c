"""The quarantine list of a run that is killed and resumed: a line for every failure, with the same id in every life."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import asyncdata as ad
from fake_gcs import FakeGCS
from tests.faults.test_killed_consumers import life
from tests.samples import samples

_BODY = """
import json

def picky(record):
    if int(record) % 7 == 3:
        raise ValueError("no")
    return int(record)

def commit(state):
    with open({path!r} + ".new", "w") as file:
        json.dump(state, file)
    os.replace({path!r} + ".new", {path!r})

state = json.load(open({path!r})) if os.path.exists({path!r}) else None
dataset = ad.Dataset.list_files({pattern!r}, shuffle=False)
dataset = dataset.interleave(ad.TFRecordDataset, 3, deterministic={deterministic}).shuffle(40, seed=1)
dataset = dataset.map(picky, 2, executor="thread", deterministic={deterministic}).batch(8).repeat(2)
policy = ad.ErrorPolicy(max_skipped=None, quarantine={listed!r})
with dataset.with_options(ad.Options(errors=policy, storage={storage!r})).iterator(state=state) as it:
    for batch in it:
        commit(it.state_dict())
        say("used")
    commit(it.state_dict())
say("end")
"""


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Those that are whole."""
    found = []
    for line in path.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


@pytest.mark.sampled
@pytest.mark.parametrize(("scheme", "deterministic"), [("gs", False), ("file", True)])
def test_ids(scheme: str, deterministic: bool, tmp_path: Path) -> None:
    """As many ids as failures, of two epochs; each names one record, and all lives agree."""
    with FakeGCS(buckets=["bucket"]) as server:
        for shard in range(5):
            local = tmp_path / f"{shard}.tfrecord"
            with ad.TFRecordWriter(local) as writer:
                writer.write_many([b"%d" % (30 * shard + n) for n in range(30)])
            data = bytearray(local.read_bytes())
            data[13] ^= 1  # in the first payload
            local.write_bytes(data)
            server.put("bucket", local.name, bytes(data))
        names = {
            "pattern": "gs://bucket/*.tfrecord" if scheme == "gs" else str(tmp_path / "*.tfrecord"),
            "storage": {"gs": {"endpoint_url": server.url, "token": "anon"}},
            "deterministic": deterministic,
        }
        whole, torn = tmp_path / "whole.jsonl", tmp_path / "torn.jsonl"
        draw = random.Random(scheme)
        assert life(_BODY.format(path=str(tmp_path / "whole"), listed=str(whole), **names), 1 << 30, draw)
        source = _BODY.format(path=str(tmp_path / "torn"), listed=str(torn), **names)
        for _ in range(samples(1, 20)):
            life(source, draw.randint(1, 8), draw)
        assert life(source, 1 << 30, draw)
    expected = {line["id"]: (line["url"], line["record"]) for line in lines_of(whole)}
    bad = sum(n % 7 == 3 and n % 30 > 0 for n in range(150)) + 5
    assert len(expected) == len(lines_of(whole)) == 2 * bad
    found = [(line["id"], (line["url"], line["record"])) for line in lines_of(torn)]
    assert set(found) == set(expected.items())
