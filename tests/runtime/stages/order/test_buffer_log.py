"""`BufferLog` against a buffer that is copied for every row, and that a shuffle puts nothing together unasked."""

from __future__ import annotations

import queue
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.memory.columns import ArrayColumn, Column, ObjectColumn
from asyncdata.runtime.stages.order import shuffle
from asyncdata.runtime.stages.order.buffer_log import BufferLog, BufferMoment
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
    """As long as somebody has its moment: whatever has come since, and whatever becomes of the first arrays."""
    draw = random.Random(seed)
    size, rows = draw.randint(1, 9), 0
    buffer = list(range(size))
    began = [np.array(buffer), np.array(buffer) * 10]
    log = BufferLog(began, history(buffer, several=several))
    began[0][:] = -1
    kept: list[tuple[BufferMoment, list[int]]] = []

    def look(count: int) -> None:
        if draw.random() < 0.7:
            kept.append((log.moment(count), buffer.copy()))

    look(0)
    for _ in range(draw.randint(0, 12)):
        fresh = list(range(100 + rows, 100 + rows + draw.randint(1, 12)))
        slots = [draw.randrange(size) for _ in fresh]
        log.take(np.array(slots), [np.array(fresh), np.array(fresh) * 10], history(fresh, several=several))
        for slot, row in zip(slots, fresh, strict=True):
            buffer[slot] = row
            rows += 1
            look(rows)
        for _ in range(draw.randint(0, 2 * len(kept))):
            kept.pop(draw.choice([0, 0, draw.randrange(len(kept))])) if kept else None
    assert log.rows == rows
    for moment, held in kept:
        (numbers, tens), used = moment.held()
        assert (numbers.tolist(), tens.tolist()) == (held, [10 * row for row in held])
        known, wanted = used_of(used), used_of(history(held, several=several))
        assert known is not None
        assert wanted is not None
        assert known.pairs.tolist() == wanted.pairs.tolist()


def test_rows_that_nobody_needs_are_not_kept() -> None:
    """However many come: beside the base there are those since the oldest moment, and a part of the buffer."""
    size, every = 800, 10
    log = BufferLog([np.zeros(size, np.int64)], history(list(range(size)), several=False))
    moment = log.moment(0)
    for begin in range(0, 10 * size, every):
        slots = np.arange(begin, begin + every) % size
        log.take(slots, [np.arange(begin, begin + every)], history(list(range(every)), several=False))
        moment = log.moment(log.rows)
        assert log.kept_rows <= size // 4 + 2 * every
    begin = log.rows
    for _ in range(2 * size // every):
        log.take(np.arange(every), [np.arange(every)], history(list(range(every)), several=False))
    assert log.kept_rows >= 2 * size
    assert moment.held()[0][0].tolist() == list(range(begin - size, begin))


def test_threads_may_ask_while_rows_come() -> None:
    """The answer is what the buffer held at the moment that they ask about."""
    size, every = 64, 16
    log = BufferLog([np.arange(size)], history(list(range(size)), several=False))
    moments: queue.Queue[tuple[BufferMoment, int] | None] = queue.Queue(8)
    wrong: list[tuple[int, list[int]]] = []

    def ask() -> None:
        while (item := moments.get()) is not None:
            moment, rows = item
            numbers = moment.held()[0][0].tolist()
            if sorted(numbers) != list(range(rows, rows + size)):
                wrong.append((rows, numbers))
            del moment, item

    thread = threading.Thread(target=ask)
    thread.start()
    for rows in range(0, samples(200_000, 5_000_000), every):
        fresh = np.arange(rows + size, rows + size + every)
        log.take(fresh % size, [fresh], history(fresh.tolist(), several=False))
        moments.put((log.moment(rows + every), rows + every))
    moments.put(None)
    thread.join()
    assert not wrong


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
