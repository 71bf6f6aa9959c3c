"""Every public constructor and method, with rubbish for every argument."""

from __future__ import annotations

import contextlib
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata import arguments

D = ad.Dataset
FIVE = D.range(5)


class Odd:
    """Nothing that any argument wants."""


def odd() -> Any:
    """One of them."""
    return Odd()


def rubbish() -> dict[str, Any]:
    """Values of every kind; some arguments take some of them."""
    return {
        "None": None,
        "text": "rubbish",
        "bytes": b"rubbish",
        "fraction": 1.5,
        "NaN": float("nan"),
        "negative": -7,
        "zero": 0,
        "huge": 2**70,
        "object": Odd(),
        "mixed": [1, "a"],
        "empty": [],
        "dict": {"a": 1},
        "set": {1},
        "array": np.arange(3),
        "true": True,
        "function": lambda: 0,
        "type": int,
        "number": np.int64(3),
        "generator": (i for i in range(2)),
        "numpy fraction": np.float32(2.5),
        "complex": 1j,
        "dataset": FIVE,
    }


FITTING: dict[str, Any] = {
    "args": (),
    "batch_size": 2,
    "bucket_batch_sizes": [1, 1],
    "bucket_boundaries": [2],
    "buffer_size": 2,
    "choice_dataset": FIVE,
    "class_func": bool,
    "count": 2,
    "cycle_length": 2,
    "dataset": FIVE,
    "datasets": [FIVE, FIVE],
    "directory": "{folder}",
    "dtype": np.int64,
    "element_length_func": len,
    "expected_cardinality": 5,
    "file_pattern": "/x*",
    "filenames": "/x",
    "generator": lambda: iter([1]),
    "index": 0,
    "initial_state": 0,
    "key_func": bool,
    "map_func": bool,
    "num_shards": 2,
    "options": ad.Options(),
    "path": "{folder}/snapshot",
    "predicate": bool,
    "record_bytes": 3,
    "record_defaults": [1],
    "reduce_func": lambda _, window: window,
    "scan_func": lambda state, x: (state, x),
    "shape": (),
    "size": 2,
    "spec": {"x": ad.VarLenFeature(int)},
    "start": 3,
    "target": "{folder}/records",
    "target_dist": [0.5, 0.5],
    "tensors": [1, 2],
    "transformation_func": bool,
    "url": "/x",
}
"""Arguments that nothing is wrong with."""

BESIDES: dict[str, dict[str, Any]] = {
    "group_by_window": {"window_size": 2},
    "image_dataset_from_directory": {"verbose": False},
    "parse_sequence_example": {"context_features": {"x": ad.VarLenFeature(int)}},
    "text_dataset_from_directory": {"verbose": False},
}
"""What a call needs although the argument may be left out."""

FUNCTIONS = [
    *("ArraySpec", "BytesSpec", "ErrorPolicy", "HedgeOptions", "Options", "RetryOptions", "Runtime", "StrSpec"),
    *("CsvDataset", "FileDataset", "FixedLengthRecordDataset", "JsonLinesDataset", "ParquetDataset"),
    *("FixedLenFeature", "FixedLenSequenceFeature", "RaggedFeature", "TFRecordDataset", "TFRecordWriter"),
    *("TarDataset", "TextLineDataset", "TimeoutOptions", "VarLenFeature", "decode_image"),
    *("image_dataset_from_directory", "parse_example", "parse_sequence_example", "text_dataset_from_directory"),
]
RUN_AT_ONCE = {"apply": "transformation_func", "reduce": "reduce_func"}
"""Methods that call the function which they are given; what it raises is its own."""

COUNTS = {
    *("batch_size", "block_length", "buffer_output_elements", "buffer_size", "count", "cycle_length", "num_shards"),
    *("num_parallel_batches", "num_parallel_calls", "num_parallel_reads", "prefetch_input_elements", "record_bytes"),
    *("shift", "size", "stride", "window_size"),
}
"""Arguments for which only whole numbers will do."""


def methods() -> list[str]:
    """The constructors and transformations of Dataset."""
    names = [name for name in dir(D) if not name.startswith("_")]
    return [name for name in names if name != "zip" and callable(inspect.getattr_static(D, name, None))]


