"""The parts of a pipeline's statistics: frozen, picklable records.

The docstring of each number says which bottleneck it reveals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from asyncdata.observe.line_table import Lines

Runs: TypeAlias = Literal["loop", "process", "thread", "coroutine"]
"""Where a step works: on the stage loop, in worker processes, in threads, or in coroutines that it awaits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStats:
    """One stage's part of the memory limit.

    Attributes:
        name: The stage, as errors name it.
        used_bytes: Bytes of buffers that it holds now.
        limit_bytes: What it could hold now: its reserve, or what it uses plus what is free.
        reserved_bytes: Bytes that no other stage may take for long.
        peak_bytes: The most it ever held.
        waiting: Its requests for memory that are not granted yet. Above zero for long: the memory limit is the
            bottleneck.
    """

    name: str
    used_bytes: int
    limit_bytes: int
    reserved_bytes: int
    peak_bytes: int
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """What one step of the running plan did, over all epochs and inner datasets.

    The five times add up to the pipeline's ``window_s``. Of a step that exists several times, such as the files of
    ``interleave``, they are means over the copies.

    Attributes:
        name: The step, as errors name it.
        kind: The step's name without its arguments, such as ``interleave``.
        elements: Elements that it passed on.
        bytes: Their bytes in arrays and buffers, from the mean of every sixteenth block. Python objects are not
            counted.
        working_s: Seconds in its own code on the stage loop. Most of the time: this step is the bottleneck.
        input_s: Seconds that it waited for the steps before it, or for storage. Most of the time: look upstream.
        memory_s: Seconds that it waited for memory. Most of the time: the memory limit is the bottleneck.
        workers_s: Seconds that it waited for its own calls in worker processes, threads or coroutines. Most of the
            time: its function is the bottleneck.
        consumer_s: Seconds in which nobody asked it for more. Most of the time: look downstream.
        awaited_s: Seconds that the steps after it waited for it, summed over the copies.
        copies: How many of it existed at a time, on average.
        calls_s: Seconds of its calls in worker processes and threads, summed over the calls; CPU
            seconds of a ready-made parser on the stage loop.
        kept_s: Seconds for which its coroutines kept the stage loop between two awaits, summed. Most of the window:
            its function blocks that loop.
        startup_s: Seconds that its first call took beyond the work itself: worker processes were starting.
        runs: Where it works: ``loop``, ``process``, ``thread`` or ``coroutine``.
        parallel: The most calls at a time; 1 if it makes none.
        ahead: Whether it works while nobody waits for it, in a task of its own.
        inputs: Places of the steps before it in ``PipelineStats.steps``.
    """

    name: str
    kind: str = ""
    elements: int = 0
    bytes: int = 0
    working_s: float = 0.0
    input_s: float = 0.0
    memory_s: float = 0.0
    workers_s: float = 0.0
    consumer_s: float = 0.0
    awaited_s: float = 0.0
    copies: float = 1.0
    calls_s: float = 0.0
    kept_s: float = 0.0
    startup_s: float = 0.0
    runs: Runs = "loop"
    parallel: int = 1
    ahead: bool = False
    inputs: tuple[int, ...] = ()

    @property
    def asked_s(self) -> float:
        """Seconds in which the step was to make elements: the window without ``consumer_s``."""
        return self.working_s + self.input_s + self.memory_s + self.workers_s


