"""Grouping as users see it: nests, windows, buckets, errors, memory, workers."""

from __future__ import annotations

import dataclasses
import pickle
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncdata as ad

D = ad.Dataset
INLINE = ad.Options(num_workers=0)
Pair = namedtuple("Pair", ["a", "b"])  # noqa: PYI024 -- users write it so


@ad.register_dataclass
@dataclasses.dataclass
class Point:
    """A dataclass as an element."""

    x: Any
    name: Any


def rows(*lengths: int) -> ad.Dataset:
    return D.from_generator(lambda: [np.full(n, i) for i, n in enumerate(lengths)])


def ints(ds: Any) -> list[Any]:
    return [np.asarray(element).tolist() for element in ds]


@pytest.fixture
def records(tmp_path: Path) -> tuple[str, list[bytes]]:
    """A file of 60 records of 100 kB."""
    path = tmp_path / "x.tfrecord"
    made = [bytes([i]) * 100_000 for i in range(60)]
    with ad.TFRecordWriter(path) as writer:
        writer.write_many(made)
    return str(path), made


# --- batches of uneven elements --------------------------------------------------------------------------------------


def test_padding_of_a_nest() -> None:
    """Shapes and values are nested like the elements; leaves of every kind are padded, each in its way."""
    items = [Pair({"x": np.full((i, 2), i, np.float32), "s": [f"t{i}"] * i}, (b"b" * i, i, True)) for i in (1, 0, 2)]
    ds = D.from_generator(lambda: iter(items))
    (batch,) = ds.padded_batch(
        3,
        padded_shapes=({"x": [None, 3], "s": [4]}, ([], [], [])),
        padding_values=({"x": -1.0, "s": "?"}, (None, 7, None)),
    )
    assert isinstance(batch, Pair)
    assert batch.a["x"].dtype == np.float32
    assert batch.a["x"].tolist() == [
        [[1, 1, -1], [-1, -1, -1]],
        [[-1, -1, -1], [-1, -1, -1]],
        [[2, 2, -1], [2, 2, -1]],
    ]
    assert batch.a["s"].tolist() == [["t1", "?", "?", "?"], ["?"] * 4, ["t2", "t2", "?", "?"]]
    assert batch.b[0].tolist() == [b"b", b"", b"bb"]
    assert batch.b[1].tolist() == [1, 0, 2]
    assert batch.b[2].tolist() == [True] * 3
    (batch,) = ds.padded_batch(3)
    assert batch.a["x"].shape == (3, 2, 2)
    assert batch.a["s"].tolist() == [["t1", ""], ["", ""], ["t2", "t2"]]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("items", "arguments", "words"),
    [
        ([[1, 2]], {"padded_shapes": [1]}, ["shape [2]", "[1]"]),
        ([[1, 2]], {"padded_shapes": [1, 2]}, ["2 axes", "have 1"]),
        ([[1], [1.5]], {}, ["int64 of rank 1", "float64 of rank 1"]),
        ([[1], [[1]]], {}, ["rank 1", "rank 2"]),
        ([1, b"a"], {}, ["int64", "bytes"]),
        ([[1]], {"padding_values": 1.5}, ["1.5", "int64"]),
        ([[True]], {"padding_values": 2}, ["2", "bool"]),
        ([np.array([1], np.uint8)], {"padding_values": -1}, ["-1", "uint8"]),
        ([np.array([1], np.uint8)], {"padding_values": np.int64(1)}, ["uint8"]),
        ([b"a"], {"padding_values": 0}, ["bytes"]),
        ([{"a": 1}], {"padded_shapes": {"b": []}}, ["padded_shapes", "['a']"]),
        ([(1, 2)], {"padding_values": (1,)}, ["padding_values", "tuple of 2"]),
        ([[1]], {"padded_shapes": "x"}, ["padded shape"]),
        ([{1, 2}], {}, ["set"]),
        ([ad.RaggedArray.from_rows([[1]])], {}, ["RaggedArray", "ragged_batch"]),
        ([(1, 2), (1, 2, 3)], {}, ["structure"]),
    ],
)
def test_what_cannot_be_padded_says_so(items: list[Any], arguments: dict[str, Any], words: list[str]) -> None:
    """Every misfit is an UnbatchableError in words, which names stage and element."""
    ds = D.from_generator(lambda: iter(items)).padded_batch(2, **arguments).with_options(INLINE)
    with pytest.raises(ad.UnbatchableError) as caught:
        list(ds)
    assert all(word in str(caught.value) for word in words), caught.value
    assert "padded_batch" in str(caught.value)
    assert any("element" in note for note in caught.value.__notes__)


