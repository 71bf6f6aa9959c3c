"""Mistakes that new users make: each is an error, where it can be seen first, and its text names the cure."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncdata as ad
from fake_gcs import FakeGCS
from tests.integration.shards import BUCKET, gs_storage
from tests.samples import samples

EXECUTORS: list[dict[str, Any]] = [
    {},
    {"num_parallel_calls": 2, "executor": "thread"},
    {"num_parallel_calls": 2, "executor": "process"},
]
PAIRS = ad.Dataset.from_tensor_slices(([1, 2], [3, 4]))
SPEC = {"x": ad.FixedLenFeature((2,), np.float32)}


class Pair(NamedTuple):
    """One argument, although it is a tuple."""

    a: Any
    b: Any


@pytest.fixture(scope="module")
def server() -> Iterator[FakeGCS]:
    """A bucket with a directory."""
    with FakeGCS(buckets=[BUCKET]) as server:
        for name in ("a", "b"):
            server.put(BUCKET, f"train/{name}.txt", b"1\n")
        yield server


def told(dataset: ad.Dataset, kind: type[BaseException]) -> str:
    """What the error of an iteration says."""
    with pytest.raises(kind) as caught:
        list(dataset)
    return str(caught.value)


# --- leaves --------------------------------------------------------------------------------------------------------


def growing(i: Any) -> Any:
    return {"id": i, "image": {"pixels": np.zeros(int(i))}}


def retyped(i: Any) -> Any:
    return {"id": i, "image": {"pixels": np.zeros(2, np.float32 if i % 2 else np.float64)}}


def mixed(i: Any) -> Any:
    return {"id": i, "image": {"pixels": b"x" if i % 2 else "x"}}


def listed(i: Any) -> Any:
    return {"id": i, "image": {"pixels": ["x"] * int(i + 1)}}


def odd(i: Any) -> Any:
    return {"id": i, "image": {"pixels": {1, 2}}}


@pytest.mark.sampled
@pytest.mark.parametrize("how", EXECUTORS, ids=["inline", "thread", "process"])
def test_the_leaf_that_does_not_batch_is_named(how: dict[str, Any]) -> None:
    """In the text of the error, and as its attribute, wherever the batch is made."""
    with ad.Runtime(ad.Options(num_workers=1)):
        for function in (growing, retyped, mixed, listed, odd):
            dataset = ad.Dataset.range(2).map(function, **how).batch(2)
            with pytest.raises(ad.UnbatchableError, match=r"\bleaf image\.pixels\b") as caught:
                list(dataset)
            again = pickle.loads(pickle.dumps(caught.value))
            assert (again.leaf, str(again)) == ("image.pixels", str(caught.value)), function


@pytest.mark.parametrize(
    "make",
    [
        lambda ds: ds.map(lambda i: {"a": 1, "b": np.zeros((1,) * int(i + 1))}).padded_batch(2),
        lambda ds: ds.map(lambda i: {"a": 1, "b": np.zeros((1,) * int(i + 1))}).ragged_batch(2),
        lambda ds: ds.map(lambda _: {"a": 1, "b": np.zeros((2, 2))}).padded_batch(2, {"a": [], "b": [1, 1]}),
        lambda ds: ds.map(lambda _: {"a": np.zeros(3), "b": 1}).unbatch(),
        lambda ds: ds.map(lambda i: {"a": np.zeros(2), "b": np.zeros((2, int(i)))}).rebatch(3),
    ],
    ids=["padded", "ragged", "padded shape", "unbatch", "rebatch"],
)
def test_the_leaf_is_named_by_every_batch(make: Callable[[ad.Dataset], ad.Dataset]) -> None:
    """And where elements are taken apart."""
    assert "leaf b" in told(make(ad.Dataset.range(2)), ad.UnbatchableError)


def test_leaves_of_different_lengths_are_named() -> None:
    """Each with its number of rows."""
    dataset = ad.Dataset.from_tensors({"a": np.zeros(3), "b": np.zeros(2)}).unbatch()
    assert "a has 3, b has 2" in told(dataset, ad.UnbatchableError)


# --- files ---------------------------------------------------------------------------------------------------------


def test_a_wildcard_given_to_a_reader(server: FakeGCS, tmp_path: Path) -> None:
    """Names `list_files`; a name without a wildcard, and an object whose name has one, say nothing of it."""
    (tmp_path / "a.txt").write_text("1\n")
    gs = ad.Options(storage=gs_storage(server))
    for pattern in (f"{tmp_path}/*.txt", f"gs://{BUCKET}/train/*.txt", "memory://nowhere/{a,b}.txt"):
        for kind in (ad.TextLineDataset, ad.TFRecordDataset, ad.ParquetDataset, ad.FileDataset):
            assert "use Dataset.list_files(" in told(kind(pattern).with_options(gs), ad.ObjectNotFoundError)
    assert "list_files" not in told(ad.TextLineDataset(f"{tmp_path}/b.txt"), ad.ObjectNotFoundError)
    (tmp_path / "[x].txt").write_text("odd\n")
    assert list(ad.TextLineDataset(f"{tmp_path}/[x].txt")) == [b"odd"]


def test_a_directory_given_to_list_files(server: FakeGCS, tmp_path: Path) -> None:
    """Its files are one pattern away; an empty place stays a pattern that matches nothing."""
    (tmp_path / "a.txt").write_text("1\n")
    gs = ad.Options(storage=gs_storage(server))
    for place in (str(tmp_path), f"{tmp_path}/", f"gs://{BUCKET}/train", f"gs://{BUCKET}/train/"):
        text = told(ad.Dataset.list_files(place).with_options(gs), ad.ObjectNotFoundError)
        assert f"list_files('{place.rstrip('/')}/*')" in text
    assert "no file matches" in told(ad.Dataset.list_files(f"{tmp_path}/nothing"), ad.ObjectNotFoundError)


@pytest.mark.parametrize(
    ("url", "right"),
    [
        ("gs:/bucket/x", "gs://bucket/x"),
        ("S3:/bucket/x", "S3://bucket/x"),
        ("hdfs:/namenode/x", "hdfs://namenode/x"),
        ("https:/host/x", "https://host/x"),
    ],
)
def test_one_slash_behind_the_scheme(url: str, right: str) -> None:
    """Is no relative path."""
    assert f"write {right} " in told(ad.TextLineDataset(url), ad.UnsupportedURLError)
    assert f"write {right} " in told(ad.Dataset.list_files(url), ad.UnsupportedURLError)


def test_stores_without_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra that serves them is named."""
    for module in ("obstore", "s3fs", "adlfs"):
        monkeypatch.setitem(sys.modules, module, None)
    for url in ("s3://bucket/x", "az://container/x"):
        assert "pip install 'asyncdata[obstore]'" in told(ad.TextLineDataset(url), ad.UnsupportedURLError)