def calls(name: str, folder: Path) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Every call of one function in which one argument is rubbish."""
    function: Any = getattr(ad, name) if name in FUNCTIONS else getattr(D, name)
    of_dataset = name not in FUNCTIONS and not isinstance(inspect.getattr_static(D, name), staticmethod)
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    fitting = {p.name: FITTING[p.name] for p in parameters if p.default is p.empty} | BESIDES.get(name, {})
    for key, value in fitting.items():
        if isinstance(value, str):
            fitting[key] = value.format(folder=folder)
    for parameter in parameters:
        for kind, value in rubbish().items():
            if parameter.name == "window_size_func":
                fitting.pop("window_size", None)
            given = {**fitting, parameter.name: value}
            yield parameter.name, kind, partial(function, *(FIVE,) * of_dataset, **given)


@pytest.mark.sampled
@pytest.mark.parametrize("name", [*FUNCTIONS, *methods()])
def test_rubbish_is_refused_at_once_by_the_name_of_the_argument(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call succeeds, or is a TypeError or ValueError that names the argument; no count is a fraction or a text."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "class").mkdir()
    for suffix in ("png", "txt"):
        (tmp_path / "class" / f"0.{suffix}").write_bytes(b"")
    for argument, kind, call in calls(name, tmp_path):
        context = f"{name}({argument}={kind})"
        refused: Exception | None = None
        try:
            made = call()
            if isinstance(made, D):
                made.cardinality()
                with contextlib.suppress(ad.StorageError):  # a Parquet file that is not there
                    repr(made.element_spec)
        except ad.ObjectNotFoundError:
            assert argument == "directory", context
        except (TypeError, ValueError) as error:
            refused = error
        else:
            if inspect.iscoroutine(made):
                made.close()
            if isinstance(made, ad.TFRecordWriter):
                made.discard()
            several = name in ("rebatch", "decode_image")
            whole = kind in ("number", "huge", "negative", "zero", "None") or (several and kind in ("array", "empty"))
            assert argument not in COUNTS or whole, context
            assert argument != "deterministic" or kind in ("None", "zero", "true"), context
        if refused is not None and (RUN_AT_ONCE.get(name) != argument or kind not in ("function", "type")):
            assert argument in str(refused), f"{context}: {refused!r}"


@pytest.mark.parametrize("value", ["secret", b"secret", ["secret"], {"gs": "secret"}, {"gs": ["secret"]}, {5: {}}])
def test_storage_options_of_another_form_are_refused_and_not_shown(value: Any) -> None:
    """There may be a secret in them."""
    with pytest.raises(TypeError, match="storage") as caught:
        ad.Options(storage=value)
    assert "secret" not in str(caught.value)
    with pytest.raises(ValueError, match="URL scheme"):
        ad.Options(storage={"gs://bucket": {}})


def test_integers_of_any_kind_are_integers() -> None:
    """What says that it is a whole number is one: numpy's, arrays without axes, and others' with ``__index__``."""

    class Three:
        def __index__(self) -> int:
            return 3

    three: Any
    for three in (3, np.int8(3), np.uint64(3), np.array(3), Three()):
        assert [batch.tolist() for batch in FIVE.batch(three)] == [[0, 1, 2], [3, 4]]
        assert arguments.integers("x", [three]) == (3,)
    with pytest.raises(ValueError, match="64 bits"):
        FIVE.take(2**63)
    assert len(list(FIVE.take(2**63 - 1).skip(-(2**63) + 1))) == 0
    assert arguments.shown("x" * 100) == "'" + "x" * 59 + "… (str)"
    assert [arguments.shown(value) for value in (None, Odd(), iter(()))] == ["None", "an Odd", "a tuple_iterator"]


@pytest.mark.parametrize(("path", "error"), [("", ValueError), ("gs://bucket/folder", ad.UnsupportedURLError)])
def test_a_snapshot_needs_a_local_directory(path: str, error: type[Exception]) -> None:
    """An empty name is not the directory that the program happens to run in."""
    with pytest.raises(error, match="snapshot"):
        FIVE.snapshot(path)


def test_file_names_may_be_paths(tmp_path: Path) -> None:
    """Wherever a URL is taken, also in lists and as patterns."""
    (tmp_path / "a.txt").write_bytes(b"one\n")
    path = tmp_path / "a.txt"
    for names in (path, [path], str(path), [os.fsencode(path)], D.list_files(tmp_path / "*.txt"), D.list_files([path])):
        assert list(ad.TextLineDataset(names)) == [b"one"]  # type: ignore[arg-type]  # bytes are tf.data's


@pytest.mark.parametrize("patterns", ["", [""], ["a", ""], ["", "a"]])
def test_an_empty_pattern_is_an_empty_url(patterns: Any) -> None:
    """It is refused where it is written, alone and beside others."""
    with pytest.raises(ad.UnsupportedURLError, match="file_pattern is an empty URL"):
        D.list_files(patterns)


@pytest.mark.parametrize("record", [5, "text", None, [1, 2]])
def test_a_writer_takes_bytes_alone(record: Any, tmp_path: Path) -> None:
    """A number is not so many zeros, a text is not encoded unasked."""
    with ad.TFRecordWriter(tmp_path / "x") as writer:
        with pytest.raises(TypeError, match="a record must be bytes"):
            writer.write(record)
        writer.write(np.arange(2, dtype=np.uint8))  # type: ignore[arg-type]  # any buffer will do
    assert list(ad.TFRecordDataset(tmp_path / "x")) == [b"\0\1"]


@pytest.mark.parametrize(
    ("target", "compression", "message"),
    [("gs://bucket/x", None, "local path"), (5, None, "target"), ("x", "ZSTD", "compression_type")],
)
def test_a_writer_refuses_what_it_cannot_write(target: Any, compression: str | None, message: str) -> None:
    """Before there is a file."""
    with pytest.raises((TypeError, ValueError), match=message):
        ad.TFRecordWriter(target, compression)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FIVE.group_by_window(lambda _: "a", lambda _, window: window, 2), "key_func must return an integer"),
        (lambda: FIVE.group_by_window(bool, lambda _, window: window, None, lambda _: 1.5), "window_size_func must"),
        (lambda: FIVE.bucket_by_sequence_length(lambda _: "a", [1], [1, 1]), "element_length_func must return"),
        (lambda: FIVE.rejection_resample(lambda _: 0.5, [1, 1], [1, 2]), "class_func must return an integer"),
        (lambda: FIVE.scan(0, lambda _, x: x), r"must return \(new_state, output\)"),
        (lambda: FIVE.padded_batch(2, [1.5]), "a padded shape"),
        (lambda: FIVE.map(lambda _: Odd, 2).map(lambda _: (letter for letter in "ab"), 2), "read only once"),
        (lambda: FIVE.map(lambda _: threading.Lock(), 2), "cannot be sent"),
        (lambda: D.from_generator(lambda: 5), "generator function must return an iterable, not an int"),
        (lambda: D.sample_from_datasets([FIVE, FIVE], D.from_tensor_slices(["a"])), "arrays of 2 numbers, not a str"),
        (lambda: D.choose_from_datasets([FIVE], D.from_tensor_slices([0.5])), "must give integers"),
        (lambda: FIVE.flat_map(lambda _: odd()), "must return a Dataset, not an Odd"),
    ],
)
def test_what_functions_and_datasets_must_give_is_said(make: Callable[[], ad.Dataset], message: str) -> None:
    """A wrong answer of a function, or of a dataset of choices, is an error that says what is wanted."""
    with pytest.raises((TypeError, ad.PipelineError), match=message):
        list(make().with_options(ad.Options(num_workers=1, memory_limit_bytes=32 << 20)))


@pytest.mark.parametrize(
    "make",
    [lambda n: FIVE.interleave(D.from_tensors, n), lambda n: ad.TFRecordDataset(["a", "b"], num_parallel_reads=n)],
)
def test_more_datasets_in_turn_than_memory_is_for_are_refused_at_once(make: Callable[[int], D]) -> None:
    """Every one of them costs memory before the first is read."""
    make(2**20)
    with pytest.raises(ValueError, match=r"(cycle_length|num_parallel_reads) must be at most 1048576, not 1048577"):
        make(2**20 + 1)


def test_numbers_beyond_counting() -> None:
    """A range that Python cannot count is refused where it is made, not the longest that it can count."""
    for stop, step in ((2**63 - 1, 1), (1 - 2**63, -1)):
        assert len(list(D.range(0, stop, step).take(3))) == 3
    for start, stop, step in ((-1, 2**63 - 1, 1), (2**62, -(2**63), -1)):
        with pytest.raises(ValueError, match="too long to be counted"):
            D.range(start, stop, step)
