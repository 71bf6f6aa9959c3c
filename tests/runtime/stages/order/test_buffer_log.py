"""`BufferLog` against a buffer that is copied for every row, and that a shuffle puts nothing together unasked."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.memory.columns import ArrayColumn, Column, ObjectColumn
from asyncdata.runtime.stages.order import shuffle
from asyncdata.runtime.stages.order.buffer_log import BufferLog
from asyncdata.runtime.stages.order.history_columns import used_of
from asyncdata.runtime.state.places import Places
from tests.samples import samples


def history(rows: list[int], *, several: bool) -> Column:
    """What rows use up: one pair each, or one and another one."""
    pairs = [np.array([[0, row], [1, row]][: 1 + several * (row % 2)], np.int64) for row in rows]
    return ObjectColumn(pairs) if several else ArrayColumn(np.array(pairs))


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("seed", range(samples(10, 300)))
def test_every_row_is_known_afterwards(seed: int, *, several: bool) -> None:
    """Whatever has come since, and whatever becomes of the arrays that it began with."""
    draw = random.Random(seed)
    size, rows = draw.randint(1, 9), 0
    buffer = list(range(size))
    began = [np.array(buffer), np.array(buffer) * 10]
    log = BufferLog(began, history(buffer, several=several))
    began[0][:] = -1
    expected = [buffer.copy()]
    for _ in range(draw.randint(0, 5)):
        fresh = list(range(100 + rows, 100 + rows + draw.randint(1, 12)))
        slots = [draw.randrange(size) for _ in fresh]
        log.take(np.array(slots), [np.array(fresh), np.array(fresh) * 10], history(fresh, several=several))
        rows += len(fresh)
        for slot, row in zip(slots, fresh, strict=True):
            buffer[slot] = row
            expected.append(buffer.copy())
    assert log.rows == rows
    for count, held in enumerate(expected):
        (numbers, tens), used = log.at(count)
        assert (numbers.tolist(), tens.tolist()) == (held, [10 * row for row in held])
        known, wanted = used_of(used), used_of(history(held, several=several))
        assert known is not None
        assert wanted is not None
        assert known.pairs.tolist() == wanted.pairs.tolist()


def test_what_the_buffer_held_is_put_together_when_a_state_is_asked_for(tmp_path: Path, monkeypatch: Any) -> None:
    """Not for each of its marks, most of which nobody ever looks at."""
    made = []

    class Counted(Places):
        __slots__ = ()

        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            made.append(1)
            super().__init__(*arguments, **keywords)

    monkeypatch.setattr(shuffle, "Places", Counted)
    with ad.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        writer.write_many([b"%d" % row for row in range(20_000)])
    dataset = ad.TFRecordDataset(str(tmp_path / "a.tfrecord")).shuffle(500, seed=1).batch(100)
    with ad.Runtime(ad.Options(num_workers=0)), dataset.iterator() as it:
        elements = [list(next(it)) for _ in range(100)]
        assert not made
        state = it.state_dict()
        assert len(made) == 1
        elements += map(list, it)
    with dataset.iterator(state=state) as it:
        assert list(map(list, it)) == elements[100:]