@pytest.mark.parametrize("column", [int, np.int32, 0])
def test_whole_numbers_beyond_int32(column: Any, tmp_path: Path) -> None:
    """The column's wider type is named; for what is no number, or beyond that type as well, it would not help."""
    path = tmp_path / "x.csv"
    path.write_text("1\n3000000000\n")
    assert "use np.int64" in told(ad.CsvDataset(str(path), [column]), ad.CorruptRecordError)
    assert [row[0] for row in ad.CsvDataset(str(path), [np.int64])] == [1, 3_000_000_000]
    for text in ("x", str(2**70)):
        path.write_text(f"1\n{text}\n")
        assert "np.int64" not in told(ad.CsvDataset(str(path), [column]), ad.CorruptRecordError)


# --- functions -----------------------------------------------------------------------------------------------------


@pytest.mark.sampled
@pytest.mark.parametrize("how", [*EXECUTORS, {"vectorized": True}], ids=["inline", "thread", "process", "vectorized"])
def test_a_function_that_wants_one_tuple(how: dict[str, Any]) -> None:
    """A tuple's items are separate arguments: the TypeError says so. Other TypeErrors are left alone."""
    assert "make the function take 2, or *items" in told(PAIRS.map(lambda pair: pair[0], **how), TypeError)
    assert "*items" not in told(PAIRS.map(lambda a, b: a + b + None, **how), TypeError)
    assert "*items" not in told(PAIRS.map(lambda a, b, c: (a, b, c), **how), TypeError)


