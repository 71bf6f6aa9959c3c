"""A running pipeline, in this process or in the loader process of an isolated Runtime. Iterators hold it."""

from __future__ import annotations

import dataclasses
import mmap
import os
import secrets

from asyncdata.errors import AsyncdataError, PipelineClosedError, StateError, refused
from asyncdata.observe.profile import active_profile
from asyncdata.observe.snapshot import PipelineStats
from asyncdata.observe.trace_ring import RING_BYTES, PipelineTrace, Profiled, TraceRing
from asyncdata.options import Options
from asyncdata.plan.node import Node
from asyncdata.planner.fingerprint import fingerprint, with_drawn_seeds
from asyncdata.planner.rules import rewrite
from asyncdata.planner.unordered import unordered_part
from asyncdata.runtime.consumer.edge import Edge
from asyncdata.runtime.consumer.pipeline import Pipeline
from asyncdata.runtime.isolate.intake import Intake
from asyncdata.runtime.isolate.plan_transfer import Cargo, load_up
from asyncdata.runtime.life.interrupt_safe import Gate
from asyncdata.runtime.life.runtime import Runtime, active_runtime
from asyncdata.runtime.life.threads import in_thread
from asyncdata.runtime.settings import behind_plans, settings_of
from asyncdata.runtime.state.document import SavedState, from_document
from asyncdata.runtime.state.filling import brought_back
from asyncdata.runtime.state.order_log import RecordedRun, check_same_plan, find_run
from asyncdata.workers.channel import open_nameless_file


class Running:
    """A running pipeline, and what must be closed after it. It outlives the iterator by a moment.

    Args:
        runtime: The Runtime on which it runs.
        cargo: The plan, and how it is run.
        owns_runtime: Whether the Runtime was made for it.
        trace: Where this process notes what it does; None: nowhere.

    Attributes:
        saved: What it begins at, if not at the beginning.
        until: The position at which a run that is repeated was interrupted.
    """

    def __init__(self, runtime: Runtime, cargo: Cargo, *, owns_runtime: bool, trace: PipelineTrace | None) -> None:
        self.runtime = runtime
        self.trace = trace
        self.cargo = cargo
        self.owns_runtime = owns_runtime
        self.saved: SavedState | None = None
        self.until: int | None = None
        self.edge: Edge | Intake

    def start(self) -> None:
        """Starts the pipeline. The caller can be interrupted and has registered `signal` before."""
        raise NotImplementedError

    def signal(self) -> None:
        """Lets everything end; returns at once. Any thread may call it; takes no lock."""
        raise NotImplementedError

    def close(self) -> None:
        """Waits until everything has ended."""
        raise NotImplementedError

    def stats(self) -> PipelineStats:
        """Returns the state of the pipeline now, or at its end."""
        raise NotImplementedError

    @property
    def loader_pid(self) -> int | None:
        """The loader process, if it runs in one."""
        return None

    async def aclose(self) -> None:
        """Like `close`, but does not block the loop. Cancelling it does not stop the closing."""
        self.edge.close()
        await in_thread(self.close)


class RunningHere(Running):
    """A pipeline in this process."""

    def __init__(self, runtime: Runtime, cargo: Cargo, *, owns_runtime: bool, trace: PipelineTrace | None) -> None:
        super().__init__(runtime, cargo, owns_runtime=owns_runtime, trace=trace)
        self.edge: Edge = Edge(capacity=1)
        self.gone = Gate()
        self._pipeline = Pipeline(
            runtime,
            cargo.plan,
            cargo.options,
            seed=cargo.seed,
            epoch=cargo.epoch,
            start=cargo.start,
            edge=self.edge,
            ended=self.gone.open,
            profiled=Profiled(cargo.sample_hz, trace),
        )

    def start(self) -> None:
        """See `Running`."""
        self.runtime.start()
        self.runtime.run(self._pipeline.run, refused=self._refused)

    def _refused(self) -> None:
        self.edge.finish(PipelineClosedError("the Runtime was closed before the pipeline could start"))
        self.gone.open()

    def signal(self) -> None:
        """See `Running`."""
        self.runtime.post(self.edge.close)
        if self.owns_runtime:
            self.runtime.abandon()

    def close(self) -> None:
        """See `Running`."""
        self.edge.close()
        if self.owns_runtime:
            if self.runtime.runs_caller():
                self.signal()  # an error follows, because it cannot wait here
            self.runtime.close()
        else:
            self.runtime.wait_for_pipeline(self.gone)

    def stats(self) -> PipelineStats:
        """See `Running`."""
        return dataclasses.replace(self._pipeline.stats(), waits=self.edge.waits)


