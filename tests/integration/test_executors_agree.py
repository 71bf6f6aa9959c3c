"""Where a function runs makes no difference: inline, threads and worker processes give the same elements and errors."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

import asyncdata as ad
from tests.integration.drawn_functions import (
    FUNCTIONS,
    LEARNED,
    MAKES,
    READY_MADE,
    function_of,
    random_number,
    returning,
    write,
    writes,
)
from tests.integration.drawn_sources import SOURCES, Point, shard, yielded
from tests.integration.drawn_steps import BEFORE, BEHIND, Step
from tests.samples import SOAK, drawing

PLACES: Final = ("inline", "thread", "process")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the shards."""
    return tmp_path_factory.mktemp("shards")


@pytest.fixture(autouse=True)
def runtime() -> Iterator[ad.Runtime]:
    """Two worker processes for all pipelines of a test."""
    with ad.Runtime(ad.Options(num_workers=2, memory_limit_bytes=128 << 20, seed=1)) as runtime:
        yield runtime


# --- the law ---------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """An element with everything that tells it from another: types, dtypes, shapes and values."""
    if isinstance(value, tuple | list):
        return type(value), [plain(part) for part in value]
    if isinstance(value, dict):
        return dict, {key: plain(part) for key, part in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return type(value), value.dtype.str, value.shape, repr(value.tolist())
    if isinstance(value, ad.BytesArray):
        return ad.BytesArray, value.text, value.tolist()
    if isinstance(value, ad.RaggedArray):
        return ad.RaggedArray, plain(value.flat_values), [plain(splits) for splits in value.nested_row_splits]
    if isinstance(value, Point):
        return Point, plain(vars(value))
    return type(value).__name__, repr(value)


def outcome(dataset: Iterable[Any]) -> tuple[list[Any], Any]:
    """The elements, and the error that ends them."""
    found: list[Any] = []
    try:
        found.extend(map(plain, dataset))
    except Exception as error:  # noqa: BLE001 -- it is compared
        text = error.message if isinstance(error, ad.AsyncdataError) else str(error)
        where = [
            re.sub(r"^in .*?, (?=\S+ \d+ of)", "", line)
            for line in getattr(error, "__notes__", [])
            if line.startswith("in ")
        ]
        text = re.sub(r" \[(url|version|offset|record|stage) [^\]]*\]", "", text)
        return found, (type(error).__name__, re.sub(r"0x[0-9a-f]+", "0x", text), where[:1])
    return found, None


def check(datasets: dict[str, ad.Dataset], case: str) -> None:
    """The three places agree."""
    expected, error = outcome(datasets["inline"])
    for place in PLACES[1:]:
        found, its_error = outcome(datasets[place])
        assert found == expected, (place, case)
        assert its_error == error, (place, case)


def mapped(dataset: ad.Dataset, name: str, place: str, *, zero_copy: bool = False) -> ad.Dataset:
    """One map, where it is told to run."""
    parallel = None if place == "inline" else 2
    function = function_of(name)
    return dataset.map(function, parallel, executor=place, rng=function is random_number, zero_copy=zero_copy)


@pytest.mark.slow
@pytest.mark.timeout(7200 if SOAK else 120)
def test_where_functions_run_makes_no_difference(folder: Path) -> None:
    """Every kind of leaf, ready-made and user functions, batched or not, followed by batches or not."""

    @drawing(100, 6000)
    @given(
        source=st.sampled_from(sorted(SOURCES)),
        before=st.sampled_from(sorted(BEFORE)),
        functions=st.lists(st.sampled_from(sorted([*FUNCTIONS, *LEARNED])), min_size=1, max_size=3),
        behind=st.sampled_from(sorted(BEHIND)),
        zero_copy=st.booleans(),
    )
    def run(source: str, before: str, functions: list[str], behind: str, zero_copy: bool) -> None:
        # A shuffle buffer gets a damaged record, or it does not: that follows from who verifies it.
        assume((source, before) != ("TFRecordDataset damaged", "shuffled"))
        datasets = {}
        for place in PLACES:
            dataset = BEFORE[before](SOURCES[source](folder))
            for name in functions:
                dataset = mapped(dataset, name, place, zero_copy=zero_copy)
            datasets[place] = BEHIND[behind](dataset)
        check(datasets, f"{source} | {before} | {functions} | {behind}")

    run()


LENIENT: Final[dict[str, Step]] = {
    "all": lambda ds: ds.ignore_errors(),
    **{
        f"at most {most}": lambda ds, most=most: ds.with_options(  # type: ignore[misc]  # has a default
            ad.Options(errors=ad.ErrorPolicy(max_skipped=most))
        )
        for most in (0, 1, 3, 6)
    },
    "a part": lambda ds: ds.with_options(ad.Options(errors=ad.ErrorPolicy(max_fraction=0.3, min_elements=4))),
    "two in a row": lambda ds: ds.with_options(ad.Options(errors=ad.ErrorPolicy(max_in_a_row=2))),
}
"""What lets elements fail."""


def lenient_outcome(dataset: ad.Dataset) -> tuple[list[Any], Any, tuple[int, int] | None]:
    """As `outcome`, and how many elements and shards were left out; behind an error more may have been by then."""
    with dataset.iterator() as iterator:
        found, error = outcome(iterator)
        skipped = iterator.stats().skipped
    return found, error, (skipped.elements, skipped.shards) if error is None else None


ELSEWHERE: Final = frozenset(
    [
        "AUTOTUNE",
        "INFINITE_CARDINALITY",
        "UNKNOWN_CARDINALITY",
        "state",
        "Dataset",
        "Runtime",
        "PipelineIterator",
        "PipelineMetrics",
        "PipelineStats",
        "Profile",
        "ProfileReport",
        "profile",
        "progress",
        "Options",
        "ErrorPolicy",
        "HedgeOptions",
        "RetryOptions",
        "TimeoutOptions",
        "BackendSpec",
        "register_backend",
        "ArraySpec",
        "BytesSpec",
        "DatasetSpec",
        "RaggedSpec",
        "StrSpec",
        "BytesArray",
        "RaggedArray",
        "FixedLenFeature",
        "FixedLenSequenceFeature",
        "RaggedFeature",
        "VarLenFeature",
        "TFRecordWriter",
        "write_manifest",
        "register_dataclass",
        "adapt",
        "feed",
    ]
)
"""Public names that are neither a source, nor a step, nor a map function; most occur in those that are drawn."""


def test_everything_ready_made_is_drawn() -> None:
    """A new public source, step or function must be added to what the law draws, or to those above."""
    drawn = {name.partition(" ")[0] for name in (*SOURCES, *BEHIND, *FUNCTIONS, *LEARNED)}
    errors = {name for name in ad.__all__ if isinstance(getattr(ad, name), type(Exception)) and name.endswith("Error")}
    public = set(ad.__all__) - errors - ELSEWHERE
    assert public == drawn & set(ad.__all__)
    assert set(ad.__all__) >= ELSEWHERE


@pytest.mark.slow
@pytest.mark.timeout(3600 if SOAK else 120)
def test_the_same_elements_are_left_out_everywhere(folder: Path) -> None:
    """With an error policy, too; where one step fails, a quota ends all at the same element, with the same counts.

    Where several steps fail, each is as far ahead of the others as there is time for. Then all failures are let pass.
    A damaged record is found in front of a shuffle buffer or behind it, so that the order behind it differs.
    `rejection_resample` reads its input several times at once, so each step is several.
    """
    failing = [name for name in FUNCTIONS if name.startswith(("chooses", "fails", "parse_example number"))]
    sources = ["bytes", "texts", "uneven arrays", "examples", "example files", "TarDataset"]
    bad_sources = ["TFRecordDataset damaged", "CsvDataset with a bad row", "JsonLinesDataset with a bad line"]
    behind_all = [name for name in BEHIND if not name.startswith("rejection_resample")]

    @drawing(40, 2000)
    @given(
        source=st.sampled_from([*sources, *bad_sources]),
        before=st.sampled_from(["", "batched and apart", "in slabs", "filter that fails", "shuffled"]),
        functions=st.lists(st.sampled_from(failing), min_size=1, max_size=3),
        between=st.booleans(),
        behind=st.sampled_from(behind_all),
        lenient=st.sampled_from(sorted(LENIENT)),
    )
    def run(source: str, before: str, functions: list[str], between: bool, behind: str, lenient: str) -> None:
        assume(source not in bad_sources or before != "shuffled")
        several = len(functions) > 1 or source in bad_sources or "filter that fails" in (before + behind)
        outcomes = []
        for place in PLACES:
            dataset = BEFORE[before](SOURCES[source](folder))
            for name in functions:
                dataset = mapped(dataset, name, place)
                if between:
                    dataset = dataset.ignore_errors()
            dataset = LENIENT["all" if several else lenient](BEHIND[behind](dataset))
            found, error, counts = lenient_outcome(dataset)
            # What a step that ends early does not want may have failed already.
            outcomes.append((found, error, None if "take_while" in behind else counts))
        assert outcomes == [outcomes[0]] * 3, f"{source} | {before} | {functions} | {between} | {behind} | {lenient}"

    run()


class UnreadableError(LookupError):
    """Has no attribute that could be read."""

    def __getattribute__(self, name: str) -> Any:
        raise ValueError(name)


class KeywordError(Exception):
    """Cannot be made of its arguments."""

    def __init__(self, *, kind: str) -> None:
        super().__init__(kind)
        self.lock = threading.Lock()


class EndsError(BaseException):
    """Is no Exception."""


def lazily() -> Iterator[int]:
    """A generator."""
    yield 1


async def later() -> int:
    """A coroutine."""
    return 1


async def lazily_later() -> AsyncIterator[int]:
    """An asynchronous generator."""
    yield 1


class Awaited:
    """Something to await."""

    def __await__(self) -> Iterator[Any]:
        yield


NO_ELEMENTS: Final[dict[str, Callable[[], Any]]] = {
    "generator": lazily,
    "coroutine": later,
    "async generator": lazily_later,
    "iterator": lambda: iter([1]),
    "map": lambda: map(str, [1]),
    "awaitable": Awaited,
    "in a dict": lambda: {"a": lazily()},
    "in a tuple": lambda: (1, later()),
    "in a list": lambda: [lazily()],
    "in a dataclass": lambda: Point(1, (lazily(),)),
}
"""What a function may return but cannot be an element."""


RAISED: Final[dict[str, Callable[[], BaseException]]] = {
    "StopIteration": lambda: StopIteration(4),
    "StopAsyncIteration": lambda: StopAsyncIteration(4),
    "GeneratorExit": GeneratorExit,
    "KeyboardInterrupt": KeyboardInterrupt,
    "SystemExit": lambda: SystemExit(3),
    "CancelledError": asyncio.CancelledError,
    "BaseException": lambda: EndsError("the end"),
    "what cannot be made again": lambda: KeywordError(kind="odd"),
    "what cannot be pickled": lambda: ValueError(threading.Lock(), 1),
    "what cannot be read": lambda: UnreadableError("odd"),
    "group": lambda: ExceptionGroup("two", [ValueError(1), StopIteration(2)]),
    "group of all": lambda: BaseExceptionGroup("two", [ValueError(1), KeyboardInterrupt()]),
}
"""What a function may raise that means something else elsewhere, or cannot be sent."""


def turning(number: int, give: Callable[[], Any], *, raised: bool) -> Callable[..., Any]:
    """A function that gives something odd for one element."""

    def turn(n: Any) -> Any:
        if int(n) == number and raised:
            raise give()
        return give() if int(n) == number else int(n)

    return turn


@pytest.mark.sampled
@pytest.mark.parametrize("raised", [False, True])
def test_odd_ends_of_functions_are_the_same_errors_everywhere(raised: bool) -> None:
    """The epoch neither ends silently nor hangs: the elements in front come, then an error that says what is wrong."""
    gives = RAISED if raised else NO_ELEMENTS
    for (name, give), behind in itertools.product(gives.items(), ("", "batch")):
        turn = turning(3, give, raised=raised)

        async def turn_later(n: Any, turn: Callable[..., Any] = turn) -> Any:
            return turn(n)

        ds = ad.Dataset.range(6)
        places = {place: ds.map(turn, None if place == "inline" else 2, executor=place) for place in PLACES}
        outcomes = {place: outcome(BEHIND[behind](dataset)) for place, dataset in places.items()}
        outcomes["coroutine"] = outcome(BEHIND[behind](ds.map(turn_later, 2)))
        found, error = outcomes["inline"]
        assert len(found) == (1 if behind else 3)
        assert error[2] == ["element 3 of range"]
        assert raised or error[0] == "TypeError"
        assert raised or "the function returned a" in error[1]
        for place, (its, its_error) in outcomes.items():
            assert (its, its_error) == (found, error), (name, place)


@pytest.mark.parametrize("error", [StopIteration, StopAsyncIteration, GeneratorExit])
def test_no_step_ends_silently_where_its_function_raises(error: type[BaseException]) -> None:
    """What ends an iterator elsewhere is a failure of the function, wherever it is called."""

    def ends(*_: Any) -> Any:
        raise error(1)

    ds = ad.Dataset.range(3)
    steps: list[ad.Dataset] = [
        ds.filter(ends),
        ds.take_while(ends),
        ds.scan(0, ends),
        ds.flat_map(ends),
        ds.interleave(ends, 2),
        ds.group_by_window(ends, lambda _, window: window, 2),
        ds.group_by_window(lambda _: 0, ends, 2),
        ds.group_by_window(lambda _: 0, lambda _, window: window, window_size_func=ends),
        ds.bucket_by_sequence_length(ends, [2], [1, 1]),
        ds.rejection_resample(ends, [0.5, 0.5]),
        ds.map(ends, vectorized=True),
        ad.Dataset.from_generator(ends),
    ]
    for step in steps:
        with pytest.raises(ad.UserFunctionError, match=error.__name__):
            list(step)


def test_a_predicate_gives_an_answer() -> None:
    """A generator, which is always true, is none."""
    for step in (ad.Dataset.range(3).filter, ad.Dataset.range(3).take_while):
        with pytest.raises(TypeError, match="read only once"):
            list(step(lambda _: lazily()))


def test_what_cannot_be_pickled_is_an_element_only_where_it_was_made() -> None:
    """An inline function may return it; from elsewhere the error says so, and how to keep it."""
    for make in (threading.Lock, concurrent.futures.Future, lambda: {threading.current_thread(): threading.Lock()}):
        ds = ad.Dataset.range(3)
        assert len(list(ds.map(lambda _, make=make: make()))) == 3
        errors = set()
        for place in PLACES[1:]:
            with pytest.raises(TypeError, match="executor='inline'") as caught:
                list(ds.map(lambda _, make=make: make(), 2, executor=place))
            errors.add(str(caught.value))
        assert len(errors) == 1


@pytest.mark.slow
@pytest.mark.timeout(1800 if SOAK else 120)
def test_ready_made_functions_are_the_same_everywhere(folder: Path) -> None:
    """Every ready-made function over every form of its records, right or wrong."""
    parsers = [name for name in READY_MADE if name.startswith(("parse", "decode"))]
    others = [name for name in READY_MADE if name not in parsers]
    records = ["examples", "example files", "sequences", "images", "image dicts"]
    values = ["numbers", "texts", "arrays", "ragged", "CsvDataset", "CsvDataset by name", "TextLineDataset"]
    cases = [
        *itertools.product(records, sorted(BEFORE), parsers, ["", "batch"]),
        *itertools.product(values, sorted(BEFORE), others, ["", "batch"]),
    ]
    for source, before, name, behind in cases[:: 4 if SOAK else 139]:
        dataset = BEFORE[before](SOURCES[source](folder))
        datasets = {place: BEHIND[behind](mapped(dataset, name, place)) for place in PLACES}
        check(datasets, f"{source} | {before} | {name} | {behind}")


def test_batches_of_examples_are_parsed_as_batches(folder: Path) -> None:
    """Not one of them is taken for a record: no default, no empty row, no record too few, whatever the source."""
    ones = [ad.serialize_example({"f": np.float32(n), "v": [n, n]}) for n in range(640)]
    one = ad.parse_example({"f": ad.FixedLenFeature((), np.float32, -1.0)})
    many = ad.parse_example({"v": ad.VarLenFeature(int)})
    urls = [shard(folder, f"ones-{n}", ones[n::4]) for n in range(4)]
    read = ad.Dataset.from_tensor_slices(urls).interleave(ad.TFRecordDataset, cycle_length=4, block_length=1)
    for place in PLACES:
        two = ad.Dataset.from_tensor_slices(ones[:2]).batch(2)
        assert [batch["f"].tolist() for batch in two.map(one, 2, executor=place)] == [[0, 1]]
        assert [batch["v"].to_list() for batch in two.map(many, 2, executor=place)] == [[[0, 0], [1, 1]]]
        for source in (read, ad.Dataset.from_tensor_slices(ones)):
            batches = list(source.batch(64).map(one, 2, executor=place))
            assert [number for batch in batches for number in batch["f"].tolist()] == list(range(640))
            batches = list(source.batch(64).map(many, 2, executor=place))
            assert [row for batch in batches for row in batch["v"].to_list()] == [[n, n] for n in range(640)]


@pytest.mark.sampled
@pytest.mark.parametrize("policy", [None, ad.ErrorPolicy(max_skipped=None)])
def test_any_number_of_maps_in_front_of_batch_is_one_task(policy: ad.ErrorPolicy | None) -> None:
    """One stage calls all functions; with an error policy batches are filled from what is left, by a second one."""

    def odd_fails(number: Any) -> Any:
        if policy is not None and number % 2:
            raise ValueError("odd")
        return int(number)

    ds = ad.Dataset.range(20)
    for function in (odd_fails, lambda x: (x, -x), lambda x, y: {"x": x + 1, "y": y}, lambda d: (d["x"], d["y"])):
        ds = ds.map(function, num_parallel_calls=2)
    with ds.batch(4).with_options(ad.Options(errors=policy)).iterator() as it:
        found = list(it)
        names = [stage.name for stage in it.stats().stages]
    numbers = range(0, 20, 1 if policy is None else 2)
    assert [x for xs, _ in found for x in xs.tolist()] == [number + 1 for number in numbers]
    assert [y for _, ys in found for y in ys.tolist()] == [-number for number in numbers]
    assert [len(xs) for xs, _ in found] == ([4] * 5 if policy is None else [4, 4, 2])
    maps = [name for name in names if name.startswith("map(")]
    assert len(maps) == 1, names
    assert ("batch(4)" in maps[0]) == (policy is None), names


def test_an_element_of_a_batch_that_is_dropped_may_not_fail_unnoticed() -> None:
    """The functions are called for the elements of a last, smaller batch too, wherever they run."""

    def fail(number: Any) -> Any:
        return 1 // (4 - int(number))

    for place in PLACES:
        ds = ad.Dataset.range(6).map(fail, 2, executor=place).batch(4, drop_remainder=True)
        found: list[Any] = []
        with pytest.raises(ZeroDivisionError):
            found.extend(batch.tolist() for batch in ds)
        assert found == [[0, 0, 0, 1]]


def test_ragged_arrays_are_refused_by_batch() -> None:
    """Their row splits do not stack; the error says what to call instead."""
    rows = ad.RaggedArray.from_rows([[1], [2, 3]])
    for place in PLACES:
        ds = ad.Dataset.range(4).map(lambda _: (rows, 1), 2, executor=place)
        with pytest.raises(ad.UnbatchableError, match="ragged_batch"):
            list(ds.batch(2))
        assert [batch.to_list() for batch, _ in ds.ragged_batch(4)] == [[[[1], [2, 3]]] * 4]


HELD: Final = np.arange(8).reshape(4, 2)
OBJECTS: Final = np.array([["a"], None], object)
"""What elements of these tests are views or copies of."""
OWN: Final[dict[str, Callable[[], ad.Dataset]]] = {
    "slices": lambda: ad.Dataset.from_tensor_slices(HELD),
    "records": lambda: ad.Dataset.from_tensor_slices(HELD.view([("a", np.int64), ("b", np.int64)])[:, 0]),
    "nests": lambda: ad.Dataset.from_tensor_slices({"x": HELD, "n": [1, 2, 3, 4]}),
    "one element": lambda: ad.Dataset.from_tensors(HELD).repeat(3),
    "yielded": lambda: yielded([HELD[0], HELD[0], HELD[1]]),
    "yielded lists": lambda: yielded([[HELD[0], "a"], [HELD[0], "b"]]),
    "yielded objects": lambda: yielded([OBJECTS, {"a": OBJECTS}]),
    "cached objects": lambda: yielded([OBJECTS, OBJECTS]).cache(),
    "yielded nests": lambda: yielded([{"a": HELD[0]}, (HELD[0],)]),
    "yielded ragged": lambda: yielded([ad.RaggedArray.from_nested_row_splits(HELD[:, 0], [np.array([0, 4])])] * 3),
    "returned": lambda: ad.Dataset.range(3).map(lambda _: HELD),
    "rows": lambda: ad.Dataset.from_tensors(HELD).unbatch(),
    "rows of what was returned": lambda: ad.Dataset.range(2).map(lambda _: HELD).unbatch(),
    "cached": lambda: ad.Dataset.from_tensor_slices(HELD).cache(),
    "cached lists": lambda: yielded([["a", "b"], ["c"]]).cache(),
    "batches": lambda: ad.Dataset.from_tensor_slices(HELD).batch(2),
    "twice": lambda: ad.Dataset.from_tensor_slices(HELD).map(lambda x: (x, x)),
}


def test_functions_may_write_to_what_they_are_given() -> None:
    """It changes neither other elements, nor later epochs, nor what the user holds."""
    held = HELD.copy()
    for name, make in OWN.items():
        unwritten = outcome(make())
        expected: list[Any] = []
        for place in PLACES:
            source = make()
            parallel = None if place == "inline" else 2
            written = source.map(writes, parallel, executor=place).map(writes, parallel, executor=place)
            found, error = outcome(written.repeat(2))
            assert error is None, (name, place)
            expected = expected or found
            half = len(found) // 2
            assert found == expected, (name, place)
            assert found[:half] == found[half:], (name, place)
            assert found[:half] != unwritten[0], (name, place)
            assert outcome(source) == unwritten, (name, place)
            assert np.array_equal(HELD, held), (name, place)


def test_functions_of_other_steps_may_write_too() -> None:
    """Predicates, functions of a state, coroutines and vectorized functions see elements of their own."""

    def holds(x: Any) -> bool:
        x[...] = -1
        return True

    async def awaited(x: Any) -> Any:
        x += 1
        return x

    def added(x: Any) -> Any:
        x += 1
        return x

    held = HELD.copy()
    ds = ad.Dataset.from_tensor_slices(HELD)
    rows = held.tolist()
    for step in (ds.filter(holds), ds.take_while(holds)):
        assert [x.tolist() for x in step] == rows
    assert [x.tolist() for x in ds.scan(0, lambda state, x: (state, added(x)))] == (held + 1).tolist()
    assert [x.tolist() for x in ds.map(awaited, 2)] == (held + 1).tolist()
    assert [x.tolist() for x in ds.map(added, vectorized=True)] == (held + 1).tolist()
    inner = ds.flat_map(lambda x: ad.Dataset.from_tensors(added(x)))
    assert [x.tolist() for x in inner] == (held + 1).tolist()
    assert np.array_equal(HELD, held)


def test_views_that_functions_are_promised_are_read_only() -> None:
    """They are parts of records that other functions see, too."""
    for place in PLACES:
        ds = ad.Dataset.from_tensor_slices([b"a", b"b"]).batch(1).unbatch()
        views = ds.map(lambda view: view.readonly, None if place == "inline" else 2, executor=place, zero_copy=True)
        assert all(views), place


def test_what_a_cache_in_memory_gives_is_what_was_put_in() -> None:
    """In every epoch and from every place, whatever functions return."""
    for kind, make in MAKES.items():
        expected: Any = None
        for place in PLACES:
            ds = ad.Dataset.range(4).map(
                lambda n, make=make: make(int(n)), None if place == "inline" else 2, executor=place
            )
            found, error = outcome(ds.cache().repeat(2))
            expected = expected or found
            assert error is None, (kind, place)
            assert len(found) == 8, (kind, place)
            assert found == expected, (kind, place)
            assert found[:4] == found[4:], (kind, place)


def test_nobody_changes_what_a_cache_keeps() -> None:
    """Neither who is given its elements, nor who made them."""
    for make in (lambda: [["a"], ["b"]], lambda: [np.array([{1}, None]), np.array([(1,)], [("a", int)])]):
        items = make()
        expected = [plain(item) for item in items]
        ds = yielded(items).cache()
        for _ in range(3):
            found = list(ds)
            assert [plain(item) for item in found] == expected
            for item in (*found, *items):
                write(item)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["table", "table of texts", "none", "raw array"])
