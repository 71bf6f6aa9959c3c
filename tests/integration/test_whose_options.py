"""Whose options count: of steps, of branches, of the Runtime; and connections are kept apart by their options."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import asyncdata as ad
from asyncdata.runtime.settings import settings_of
from fake_gcs import FakeGCS
from tests.integration.shards import BUCKET, gs_storage, shard_bytes
from tests.storage.gcs.test_tokens import service_account

Branches = tuple[ad.Dataset, ad.Dataset]


@pytest.fixture
def server() -> Iterator[FakeGCS]:
    """A bucket with one shard for Ann and one for Bob."""
    with FakeGCS(buckets=[BUCKET]) as server:
        put(server, "of")
        yield server


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[FakeGCS, str], str]:
    """Credentials of an account, whose tokens a server issues."""
    folder = tmp_path_factory.mktemp("accounts")
    return lambda server, name: service_account(folder, f"{server.url}/token", name)


def put(server: FakeGCS, word: str) -> None:
    for name in ("ann", "bob"):
        server.put(BUCKET, f"{name}.tfrecord", shard_bytes([f"{word} {name} {row}".encode() for row in range(3)]))


def url(name: str) -> str:
    return f"gs://{BUCKET}/{name}.tfrecord"


def rows(name: str, word: str = "of") -> list[bytes]:
    return [f"{word} {name} {row}".encode() for row in range(3)]


def as_account(server: FakeGCS, token: str) -> ad.Options:
    return ad.Options(storage={"gs": {"endpoint_url": server.url, "token": token}})


def readers(server: FakeGCS) -> dict[str, set[str]]:
    """Who asked for which object."""
    found: dict[str, set[str]] = {}
    for entry in server.journal.entries("storage.objects.get"):
        found.setdefault(entry.object.removesuffix(".tfrecord"), set()).add(entry.account)
    return found


JOINED: dict[str, Callable[[Branches], ad.Dataset]] = {
    "zip": ad.Dataset.zip,
    "concatenate": lambda both: both[0].concatenate(both[1]),
    "sample_from": lambda both: ad.Dataset.sample_from_datasets(list(both), seed=1),
    "choose_from": lambda both: ad.Dataset.choose_from_datasets(list(both), ad.Dataset.range(6).map(lambda x: x % 2)),
    "interleave": lambda both: ad.Dataset.range(2).interleave(lambda number: both[int(number)]),
    "flat_map": lambda both: ad.Dataset.range(2).flat_map(lambda number: both[int(number)]),
    "zip in an interleave": lambda both: ad.Dataset.range(1).interleave(lambda _: ad.Dataset.zip(both)),
    "group_by_window": lambda both: ad.Dataset.range(2).group_by_window(int, lambda key, _: both[key], 1),
}


@pytest.mark.sampled
@pytest.mark.parametrize("shared", [False, True], ids=["alone", "in a Runtime"])
@pytest.mark.parametrize("join", JOINED)
def test_a_branch_reads_with_its_own_token(
    join: str, shared: bool, server: FakeGCS, accounts: Callable[[FakeGCS, str], str]
) -> None:
    """Two tokens for one scheme in one Runtime: each object is asked for by the account of its branch, and no other."""
    ann, bob = (
        ad.TFRecordDataset(url(name)).with_options(as_account(server, accounts(server, name)))
        for name in ("ann", "bob")
    )
    dataset = JOINED[join]((ann, bob))
    with ad.Runtime() if shared else ad.Dataset.range(0).iterator():
        found = [row for element in dataset for row in (element if isinstance(element, tuple) else (element,))]
    assert sorted(found) == sorted(rows("ann") + rows("bob"))
    assert readers(server) == {"ann": {"ann"}, "bob": {"bob"}}


def test_connections_are_kept_apart_and_shared_by_their_options(
    server: FakeGCS, accounts: Callable[[FakeGCS, str], str]
) -> None:
    """Equal options share connections and tokens through all pipelines of a Runtime; different ones share none."""
    ann, bob = as_account(server, accounts(server, "ann")), as_account(server, accounts(server, "bob"))
    datasets = [
        ad.TFRecordDataset(url("ann")).with_options(ann),
        ad.TFRecordDataset(url("bob")).with_options(bob),
        ad.TFRecordDataset(url("bob")).with_options(ad.Options(seed=1)).with_options(ann),
    ]
    with ad.Runtime():
        assert list(ad.Dataset.zip(tuple(datasets))) == list(zip(rows("ann"), rows("bob"), rows("bob"), strict=True))
        assert [list(dataset) for dataset in datasets] == [rows("ann"), rows("bob"), rows("bob")]
    used: dict[str, set[int]] = {}
    for entry in server.journal.entries("storage.objects.get"):
        used.setdefault(entry.account, set()).add(entry.connection)
    assert set(used) == {"ann", "bob"}
    assert used["ann"].isdisjoint(used["bob"])
    assert len(server.journal.entries("oauth2.token")) == 2


def test_one_url_in_two_stores(server: FakeGCS) -> None:
    """What is known of an object (its size and version) is known of it in one store only."""
    with FakeGCS(buckets=[BUCKET]) as other:
        put(other, "another of")
        here, there = (
            ad.Dataset.list_files(f"gs://{BUCKET}/*", shuffle=False)
            .interleave(ad.TFRecordDataset, cycle_length=1)
            .with_options(ad.Options(storage=gs_storage(each)))
            for each in (server, other)
        )
        word = "another of"
        with ad.Runtime():
            for _ in range(2):
                assert list(here.concatenate(there)) == rows("ann") + rows("bob") + rows("ann", word) + rows(
                    "bob", word
                )


def test_what_is_said_before_and_behind_an_interleave(server: FakeGCS, accounts: Callable[[FakeGCS, str], str]) -> None:
    """Options of the listing hold for the files, unless their own dataset, or a later step, says otherwise."""
    ann, bob = as_account(server, accounts(server, "ann")), as_account(server, accounts(server, "bob"))
    listed = ad.Dataset.list_files(f"gs://{BUCKET}/ann*", shuffle=False).with_options(ann)
    for dataset, account in [
        (listed.interleave(ad.TFRecordDataset), "ann"),
        (listed.interleave(lambda name: ad.TFRecordDataset(name).with_options(bob)), "bob"),
        (ad.TFRecordDataset(listed).with_options(bob), "bob"),
        (listed.interleave(lambda name: ad.TFRecordDataset(name).with_options(bob)).with_options(ann), "ann"),
    ]:
        server.journal.clear()
        assert list(dataset) == rows("ann")
        reads = [entry for entry in server.journal.entries("storage.objects.get") if "alt=media" in entry.target]
        assert {entry.account for entry in reads} == {account}


def test_what_a_later_call_does_not_say_stays(server: FakeGCS) -> None:
    """`with_options` twice: field by field, and `storage` by scheme and key."""
    dataset = ad.TFRecordDataset(url("ann")).with_options(
        ad.Options(
            storage={"gs": {"endpoint_url": "http://127.0.0.1:9", "token": "anon"}},
            retry=ad.RetryOptions(max_attempts=3, deadline_s=7),
            seed=4,
        )
    )
    dataset = dataset.with_options(ad.Options(storage={"gs": {"endpoint_url": server.url}}))
    dataset = dataset.with_options(ad.Options(retry=ad.RetryOptions(max_attempts=20)))
    assert list(dataset) == rows("ann")
    options, idle = settings_of(dataset._node, None)
    assert (options.seed, options.retry) == (4, ad.RetryOptions(max_attempts=20, deadline_s=7))
    assert not idle


def test_storage_where_the_runtime_has_none(server: FakeGCS) -> None:
    """The dataset's options count for the schemes that the Runtime does not name."""
    dataset = ad.TFRecordDataset(url("ann")).with_options(ad.Options(storage=gs_storage(server)))
    with ad.Runtime(ad.Options(storage={"http": {"verify_tls": False}})):
        assert list(dataset) == rows("ann")
    wrong = ad.Options(storage={"gs": {"endpoint_url": "http://127.0.0.1:9", "token": "anon"}})
    with ad.Runtime(ad.Options(storage=gs_storage(server))):
        assert list(dataset) == rows("ann")  # the same: nothing is without effect
        with pytest.warns(UserWarning, match=r"no effect here: storage\['gs'\]\."):
            assert list(dataset.with_options(wrong)) == rows("ann")


