"""A run without a fixed order is repeated bit by bit from its order log: with other workers, in another process."""

from __future__ import annotations

import asyncio
import json
import pickle
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import asyncdata as ad
from asyncdata.runtime.state.document import with_checksum
from fake_gcs import FakeGCS, Fault, Profile, Rule
from tests.faults.programs import program
from tests.integration.test_exactly_once import Draw, few_unordered, spin, unordered
from tests.samples import SOAK, samples

pytestmark = pytest.mark.usefixtures("two_workers")

D = ad.Dataset
Make = Callable[[], ad.Dataset]


def recording(make: Make, path: Path) -> ad.Dataset:
    """The pipeline with a log."""
    return make().with_options(ad.Options(order_log=path))


def replaying(make: Make, path: Path) -> ad.Dataset:
    """The pipeline after a log."""
    return make().with_options(ad.Options(replay=path))


def bits(elements: list[Any]) -> list[bytes]:
    """Every element as bytes: values, types and shapes."""
    return [pickle.dumps(element) for element in elements]


def until_it_ends(dataset: ad.Dataset) -> tuple[list[Any], ValueError | None]:
    """What comes, up to the end or the error."""
    heard: list[Any] = []
    try:
        for element in dataset.iterator(epoch=0):
            heard.append(element)  # noqa: PERF402 -- it is kept when an error follows
    except ValueError as error:  # StateError is one, too
        return heard, error
    return heard, None


def lives(make: Make, path: Path, draw: random.Random) -> list[Any]:
    """What is delivered up to the states that were taken, by iterators that are closed at random moments."""
    delivered: list[Any] = []
    state: Any = None
    ended = False
    while not ended:
        heard: list[Any] = []
        with recording(make, path).iterator(epoch=None if state else 0, state=state) as it:
            first = it.position
            most = draw.choice([0, 1, 2, 3, 5, 9, 30])
            while len(heard) < most and not ended:
                try:
                    heard.append(next(it))
                except StopIteration:
                    ended = True
            used = len(heard) if ended else draw.randint(max(0, len(heard) - 10), len(heard))
            # A state from further back replaces what was delivered since.
            state = json.loads(json.dumps(it.state_dict(at=first + used)))
        delivered = delivered[:first] + heard[:used]
    return delivered


# --- the law ----------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(7200 if SOAK else 600)
def test_random_pipelines_are_repeated_bit_by_bit(tmp_path: Path) -> None:
    """Two epochs each, the later one first; with fewer, more or no worker processes."""
    others = [ad.Options(num_workers=count, memory_limit_bytes=64 << 20) for count in (0, 1, 3)]
    for options in others:
        for seed in range(samples(3, 700)):
            draw = Draw(seed, [])
            path = tmp_path / f"{options.num_workers}-{seed}"
            first = [bits(list(recording(draw.make, path).iterator(epoch=epoch))) for epoch in range(2)]
            with ad.Runtime(options):
                for epoch in (1, 0):
                    assert bits(list(replaying(draw.make, path).iterator(epoch=epoch))) == first[epoch], (seed, draw)


@pytest.mark.timeout(7200 if SOAK else 600)
def test_interrupted_runs_are_repeated_as_one(tmp_path: Path) -> None:
    """Closed at random moments and brought back to states, also to earlier ones; replayed without an interruption."""
    for seed in range(samples(7, 1000)):
        draw = Draw(seed, [])
        path = tmp_path / str(seed)
        delivered = lives(draw.make, path, random.Random(seed))
        assert bits(list(replaying(draw.make, path).iterator(epoch=0))) == bits(delivered), (seed, draw)


