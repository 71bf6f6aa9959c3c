"""A pipeline without a fixed order delivers every element once, however often it is interrupted."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.runtime.stages.rows import element_key, unique
from tests.integration.shards import write_numbers
from tests.runtime.stages.restoring import mark_often
from tests.samples import SOAK, samples

__all__ = ["mark_often"]

pytestmark = pytest.mark.usefixtures("two_workers", "mark_often")

D = ad.Dataset
Make = Callable[[], ad.Dataset]


def spin(x: Any) -> Any:
    """Takes as long as the number says, so that others overtake it."""
    for _ in range(int(np.sum(x)) * 7 % 5 * 300):
        pass
    return x


async def spin_async(x: Any) -> Any:
    """See `spin`."""
    for _ in range(int(np.sum(x)) * 7 % 5):
        await asyncio.sleep(0)
    return x


def keep(x: Any) -> bool:
    """Drops a fifth."""
    return int(np.sum(x)) % 5 != 0


def third(x: Any) -> Any:
    """The same for three numbers."""
    return x // 3


def total(before: Any, x: Any) -> Any:
    """What the numbers come to."""
    return before + x, before + x


def fail_sometimes(x: Any) -> Any:
    """A number in eleven is one too many."""
    if int(np.sum(x)) % 11 == 3:
        raise ValueError(x)
    return x


def few(x: Any) -> ad.Dataset:
    """None to three numbers."""
    return D.range(int(x) * 4, int(x) * 4 + int(x) % 4)


def few_unordered(x: Any) -> ad.Dataset:
    """The same, as they are ready."""
    return few(x).map(spin_async, 2, deterministic=False)


def of_file(path: bytes) -> ad.Dataset:
    """The numbers of one file."""
    return ad.TFRecordDataset(path.decode()).map(int)


class Draw:
    """Draws a pipeline: `make` writes it anew, with or without a fixed order.

    Attributes:
        steps: What each step does with a dataset.
        is_exact: Whether all elements are delivered; `take` and `skip` say how many, not which.
    """

    def __init__(self, seed: int, files: list[str]) -> None:
        self._draw = random.Random(seed)
        self._files = files
        self.is_exact = True
        self._deterministic = True
        self.steps: list[tuple[str, Callable[[ad.Dataset], ad.Dataset]]] = []
        self._source = self._a_source()
        self._width = "number"
        self._may_vary = True
        self._may_open = True
        for _ in range(self._draw.randrange(2)):
            self._add_ordered()
        self._add_mixing()
        for _ in range(self._draw.randrange(6)):
            self._add_any()

    def __repr__(self) -> str:
        return " ".join([self._source[0], *(name for name, _ in self.steps)])

    def make(self, *, deterministic: bool = False) -> ad.Dataset:
        """The pipeline."""
        self._deterministic = deterministic
        dataset = self._source[1]()
        for _, step in self.steps:
            dataset = step(dataset)
        return dataset

    def _a_source(self) -> tuple[str, Make]:
        count = self._draw.choice([0, 1, 7, 30, 80])
        kind = self._draw.choice(
            ["range", "shuffled", "slices", "generator", *(["files", "lying"] * bool(self._files))]
        )
        if kind == "files":
            return "files", lambda: ad.TFRecordDataset(self._files).map(int)
        if kind == "lying":
            # The buffer's elements are records of files.
            cycle, size = self._draw.randint(1, 4), self._draw.choice([3, 20, 100])
            make = self._draw.choice([ad.TFRecordDataset, lambda f: ad.TFRecordDataset(f).filter(len)])
            return (
                f"lying {cycle} {size}",
                lambda: (
                    D.from_tensor_slices(self._files)
                    .interleave(make, cycle, num_parallel_calls=cycle, deterministic=self._deterministic)
                    .shuffle(size)
                    .map(int)
                ),
            )
        if kind == "shuffled":
            return f"shuffled {count}", lambda: D.range(count).shuffle(9, seed=3)
        if kind == "generator":
            return f"generator {count}", lambda: D.from_generator(lambda: iter(range(count)))
        if kind == "slices":
            return f"slices {count}", lambda: D.from_tensor_slices(np.arange(100, 100 + count))
        return f"range {count}", lambda: D.range(count)

    def _add(self, name: str, step: Callable[[ad.Dataset], ad.Dataset]) -> None:
        self.steps.append((name, step))

    def _add_ordered(self) -> None:
        kind = self._draw.choice(["repeat", "filter", "flat_map", "batched"])
        if kind == "repeat":
            self._add("repeat", lambda ds: ds.repeat(2))
        elif kind == "filter":
            self._add("filter", lambda ds: ds.filter(keep))
        elif kind == "flat_map":
            self._add("flat_map", lambda ds: ds.flat_map(few))
        else:
            self._add("batch unbatch", lambda ds: ds.batch(3).unbatch())

    def _add_mixing(self) -> None:
        kinds = ["thread", "process", "async"]
        if self._width == "number" and self._may_vary and self._may_open:
            kinds += ["interleave", "nested"]
        kind = self._draw.choice(kinds)
        cycle, parallel = self._draw.randint(1, 4), self._draw.randint(1, 4)
        if kind == "async":
            self._add("async", lambda ds: ds.map(spin_async, parallel, deterministic=self._deterministic))
        elif kind in {"interleave", "nested"}:
            make = few if kind == "interleave" else few_unordered
            self._add(
                kind,
                lambda ds: ds.interleave(
                    few if self._deterministic else make,
                    cycle,
                    num_parallel_calls=parallel,
                    deterministic=self._deterministic,
                ),
            )
        else:
            self._add(kind, lambda ds: ds.map(spin, parallel, executor=kind, deterministic=self._deterministic))

    def _add_any(self) -> None:  # noqa: C901, PLR0912 -- a step each
        kinds = ["mixing", "shuffle", "prefetch", "map", "repeat", "skip", "take"]
        if self._may_vary:
            kinds += ["filter", "concatenate"] + ["errors"] * (self._width == "number")
        if self._width == "number":
            kinds += ["batch", "enumerate", "zip"]
            if self._may_vary:
                kinds += ["unique"] + ["flat_map"] * self._may_open
        kind = self._draw.choice(kinds)
        count = self._draw.randint(1, 12)
        if kind == "mixing" and self._width != "pair":
            self._add_mixing()
        elif kind == "shuffle":
            self._add(f"shuffle {count}", lambda ds: ds.shuffle(count))
        elif kind == "prefetch":
            self._add("prefetch", lambda ds: ds.prefetch(count))
        elif kind == "map" and self._width != "pair":
            self._add("map", lambda ds: ds.map(spin, 2, executor="thread"))
        elif kind == "repeat":
            self._add("repeat", lambda ds: ds.repeat(2))
        elif kind in {"skip", "take"}:
            # Which elements are chosen differs, so what comes behind must be as many for any of them.
            self.is_exact = self._may_vary = False
            self._add(f"{kind} {count}", lambda ds: ds.take(count) if kind == "take" else ds.skip(count))
        elif kind == "filter" and self._width != "pair":
            self._add("filter", lambda ds: ds.filter(keep))
            # How many of a batch are dropped with it depends on what is in it.
            self.is_exact = self.is_exact and self._width == "number"
            self._may_vary = self._may_vary and self._width == "number"
        elif kind == "errors":
            self._add("errors", lambda ds: ds.map(fail_sometimes, 2, executor="thread").ignore_errors())
        elif kind == "concatenate" and self._width == "number":
            self._add("concatenate", lambda ds: ds.concatenate(D.range(1000, 1000 + count)))
        elif kind == "batch":
            self._width = "batch"
            self._add(f"batch {count}", lambda ds: ds.batch(count))
        elif kind == "enumerate":
            self._width = "pair"
            self._add("enumerate", lambda ds: ds.enumerate())
        elif kind == "zip":
            # As long as the shorter one: which elements of the longer one are left over differs.
            self._width, self.is_exact, self._may_vary = "pair", False, False
            self._add("zip", lambda ds: D.zip((ds, D.range(500, 500 + 3 * count))))
        elif kind == "flat_map":
            self._add("flat_map", lambda ds: ds.flat_map(few))
        elif kind == "unique":
            # Which of several equal elements it passes on differs, so no datasets are made of them.
            self._may_open = False
            self._add("unique", lambda ds: ds.map(third).unique())


def leaves(elements: list[Any]) -> Counter[tuple[int, int]]:
    """Every number with its place in an element."""
    found: Counter[tuple[int, int]] = Counter()
    for element in elements:
        for place, leaf in enumerate(element if isinstance(element, tuple) else (element,)):
            found.update((place, int(number)) for number in np.ravel(leaf))
    return found


def lives(make: Make, draw: random.Random) -> list[Any]:
    """What is delivered up to the states that were taken, by iterators that are closed at random moments."""
    delivered: list[Any] = []
    state: Any = None
    while True:
        heard: list[Any] = []
        ended = False
        with make().iterator(state=state) as it:
            first = it.position
            most = draw.choice([0, 1, 2, 3, 5, 9, 30])
            while len(heard) < most and not ended:
                try:
                    heard.append(next(it))
                except StopIteration:
                    ended = True
            used = len(heard) if ended else draw.randint(max(0, len(heard) - 10), len(heard))
            state = json.loads(json.dumps(it.state_dict(at=first + used)))
        delivered += heard[:used]
        if ended:
            break
    with make().iterator(state=state) as it:
        assert list(it) == [], "behind the end"
    return delivered


def check(draw: Draw, seed: int) -> None:
    """Compares what all lives delivered with what one life delivers in a fixed order."""
    expected = leaves(list(draw.make(deterministic=True)))
    found = leaves(lives(draw.make, random.Random(seed)))
    if draw.is_exact:
        assert found == expected, f"{draw}: {found - expected} too many, {expected - found} missing"
    elif "filter" not in repr(draw):
        assert sum(found.values()) == sum(expected.values()), f"{draw}: {found}, {expected}"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Some thousand numbers in files of very different lengths."""
    return write_numbers(tmp_path_factory.mktemp("files"), (3, 0, 1200, 1, 30))


