"""A buffer of references does not pin several times what it needs: slabs that are thinly used are emptied."""

from __future__ import annotations

import random

import numpy as np
import pytest

from asyncdata.memory.advance import Rows
from asyncdata.memory.columns import RefColumn
from asyncdata.memory.leaf import BYTES
from asyncdata.runtime.memory.evacuate import Evacuator
from tests.runtime.stages.laws import LIMIT_BYTES, Bench

_ROW = 1 << 15
_PER_SLAB = 64
_SLAB = _ROW * _PER_SLAB


async def _filled(bench: Bench, slabs: int, keep: float, seed: int) -> tuple[RefColumn, list[bytes]]:
    """A buffer that holds this part of the rows of so many slabs, and what the rows are."""
    draws = random.Random(seed)
    rows: list[tuple[int, int]] = []
    contents: list[bytes] = []
    for _ in range(slabs):
        slab = await bench.budget.take(bench.rows, _SLAB)
        kept = [row for row in range(_PER_SLAB) if draws.random() < keep]
        for row in kept:
            at = slab.offset + row * _ROW
            content = draws.randbytes(_ROW)
            bench.budget.slabs.arena.view[at : at + _ROW] = content
            rows.append((at, _ROW))
            contents.append(content)
        bench.budget.slabs.hold_rows(np.array([at for at, _ in rows[len(rows) - len(kept) :]], np.int64))
        bench.budget.slabs.drop(slab)
    order = draws.sample(range(len(rows)), len(rows))
    table: Rows = np.array([rows[i] for i in order], np.int64).reshape(-1, 2)
    return RefColumn(bench.budget.slabs, table, BYTES), [contents[i] for i in order]


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("slabs", "keep"), [(20, 0.5), (20, 0.3), (28, 0.4), (12, 0.05)])
async def test_no_more_than_half_of_the_limit_is_pinned_where_much_less_is_needed(
    slabs: int, keep: float, seed: int
) -> None:
    """What is left are the same rows, in less memory; never more than it was."""
    bench = Bench()
    column, contents = await _filled(bench, slabs, keep, seed)
    before = bench.rows.used
    evacuate = Evacuator(bench.budget, bench.rows)
    for _ in range(4):
        await evacuate([column])
    view = bench.budget.slabs.arena.view
    assert [bytes(view[at : at + size]) for at, size in column.rows.tolist()] == contents
    assert bench.rows.used <= before
    assert bench.rows.used < max(LIMIT_BYTES // 2, 1.5 * len(contents) * _ROW)
    assert evacuate.copied_bytes <= 3 * _SLAB * slabs
    column.release()
    assert not bench.rows.used
    await bench.put_back(None)


async def test_a_slab_that_others_hold_stays_where_it_is() -> None:
    """Copying its rows would free nothing."""
    bench = Bench()
    column, _ = await _filled(bench, 24, 0.3, 1)
    held = bench.budget.slabs.alive()
    for slab in held:
        bench.budget.slabs.hold(slab)
    places = column.rows.copy()
    evacuate = Evacuator(bench.budget, bench.rows)
    await evacuate([column])
    assert (column.rows == places).all()
    assert not evacuate.copied_bytes
    for slab in held:
        bench.budget.slabs.drop(slab)
    column.release()
    await bench.put_back(None)


async def test_a_buffer_that_pins_little_is_left_alone() -> None:
    """Copying costs more than memory that nobody needs."""
    bench = Bench()
    column, _ = await _filled(bench, 6, 0.02, 1)
    evacuate = Evacuator(bench.budget, bench.rows)
    await evacuate([column])
    assert not evacuate.copied_bytes
    column.release()
    await bench.put_back(None)