@pytest.mark.sampled
@pytest.mark.timeout(300)
@pytest.mark.parametrize("isolated", ["recording", "replaying", "both"])
def test_isolated(isolated: str, tmp_path: Path) -> None:
    """The loader process hands what it chose to its consumer, and is told what to choose."""
    here, there = ad.Options(num_workers=1), ad.Options(isolate=True, num_workers=1)
    for seed in range(samples(2, 40)):
        draw = Draw(seed, [])
        path = tmp_path / str(seed)
        with ad.Runtime(here if isolated == "replaying" else there):
            delivered = lives(draw.make, path, random.Random(seed))
        with ad.Runtime(here if isolated == "recording" else there):
            assert bits(list(replaying(draw.make, path).iterator(epoch=0))) == bits(delivered), (seed, draw)


# --- single orders ----------------------------------------------------------------------------------------------------


class Pairs:
    """An async function whose second call of each pair returns before the first, as long as it is told to."""

    def __init__(self, *, swapped: bool) -> None:
        self._later = asyncio.Event() if swapped else None

    async def __call__(self, x: Any) -> Any:
        if self._later is not None:
            if int(x) % 2:
                self._later.set()
            else:
                await self._later.wait()
                self._later.clear()
                await asyncio.sleep(0)
        return x


def test_an_order_that_would_not_come_by_itself(tmp_path: Path) -> None:
    """Whatever is ready first: recorded are pairs whose second element came first, repeated without any waiting."""

    def make(*, swapped: bool) -> ad.Dataset:
        return D.range(40).map(Pairs(swapped=swapped), 2, deterministic=False)

    path = tmp_path / "log"
    first = [int(x) for x in recording(lambda: make(swapped=True), path).iterator(epoch=0)]
    assert first != sorted(first)
    assert sorted(first) == list(range(40))
    assert [int(x) for x in make(swapped=False)] == sorted(first)
    again = replaying(lambda: make(swapped=False), path)
    assert [int(x) for x in again.iterator(epoch=0)] == first


@pytest.mark.sampled
@pytest.mark.parametrize(
    "step",
    [
        lambda ds: ds.scan(0, lambda total, x: (total + x, total)),
        lambda ds: ds.unique(),
        lambda ds: ds.window(3).flat_map(lambda window: window.batch(3)),
        lambda ds: ds.batch(5).unbatch(),
        lambda ds: D.sample_from_datasets([ds, D.range(99)], seed=1),
        lambda ds: ds.interleave(few_unordered, 3, deterministic=False).interleave(few_unordered, 2),
        lambda ds: ds.map(
            lambda x, rng: (x, rng.integers(1 << 40)), 3, executor="thread", deterministic=False, rng=True
        ),
    ],
    ids=["scan", "unique", "window", "unbatch", "sample", "nested", "rng"],
)
def test_steps_that_have_no_state_are_repeated(step: Callable[[ad.Dataset], ad.Dataset], tmp_path: Path) -> None:
    """A log needs no state: any step may stand behind one without an order."""

    def make() -> ad.Dataset:
        return step(unordered().shuffle(10)).prefetch(2)

    first = bits(list(recording(make, tmp_path / "log").iterator(epoch=0)))
    with ad.Runtime(ad.Options(num_workers=0)):
        assert bits(list(replaying(make, tmp_path / "log").iterator(epoch=0))) == first


def test_elements_that_fail(tmp_path: Path) -> None:
    """Skipped ones are skipped again; what was delivered in front of an error is delivered in front of it."""

    def fail(x: Any) -> Any:
        if int(x) % 17 == 5:
            raise ValueError(x)
        return spin(x)

    def make() -> ad.Dataset:
        return D.range(200).map(fail, 3, executor="thread", deterministic=False)

    skipping = ad.Options(errors=ad.ErrorPolicy(max_in_a_row=5))
    first = bits(list(recording(lambda: make().with_options(skipping), tmp_path / "skip").iterator(epoch=0)))
    assert bits(list(replaying(lambda: make().with_options(skipping), tmp_path / "skip").iterator(epoch=0))) == first

    heard = until_it_ends(recording(make, tmp_path / "raise"))
    again = until_it_ends(replaying(make, tmp_path / "raise"))
    assert bits(again[0]) == bits(heard[0])
    assert type(again[1]) is type(heard[1]) is ValueError