@pytest.mark.slow
@pytest.mark.timeout(7200 if SOAK else 600)
def test_random_pipelines_deliver_every_element_once(files: list[str]) -> None:
    """Closed at random moments and brought back, until they end."""
    short = [files[0], files[1], files[3], files[4]]
    for seed in range(samples(20, 2000)):
        draw = Draw(seed, short)
        # `unbatch` of what has no fixed order has no state.
        if not {"lying", "unbatch"} <= set(repr(draw).split()):
            check(draw, seed)


def test_long_files_go_on_where_they_were_left(files: list[str]) -> None:
    """Marks, and what lies behind them, with files that are read far apart."""

    def make() -> ad.Dataset:
        names = D.from_tensor_slices(np.array([name.encode() for name in files], object))
        return names.interleave(of_file, 3, num_parallel_calls=3, deterministic=False).shuffle(50).batch(40)

    def make_lying() -> ad.Dataset:
        names = D.from_tensor_slices(files)
        read = names.interleave(ad.TFRecordDataset, 3, num_parallel_calls=3, deterministic=False)
        return read.shuffle(300).batch(40).map(lambda batch: np.array(batch.tolist()).astype(np.int64))

    for each in (make, make_lying):
        found = leaves(lives(each, random.Random(1)))
        assert found == Counter({(0, n): 1 for n in range(1234)})


