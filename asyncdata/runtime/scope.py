"""What lowering needs besides the node: the running pipeline's services, and the position in the plan."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import os
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from asyncdata.errors import QuarantineError
from asyncdata.memory.accounts import Account, Kind
from asyncdata.memory.advance import BEGINNING, State
from asyncdata.observe.parts import SkippedStats
from asyncdata.observe.stopwatch import Stopwatch
from asyncdata.observe.trace_ring import PipelineTrace
from asyncdata.options import AUTOTUNE, ErrorPolicy, Options, Storage, merged, merged_storage
from asyncdata.plan.node import Node
from asyncdata.planner.autotune import KnobRange
from asyncdata.planner.shards import NOTHING_BEHIND, Behind
from asyncdata.planner.sizes import Shares, divide
from asyncdata.planner.unordered import UnorderedPart
from asyncdata.runtime.error_policy import Skips, before_stats, sum_up
from asyncdata.runtime.life.runtime import Runtime
from asyncdata.runtime.life.threads import TimedThreads, in_thread
from asyncdata.runtime.memory.budget import Budget
from asyncdata.runtime.meter import Meter
from asyncdata.runtime.quarantine import Quarantine
from asyncdata.runtime.reading.io import Io
from asyncdata.runtime.reading.manifest import Manifest
from asyncdata.runtime.reading.source_table import SourceTable
from asyncdata.runtime.stage import Spawn, StageContext
from asyncdata.runtime.stages.store.freshness import Reads
from asyncdata.runtime.stages.store.stored import Charges
from asyncdata.runtime.stages.work.executors import ProcessExecutor, ThreadExecutor, dump
from asyncdata.runtime.stages.work.tasks import Executor
from asyncdata.runtime.state.choices import AllChoices, Choices
from asyncdata.runtime.state.document import Start
from asyncdata.runtime.state.listings import Listings
from asyncdata.runtime.state.news import News
from asyncdata.runtime.state.restored import Kept
from asyncdata.runtime.state.resume import BEGIN, Resume
from asyncdata.runtime.state.tracks import Owner, Tracks
from asyncdata.runtime.tracing import TracedMeter
from asyncdata.runtime.tuning.knob import Counted, Knob, Knobs
from asyncdata.workers.overtime import to_ns
from asyncdata.workers.program import OtherProgram, Program

_OPEN_S: Final = 10.0


_BLOCK_PART: Final = 64
"""Of the limit: what is not charged to anybody yet."""

_MOST_EXECUTORS: Final = 256
"""Functions that are recognized without being pickled again."""

_ACCOUNTS: Final = {
    "rows": ("rows for ", Kind.ASSEMBLER),
    "kept": ("", Kind.ASSEMBLER),
    "tasks": ("", Kind.FLOW),
    "inputs": ("inputs of ", Kind.FLOW),
    "ahead": ("", Kind.FLOW),
}
"""How the names of a stage's accounts begin, and their kinds; see `StageContext`."""


class Access(NamedTuple):
    """Storage as one set of storage options reaches it.

    Attributes:
        io: Reads.
        manifest: What is known about the files.
    """

    io: Io
    manifest: Manifest


