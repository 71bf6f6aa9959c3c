"""The verdict follows from the numbers alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from asyncdata.observe.bottleneck import Verdict
from asyncdata.observe.parts import ConsumerStats, CpuStats, ReadStats, SkippedStats, StepStats, WorkersStats
from asyncdata.observe.snapshot import PipelineStats

STARVED = ConsumerStats(wait_s=9.0, step_s=1.0, first_wait_s=0.1, median_wait_s=0.1, p90_wait_s=0.2, p99_wait_s=0.3)
WORKERS = WorkersStats(processes=4, most=4, tasks=100, in_flight=8, waiting=0, restarts=0, busy_s=99.0)
READS = ReadStats(bytes=10**8, in_flight=2.0, limit=24)


def step(name: str, **numbers: Any) -> StepStats:
    """A step of a window of ten seconds; what is not said is idle."""
    said = sum(value for key, value in numbers.items() if key in ("working_s", "input_s", "memory_s", "workers_s"))
    return StepStats(name=name, kind=name, **{"consumer_s": 10 - said, "awaited_s": said, **numbers})


def pipeline(*steps: StepStats, **numbers: Any) -> PipelineStats:
    """A chain of steps, the last one first, whose consumer waits."""
    chain = [
        dataclasses.replace(each, inputs=each.inputs or ((place + 1,) if place + 1 < len(steps) else ()))
        for place, each in enumerate(steps)
    ]
    named = {"consumer": STARVED, "reads": READS, "elements": 100, "window_s": 10.0, **numbers}
    return PipelineStats(steps=tuple(chain), **named)


def verdict(*steps: StepStats, **numbers: Any) -> Verdict:
    """Of such a chain."""
    return pipeline(*steps, **numbers).verdict


WAITING = step("batch", input_s=9.0, working_s=0.5)
SOURCE = step("read", input_s=0.1, working_s=0.1)
POOLED = step("map", workers_s=9.0, runs="process", parallel=8, ahead=True, calls_s=36.0)
ASYNC = step("map", workers_s=9.0, runs="coroutine", parallel=3, ahead=True)
THREADED = step("map", workers_s=9.0, runs="thread", parallel=8, ahead=True)
STORED = step("read", input_s=9.0)
BUSY = CpuStats(
    cores=4, process_s=1.0, loop_s=1.0, workers_s=35.0, workers_delayed_s=1.0, workers_busy_s=38.0, workers_ready_s=40.0
)

CASES: dict[str, tuple[str, str, str, tuple[StepStats, ...], dict[str, Any]]] = {
    "workers, all processors": ("workers", "map", "cache()", (WAITING, POOLED, SOURCE), {"cpu": BUSY}),
    "workers, few": (
        *("workers", "map", "num_workers=16"),
        (WAITING, POOLED, SOURCE),
        {"cpu": dataclasses.replace(BUSY, cores=16)},
    ),
    "workers without processors": (
        *("machine", "map", "Stop other programs"),
        (WAITING, POOLED, SOURCE),
        {"cpu": dataclasses.replace(BUSY, workers_s=10.0, workers_delayed_s=26.0)},
    ),
    "workers that wait": (
        *("calls", "map", "async def"),
        (WAITING, POOLED, SOURCE),
        {"cpu": dataclasses.replace(BUSY, workers_s=1.0)},
    ),
    "one call at a time": (
        *("calls", "map", "AUTOTUNE"),
        (WAITING, dataclasses.replace(POOLED, parallel=1), SOURCE),
        {"cpu": dataclasses.replace(BUSY, workers_busy_s=9.0)},
    ),
    "few coroutines": ("calls", "map", "above 3", (WAITING, ASYNC, SOURCE), {}),
    "a blocked loop": (
        *("blocked_loop", "map", "Await"),
        (WAITING, dataclasses.replace(ASYNC, kept_s=9.0), SOURCE),
        {},
    ),
    "a loop that one call at a time blocks": (
        *("blocked_loop", "map", "Await"),
        (WAITING, dataclasses.replace(ASYNC, parallel=1, kept_s=9.0), SOURCE),
        {},
    ),
    "a loop that another async function blocks": (
        *("blocked_loop", "blocking", "Await"),
        (WAITING, ASYNC, dataclasses.replace(ASYNC, name="blocking", workers_s=1.0, kept_s=6.0), SOURCE),
        {},
    ),
    "one coroutine at a time": (
        *("calls", "map", "above 1"),
        (WAITING, dataclasses.replace(ASYNC, parallel=1, kept_s=1.0), SOURCE),
        {},
    ),
    "the interpreter's lock": (
        *("interpreter", "map", "without Options(num_workers=0)"),
        (WAITING, THREADED, SOURCE),
        {"cpu": CpuStats(cores=4, process_s=9.9, loop_s=0.1)},
    ),
    "few threads": (
        *("calls", "map", "num_parallel_calls"),
        (WAITING, THREADED, SOURCE),
        {"cpu": CpuStats(cores=4, process_s=0.2, loop_s=0.1)},
    ),
    "few threads for many calls": (
        *("calls", "map", "Raise Options(num_threads"),
        (WAITING, dataclasses.replace(THREADED, calls_s=38.0), SOURCE),
        {"cpu": CpuStats(cores=4, process_s=0.2, loop_s=0.1)},
    ),
    "an inline function": ("loop", "map", "nor vectorized", (WAITING, step("map", working_s=9.0), SOURCE), {}),
    "a predicate": ("loop", "filter", "in front of it", (WAITING, step("filter", working_s=9.0), SOURCE), {}),
    "coroutines that compute": (
        *("blocked_loop", "map", "computes"),
        (WAITING, dataclasses.replace(ASYNC, parallel=64), SOURCE),
        {"cpu": CpuStats(cores=4, loop_s=9.0, loop_delayed_s=0.5)},
    ),
    "coroutines on a busy machine": (
        *("machine", "map", "Stop other programs"),
        (WAITING, ASYNC, SOURCE),
        {"cpu": CpuStats(cores=4, loop_s=2.0, loop_delayed_s=7.5)},
    ),
    "a parser on the loop": (
        *("loop", "map", "Parse fewer features"),
        (WAITING, step("map", working_s=9.0, calls_s=8.0), SOURCE),
        {},
    ),
    "a loop without a processor": (
        *("machine", "map", "Stop other programs"),
        (WAITING, step("map", working_s=9.0), SOURCE),
        {"cpu": CpuStats(loop_s=2.0, loop_delayed_s=7.0)},
    ),
    "a dataset of each element": (
        *("loop", "flat_map", "in front of it"),
        (WAITING, step("flat_map", working_s=9.0), SOURCE),
        {},
    ),
    "a function that groups": (
        *("loop", "group_by_window", "Compute what it looks at"),
        (WAITING, step("group_by_window", working_s=9.0), SOURCE),
        {},
    ),
    "a function with a state": (
        *("loop", "scan", "does not depend on its state"),
        (WAITING, step("scan", working_s=9.0), SOURCE),
        {},
    ),
    "another step of the loop": ("loop", "unique", "filter early", (WAITING, step("unique", working_s=9.0)), {}),
    "an async generator": (
        *("generator", "from_generator", "several"),
        (WAITING, step("from_generator", working_s=9.0, runs="coroutine", ahead=True)),
        {},
    ),
    "an async generator that blocks the loop": (
        *("blocked_loop", "from_generator", "a plain generator"),
        (WAITING, step("from_generator", working_s=9.0, kept_s=8.5, runs="coroutine", ahead=True)),
        {},
    ),
    "a generator": (
        *("generator", "from_generator", "several"),
        (WAITING, step("from_generator", workers_s=9.0, runs="thread", ahead=True)),
        {},
    ),
    "generators that take turns": (
        *("generator", "from_generator", "deterministic=False"),
        (step("interleave", input_s=9.0), step("from_generator", workers_s=2.2, runs="thread", ahead=True, copies=4.0)),
        {},
    ),
    "async generators that take turns": (
        *("generator", "from_generator", "prefetch(8)"),
        (
            step("interleave", input_s=9.0),
            step("from_generator", working_s=2.2, runs="coroutine", ahead=True, copies=4.0),
        ),
        {},
    ),
    "generators that are side by side": (
        *("generator", "from_generator", "cycle_length"),
        (step("interleave", input_s=9.0), step("from_generator", workers_s=9.0, runs="thread", ahead=True, copies=4.0)),
        {},
    ),
    "generators that wait for threads": (
        *("generator", "from_generator", "num_threads"),
        (
            step("interleave", input_s=9.0),
            step("from_generator", workers_s=9.0, calls_s=20.0, runs="thread", ahead=True, copies=4.0),
        ),
        {},
    ),
    "generators that compute": (
        *("generator", "from_generator", "cycle_length"),
        (
            step("interleave", input_s=9.0),
            step("from_generator", workers_s=9.0, calls_s=20.0, runs="thread", ahead=True, copies=4.0),
        ),
        {"cpu": CpuStats(process_s=9.5, loop_s=0.5)},
    ),
    "JSON lines": (
        *("parsing", "JsonLinesDataset", "num_parallel_calls"),
        (WAITING, step("JsonLinesDataset", workers_s=9.0)),
        {},
    ),
    "compressed JSON lines that workers parse": (
        *("decompression", "JsonLinesDataset", "without compression"),
        (WAITING, step("map(parse_json)", input_s=9.0), step("JsonLinesDataset", workers_s=9.0)),
        {},
    ),
    "CSV": ("parsing", "CsvDataset", "num_parallel_reads", (WAITING, step("CsvDataset", workers_s=9.0)), {}),
    "Parquet": ("parsing", "ParquetDataset", "fewer columns", (WAITING, step("ParquetDataset", workers_s=9.0)), {}),
    "decompression": ("decompression", "read", "cycle_length", (WAITING, step("read", workers_s=9.0)), {}),
    "a snapshot that is written": (
        *("storing", "snapshot", "without compression"),
        (WAITING, step("snapshot", workers_s=9.0), SOURCE),
        {},
    ),
    "a snapshot that is read": (
        "storing",
        "snapshot shard",
        "shard_func",
        (step("snapshot shard", workers_s=9.0),),
        {},
    ),
    "a cache that is written": ("storing", "cache", "in memory", (WAITING, step("cache", workers_s=9.0), SOURCE), {}),
    "a cache that is read": ("storing", "cache", "in memory", (WAITING, step("cache", workers_s=9.0)), {}),
    "memory": ("memory", "map", "memory_limit_bytes", (WAITING, step("map", memory_s=9.0), SOURCE), {}),
    "no read-ahead": (
        *("memory", "read", "memory_limit_bytes"),
        (WAITING, STORED),
        {"reads": dataclasses.replace(READS, short_s=9.0)},
    ),
    "a server that refuses": (
        *("throttled", "read", "quota"),
        (WAITING, STORED),
        {"reads": dataclasses.replace(READS, refused=30, retries=31)},
    ),
    "a server that fails": (
        *("failing", "read", "fetch['failures']"),
        (WAITING, STORED),
        {"reads": dataclasses.replace(READS, requests=100, retries=40)},
    ),
    "a narrow link": (
        *("link", "read", "cache()"),
        (WAITING, STORED),
        {"reads": dataclasses.replace(READS, in_flight=23)},
    ),
    "a distant server, few requests": (
        *("link", "read", "max_requests_in_flight=96"),
        (WAITING, STORED),
        {"reads": dataclasses.replace(READS, in_flight=23, requests=2000, first_byte_s=0.1, is_limit_given=True)},
    ),
    "a distant server": (
        *("link", "read", "AUTOTUNE allows more"),
        (WAITING, STORED),
        {"reads": dataclasses.replace(READS, in_flight=23, requests=2000, first_byte_s=0.1)},
    ),
    "a loop that receives all it can": (
        *("receivers", "read", "receivers=4"),
        (WAITING, STORED),
        {"reads": dataclasses.replace(READS, in_flight=23, receivers=2, receivers_s=18.0), "cpu": CpuStats(cores=4)},
    ),
    "receivers on all processors": (
        *("link", "read", "cache()"),
        (WAITING, STORED),
        {"reads": dataclasses.replace(READS, in_flight=23, receivers=2, receivers_s=18.0), "cpu": CpuStats(cores=2)},
    ),
    "a single file": ("parallelism", "read", "in more files", (WAITING, STORED), {}),
    "files one behind the other": (
        *("parallelism", "read", "cycle_length=4"),
        (step("concatenate", input_s=9.0, working_s=0.5), STORED, SOURCE),
        {},
    ),
    "a list of files": ("listing", "list_files", "write_manifest", (WAITING, step("list_files", input_s=9.0)), {}),
    "a manifest": ("listing", "from_manifest", "on this machine", (WAITING, step("from_manifest", input_s=9.0)), {}),
    "the start of workers": (
        *("startup", "map", "Runtime"),
        (WAITING, dataclasses.replace(POOLED, startup_s=8.0), SOURCE),
        {"cpu": BUSY},
    ),
    "the start of a process in which no step was at work yet": (
        *("startup", "", "Runtime"),
        (step("batch", working_s=0.4), SOURCE),
        {"consumer": ConsumerStats(wait_s=1.2, step_s=0.8, first_wait_s=1.1)},
    ),
    "a first element that a step took long for": (
        *("loop", "shuffle", "filter early"),
        (step("shuffle", working_s=1.1), SOURCE),
        {"consumer": ConsumerStats(wait_s=1.2, step_s=0.8, first_wait_s=1.1)},
    ),
    "the consumer": (
        *("consumer", "", ""),
        (WAITING, POOLED),
        {"consumer": ConsumerStats(wait_s=0.2, step_s=9.8, first_wait_s=0.1)},
    ),
    "a consumer that had to wait for workers at first": (
        *("consumer", "", ""),
        (WAITING, dataclasses.replace(POOLED, startup_s=0.3)),
        {"consumer": ConsumerStats(wait_s=0.4, step_s=9.6, first_wait_s=0.35)},
    ),
    "nothing yet": ("unknown", "", "", (WAITING, POOLED), {"elements": 0}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_cause_the_step_and_the_action_follow_from_the_numbers(case: str) -> None:
    """One known cause each."""
    cause, name, action, steps, numbers = CASES[case]
    found = verdict(*steps, workers=WORKERS, **numbers)
    assert (found.cause, found.step) == (cause, name), found
    assert action in found.action
    assert bool(found.action) == bool(action)
    assert found.sentence.endswith(".")


def test_reads_that_wait_are_not_counted_as_under_way() -> None:
    """No more are under way than are allowed."""
    found = verdict(WAITING, STORED, reads=dataclasses.replace(READS, in_flight=2.0, limit=1))
    assert "1.0 reads were under way on average, of 1 allowed, and 1.0 more waited for their turn" in found.sentence
    assert "waited for their turn" not in verdict(WAITING, STORED).sentence


def test_shards_that_ended_early_are_no_elements() -> None:
    """Their failures are not told as those of elements."""
    text = str(SkippedStats(shards=3, steps={"ParquetDataset": 3}))
    assert text == "Elements skipped: 0; shards that ended early: 3; failures: 3 in ParquetDataset."


def test_one_worker_process_is_one() -> None:
    """And more of them are advised, not as many as there are."""
    one = dataclasses.replace(WORKERS, processes=1, most=1)
    found = pipeline(WAITING, POOLED, SOURCE, workers=one, cpu=BUSY).verdict
    assert "the worker process was busy 95 % of it" in found.sentence
    assert "num_workers=4" in found.action


def test_the_share_of_a_step_is_that_of_all_its_copies() -> None:
    """Four files take turns on one thread."""
    found = verdict(WAITING, step("map", working_s=2.2, copies=4.0), SOURCE)
    assert "it worked 88 % of it" in found.sentence


def test_a_step_that_keeps_the_loop_to_itself_is_not_blamed_on_others() -> None:
    """Coroutines could not begin because an inline function in front of them works all the time."""
    found = verdict(WAITING, ASYNC, AHEAD, step("filter", working_s=9.0))
    assert (found.cause, found.step) == ("loop", "filter")


def test_what_a_faster_step_would_bring_does_not_depend_on_how_calls_are_divided() -> None:
    """The calls of two datasets that are read side by side keep the loop as long as those of one."""
    blocking = dataclasses.replace(ASYNC, name="blocking", workers_s=7.0, kept_s=6.0)
    one = verdict(WAITING, dataclasses.replace(ASYNC, kept_s=4.0), blocking, SOURCE)
    two = verdict(WAITING, dataclasses.replace(ASYNC, workers_s=4.5, kept_s=4.0, copies=2.0), blocking, SOURCE)
    assert one.step == two.step == "blocking"
    assert one.faster_rate == two.faster_rate > one.rate


def test_of_several_inputs_the_one_that_is_waited_for_is_followed() -> None:
    """The slow branch of a zip."""
    quick, slow = step("quick", working_s=0.1), step("map", working_s=8.0)
    found = verdict(step("zip", input_s=9.0, inputs=(1, 2)), dataclasses.replace(quick, inputs=()), slow)
    assert found.step == "map"


@pytest.mark.parametrize(("files", "action"), [(100, "cycle_length=8"), (5, "cycle_length=5"), (2, "in more files")])
def test_no_more_files_at_a_time_are_advised_than_there_are(files: int, action: str) -> None:
    """They are counted by the step that names them; two are read at a time."""
    steps = (
        step("interleave", input_s=9.0, inputs=(1, 2)),
        step("list_files", elements=files),
        step("map", input_s=9.0, copies=2.0, inputs=(3,)),
        dataclasses.replace(STORED, copies=2.0),
    )
    found = dataclasses.replace(pipeline(), steps=steps).verdict
    assert (found.cause, found.step) == ("parallelism", "read")
    assert action in found.action


@pytest.mark.parametrize(
    ("turns", "between", "action"),
    [
        ("interleave", "prefetch", "side by side: use interleave(..., deterministic=False)."),
        ("interleave", "map", "prefetch(8)"),
        ("flat_map", "map", "Use several generators"),
    ],
)
def test_what_generators_that_take_turns_do_already_is_not_advised(turns: str, between: str, action: str) -> None:
    """A prefetch behind them; of a flat_map there is nothing that could be set."""
    steps = (
        dataclasses.replace(step("interleave", input_s=9.0, inputs=(1, 2)), name=f"{turns}(made)"),
        step("range"),
        step(between, input_s=2.5, copies=4.0, awaited_s=9.0, ahead=between == "prefetch", inputs=(3,)),
        step("from_generator", workers_s=2.2, runs="thread", ahead=True, copies=4.0),
    )
    found = dataclasses.replace(pipeline(), steps=steps).verdict.action
    assert action in found
    assert ("prefetch(8)" in found) == (between == "map")


def test_a_file_whose_records_become_datasets_is_none_of_them() -> None:
    """Whether there are such datasets already, or not yet."""
    one = step("flat_map", input_s=9.0, working_s=0.5)
    for inner in ((), (step("range", elements=1000),)):
        steps = (dataclasses.replace(one, inputs=(1, 2)[: 1 + len(inner)]), STORED, *inner)
        found = dataclasses.replace(pipeline(), steps=steps).verdict
        assert (found.cause, found.step) == ("parallelism", "read")
        assert "in more files" in found.action


def test_elements_of_a_loader_that_does_not_answer_were_delivered() -> None:
    """Its steps are not known."""
    found = PipelineStats(elements=3, consumer=STARVED).verdict
    assert (found.cause, found.sentence) == ("unknown", "The loader process did not answer.")


WORKING = step("batch", working_s=4.0, input_s=6.0)
AHEAD = step("prefetch", input_s=10.0, ahead=True)


@pytest.mark.parametrize(
    ("steps", "consumer_s", "gain"),
    [
        pytest.param((step("map", working_s=10.0),), 1.0, 2.0, id="alone"),
        pytest.param((WORKING, step("map", working_s=6.0)), 1.0, 10 / 7, id="in turn"),
        pytest.param((AHEAD, dataclasses.replace(AHEAD, runs="coroutine"), STORED), 1.0, 2.0, id="ahead"),
        pytest.param((step("map", working_s=10.0),), 8.0, 10 / 8, id="consumer next"),
        pytest.param((step("batch", working_s=1.0),), 4.0, 10 / 9.5, id="little to save"),
        pytest.param(
            (
                step("batch", working_s=2.0, input_s=8.0),
                step("map", workers_s=8.0, runs="process", ahead=True, parallel=8),
                step("read", working_s=7.0),
            ),
            1.0,
            10 / 9,
            id="stage loop next",
        ),
    ],
)
def test_the_predicted_rate_is_set_by_what_is_next(
    steps: tuple[StepStats, ...], consumer_s: float, gain: float
) -> None:
    """Steps that pull one another take turns; steps that work ahead, the consumer and the loop go on side by side."""
    consumer = dataclasses.replace(STARVED, step_s=consumer_s)
    found = verdict(*steps, consumer=consumer, workers=WORKERS, cpu=BUSY)
    assert found.faster_rate / found.rate == pytest.approx(gain, rel=0.2)


def test_statistics_print_as_a_table_and_the_verdict() -> None:
    """One row per step in the order of the data, then the consumer; the times of a row add up to 100 %."""
    stats = pipeline(WAITING, dataclasses.replace(POOLED, copies=4.0), SOURCE, workers=WORKERS, cpu=BUSY)
    head, *rows, _, sentence = str(stats).splitlines()
    assert head.split() == ["step", "elements", "MB", "working", "input", "memory", "workers", "idle"]
    assert [row.split()[0] for row in rows] == ["read", "map", "batch", "consumer"]
    assert "map x 4.0" in rows[1]
    for row in rows[:-1]:
        assert sum(int(cell) for cell in row.replace("%", "").split()[-5:]) == pytest.approx(100, abs=2)
    assert sentence.startswith("Limited by map: the consumer waited 90 % of the time (median 100 ms")
    assert sentence.endswith("elements/s.")


def test_a_step_that_passes_nothing_on_is_named() -> None:
    """The first one from the end that had something to pass on: everything failed there, or was filtered."""
    lost = step("filter", input_s=9.0)
    found = verdict(WAITING, lost, step("read", elements=300), elements=0)
    assert found.sentence == "No element was delivered so far: filter got 300 and passed on none."
    assert verdict(WAITING, lost, SOURCE, elements=0).sentence == "No element was delivered so far."


def test_what_was_skipped_is_printed() -> None:
    """How much, and where most of it; of many steps the first three."""
    skipped = SkippedStats(elements=1000, shards=2, steps={"a": 10, "b": 700, "c": 200, "d": 50, "e": 40})
    line = (
        "Elements skipped: 1,000; shards that ended early: 2; failures: 700 in b, 200 in c, 50 in d, others in 2 more "
        "steps."
    )
    stats = pipeline(WAITING, SOURCE, skipped=skipped)
    assert line in str(stats).splitlines()
    assert line in stats._repr_html_()
    assert "skipped" not in str(pipeline(WAITING, SOURCE))


def test_in_notebooks_names_are_escaped_and_long_plans_are_shortened() -> None:
    """Names come from functions and URLs of others; the page stays small."""
    steps = [step(f"<script>alert({number})</script>" + "x" * 500, input_s=5.0, working_s=5.0) for number in range(400)]
    html = pipeline(*steps)._repr_html_()
    assert "<script" not in html
    assert "&lt;script" in html
    assert len(html) < 20_000
    assert "361 more" in html
