"""Bad weather over real sockets: every record exactly once or the one documented error, no hang, nothing left behind.

The name of a failing case repeats it alone::

    ASYNCDATA_CHAOS='mixed@20%,sloppy,tls,seed=163' python -m pytest tests/chaos -k once
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import asyncdata as ad
from fake_gcs import FakeGCS
from tests.chaos.cases import FATAL, Case, every_case, some_cases
from tests.integration.shards import BUCKET, record, records, shard_bytes
from tests.samples import SOAK
from tests.storage.gcs.test_tokens import service_account

SHARDS, COUNT, SIZE, CYCLE, BATCH = 12, 90, 3000, 4, 10
LIMIT: Final = 48 << 20
WISHED: Final = os.environ.get("ASYNCDATA_CHAOS", "")
CASES: Final = [Case.parse(WISHED)] if WISHED else every_case() if SOAK else some_cases()


class Sky:
    """Two servers, HTTP and TLS, and a service account whose tokens the first one gives."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.servers = {
            scheme: stack.enter_context(FakeGCS(buckets=[BUCKET], tls=scheme == "tls")) for scheme in ("http", "tls")
        }
        self.ca_file = folder / "ca.pem"
        self.ca_file.write_bytes(self.servers["tls"].certificate)
        self.account = service_account(folder, f"{self.servers['http'].url}/token")

    def fresh(self, case: Case) -> FakeGCS:
        """The server of a case with whole shards and the weather of the case."""
        server = self.servers[case.scheme]
        server.profile = "zero"
        for shard in range(SHARDS):
            server.put(BUCKET, f"shard-{shard:03d}.tfrecord", shard_bytes(records(shard, COUNT, SIZE)))
        server.journal.clear()
        server.profile = case.profile
        return server

    def options(self, case: Case) -> ad.Options:
        """Small reads, so that there are many requests; short limits, so that stalls cost little."""
        storage = {"endpoint_url": self.servers[case.scheme].url, "token": self.account}
        if case.scheme == "tls":
            storage["ca_file"] = str(self.ca_file)
        return ad.Options(
            storage={"gs": storage},
            deterministic=case.order == "deterministic",
            chunk_bytes=16 << 10,
            memory_limit_bytes=LIMIT,
            num_workers=1,
            retry=ad.RetryOptions(max_attempts=20, initial_delay_s=0.01, max_delay_s=0.2),
            timeouts=ad.TimeoutOptions(connect_s=5.0, first_byte_s=0.5, idle_s=0.5),
        )


@pytest.fixture(scope="module")
def sky(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sky]:
    """The servers of all cases."""
    with contextlib.ExitStack() as stack:
        yield Sky(tmp_path_factory.mktemp("sky"), stack)


def place(payload: bytes) -> Any:
    """Shard and number of a record, after a look at every byte of it."""
    shard, number = (int(word) for word in payload[: payload.index(b";")].split(b":"))
    assert payload == record(shard, number, SIZE), f"record {number} of shard {shard} is damaged"
    return np.array([shard, number])


def in_order() -> list[tuple[int, int]]:
    """Every record as a deterministic interleave delivers them."""
    groups = [range(first, first + CYCLE) for first in range(0, SHARDS, CYCLE)]
    return [(shard, number) for group in groups for number in range(COUNT) for shard in group]


def weather_it(case: Case, sky: Sky) -> None:
    """Runs one case and checks all that must hold."""
    server = sky.fresh(case)
    found: list[tuple[int, int]] = []
    error: Exception | None = None
    # A map without an order returns what is ready, whatever shard it is from.
    ordered_map = case.order == "deterministic" or case.seed // 4 % 2 == 0
    dataset = (
        ad.Dataset.list_files(f"gs://{BUCKET}/shard-*.tfrecord", shuffle=False)
        .interleave(ad.TFRecordDataset, cycle_length=CYCLE)
        .map(place, num_parallel_calls=ad.AUTOTUNE, deterministic=ordered_map)
        .batch(BATCH)
        .prefetch(2)
    )
    try:
        with ad.Runtime(sky.options(case), pipelines=1) as runtime:
            try:
                for batch in dataset:
                    found += [(int(shard), int(number)) for shard, number in batch]
            except ad.AsyncdataError as caught:
                error = caught
            resident = os.fstat(runtime.arena.fd).st_blocks * 512
    finally:
        server.profile = "zero"
    again = f"again: ASYNCDATA_CHAOS='{case}' python -m pytest tests/chaos -k once"
    assert resident <= LIMIT, again
    if error is None:
        assert Counter(found) == Counter(in_order()), again
    else:
        documented = {
            "corrupt": (ad.CorruptRecordError, ad.BrokenFrameError),
            "replace": (ad.ObjectChangedError,),
        }.get(case.faults, ())
        assert isinstance(error, documented), f"{type(error).__name__}: {error}\n{again}"
        assert f"gs://{BUCKET}/shard-" in str(error), again
    if case.order == "deterministic":
        assert found == in_order()[: len(found)], again
    assert max(Counter(found).values(), default=1) == 1, again
    for shard in range(SHARDS if ordered_map else 0):
        numbers = [number for at, number in found if at == shard]
        assert numbers == list(range(len(numbers))), again


@pytest.mark.sampled
@pytest.mark.parametrize("case", [pytest.param(case, id=str(case)) for case in CASES])
def test_every_record_once_or_the_documented_error(case: Case, sky: Sky) -> None:
    """Whatever strikes: exactly the records, in their order; an error only where bytes were lost; bounded memory."""
    weather_it(case, sky)


def test_the_weather_strikes(sky: Sky) -> None:
    """The suite would notice a server that forgets its faults."""
    case = Case(faults="503", rate=0.2, order="sloppy", scheme="http", seed=1)
    weather_it(case, sky)
    struck = [entry for entry in sky.servers["http"].journal if entry.status == 503]
    assert len(struck) > 10


def test_names_are_cases() -> None:
    """A case's name makes it again, and those that may fail are those that lose bytes."""
    assert [Case.parse(str(case)) for case in every_case()] == every_case()
    assert {case.faults for case in every_case()} > FATAL