def test_other_functions_that_want_one_tuple() -> None:
    """Async ones, predicates, and those that take a random generator; a namedtuple is one argument."""

    async def first(pair: Any) -> Any:
        return pair[0]

    for dataset in (
        PAIRS.map(first, 2),
        PAIRS.filter(lambda pair: pair[0]),
        PAIRS.take_while(lambda pair: pair[0]),
        PAIRS.group_by_window(lambda pair: pair[0], lambda _, rows: rows, 2),
        PAIRS.bucket_by_sequence_length(lambda pair: pair[0], [2], [2, 2]),
        PAIRS.flat_map(lambda pair: ad.Dataset.range(pair[0])),
        PAIRS.map(lambda pair, rng: (pair[0], rng), rng=True),
        PAIRS.map(lambda pair, rng: (pair[0], rng), 2, rng=True, executor="thread"),
    ):
        assert "take 2, or *items" in told(dataset, TypeError)
    assert list(PAIRS.map(Pair).map(lambda pair: pair.a)) == [1, 2]


async def later(x: Any) -> Any:
    """Has to be awaited."""
    await asyncio.sleep(0)
    return x


def forgetful(x: Any) -> Any:
    """Does not await."""
    return later(x)


@pytest.mark.sampled
@pytest.mark.parametrize("how", EXECUTORS, ids=["inline", "thread", "process"])
def test_a_plain_function_that_returns_a_coroutine(how: dict[str, Any]) -> None:
    """Nobody would await it."""
    assert "give map() the `async def` function itself" in told(ad.Dataset.range(2).map(forgetful, **how), TypeError)
    assert "not awaited" in told(ad.Dataset.range(2).filter(forgetful), TypeError)


def numbers() -> Iterator[int]:
    yield from range(3)


def test_setup_of_async_functions_that_fails_is_named() -> None:
    """Also where it returns something else than an async context manager, as without the decorator."""

    async def function(x: Any, opened: Any) -> Any:
        return x, opened

    wrong: list[Any] = [lambda: None, numbers, lambda: 1 // 0]
    for setup in wrong:
        with pytest.raises((AttributeError, ZeroDivisionError)) as caught:
            list(ad.Dataset.range(3).map(function, 2, setup=setup))
        (note,) = caught.value.__notes__
        assert "function)" in note
        assert "async context manager that setup=" in note


class Restarting:
    """An iterator that begins again."""

    def __iter__(self) -> Restarting:
        self._left = [3, 2, 1]
        return self

    def __next__(self) -> int:
        if not self._left:
            raise StopIteration
        return self._left.pop()


@pytest.mark.parametrize("signature", [None, np.int64])
@pytest.mark.parametrize("make", [numbers, lambda: iter([0, 1, 2]), lambda: map(int, [0, 1, 2])])
def test_a_generator_function_that_returns_a_used_iterator(make: Callable[[], Iterator[int]], signature: Any) -> None:
    """An error instead of a silent empty epoch, also inside `repeat`."""
    once = make()
    dataset = ad.Dataset.from_generator(lambda: once, signature)
    assert list(dataset) == [0, 1, 2]
    assert "return a new iterator in every call" in told(dataset, ValueError)
    again = make()
    with ad.Dataset.from_generator(lambda: again, signature).repeat(2).iterator() as elements:
        assert [next(elements) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="used up"):
            next(elements)


def test_generator_functions_that_are_right() -> None:
    """New iterators, empty ones, iterables, and iterators that begin again."""
    restarting, items, used = Restarting(), [1, 2], numbers()
    for function, expected in (
        (numbers, [0, 1, 2]),
        (functools.partial(map, int, [0, 1, 2]), [0, 1, 2]),
        (lambda: iter(()), []),
        (lambda: items, items),
        (lambda: restarting, [1, 2, 3]),
    ):
        dataset = ad.Dataset.from_generator(function)
        assert [list(dataset) for _ in range(3)] == [expected] * 3
    assert list(used) == [0, 1, 2]
    assert "used up" in told(ad.Dataset.from_generator(lambda: used), ValueError)


# --- specs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ad.FixedLenFeature((2,), float, [1]), "holds 1 value, not"),
        (lambda: ad.FixedLenFeature((), float, "x"), "not of dtype float32"),
        (lambda: ad.FixedLenFeature((), float, 1e300), "does not fit float32"),
        (lambda: ad.FixedLenFeature((), int, 2**70), "not of dtype int64"),
        (lambda: ad.FixedLenFeature((), bytes, 1), "not bytes or str"),
        (lambda: ad.FixedLenFeature((None,), int), "known lengths"),  # type: ignore[arg-type]  # that is the point
        (lambda: ad.FixedLenFeature((2**40, 2**40), int), "more values than an array can"),
        (lambda: ad.VarLenFeature(np.int32), "not the class int32"),
        (lambda: ad.FixedLenSequenceFeature((), int, allow_missing="no"), "allow_missing must be True or False"),  # type: ignore[arg-type]  # that is the point
        (lambda: ad.RaggedFeature(int, partitions=[ad.RaggedFeature.RowSplits(3)]), "key of RowSplits must be a str"),  # type: ignore[arg-type]  # that is the point
        (lambda: ad.RaggedFeature.UniformRowLength("a"), "length must be an integer"),  # type: ignore[arg-type]  # that is the point
        (lambda: ad.RaggedFeature.UniformRowLength(0), "length must be at least 1"),
        (lambda: ad.parse_example({"x": np.int64}), "none of the feature classes"),  # type: ignore[dict-item]  # that is the point
        (lambda: ad.parse_example({"x": ad.FixedLenSequenceFeature((), int)}), "needs allow_missing=True"),
        (lambda: ad.parse_sequence_example(None, {"x": ad.FixedLenFeature((), int)}), "use FixedLenSequenceFeature"),
    ],
)
def test_an_invalid_spec_is_refused_when_it_is_made(make: Callable[[], Any], message: str) -> None:
    """By a ValueError or TypeError, before there is any data."""
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        make()
    assert not isinstance(caught.value, ad.AsyncdataError)


