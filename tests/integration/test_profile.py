"""`profile` on real pipelines: what it records is what happened, and the pipelines do not notice."""

from __future__ import annotations

import contextvars
import json
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.observe.parts import LineStats
from asyncdata.observe.profile import MOST_PIPELINES, _Beat, active_profile
from asyncdata.observe.profile_report import SCHEMA
from tests.patience import LIMIT_S, wait_until
from tests.samples import samples


def double(number: Any) -> Any:
    """A user's function."""
    return number * 2


async def double_async(number: Any) -> Any:
    """The same, awaited."""
    return number * 2


def divided(_done: Any) -> float:
    """Fails after something was done."""
    return 1 / 0


def shards(folder: Path) -> str:
    """Three files of 200 records."""
    for number in range(3):
        with ad.TFRecordWriter(str(folder / f"{number}.tfrecord")) as writer:
            writer.write_many([bytes([number]) * 100] * 200)
    return str(folder / "*.tfrecord")


KINDS: dict[str, Callable[[Path], ad.Dataset]] = {
    "range": lambda _folder: ad.Dataset.range(600),
    "files": lambda folder: ad.Dataset.list_files(shards(folder), seed=1).interleave(ad.TFRecordDataset, 2),
    "generator": lambda _folder: ad.Dataset.from_generator(lambda: iter(range(600)), output_types=np.int64),
    "inline": lambda _folder: ad.Dataset.range(600).map(double),
    "process": lambda _folder: ad.Dataset.range(600).map(double, num_parallel_calls=2),
    "thread": lambda _folder: ad.Dataset.range(600).map(double, num_parallel_calls=2, executor="thread"),
    "async": lambda _folder: ad.Dataset.range(600).map(double_async, num_parallel_calls=4),
    "zip": lambda _folder: ad.Dataset.zip(ad.Dataset.range(600), ad.Dataset.counter()),
}
OPTIONS = ad.Options(num_workers=1, seed=3, memory_limit_bytes=64 << 20)


def taken(elements: Any) -> list[Any]:
    """The elements as they print."""
    return [str(element) for element in elements]


@pytest.mark.sampled
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_changes_and_all_is_counted(kind: str, tmp_path: Path) -> None:
    """Of every kind of pipeline: elements and states are those without a profile, and its sums are the iterator's."""
    ds = KINDS[kind](tmp_path).shuffle(50).batch(10).with_options(OPTIONS)
    with ds.iterator(epoch=0) as plain:
        head = taken(next(plain) for _ in range(20))
        state = plain.state_dict()
        rest = taken(plain)
    with ad.profile() as profile:
        with ds.iterator(epoch=0) as batches:
            assert taken(next(batches) for _ in range(20)) == head
            assert batches.state_dict() == state
            assert taken(batches) == rest
        stats = batches.stats()
    (pipeline,) = profile.report().pipelines
    assert (pipeline.stats.elements, pipeline.epoch) == (60, 0)
    assert pipeline.stats == stats
    assert sum(each.elements for each in pipeline.arrivals) == 60
    for field in ("wait_s", "step_s"):
        recorded = sum(getattr(each, field) for each in pipeline.arrivals)
        assert recorded == pytest.approx(getattr(stats.consumer, field), abs=1e-6)
    last = pipeline.moments[-1]
    assert (last.elements, last.bytes_read) == (60, stats.reads.bytes)
    assert pipeline.verdict == stats.verdict
    for step in pipeline.stats.steps:
        times = (step.working_s, step.input_s, step.memory_s, step.workers_s, step.consumer_s)
        assert sum(times) == pytest.approx(pipeline.stats.window_s, rel=0.02)


def test_isolated() -> None:
    """In a loader process the numbers come over its pipe, on this process's clock."""
    ds = KINDS["process"](Path()).batch(10).with_options(ad.Options(num_workers=1, isolate=True))
    with ad.profile() as profile:
        assert sum(1 for _ in ds) == 60
    (pipeline,) = profile.report().pipelines
    assert pipeline.stats.elements == pipeline.moments[-1].elements == 60
    assert pipeline.stats.loader_pid is not None
    assert [step.elements for step in pipeline.stats.steps][-1] == 600
    times = [*(each.at_s for each in pipeline.moments), *(each.at_s for each in pipeline.arrivals)]
    report = profile.report()
    assert all(report.began_s <= at <= report.began_s + report.seconds for at in times)