def test_the_misfit_comes_after_the_batches_before_it() -> None:
    """Batches that are whole are delivered, then the error is raised."""
    iterator = iter(D.from_generator(lambda: [[1], [2], [3], 4]).padded_batch(1))
    assert [next(iterator).tolist() for _ in range(3)] == [[[1]], [[2]], [[3]]]
    assert next(iterator).tolist() == [4]
    iterator = iter(D.from_generator(lambda: [[1], [2], [3], 4]).padded_batch(2))
    assert next(iterator).tolist() == [[1], [2]]
    with pytest.raises(ad.UnbatchableError):
        next(iterator)


def test_ragged_leaves() -> None:
    """Rows of numbers, of byte strings, of ragged arrays; scalars are stacked; splits of either width."""
    items = [
        {
            "n": [1] * i,
            "s": [b"x"] * i,
            "r": ad.RaggedArray.from_rows([np.full(i, i), np.full(0, 0)]),
            "i": i,
            "m": np.ones((i, 2)),
        }
        for i in (2, 0, 1)
    ]
    (batch,) = D.from_generator(lambda: iter(items)).ragged_batch(3, row_splits_dtype=np.int32)
    assert batch["n"].to_list() == [[1, 1], [], [1]]
    assert batch["n"].row_splits.dtype == np.int32
    assert batch["s"].to_list() == [[b"x", b"x"], [], [b"x"]]
    assert batch["r"].to_list() == [[[2, 2], []], [[], []], [[1], []]]
    assert batch["i"].tolist() == [2, 0, 1]
    assert batch["m"].to_list() == [[[1, 1], [1, 1]], [], [[1, 1]]]
    back = list(D.from_generator(lambda: iter(items)).ragged_batch(2).unbatch())
    assert [row["n"].tolist() for row in back] == [[1, 1], [], [1]]
    assert [row["r"].to_list() for row in back] == [[[2, 2], []], [[], []], [[1], []]]
    assert [row["s"].tolist() for row in back] == [[b"x", b"x"], [], [b"x"]]


@pytest.mark.parametrize("dtype", ["O", "S1", "U1"])
def test_ragged_arrays_of_strings_with_axes_are_refused(dtype: str) -> None:
    """The innermost values of RaggedArrays in one batch are numbers, or one string each; unbatch takes any."""
    array = ad.RaggedArray(np.array([["a", "b"], ["c", "d"]], dtype), np.array([0, 1, 2]))
    ds = D.from_generator(lambda: [{"r": array}] * 2)
    with pytest.raises(ad.UnbatchableError, match="RaggedArrays of arrays of strings") as caught:
        list(ds.ragged_batch(2))
    assert caught.value.leaf == "r.values"
    assert [row["r"].tolist() for row in ds.unbatch()] == array.to_list() * 2


EMPTY_STRINGS: list[Any] = [
    ad.BytesArray.from_items([]),
    np.array([], object),
    np.array([], "S3"),
    np.array([], "U3"),
]