def test_a_cache_file_takes_the_same_from_every_place(kind: str, tmp_path: Path) -> None:
    """Empty tables are written too, and what cannot be written is refused before it is read."""
    outcomes = []
    for place in PLACES:
        ds = ad.Dataset.range(4).map(returning(kind), None if place == "inline" else 2, executor=place)
        found, error = outcome(ds.cache(str(tmp_path / place)).repeat(2))
        assert (error is None) == (kind != "raw array")
        assert error is not None or found[:4] == found[4:]
        outcomes.append((found, error and error[0]))
    assert outcomes == [outcomes[0]] * 3


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["void", "raw array"])
def test_raw_bytes_of_numpy_are_in_no_batch(kind: str) -> None:
    """Whatever makes the batches, and wherever the function ran."""
    for place, behind in itertools.product(PLACES, ["batch", "padded", "ragged", "shuffled"]):
        ds = ad.Dataset.range(7).map(returning(kind), None if place == "inline" else 2, executor=place)
        found, error = outcome(BEHIND[behind](ds))
        assert (found, error[0]) == ([], "UnbatchableError"), (place, behind)


UNLIKE: Final[dict[str, Any]] = {
    "number": 1,
    "fraction": 1.5,
    "array": np.zeros(2),
    "bytes": b"x",
    "text": "x",
    "half a character": "\ud800",
    "texts": ["a", "b"],
    "an array of texts": np.array(["a", "b"]),
    "byte strings": [b"a"],
    "nothing": None,
    "seconds": np.timedelta64(1, "s"),
    "milliseconds": np.timedelta64(1, "ms"),
    "one in a tuple": (1,),
    "dict": {"a": 1, "b": ["x"]},
    "dict the other way": {"b": ["x"], "a": 1},
    "dict with another leaf": {"b": ["y"], "a": 1.5},
    "ragged": ad.RaggedArray.from_rows([[1], [2, 3]]),
}
"""Elements of which few go together."""


