"""What users meet when they call something in the wrong way: the message says what to do."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import asyncdata as ad

D: Any = ad.Dataset  # what is called in the wrong way here has types
EXECUTORS: list[dict[str, Any]] = [{}, {"executor": "thread", "num_parallel_calls": 1}]


class Pair(NamedTuple):
    """Is one argument."""

    a: Any
    b: Any


DICTS = D.from_tensor_slices({"a": [1, 2], "b": [2, 3]})
PAIRS = D.from_tensor_slices(Pair(a=[1], b=[2]))


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda: D.range(2).scan(0, lambda x: (x, x)), "called with two arguments, the state and the element"),
        (
            lambda: D.range(2).group_by_window(lambda _: 0, lambda window: window, window_size=2),
            "called with two arguments, the key and the Dataset of its window",
        ),
        (
            lambda: D.zip(D.range(2), D.range(2)).map(lambda x: x),
            "make the function take 2, or *items",
        ),
        (
            lambda: DICTS.filter(lambda a, b: a < b),
            "one, and look up the values in it",
        ),
        (
            lambda: PAIRS.filter(lambda a, b: a < b),
            "one, and use its fields",
        ),
        (lambda: D.range(2).filter(lambda a, b: a < b), "missing 1 required positional argument: 'b'"),
        (lambda: D.range(2).filter(lambda: True), "takes 0 positional arguments but 1 was given"),
    ],
)
def test_functions_that_take_other_arguments(run: Callable[[], Any], message: str) -> None:
    """The error says what they are called with, and nothing that is not so."""
    with pytest.raises(TypeError) as caught:
        list(run())
    assert str(caught.value).endswith(message)


@pytest.mark.parametrize("settings", EXECUTORS)
def test_maps_that_take_other_arguments(settings: dict[str, Any]) -> None:
    """Wherever they run."""
    with pytest.raises(TypeError, match="'rng'; map passes a random generator as rng if it has the argument rng=True"):
        list(D.range(2).map(lambda x, rng: x + rng.random(), **settings))
    with pytest.raises(TypeError, match="a dict is one argument: make the function take one"):
        list(DICTS.map(lambda a, b: a + b, **settings))


def test_functions_that_fail_by_themselves_keep_their_words() -> None:
    """A TypeError from inside of the function is not about its arguments."""

    def wrong(state: int, element: int) -> Any:
        raise TypeError(f"{state} {element}")

    with pytest.raises(TypeError) as caught:
        list(D.range(2).scan(0, wrong))
    assert str(caught.value) == "0 0"


def test_missing_features_show_what_there_is() -> None:
    """In an Example, a batch of them, and a SequenceExample; features without a value are missing."""
    record = ad.serialize_example({"label": 1, "x": 2.0, "empty": None})
    parse = ad.parse_example({"labl": ad.FixedLenFeature((), int)})
    with pytest.raises(ad.CorruptRecordError, match=r"'labl' .* is missing; the record has 'label', 'x'$"):
        parse(record)
    with pytest.raises(ad.CorruptRecordError, match=r"record 0 of the 2 .* the record has 'label', 'x'$"):
        parse([record, record])
    with pytest.raises(ad.CorruptRecordError, match="is missing; the record has no features"):
        parse(b"")
    many = ad.serialize_example({f"f{number}": number for number in range(30)})
    with pytest.raises(ad.CorruptRecordError, match=", …"):
        parse(many)
    sequence = ad.serialize_sequence_example({"id": 1}, {"words": [b"a", b"b"]})
    steps = ad.parse_sequence_example({}, {"word": ad.FixedLenSequenceFeature((), bytes)})
    with pytest.raises(ad.CorruptRecordError, match=r"sequence feature 'word' .* is missing; the record has 'words'$"):
        steps(sequence)


def test_open_files_are_no_names(tmp_path: Path) -> None:
    """Their lines are not taken for names."""
    path = tmp_path / "a.csv"
    path.write_text("x,y\n")
    with path.open() as text, path.open("rb") as binary:
        makers: list[Any] = [ad.TextLineDataset, ad.TFRecordDataset, D.list_files]
        for make in makers:
            for given in (text, binary, [text], io.BytesIO()):
                with pytest.raises(TypeError, match="pass the file's name, not an open file"):
                    make(given)


@pytest.mark.parametrize("given", [(), ([1, 2],)])
def test_a_dataset_is_made_by_a_constructor(given: tuple[Any, ...]) -> None:
    """Nobody has to know what a plan is."""
    with pytest.raises(TypeError, match=r"made by a constructor, such as Dataset\.from_tensor_slices"):
        D(*given)


def test_rows_of_scalars() -> None:
    """The step that is named is the one that was written."""
    with pytest.raises(ad.UnbatchableError, match="every leaf of the elements must have a first axis") as caught:
        list(D.range(3).rebatch(2))
    assert "unbatch" not in str(caught.value)


def test_values_that_no_example_holds() -> None:
    """The message names all that it could be."""
    with pytest.raises(TypeError, match=r"feature 'a': expected bytes, str, numbers, .*, not an object$"):
        ad.serialize_example({"a": object()})
    with pytest.raises(TypeError, match=r"expected bytes or str like the first item, not an int$"):
        ad.serialize_example({"a": [b"x", 3]})


def test_a_writer_names_the_path_that_it_was_given(tmp_path: Path) -> None:
    """And not the hidden file beside it."""
    path = tmp_path / "no" / "x"
    with pytest.raises(FileNotFoundError) as caught:
        ad.TFRecordWriter(path)
    assert caught.value.filename == str(path)
    assert "partial" not in str(caught.value)


@pytest.mark.parametrize(("url", "nearest"), [("gss://x/y", "'gs'"), ("htps://x/y", "'https'")])
def test_unknown_schemes_name_the_nearest(url: str, nearest: str) -> None:
    """As the keys of ``Options.storage`` do."""
    with pytest.raises(ad.UnsupportedURLError, match=f"no backend for .*; did you mean {nearest}"):
        list(ad.TextLineDataset(url))


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9", 3, "localhost"])
@pytest.mark.parametrize("scheme", ["gs", "s3", "az"])
def test_endpoints_are_urls(scheme: str, endpoint: object) -> None:
    """The error names the option, and not its value."""
    options = ad.Options(storage={scheme: {"endpoint_url": endpoint}})
    with pytest.raises(ValueError, match=rf"^endpoint_url in storage\['{scheme}'\] must be a URL") as caught:
        D.range(1).with_options(options)
    assert str(endpoint) not in str(caught.value).replace("'http://127.0.0.1:4443'", "").replace("'s3'", "")


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("{}", "it has no 'type'"),
        ("hush", "it is not JSON"),
        ('{"type": "hush"}', "it is not what"),
        ('{"type": "service_account", "private_key": "hush"}', "missing fields"),
    ],
)
def test_credentials_files_that_cannot_be_used(tmp_path: Path, content: str, fault: str) -> None:
    """The error says what is wrong with the file, without a word of what is in it."""
    path = tmp_path / "credentials.json"
    path.write_text(content)
    options = ad.Options(storage={"gs": {"token": str(path)}})
    with pytest.raises(ad.AccessDeniedError, match=f"option 'token' names cannot be used: {fault}") as caught:
        list(ad.TextLineDataset("gs://b/x").with_options(options))
    assert "hush" not in str(caught.value)