@pytest.mark.sampled
@pytest.mark.parametrize("executor", ["inline", "thread", "process"])
@pytest.mark.parametrize("empty", EMPTY_STRINGS)
def test_empty_arrays_of_strings(empty: Any, executor: str) -> None:
    """Batches of nothing but them are of objects, and have a shape; beside others they are of their kind."""

    def batches(*items: Any) -> tuple[Any, Any]:
        made = ad.Dataset.range(len(items)).map(
            lambda i: items[int(i)], None if executor == "inline" else 1, executor=executor
        )
        (padded,), (ragged,) = list(made.padded_batch(4)), list(made.ragged_batch(4))
        return padded, ragged

    with ad.Runtime(ad.Options(num_workers=1)):
        padded, ragged = batches(empty, empty)
        assert (padded.dtype, padded.shape) == (object, (2, 0))
        assert (ragged.dtype, ragged.shape, ragged.to_list()) == (object, (2, None), [[], []])
        assert ragged.nested_row_splits[0].tolist() == [0, 0, 0]
        for full in (np.array([b"a", b"bc"]), np.array(["a", "bc"]), np.array([b"a", b"bc"], object)):
            for items in ((empty, full), (full, empty)):
                padded, ragged = batches(*items)
                assert (padded.dtype, padded.shape) == (object, (2, 2))
                nothing = full[0][:0]
                expected = [part.tolist() or [nothing, nothing] for part in map(np.asarray, items)]
                assert padded.tolist() == expected
                assert ragged.to_list() == [np.asarray(part).tolist() for part in items]
        wide = np.empty((0, 2), empty.dtype if isinstance(empty, np.ndarray) else object)
        (both,) = ad.Dataset.range(2).map(lambda i: (wide, np.array([["a", "b"]]))[int(i)]).padded_batch(2)
        assert both.tolist() == [[["", ""]], [["a", "b"]]]


def test_known_shapes_decide_what_becomes_ragged() -> None:
    """A leaf of known shape is stacked; of an unknown one every axis becomes ragged, whatever a batch holds."""
    known = D.from_tensor_slices({"a": np.zeros((4, 2))})
    assert [batch["a"].shape for batch in known.ragged_batch(4)] == [(4, 2)]
    points = D.from_tensor_slices(Point(np.zeros((4, 2)), {"a": np.zeros((4, 3))}))
    assert [(batch.x.shape, batch.name["a"].shape) for batch in points.ragged_batch(4)] == [((4, 2), (4, 3))]
    unknown = known.map(lambda element: {"a": element["a"]})
    assert [batch["a"].ragged_rank for batch in unknown.ragged_batch(3)] == [1, 1]
    assert [batch.ragged_rank for batch in rows(1, 1).map(lambda r: r[:, None]).ragged_batch(1)] == [2, 2]


def test_batches_of_workers_are_padded() -> None:
    """Results of worker processes, arrays of uneven shape among them, are padded where they lie."""
    ds = D.range(20).map(_uneven, num_parallel_calls=2).padded_batch(6, padding_values=(-1, b""))
    ds = ds.with_options(ad.Options(num_workers=1))
    for numbers, texts in ds:
        for row, text in zip(numbers, texts, strict=True):
            assert row[row >= 0].tolist() == [int(text or b"0")] * int(text or b"0")


def _uneven(x: Any) -> Any:
    return np.full(int(x), int(x)), b"%d" % x if x else b""


@pytest.mark.parametrize("size", [0, -1])
def test_sizes(size: int) -> None:
    """Sizes below one are refused where they are written."""
    ds = D.range(3)
    for make in (
        ds.padded_batch,
        ds.ragged_batch,
        ds.window,
        ds.rebatch,
        lambda n: ds.window(1, shift=n),
        lambda n: ds.window(1, stride=n),
        lambda n: ds.rebatch([1, n]),
        lambda n: ds.group_by_window(int, lambda _, w: w, window_size=n),
        lambda n: ds.bucket_by_sequence_length(int, [1], [1, n]),
    ):
        with pytest.raises(ValueError, match="at least 1"):
            make(size)
    with pytest.raises(ValueError, match="row_splits_dtype"):
        ds.ragged_batch(1, row_splits_dtype=np.float32)


