"""From the numbers of a pipeline to what limits it, and what to do about it. Pure.

The verdict follows the waits: from the consumer to the last step, and from each step that mostly waits for its input to
the input that was waited for longest. The step at which this ends is the bottleneck. What it mostly does (work, or wait
for memory, for its calls, or for storage) and the counters of processors and reads tell which resource binds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from asyncdata.observe.parts import ConsumerStats, CpuStats, ReadStats, StepStats, WorkersStats

Cause: TypeAlias = Literal[
    "unknown",
    "consumer",
    "startup",
    "workers",
    "machine",
    "calls",
    "interpreter",
    "blocked_loop",
    "loop",
    "generator",
    "decompression",
    "parsing",
    "storing",
    "memory",
    "throttled",
    "failing",
    "listing",
    "link",
    "receivers",
    "parallelism",
]

_NOT_WAITING: Final = 0.02
_MUCH: Final = 0.1
"""Of the time: a start that took less is forgotten by the end of the first epoch."""
_MOSTLY: Final = 0.5
_BUSY: Final = 0.6
_SEVERAL: Final = 1.5
"""Copies of a generator: more than one."""
_COUNTS: Final = 0.05
"""Of a read: what is less is shown as none."""
_CROWDED: Final = 0.75
"""Of the allowed reads: with one file at a time, those of the next fifteen are under way, of 24 allowed at first."""
_FULL: Final = 0.85
_AWAIT: Final = "Await inside it, or make it a plain function with num_parallel_calls=ad.AUTOTUNE."
_AWAIT_OR_YIELD: Final = "Await inside it, or make it a plain generator, which runs in a thread."
_REFUSED: Final = 3
_REFUSED_PART: Final = 0.002
_FAILING: Final = 0.2
_WRITING: Final = {
    "cache": "Keep it in memory: cache() without a file name; or write it before training, as later epochs read it.",
    "snapshot": "Write it before training, as later runs only read it; or without compression.",
}
_READING_AGAIN: Final = {
    "cache": "Keep it in memory: cache() without a file name.",
    "snapshot shard": "Write it without compression, or in several shards (shard_func) that reader_func interleaves.",
}
"""What helps steps whose files are written and read in threads of their own, by kind."""
_LISTING: Final = {
    "list_files": "Write the list once, with ad.write_manifest, and use Dataset.from_manifest; or give fewer patterns.",
    "from_manifest": "Keep the manifest on this machine.",
}
"""What helps steps that wait for a list of files, by kind."""
_MADE_OF_EACH: Final = ("interleave", "flat_map")
"""Kinds of steps that call a function for a dataset of each element, on the stage loop."""
_LOOKING: Final = ("filter", "take_while", "group_by_window", "rejection_resample")
"""Kinds of steps that call functions on the stage loop to decide what becomes of an element."""
_PARSED: Final = {
    "JsonLinesDataset": "Let worker processes parse: JsonLinesDataset(..., num_parallel_calls=ad.AUTOTUNE).",
    "CsvDataset": "Read more files at a time: num_parallel_reads, or cycle_length of interleave.",
    "ParquetDataset": "Read fewer columns, or more files at a time: num_parallel_reads, or cycle_length of interleave.",
}
"""What helps sources that parse or decode in a thread, by kind."""
_PARSED_IN_WORKERS: Final = "map(parse_json)"
"""The step that makes values of JSON lines which are not parsed where they are read."""
_RUNNABLE: Final = 0.75
"""Functions that compute or wait for a processor for less of their time than this mostly wait for something else: where
the machine is busy, each end of such a wait is delayed as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What limits a pipeline. ``str()`` gives the sentences.

    Attributes:
        cause: The resource that binds: ``consumer`` (the pipeline is fast enough), ``startup`` (of workers, or before a
            step was asked), ``workers`` (their processors), ``machine`` (other programs), ``calls`` (too few at a
            time), ``interpreter`` (its lock), ``blocked_loop``, ``loop`` (the thread of the stages), ``generator``,
            ``decompression`` or ``parsing`` (one thread per file), ``storing`` (one thread per file of a cache or
            snapshot), ``memory`` (the limit), ``throttled`` (by the server), ``failing`` (reads, which are made again),
            ``listing`` (of files), ``link`` (network or server), ``receivers`` (the processes that receive),
            ``parallelism`` (too few files at a time), or ``unknown``.
        step: The step that is the bottleneck; empty if none is.
        sentence: What was found, with the numbers that show it.
        action: What to do, with the option's name; empty if there is nothing to do.
        wait_share: The part of its time for which the consumer waited, from 0 to 1, without the first element.
        rate: Elements per second that the consumer received.
        faster_rate: What `rate` would be if the step were twice as fast.
    """

    cause: Cause
    step: str
    sentence: str
    action: str
    wait_share: float = 0.0
    rate: float = 0.0
    faster_rate: float = 0.0

    def __str__(self) -> str:
        texts = [self.sentence, self.action]
        if self.step and self.faster_rate > self.rate > 0:
            texts.append(f"If {self.step} were twice as fast: {_rate(self.faster_rate)} instead of {_rate(self.rate)}.")
        return " ".join(text for text in texts if text)


@dataclass(frozen=True, slots=True)
class _Facts:
    window_s: float
    steps: Sequence[StepStats]
    consumer: ConsumerStats
    workers: WorkersStats | None
    reads: ReadStats
    cpu: CpuStats
    elements: int


def judge(
    *,
    elements: int,
    window_s: float,
    steps: Sequence[StepStats],
    consumer: ConsumerStats,
    workers: WorkersStats | None,
    reads: ReadStats,
    cpu: CpuStats,
) -> Verdict:
    """Says what limits a pipeline; see `PipelineStats` for the arguments."""
    total_s = consumer.wait_s + consumer.step_s
    if not elements or not steps or not total_s:
        sentence = "The loader process did not answer." if elements and not steps else _nothing_delivered(steps)
        return Verdict(cause="unknown", step="", sentence=sentence, action="")
    rate = elements / total_s
    steady_s = total_s - consumer.first_wait_s
    share = max(0.0, consumer.wait_s - consumer.first_wait_s) / steady_s if steady_s > 0 and elements > 1 else 0.0
    slow = max(steps, key=lambda step: step.startup_s)
    if slow.startup_s >= _MOSTLY * consumer.wait_s and consumer.wait_s > _MUCH * total_s:
        return Verdict(
            cause="startup",
            step=slow.name,
            sentence=(
                f"Limited by the start of the worker processes: {_seconds(slow.startup_s)} of the "
                f"{_seconds(consumer.wait_s)} that the consumer waited passed before {slow.name} had its first result."
            ),
            action="Start them once for several pipelines and epochs: iterate inside `with ad.Runtime():`.",
            wait_share=share,
            rate=rate,
        )
    # What the last step was not asked for, no step can explain: threads, or with ``isolate=True`` a process, started.
    before_s = consumer.first_wait_s - steps[0].asked_s
    if before_s >= _MOSTLY * consumer.wait_s and consumer.wait_s > _MUCH * total_s:
        return Verdict(
            cause="startup",
            step="",
            sentence=(
                f"Limited by the start of the pipeline: {_seconds(before_s)} of the {_seconds(consumer.wait_s)} that "
                "the consumer waited passed before a step was asked for elements."
            ),
            action="Start threads and processes once for several pipelines: iterate inside `with ad.Runtime():`.",
            wait_share=share,
            rate=rate,
        )
    if share < _NOT_WAITING and consumer.wait_s < _MOSTLY * total_s:
        sentence = f"Limited by the consumer: it waited {_percent(share)} of the time, the pipeline is fast enough."
        return Verdict(cause="consumer", step="", sentence=sentence, action="", wait_share=share, rate=rate)
    facts = _Facts(window_s, steps, consumer, workers, reads, cpu, elements)
    place = _bottleneck(steps)
    if steps[place].runs == "coroutine" and steps[place].inputs:
        # Calls that wait for nothing but the loop are not to blame: the step that keeps it is.
        busiest = max(range(len(steps)), key=lambda other: _on_loop_s(steps[other]))
        place = busiest if _on_loop_s(steps[busiest]) >= _MOSTLY * window_s else place
    step = steps[place]
    cause, evidence, action = _explain(step, facts)
    waited = consumer.wait_s / total_s if consumer.first_wait_s > _MOSTLY * consumer.wait_s else share
    return Verdict(
        cause=cause,
        step=step.name,
        sentence=f"Limited by {step.name}: the consumer waited {_percent(waited)} of the time{_quantiles(consumer)}, "
        f"and {evidence}.",
        action=action,
        wait_share=share,
        rate=rate,
        faster_rate=rate * _gain(place, facts),
    )


def _nothing_delivered(steps: Sequence[StepStats]) -> str:
    """Where elements were lost, as far as there were any."""
    for step in steps:
        got = max((steps[place].elements for place in step.inputs), default=0)
        if got and not step.elements:
            return f"No element was delivered so far: {step.name} got {got:,} and passed on none."
    return "No element was delivered so far."


def _bottleneck(steps: Sequence[StepStats]) -> int:
    """Where the waits lead to."""
    place = 0
    while (step := steps[place]).inputs and step.input_s >= _MOSTLY * step.asked_s:
        place = max(step.inputs, key=lambda other: steps[other].awaited_s)
    return place


def _on_loop_s(step: StepStats) -> float:
    """Seconds for which a step kept the stage loop to itself."""
    return step.working_s * max(step.copies, 1.0) if step.runs == "loop" else step.kept_s


def _explain(step: StepStats, facts: _Facts) -> tuple[Cause, str, str]:
    """Which resource binds a step, the evidence, and the action."""
    stores = step.kind in (_WRITING if step.inputs else _READING_AGAIN)
    parts = {
        step.working_s: _working,
        step.memory_s: _memory,
        step.workers_s: _storing if stores else _calling,
        (0.0 if step.inputs else step.input_s): _reading,
    }
    return parts[max(parts)](step, facts)


def _memory(step: StepStats, facts: _Facts) -> tuple[Cause, str, str]:
    waited = max(step.memory_s / max(step.asked_s, 1e-9), facts.reads.short_s / facts.window_s)
    return (
        "memory",
        f"memory was short {_percent(waited)} of it",
        "Raise Options(memory_limit_bytes=...), or use smaller batches and shuffle buffers.",
    )


def _working(step: StepStats, facts: _Facts) -> tuple[Cause, str, str]:
    worked_s = step.working_s * max(step.copies, 1.0)
    busy = f"it worked {_percent(worked_s / facts.window_s)} of it on the stage loop, which is one thread"
    cpu = facts.cpu
    if step.runs == "coroutine":
        if step.inputs or step.kept_s >= _MOSTLY * facts.window_s:
            return _in_coroutines(step, facts)
        return "generator", "it was awaited for its next element", _several_generators(step, step.working_s, facts)
    if _is_starved(cpu.loop_s, cpu.loop_delayed_s, step.working_s):
        return _machine(cpu.loop_delayed_s, cpu.loop_s)
    if step.kind == "map" and step.calls_s:
        action = "Parse fewer features. AUTOTUNE uses workers if they are faster; executor='process' always does."
        return "loop", busy, action
    if step.kind == "map":
        action = "Let worker processes do it: map(..., num_parallel_calls=ad.AUTOTUNE), neither inline nor vectorized."
        return "loop", busy, action
    if step.kind in _LOOKING or step.kind == "scan":
        part = "does not depend on its state" if step.kind == "scan" else "it looks at"
        action = f"Compute what {part} in front of it: map(..., num_parallel_calls=ad.AUTOTUNE), in worker processes."
        return "loop", busy, action
    if step.kind in _MADE_OF_EACH:
        action = (
            "Make the dataset of each element cheaper: compute in a map(..., num_parallel_calls=ad.AUTOTUNE) in front "
            "of it, in worker processes, or use unbatch() if elements are arrays of rows."
        )
        return "loop", busy, action
    return "loop", busy, "Give it less to do: filter early, batch later, or put cache() or snapshot() behind it."


def _calling(step: StepStats, facts: _Facts) -> tuple[Cause, str, str]:
    if step.runs == "process":
        return _in_processes(step, facts)
    if step.runs == "coroutine":
        return _in_coroutines(step, facts)
    if not step.inputs:
        return _in_source_thread(step, facts)
    threads_s = facts.cpu.process_s - facts.cpu.loop_s
    if threads_s >= _MOSTLY / 2 * step.workers_s and facts.cpu.process_s < 1.2 * facts.window_s and step.parallel > 1:
        used = facts.cpu.process_s / facts.window_s
        evidence = f"its threads took turns at the interpreter lock: the process used {used:.1f} processors"
        return "interpreter", evidence, 'Use executor="process", without Options(num_workers=0).'
    running = step.calls_s / facts.window_s
    if _BUSY <= running < _BUSY * step.parallel:
        evidence = f"of the {step.parallel} calls that may run at a time, {running:.1f} did: there are no more threads"
        return "calls", evidence, "Raise Options(num_threads=...)."
    return "calls", _at_most(step), "Raise num_parallel_calls, and Options(num_threads=...) with it."


def _in_coroutines(step: StepStats, facts: _Facts) -> tuple[Cause, str, str]:
    cpu = facts.cpu
    if step.kept_s >= _MOSTLY * facts.window_s:
        if _is_starved(cpu.loop_s, cpu.loop_delayed_s, step.kept_s):
            return _machine(cpu.loop_delayed_s, cpu.loop_s)
        share = _percent(step.kept_s / facts.window_s)
        what, action = ("function", _AWAIT) if step.inputs else ("generator", _AWAIT_OR_YIELD)
        evidence = f"for {share} of it its async {what} kept the stage loop, which is one thread, without awaiting"
        return "blocked_loop", evidence, action
    if cpu.loop_s + cpu.loop_delayed_s >= _FULL * facts.window_s:
        return _computing(facts)
    return "calls", _at_most(step), f"Raise num_parallel_calls above {step.parallel}."


def _storing(step: StepStats, _facts: _Facts) -> tuple[Cause, str, str]:
    share = _percent(step.workers_s / max(step.asked_s, 1e-9))
    done, actions = ("written", _WRITING) if step.inputs else ("read", _READING_AGAIN)
    return "storing", f"{share} of its own time its file was {done}, in one thread", actions[step.kind]


def _several_generators(step: StepStats, inside_s: float, facts: _Facts) -> str:
    """What helps a slow generator.

    Args:
        step: The generator, or all copies of it.
        inside_s: Seconds that each copy was waited for.
        facts: Of the pipeline.
    """
    turns, is_ahead = _turns(facts.steps.index(step), facts.steps)
    if step.copies < _SEVERAL or turns == "flat_map":
        return (
            "Use several generators, each of which works ahead: Dataset.range(n).interleave(lambda i: "
            "Dataset.from_generator(...).prefetch(8)); or map a function over an index."
        )
    if inside_s < _MOSTLY * facts.window_s:
        ahead = "" if is_ahead else "put prefetch(8) behind from_generator inside the interleave, or "
        return (
            f"The {step.copies:.0f} generators take turns. Let them work side by side: {ahead}"
            "use interleave(..., deterministic=False)."
        )
    return "Make the generators faster, use more of them at a time (cycle_length), or map a function over an index."


def _turns(place: int, steps: Sequence[StepStats]) -> tuple[str, bool]:
    """What reads the datasets that a source is part of in turns (interleave, flat_map); whether they work ahead."""
    is_ahead = False
    for step, below in _way_up(place, steps):
        if step.kind in _MADE_OF_EACH and below != step.inputs[0]:
            return step.name.partition("(")[0], is_ahead
        is_ahead = is_ahead or step.ahead
    return "", is_ahead


def _way_up(place: int, steps: Sequence[StepStats]) -> Iterator[tuple[StepStats, int]]:
    """The steps that the elements of a step go through, each with the place from which they come."""
    for above in reversed(range(place)):
        if place in steps[above].inputs:
            yield steps[above], place
            place = above


def _in_source_thread(step: StepStats, facts: _Facts) -> tuple[Cause, str, str]:
    if step.kind == "from_generator":
        ran, waited = step.calls_s / facts.window_s, step.workers_s * step.copies / facts.window_s
        is_computing = facts.cpu.process_s - facts.cpu.loop_s >= _MOSTLY * facts.window_s
        if _BUSY <= ran < _BUSY * waited and not is_computing:
            evidence = f"{waited:.1f} generators were to run at a time, and {ran:.1f} did: there are no more threads"
            return "generator", evidence, "Raise Options(num_threads=...)."
        action = _several_generators(step, step.workers_s, facts)
        return "generator", "its thread was in the generator most of it", action
    files = f"of {max(1, round(step.copies))} files at a time"
    are_parsed = step.kind in _PARSED and not any(each.name.startswith(_PARSED_IN_WORKERS) for each in facts.steps)
    if are_parsed:
        return "parsing", f"one thread per file parses what it reads, {files}", _PARSED[step.kind]
    return (
        "decompression",
        f"one thread per file decompresses, {files}",
        "Read more files at a time (cycle_length, num_parallel_reads), or store files without compression.",
    )


def _in_processes(step: StepStats, facts: _Facts) -> tuple[Cause, str, str]:
    cpu = facts.cpu
    workers = facts.workers
    processes, most = (1, 1) if workers is None else (max(1, workers.processes), workers.most)
    share = min(1.0, cpu.workers_busy_s / max(cpu.workers_ready_s, 1e-9))
    names = "worker process was" if processes == 1 else f"{processes} worker processes were"
    busy = f"the {names} busy {_percent(share)} of it"
    if share < _BUSY and step.parallel < most + 1:
        return "calls", _at_most(step), "Use num_parallel_calls=ad.AUTOTUNE."
    if _is_waiting(cpu.workers_s, cpu.workers_delayed_s, cpu.workers_busy_s):
        computing = _percent(cpu.workers_s / max(cpu.workers_busy_s, 1e-9))
        return (
            "calls",
            f"{busy}, but computed only {computing} of that time: its function waits",
            "Make it an `async def` function, or raise Options(num_workers=...) above the number of processors.",
        )
    if _is_starved(cpu.workers_s, cpu.workers_delayed_s, cpu.workers_busy_s):
        return _machine(cpu.workers_delayed_s, cpu.workers_s)
    if most < cpu.cores:
        return (
            "workers",
            busy,
            f"Use Options(num_workers={cpu.cores}) instead of {most}: so many processors may be used.",
        )
    return (
        "workers",
        f"{busy}, on {cpu.cores} processors",
        "Make its function cheaper, keep its results with cache() or snapshot(), or use more processors.",
    )


def _reading(step: StepStats, facts: _Facts) -> tuple[Cause, str, str]:
    reads = facts.reads
    if reads.refused >= max(_REFUSED, _REFUSED_PART * reads.requests) and 2 * reads.refused >= reads.retries:
        return (
            "throttled",
            f"the server refused {reads.refused} requests because there were too many",
            "Ask for a higher quota, spread files over more prefixes, or lower Options(max_requests_in_flight=...).",
        )
    if reads.retries >= max(_REFUSED, _FAILING * reads.requests):
        return (
            "failing",
            f"{reads.retries} of {reads.requests} reads failed and were made again",
            "See stats().fetch['failures'] for what went wrong at the server or on the way to it.",
        )
    if reads.short_s >= _MOSTLY * facts.window_s and reads.in_flight < _CROWDED * reads.limit:
        return _memory(step, facts)
    waiting = reads.in_flight - reads.limit
    queue = f", and {waiting:.1f} more waited for their turn" if waiting >= _COUNTS else ""
    flight = f"{min(reads.in_flight, reads.limit):.1f} reads were under way on average, of {reads.limit} allowed{queue}"
    if reads.in_flight >= _CROWDED * reads.limit:
        if reads.receivers_s >= _FULL * reads.receivers * facts.window_s and reads.receivers < facts.cpu.cores:
            share = _percent(reads.receivers_s / reads.receivers / facts.window_s)
            return (
                "receivers",
                f"{flight}, and {_receivers(reads.receivers)} on a processor for {share} of it",
                f"Raise Options(receivers={2 * reads.receivers}); {facts.cpu.cores} processors may be used.",
            )
        if reads.first_byte_s * reads.requests >= _MOSTLY * min(reads.in_flight, reads.limit) * facts.window_s:
            action = f"Raise Options(max_requests_in_flight={4 * reads.limit})."
            if not reads.is_limit_given:
                action = (
                    "AUTOTUNE allows more of them as long as that brings more. Store larger files, or read from nearer."
                )
            return "link", f"{flight}, most of their time without a first byte", action
        return (
            "link",
            f"{flight}, at {reads.bytes / facts.window_s / 1e6:,.1f} MB/s",
            "Store less (compress, smaller images), keep data with cache() or snapshot(), or read from nearer.",
        )
    return _few_files(step, facts, flight)


def _few_files(step: StepStats, facts: _Facts, flight: str) -> tuple[Cause, str, str]:
    """Hardly a read is under way."""
    if step.kind in _LISTING:
        return "listing", f"for {_seconds(step.input_s)} its list was waited for", _LISTING[step.kind]
    at_a_time = max(1, round(step.copies))
    files = _opened(facts.steps.index(step), facts.steps)
    if files <= at_a_time:
        action = "Store the data in more files, or read from nearer: all that were found are read at a time."
        return "parallelism", flight, action
    action = f"Read more files at a time: interleave(..., cycle_length={min(4 * at_a_time, files)})."
    return "parallelism", flight, action


def _opened(place: int, steps: Sequence[StepStats]) -> int | float:
    """How many files, or other inner datasets, a source belongs to one of; infinite if that is not known."""
    for step, below in _way_up(place, steps):
        names, *_ = step.inputs
        if step.kind in _MADE_OF_EACH and below != names:
            return steps[names].elements or math.inf
        if step.kind == "concatenate":
            return math.inf
    return 1


def _receivers(count: int) -> str:
    return "the loop that receives was" if count == 1 else f"the {count} processes that receive were each"


def _computing(facts: _Facts) -> tuple[Cause, str, str]:
    """Coroutines begin in time, but there is nothing left of the loop on which they go on."""
    cpu = facts.cpu
    if cpu.loop_delayed_s > cpu.loop_s:
        return _machine(cpu.loop_delayed_s, cpu.loop_s)
    share = _percent((cpu.loop_s + cpu.loop_delayed_s) / facts.window_s)
    return (
        "blocked_loop",
        f"the stage loop, which is one thread, was busy {share} of it while its async function waited or computed",
        "Move what computes into a plain function with num_parallel_calls=ad.AUTOTUNE, or do more in one call.",
    )


def _is_waiting(used_s: float, delayed_s: float, busy_s: float) -> bool:
    """Whether a function waits for something else than a processor."""
    return used_s + delayed_s < _RUNNABLE * busy_s


def _is_starved(used_s: float, delayed_s: float, busy_s: float) -> bool:
    """Whether it computes, but mostly has to wait for a processor."""
    return delayed_s > used_s and not _is_waiting(used_s, delayed_s, busy_s)


def _machine(delayed_s: float, used_s: float) -> tuple[Cause, str, str]:
    return (
        "machine",
        f"it got a processor for {_seconds(used_s)} and waited for one for {_seconds(delayed_s)}",
        "Stop other programs on this machine, or start fewer workers: Options(num_workers=...).",
    )


def _at_most(step: StepStats) -> str:
    share = _percent(step.workers_s / max(step.asked_s, 1e-9))
    return f"{share} of its own time it waited for its calls, of which {step.parallel} may run at a time"


# --- prediction ------------------------------------------------------------------------------------------------------


def _gain(bottleneck: int, facts: _Facts) -> float:
    """How many times the rate would be with one step twice as fast, from 1 to 2.

    Steps that pull one another take turns. A step that works ahead begins a new chain, and chains run side by side, so
    the slowest one sets the pace; so do the consumer and the stage loop, on which all chains work. Of a step on that
    loop no more is saved than half of its time; what calls in threads cost the others is not known.
    """
    steps = facts.steps
    chain_of = {0: 0}
    chains = {0: 0.0}
    for place, step in enumerate(steps):
        chain = chain_of.setdefault(place, place)
        if step.ahead:
            chain = place
        chains.setdefault(chain, 0.0)
        for other in step.inputs:
            chain_of[other] = chain
        own = min(_own_s(step, facts), facts.window_s)
        chains[chain] += own / 2 if place == bottleneck else own
    loop_s = sum(map(_on_loop_s, steps)) - _on_loop_s(steps[bottleneck]) / 2
    step = steps[bottleneck]
    rest_s = facts.window_s - min(_own_s(step, facts), facts.window_s) / 2 if step.runs == "loop" else 0.0
    most_s = max(*chains.values(), loop_s, facts.consumer.step_s, rest_s, 1e-9)
    return min(2.0, max(1.0, facts.window_s / most_s))


def _own_s(step: StepStats, facts: _Facts) -> float:
    """Seconds that a step takes of its chain, by itself."""
    copies = max(step.copies, 1.0)
    stored = 0.0 if step.inputs else step.input_s
    calls = step.workers_s
    others_s = sum(map(_on_loop_s, facts.steps)) - _on_loop_s(step)
    if step.runs == "coroutine" and others_s >= _MOSTLY * facts.window_s:
        calls = max(step.kept_s / copies, calls - others_s)  # its coroutines waited for the loop
    return (step.working_s + step.memory_s + calls + stored) * copies


# --- words -----------------------------------------------------------------------------------------------------------


def _quantiles(consumer: ConsumerStats) -> str:
    if not consumer.p99_wait_s:
        return ""
    texts = [f"median {_seconds(consumer.median_wait_s)}", f"p90 {_seconds(consumer.p90_wait_s)}"]
    return f" ({', '.join(texts)}, p99 {_seconds(consumer.p99_wait_s)} per element)"


def _percent(share: float) -> str:
    return f"{100 * min(max(share, 0.0), 1.0):.0f} %"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1e3 * seconds:.{0 if seconds >= 0.1 else 1}f} ms"


def _rate(rate: float) -> str:
    return f"{rate:,.0f} elements/s" if rate >= 10 else f"{rate:.2g} elements/s"
