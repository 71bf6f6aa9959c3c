from __future__ import annotations

import pickle

from asyncdata.storage.counters import FetchCounters
from asyncdata.storage.failures import FailureCause, ReadFailedError, locate, read_failed
from asyncdata.types import ObjectInfo

INFO = ObjectInfo(url="gs://b/o", size=10, version="7")


def test_the_place_of_a_failure_is_its_first_missing_byte() -> None:
    """Whether the place is known at once or added later."""
    error = read_failed("broke", FailureCause.CONNECTION_LOST, filled=3, url=INFO.url, version="7", offset=100)
    assert error.offset == 103
    bare = read_failed("broke", FailureCause.CONNECTION_LOST, filled=3)
    assert locate(bare, INFO, 100) is bare
    assert bare.place() == {"url": INFO.url, "version": "7", "offset": 103}
    assert str(bare) == f"broke [url {INFO.url}, version 7, offset 103]"
    assert locate(error, ObjectInfo(url="other", size=1), 5).url == INFO.url


def test_a_failure_survives_pickling() -> None:
    """Kind, words and place arrive in another process."""
    error = read_failed("broke", FailureCause.IDLE_TIMEOUT, filled=3, url=INFO.url, offset=100)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is ReadFailedError
    assert str(copy) == str(error)


def test_counters_add_up_and_snapshots_stay() -> None:
    """A snapshot is not touched by what follows it."""
    counters = FetchCounters()
    counters.began()
    counters.bytes += 10
    counters.failed(read_failed("x", FailureCause.IDLE_TIMEOUT))
    counters.retried(0.5)
    counters.in_flight -= 1
    counters.began(resumed=True)
    before = counters.snapshot(waiting=1, limit=2)
    counters.failed(read_failed("x", FailureCause.CONNECT))
    counters.wasted(4)
    counters.asked()
    after = counters.snapshot(waiting=0, limit=2)
    assert (before.requests, before.bytes, before.retries, before.resumes, before.in_flight) == (2, 10, 1, 1, 1)
    assert before.failures == {FailureCause.IDLE_TIMEOUT: 1} == before.timeouts
    assert (before.backoff_s, before.waiting, before.limit, before.peak_in_flight) == (0.5, 1, 2, 1)
    assert after.failures == {FailureCause.IDLE_TIMEOUT: 1, FailureCause.CONNECT: 1}
    assert after.timeouts == {FailureCause.IDLE_TIMEOUT: 1}
    assert (after.bytes, after.wasted_bytes, after.metadata_requests) == (6, 4, 1)