_MOST_STEPS: Final = 3
_COUNTED: Final = {"calls": " calls at a time", "times": " times the usual elements"}


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobStats:
    """A setting that AUTOTUNE finds while the pipeline runs.

    Attributes:
        step: The step, as errors name it.
        counts: What is counted: ``calls`` at a time, how many ``times`` the usual
            number of elements wait in a `prefetch`, ``workers``, or ``receivers``. Or ``place``: nothing is.
        value: What was found so far. Of a place: 0 is the stage loop, 1 the workers.
        default: What it began with, and the least; of workers the most.
        because: The last finding about it.
    """

    step: str
    counts: str
    value: int
    default: int
    because: str

    @property
    def setting(self) -> str:
        """The value in words, beside the default."""
        if self.counts == "place":
            return "in workers" if self.value else "on the stage loop"
        return f"{self.value}{_COUNTED.get(self.counts, '')}, default {self.default}"

    def __str__(self) -> str:
        return f"{self.step}: {self.setting} ({self.because})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStats:
    """The program that takes the elements.

    Attributes:
        wait_s: Seconds that it waited for elements, the first one included.
        step_s: Seconds that it spent otherwise since it first asked: its training steps.
        first_wait_s: Seconds that it waited for the first element: workers and files were opened.
        median_wait_s: Half of the elements after the first came within this time; accurate to 20 %.
        p90_wait_s: Nine in ten did.
        p99_wait_s: 99 in 100 did. Far above the median: single slow reads, or elements made in large groups.
    """

    wait_s: float = 0.0
    step_s: float = 0.0
    first_wait_s: float = 0.0
    median_wait_s: float = 0.0
    p90_wait_s: float = 0.0
    p99_wait_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuStats:
    """Processors, since the pipeline started; workers are those of the Runtime.

    Attributes:
        cores: Processors that this process may use.
        process_s: CPU seconds of the process in which the pipeline runs.
        loop_s: CPU seconds of its stage loop. Near the window: one thread is the bottleneck.
        loop_delayed_s: Seconds in which that loop could have run but got no processor. More than `loop_s`: other
            programs take the processors. 0 where the system does not say.
        workers_s: CPU seconds of the worker processes, since they were ready; without those that died.
        workers_delayed_s: Seconds in which they could have run but got no processor.
        workers_busy_s: Seconds that all workers spent in tasks. Far more than the two above: their functions wait.
        workers_ready_s: Seconds for which there were workers, summed over them. Near `workers_busy_s`: they are the
            bottleneck.
    """

    cores: int = 1
    process_s: float = 0.0
    loop_s: float = 0.0
    loop_delayed_s: float = 0.0
    workers_s: float = 0.0
    workers_delayed_s: float = 0.0
    workers_busy_s: float = 0.0
    workers_ready_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStats:
    """Reads from storage since the pipeline started, over all pipelines of the Runtime.

    Attributes:
        bytes: Bytes that were received and kept.
        in_flight: Reads under way, on average, those that wait for their turn included.
        limit: The limit of requests in flight now.
        is_limit_given: Whether that is ``Options.max_requests_in_flight``, not what AUTOTUNE found.
        first_byte_s: Half of the first bytes arrived within this time; 0 before enough were seen. Most of the time that
            reads are under way: more of them at a time help, as long as the server bears it.
        requests: Attempts, including those that failed.
        retries: Attempts that followed a failure. A large part of `requests`: the server or the network fails.
        refused: Attempts that the server refused because there were too many.
        hedges: Second attempts at silent reads.
        hedges_won: Those whose data came first.
        wasted_bytes: Bytes that were received and not kept: the rest of failed attempts, and of those overtaken.
        short_s: Seconds in which the pipeline could not read ahead because memory was short. Most of the time: the
            memory limit is the bottleneck.
        receivers: Processes that receive; 1: this one alone, by one event loop.
        receivers_s: CPU seconds of receiving. Near the window, for each of them: they are the bottleneck.
    """

    bytes: int = 0
    in_flight: float = 0.0
    limit: int = 0
    is_limit_given: bool = False
    first_byte_s: float = 0.0
    requests: int = 0
    retries: int = 0
    refused: int = 0
    hedges: int = 0
    hedges_won: int = 0
    wasted_bytes: int = 0
    short_s: float = 0.0
    receivers: int = 1
    receivers_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersStats:
    """The worker processes of the pipeline's Runtime, since it started.

    Attributes:
        processes: Workers alive now.
        most: The most that there may be.
        tasks: Tasks finished.
        in_flight: Tasks that workers hold now.
        waiting: Tasks for which no worker had room. Always zero: the workers are starved, look upstream.
        restarts: Workers that died and were replaced.
        busy_s: Seconds that all of them spent in tasks.
    """

    processes: int
    most: int
    tasks: int
    in_flight: int
    waiting: int
    restarts: int
    busy_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LineStats:
    """A line of a user's function, or of a parser or decoder, in which time was spent.

    Attributes:
        place: What ran it: ``worker processes``, ``stage loop``, ``threads``, or ``your loop``, which consumes.
        function: The function that the line is in.
        file: The file; the beginning of a long path is left out.
        line: The line's number.
        samples: How often it was running when the sampler looked.
        seconds: The time that these looks stand for, summed over processes and threads.
    """

    place: str
    function: str
    file: str
    line: int
    samples: int
    seconds: float


def line_stats(lines: Lines) -> tuple[LineStats, ...]:
    """The lines with most of the time first."""
    found = [
        LineStats(
            place=line.place,
            function=line.function,
            file=line.file,
            line=line.line,
            samples=spent.samples,
            seconds=spent.seconds,
        )
        for line, spent in lines.items()
    ]
    return tuple(sorted(found, key=lambda each: each.seconds, reverse=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedStats:
    """What one iteration skipped under ``Options.errors`` and ``ignore_errors``.

    Attributes:
        elements: Elements that failed.
        shards: Shards that ended early.
        unread_bytes: Bytes of these shards behind the place where they ended, as far as their sizes are known.
        steps: Failures by the step in which they happened. Failures in one step only: look at its function or its
            files.
        lines_lost: Lines that could not be written to the quarantine list.
        last: The last failure, as text.
    """

    elements: int = 0
    shards: int = 0
    unread_bytes: int = 0
    steps: Mapping[str, int] = field(default_factory=dict)
    lines_lost: int = 0
    last: str = ""

    def __str__(self) -> str:
        """How many elements and shards, and in which steps most of them failed."""
        shards = f"; shards that ended early: {self.shards:,}" if self.shards else ""
        most = sorted(self.steps, key=self.steps.__getitem__, reverse=True)
        steps = [f"{self.steps[name]:,} in {name}" for name in most[:_MOST_STEPS]]
        if len(most) > _MOST_STEPS:
            steps.append(f"others in {len(most) - _MOST_STEPS} more steps")
        # A shard that ends early is one of the failures of its step, as an element that fails is.
        where = "" if not steps else f"; failures: {', '.join(steps)}" if shards else f" ({', '.join(steps)})"
        return f"Elements skipped: {self.elements:,}{shards}{where}."