def test_a_replay_that_is_recorded_can_be_replayed(tmp_path: Path) -> None:
    """Both options together copy a log."""

    def make() -> ad.Dataset:
        return unordered(300).interleave(few_unordered, 3, deterministic=False).shuffle(20)

    first = bits(list(recording(make, tmp_path / "one").iterator(epoch=0)))
    delivered = lives(unordered, tmp_path / "three", random.Random(3))
    both = unordered().with_options(ad.Options(replay=tmp_path / "three", order_log=tmp_path / "four"))
    assert bits(list(both.iterator(epoch=0))) == bits(delivered)
    assert bits(list(replaying(unordered, tmp_path / "four").iterator(epoch=0))) == bits(delivered)

    copying = make().with_options(ad.Options(replay=tmp_path / "one", order_log=tmp_path / "two"))
    assert bits(list(copying.iterator(epoch=0))) == first
    assert bits(list(replaying(make, tmp_path / "two").iterator(epoch=0))) == first


@pytest.mark.timeout(600)
def test_a_killed_run_over_a_store_that_stalls(tmp_path: Path) -> None:
    """Everything that the consumer was given by then is repeated in another process, batch by batch."""
    with FakeGCS(buckets=["bucket"]) as server:
        for shard in range(8):
            with ad.TFRecordWriter(tmp_path / "shard") as writer:
                writer.write_many([b"%d" % (200 * shard + n) for n in range(200)])
            server.put("bucket", f"{shard:03}.tfrecord", (tmp_path / "shard").read_bytes())
        stall = Fault(kind="stall", seconds=(0.05, 0.3), after_fraction=(0.0, 1.0))
        server.profile = Profile(name="stalls", rules=(Rule(fault=stall, rate=0.2),))
        source = f"""
storage = {{"gs": {{"endpoint_url": {server.url!r}, "token": "anon"}}}}
def make(**options):
    dataset = ad.Dataset.list_files("gs://bucket/*.tfrecord", shuffle=False)
    dataset = dataset.interleave(ad.TFRecordDataset, 4, num_parallel_calls=4, deterministic=False).shuffle(300)
    dataset = dataset.map(int, 4, executor="thread", deterministic=False).batch(32).repeat(2)
    return dataset.with_options(ad.Options(storage=storage, **options))
"""
        log, used = tmp_path / "log", tmp_path / "used"
        body = f"""{source}
used = open({str(used)!r}, "w")
for batch in make(order_log={str(log)!r}).iterator(epoch=0):
    print(batch.tolist(), file=used, flush=True)
    say("used")
"""
        with program(body) as running:
            assert running.popen.stdout is not None
            for _ in range(60):
                assert running.popen.stdout.readline().strip() == "used"
            running.popen.kill()
        first = [json.loads(line) for line in used.read_text().splitlines()]
        server.put("bucket", "0000.tfrecord", b"")  # a file that the recorded run has not seen
        names: dict[str, Any] = {"ad": ad}
        exec(source, names)
        again, error = until_it_ends(names["make"](replay=log))
    assert [batch.tolist() for batch in again][: len(first)] == first
    assert len(first) >= 60
    assert error is None or "the order log ends here" in str(error)


# --- what a log is not ------------------------------------------------------------------------------------------------