class Services:
    """One pipeline's hold on its Runtime. Stage loop only.

    Args:
        runtime: The owner of everything lent here.
        budget: The part of its memory that is this pipeline's.
        settings: The options in force for the pipeline.
        seed: Of the pipeline.
        spawn: Starts a task of the pipeline.
        tracks: Of what is delivered in no fixed order.
        start: What the pipeline begins at.
        found: The settings that earlier iterations of the plan have found.
        trace: Where steps note what they do; None: nowhere.
    """

    def __init__(
        self,
        runtime: Runtime,
        budget: Budget,
        settings: Options,
        seed: int,
        spawn: Spawn,
        tracks: Tracks,
        start: Start,
        found: dict[str, int],
        trace: PipelineTrace | None,
    ) -> None:
        self.runtime = runtime
        self._trace = trace
        self.tracks = tracks
        notes = settings.order_log is not None
        logged = notes or start.choices is not None
        self.choices = AllChoices(notes=notes, recorded=start.choices) if logged else None
        self.settings = settings
        self.options = merged(Options(memory_limit_bytes=budget.limit), settings)
        self.seed = seed
        self.spawn = spawn
        self.budget = budget
        self.io: Io = runtime.io
        self.threads = runtime.threads
        self.meters: dict[str, Meter] = {}
        self.knobs = Knobs(spawn, budget, lambda: runtime.io.fetcher.window, runtime.pool_load, self.meters, found)
        self.sources = SourceTable()
        self._before = start.before
        self.listings = Listings(start.before.listings)
        began = start.state.state
        # In front of the first element only a seed that was drawn says that the run of the state is meant.
        self.is_resumed = began is not None and (began != BEGINNING or self.options.seed is None)
        self._storages: list[tuple[Storage, Access]] = []
        self._accounts: dict[str, Account] = {}
        self._occupants: dict[str, int] = {}
        self._executors: dict[tuple[Any, ...], tuple[Executor, tuple[Callable[..., Any], ...]]] = {}
        self._by_program: dict[tuple[str, bytes], ProcessExecutor] = {}
        self._programs: list[ProcessExecutor] = []
        self._opened = 0
        self.telling: set[int] = set()
        self.said_replayed = False
        self._charges: dict[int, tuple[object, Charges]] = {}
        self._skips: dict[str, Skips] = {}
        policy = settings.errors
        path = None if policy is None else policy.quarantine
        self._quarantine = None if path is None else Quarantine(os.fspath(path))
        self.errors = None if policy is None else self._skipping("", policy)

    async def begin(self) -> None:
        """Opens what must be open before anything is read.

        Raises:
            QuarantineError: The quarantine list cannot be opened.
        """
        if self._quarantine is not None:
            try:
                async with asyncio.timeout(_OPEN_S):
                    await in_thread(self._quarantine.open)
            except TimeoutError:
                path = self._quarantine.path
                raise QuarantineError(f"the quarantine list {path!r} cannot be opened: its file system hangs") from None

    async def end(self) -> None:
        """Closes what `begin` opened, after `close`."""
        if self._quarantine is not None:
            try:
                await in_thread(self._quarantine.close)
            except RuntimeError:  # no thread that could wait for it
                self._quarantine.let_go()
                raise

    def access(self, storage: Storage) -> Access:
        """What reads with these storage options, but the Runtime's for schemes that it names; equal ones share it."""
        chosen = {**storage, **self.runtime.options.storage}
        for known, access in self._storages:
            if known == chosen:
                return access
        io = self.io.beside(chosen)
        access = Access(io, Manifest(io, self.listings, len(self._storages)))
        self._storages.append((chosen, access))
        return access

    def skips(self, place: str, *, log_warning: bool) -> Skips:
        """The policy of ``ignore_errors`` at this place of the plan, for every epoch the same."""
        policy = dataclasses.replace(
            self.options.errors or ErrorPolicy(), max_skipped=None, max_fraction=None, log_warning=log_warning
        )
        return self._skips.get(place) or self._skipping(place, policy)

    def _skipping(self, place: str, policy: ErrorPolicy) -> Skips:
        self._skips[place] = Skips(policy, self.sources, self._quarantine, self._before.skipped.get(place))
        return self._skips[place]

    def news(self) -> News | None:
        """What has happened since the last call that states must know."""
        skipped = {place: part for place, skips in self._skips.items() if (part := skips.news()) is not None}
        listings, events = self.listings.news(), self.tracks.take_events()
        choices = () if self.choices is None else self.choices.take()
        news = News(listings, skipped, events, choices)
        return news if any(news) else None

    def skipped(self) -> SkippedStats:
        """What was left out so far; from any thread."""
        here = dict(self._skips)
        # Of steps that are not begun again.
        gone = [before_stats(part) for place, part in self._before.skipped.items() if place not in here]
        return sum_up([*(skips.stats() for skips in here.values()), *gone])

    def account(self, place: str, name: str, *, rank: int, kind: Kind, reserved_bytes: int = 0) -> Account:
        """The account of a stage; the same one for every epoch and every inner dataset at this place of the plan."""
        account = self._accounts.get(place)
        if account is None:
            account = self.budget.open(name, rank=rank, kind=kind, reserved_bytes=reserved_bytes)
            self._accounts[place] = account
        return account

    def meter(self, place: str, label: str, node: Node | None = None) -> Meter:
        """What the step at this place did; the same one for every epoch and every inner dataset."""
        meter = self.meters.get(place)
        if meter is None:
            if self._trace is not None:
                meter = TracedMeter(label, node, place, self._trace.ring, self.sources)
            else:
                meter = Meter(label, "" if node is None else node.label)
            self.meters[place] = meter
        return meter

    def occupy(self, place: str) -> None:
        """Something was lowered at this place of the plan that may end long before the pipeline does."""
        self._occupants[place] = self._occupants.get(place, 0) + 1

    def vacate(self, place: str) -> None:
        """It has ended and is closed. If it was the last one there, what it reserved is free."""
        self._occupants[place] -= 1
        if self._occupants[place]:
            return  # another epoch, or another inner dataset, has the same accounts
        if any(meter.alive.open for at, meter in self.meters.items() if at == place or at.startswith(f"{place}.")):
            return  # an inner dataset of other steps has some of them here
        inside = (f"{place} ", f"{place}.")
        for key in [key for key in self._accounts if key.startswith(inside)]:
            self.budget.close(self._accounts.pop(key))

    @property
    def has_workers(self) -> bool:
        """Whether some step gives work to worker processes, or may come to do so."""
        places_some = self.knobs.places_some and self.runtime.num_workers > 0
        return places_some or any(executor.runs == "process" for executor, _ in self._executors.values())

    def executor(
        self, place: str, kind: str, make: Callable[[], Program], functions: tuple[Callable[..., Any], ...]
    ) -> Executor:
        """What runs the tasks of a stage at this place.

        Inner datasets at one place may differ in their functions, in what these have closed over, and in how they are
        called; each program is sent to the workers once.

        Args:
            place: Of the stage.
            kind: ``process`` or ``thread``.
            make: Makes the program.
            functions: Those of the program.
        """
        program = make()
        how = (program.rng, program.depth, program.zero_copy, program.stack, program.narrow, program.skip)
        key = (place, kind, how, *map(id, functions))
        known = self._executors.get(key)
        if known is not None:
            return known[0]
        executor: Executor
        if kind == "process":
            executor = self.process_executor(place, program)
        else:
            executor = ThreadExecutor(self.threads, self.runtime.arena, program)
        # The functions are kept with it: as long as they live no other function has their ids.
        self._executors[key] = executor, functions
        if len(self._executors) > _MOST_EXECUTORS:
            del self._executors[next(iter(self._executors))]
        return executor

    def process_executor(self, place: str, program: Program | OtherProgram) -> ProcessExecutor:
        """What runs the tasks of a program in worker processes; the same for equal programs at one place."""
        limit_s = self.options.task_timeout_s if program.functions else None
        if limit_s is not None and isinstance(program, Program):
            program = dataclasses.replace(program, limit_ns=to_ns(limit_s))
        body = dump(program)
        process = self._by_program.get((place, body))
        if process is None:
            process = ProcessExecutor(
                self.runtime.pool,
                self.runtime.start_pool,
                body,
                limit_s=limit_s,
                label=self.meters[place].label,
            )
            self._by_program[place, body] = process
            self._programs.append(process)
            if self.runtime.options.num_workers == AUTOTUNE:
                self.knobs.count_workers(self.runtime)
            self.spawn(process.warm())
        return process

    def next_order(self) -> int:
        """A running number for sources, in the order they are opened."""
        self._opened += 1
        return self._opened

    def charges(self, cell: object) -> Charges:
        """What the pipeline is charged with for something that outlives its stages."""
        return self._charges.setdefault(id(cell), (cell, Charges()))[1]

    def close(self) -> None:
        """Ends what the pipeline has opened, after its stages are closed."""
        for _, charges in self._charges.values():
            charges.give(self.budget)
        self._charges.clear()
        for account in self._accounts.values():
            self.budget.close(account)
        self._accounts.clear()
        self.knobs.close()
        for executor in self._programs:
            executor.close()
        self._programs.clear()