@pytest.mark.sampled
@pytest.mark.parametrize("isolate", [False, True])
def test_what_cannot_count_is_a_warning_once(isolate: bool) -> None:
    """In a Runtime: once for each option, however many datasets and epochs; at the user's line."""
    dataset = ad.Dataset.range(3).with_options(
        ad.Options(memory_limit_bytes=1 << 25, seed=1, retry=ad.RetryOptions(max_attempts=20))
    )
    with ad.Runtime(ad.Options(isolate=isolate)):
        with pytest.warns(UserWarning, match=r"no effect here: memory_limit_bytes\.") as caught:
            assert list(dataset) == [0, 1, 2]
        assert [Path(warning.filename).name for warning in caught] == [Path(__file__).name]
        assert list(dataset) == [0, 1, 2]
        with pytest.warns(UserWarning, match=r"no effect here: num_workers, retry\."):
            list(dataset.with_options(ad.Options(num_workers=7, retry=ad.RetryOptions(max_attempts=2))))


def test_what_a_runtime_says_counts_where_a_dataset_does_not() -> None:
    """Unset is not the default: one option of its own takes none of the Runtime's away."""
    shared = ad.Options(seed=3, deterministic=False, errors=ad.ErrorPolicy(max_skipped=1), memory_limit_bytes=1 << 25)
    own = ad.Options(check_crc=False, deterministic=True, errors=ad.ErrorPolicy(log_warning=True))
    options, idle = settings_of(ad.Dataset.range(3).with_options(own)._node, shared)
    assert (options.seed, options.deterministic, options.check_crc) == (3, True, False)
    assert options.errors == ad.ErrorPolicy(max_skipped=1, log_warning=True)
    assert options.memory_limit_bytes == 1 << 25
    assert not idle


def test_branches_that_disagree_are_a_warning() -> None:
    """All options but `storage` hold for the whole pipeline: the first branch's word counts, and a later step's."""
    one, two = (ad.Dataset.range(2).with_options(ad.Options(seed=seed, isolate=False)) for seed in (1, 2))
    with pytest.warns(UserWarning, match=r"no effect here: seed\."):
        list(ad.Dataset.zip((one, two)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(ad.Dataset.zip((one, two)).with_options(ad.Options(seed=7)))
        list(ad.Dataset.zip((one, one)))
    inner = ad.Dataset.range(2).with_options(ad.Options(num_workers=1))
    with pytest.warns(UserWarning, match=r"no effect here: num_workers\."):
        list(ad.Dataset.range(3).flat_map(lambda _: inner))


def test_pickled_datasets_keep_what_was_not_given(server: FakeGCS) -> None:
    """As in an isolated loader."""
    dataset: Any = ad.TFRecordDataset(url("ann")).with_options(ad.Options(storage=gs_storage(server)))
    again = pickle.loads(pickle.dumps(dataset.with_options(ad.Options(seed=1))))
    assert list(again) == rows("ann")
    assert list(again.with_options(ad.Options(isolate=True))) == rows("ann")
