"""In which order a pipeline asks for ranges when it may ask for few at a time."""

from __future__ import annotations

import contextlib
import re
import threading

import pytest

import asyncdata as ad
from fake_gcs import FakeGCS, Fault, Latency, Profile, Rule
from tests.integration.shards import BUCKET, records, shard_bytes
from tests.patience import LIMIT_S, wait_until

FILES, CYCLE, COUNT = 12, 6, 60


@pytest.mark.sampled
@pytest.mark.parametrize("deterministic", [True, False])
def test_the_beginnings_of_files_that_are_read_in_turn_go_before_what_is_read_ahead(deterministic: bool) -> None:
    """One request at a time: no file's later bytes before its first, and the first ones of a whole cycle early."""
    with FakeGCS(buckets=[BUCKET]) as server:
        for shard in range(FILES):
            server.put(BUCKET, f"shard-{shard:03d}.tfrecord", shard_bytes(records(shard, COUNT, 3000)))
        server.profile = Profile(latency=Latency(median_s=0.02))
        options = ad.Options(
            storage={"gs": {"endpoint_url": server.url, "token": "anon"}},
            deterministic=deterministic,
            chunk_bytes=32 << 10,
            memory_limit_bytes=96 << 20,
            max_requests_in_flight=1,
            num_workers=0,
        )
        with ad.Runtime(options, pipelines=1):
            files = ad.Dataset.list_files(f"gs://{BUCKET}/shard-*.tfrecord", shuffle=False)
            assert sum(1 for _ in files.interleave(ad.TFRecordDataset, cycle_length=CYCLE)) == FILES * COUNT
        asked: list[tuple[int, int]] = []
        for entry in server.journal:
            found = re.search(r"shard-(\d+)", entry.target)
            if entry.range and found:
                asked.append((int(found[1]), int(entry.range.partition("=")[2].partition("-")[0])))
    assert len(asked) > 2 * FILES
    begun: set[int] = set()
    for shard, start in asked:
        assert not start or shard in begun, asked
        begun.add(shard)
    assert {shard for shard, _ in asked[: 2 * CYCLE]} >= set(range(CYCLE)), asked


def test_the_next_file_is_opened_ahead_from_what_the_listing_told() -> None:
    """While the first one is being consumed; its first request is one for bytes, and pinned."""
    with FakeGCS(buckets=[BUCKET]) as server:
        generations = [
            server.put(BUCKET, f"shard-{shard:03d}.tfrecord", shard_bytes(records(shard, 100, 1000)))
            for shard in range(3)
        ]
        options = ad.Options(
            storage={"gs": {"endpoint_url": server.url, "token": "anon"}}, chunk_bytes=16 << 10, num_workers=0
        )
        files = ad.Dataset.list_files(f"gs://{BUCKET}/shard-*.tfrecord", shuffle=False)
        dataset = files.interleave(ad.TFRecordDataset, cycle_length=1).with_options(options)
        with dataset.iterator() as iterator:
            next(iterator)
            wait_until(lambda: any(entry.object.startswith("shard-001") for entry in server.journal))
        ahead = [entry for entry in server.journal if entry.object.startswith("shard-001")]
        assert ahead[0].range
        assert f"generation={generations[1]}" in ahead[0].target


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("read", ["interleave", "flat_map", "list"])
def test_files_read_one_after_the_other_are_asked_for_together(read: str, deterministic: bool) -> None:
    """While the answer for the first small file does not come, those behind it are asked for.

    The latency of distant files is hidden without a cycle of them, too, as long as there are requests to spare.
    """
    with FakeGCS(buckets=[BUCKET]) as server:
        for shard in range(FILES):
            server.put(BUCKET, f"shard-{shard:03d}.tfrecord", shard_bytes(records(shard, COUNT, 100)))
        held = Fault(kind="stall", seconds=LIMIT_S)
        server.profile = Profile(rules=(Rule(fault=held, objects="*/shard-000.tfrecord", media_only=True),))
        options = ad.Options(
            storage={"gs": {"endpoint_url": server.url, "token": "anon"}},
            deterministic=deterministic,
            hedge=ad.HedgeOptions(enabled=False),
            num_workers=0,
        )
        files = ad.Dataset.list_files(f"gs://{BUCKET}/shard-*.tfrecord", shuffle=False)
        dataset: ad.Dataset = ad.TFRecordDataset(files)
        if read != "list":
            once = {"cycle_length": 1} if read == "interleave" else {}
            dataset = getattr(files, read)(ad.TFRecordDataset, **once)
        with dataset.with_options(options).iterator() as iterator:

            def read_on() -> None:
                with contextlib.suppress(ad.PipelineClosedError):
                    next(iterator)

            reading = threading.Thread(target=read_on)
            reading.start()
            try:
                wait_until(lambda: len({entry.object for entry in server.journal if entry.range}) == FILES)
            finally:
                iterator.close()
                reading.join()
