"""Rows that stages collect may be moved whenever anybody waits for memory; nobody sees it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.memory.accounts import Account, Ticket
from asyncdata.memory.columns import RefColumn
from asyncdata.runtime.memory.budget import Budget
from asyncdata.runtime.memory.evacuate import move_rows, spaces
from asyncdata.runtime.memory.table_strings import strings_of_tables
from asyncdata.runtime.stages.order import inputs

MIB = 1 << 20
COUNT = 60


def wide(number: Any) -> Any:
    """Something that is collected in slabs."""
    return np.full(int(number) % 7 * 900 + 100, int(number), np.int32)


def pair(number: Any) -> Any:
    """Two leaves, of which one is a text."""
    return {"array": wide(number), "text": str(int(number)) * 300}


def even(number: Any) -> Any:
    """Elements that are alike."""
    return np.full(700, int(number), np.int64), b"%d" % int(number) * 200


def first(*leaves: Any) -> Any:
    """A user's function in a thread."""
    return leaves[0] * 2


def _records(folder: Path) -> ad.Dataset:
    paths = [str(folder / f"{shard}.tfrecord") for shard in range(3)]
    for shard, path in enumerate(paths):
        with ad.TFRecordWriter(path) as writer:
            writer.write_many(b"%d,%d " % (shard, record) * 300 for record in range(COUNT // 3))
    return ad.Dataset.from_tensor_slices(paths).interleave(ad.TFRecordDataset, 2)


def _joined(*leaves: Any) -> ad.Dataset:
    return ad.Dataset.zip(leaves) if len(leaves) > 1 else leaves[0]


SOURCES: dict[str, Callable[[Path], ad.Dataset]] = {
    "arrays": lambda _: ad.Dataset.range(COUNT).map(wide),
    "nests": lambda _: ad.Dataset.range(COUNT).map(pair),
    "alike": lambda _: ad.Dataset.range(COUNT).map(even),
    "results": lambda _: ad.Dataset.range(COUNT).map(even, 3, executor="thread"),
    "records": _records,
}

STEPS: dict[str, Callable[[ad.Dataset], ad.Dataset]] = {
    "shuffle": lambda ds: ds.shuffle(20, seed=1),
    "shuffle, padded batch": lambda ds: ds.shuffle(20, seed=1).padded_batch(7),
    "padded batch": lambda ds: ds.padded_batch(40).prefetch(1),
    "shuffle, ragged batch": lambda ds: ds.shuffle(9, seed=1).ragged_batch(7),
    "shuffle, rebatch": lambda ds: ds.shuffle(20, seed=1).ragged_batch(7).unbatch().shuffle(5, seed=2),
    "zip": lambda ds: ad.Dataset.zip((ds.shuffle(20, seed=1), ds.shuffle(30, seed=2).prefetch(3))),
    "window": lambda ds: ds.shuffle(9, seed=1).window(5, shift=3).flat_map(lambda *_: ad.Dataset.range(2)),
    "windows of leaves": lambda ds: ds.shuffle(9, seed=1).batch(1).unbatch().window(5),
    "groups": lambda ds: ds.shuffle(9, seed=1).group_by_window(lambda *_: 0, lambda _, rows: rows.padded_batch(3), 8),
    "groups, twice": lambda ds: ds.group_by_window(lambda *_: 0, lambda _, rows: rows.repeat(2), 8).padded_batch(40),
    "repeat": lambda ds: ds.shuffle(50, seed=1, reshuffle_each_iteration=False).repeat(2).prefetch(5),
}
OF_ARRAYS: dict[str, Callable[[ad.Dataset], ad.Dataset]] = {
    "batch": lambda ds: ds.shuffle(9, seed=1).batch(7),
    "mapped": lambda ds: ds.shuffle(20, seed=1).map(first, 4, executor="thread").shuffle(9, seed=2).batch(5),
    "mapped batches": lambda ds: ds.shuffle(20, seed=1).map(first, 4, executor="thread").batch(5),
}
OF_BATCHES: dict[str, Callable[[ad.Dataset], ad.Dataset]] = {
    "shuffled": lambda ds: ds.shuffle(20, seed=1).batch(3).shuffle(9, seed=2),
    "split": lambda ds: ds.batch(4).shuffle(7, seed=1).unbatch().shuffle(9, seed=2).batch(5),
    "of batches": lambda ds: ds.shuffle(20, seed=1).batch(3, drop_remainder=True).shuffle(9, seed=2).batch(2),
    "in windows": lambda ds: ds.batch(3).shuffle(9, seed=1).window(3, shift=2).flat_map(_joined),
}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, ad.Dataset):
        return [_plain(item) for item in value]
    if isinstance(value, ad.RaggedArray):
        return _plain(list(value))
    return value.tolist() if hasattr(value, "tolist") else value


def _shake(budget: Budget) -> int:
    """Moves every row that may be moved to another slab; where it was is overwritten when nobody else holds that."""
    slabs = budget.slabs
    columns = [
        column
        for holder in list(budget.holders)
        for column in holder.movable()
        if isinstance(column, RefColumn) and len(column)
    ]
    tables = strings_of_tables(columns, slabs) if columns else []
    columns += [strings.column for strings in tables]
    counts = Counter(index for column in columns for index in slabs.of_rows(column.rows[:, 0]).tolist())
    whole = {index for index, count in counts.items() if slabs.holds(slabs.slab(index)) == count}
    before = [slabs.slab(index) for index in whole]
    chosen = [np.flatnonzero(np.isin(slabs.of_rows(column.rows[:, 0]), list(whole))) for column in columns]
    accounts: list[Account] = [slabs.at(int(column.rows[0, 0])).account.account for column in columns]
    nbytes = [max(int(spaces(column)[rows].sum()), 1) for column, rows in zip(columns, chosen, strict=True)]
    targets = [budget.owe(account, size) for account, size in zip(accounts, nbytes, strict=True)]
    for column, places, target in zip(columns, chosen, targets, strict=True):
        if len(places):
            move_rows(column, places, spaces(column)[places], target.offset)
    for strings in tables:
        strings.write_tables()
    alive = set(map(id, slabs.alive()))
    for slab in before:
        assert id(slab) not in alive
        slabs.arena.array[slab.offset : slab.offset + slab.nbytes] = 0xA5
    slabs.drop_each(targets)
    budget.moved += 1
    return sum(map(len, chosen))


CASES = [(source, step) for source in SOURCES for step in STEPS]
CASES += [(source, step) for source in ("alike", "results") for step in OF_ARRAYS]
CASES += [(source, step) for source in ("alike", "records") for step in OF_BATCHES]


@pytest.mark.sampled
@pytest.mark.parametrize(("source", "step"), CASES)
def test_elements_are_the_same(source: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever collects them, and whatever it is in the middle of while it waits."""
    options = ad.Options(memory_limit_bytes=64 * MIB, num_workers=0, num_threads=2, chunk_bytes=MIB)
    monkeypatch.setattr(inputs, "_MOST_LOOSE_BYTES", 0)  # so that rows of small batches are in slabs, too

    def outcome() -> Any:
        dataset = {**STEPS, **OF_ARRAYS, **OF_BATCHES}[step](SOURCES[source](tmp_path))
        try:
            return [_plain(element) for element in dataset.with_options(options)]
        except ad.AsyncdataError as error:
            return type(error)  # elements that do not go together

    expected = outcome()
    granted = Budget._granted
    moved = 0

    async def moving(self: Budget, account: Account, nbytes: int) -> Ticket:
        nonlocal moved
        moved += _shake(self)
        return await granted(self, account, nbytes)

    monkeypatch.setattr(Budget, "_granted", moving)
    assert outcome() == expected
    assert moved or isinstance(expected, type) or source in {"results", "records"}