VALUES = (
    st.lists(st.integers(-3, 3), max_size=4)
    | st.lists(st.floats(width=32), max_size=3)
    | st.lists(st.binary(max_size=3), max_size=3)
)
RECORDS = st.binary(max_size=20) | st.dictionaries(st.sampled_from(["x", "y", "n"]), VALUES).map(ad.serialize_example)
FEATURES = (
    st.builds(ad.FixedLenFeature, st.sampled_from([(), (2,), (1, 2), (0,)]), st.sampled_from([int, float, bytes]))
    | st.builds(ad.FixedLenSequenceFeature, st.sampled_from([(), (2,)]), st.sampled_from([int, float]), st.just(True))
    | st.builds(ad.VarLenFeature, st.sampled_from([int, float, bytes]))
    | st.builds(
        ad.RaggedFeature,
        st.sampled_from([int, bytes]),
        st.just("y"),
        st.lists(
            st.sampled_from(
                [
                    ad.RaggedFeature.RowSplits("n"),
                    ad.RaggedFeature.RowLengths("n"),
                    ad.RaggedFeature.RowStarts("n"),
                    ad.RaggedFeature.RowLimits("n"),
                    ad.RaggedFeature.ValueRowIds("n"),
                    ad.RaggedFeature.UniformRowLength(2),
                ]
            ),
            max_size=2,
        ),
    )
)


@settings(max_examples=samples(200, 20_000), deadline=None)
@given(
    features=st.dictionaries(st.sampled_from(["x", "y"]), FEATURES, min_size=1),
    records=st.lists(RECORDS, min_size=1, max_size=3),
)
def test_a_record_that_does_not_fit_a_valid_spec_is_data(features: dict[str, Any], records: list[bytes]) -> None:
    """Whatever is in it: alone or in a batch, there is a value or a `DataError`."""
    parse = ad.parse_example(features)
    for asked in (*records, records):
        with contextlib.suppress(ad.DataError):
            assert parse(asked).keys() == features.keys()


