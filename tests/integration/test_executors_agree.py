"""Where a function runs makes no difference: inline, threads and worker processes give the same elements and errors."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import asyncdata as ad
from asyncdata.formats.image import encode_png
from tests.samples import SOAK, samples

PLACES: Final = ("inline", "thread", "process")
COUNT: Final = 9

Step = Callable[[ad.Dataset], ad.Dataset]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the shards."""
    return tmp_path_factory.mktemp("shards")


@pytest.fixture(autouse=True)
def runtime() -> Iterator[ad.Runtime]:
    """Two worker processes for all pipelines of a test."""
    with ad.Runtime(ad.Options(num_workers=2, memory_limit_bytes=128 << 20, seed=1)) as runtime:
        yield runtime


# --- sources: every kind of leaf -------------------------------------------------------------------------------------


def example(n: int) -> bytes:
    """A record in which lists of any length, single values and whole shapes occur; one is missing now and then."""
    features: dict[str, Any] = {
        "number": n,
        "real": np.float32(n / 2),
        "pair": [n, -n],
        "reals": np.arange(n % 3, dtype=np.float32),
        "word": b"w" * n,
        "words": [b"a" * n, b"b"],
        "some": [b"x"] * (n % 3),
        "ones": np.ones(2, np.int64),
    }
    if n % 4 == 3:
        del features["number"]
    return ad.serialize_example(features)


def delimited(tag: int, *parts: bytes) -> bytes:
    """A field of a message: its tag, its length and its parts."""
    body = b"".join(parts)
    assert len(body) < 128
    return bytes([tag, len(body)]) + body


def sequence(n: int) -> bytes:
    """A SequenceExample: a context, and n % 4 steps."""
    step = delimited(0x0A, delimited(0x1A, delimited(0x0A, bytes([n % 100]))))
    lists = delimited(0x0A, delimited(0x0A, b"steps"), delimited(0x12, step * (n % 4)))
    context = ad.serialize_example({"id": n})
    return context + delimited(0x12, lists)


def image(n: int) -> bytes:
    """A PNG."""
    return encode_png(np.full((2 + n % 2, 3, 3), n, np.uint8))


EXAMPLES: Final = [example(n) for n in range(COUNT)]
OBJECTS: Final[list[Any]] = [None, {1, 2}, 2**70, "half \ud800", b"bytes", "text", 3, (1, b"b"), [1.5, 2.5]]


def yielded(items: list[Any]) -> ad.Dataset:
    """Elements as Python objects."""
    return ad.Dataset.from_generator(lambda: list(items))


def shard(folder: Path, name: str, records: list[bytes]) -> str:
    """A TFRecord file."""
    path = folder / f"{name}.tfrecord"
    if not path.exists():
        with ad.TFRecordWriter(str(path)) as writer:
            writer.write_many(records)
    return str(path)


SOURCES: Final[dict[str, Callable[[Path], ad.Dataset]]] = {
    "numbers": lambda _: ad.Dataset.range(COUNT),
    "arrays": lambda _: ad.Dataset.from_tensor_slices(np.arange(6.0 * COUNT, dtype=np.float32).reshape(COUNT, 2, 3)),
    "uneven arrays": lambda _: yielded([np.arange(n) for n in range(COUNT)]),
    "bytes": lambda _: ad.Dataset.from_tensor_slices([b"b" * n for n in range(COUNT)]),
    "texts": lambda _: ad.Dataset.from_tensor_slices(["é" * n for n in range(COUNT)]),
    "objects": lambda _: yielded(OBJECTS),
    "one array": lambda _: ad.Dataset.from_tensors(np.arange(3)).repeat(4),
    "an array again and again": lambda _: yielded([np.arange(3)] * 4),
    "lists": lambda _: yielded([["a"], [b"b", np.arange(2)], ["c"] * 2]),
    "string tables": lambda _: yielded([ad.BytesArray.from_items([b"a", b"b" * n]) for n in range(COUNT)]),
    "tables of examples": lambda _: yielded([ad.BytesArray.from_items(EXAMPLES[:n]) for n in range(COUNT)]),
    "ragged": lambda _: yielded(
        [ad.RaggedArray.from_nested_row_splits(np.arange(3), [np.array([0, n % 4, 3])]) for n in range(9)]
    ),
    "examples": lambda _: ad.Dataset.from_tensor_slices(EXAMPLES),
    "examples in a tuple": lambda _: ad.Dataset.from_tensor_slices((EXAMPLES,)),
    "examples in a dict": lambda _: ad.Dataset.from_tensor_slices({"record": EXAMPLES}),
    "examples and numbers": lambda _: ad.Dataset.from_tensor_slices((EXAMPLES, np.arange(COUNT))),
    "example file": lambda folder: ad.TFRecordDataset(shard(folder, "examples", EXAMPLES)),
    "example files": lambda folder: ad.Dataset.from_tensor_slices(
        [shard(folder, f"examples-{n}", EXAMPLES[n:]) for n in range(3)]
    ).interleave(ad.TFRecordDataset, cycle_length=2),
    "sequences": lambda folder: ad.TFRecordDataset(shard(folder, "sequences", [sequence(n) for n in range(COUNT)])),
    "images": lambda folder: ad.TFRecordDataset(shard(folder, "images", [image(n) for n in range(COUNT)])),
    "image dicts": lambda _: ad.Dataset.from_tensor_slices({"image": [image(n) for n in range(4)], "id": range(4)}),
}

