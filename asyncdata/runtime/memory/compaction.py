"""Packs the rows that stages collect when a pipeline has stalled, so that only sizes decide whether it fails.

A slab exists as long as one row points into it. How many rows a slab still has depends on which rows arrived together,
on when a buffer was tidied, and on which element the consumer got last. All of this is timing. Before a request fails,
every row that may be moved is therefore packed densely, beginning with the thinnest slabs:

    stalled ─▶ rows of thin slabs ─▶ a new slab, full of them ─▶ thin slabs are free ─▶ the request is granted, or fails

The strings of a batch are such rows, too: a table says where they lie, and is written again when they have moved. It
must be known whose table it is: the strings stay where they are if the slab of their table is in use.

**Why there is room.** While a pipeline is stalled, nobody else takes memory. The copies may therefore use any unused
memory for a moment, including reserves. At least a sixteenth of the limit is unused, because the consumer reserves an
eighth and waits with one delivery in hand, which is at most a sixteenth. Each step gives back more than it takes, so
all reserves are in force again at its end.

**What is left.** A slab of collected rows is full, except for less than a granule and the row that did not fit, or it
is in use: by a task, or by a window that is being reduced. Slabs that only the consumer still holds count against its
own reserve. So the memory of a stage that collects depends on the rows that it collects, and on nothing else.

Where there are very many rows, a call moves a part of them, so that the loop is not held up for long. The next call
looks at the rows anew: anything may have happened in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from asyncdata.errors import MemoryLimitError
from asyncdata.memory.accounts import Account, Kind
from asyncdata.memory.advance import Rows
from asyncdata.memory.columns import RefColumn
from asyncdata.memory.slabs import Slab
from asyncdata.runtime.memory.budget import Budget
from asyncdata.runtime.memory.evacuate import most_together, move_rows, spaces
from asyncdata.runtime.memory.table_strings import TableStrings, strings_of_tables

_SPARE: Final = 32
"""One part in so many of the limit is made free where that is cheap, so that the next stall is not at once."""
_THIN: Final = 3 / 4
"""It is cheap to empty slabs that are live to less than that."""
_CALLS: Final = 32
"""In so many calls all rows are moved, because each of them looks at all of them."""
_FEW_ROWS: Final = 10_000
"""So many are moved in one call, some milliseconds, whatever part of all they are."""


class _Group(NamedTuple):
    """Slabs whose rows go into one new slab, and how much of them is live."""

    slabs: list[Slab]
    live: int
    thin: bool


class Compaction:
    """See the module's docstring.

    Args:
        budget: Whose holders and slabs they are.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._columns: list[RefColumn] = []
        self._strings: list[TableStrings] = []
        self._starts: Rows = np.empty(0, np.int64)
        self._spaces: Rows = np.empty(0, np.int64)
        self._order: Rows = np.empty(0, np.int64)
        self._owners: Rows = np.empty(0, np.int64)

    def __call__(self) -> bool:
        """Moves rows until the first ask can be granted, or nothing more would come of it.

        Returns:
            Whether it is to be called again, in another round of the loop.
        """
        budget, kept = self._budget, self._budget.kept
        if kept.account is not None:
            budget.charge_consumer(budget.slabs.by_index(list(kept.counts)), kept.account)
        self._columns = [
            column
            for holder in list(budget.holders)
            for column in holder.movable()
            if isinstance(column, RefColumn) and len(column)
        ]
        # Arrays and tables begin on boundaries, and end on them. So they go in front of what takes just its length.
        self._columns.sort(key=lambda column: column.leaf is not None and column.leaf.kind not in ("array", "table"))
        if self._columns:
            self._strings = strings_of_tables(self._columns, budget.slabs)
            self._columns += [strings.column for strings in self._strings]
            self._look_at_rows()
            ask = budget.ledger.first_ask
            moved, most = 0, max(_FEW_ROWS, len(self._owners) // _CALLS)
            for account, group in self._groups():
                if moved >= most and budget.ledger.first_ask is ask:
                    self._end(moved)
                    return True
                enough = not group.thin or budget.ledger.free >= budget.limit // _SPARE
                if enough and budget.ledger.first_ask is not ask:
                    break
                moved += self._move(account, group)
            self._end(moved)
        return False

    def _end(self, moved: int) -> None:
        if moved:
            for strings in self._strings:
                strings.write_tables()
        self._columns, self._strings = [], []

    def _look_at_rows(self) -> None:
        """All rows in one table, in the order of their slabs."""
        columns = self._columns
        owners = self._budget.slabs.of_rows(np.concatenate([column.rows[:, 0] for column in columns]))
        self._spaces = np.concatenate([spaces(column) for column in columns])
        self._starts = np.cumsum([0, *map(len, columns)])
        # Sorting numbers of 16 bits is ten times as fast.
        narrow = owners.astype(np.uint16) if owners.max() < 1 << 16 else owners
        self._order = np.argsort(narrow, kind="stable")
        self._owners = owners[self._order].astype(np.int64)

    def _groups(self) -> Iterator[tuple[Account, _Group]]:
        """What goes together, of each account, the thinnest slabs first."""
        slabs = self._budget.slabs
        live = np.bincount(self._owners, weights=self._spaces[self._order])
        counts = np.bincount(self._owners)
        chosen = [
            (live[index] / slabs.slab(index).nbytes, index)
            for index in np.flatnonzero(counts).tolist()
            if self._may_empty(slabs.slab(index), int(counts[index]))
        ]
        most = most_together(self._budget.limit)
        open_groups: dict[Account, _Group] = {}
        for density, index in sorted(chosen):
            slab, nbytes = slabs.slab(index), int(live[index])
            account: Account = slab.account.account
            group = open_groups.get(account)
            if group is not None and group.live + nbytes > most:
                yield account, group
                group = None
            before = [] if group is None else group.slabs
            open_groups[account] = _Group(
                [*before, slab], nbytes + (0 if group is None else group.live), density < _THIN
            )
        yield from open_groups.items()

    def _may_empty(self, slab: Slab, rows: int) -> bool:
        """Whether its charge ends with these rows: it is given back then, or is the consumer's."""
        budget = self._budget
        if slab.account.account.kind is not Kind.ASSEMBLER:
            return False
        lent = budget.kept.counts.get(slab.index, 0)
        if budget.slabs.holds(slab) != rows + lent:
            return False
        consumer = budget.kept.account
        return not lent or (consumer is not None and consumer.own + slab.nbytes <= consumer.backed)

    def _move(self, account: Account, group: _Group) -> int:
        """Moves the rows of some slabs to a new one, if that is smaller than they are; returns how many it moved."""
        budget, slabs = self._budget, self._budget.slabs
        cost = budget.charge(group.live)
        if cost >= sum(slab.nbytes for slab in group.slabs) or cost > budget.limit - budget.ledger.used:
            return 0
        consumer = budget.kept.account
        lent = [slab for slab in group.slabs if slab.index in budget.kept.counts]
        if lent and consumer is not None and consumer.own + sum(slab.nbytes for slab in lent) > consumer.backed:
            return 0  # others found room there before
        try:
            target = budget.owe(account, group.live)
        except (MemoryLimitError, OSError):
            return 0  # the ask fails for want of it, and says so
        at = target.offset
        chosen = np.sort(np.concatenate([self._places(slab) for slab in group.slabs]))
        cuts = np.searchsorted(chosen, self._starts)
        for number, column in enumerate(self._columns):
            places = chosen[cuts[number] : cuts[number + 1]]
            if len(places):
                at = move_rows(column, places - self._starts[number], self._spaces[places], at)
        slabs.drop(target)
        budget.moved += 1
        if consumer is not None:
            budget.charge_consumer(lent, consumer)
        return len(chosen)

    def _places(self, slab: Slab) -> Rows:
        """Which rows lie in a slab."""
        begin, end = np.searchsorted(self._owners, [slab.index, slab.index + 1])
        return self._order[begin:end]
