"""The law of restoring, as functions to be called from a test: a state gives exactly the elements that were left.

A step is brought back to a state while it is lowered: a rule divides the state among the step and its inputs, see
`asyncdata.runtime.state.resume`. So the law is about plans, and these are as small as they can be: one step over
scripted sources, which are cut as in ``laws``. Each run makes the plan anew; its state comes through JSON. The laws:

* *Restore at every step*: behind a state, elements, provenance and the error at the end are those that were left,
  however input and output are cut into blocks; so they are behind a state that is taken then. What states say of the
  position does not depend on how blocks are cut.
* *Exactly once*, where elements have no fixed order: what was delivered in front of a state and what comes behind it
  are together what one run delivers; so are the three parts that two states make.

With a thousand rows from one mark to the next, all states of short scripts would be those of the first mark:
`mark_often` puts marks closer together.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import pytest

import asyncdata as ad
from asyncdata.memory.accounts import Account
from asyncdata.memory.advance import State
from asyncdata.memory.arena import Arena
from asyncdata.memory.block import Block
from asyncdata.plan.node import Node
from asyncdata.plan.transformations import Prefetch
from asyncdata.runtime.lower import registry
from asyncdata.runtime.lower.registry import lower, lowers
from asyncdata.runtime.memory.budget import Budget
from asyncdata.runtime.reading.source_table import SourceTable
from asyncdata.runtime.scope import Scope
from asyncdata.runtime.stage import Stage, StageContext
from asyncdata.runtime.stages.group import collecting
from asyncdata.runtime.stages.order import shuffle
from asyncdata.runtime.stages.rows import scan
from asyncdata.runtime.stages.sources import framed
from asyncdata.runtime.state import left_in_files, marker
from asyncdata.runtime.state.json_codec import from_json
from asyncdata.runtime.state.marker import Marker
from asyncdata.runtime.state.resume import Resume, passed_on
from tests.runtime.stages.laws import Event, Kinds, Scripted, plain, script

MARK_EVERY = 5
"""Elements between two marks."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Script(Node):
    """A scripted source."""

    events: tuple[Event, ...]
    kind: Kinds
    fail: bool
    cuts: random.Random | None

    @property
    def settings(self) -> dict[str, Any]:
        """How it is cut is no part of the plan."""
        return {"events": self.events, "kind": self.kind, "fail": self.fail}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Watched(Prefetch):
    """Passes elements on, as many at a time as comes, and notes their provenance."""

    cuts: random.Random | None
    origins: list[Any]


@dataclass
class _Place:
    """See `laws.Around`."""

    cuts: random.Random | None
    own: StageContext
    arena: Arena
    budget: Budget = field(init=False)
    sources: SourceTable = field(init=False)
    read: Account = field(init=False)
    tracked: bool = False

    def __post_init__(self) -> None:
        self.budget, self.sources, self.read = self.own.budget, self.own.sources, self.own.rows

    def context(self, label: str) -> StageContext:
        """What the stage is given."""
        return dataclasses.replace(self.own, label=label)


def _at_its_mark(node: Any, state: State) -> Resume:
    return Resume(state.mark, drop=state.skip)


@lowers(Script, label=lambda _: "script", resumes=_at_its_mark)
def _script(node: Script, scope: Scope, context: StageContext) -> Stage:
    place = _Place(node.cuts, context, scope.services.runtime.arena)
    return Scripted(place, node.events, node.kind, fail=node.fail)


class _WatchedStage(Stage):
    def __init__(self, context: StageContext, upstream: Stage, node: Watched) -> None:
        super().__init__(context, (upstream,))
        self._node = node

    async def _pull(self, limit: int) -> Block | None:
        cuts = self._node.cuts
        if cuts is not None:
            limit = cuts.randint(1, min(limit, 9))
            if cuts.random() < 0.3:
                await asyncio.sleep(0)
        block = await self.inputs[0].pull(limit)
        if block is not None:
            assert len(block) <= limit
            self._node.origins.extend(block.origin.tolist())
        return block


@lowers(Watched, label=lambda _: "watched", resumes=passed_on)
def _watched(node: Watched, scope: Scope, context: StageContext) -> Stage:
    return _WatchedStage(context, lower(node.input, scope.below()), node)


class Scripts:
    """Makes the sources of one run.

    Args:
        cuts: Draws how blocks are cut; None for blocks as large as they are asked for.
    """

    def __init__(self, cuts: random.Random | None = None) -> None:
        self.cuts = cuts

    def __call__(
        self, count: int = 40, first: int = 0, *, kind: Kinds = "array", drops: bool = True, fail: bool = False
    ) -> ad.Dataset:
        """The numbers from `first` on, so many, as elements of some kind."""
        events = tuple(script(count, first=first, drops=drops))
        return ad.Dataset(Script(events=events, kind=kind, fail=fail, cuts=self.cuts))

    def watched(self, dataset: ad.Dataset, origins: list[Any]) -> ad.Dataset:
        """The same elements, cut in other places."""
        return ad.Dataset(Watched(input=dataset._node, buffer_size=1, cuts=self.cuts, origins=origins))


Make: TypeAlias = Callable[[Scripts], ad.Dataset]


