"""`profile`: records every pipeline that is iterated inside a ``with`` block.

    iterator ── watch ──▶ Profile ── a thread reads the counters, now and then ──────▶ MomentSeries ┐
        └──── each delivery (only while a profile is recorded) ───────────────────────▶ Arrivals ────┴─▶ ProfileReport

The pipelines do not know that they are recorded, apart from one more reading of the clock for each delivery.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import datetime
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

from asyncdata import arguments
from asyncdata.observe.line_table import TABLE_BYTES, LineTable
from asyncdata.observe.parts import line_stats
from asyncdata.observe.pipeline_profile import PipelineProfile
from asyncdata.observe.profile_report import ProfileReport, versions
from asyncdata.observe.snapshot import PipelineStats
from asyncdata.observe.stack_sampler import StackSampler
from asyncdata.observe.stopwatch import clock
from asyncdata.observe.timeline import Arrivals, MomentSeries, moment_of
from asyncdata.observe.trace_ring import RING_BYTES, PipelineTrace, TraceRing
from asyncdata.options import Options
from asyncdata.redaction import redact

TICK_S: Final = 0.2
"""Seconds between two snapshots in the beginning; one costs 0.3 ms, and twice as much on a busy machine."""
MOST_PIPELINES: Final = 32

_active: contextvars.ContextVar[Profile | None] = contextvars.ContextVar("asyncdata_profile", default=None)


class WatchedPipeline(Protocol):
    """The numbers of one iteration."""

    @property
    def is_over(self) -> bool:
        """Whether they do not change any more."""

    def record_arrivals(self) -> Arrivals:
        """Has the consumer's steps and waits kept from now on."""

    def stats(self) -> PipelineStats:
        """The numbers now."""


class _Recording:
    """What is known of one pipeline."""

    def __init__(self, watched: WatchedPipeline, steps: str, epoch: int, options: Options) -> None:
        self._watched: WatchedPipeline | None = watched
        self._arrivals = watched.record_arrivals()
        self._moments = MomentSeries()
        self._stats = PipelineStats()
        self._steps = steps
        self._epoch = epoch
        self._options = _shown(options)
        self.began_s = clock()

    @property
    def is_over(self) -> bool:
        """Whether the pipeline has ended; the last snapshot of it may still have to be taken."""
        watched = self._watched
        return watched is None or watched.is_over

    def tick(self, *, at_once: bool) -> None:
        """Takes a snapshot if it is time to, or at once; the last one lets go of the pipeline."""
        watched = self._watched
        if watched is None:
            return
        was_over = watched.is_over
        is_wanted = not at_once and self._moments.is_wanted()
        if is_wanted or at_once or was_over:
            self._stats = watched.stats()
            self._moments.add(moment_of(self._stats, clock()), keep=is_wanted)
        if was_over:
            self._watched = None

    def result(self) -> PipelineProfile:
        """What was recorded so far."""
        return PipelineProfile(
            plan=self._steps,
            epoch=self._epoch,
            options=self._options,
            began_s=self.began_s,
            stats=self._stats,
            every_s=TICK_S * self._moments.every,
            moments=self._moments.all(),
            peak=self._moments.peak,
            # Another profile may have begun to keep them before this one.
            arrivals=tuple(each for each in self._arrivals.all() if each.at_s >= self.began_s),
        )