# --- batches taken apart ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([1], "scalar"),
        ([b"abc"], "scalar"),
        ([([1], [1, 2])], "different numbers of rows"),
        ([()], "without leaves"),
        ([[[1], [1, 2]]], "regular"),
    ],
)
def test_what_has_no_rows_says_so(items: list[Any], words: str) -> None:
    """An element that cannot be taken apart is an error that names it."""
    with pytest.raises(ad.UnbatchableError, match=words):
        list(D.from_generator(lambda: iter(items)).unbatch())


def test_large_rows_stay_where_they_are() -> None:
    """Rows of batches are references; batches of other sizes made of them are whole."""
    ds = D.range(50).map(lambda i: {"x": np.full(1000, i), "b": b"%d" % i}).batch(7)
    again = list(ds.unbatch())
    assert [row["x"][0] for row in again] == list(range(50))
    assert [row["b"] for row in again] == [b"%d" % i for i in range(50)]
    sizes = [len(batch["b"]) for batch in ds.rebatch([5, 9], drop_remainder=True)]
    assert sizes == [5, 9, 5, 9, 5, 9, 5]
    assert [row["b"] for row in ds.rebatch(13).unbatch()] == [b"%d" % i for i in range(50)]


# --- windows ---------------------------------------------------------------------------------------------------------


def test_windows_are_kept() -> None:
    """A window outlives its pipeline, is iterated over again, and what is written to it stays in one of them."""
    arrays = D.range(6).map(lambda i: np.full(2, i)).window(3, shift=1, drop_remainder=True)
    windows = list(arrays)
    for element in windows[0]:
        element[...] = 9
    assert [ints(window) for window in windows[:2]] == [[[i, i] for i in range(3)], [[i, i] for i in range(1, 4)]]
    assert ints(windows[2].batch(3)) == [[[2, 2], [3, 3], [4, 4]]]
    assert ints(pickle.loads(pickle.dumps(windows[3]))) == [[3, 3], [4, 4], [5, 5]]
    assert len(windows) == 4


async def test_windows_in_asyncio() -> None:
    """Windows are read by ``async for``, too."""
    found = [[int(x) async for x in window] async for window in D.range(5).window(2)]
    assert found == [[0, 1], [2, 3], [4]]


def test_windows_of_nests() -> None:
    """A nest of elements gives a nest of windows, with its types."""
    windows = list(D.range(4).map(lambda i: Pair({"x": i}, (i, b"%d" % i))).window(2))
    assert type(windows[1]) is Pair
    assert ints(windows[1].a["x"]) == [2, 3]
    assert list(windows[1].b[1]) == [b"2", b"3"]


def test_windows_of_dicts_with_other_orders_of_keys() -> None:
    """As everywhere, the first one says in which order they come; with other keys they are elements of one dataset."""
    dicts: list[Any] = [{"a": 1, "b": (2, 3)}, {"b": (4, 5), "a": 6}, {"a": 7}, {"a": 8, "b": (9, 0)}]
    first, second = D.from_generator(lambda: dicts).window(2)
    assert list(first["a"]) == [1, 6]
    assert [list(window) for window in first["b"]] == [[2, 4], [3, 5]]
    assert list(second) == dicts[2:]


def test_windows_in_functions() -> None:
    """Functions get windows: on the loop, in workers, and through shuffles."""
    ds = D.range(12).window(3)
    assert list(ds.map(lambda window: sum(int(x) for x in window))) == [3, 12, 21, 30]
    in_worker = ds.map(_total, num_parallel_calls=2).with_options(ad.Options(num_workers=1))
    assert list(in_worker) == [3, 12, 21, 30]
    assert sorted(ds.shuffle(4, seed=1).map(lambda window: sum(int(x) for x in window))) == [3, 12, 21, 30]
    assert ints(ds.interleave(lambda window: window.map(lambda x: -x), cycle_length=2)) == [
        *(0, -3, -1, -4, -2, -5, -6, -9, -7, -10, -8, -11),
    ]
    assert ints(D.range(8).window(2).window(2).flat_map(lambda w: w.flat_map(lambda v: v.batch(2)))) == [
        *([0, 1], [2, 3], [4, 5], [6, 7]),
    ]


def _total(window: Any) -> int:
    return sum(int(x) for x in window)