# --- steps in front of the function and behind it --------------------------------------------------------------------

BEFORE: Final[dict[str, Step]] = {
    "": lambda ds: ds,
    "in slabs": lambda ds: ds.map(same_element, 2, executor="thread"),
    "shuffled": lambda ds: ds.shuffle(4, seed=3),
    "batch": lambda ds: ds.batch(2),
    "larger batch": lambda ds: ds.batch(64),
    "batches of batches": lambda ds: ds.batch(2, drop_remainder=True).batch(2),
    "batches shuffled": lambda ds: ds.batch(4).shuffle(3, seed=1),
    "batch in slabs": lambda ds: ds.map(same_element, 2, executor="thread").batch(3),
    "padded": lambda ds: ds.padded_batch(3),
    "ragged": lambda ds: ds.ragged_batch(2),
    "windows": lambda ds: ds.window(2).flat_map(lambda *parts: parts[0].batch(2) if len(parts) == 1 else parts[0]),
    "batched and apart": lambda ds: ds.batch(4).unbatch(),
    "in a nest": lambda ds: ds.enumerate().map(lambda n, x: {"n": n, "x": (x, b"b")}),
}
BEHIND: Final[dict[str, Step]] = {
    "": lambda ds: ds,
    "batch": lambda ds: ds.batch(2),
    "batch kept": lambda ds: ds.batch(3, drop_remainder=True),
    "padded": lambda ds: ds.padded_batch(2),
    "ragged": lambda ds: ds.ragged_batch(2),
    "apart": lambda ds: ds.unbatch(),
    "shuffled": lambda ds: ds.shuffle(3, seed=1).batch(2),
    "prefetched": lambda ds: ds.prefetch(2).batch(2),
    "twice": lambda ds: ds.repeat(2),
    "cached": lambda ds: ds.cache().repeat(2),
}

# --- functions -------------------------------------------------------------------------------------------------------


def same_element(*parts: Any) -> Any:
    """The element itself."""
    return parts[0] if len(parts) == 1 else parts


def first_leaf(element: Any) -> Any:
    """The first leaf of a nest."""
    while isinstance(element, tuple | dict) and element:
        element = next(iter(element.values())) if isinstance(element, dict) else element[0]
    return element


def size(*parts: Any) -> int:
    """A number that follows from the element."""
    leaf = first_leaf(same_element(*parts))
    return len(leaf) if hasattr(leaf, "__len__") and np.ndim(leaf) != 0 else len(repr(leaf))


def shape_of(value: Any) -> str:
    """What an element is made of, in words."""
    if isinstance(value, tuple | list):
        return f"{type(value).__name__}({', '.join(map(shape_of, value))})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {shape_of(value[key])}' for key in value)}}}"
    return f"{type(value).__name__}:{getattr(value, 'dtype', '')}{getattr(value, 'shape', '')}"


def writes(*parts: Any) -> Any:
    """A user function that writes to what it is given, and returns it."""
    for part in parts:
        write(part)
    return same_element(*parts)


