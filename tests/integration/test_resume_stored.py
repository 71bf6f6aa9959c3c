"""States of pipelines that keep elements in files: exact whatever has become of the files since, or refused by name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import asyncdata as ad
from tests.integration.test_resume_caches import noisy, plain, taken
from tests.samples import SOAK

pytestmark = pytest.mark.sampled

D = ad.Dataset

Make = Callable[[str], ad.Dataset]

IN_TURN: dict[str, Make] = {
    "cache": lambda path: D.range(20).shuffle(4, seed=2).cache(path).repeat(2),
    "cache, no seed": lambda path: D.range(20).shuffle(7).cache(path).repeat(2),
    "cache, random numbers": lambda path: D.range(20).map(noisy, rng=True).cache(path).batch(3).repeat(2),
    "cache, inside": lambda path: D.range(2).flat_map(
        lambda x: D.range(6).shuffle(6).cache(f"{path}-{int(x)}").repeat(2)
    ),
    "snapshot": lambda path: D.range(20).shuffle(4, seed=2).snapshot(path).repeat(2),
    "snapshot, batches": lambda path: D.range(20).map(noisy, rng=True).snapshot(path).batch(3).repeat(2),
}
"""Those that read in the order in which they were written."""

OTHERWISE: dict[str, Make] = {
    "shards": lambda path: D.range(20).shuffle(4, seed=2).snapshot(path, shard_func=lambda x: x % 3).repeat(2),
    "shards, batches": lambda path: D.range(20).shuffle(7).snapshot(path, shard_func=lambda x: x % 3).batch(3),
    "shards, in front of what sees all again": lambda path: (
        D.range(20).shuffle(7).snapshot(path, shard_func=lambda x: x % 3).skip(1).unique().repeat(2)
    ),
    "shards, in groups": lambda path: (
        D.range(20)
        .shuffle(7)
        .snapshot(path, shard_func=lambda x: x % 3)
        .group_by_window(lambda x: x % 2, lambda _, window: window.batch(3), window_size=3)
        .repeat(2)
    ),
    "reader": lambda path: (
        D.range(20).snapshot(path, reader_func=lambda files: files.flat_map(lambda x: x.shuffle(9, seed=1))).repeat(2)
    ),
    "behind another": lambda path: (
        D.range(5).concatenate(D.range(9).shuffle(9).snapshot(path, shard_func=lambda x: x % 3)).batch(2).repeat(2)
    ),
    "inside, batches": lambda path: (
        D.range(3)
        .flat_map(lambda x: D.range(6).shuffle(6).snapshot(f"{path}-{int(x)}", shard_func=lambda x: x % 3))
        .batch(4)
    ),
    "inside": lambda path: D.range(2).flat_map(
        lambda x: D.range(6).shuffle(6).snapshot(f"{path}-{int(x)}", shard_func=lambda x: x % 3).repeat(2)
    ),
}
"""Those whose later runs read in another order than that in which the first one wrote."""

BEHIND: dict[str, Callable[[ad.Dataset, str], ad.Dataset]] = {
    "cache": lambda ds, _: ds.cache().repeat(2),
    "cache, batches": lambda ds, _: ds.cache().batch(3).repeat(2),
    "cache of shuffled": lambda ds, _: ds.shuffle(5, seed=1).cache().repeat(2),
    "cache of a cache": lambda ds, _: ds.cache().map(lambda x: x + 1).cache().repeat(2),
    "cache in a file": lambda ds, path: ds.cache(path).repeat(2),
    "cache in front of what sees all again": lambda ds, _: ds.cache().unique().repeat(2),
    "cache inside": lambda ds, _: D.range(2).flat_map(lambda _: ds.cache().repeat(2)),
    "snapshot": lambda ds, path: ds.snapshot(path).repeat(2),
    "shuffle": lambda ds, _: ds.shuffle(5, seed=1).repeat(2),
    "window": lambda ds, _: ds.window(3).flat_map(lambda window: window.batch(3)).repeat(2),
    "interleave": lambda ds, _: ds.interleave(lambda x: D.from_tensors(x).repeat(2), 3).repeat(2),
    "scan": lambda ds, _: ds.scan(np.int64(0), lambda total, x: (total + x, total)).repeat(2),
    "unbatch": lambda ds, _: ds.batch(4).unbatch().repeat(2),
    "rebatch": lambda ds, _: ds.batch(4).rebatch(3).repeat(2),
    "zip": lambda ds, _: D.zip((D.range(40), ds.skip(1))).repeat(2),
    "choose": lambda ds, _: D.choose_from_datasets([D.range(9), ds], D.range(2).repeat(9)),
    "resampled": lambda ds, _: ds.rejection_resample(lambda x: x % 2, [0.5, 0.5], seed=3).repeat(2),
    "prefetch": lambda ds, _: ds.prefetch(3).enumerate().take(15).repeat(2),
    "buckets": lambda ds, _: (
        ds.map(np.arange).bucket_by_sequence_length(len, [5, 10], [2, 2, 2]).map(lambda x: x.sum())
    ),
}
"""Steps that hold elements of a snapshot, or keep them, and ``repeat``, which reads them again."""


KEPT: dict[str, Callable[[ad.Dataset, Path], ad.Dataset]] = {
    "cache": lambda ds, path: ds.cache(path),
    "snapshot": lambda ds, path: ds.snapshot(path),
    "shards": lambda ds, path: ds.snapshot(path, shard_func=lambda x: len(x) % 3),
}


@pytest.mark.parametrize("keep", KEPT)
def test_files_that_were_listed_are_those_that_were_read(keep: str, tmp_path: Path) -> None:
    """A state brings the list of files back, of which the run that is gone on with has kept the elements since."""
    for number in range(3):
        with ad.TFRecordWriter(tmp_path / f"{number}.tfrecord") as writer:
            writer.write_many([b"r" * index for index in range(5 * number)])

    def make() -> ad.Dataset:
        files = D.list_files(f"{tmp_path}/*.tfrecord", seed=1)
        return KEPT[keep](files.interleave(ad.TFRecordDataset, 2), tmp_path / "kept").repeat(2)

    with ad.Runtime(ad.Options(num_workers=0)):
        elements, states = taken(make())
        for position in every(states):
            with make().iterator(state=states[position]) as it:
                assert list(it) == elements[position:], position


def removed(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def every(states: list[object]) -> range:
    return range(0, len(states), 1 if SOAK else 3)


@pytest.mark.parametrize("is_gone", [False, True], ids=["there", "gone"])
@pytest.mark.parametrize("name", IN_TURN)
def test_what_is_there_or_gone_makes_no_difference(name: str, tmp_path: Path, *, is_gone: bool) -> None:
    """The process goes on behind the state and completes the file, or the resume is on another machine."""
    with ad.Runtime(ad.Options(num_workers=0)):
        make = IN_TURN[name]
        elements, states = taken(make(f"{tmp_path}/kept"))
        for position in every(states):
            if is_gone:
                removed(tmp_path)
            with make(f"{tmp_path}/kept").iterator(state=states[position]) as it:
                assert plain(list(it)) == plain(elements[position:]), position


@pytest.mark.parametrize("name", ["cache, no seed", "cache, random numbers"])
def test_what_another_run_has_written_is_not_mixed_in(name: str, tmp_path: Path) -> None:
    """It is left alone while the run of the state was writing, and refused where that had read its own."""
    with ad.Runtime(ad.Options(num_workers=0)):
        elements, states = taken(IN_TURN[name](f"{tmp_path}/kept"))
        removed(tmp_path)
        others = list(IN_TURN[name](f"{tmp_path}/kept"))
        half = len(elements) // 2
        with IN_TURN[name](f"{tmp_path}/kept").iterator(state=states[4]) as it:
            assert plain(list(it)[: half - 4]) == plain(elements[4:half])
        assert plain(list(IN_TURN[name](f"{tmp_path}/kept"))) == plain(others[:half] * 2)
        with (
            pytest.raises(ad.StateError, match="another run has written it"),
            IN_TURN[name](f"{tmp_path}/kept").iterator(state=states[half + 3]) as it,
        ):
            list(it)


@pytest.mark.parametrize("name", OTHERWISE)
def test_a_snapshot_that_was_being_written_is_not_read_in_its_place(name: str, tmp_path: Path) -> None:
    """The process goes on behind the state and completes the snapshot, whose order is another one."""
    with ad.Runtime(ad.Options(num_workers=0)):
        make = OTHERWISE[name]
        elements, states = taken(make(f"{tmp_path}/kept"))
        for position, state in enumerate(states):
            rest, later = taken(make(f"{tmp_path}/kept"), state)
            assert plain(rest) == plain(elements[position:]), position
            if later[2:]:
                with make(f"{tmp_path}/kept").iterator(state=later[2]) as it:
                    assert plain(list(it)) == plain(elements[position + 2 :]), position


@pytest.mark.parametrize("name", [name for name in OTHERWISE if name != "behind another"])
def test_a_snapshot_that_is_not_there_is_refused_where_it_was_read(name: str, tmp_path: Path) -> None:
    """While it was written it is written again, as it was; nobody can read half of it in another order."""
    with ad.Runtime(ad.Options(num_workers=0)):
        make = OTHERWISE[name]
        elements, states = taken(make(f"{tmp_path}/kept"))
        refused = []
        for position in range(1, len(states)):
            removed(tmp_path)
            try:
                with make(f"{tmp_path}/kept").iterator(state=states[position]) as it:
                    assert plain(list(it)) == plain(elements[position:]), position
            except ad.StateError as error:
                assert "it is not there" in str(error)  # noqa: PT017 -- some states are not refused
                refused.append(position)
        assert bool(refused) == ("batches" not in name)
        assert len(refused) <= len(elements) // 2


def test_a_run_that_looks_like_that_of_the_state_is_refused(tmp_path: Path) -> None:
    """A fixed seed does not say whether the run of the state wrote the snapshot that it had not begun, or read it."""
    with ad.Runtime(ad.Options(num_workers=0)):

        def make() -> ad.Dataset:
            return OTHERWISE["inside, batches"](f"{tmp_path}/kept").with_options(ad.Options(seed=1))

        _, states = taken(make())
        with pytest.raises(ad.StateError, match="not known whether"), make().iterator(state=states[1]) as it:
            list(it)
        elements, states = taken(make())
        again = make()
        with again.iterator(state=states[0]) as it:
            assert plain(list(it)) == plain(elements)


@pytest.mark.parametrize("is_written", [False, True], ids=["being written", "written"])
@pytest.mark.parametrize("name", BEHIND)
def test_what_is_made_of_a_snapshot_has_its_order_or_is_refused(name: str, tmp_path: Path, *, is_written: bool) -> None:
    """Whoever holds its elements needs them again in the order in which they came, though the snapshot is gone."""

    def make() -> ad.Dataset:
        snapshot = D.range(20).shuffle(7).snapshot(f"{tmp_path}/kept", shard_func=lambda x: x % 3)
        return BEHIND[name](snapshot, f"{tmp_path}/behind")

    with ad.Runtime(ad.Options(num_workers=0)):
        if is_written:
            list(D.range(20).shuffle(7).snapshot(f"{tmp_path}/kept", shard_func=lambda x: x % 3))
        elements, states = taken(make())
        refused = []
        for position in every(states):
            with make().iterator(state=states[position]) as it:
                assert plain(list(it)) == plain(elements[position:]), position
        # In front of the first element of it, nobody knows that it will be read.
        for position in range(2, len(states), 1 if SOAK else 3):
            removed(tmp_path)
            try:
                with make().iterator(state=states[position]) as it:
                    assert plain(list(it)) == plain(elements[position:]), position
            except ad.StateError as error:
                assert "it is not there" in str(error)  # noqa: PT017 -- some states are not refused
                refused.append(position)
        assert not is_written or refused