def test_a_log_that_was_cut_off(tmp_path: Path) -> None:
    """Wherever its writer was killed: what it has is repeated, then an error says that it ends; nothing else comes."""
    whole, cut = tmp_path / "log", tmp_path / "cut"
    make = lambda: unordered(60).interleave(few_unordered, 3, deterministic=False).batch(4)  # noqa: E731 -- short
    first = bits(list(recording(make, whole).iterator(epoch=0)))
    data = whole.read_bytes()
    draw = random.Random(1)
    lengths = []
    for _ in range(samples(12, 1000)):
        cut.write_bytes(data[: draw.randrange(len(data))])
        heard, error = until_it_ends(replaying(make, cut))
        assert bits(heard) == first[: len(heard)]
        assert error is not None or len(heard) == len(first)
        lengths.append(len(heard))
    assert len(set(lengths)) > 3
    # The next life takes the place of the piece that was cut off.
    cut.write_bytes(data[: len(data) * 2 // 3])
    later = bits(list(recording(make, cut).iterator(epoch=1)))
    assert bits(list(replaying(make, cut).iterator(epoch=1))) == later


def test_a_damaged_log_is_refused_or_repeated(tmp_path: Path) -> None:
    """Whatever a byte of it becomes: an error of one kind, or elements of the recorded order."""
    path = tmp_path / "log"
    make = lambda: unordered(60).shuffle(5)  # noqa: E731 -- short
    first = bits(list(recording(make, path).iterator(epoch=0)))
    data = path.read_bytes()
    draw = random.Random(1)
    for _ in range(samples(12, 1000)):
        place = draw.randrange(len(data))
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << draw.randrange(8)]) + data[place + 1 :])
        heard, _ = until_it_ends(replaying(make, path))
        assert bits(heard) == first[: len(heard)]


def test_a_log_of_another_pipeline(tmp_path: Path) -> None:
    """The first step that differs is named, by readers and by writers."""
    path = tmp_path / "log"
    list(recording(lambda: unordered().shuffle(7), path).iterator(epoch=0))
    for dataset in (replaying(lambda: unordered().shuffle(8), path), recording(lambda: unordered().shuffle(8), path)):
        with pytest.raises(ad.StateError, match=r"shuffle\(buffer_size=8.* here, shuffle.*=7.* in the log"):
            dataset.iterator(epoch=0)


def test_what_the_log_does_not_contain(tmp_path: Path) -> None:
    """An epoch, a state that no run went on from, another seed, a file."""
    path = tmp_path / "log"
    with recording(unordered, path).iterator(epoch=3) as it:
        for _ in range(5):
            next(it)
        state = it.state_dict()
    with pytest.raises(ad.StateError, match="no run of epoch 0"):
        replaying(unordered, path).iterator(epoch=0)
    with pytest.raises(ad.StateError, match="no run of epoch 3 that begins behind 5 elements, but behind these: 0"):
        replaying(unordered, path).iterator(state=state)
    with recording(unordered, path).iterator(state=state) as it:
        next(it)
    with pytest.raises(ad.StateError, match="seed"):
        replaying(unordered, path).iterator(state=with_checksum({**state, "seed": 1}))
    with pytest.raises(FileNotFoundError):
        replaying(unordered, tmp_path / "none").iterator()


def test_files_that_are_no_logs_are_left_alone(tmp_path: Path) -> None:
    """A wrong path destroys nothing."""
    path = tmp_path / "notes.txt"
    path.write_text("asyncdata or not\n")
    for dataset in (recording(unordered, path), replaying(unordered, path)):
        with pytest.raises(ad.StateError, match="no order log"):
            dataset.iterator(epoch=0)
    assert path.read_text() == "asyncdata or not\n"


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    """A second iterator is refused, until the first one is closed; readers are not."""
    path = tmp_path / "log"
    with recording(unordered, path).iterator(epoch=0) as it:
        next(it)
        with pytest.raises(ad.StateError, match="another iterator writes"):
            recording(unordered, path).iterator()
        assert len(until_it_ends(replaying(unordered, path))[0]) >= 1
    recording(unordered, path).iterator(epoch=1).close()


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    """The error says what and where; a disk that fills up ends the iteration, because the log would not fit it."""
    with pytest.raises(ad.SystemResourceError, match="order log cannot be written"):
        recording(unordered, tmp_path / "no folder" / "log").iterator()
    with pytest.raises(ad.SystemResourceError, match="order log cannot be written"):
        recording(unordered, Path("/dev/full")).iterator()