class Run(NamedTuple):
    """What a consumer sees.

    Attributes:
        elements: As plain data.
        origins: Their provenance.
        states: In front of each, behind the last one, and when the end or an error was met; None: was not asked for.
        error: What ended it.
    """

    elements: list[Any]
    origins: list[Any]
    states: list[Any]
    error: str | None

    @property
    def positions(self) -> list[Any]:
        """What the states behind elements say of the position."""
        return [plain(from_json(state["state"])) for state in self.states[1:]]

    def check_rest_of(self, expected: Run, place: int, where: str) -> None:
        """Raises ``AssertionError`` if it is not what is left of another run behind a state."""
        assert self.elements == expected.elements[place:], where
        assert self.origins == expected.origins[place:], where
        assert self.error == expected.error, where


def run(make: Make, seed: int | None, state: Any = None, at: int | None = None) -> Run:
    """Runs steps that are made anew, from a state on.

    Args:
        make: Makes them.
        seed: Of the cuts.
        state: Where it begins.
        at: Which of its states is wanted; None for all.
    """
    scripts = Scripts(None if seed is None else random.Random(seed))
    origins: list[Any] = []
    dataset = scripts.watched(make(scripts), origins).with_options(ad.Options(seed=7))
    elements: list[Any] = []
    states: list[Any] = []
    error = None
    with dataset.iterator(state=json.loads(json.dumps(state))) as it:

        def note() -> None:
            states.append(it.state_dict() if at in (None, len(states)) else None)

        note()
        try:
            for element in it:
                elements.append(plain(element))
                note()
        except Exception as raised:  # noqa: BLE001 -- compared
            error = f"{type(raised).__name__}: {raised}"
        note()
    return Run(elements, origins, states, error)


def check_restoring(make: Make, *, seeds: Iterable[int], places: int, kept: bool = False) -> Run:
    """The law of restoring; the error names where. Returns the run that all others are compared with.

    Args:
        make: Makes the steps.
        seeds: Of the cuts.
        places: States that are restored, beside that of the beginning, of each way of cutting.
        kept: Whether what one run leaves may be found by the next one, and be part of its states.
    """
    if kept:
        run(make, None)
    expected = run(make, None)
    for seed in seeds:
        draw = random.Random(seed)
        again = run(make, seed, expected.states[0])
        again.check_rest_of(expected, 0, f"seed {seed}, from 0")
        assert again.positions == expected.positions, f"states by seed {seed}"
        for place in _drawn(draw, range(1, len(expected.states)), places):
            later = draw.randrange(place, len(expected.states))
            where = f"seed {seed}, from {place}"
            rest = run(make, seed, expected.states[place], later - place)
            rest.check_rest_of(expected, place, where)
            rest = run(make, seed + 1, rest.states[later - place], 0)
            rest.check_rest_of(expected, later, f"{where}, then from {later}")
    return expected


def _drawn(draw: random.Random, places: range, most: int) -> list[int]:
    """Some of these."""
    return sorted(draw.sample(places, min(most, len(places))))


def check_once(make: Make, *, seeds: Iterable[int], places: int, count: bool = False) -> Run:
    """The law of exactly once; the error names where. Returns a run that was whole.

    Args:
        make: Makes the steps.
        seeds: Of the cuts.
        places: States that are restored, of each way of cutting.
        count: Whether only the number of elements is the same in every run.
    """
    whole = run(make, None)
    for seed in seeds:
        draw = random.Random(seed)
        first = run(make, seed)
        for place in _drawn(draw, range(len(first.states)), places):
            where = f"seed {seed}, from {place}"
            later = draw.randrange(len(first.states) - place)
            rest = run(make, seed + 1, first.states[place], later)
            _check_parts(first.elements[:place] + rest.elements, whole.elements, where, count=count)
            # The rest may be fewer batches than it was.
            if later < len(rest.states):
                again = run(make, seed + 2, rest.states[later], 0)
                parts = first.elements[:place] + rest.elements[:later] + again.elements
                _check_parts(parts, whole.elements, f"{where}, then {later} further", count=count)
    return whole


def _check_parts(parts: list[Any], whole: list[Any], where: str, *, count: bool) -> None:
    found, expected = leaves(parts), leaves(whole)
    if count:
        assert found.total() == expected.total(), where
    else:
        assert found == expected, f"{where}: {found - expected} too many, {expected - found} missing"


def leaves(elements: Any) -> Counter[str]:
    """What elements are made of, however they are grouped."""
    if isinstance(elements, list | tuple):
        found: Counter[str] = Counter()
        for element in elements:
            found.update(leaves(element))
        return found
    return Counter([repr(elements)])


@pytest.fixture
def mark_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Marks are close together, and what lies in files is read where it lies."""
    for module in (collecting, marker, scan, shuffle):
        monkeypatch.setattr(module, "MARK_EVERY", MARK_EVERY)
    monkeypatch.setattr(Marker.__init__, "__defaults__", (MARK_EVERY,))
    monkeypatch.setattr(framed, "_MARK_BYTES", 64)
    monkeypatch.setattr(left_in_files, "_DENSE", 0)
    monkeypatch.setattr(left_in_files, "_REQUEST_BYTES", 0)


@pytest.fixture
def brought_back(monkeypatch: pytest.MonkeyPatch) -> set[type[Node]]:
    """The kinds of steps that were in runs from a state on, so far."""
    found: set[type[Node]] = set()

    def noting(make: Any) -> Any:
        def noted(node: Any, scope: Scope, context: StageContext) -> Stage:
            if scope.services.is_resumed or scope.services.tracks._saved:
                found.add(type(node))
            made: Stage = make(node, scope, context)
            return made

        return noted

    for kind, (make, label, rule) in list(registry._LOWERINGS.items()):
        monkeypatch.setitem(registry._LOWERINGS, kind, (noting(make), label, rule))
    return found