# --- keywords, notes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ad.Dataset.range(2).map(int, num_paralel_calls=2),  # type: ignore[call-arg]  # that is the point
            r"Dataset\.map\(\) .*; did you mean 'num_parallel_calls'",
        ),
        (lambda: ad.Dataset.range(2).map(), r"Dataset\.map\(\) missing .* 'map_func'"),  # type: ignore[call-arg]  # that is the point
        (lambda: ad.Dataset.range(2).batch(2, drop_reminder=True), r"Dataset\.batch\(\) .*'drop_remainder'"),  # type: ignore[call-arg]  # that is the point
        (lambda: ad.Dataset.range(2).with_options(option=1), r"Dataset\.with_options\(\) .*'options'"),  # type: ignore[call-arg]  # that is the point
        (lambda: ad.Dataset.list_files("x", sed=1), r"Dataset\.list_files\(\) .*'seed'"),  # type: ignore[call-arg]  # that is the point
        (lambda: ad.Dataset.zip(dataset=1), r"Dataset\.zip\(\) .*'datasets'"),  # type: ignore[call-arg]  # that is the point
        (lambda: ad.TFRecordDataset("x", compression="GZIP"), r"TFRecordDataset\(\) .*'compression_type'"),  # type: ignore[call-arg]  # that is the point
        (lambda: ad.Dataset.range(2).take(1, 2), r"Dataset\.take\(\) takes 2 positional"),  # type: ignore[call-arg]  # that is the point
    ],
)
def test_a_wrong_keyword(call: Callable[[], Any], message: str) -> None:
    """Names the method as users know it, and the keyword that was meant."""
    with pytest.raises(TypeError, match=f"^{message}") as caught:
        call()
    assert caught.value.__cause__ is None


def test_methods_are_found_by_their_names() -> None:
    """No internal class shows; and functions that plans may hold pickle by name."""
    methods = {name: getattr(ad.Dataset, name) for name in dir(ad.Dataset) if not name.startswith("_")}
    named = {name: method.__qualname__ for name, method in methods.items() if callable(method)}
    assert named == {name: f"Dataset.{name}" for name in named}
    assert len(named) > 40
    for function in (ad.Dataset.from_tensors, ad.Dataset.zip, ad.Dataset.map):
        assert pickle.loads(pickle.dumps(function)) is function


@pytest.mark.sampled
@pytest.mark.parametrize("how", EXECUTORS, ids=["inline", "thread", "process"])
def test_notes_show_no_line_of_the_package(how: dict[str, Any]) -> None:
    """A user's line is shown; where none failed, there is none."""

    def fail(_: Any) -> Any:
        raise ValueError("boom")

    package = str(Path(ad.__file__).parent)
    parse = ad.parse_example(SPEC)
    with ad.Runtime(ad.Options(num_workers=1)):
        for dataset in (
            ad.Dataset.range(2).map(fail, **how),
            PAIRS.map(lambda pair: pair, **how),
            ad.Dataset.from_tensor_slices([b"1234567"]).map(parse, **how),
            ad.Dataset.range(2).map(growing, **how).batch(2),
            ad.Dataset.range(2).map(lambda _: iter("x"), **how).batch(2),
        ):
            with pytest.raises((ValueError, TypeError, ad.DataError)) as caught:
                list(dataset)
            notes = getattr(caught.value, "__notes__", [])
            assert not [note for note in notes if package in note]
            assert package not in str(caught.value)


def with_keywords() -> list[tuple[str, Callable[..., Any]]]:
    """Methods of datasets, what makes datasets, and functions, with the names that errors show."""
    public = {name: getattr(ad, name) for name in ad.__all__}
    methods = {name: getattr(ad.Dataset.range(2), name) for name in dir(ad.Dataset) if not name.startswith("_")}
    often_called = {"serialize_example", "serialize_sequence_example"}
    return [
        *((name, value) for name, value in public.items() if name.endswith(("Dataset", "Options"))),
        *((name, value) for name, value in public.items() if inspect.isfunction(value) and name not in often_called),
        *((f"Dataset.{name}", method) for name, method in methods.items() if callable(method)),
        ("Runtime", ad.Runtime),
        ("TFRecordWriter", ad.TFRecordWriter),
    ]


@pytest.mark.parametrize(("name", "function"), with_keywords())
def test_every_wrong_keyword_suggests_the_right_one(name: str, function: Callable[..., Any]) -> None:
    """One that lacks a letter, or is a part of it."""
    parameters = inspect.signature(function).parameters.values()
    for keyword in (each.name for each in parameters if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)):
        for word in (keyword[:2] + keyword[3:], keyword.partition("_")[0]):
            if len(word) > 3 and word not in inspect.signature(function).parameters:
                message = rf"^{re.escape(name)}\(\) got an unexpected keyword argument '{word}'; did you mean '"
                with pytest.raises(TypeError, match=message):
                    function(**{word: 1})