def _vector(x: Any) -> Any:
    return np.full(max(1, int(x)), int(x))


def test_windows_of_an_endless_dataset() -> None:
    """Nothing is read that no window needs soon."""
    ds = D.range(3).repeat().window(4, shift=3)
    assert [[int(x) for x in window] for window in ds.take(3)] == [[0, 1, 2, 0]] * 3


# --- groups ----------------------------------------------------------------------------------------------------------


def test_windows_of_groups_are_kept() -> None:
    """A window that the function keeps can be read later; one that it does not read is used up all the same."""
    kept: list[ad.Dataset] = []

    def reduce(key: int, window: ad.Dataset) -> ad.Dataset:
        kept.append(window)
        return window.take(1) if key else window.batch(10).repeat(2)

    ds = D.range(7).map(lambda i: b"%d" % i * 50).group_by_window(lambda x: len(x) % 2, reduce, window_size=4)
    list(ds.with_options(INLINE))
    assert [[len(x) for x in window] for window in kept] == [[50] * 4, [50] * 3]


def test_functions_of_groups() -> None:
    """Keys of any sign, sizes asked for once per key, datasets that have nothing to do with the window."""
    asked: list[int] = []

    def size(key: int) -> int:
        asked.append(key)
        return 2

    ds = D.range(8).group_by_window(
        lambda x: np.int64(1 - x % 3), lambda key, _: D.from_tensors(key), window_size_func=size
    )
    assert ints(ds) == [1, 0, -1, 0, 1]
    assert asked == [1, 0, -1]
    with pytest.raises(TypeError, match="integer"):
        list(D.range(3).group_by_window(lambda _: "a", lambda _, w: w, window_size=1))
    with pytest.raises(TypeError, match="group_by_window must return a Dataset"):
        list(D.range(3).group_by_window(int, lambda *_: 5, window_size=1))  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ValueError, match="window_size_func"):
        D.range(3).group_by_window(int, lambda _, w: w)
    with pytest.raises(ValueError, match="window_size_func"):
        D.range(3).group_by_window(int, lambda _, w: w, 3, lambda _: 3)