# --- what has no state ------------------------------------------------------------------------------------------------


def unordered(count: int = 40) -> ad.Dataset:
    """Numbers as they are ready."""
    return D.range(count).map(spin, 3, executor="thread", deterministic=False)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("make", "step"),
    [
        (lambda: unordered().scan(0, total).shuffle(9), r"scan\(total\) between .* and shuffle"),
        (
            lambda: unordered().scan(0, total).batch(2).map(spin, 2, deterministic=False),
            r"scan\(total\) between .* and map",
        ),
        (lambda: unordered().flat_map(lambda x: few_unordered(x).scan(0, total)), "scan.* inner dataset"),
        (lambda: unordered().unique().flat_map(lambda x: D.range(int(x))), "datasets of elements of unique"),
        (lambda: unordered().batch(4).unbatch(), "unbatch"),
        (lambda: unordered().window(3).flat_map(lambda window: window), "window"),
        (lambda: unordered().take_while(lambda x: x < 90), "take_while"),
        (lambda: unordered().cache(), "cache"),
        (lambda: D.sample_from_datasets([unordered(), unordered()], seed=1), "sample_from"),
        (lambda: unordered().batch(2).flat_map(D.from_tensor_slices), "datasets of elements of batch"),
        (lambda: D.range(3).interleave(lambda _: unordered(), 2).batch(2), "inner dataset"),
        (lambda: unordered().flat_map(lambda x: few_unordered(x).batch(1).unbatch()), "unbatch"),
        (lambda: unordered().flat_map(lambda x: few_unordered(x).batch(1).unbatch()).flat_map(few), "unbatch"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_has_no_meaning_is_refused(make: Make, step: str) -> None:
    """By the name of the step, and with the cure, when a state is asked for and not before."""
    with make().iterator() as it:
        for _ in range(5):
            next(it)
        with pytest.raises(ad.StateError, match=rf"{step}.*deterministic=True"):
            it.state_dict()
        assert len(list(it)) > 0


def test_a_state_fits_pipelines_of_its_own_kind() -> None:
    """With a fixed order, or with the same steps that have none."""
    ordered = D.range(40).map(spin, 3, executor="thread")
    with ordered.iterator() as it:
        next(it)
        one = it.state_dict()
    with unordered().iterator() as it:
        next(it)
        other = it.state_dict()
    for dataset, state in ((unordered(), one), (ordered, other)):
        with pytest.raises(ad.StateError, match="as they are ready here"):
            dataset.iterator(state=state)


def test_parallelism_and_executors_may_change() -> None:
    """What runs the functions, how many at a time, and which steps are made one by it."""

    def make(draw: random.Random) -> ad.Dataset:
        executor = draw.choice(["thread", "process"])
        parallel = draw.randint(1, 4)
        dataset = D.range(200).map(spin, parallel, executor=executor, deterministic=False)
        dataset = dataset.map(spin, parallel, executor=draw.choice(["thread", "process"]), deterministic=False)
        return dataset.batch(draw.randint(1, 1) * 8).prefetch(draw.randint(0, 3)).repeat(2)

    draw = random.Random(3)
    assert leaves(lives(lambda: make(draw), draw)) == Counter({(0, n): 2 for n in range(200)})


@pytest.mark.timeout(300)
def test_isolated(files: list[str]) -> None:
    """The loader process tells its consumer what a state needs."""
    short = [files[0], files[4]]
    with ad.Runtime(ad.Options(isolate=True, num_workers=1)):
        for seed in range(samples(4, 60)):
            check(Draw(seed, short), seed)


def test_damaged_states_are_refused_or_work() -> None:
    """Whatever a byte of the document becomes: an error of one kind, or an iteration."""
    with unordered().shuffle(10).repeat(2).iterator() as it:
        for _ in range(50):
            next(it)
        text = json.dumps(it.state_dict())
    draw = random.Random(1)
    for _ in range(samples(20, 2000)):
        place = draw.randrange(len(text))
        damaged = text[:place] + draw.choice('0123456789-"[]{},~abn') + text[place + 1 :]
        try:
            state = json.loads(damaged)
        except ValueError:
            continue
        try:
            with unordered().shuffle(10).repeat(2).iterator(state=state) as it:
                for _ in range(5):
                    next(it, None)
        except ad.StateError:
            continue


@pytest.mark.sampled
@pytest.mark.parametrize("behind", [lambda ds: ds, lambda ds: ds.batch(7), lambda ds: ds.filter(keep).take(40)])
def test_scan_goes_on_from_what_was_delivered(behind: Callable[[ad.Dataset], ad.Dataset]) -> None:
    """Every total is that of the elements before it, in the order in which all lives have delivered them."""

    def pairs(before: Any, x: Any) -> Any:
        before["seen"].append(int(x))  # in place
        before["total"] += int(x)
        return before, (x, before["total"])

    def make() -> ad.Dataset:
        numbers = D.range(60).map(spin, 3, executor="thread", deterministic=False)
        scanned = numbers.scan({"total": 0, "seen": []}, pairs).map(lambda x, total: np.array([x, total]))
        return behind(scanned).repeat(2)

    for seed in range(samples(6, 200)):
        rows = np.concatenate([np.reshape(element, (-1, 2)) for element in lives(make, random.Random(seed))])
        begins = [0, *(np.flatnonzero(np.diff(rows[:, 1]) < 0) + 1).tolist(), len(rows)]
        assert len(begins) == 3
        if len(rows) == 120:
            for begin, end in pairwise(begins):
                assert (np.cumsum(rows[begin:end, 0]) == rows[begin:end, 1]).all()
                assert sorted(rows[begin:end, 0]) == list(range(60))


def test_unique_knows_elements_of_all_kinds() -> None:
    """What equals what does not depend on the process that has seen it first."""
    values: list[Any] = [b"a" * 99, b"b", "b", "ä" * 99, 1.5, -0.0, 0.0, float("nan"), True, (1, "x")]
    values += [np.arange(3), np.arange(3.0)]

    def value(x: Any) -> Any:
        return values[int(x) % len(values)]

    def make() -> ad.Dataset:
        return D.range(60).map(value, 3, executor="thread", deterministic=False).unique().shuffle(4).repeat(2)

    def counted(elements: Iterable[Any]) -> Counter[str]:
        """Either zero may come first, and another one in each epoch."""
        return Counter(repr(element).replace("-0.0", "0.0") for element in elements)

    expected = counted(make())
    assert sum(expected.values()) == 2 * (len(values) - 1)
    assert counted(lives(make, random.Random(1))) == expected


def test_unique_knows_dicts_in_states_of_earlier_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 0.2.18 the order of their keys was in what a state has of them."""

    def make() -> ad.Dataset:
        return D.range(80).map(lambda x: {"x": x // 2, "n": 0}, 3, executor="thread", deterministic=False).unique()

    with monkeypatch.context() as earlier, make().iterator() as it:
        earlier.setattr(unique, "stable_key", element_key.earlier_stable_key)
        found = [next(it) for _ in range(30)]
        state = it.state_dict()
    with make().iterator(state=state) as it:
        found += [next(it) for _ in range(10)]
        state = it.state_dict()
    with make().iterator(state=state) as it:
        found += it
    assert Counter(map(str, found)) == Counter(map(str, make()))


def test_a_state_with_keys_is_small() -> None:
    """16 bytes for each element that `unique` has to know, and 2 KB."""

    def make() -> ad.Dataset:
        return unordered(20_000).unique().batch(500)

    with make().iterator() as it:
        for _ in range(39):
            next(it)
        state = it.state_dict()
    assert len(json.dumps(state)) < 16 * 19_500 + 2048
    with make().iterator(state=state) as it:
        assert sum(len(batch) for batch in it) == 500


def test_a_state_stays_small() -> None:
    """However long it runs: what is complete leaves nothing behind."""
    dataset = D.range(30).interleave(few_unordered, 4, num_parallel_calls=2, deterministic=False).shuffle(20).repeat()
    sizes = []
    with dataset.iterator() as it:
        for _ in range(40):
            for _ in range(50):
                next(it)
            sizes.append(len(json.dumps(it.state_dict())))
    assert max(sizes[20:]) <= 1.5 * max(sizes[:20])