def giving(kinds: list[str]) -> Callable[[Any], Any]:
    """A function that gives such elements, or raises."""

    def give(n: Any) -> Any:
        kind = kinds[int(n)]
        if kind == "error":
            raise ValueError(f"at {n}")
        return threading.Lock() if kind == "what cannot be pickled" else UNLIKE[kind]

    return give


@pytest.mark.slow
def test_what_makes_no_batch_is_told_alike() -> None:
    """Whichever of several errors, of whichever element, and wherever a batch is cut into tasks.

    What a function raises comes first: it is an error even where the batch would be left out.
    """

    @drawing(80, 4000)
    @given(
        usual=st.sampled_from(sorted(UNLIKE)),
        kinds=st.lists(st.sampled_from([*sorted(UNLIKE), "what cannot be pickled", "error", *[""] * 20]), min_size=1),
        size=st.sampled_from([2, 8, 50]),
        drop=st.booleans(),
    )
    @example(usual="dict", kinds=["", "dict the other way", ""], size=8, drop=False)
    @example(usual="dict", kinds=["", "dict the other way", "dict with another leaf"], size=8, drop=False)
    def run(usual: str, kinds: list[str], size: int, drop: bool) -> None:
        give = giving([kind or usual for kind in kinds])
        numbers = ad.Dataset.range(len(kinds))
        datasets = {
            place: numbers.map(give, None if place == "inline" else 2, executor=place).batch(size, drop_remainder=drop)
            for place in PLACES
        }
        check(datasets, f"{usual} | {kinds} | {size} | {drop}")

    run()