@pytest.mark.sampled
@pytest.mark.parametrize("isolate", [False, True])
def test_however_it_ends(*, isolate: bool) -> None:
    """Left early, dropped, failed, closed later, or started and forgotten: numbers stay, and nothing else does."""
    ds = ad.Dataset.range(1000).with_options(ad.Options(isolate=isolate))
    with ad.profile() as profile, ad.Runtime(ad.Options(isolate=isolate), pipelines=8):
        with ds.batch(10).iterator() as left:
            for _ in range(7):
                next(left)
        for batch in ds.batch(10):
            assert len(batch) == 10
            break
        with pytest.raises(ZeroDivisionError):
            list(ds.map(lambda number: 1 // (500 - int(number))).batch(10))
        later = ds.batch(10).iterator()
        next(later)
        wait_until(lambda: profile.report().pipelines[-1].stats.elements == 1)
    report = profile.report()
    assert [each.stats.elements for each in report.pipelines] == [7, 1, 50, 1]
    later.close()
    assert report is profile.report()
    assert "Limited by" in str(report)


def test_what_is_dropped_is_over_at_once() -> None:
    """However often a profile looks: an iterator that nobody refers to counts as an open pipeline no longer."""
    with ad.Runtime(pipelines=1), ad.profile(sample_hz=1000):
        for _ in range(samples(30, 1000)):
            for number in ad.Dataset.range(100):
                assert number == 0
                break


def test_of_what_is_abandoned_single_elements_are_counted() -> None:
    """Thousands of small ones may have come at once."""
    with ad.profile() as profile, ad.Dataset.range(5000).iterator() as numbers:
        next(numbers)
        next(numbers)
        numbers.abandon()
        assert profile.report().pipelines[0].stats.elements == 2
    assert profile.report().pipelines[0].stats.elements == 2


async def test_in_coroutines() -> None:
    """``async for`` is recorded as well, also in tasks that the block starts."""
    with ad.profile() as profile:
        assert len([x async for x in ad.Dataset.range(30).batch(3)]) == 10
    assert [each.stats.elements for each in profile.report().pipelines] == [10]


def test_whose_pipelines() -> None:
    """Those of the innermost block, and of threads that enter its context; none before or after."""
    list(ad.Dataset.range(3))
    with ad.profile() as outer:
        with ad.profile() as inner:
            list(ad.Dataset.range(4))
        list(ad.Dataset.range(5))
        for run in (contextvars.copy_context().run, lambda function: function()):
            thread = threading.Thread(target=run, args=(lambda: list(ad.Dataset.range(6)),))
            thread.start()
            thread.join(LIMIT_S)
    list(ad.Dataset.range(7))
    counted = [[each.stats.elements for each in profile.report().pipelines] for profile in (outer, inner)]
    assert counted == [[5, 6], [4]]
    with pytest.raises(RuntimeError, match="one `with` block"), inner:
        pass
    with pytest.raises(RuntimeError, match="nothing was recorded"):
        ad.profile().report()


def test_left_in_another_context(tmp_path: Path) -> None:
    """As of a fixture: the report is written, and the profile that has ended counts for nobody any more."""
    profile = ad.profile(tmp_path / "report.json")
    profile.__enter__()
    numbers = list(ad.Dataset.range(5))
    contextvars.copy_context().run(profile.__exit__, None, None, None)
    assert len(numbers) == 5
    assert len(json.loads((tmp_path / "report.json").read_text())["pipelines"]) == 1
    assert active_profile() is None


def test_a_state_is_loaded() -> None:
    """What goes on from a state is a pipeline of its own."""
    with ad.profile() as profile, ad.Dataset.range(10).iterator() as numbers:
        state = numbers.state_dict()
        assert len(list(numbers)) == 10
        numbers.load_state_dict(state)
        assert len(list(numbers)) == 10
    assert [each.stats.elements for each in profile.report().pipelines] == [10, 10]


def test_many_epochs() -> None:
    """Of many pipelines the latest are kept, and the others counted."""
    ds = ad.Dataset.range(3)
    with ad.profile() as profile, ad.Runtime():
        for _ in range(MOST_PIPELINES + 8):
            list(ds)
    report = profile.report()
    assert [each.epoch for each in report.pipelines] == list(range(8, MOST_PIPELINES + 8))
    assert report.dropped_pipelines == 8


@pytest.mark.parametrize("name", ["report.html", "report.json"])
def test_the_file(name: str, tmp_path: Path) -> None:
    """It is written when the block ends, also by an error, and takes the place of an older one as a whole."""
    path = tmp_path / name
    path.write_text("old")
    profile = ad.profile(path)
    with pytest.raises(ZeroDivisionError), profile:
        assert divided(list(ad.Dataset.range(path.read_text().count("old"))))
    report = profile.report()
    assert [each.stats.elements for each in report.pipelines] == [1]
    assert path.read_text() == (report.to_json() if name.endswith("json") else report.to_html())
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    """What is wrong with the path is said at once; what goes wrong later hides no error of the block."""
    with pytest.raises(ValueError, match="must end in"):
        ad.profile(tmp_path / "report.pdf")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        ad.profile(tmp_path / "missing" / "report.html")
    for wrong in (5, b"report.html"):
        with pytest.raises(TypeError, match="path must be a path"):
            ad.profile(wrong)  # type: ignore[arg-type]  # that is the case
        with pytest.raises(TypeError, match="trace must be a path"):
            ad.profile(trace=wrong)  # type: ignore[arg-type]  # likewise
    with pytest.raises(ValueError, match="a file each"):
        ad.profile(tmp_path / "one.json", trace=tmp_path / "." / "one.json")
    folder = tmp_path / "removed"
    folder.mkdir()
    with pytest.raises(ZeroDivisionError) as caught, ad.profile(folder / "report.html"):
        divided([each.rmdir() for each in (folder,)])  # type: ignore[func-returns-value]  # for what it does
    assert "the profile was not written" in caught.value.__notes__[0]
    folder.mkdir()
    with pytest.raises(OSError, match="removed"), ad.profile(folder / "report.html"):
        folder.rmdir()


def test_no_secret(tmp_path: Path) -> None:
    """Storage options are left out, and signed URLs lose their signatures."""
    shards(tmp_path)
    secret = "s3cr3t-password"
    options = ad.Options(storage={"http": {"headers": {"Authorization": secret}}}, order_log=str(tmp_path / "log"))
    url = f"file://{tmp_path}/0.tfrecord"
    with ad.profile() as profile:
        list(ad.TFRecordDataset(url).with_options(options))
        with pytest.raises(ad.StorageError):
            list(ad.TFRecordDataset(f"http://127.0.0.1:9/x?Signature={secret}").with_options(_once(options)))
    report = profile.report()
    for text in (report.to_json(), report.to_html(), str(report), repr(report)):
        assert secret not in text
    assert set(report.pipelines[0].options) == {"order_log"}


def _once(options: ad.Options) -> ad.Options:
    return ad.Options(storage=options.storage, retry=ad.RetryOptions(max_attempts=1))


def test_the_document() -> None:
    """JSON holds the same numbers; every column of a timeline has one length."""
    with ad.profile() as profile:
        list(ad.Dataset.range(1000).shuffle(10).batch(4))
    report = profile.report()
    document = json.loads(report.to_json())
    assert document["schema"] == SCHEMA
    (pipeline,) = document["pipelines"]
    assert pipeline["stats"]["elements"] == 250
    assert pipeline["verdict"]["text"] == str(report.pipelines[0].verdict)
    timeline = pipeline["timeline"]
    columns = [*(each for name, each in timeline.items() if name not in ("every_s", "memory"))]
    assert {len(each) for each in (*columns, *timeline["memory"].values())} == {len(report.pipelines[0].moments)}
    assert {len(each) for each in pipeline["arrivals"].values()} == {len(report.pipelines[0].arrivals)}
    assert pipeline["held_at_peak"] == sorted(
        pipeline["held_at_peak"], key=lambda each: each["used_bytes"], reverse=True
    )


def test_an_empty_profile(tmp_path: Path) -> None:
    """A block without a pipeline has a report, too."""
    with ad.profile(tmp_path / "report.html") as profile:
        pass
    assert "No pipeline was iterated" in str(profile.report())
    assert "No pipeline was iterated" in (tmp_path / "report.html").read_text()


# --- lines of user code ------------------------------------------------------------------------------------------


def rest(number: Any) -> Any:
    """Is in one line for most of the time."""
    threading.Event().wait(0.1)
    return number


REST_LINE = rest.__code__.co_firstlineno + 2


async def rest_blocking(number: Any) -> Any:
    """Keeps the stage loop for as long."""
    return rest(number)


def resting() -> Iterator[int]:
    """A generator that is slow in its own line."""
    for number in range(6):
        yield rest(number)


def rest_and_die(number: Any) -> Any:
    """Ends its own process, without any warning."""
    rest(number)
    os.kill(os.getpid(), signal.SIGKILL)


PLACES: dict[str, tuple[Callable[[], ad.Dataset], str]] = {
    "process": (lambda: ad.Dataset.range(6).map(rest, num_parallel_calls=1), "worker processes"),
    "thread": (lambda: ad.Dataset.range(6).map(rest, num_parallel_calls=1, executor="thread"), "threads"),
    "inline": (lambda: ad.Dataset.range(6).map(rest), "stage loop"),
    "async": (lambda: ad.Dataset.range(6).map(rest_blocking, num_parallel_calls=1), "stage loop"),
    "generator": (lambda: ad.Dataset.from_generator(resting, output_types=np.int64), "threads"),
}


def seconds_at_rest(lines: Iterable[LineStats]) -> dict[str, float]:
    """By place."""
    return {each.place: each.seconds for each in lines if (each.function, each.line) == ("rest", REST_LINE)}


@pytest.mark.sampled
@pytest.mark.parametrize(("kind", "isolate"), [*((kind, False) for kind in PLACES), ("process", True)])
def test_lines_of_user_code(kind: str, *, isolate: bool) -> None:
    """Wherever a function runs, the line that takes the time is named, with where it ran and for how long."""
    make, place = PLACES[kind]
    with ad.profile(sample_hz=100) as profile:
        assert len(list(make().with_options(ad.Options(num_workers=1, isolate=isolate)))) == 6
    (pipeline,) = profile.report().pipelines
    seconds = seconds_at_rest(pipeline.stats.lines)
    assert list(seconds) == [place]
    assert 0 < seconds[place] <= pipeline.stats.window_s
    assert {each.file for each in pipeline.stats.lines if each.function == "rest"} == {__file__[-120:]}


def test_lines_of_the_consumer() -> None:
    """The training loop's own line, without its waiting for elements."""
    with ad.profile(sample_hz=100) as profile:
        for number in ad.Dataset.range(3).map(rest):
            rest(number)
    assert list(seconds_at_rest(profile.report().lines)) == ["your loop"]


def test_lines_of_a_worker_that_was_killed() -> None:
    """What it had noted is still there."""
    ds = ad.Dataset.range(1).map(rest_and_die, num_parallel_calls=1)
    with ad.profile(sample_hz=100) as profile, pytest.raises(ad.WorkerDiedError):
        list(ds.with_options(ad.Options(num_workers=1)))
    (pipeline,) = profile.report().pipelines
    assert seconds_at_rest(pipeline.stats.lines)["worker processes"] > 0


def test_one_pipeline_after_another() -> None:
    """On one Runtime each has its own lines, and without a profile nobody looks."""

    def threads() -> set[str]:
        return {thread.name for thread in threading.enumerate()}

    slow = ad.Dataset.range(4).map(rest, num_parallel_calls=1)
    with ad.Runtime(ad.Options(num_workers=1)):
        list(slow)
        assert "asyncdata-sampler" not in threads()
        with ad.profile(sample_hz=100) as profile:
            list(slow)
            list(ad.Dataset.range(10).map(double, num_parallel_calls=1))
        assert "asyncdata-profile" not in threads()
        with ad.profile(sample_hz=0) as blind, slow.iterator() as numbers:
            assert len(list(numbers)) == 4
        assert numbers.stats().lines == ()
    first, second = profile.report().pipelines
    assert seconds_at_rest(first.stats.lines)["worker processes"] > 0
    assert seconds_at_rest(second.stats.lines) == {}
    assert (blind.report().lines, blind.report().pipelines[0].stats.lines) == ((), ())


@pytest.mark.parametrize("hz", [-1, 1001, float("nan")])
def test_how_often(hz: float) -> None:
    """What makes no sense is refused."""
    with pytest.raises(ValueError, match="sample_hz"):
        ad.profile(sample_hz=hz)


def test_rare_looks_are_as_rare_as_was_asked_for() -> None:
    """Also rarer than snapshots are taken; what was missed does not come all at once."""
    looks = _Beat(2.0, 10.0)
    assert [each / 4 for each in range(40, 80) if looks.comes(each / 4)] == [12.0, 14.0, 16.0, 18.0]
    assert [looks.comes(now) for now in (30.3, 30.4, 31.9, 32.0)] == [True, True, False, True]


def test_reads_of_pipelines_before_do_not_count(tmp_path: Path) -> None:
    """Not those of the same Runtime either."""
    path = tmp_path / "a"
    with ad.TFRecordWriter(path) as writer:
        writer.write_many([b"x" * 1000] * 100)
    with ad.Runtime(ad.Options(num_workers=0)), ad.profile() as profile:
        list(ad.TFRecordDataset(path))
        list(ad.Dataset.range(10))
    first, second = profile.report().pipelines
    assert first.moments[-1].requests == first.stats.reads.requests > 0
    assert [moment.requests for moment in second.moments] == [0] * len(second.moments)
    assert profile.report().to_html().count("Reads from storage") == 1
