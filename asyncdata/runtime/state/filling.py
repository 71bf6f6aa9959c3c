"""`Filling`: in which run a `cache()` in memory, or what is kept in files, was filled.

A cache that other epochs read is gone with its process. Behind a state it is filled again, in the run that had filled
it: another one may have another order, other random numbers, or another seed. Marks of elements that were read from a
cache say which run that was; a state says it of all caches of its plan, because in front of the first element there is
no mark. What is kept in files says itself which run has written it, so that a state does not mix two of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from asyncdata.memory.advance import FILLING, Mark, State
from asyncdata.plan.grouping import Cache
from asyncdata.plan.node import Node, rebuilt, walk
from asyncdata.runtime.state.json_codec import from_json, to_json


class Filling(NamedTuple):
    """What the order and the random numbers of the elements follow from.

    A dataset may be used several times in one pipeline, and any of the uses may be complete first. So all uses of a
    cache fill it in the same run, as if the dataset stood alone.

    Attributes:
        seed: Of the pipeline.
        epoch: Path of repeat counters.
        element: Provenance of the elements around the dataset; of a cache as far as it was made of these, and nothing
            of where it is used.
        begins: The input's state in front of its first element, as JSON can hold it, where the input read what was kept
            itself: a snapshot may be read in another order than it was written. None: it begins at the beginning.
    """

    seed: int
    epoch: tuple[int, ...]
    element: tuple[int, ...] = ()
    begins: Any = None

    @property
    def run(self) -> dict[str, Any]:
        """What scopes know."""
        return {"seed": self.seed, "epoch": self.epoch, "element": self.element}

    @property
    def input(self) -> State | None:
        """What the input is brought back to."""
        state: State | None = from_json(self.begins)
        return state

    def beginning(self, state: State | None) -> Filling:
        """The same run, whose input began at a state; one that is known already counts."""
        return self if state is None or self.begins is not None else self._replace(begins=to_json(state))

    def to_mark(self) -> list[Any]:
        """As JSON can hold it."""
        run = [self.seed, list(self.epoch), list(self.element)]
        return run if self.begins is None else [*run, self.begins]

    @classmethod
    def from_mark(cls, value: Any) -> Filling:
        """What `to_mark` made.

        Raises:
            TypeError: It is damaged.
            ValueError: It is damaged.
        """
        seed, epoch, element, *begins = value
        if len(begins) > 1 or not all(type(number) is int for number in (seed, *epoch, *element)):
            raise TypeError("the run of a cache")
        if begins and not isinstance(from_json(begins[0]), State):
            raise TypeError("what the input of a cache begins at")
        return cls(seed, tuple(epoch), tuple(element), *begins)


class Told(NamedTuple):
    """What the mark of a `cache` or `snapshot` says.

    Attributes:
        filling: The run in which the elements were made; None where what is kept does not say it.
        kept: Whether they were read from what is kept; otherwise it was not complete, and they were being written.
    """

    filling: Filling | None
    kept: bool

    @classmethod
    def of(cls, mark: Mark) -> Told | None:
        """What a mark says; None where it is of an earlier version, or there is none."""
        if mark is None or "kept" not in mark:
            return None
        filling = mark.get(FILLING)
        return cls(filling and Filling.from_mark(filling), bool(mark["kept"]))

    def to_mark(self) -> dict[str, Any]:
        """As a part of a mark."""
        return {FILLING: self.filling and self.filling.to_mark(), "kept": self.kept}


def memory_cells(plan: Node) -> list[Any]:
    """What caches in memory keep; each knows the run that has filled it, or must fill it."""
    return [node.cell for node in walk(plan) if isinstance(node, Cache) and node.filename is None]


def fillings_of(plan: Node) -> list[tuple[Any, Filling | None]]:
    """What caches in memory keep, and the runs that fill it as it is now; for `put_back`."""
    return [(cell, cell.filling) for cell in memory_cells(plan)]


def put_back(fillings: Sequence[tuple[Any, Filling | None]]) -> None:
    """A state was refused: what is still empty is not to be filled by the run that it names."""
    for cell, filling in fillings:
        if cell.images is None:
            cell.filling = filling


def brought_back(plan: Node, fillings: Sequence[Filling | None]) -> Node:
    """The plan, with caches in memory as they were: filled by the same run, or to be filled by it, or by none.

    What another run has filled here since is left to other iterations; this one fills an empty cell instead.
    """
    others: dict[int, Any] = {}
    for cell, filling in zip(memory_cells(plan), fillings, strict=False):
        if cell.images is None:
            cell.filling = filling
        elif cell.filling != filling:
            others[id(cell)] = cell.empty(filling)
    if not others:
        return plan

    def change(old: Node, new: Node) -> Node:
        other = others.get(id(old.cell)) if isinstance(old, Cache) else None
        return new if other is None else dataclasses.replace(new, cell=other)  # type: ignore[call-arg]  # caches have it

    return rebuilt(plan, change)