class Scope(NamedTuple):
    """Where in the plan a node is lowered; a tuple, because every file and every repetition makes several of them.

    Attributes:
        services: Of the pipeline.
        place: The node's place, as child numbers from the last node on.
        element: Provenance of the elements that made the inner datasets around this node.
        seed: Stands in for seeds that were not given: the pipeline's, but in front of a cache that another run filled.
        epoch: Path of repeat counters, the outermost first, and of what else tells apart elements that made datasets.
        sub_index: Of the node's stage, see `Stage.sub_index`.
        rank: Distance from the consumer.
        rows_account: Charged with slabs whose rows are collected downstream.
        shards: Product of the cycle lengths around this node.
        worker_stages: Stages of the whole plan that give work to workers.
        ordered: Whether stages that do not say otherwise keep the order.
        any_order: Whether the sources here are siblings of which any may deliver next.
        errors: The policy in force for elements that fail; None lets none.
        tasks_verify: Whether worker tasks verify payload checksums of the records that are read here.
        reads: Collects what is read and listed here, for caches and snapshots in files; None if there are none.
        behind: What comes after this node.
        behind_inputs: What comes after its inputs, while the node is lowered.
        storage: What the steps behind this place say about storage.
        storage_else: What counts for an inner dataset where neither they nor the dataset itself say anything: the word
            of the steps before the one that made it.
        state: What the node is to be brought back to; None: it begins.
        resume: The same, divided among the node and its inputs, while the node is lowered.
        part: The unordered part of the plan, or of the inner dataset's plan.
        within: What tracks here belong to; None where elements have a fixed order, or no state can be taken.
        kept: Which elements a shuffle needs that gets one for each that comes from here.
    """

    services: Services
    place: str
    element: tuple[int, ...]
    seed: int
    epoch: tuple[int, ...]
    rank: int
    rows_account: Account
    shards: int
    worker_stages: int
    ordered: bool
    any_order: bool = False
    errors: Skips | None = None
    tasks_verify: bool = False
    reads: Reads | None = None
    behind: Behind = NOTHING_BEHIND
    behind_inputs: Behind = NOTHING_BEHIND
    storage: Storage = MappingProxyType({})
    storage_else: Storage = MappingProxyType({})
    state: State | None = None
    resume: Resume = BEGIN
    part: UnorderedPart | None = None
    within: Owner | None = None
    kept: Kept | None = None
    sub_index: int = 0

    @property
    def access(self) -> Access:
        """How a source here reads; its waits for reads are counted."""
        io, manifest = self.services.access(merged_storage(self.storage, self.storage_else))
        meter = self.services.meters.get(self.place)
        return Access(io if meter is None else io.timed(meter.storage), manifest)

    @property
    def shares(self) -> Shares:
        """How the memory limit is divided at this place of the plan."""
        return divide(
            self.services.options,
            current_shards=self.shards,
            worker_stages=self.worker_stages,
            parts=self.services.budget.parts,
        )

    def context(
        self, label: str, step: str, deterministic: bool | None = None, *, node: Node | None = None
    ) -> StageContext:
        """What the stage of this node is given.

        Args:
            label: The stage's name.
            step: The step's name where failures are counted.
            deterministic: What the step says about the order; None for the option's word.
            node: The step, if its meter is to know more than its name.
        """
        services = self.services
        meter = services.meter(self.place, step, node)
        return StageContext(
            label=label,
            budget=services.budget,
            sources=services.sources,
            threads=TimedThreads(services.threads, meter.calls),
            spawn=services.spawn,
            account=functools.partial(self._account, label),
            path=self.element,
            guard=None if self.errors is None else self.errors.guard(self.place, step, (self.epoch, self.element)),
            block_bytes=services.budget.limit // _BLOCK_PART // max(self.shards, 1),
            ordered=self.ordered if deterministic is None else deterministic,
            meter=meter,
        )

    def choices(self, node: Node, context: StageContext, *, is_needed: bool = True) -> Choices | None:
        """The choices of a step that passes elements on as they are ready, where they are noted or repeated.

        Args:
            node: The step.
            context: Of its stage.
            is_needed: Whether it does so as it runs here; otherwise it only repeats what is recorded.
        """
        known = self.services.choices
        if known is None or context.ordered:
            return None
        return known.begin((self.epoch, self.element, node.depth), is_needed=is_needed)

    def knob(self, context: StageContext, counted: Counted, bounds: KnobRange, held: Stopwatch) -> Knob:
        """The setting that is found for the stage of this node while it runs.

        Args:
            context: Of the stage.
            counted: What it counts.
            bounds: Where it may stand.
            held: Runs while the setting keeps a stage here from doing more.
        """
        return self.services.knobs.open(self.place, counted, bounds, context.meter, held)

    def placing_knob(self, context: StageContext, default: int) -> Knob:
        """Where the step of this node is to run, on the loop or in workers, which is found while it runs."""
        return self.services.knobs.place(self.place, context.meter, default)

    def _account(self, label: str, purpose: str) -> Account:
        begins, kind = _ACCOUNTS[purpose]
        account = self.services.account(
            f"{self.place} {purpose}",
            begins + label,
            rank=self.rank,
            kind=kind,
            reserved_bytes=self.shares.task_bytes if purpose == "tasks" else 0,
        )
        account.waits = self.services.meter(self.place, label).memory
        return account

    def below(self, child: int = 0, **changes: Any) -> Scope:
        """The scope of an input, which is brought back to what this node's state says of it."""
        states = self.resume.inputs
        state = states[child] if child < len(states) else None
        settings = {"state": state, "resume": BEGIN, "behind": self.behind_inputs, **changes}
        return self._replace(place=f"{self.place}.{child}", rank=self.rank + 1, **settings)
