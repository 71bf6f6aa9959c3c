"""Two pipelines on one Runtime, of which one is paused: training and evaluation take turns in one program."""

from __future__ import annotations

from pathlib import Path

import asyncdata as ad
from tests.integration.shards import records, write_shards

MIB = 1 << 20
SHARDS, RECORDS, RECORD_BYTES = 4, 60, 50_000


def varying(record: bytes) -> bytes:
    """Large outputs of many sizes."""
    return (record * 40)[: 200_000 + record[5] * 7919 % 1_500_000]


def test_a_pipeline_goes_on_while_another_one_is_paused(tmp_path: Path) -> None:
    """Workers whose tasks wait for the memory of a paused pipeline work for the other one; none loses anything."""
    write_shards(tmp_path, SHARDS, RECORDS, RECORD_BYTES)
    everything = [record for shard in range(SHARDS) for record in records(shard, RECORDS, RECORD_BYTES)]
    files = ad.Dataset.list_files(f"{tmp_path}/*", shuffle=False)
    evaluation = files.interleave(ad.TFRecordDataset, cycle_length=2).batch(7)
    training = files.interleave(ad.TFRecordDataset, cycle_length=2).map(varying, 4)
    options = ad.Options(memory_limit_bytes=64 * MIB, num_workers=2)
    with ad.Runtime(options, pipelines=2), training.iterator() as steps:
        trained = [next(steps)]
        for _ in range(3):
            assert sorted(record for batch in evaluation for record in batch) == sorted(everything)
            trained.append(next(steps))
        trained += list(steps)
    assert sorted(trained) == sorted(map(varying, everything))
