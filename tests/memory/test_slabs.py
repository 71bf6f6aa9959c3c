"""Slabs live exactly as long as anything holds them."""

from __future__ import annotations

import errno

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.memory.arena import GRANULE, Arena
from asyncdata.memory.slabs import Slab, Slabs
from asyncdata.memory.spans import SpanAllocator
from tests.memory.places import place


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, GRANULE - 1)), max_size=40), st.data())
def test_counts_are_those_of_a_dict(rows: list[tuple[int, int]], data: st.DataObject) -> None:
    """Held and dropped a block at a time, every slab's count is what adding one by one gives."""
    with place() as found:
        slabs = [found.slabs.take(GRANULE * (1 + i % 2), i) for i in range(5)]
        counts = dict.fromkeys(range(5), 1)
        offsets = np.array([slabs[i].offset + at for i, at in rows], np.int64)
        found.slabs.hold_rows(offsets)
        for i, _ in rows:
            counts[i] += 1
        assert [found.slabs.holds(slab) for slab in slabs] == list(counts.values())
        cut = data.draw(st.integers(0, len(rows)))
        for slab in slabs:
            found.slabs.drop(slab)
        found.slabs.drop_rows(offsets[:cut])
        left = {i for i, _ in rows[cut:]}
        assert {slab.account for slab in found.slabs.alive()} == left
        assert {slab.account for slab in found.freed} == set(range(5)) - left
        found.slabs.drop_rows(offsets[cut:])


def test_offsets_lead_to_their_slab() -> None:
    """Every byte of a slab belongs to it, and no byte outside does."""
    with place() as found:
        one, two = found.slabs.take(3 * GRANULE, "one"), found.slabs.take(1, "two")
        assert found.slabs.at(one.offset) is found.slabs.at(one.offset + one.nbytes - 1) is one
        assert found.slabs.at(two.offset) is two
        assert two.nbytes == GRANULE
        indices = found.slabs.of_rows(np.array([two.offset, one.offset + GRANULE]))
        assert [found.slabs.slab(i) for i in indices.tolist()] == [two, one]
        found.slabs.drop(two)
        with pytest.raises(AssertionError):
            found.slabs.at(two.offset)
        with pytest.raises(AssertionError):
            found.slabs.slab(two.index)
        assert "1 alive" in repr(found.slabs)
        assert "bytes at" in repr(one)
        found.slabs.drop(one)


def test_releasing_more_often_than_held_is_noticed() -> None:
    """A hold given back twice is an error at once, not somebody else's corrupted record."""
    with place() as found:
        slab = found.slabs.take(1, None)
        found.slabs.drop(slab)
        with pytest.raises(AssertionError, match="more often than held"):
            found.slabs.drop(slab)


def test_many_slabs_at_a_time() -> None:
    """The table of slabs grows, and spans are used again last in, first out."""
    arena = Arena(1024 * GRANULE)
    slabs = Slabs(arena, SpanAllocator(arena.nbytes, 400 * GRANULE, GRANULE), lambda _: None)
    taken = [slabs.take(GRANULE, i) for i in range(300)]
    assert len({slab.offset for slab in taken}) == len(slabs) == 300
    slabs.drop(taken[17])
    assert slabs.take(GRANULE, None).offset == taken[17].offset
    slabs.close()
    arena.close()


def test_claimed_rows_become_one_hold_per_slab() -> None:
    """Whoever drops rows together holds each slab once for all of them."""
    with place() as found:
        column = found.column([b"a", b"b", b"c"])
        holds = found.slabs.holds_of(column.rows[:, 0])
        assert sorted(count for _, count in holds) == [1, 2]
        found.slabs.claim(holds)
        claimed = found.slabs.by_index([index for index, _ in holds])
        assert [found.slabs.holds(slab) for slab in claimed] == [1, 1]
        found.slabs.drop_each(claimed)
        assert len(found.slabs) == 0
        with pytest.raises(AssertionError, match="not in use"):
            found.slabs.by_index([index for index, _ in holds])


class _Full(Arena):
    """An arena on a file system that has become full."""

    def prepare(self, offset: int, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, f"full: {nbytes} bytes at {offset}")


def test_a_full_file_system_takes_nothing() -> None:
    """When pages cannot be reserved, the span goes back: the same place is found once there is room."""
    arena = _Full(64 * GRANULE)
    allocator = SpanAllocator(arena.nbytes, 8 * GRANULE, GRANULE)
    slabs = Slabs(arena, allocator, lambda _: None)
    for _ in range(20):
        with pytest.raises(OSError, match="full"):
            slabs.take(4 * GRANULE, None)
    assert allocator.used_bytes == 0
    assert len(slabs) == 0
    arena.close()


def test_the_owner_is_told_before_the_span_is_used_again() -> None:
    """Freed slabs are reported once, with the account that was charged last."""
    with place() as found:
        slab: Slab = found.slabs.take(10, "first")
        slab.account = "second"
        found.slabs.drop(slab)
        assert [freed.account for freed in found.freed] == ["second"]