def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    """It ends the iteration, because the log would not fit it; what was delivered until then is repeated."""
    path = tmp_path / "log"
    body = f"""
import resource
from tests.integration.test_exactly_once import unordered
it = unordered(5000).with_options(ad.Options(order_log={str(path)!r})).iterator(epoch=0)
next(it)
resource.setrlimit(resource.RLIMIT_FSIZE, (os.stat({str(path)!r}).st_size + 200, resource.RLIM_INFINITY))
count = 1
try:
    for _ in it:
        count += 1
except ad.SystemResourceError as error:
    assert "the order log cannot be written" in str(error)
    say(count)
"""
    with program(body) as running:
        assert running.popen.stdout is not None
        count = int(running.popen.stdout.readline())
    heard, error = until_it_ends(replaying(lambda: unordered(5000), path))
    assert count <= len(heard) < 5000
    assert error is not None


def test_options() -> None:
    """Local files, and two of them."""
    with pytest.raises(ValueError, match="local file"):
        ad.Options(order_log="gs://bucket/log")
    with pytest.raises(ValueError, match="two files"):
        ad.Options(order_log="log", replay="./log")


async def test_async_consumers(tmp_path: Path) -> None:
    """An interrupted run, repeated by ``async for``."""
    first = [int(x) for x in lives(unordered, tmp_path / "log", random.Random(5))]
    assert [int(x) async for x in replaying(unordered, tmp_path / "log").iterator(epoch=0)] == first


def interrupted(path: Path) -> tuple[ad.Dataset, list[int]]:
    """The replay of a run that went on from a state after eight of ten elements, and what it gives."""
    with recording(unordered, path).iterator(epoch=0) as it:
        first = [int(next(it)) for _ in range(10)]
        state = it.state_dict(at=8)
    rest = [int(x) for x in recording(unordered, path).iterator(state=state)]
    return replaying(unordered, path), first[:8] + rest


async def test_tasks_that_share_the_replay_of_an_interrupted_run(tmp_path: Path) -> None:
    """Each element goes to one of them, also where the run went on; none of them is cut off there."""
    replay, expected = interrupted(tmp_path / "log")
    heard: list[int] = []

    async def listen(it: ad.PipelineIterator) -> None:
        async for x in it:
            heard.append(int(x))  # noqa: PERF401 -- by several tasks

    async with replay.iterator(epoch=0) as it, asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(listen(it))
    assert sorted(heard) == sorted(expected)
    assert set(heard[:8]) == set(expected[:8])


def test_threads_that_share_the_replay_of_an_interrupted_run(tmp_path: Path) -> None:
    """As tasks do."""
    replay, expected = interrupted(tmp_path / "log")
    with replay.iterator(epoch=0) as it, ThreadPoolExecutor(4) as pool:
        heard = list(pool.map(lambda _: [int(x) for x in it], range(4)))
    assert sorted(x for each in heard for x in each) == sorted(expected)


async def test_a_call_that_is_cancelled_where_an_interrupted_run_went_on(tmp_path: Path) -> None:
    """Nothing is lost by it: the next one goes on."""
    replay, expected = interrupted(tmp_path / "log")
    async with replay.iterator(epoch=0) as it:
        heard = [int(await anext(it)) for _ in range(8)]
        for _ in range(2):
            task = asyncio.ensure_future(anext(it))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        heard += [int(x) async for x in it]
    assert heard == expected


