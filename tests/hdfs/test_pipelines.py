"""Whole pipelines over a real cluster: from ``hdfs://`` to batches, with and without worker processes."""

from __future__ import annotations

import asyncio
import getpass
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import asyncdata as ad
from asyncdata.options import Environment, Options
from asyncdata.storage.fetch import Fetcher
from tests.hdfs.cluster import Cluster
from tests.hdfs.settings import as_xml
from tests.hdfs.writing import Writer
from tests.integration.shards import records, shard_bytes

_SHARDS = 3
_RECORDS = 400
_SIZE = 5000


def size_and_process(record: bytes) -> tuple[int, int]:
    """What a worker tells about a record."""
    return len(record), os.getpid()


def options(**changes: Any) -> ad.Options:
    """As the user who runs the cluster."""
    return ad.Options(storage={"webhdfs": {"user": getpass.getuser()}}, chunk_bytes=256 << 10, **changes)


@pytest.fixture
async def shards(cluster: Cluster, folder: str) -> str:
    """A folder with some shards."""
    writer = Writer(cluster)
    for shard in range(_SHARDS):
        await writer.put(f"{folder}/train-{shard}.tfrecord", shard_bytes(records(shard, _RECORDS, _SIZE)))
    return folder


@pytest.mark.sampled
@pytest.mark.parametrize("scheme", ["hdfs", "webhdfs"])
def test_shards_become_batches(cluster: Cluster, shards: str, scheme: str, request: pytest.FixtureRequest) -> None:
    """Every record of every shard that a pattern names, in order, checksums verified."""
    if scheme == "webhdfs":
        request.getfixturevalue("needs_webhdfs")
    url_of: Callable[[str], str] = cluster.url if scheme == "hdfs" else cluster.webhdfs_url
    files = ad.Dataset.list_files(url_of(f"{shards}/train-*.tfrecord"), shuffle=False)
    dataset = ad.TFRecordDataset(files).batch(50).with_options(options())
    batches = list(dataset)
    assert [len(batch) for batch in batches] == [50] * (_SHARDS * _RECORDS // 50)
    expected = [record for shard in range(_SHARDS) for record in records(shard, _RECORDS, _SIZE)]
    assert [bytes(record) for batch in batches for record in batch] == expected


def test_an_isolated_loader_has_clients_of_its_own(cluster: Cluster, shards: str) -> None:
    """Specs travel, clients are made where the loader runs; workers below it; two epochs."""
    files = ad.Dataset.list_files(cluster.url(f"{shards}/train-*.tfrecord"), shuffle=False)
    dataset = ad.TFRecordDataset(files).map(size_and_process, 2)
    with ad.Runtime(options(isolate=True, num_workers=1)):
        for _ in range(2):
            elements = list(dataset)
            assert [size for size, _ in elements] == [_SIZE] * (_SHARDS * _RECORDS)
            assert os.getpid() not in {pid for _, pid in elements}


@pytest.mark.sampled
@pytest.mark.parametrize("isolate", [False, True])
async def test_window_counters_and_error_policy_are_those_of_every_store(
    cluster: Cluster, shards: str, isolate: bool
) -> None:
    """The window is found from what HDFS's reads tell; a damaged record and a broken file are left out and named."""
    damaged, cut = bytearray(shard_bytes(records(7, 20, _SIZE))), shard_bytes(records(8, 20, _SIZE))
    damaged[3 * (_SIZE + 16) + 100] ^= 0xFF
    writer = Writer(cluster)
    await writer.put(f"{shards}/train-7.tfrecord", bytes(damaged))
    await writer.put(f"{shards}/train-8.tfrecord", cut[: 10 * (_SIZE + 16) + 5])
    files = ad.Dataset.list_files(cluster.url(f"{shards}/train-*.tfrecord"), shuffle=False)
    settings = options(errors=ad.ErrorPolicy(max_skipped=2), isolate=isolate, num_workers=1)
    dataset = ad.TFRecordDataset(files).with_options(settings)

    def read() -> tuple[list[bytes], ad.PipelineStats]:
        with dataset.iterator() as elements:
            return [bytes(element) for element in elements], elements.stats()

    found, stats = await asyncio.to_thread(read)
    good = [record for shard in range(_SHARDS) for record in records(shard, _RECORDS, _SIZE)]
    assert found == [*good, *records(7, 20, _SIZE)[:3], *records(7, 20, _SIZE)[4:], *records(8, 20, _SIZE)[:10]]
    assert (stats.skipped.elements, stats.skipped.shards) == (1, 1)
    assert any(name in stats.skipped.last for name in ("train-7", "train-8"))
    assert stats.fetch["requests"] >= _SHARDS * _RECORDS * _SIZE // (256 << 10)
    assert stats.fetch["bytes"] >= _SHARDS * _RECORDS * _SIZE
    assert stats.fetch["window"] is not None


def test_a_killed_datanode_costs_no_record(whole_cluster: Cluster, shards: str) -> None:
    """``kill -9`` after the first batch: the pipeline goes on with the other replicas, and loses no record."""
    urls = [whole_cluster.url(f"{shards}/train-{shard}.tfrecord") for shard in range(_SHARDS)]
    # Little memory, so that most of the shards is still to be read.
    limits = options(memory_limit_bytes=2 << 20, retry=ad.RetryOptions(max_attempts=40, initial_delay_s=0.05))
    seen: list[bytes] = []
    for batch in ad.TFRecordDataset(urls).batch(20).with_options(limits):
        if not seen:
            whole_cluster.kill("datanode1")
        seen += [bytes(record) for record in batch]
    assert seen == [record for shard in range(_SHARDS) for record in records(shard, _RECORDS, _SIZE)]


def test_worker_processes_map_what_was_read_from_hdfs(cluster: Cluster, shards: str) -> None:
    """Records travel from the reading process to the workers; all arrive, and none is mapped here."""
    urls = [cluster.url(f"{shards}/train-{shard}.tfrecord") for shard in range(_SHARDS)]
    dataset = (
        ad.TFRecordDataset(urls)
        .map(size_and_process, 2, executor="process")
        .batch(100)
        .with_options(options(num_workers=2))
    )
    sizes, processes = [], set()
    for lengths, pids in dataset:
        sizes += [int(length) for length in lengths]
        processes |= {int(pid) for pid in pids}
    assert sizes == [_SIZE] * (_SHARDS * _RECORDS)
    assert os.getpid() not in processes


def nameservice(cluster: Cluster) -> dict[str, str]:
    """Three NameNodes, of which one lives."""
    return {
        "dfs.nameservices": "data",
        "dfs.ha.namenodes.data": "a,b,c",
        "dfs.namenode.rpc-address.data.a": "127.0.0.1:1",
        "dfs.namenode.rpc-address.data.b": "127.0.0.1:2",
        "dfs.namenode.rpc-address.data.c": cluster.address,
    }


async def read_first(url: str, storage: dict[str, Any]) -> bytes:
    """The beginning of a file."""
    fetcher = Fetcher(Options(storage={"hdfs": storage}, retry=ad.RetryOptions(max_attempts=1)), Environment())
    try:
        buffer = bytearray(100)
        await fetcher.open_read(url, memoryview(buffer))
        return bytes(buffer)
    finally:
        await fetcher.aclose()


async def test_a_nameservice_is_served_by_the_namenode_that_lives(
    cluster: Cluster, shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its NameNodes come from the options, from a folder of Hadoop's configuration, or from ``HADOOP_CONF_DIR``."""
    url = f"hdfs://data{shards}/train-0.tfrecord"
    expected = shard_bytes(records(0, _RECORDS, _SIZE))[:100]
    assert await read_first(url, {"config": nameservice(cluster)}) == expected
    (tmp_path / "hdfs-site.xml").write_text(as_xml(nameservice(cluster)))
    (tmp_path / "core-site.xml").write_text(as_xml({"fs.defaultFS": "hdfs://data"}))
    assert await read_first(url, {"config_dir": str(tmp_path)}) == expected
    assert await read_first(f"hdfs://{shards}/train-0.tfrecord", {"config_dir": str(tmp_path)}) == expected
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert await read_first(url, {"config": {"dfs.client.failover.max.attempts": "2"}}) == expected