def write(value: Any) -> None:
    """Writes to everything in a value that can be written to."""
    if isinstance(value, np.ndarray):
        value[...] = np.flip(value)
        if value.size and value.dtype.kind in "iuf":
            value.reshape(-1)[:1] += 1
    elif isinstance(value, ad.RaggedArray):
        write(value.flat_values)
    elif isinstance(value, list):
        for part in value:
            write(part)
        value.append("written")
    elif isinstance(value, np.void):
        value[0] = 7
    elif isinstance(value, set):
        value.add("written")
    elif isinstance(value, tuple | dict):
        for part in value.values() if isinstance(value, dict) else value:
            write(part)


class Box:
    """An object that can be seen as an array."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.full(2, self.number, dtype)

    def __repr__(self) -> str:
        return f"Box({self.number})"


class Numbers(np.ndarray[Any, Any]):
    """A subclass of arrays."""


class Word(str):
    """A subclass of what elements are made of."""

    __slots__ = ()


class Raw(bytes):
    """Another one."""

    __slots__ = ()


MAKES: Final[dict[str, Callable[[int], Any]]] = {
    "int": lambda n: n,
    "float or int": lambda n: n if n % 2 else n / 2,
    "long": lambda n: 2**63 + n if n % 3 else -n,
    "too long": lambda n: 2**70 + n,
    "scalar": np.float16,
    "no axes": lambda n: np.array(n, ">i4"),
    "array": lambda n: np.arange(4, dtype=np.uint8) + n % 100,
    "uneven array": lambda n: np.arange(n % 4),
    "bytes": lambda n: b"b" * (n % 9),
    "bytearray": lambda n: bytearray(b"b" * (n % 9)),
    "view": lambda n: memoryview(b"b" * (n % 9)),
    "numpy bytes": lambda _: np.bytes_(b"b"),
    "text": lambda n: "é" * (n % 9),
    "numpy text": lambda _: np.str_("b"),
    "word": lambda _: Word("b"),
    "raw": lambda n: Raw(b"b" * (n % 3)),
    "half a character": lambda n: "\ud800" if n % 3 else "é",
    "other byte order": lambda _: np.arange(3, dtype=">f8"),
    "other byte order of any length": lambda n: np.arange(n % 3, dtype=">i2"),
    "records": lambda n: np.array([(n, 0.5)], [("a", np.int32), ("b", np.float64)]),
    "void": lambda _: np.void(b"abc"),
    "raw array": lambda _: np.array([b"ab", b"cd"], "V2"),
    "array in columns": lambda n: np.asfortranarray(np.arange(6).reshape(2, 3) + n),
    "bytes or text": lambda n: b"b" if n % 2 else "b",
    "list": lambda n: [1, n],
    "list of any length": lambda n: [1.5] * (n % 4),
    "list of strings": lambda n: [b"b"] * (n % 3),
    "list of arrays": lambda n: [np.arange(2), np.arange(2) + n],
    "long list": lambda n: [2**63, -n],
    "list of lists": lambda n: [[1], [2, 3], [n]],
    "table": lambda n: ad.BytesArray.from_items([b"b"] * (n % 3)),
    "table of texts": lambda n: ad.BytesArray.from_items(["a", "b" * n])[n % 3 :],
    "array of strings": lambda n: np.array([b"a", b"b" * n, b"\0"], object),
    "numpy strings": lambda _: np.array(["a", "bc"]),
    "ragged": lambda n: ad.RaggedArray.from_nested_row_splits(np.arange(3), [np.array([0, n % 4, 3])]),
    "none": lambda _: None,
    "set": lambda n: {n},
    "box": Box,
    "box or array": lambda n: Box(n) if n % 2 else np.full(2, n),
    "range": lambda n: range(n % 5),
    "dates": lambda n: np.datetime64("2020-01-01") + n,
    "masked": lambda n: np.ma.masked_array([1, n], mask=[False, True]),
    "array of a subclass": lambda n: np.array([1, n]).view(Numbers),
    "nest": lambda n: {"a": (n, {"b": b"b" * (n % 9)}), "c": np.arange(3) + n},
    "nest of objects": lambda n: ({n}, [b"b", 1], None),
    "nests of two kinds": lambda n: {"a": n, "b": [n]} if n % 2 else (n,),
    "dicts in two orders": lambda n: {"a": n, "b": 1} if n % 2 else {"b": 1, "a": n},
    "empty tuple": lambda _: (),
}
"""What user functions return, by the number that the element stands for."""


def returning(kind: str) -> Callable[..., Any]:
    """A user function."""
    make = MAKES[kind]
    return lambda *parts: make(size(*parts))


def failing(number: int) -> Callable[..., Any]:
    """A user function that fails at some elements."""

    def fail(*parts: Any) -> Any:
        found = size(*parts)
        if found % 7 == number:
            raise LookupError(f"element of size {found}")
        return found, b"b" * (found % 9)

    return fail


def described(*parts: Any) -> str:
    """A user function that tells what it was given."""
    return shape_of(parts)


def random_number(*parts: Any, rng: np.random.Generator) -> tuple[int, float]:
    """A user function with random numbers."""
    return len(parts), rng.random()


INT: Final = ad.FixedLenFeature((), int, 7)
PARSERS: Final[dict[str, Any]] = {
    "number": {"number": INT},
    "number needed": {"number": ad.FixedLenFeature((), int)},
    "real": {"real": ad.FixedLenFeature((), np.float32, -1.0)},
    "of another kind": {"real": ad.FixedLenFeature((), int)},
    "missing": {"missing": ad.FixedLenFeature((2,), np.float32, [1.0, 2.0])},
    "pair": {"pair": ad.FixedLenFeature((2,), int)},
    "word": {"word": ad.FixedLenFeature((), bytes), "number": INT},
    "words": {"words": ad.FixedLenFeature((2,), bytes)},
    "any reals": {"reals": ad.VarLenFeature(np.float32)},
    "any ones": {"ones": ad.VarLenFeature(int)},
    "any strings": {"some": ad.VarLenFeature(bytes)},
    "steps": {"reals": ad.FixedLenSequenceFeature((), np.float32, allow_missing=True)},
    "steps of two": {"pair": ad.FixedLenSequenceFeature((2,), int, allow_missing=True)},
    "steps of strings": {"some": ad.FixedLenSequenceFeature((), bytes, allow_missing=True)},
    "ragged": {"reals": ad.RaggedFeature(np.float32)},
    "ragged strings": {"some": ad.RaggedFeature(bytes)},
    "cut evenly": {"cut": ad.RaggedFeature(int, "pair", [ad.RaggedFeature.UniformRowLength(1)])},
    "cut by lengths": {"cut": ad.RaggedFeature(int, "pair", [ad.RaggedFeature.RowLengths("ones")])},
}
FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    **{f"parse_example {name}": ad.parse_example(spec) for name, spec in PARSERS.items()},
    "parse_example in views": ad.parse_example({"word": ad.FixedLenFeature((), bytes)}, zero_copy=True),
    "parse_sequence_example": ad.parse_sequence_example(
        {"id": INT}, {"steps": ad.FixedLenSequenceFeature((), int, allow_missing=True)}
    ),
    "parse_sequence_example ragged": ad.parse_sequence_example({}, {"steps": ad.VarLenFeature(int)}),
    "decode_image": ad.decode_image(),
    "decode_image of one size": ad.decode_image(channels=1, size=(2, 2)),
    "decode_image in a dict": ad.decode_image(size=(2, 2), feature="image"),
    **{f"returns {kind}": returning(kind) for kind in MAKES},
    **{f"fails {number}": failing(number) for number in range(3)},
    "the same": same_element,
    "size": size,
    "described": described,
    "writes": writes,
    "random": random_number,
}

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
    return type(value).__name__, repr(value)


def outcome(dataset: ad.Dataset) -> tuple[list[Any], Any]:
    """The elements, and the error that ends them."""
    found: list[Any] = []
    try:
        found.extend(map(plain, dataset))
    except Exception as error:  # noqa: BLE001 -- it is compared
        if isinstance(error, ad.UnbatchableError):
            return found, ad.UnbatchableError
        text = error.message if isinstance(error, ad.AsyncdataError) else str(error)
        where = [
            re.sub(r"^in .*?, (?=\S+ \d+ of)", "", line)
            for line in getattr(error, "__notes__", [])
            if line.startswith("in ")
        ]
        return found, (type(error).__name__, re.sub(r"0x[0-9a-f]+", "0x", text), where[:1])
    return found, None


def check(datasets: dict[str, ad.Dataset], case: str) -> None:
    """The three places agree.

    Where functions and batch are one step, a batch that cannot be made is noticed before a function fails behind its
    first element: of the errors of one batch, either is right.
    """
    expected, error = outcome(datasets["inline"])
    for place in PLACES[1:]:
        found, its_error = outcome(datasets[place])
        assert found == expected, (place, case)
        if error is None or its_error is None or ad.UnbatchableError not in (error, its_error):
            assert its_error == error, (place, case)


def mapped(dataset: ad.Dataset, name: str, place: str, *, zero_copy: bool = False) -> ad.Dataset:
    """One map, where it is told to run."""
    parallel = None if place == "inline" else 2
    random = FUNCTIONS[name] is random_number
    return dataset.map(FUNCTIONS[name], parallel, executor=place, rng=random, zero_copy=zero_copy)


@pytest.mark.slow
@pytest.mark.timeout(7200 if SOAK else 120)
def test_where_functions_run_makes_no_difference(folder: Path) -> None:
    """Every kind of leaf, ready-made and user functions, batched or not, followed by batches or not."""

    @settings(
        max_examples=samples(100, 6000),
        derandomize=not SOAK,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        print_blob=True,
    )
    @given(
        source=st.sampled_from(sorted(SOURCES)),
        before=st.sampled_from(sorted(BEFORE)),
        functions=st.lists(st.sampled_from(sorted(FUNCTIONS)), min_size=1, max_size=3),
        behind=st.sampled_from(sorted(BEHIND)),
        zero_copy=st.booleans(),
    )
    def run(source: str, before: str, functions: list[str], behind: str, zero_copy: bool) -> None:
        datasets = {}
        for place in PLACES:
            dataset = BEFORE[before](SOURCES[source](folder))
            for name in functions:
                dataset = mapped(dataset, name, place, zero_copy=zero_copy)
            datasets[place] = BEHIND[behind](dataset)
        check(datasets, f"{source} | {before} | {functions} | {behind}")

    run()


@pytest.mark.slow
@pytest.mark.timeout(1800 if SOAK else 120)
def test_ready_made_functions_are_the_same_everywhere(folder: Path) -> None:
    """Every ready-made function over every form of its records, right or wrong."""
    names = [name for name in FUNCTIONS if name.startswith(("parse", "decode"))]
    sources = ["examples", "example files", "sequences", "images", "image dicts"]
    cases = list(itertools.product(sources, sorted(BEFORE), names, ["", "batch"]))
    for source, before, name, behind in cases if SOAK else cases[::29]:
        records = BEFORE[before](SOURCES[source](folder))
        datasets = {place: BEHIND[behind](mapped(records, name, place)) for place in PLACES}
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
"""What elements of these tests are views or copies of."""
OWN: Final[dict[str, Callable[[], ad.Dataset]]] = {
    "slices": lambda: ad.Dataset.from_tensor_slices(HELD),
    "records": lambda: ad.Dataset.from_tensor_slices(HELD.view([("a", np.int64), ("b", np.int64)])[:, 0]),
    "nests": lambda: ad.Dataset.from_tensor_slices({"x": HELD, "n": [1, 2, 3, 4]}),
    "one element": lambda: ad.Dataset.from_tensors(HELD).repeat(3),
    "yielded": lambda: yielded([HELD[0], HELD[0], HELD[1]]),
    "yielded lists": lambda: yielded([[HELD[0], "a"], [HELD[0], "b"]]),
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


@pytest.mark.parametrize("kind", ["void", "raw array"])
def test_raw_bytes_of_numpy_are_in_no_batch(kind: str) -> None:
    """Whatever makes the batches, and wherever the function ran."""
    for place, behind in itertools.product(PLACES, ["batch", "padded", "ragged", "shuffled"]):
        ds = ad.Dataset.range(7).map(returning(kind), None if place == "inline" else 2, executor=place)
        assert outcome(BEHIND[behind](ds)) == ([], ad.UnbatchableError), (place, behind)