def test_states_of_elements_in_front_of_where_an_interrupted_run_went_on(tmp_path: Path) -> None:
    """A consumer that reads ahead commits them, and is given their states, as anywhere else."""
    replay, expected = interrupted(tmp_path / "log")
    with replay.iterator(epoch=0) as it:
        ahead = [int(next(it)) for _ in range(7)]
        it.commit(5)
        state = it.state_dict(at=6)
        ahead += [int(next(it)) for _ in range(3)]
        assert ahead == expected[:10]
        assert it.state_dict(at=6) == state
        assert it.state_dict()["position"] == 5
        with pytest.raises(ValueError, match="position 4 was committed after 5"):
            it.commit(4)
        it.commit(6)
        assert it.state_dict() == state
        it.commit(9)
    again = unordered().iterator(state=state)
    assert sorted(int(x) for x in again) == sorted(expected[6:])


def test_a_run_is_repeated_from_a_state_on(tmp_path: Path) -> None:
    """From one that a life began with; the first life is repeated up to it, and by itself to its own end."""
    one, other = tmp_path / "one", tmp_path / "other"
    with recording(unordered, one).iterator(epoch=0) as it:
        begun = [next(it) for _ in range(9)]
        state = it.state_dict()
    rest = list(recording(unordered, other).iterator(state=state))
    assert bits(list(replaying(unordered, other).iterator(state=state))) == bits(rest)
    heard, error = until_it_ends(replaying(unordered, one))
    assert bits(heard[:9]) == bits(begun)
    assert error is None or "ends here" in str(error)
    with pytest.raises(ad.StateError, match="no run of epoch 0 that begins behind 0 elements, but behind these: 9"):
        replaying(unordered, other).iterator(epoch=0)


def test_choices_do_not_wait_for_elements(tmp_path: Path) -> None:
    """Where nearly everything is dropped, the log grows all the same, and is repeated."""
    path = tmp_path / "log"

    def make() -> ad.Dataset:
        return unordered(30_000).filter(lambda x: x == 29_999)

    with recording(make, path).iterator(epoch=0) as it:
        assert int(next(it)) == 29_999
    assert int(next(iter(replaying(make, path).iterator(epoch=0)))) == 29_999


def test_a_cache_is_filled_in_the_recorded_order(tmp_path: Path) -> None:
    """The epochs behind it need nothing of the log but their seeds."""
    path = tmp_path / "log"

    def make() -> ad.Dataset:
        return unordered(60).cache().shuffle(10)

    recorded, replayed = recording(make, path), replaying(make, path)
    first = [bits(list(recorded.iterator(epoch=epoch))) for epoch in range(3)]
    assert [bits(list(replayed.iterator(epoch=epoch))) for epoch in range(3)] == first


def test_a_cache_is_filled_as_it_was_for_a_later_epoch(tmp_path: Path) -> None:
    """Also where the epoch that filled it is not repeated here; where it is, in any order of the epochs."""
    path = tmp_path / "log"

    def make() -> ad.Dataset:
        return D.range(30).shuffle(30).cache().map(spin, 3, executor="thread", deterministic=False)

    recorded = recording(make, path)
    epochs = [bits(list(recorded.iterator(epoch=epoch))) for epoch in range(2)]
    assert bits(list(replaying(make, path).iterator(epoch=1))) == epochs[1]
    again = replaying(make, path)
    for epoch in (1, 0, 1):
        assert bits(list(again.iterator(epoch=epoch))) == epochs[epoch]


def test_a_log_is_small(tmp_path: Path) -> None:
    """A few bytes a run, however many elements it has."""
    path = tmp_path / "log"
    dataset = D.range(64).interleave(lambda x: D.range(int(x), int(x) + 2000), 16, deterministic=False).batch(256)
    count = sum(len(batch) for batch in recording(lambda: dataset, path).iterator(epoch=0))
    assert count == 128_000
    assert path.stat().st_size < count


def test_an_iterator_that_was_abandoned_lets_go_of_its_log(tmp_path: Path) -> None:
    """The next one writes it, as after closing."""
    ds = recording(lambda: D.range(100).map(abs, 2, executor="thread", deterministic=False), tmp_path / "log")
    for _ in range(2):
        it = ds.iterator(epoch=0)
        next(it)
        it.abandon()