@pytest.mark.parametrize(
    ("size", "error", "message", "element"),
    [
        (lambda key: 2 // (2 - key), ZeroDivisionError, "division", 6),
        (lambda key: "a" if key else 1, TypeError, "window_size_func must return an integer, not str", 3),
        (lambda key: 2 - key, ad.PipelineError, "at least 1 element, not 0", 6),
        (lambda: 2, TypeError, "it is called with one argument, the key", 0),
    ],
)
def test_a_size_of_groups_that_fails_names_the_element(size: Any, error: Any, message: str, element: int) -> None:
    """The first one with its key, as where the other two functions fail."""
    ds = D.range(9).map(lambda x: x // 3).group_by_window(int, lambda _, w: w.batch(9), window_size_func=size)
    with pytest.raises(error, match=message) as caught:
        list(ds)
    (note,) = caught.value.__notes__
    assert note.startswith("in group_by_window(")
    assert note.endswith(f", element {element} of range")


def test_buckets() -> None:
    """Batches of similar length; what is too long, or has too many axes for its boundary, says so."""
    ds = rows(1, 5, 2, 6, 9)
    assert [batch.shape for batch in ds.bucket_by_sequence_length(len, [3, 7], [2, 2, 2])] == [(2, 2), (2, 6), (1, 9)]
    bounded = ds.bucket_by_sequence_length(len, [3, 7, 12], [2, 2, 2, 1], pad_to_bucket_boundary=True)
    assert [batch.shape for batch in bounded] == [(2, 2), (2, 6), (1, 11)]
    with pytest.raises(ValueError, match="shorter than the last boundary"):
        list(ds.bucket_by_sequence_length(len, [3, 7], [2, 2, 2], pad_to_bucket_boundary=True))
    with pytest.raises(ad.UnbatchableError, match="padded_shapes"):
        list(ds.map(lambda r: r[:, None]).bucket_by_sequence_length(len, [30], [2, 2], pad_to_bucket_boundary=True))
    wide = ds.map(lambda r: r[:, None]).bucket_by_sequence_length(
        len, [30], [5, 2], padded_shapes=[None, 3], pad_to_bucket_boundary=True
    )
    assert [batch.shape for batch in wide] == [(5, 29, 3)]
    same = ds.bucket_by_sequence_length(len, [3], [1, 1], no_padding=True)
    assert [batch.shape for batch in same] == [(1, 1), (1, 5), (1, 2), (1, 6), (1, 9)]
    for boundaries, sizes, words in (([3], [1], "one entry more"), ([3, 3], [1, 1, 1], "ascend")):
        with pytest.raises(ValueError, match=words):
            ds.bucket_by_sequence_length(len, boundaries, sizes)
    again = pickle.loads(pickle.dumps(D.range(4).map(_vector).bucket_by_sequence_length(len, [3], [2, 1])))
    assert ints(again) == [[[0], [1]], [[3, 3, 3]], [[2, 2]]]


def test_windows_larger_than_the_dataset_take_no_memory_for_what_is_missing() -> None:
    """A size, shift or stride may be any number: a window is as large as what is in it."""
    for size, shift, stride, expected in (
        (2**62, None, 1, [[0, 1, 2, 3, 4]]),
        (2**62, 2, 3, [[0, 3], [2], [4]]),
        (2**62, 2**62, 2**62, [[0]]),
        (2, 2**62, 4, [[0, 4]]),
    ):
        windows = D.range(5).window(size, shift, stride)
        assert [ints(window) for window in windows] == expected
        assert list(D.range(5).window(size, shift, stride, drop_remainder=True).take(0)) == []


def test_boundaries_do_not_pad_what_has_a_known_length() -> None:
    """Lengths that the spec tells stay as they are, also beyond the boundary, and tell which of several axes to pad."""

    def rows() -> Iterator[Any]:
        for i in (1, 2):
            yield [[i, i]] * i, {"label": [7, 8, 9], "word": "w"}

    ds = D.from_generator(
        rows,
        output_types=(np.int64, {"label": np.int64, "word": str}),
        output_shapes=((None, 2), {"label": (3,), "word": ()}),
    )
    ((values, more),) = ds.bucket_by_sequence_length(lambda r, _: len(r), [3], [2, 2], pad_to_bucket_boundary=True)
    assert values.tolist() == [[[1, 1], [0, 0]], [[2, 2], [2, 2]]]
    assert more["label"].tolist() == [[7, 8, 9]] * 2
    assert list(more["word"]) == ["w", "w"]
    beside = D.zip((D.range(1, 3).map(lambda x: (np.arange(x), x)), D.from_tensors(np.ones(3)).repeat()))
    (((padded, _), known),) = beside.bucket_by_sequence_length(
        lambda pair, _: len(pair[0]), [4], [2, 2], pad_to_bucket_boundary=True
    )
    assert padded.shape == known.shape == (2, 3)
    same = D.from_tensors(Point(np.ones(3), "a")).repeat(2)
    (points,) = same.bucket_by_sequence_length(lambda _: 1, [2], [2, 2], pad_to_bucket_boundary=True)
    assert points.x.shape == (2, 3)


# --- memory and checksums --------------------------------------------------------------------------------------------


def test_inside_a_small_memory(records: tuple[str, list[bytes]]) -> None:
    """Whatever is grouped, a limit that holds a few groups is enough."""
    path, made = records
    ds = ad.TFRecordDataset(path)
    options = ad.Options(memory_limit_bytes=8 << 20, num_workers=0, chunk_bytes=1 << 20)
    with ad.Runtime(options, pipelines=1):
        for grouped in (
            ds.window(3, shift=1).flat_map(lambda window: window.batch(3)),
            ds.window(2, shift=4, stride=2).flat_map(lambda window: window),
            ds.group_by_window(lambda r: r[0] % 3, lambda _, window: window.batch(2), window_size=5),
            ds.padded_batch(5),
            ds.ragged_batch(5),
            ds.batch(4).rebatch([3, 5]),
            ds.batch(4).unbatch(),
        ):
            count = 0
            for element in grouped:
                for record in [element] if isinstance(element, bytes) else element:
                    assert record == made[record[0]]
                    count += 1
            assert count >= 30


def test_records_are_checked_before_they_are_shown(records: tuple[str, list[bytes]]) -> None:
    """A damaged payload is an error, whatever looks at it first."""
    path = Path(records[0])
    data = bytearray(path.read_bytes())
    data[12 + 100_016 * 7] ^= 1
    path.write_bytes(data)
    ds = ad.TFRecordDataset(str(path))
    for shown in (
        ds.window(2).flat_map(lambda window: window),
        ds.group_by_window(len, lambda _, window: window, window_size=2),
        ds.padded_batch(2),
        ds.ragged_batch(2),
        ds.cache(),
        ds.cache(path.with_name("c")),
        ds.snapshot(path.with_name("s")),
        ds.flat_map(lambda record: D.from_tensors(len(record))),
    ):
        with pytest.raises(ad.CorruptRecordError) as caught:
            list(shown.with_options(INLINE))
        assert caught.value.record == 7


@pytest.mark.sampled
@pytest.mark.parametrize("executor", ["process", "thread"])
def test_functions_that_close_over_what_made_them(executor: str) -> None:
    """Inner datasets stand at one place of the plan, yet each runs its own function."""
    ds = D.range(6).group_by_window(
        lambda x: x % 2,
        lambda key, window: window.map(lambda x: int(x) + 100 * key, num_parallel_calls=1, executor=executor),
        window_size=2,
    )
    assert list(ds.with_options(ad.Options(num_workers=1))) == [0, 2, 101, 103, 4, 105]
    ds = D.range(0, 300, 100).flat_map(
        lambda i: D.range(2).map(lambda x: int(x) + int(i), num_parallel_calls=1, executor=executor).batch(2)
    )
    assert ints(ds.with_options(ad.Options(num_workers=1))) == [[0, 1], [100, 101], [200, 201]]


def test_rebatch_takes_rows_of_strings() -> None:
    """In several sizes as in one: batches of rows that are arrays of byte strings, or a BytesArray each."""
    letters = ad.Dataset.from_tensor_slices([b"a", b"", b"c", b"d", b"e", b"f"])
    for rows in (letters.batch(1).batch(1), letters.batch(2), letters.batch(1).batch(3)):
        for elements in (rows.batch(1), rows.batch(3)):
            expected = [element for batch in elements for element in np.asarray(batch).tolist()]
            for sizes in ([1, 2], [2], [1, 3, 1]):
                batches = list(elements.rebatch(sizes))
                assert [element for batch in batches for element in batch.tolist()] == expected
                assert {batch.dtype for batch in batches} == {np.dtype(object)}
    with pytest.raises(ad.UnbatchableError, match="shape"):
        list(ad.Dataset.from_generator(lambda: [[[b"a"], [b"b", b"c"]]]).unbatch().rebatch([2, 1]))


@pytest.mark.parametrize("shape", [(3, 0), (3, 0, 2), (3, 2, 0), (3, 1, 2, 0)])
def test_ragged_batches_keep_axes_of_length_0(shape: tuple[int, ...]) -> None:
    """Known axes are kept, whatever their lengths; where nothing is known of them, all are ragged."""
    known = D.from_tensor_slices(np.zeros(shape))
    unknown = D.from_generator(lambda: iter(np.zeros(shape)))
    for elements in (known, unknown):
        (whole,) = elements.batch(2).ragged_batch(2)
        assert whole.tolist() == [np.zeros((2, *shape[1:])).tolist(), np.zeros((1, *shape[1:])).tolist()]
        assert [part.tolist() for part in elements.batch(2).ragged_batch(2).unbatch()] == whole.tolist()
    (whole,) = known.batch(2).ragged_batch(2)
    assert whole.flat_values.shape == shape