class RunningIsolated(Running):
    """A pipeline in the loader process of an isolated Runtime."""

    def __init__(self, runtime: Runtime, cargo: Cargo, *, owns_runtime: bool, trace: PipelineTrace | None) -> None:
        super().__init__(runtime, cargo, owns_runtime=owns_runtime, trace=trace)
        rewrite(cargo.plan, cargo.options, behind_plans())  # errors in the plan are raised here, as without isolation

    def start(self) -> None:
        """See `Running`."""
        try:
            self._send()
        except OSError as error:
            if isinstance(error, AsyncdataError):
                raise
            raise refused("the pipeline cannot start", error, stage="Runtime") from error

    def _send(self) -> None:
        fd, size = load_up(self.cargo)
        try:
            self.runtime.start()
            assert self.runtime.loader is not None
            self._loader = self.runtime.loader
            trace_fd = self._share_ring()
            try:
                self._loader.open(fd, size, self._keep, trace_fd=trace_fd)
            finally:
                if trace_fd is not None:
                    os.close(trace_fd)
        finally:
            os.close(fd)

    def _share_ring(self) -> int | None:
        """A file for what the loader process notes, which this process reads; the caller closes the descriptor."""
        if self.trace is None:
            return None
        fd = -1
        try:
            fd = open_nameless_file("asyncdata-trace")
            os.ftruncate(fd, RING_BYTES)
            region = memoryview(mmap.mmap(fd, RING_BYTES, prot=mmap.PROT_READ))
        except OSError:  # no descriptor or memory is left: the trace lacks this pipeline, which runs all the same
            if fd >= 0:
                os.close(fd)
            return None
        self.trace.ring.others.append(TraceRing(region, reads=True))
        return fd

    def _keep(self, intake: Intake) -> None:
        self.edge: Intake = intake

    @property
    def loader_pid(self) -> int | None:
        """See `Running`."""
        return self._loader.pid

    def signal(self) -> None:
        """See `Running`."""
        if hasattr(self, "edge"):
            self.edge.signal()
        if self.owns_runtime:
            self.runtime.abandon()

    def close(self) -> None:
        """See `Running`."""
        self.edge.close()
        try:
            if self.owns_runtime:
                self.runtime.close()
            else:
                self.edge.wait_until_put_back()
        finally:
            self.edge.dispose()

    def stats(self) -> PipelineStats:
        """See `Running`."""
        known = self.edge.stats
        if known is None:
            known = self._loader.stats(self.edge)
        return dataclasses.replace(known or PipelineStats(), waits=self.edge.waits, loader_pid=self.loader_pid)


def _check_order(plan: Node, options: Options, there: tuple[str, ...]) -> None:
    here = unordered_part(plan, deterministic=options.deterministic).causes
    if here != there:
        steps = [", ".join(labels) or "no step" for labels in (here, there)]
        raise StateError(
            f"the state is of another pipeline: {steps[0]} passes elements on as they are ready here, {steps[1]} in "
            "the state. deterministic=True keeps the order"
        )


def _repeated(
    path: str, plan: Node, epoch: int, position: int, saved: SavedState | None
) -> tuple[SavedState, RecordedRun]:
    """The life of an order log that is repeated, and what it began at."""
    if saved is not None:
        epoch, position = saved.epoch, saved.position
    run = find_run(path, epoch, position)
    check_same_plan(fingerprint(plan), run.life.state, path)
    begun = from_document(run.life.document, plan)
    if saved is not None and saved.seed != begun.seed:
        raise StateError(
            "the state is not the one that the run of the order log went on from: their seeds differ", url=path
        )
    return begun, run


def _check_policy(options: Options, saved: SavedState) -> None:
    """Without a policy, elements that it has left out would be counted as delivered, and others given again."""
    left_out = saved.news.skipped.get("")
    if options.errors is None and left_out is not None and (left_out.elements or left_out.shards):
        raise StateError(
            "the state is of another pipeline: an error policy has left elements out, and here is none. "
            "Set Options(errors=...) as it was"
        )


def prepare(plan: Node, epoch: int, saved: SavedState | None = None, position: int = 0) -> Running:
    """Returns a pipeline to start, from a saved state or from its beginning, on the caller's Runtime or on a new one.

    Args:
        plan: The last step.
        epoch: Number of the iteration.
        saved: The state.
        position: Of a run that is repeated: the position at which it was taken up again.

    Raises:
        StateError: The state is of another seed, or what is to be repeated is not in the order log.
    """
    shared = active_runtime()
    options, idle = settings_of(plan, None if shared is None else shared.options)
    start, run = None, None
    if options.replay is not None:
        saved, run = _repeated(os.fspath(options.replay), plan, epoch, position, saved)
    if saved is not None:
        plan, epoch, seed, start = with_drawn_seeds(plan, saved.drawn), saved.epoch, saved.seed, saved.start
        if run is not None:
            start = dataclasses.replace(start, choices=run.recorded)
        _check_order(plan, options, saved.causes)
        _check_policy(options, saved)
        if options.seed not in (None, seed):
            raise StateError(f"the state is of another pipeline: seed={options.seed} here, {seed} in the state")
    else:
        seed = secrets.randbits(63) if options.seed is None else options.seed
    runtime = shared or Runtime(options, pipelines=1)
    if saved is not None:
        # Not before the state is accepted: a cache in memory would keep the run that a refused one names.
        plan = brought_back(plan, saved.caches)
    runtime.idle_options.warn(idle)
    kind = RunningIsolated if runtime.options.isolate else RunningHere
    profile = active_profile()
    sample_hz = 0.0 if profile is None else profile.sample_hz
    trace = None if profile is None else profile.begin_trace()
    traced = 0 if trace is None else trace.pipeline
    cargo = Cargo(plan=plan, options=options, seed=seed, epoch=epoch, start=start, sample_hz=sample_hz, traced=traced)
    running = kind(runtime, cargo, owns_runtime=shared is None, trace=trace)
    running.saved, running.until = saved, None if run is None else run.until
    return running