class Profile:
    """Records pipelines inside its ``with`` block; see `profile`.

    Example:
        >>> import asyncdata as ad
        >>> with ad.profile() as recorded:
        ...     numbers = list(ad.Dataset.range(10))
        >>> type(recorded).__name__, len(recorded.report().pipelines)
        ('Profile', 1)

    Args:
        path: Where the report is written when the block ends; None: nowhere.
        sample_hz: See `profile`.
        trace: See `profile`.

    Attributes:
        sample_hz: How often per second stacks are looked at.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        sample_hz: float = 20,
        trace: bool | str | os.PathLike[str] = False,
    ) -> None:
        self._path = None if path is None else Path(path).absolute()
        self._trace_path = None if isinstance(trace, bool) else Path(trace).absolute()
        self._ring = None if trace is False else TraceRing(bytearray(RING_BYTES))
        self.sample_hz = sample_hz
        self._lines = LineTable(bytearray(TABLE_BYTES))
        self._consumer = 0
        self._pid = os.getpid()
        # Of the list, which nobody holds for long; and of snapshots, for which a loader process may be asked. A handler
        # of signals may want a report in the middle of anything.
        self._lock = threading.RLock()
        self._ticking = threading.RLock()
        self._recordings: list[_Recording] = []
        self._dropped = 0
        self._began_s = 0.0
        self._taken_at = ""
        self._leave = threading.Lock()  # held until the block ends
        self._leave.acquire()
        self._has_ended = False
        self._thread: threading.Thread | None = None
        self._token: contextvars.Token[Profile | None] | None = None
        self._report: ProfileReport | None = None

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise RuntimeError("a profile records one `with` block: make another one with ad.profile()")
        self._began_s = clock()
        self._taken_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._consumer = threading.get_ident()
        self._thread = threading.Thread(target=self._watch_all, name="asyncdata-profile", daemon=True)
        try:
            self._thread.start()
            self._token = _active.set(self)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._thread is not None
        self._end()
        if self._token is not None and _active.get() is self:
            # If the block was entered in another context (fixtures, generators), that context keeps the ended profile;
            # `active_profile` skips it.
            with contextlib.suppress(ValueError):
                _active.reset(self._token)
        if os.getpid() != self._pid:
            return
        self._thread.join()
        self._report = self._result()
        self._recordings.clear()  # which lets go of pipelines that are still open
        self._ring = None
        try:
            if self._path is not None:
                self._report.save(self._path)
            if self._trace_path is not None:
                self._report.save_trace(self._trace_path)
        except OSError as failed:
            if error is None:
                raise
            error.add_note(f"the profile was not written: {failed}")

    def report(self) -> ProfileReport:
        """What was recorded: so far, or in the whole block when it has ended.

        Raises:
            RuntimeError: The block was not entered.

        Example:
            >>> import asyncdata as ad
            >>> with ad.profile() as profile:
            ...     total = sum(int(x) for x in ad.Dataset.range(10))
            >>> profile.report().pipelines[0].stats.elements
            10
        """
        if self._thread is None:
            raise RuntimeError("nothing was recorded: iterate a dataset inside `with ad.profile() as p:` first")
        return self._report or self._result()

    def watch(self, watched: WatchedPipeline, steps: str, epoch: int, options: Options) -> None:
        """Records one more pipeline. Of many, the latest are kept. Iterators call it when they start.

        Args:
            watched: Its numbers.
            steps: Its plan, in one line.
            epoch: Number of the iteration.
            options: In force.
        """
        if self._has_ended or os.getpid() != self._pid:
            return
        recording = _Recording(watched, steps, epoch, options)
        with self._lock:
            self._recordings.append(recording)
            if (excess := len(self._recordings) - MOST_PIPELINES) > 0:
                for over in [each for each in self._recordings if each.is_over][:excess]:
                    self._recordings.remove(over)
                    self._dropped += 1

    def begin_trace(self) -> PipelineTrace | None:
        """Where one more pipeline notes what it does; None: nowhere. Iterators call it when they are made."""
        ring = self._ring
        return None if ring is None or self._has_ended or os.getpid() != self._pid else ring.begin_pipeline()

    def _end(self) -> None:
        self._has_ended = True
        self._leave.release()

    def _watch_all(self) -> None:
        sampler = StackSampler(lambda: {self._consumer: "your loop"}, self._lines)
        ticks = _Beat(TICK_S, clock())
        looks = _Beat(1 / self.sample_hz, clock()) if self.sample_hz else None
        every_s = TICK_S if looks is None else min(TICK_S, looks.every_s)
        while not self._leave.acquire(timeout=every_s):
            if looks is not None and looks.comes(clock()):
                sampler.look()
            if ticks.comes(clock()):
                self._tick(at_once=False)

    def _tick(self, *, at_once: bool) -> list[_Recording]:
        with self._lock:
            recordings = list(self._recordings)
        with self._ticking:
            for each in recordings:
                each.tick(at_once=at_once)
        return recordings

    def _result(self) -> ProfileReport:
        with self._ticking:
            recordings = self._tick(at_once=True)
            rings = () if self._ring is None else (self._ring, *self._ring.others)
            return ProfileReport(
                taken_at=self._taken_at,
                began_s=self._began_s,
                seconds=clock() - self._began_s,
                versions=versions(),
                pipelines=tuple(each.result() for each in recordings),
                lines=line_stats(self._lines.read()),
                dropped_pipelines=self._dropped,
                trace=tuple(ring.read() for ring in rings),
            )


class _Beat:
    """A moment that comes every so many seconds; those that nobody asked for in time are left out."""

    def __init__(self, every_s: float, now: float) -> None:
        self.every_s = every_s
        self._due_s = now + every_s

    def comes(self, now: float) -> bool:
        """Whether it has come since the last one."""
        if now < self._due_s:
            return False
        self._due_s += self.every_s * max(1, (now - self._due_s) // self.every_s)
        return True


def _shown(options: Options) -> dict[str, str]:
    """The options that were given, without what may hold a secret."""
    hidden = {each.name for each in dataclasses.fields(options) if not each.repr}
    return {name: redact(repr(value)) for name, value in options.said().items() if name not in hidden}


def active_profile() -> Profile | None:
    """The profile of the innermost block around the caller, if it has not ended."""
    profile = _active.get()
    return None if profile is None or profile._has_ended else profile  # noqa: SLF001 -- of this module


@arguments.suggests
def profile(
    path: str | os.PathLike[str] | None = None,
    *,
    sample_hz: float = 20,
    trace: bool | str | os.PathLike[str] = False,
) -> Profile:
    """Records every pipeline that is iterated inside its ``with`` block, and reports what limited it.

    Neither the order of elements nor states change. It costs about 1 % of a processor, see `sample_hz`. What is kept
    is bounded: the longer a pipeline runs, the coarser its timelines. Of more than 32 pipelines, such as epochs, the
    latest are kept.

    Pipelines count that are started in the block by its own thread or tasks. Threads that the block starts have to
    enter a copy of its context (``contextvars.copy_context().run``), as for a `Runtime`.

    Args:
        path: A local file for the report, written when the block ends, also by an error: a page of HTML that needs
            nothing else, or JSON if the name ends in ``.json``. None: no file.
        sample_hz: How often per second to look at which line of user code is running: in worker processes, threads, on
            the stage loop, and in the thread that entered the block. 0: never. At most 1000.
        trace: Also records a span for each block of each step, each request, task, batch and training step, the latest
            32,768 of each process, for `ProfileReport.to_chrome_trace`. A path that ends in ``.json``: also writes this
            trace to a local file when the block ends.

    Returns:
        A context manager; its ``report()`` returns a frozen `ProfileReport`.

    Raises:
        TypeError: `path` or `trace` is no path.
        ValueError: `path` or `trace` has another ending, both are one file, or `sample_hz` is out of range.
        FileNotFoundError: The directory of `path` or `trace` does not exist.

    Example:
        >>> import asyncdata as ad
        >>> with ad.profile() as profile:
        ...     for batch in ad.Dataset.range(1000).batch(10):
        ...         pass
        >>> report = profile.report()
        >>> (pipeline,) = report.pipelines
        >>> pipeline.plan, pipeline.stats.elements
        ('range(1000) → batch(10)', 100)
        >>> "Limited by" in str(report)
        True
    """
    if path is not None:
        _check_file("path", path, (".html", ".htm", ".json"))
    if not isinstance(trace, bool):
        _check_file("trace", trace, (".json",))
        if path is not None and os.path.realpath(path) == os.path.realpath(trace):
            raise ValueError(f"the report and the trace need a file each, not both {arguments.shown(os.fspath(path))}")
    arguments.number("sample_hz", sample_hz, least=0, most=1000)
    return Profile(path, sample_hz, trace)


def _check_file(name: str, path: Any, endings: tuple[str, ...]) -> None:
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise TypeError(f"{name} must be a path, as text or a Path, not {arguments.shown(path)}")
    if not os.fspath(path).endswith(endings):
        raise ValueError(f"{name} must end in {' or '.join(endings)}, not {arguments.shown(path)}")
    if not (folder := Path(path).absolute().parent).is_dir():
        raise FileNotFoundError(
            f"{name}={arguments.shown(os.fspath(path))}: the directory {redact(str(folder))} does not exist"
        )
