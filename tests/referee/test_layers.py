"""Keras with TensorFlow as the referee of learned preprocessing: it learns and computes the same of the same data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import asyncdata as ad
from tests.referee.process import Referee
from tests.samples import samples

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

Batches = list[Any]


def written(value: Any) -> dict[str, Any]:
    """A leaf as JSON can hold it."""
    if isinstance(value, ad.RaggedArray):
        rows = value.to_list()
        if isinstance(value.flat_values, ad.BytesArray):
            return {"dtype": "bytes", "rows": [[item.hex() for item in row] for row in rows]}
        return {"dtype": value.dtype.name, "rows": rows}
    array = np.asarray(value)
    if array.dtype == object:
        return {"dtype": "bytes", "shape": list(array.shape), "values": [item.hex() for item in array.ravel()]}
    return {"dtype": array.dtype.name, "shape": list(array.shape), "values": array.ravel().tolist()}


def ask(referee: Referee, layer: str, said: dict[str, Any], batches: Batches, inputs: Batches) -> dict[str, Any]:
    """What the layer learns of the batches, and makes of the inputs."""
    question = {
        "layer": layer,
        "arguments": said,
        "adapt": list(map(written, batches)),
        "inputs": list(map(written, inputs)),
    }
    found: dict[str, Any] = referee.ask("tf_layers", question)
    return found


def check(function: Any, inputs: Batches, outputs: list[Any]) -> None:
    """The function makes of the inputs what the layer made: the same numbers, shapes and dtypes, or an error."""
    for leaf, expected in zip(inputs, outputs, strict=True):
        if "error" in expected:
            with pytest.raises(ValueError, match=r"."):
                function(leaf)
            continue
        found = function(leaf)
        assert found.dtype.name == expected["dtype"]
        if "rows" in expected:
            assert found.to_list() == expected["rows"]
        else:
            assert list(found.shape) == expected["shape"]
            np.testing.assert_allclose(found.ravel(), expected["values"], rtol=2e-4, atol=1e-5)


def dataset(batches: Batches) -> ad.Dataset:
    """A dataset of these batches."""
    return ad.Dataset.from_generator(lambda: iter(batches))


# TensorFlow takes subnormal numbers for 0, and such a number may lie between two of these.
FLOATS = st.floats(-1000, 1000, width=32).map(lambda value: value if abs(value) > 1e-30 else 0.0)


@st.composite
def batches_of_numbers(draw: st.DrawFn) -> Batches:
    """Batches of one to three axes, of any dtype, of different sizes."""
    inner = draw(st.sampled_from([(3,), (1,), (2, 3), (2, 1)]))
    dtype = draw(st.sampled_from([np.float32, np.float64, np.int32, np.int64, np.uint8]))
    values = st.integers(0, 255) if dtype not in (np.float32, np.float64) else FLOATS
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    return [draw(arrays.arrays(dtype, (size, *inner), elements=values)) for size in sizes]


@settings(max_examples=samples(15, 300), deadline=None)
@given(batches=batches_of_numbers(), axis=st.sampled_from([-1, None, (-1,), (-2, -1), (-2,)]), invert=st.booleans())
def test_normalization_is_keras(referee: Referee, batches: Batches, axis: Any, invert: bool) -> None:
    """Mean, variance and what is made of them; the layer of `keras_arguments` computes the same."""
    deepest = max([-axis] if isinstance(axis, int) else [-place for place in axis or (0,)])
    learner = ad.Normalization(axis, invert=invert)
    if deepest >= batches[0].ndim:
        with pytest.raises(ValueError, match="batch"):
            ad.adapt(dataset(batches), learner)
        return
    function = ad.adapt(dataset(batches), learner)
    found = ask(referee, "Normalization", {"axis": axis, "invert": invert}, batches, batches)
    for mine, theirs in zip((function.mean, function.variance), found["learned"], strict=True):
        assert list(mine.shape) == theirs["shape"]
        np.testing.assert_allclose(mine.ravel(), theirs["values"], rtol=1e-3, atol=2e-2)
    exact = ask(referee, function.keras_layer, function.keras_arguments(), [], batches)
    check(function, batches, exact["outputs"])


WORDS = [b"a", b"b", b"ab", b"[UNK]", b"", b"mask", "größe".encode(), b"x" * 17, b"y" * 40, b"z" * 150, b"-1", b"7"]
NUMBERS = [0, 1, 2, 7, -1, -8, 1 << 40, -(1 << 62)]


@st.composite
def batches_of_tokens(draw: st.DrawFn, tokens: list[Any], *, flat: bool = True) -> Batches:
    """Batches of one axis, of two, or of rows of different lengths."""
    token = st.sampled_from(tokens)
    kind = draw(st.sampled_from(["flat", "table", "column", "ragged"] if flat else ["table", "column", "ragged"]))
    width = {"table": 3, "column": 1}.get(kind, 1)
    batches: Batches = []
    for _ in range(draw(st.integers(1, 3))):
        rows = draw(st.lists(st.lists(token, min_size=width, max_size=width), min_size=1, max_size=5))
        if kind == "ragged":
            uneven = draw(st.lists(st.lists(token, max_size=4), min_size=1, max_size=5).filter(any))
            batches.append(ad.RaggedArray.from_rows(uneven))
        elif kind == "flat":
            items = [row[0] for row in rows]
            batches.append(ad.BytesArray.from_items(items) if isinstance(items[0], bytes) else np.array(items))
        else:
            batches.append(np.array(rows, object if isinstance(rows[0][0], bytes) else np.int64))
    return batches


@settings(max_examples=samples(40, 800), deadline=None)
@given(data=st.data(), text=st.booleans(), mode=st.sampled_from(["int", "one_hot", "multi_hot", "count", "tf_idf"]))
def test_lookup_is_keras(referee: Referee, data: st.DataObject, text: bool, mode: str) -> None:
    """Vocabularies with their ties, and indices and vectors of known, unknown and masked tokens."""
    tokens: list[Any] = WORDS if text else NUMBERS
    learn = data.draw(batches_of_tokens(tokens[:8]))
    inputs = [batch for _ in range(2) for batch in data.draw(batches_of_tokens(tokens))]
    said: dict[str, Any] = {
        "num_oov_indices": data.draw(st.integers(0, 3)),
        "mask_token": data.draw(st.sampled_from([None, tokens[1].decode() if text else 2])),
        "output_mode": mode,
        "salt": data.draw(st.sampled_from([None, 5, [133, 137]])),
    }
    most = data.draw(st.sampled_from([None, 6, 7, 30]))
    if mode == "one_hot":
        inputs = [leaf for leaf in inputs if not isinstance(leaf, ad.RaggedArray)]
    function = ad.adapt(dataset(learn), ad.Vocabulary(most, **said))
    layer = "StringLookup" if text else "IntegerLookup"
    by_hash = {"oov_method": "farmhash"} if said["salt"] is not None and not text else {}
    found = ask(referee, layer, {"max_tokens": most, **said, **by_hash}, learn, inputs)
    if "error" in found:
        assert not function.vocabulary, found  # Keras makes no table of nothing
        return
    learned = [item.encode().hex() if isinstance(item, str) else item for item in function.vocabulary]
    assert found["learned"][function.depth - len(learned) :] == learned
    check(function, inputs, found["outputs"])
    if function.vocabulary:
        assert function.keras_layer == layer
        exact = ask(referee, layer, function.keras_arguments(), [], inputs)
        check(function, inputs, exact["outputs"])
    if mode != "tf_idf":
        named = ad.Lookup(["[UNK]" if text else -1, *function.vocabulary], **said)
        exact = ask(referee, layer, named.keras_arguments(), [], inputs)
        check(named, inputs, exact["outputs"])


@settings(max_examples=samples(30, 500), deadline=None)
@given(
    batches=batches_of_numbers(),
    bins=st.integers(2, 9),
    mode=st.sampled_from(["int", "one_hot", "multi_hot", "count"]),
)
def test_quantiles_are_keras(referee: Referee, batches: Batches, bins: int, mode: str) -> None:
    """Boundaries are those that Keras finds when it drops nothing; bins and vectors are the same."""
    batches = [batch.reshape(len(batch), -1) for batch in batches]
    function = ad.adapt(dataset(batches), ad.Quantiles(bins, output_mode=mode))
    said = {"num_bins": bins, "epsilon": 1e-6, "output_mode": mode}
    found = ask(referee, "Discretization", said, batches, [])
    np.testing.assert_allclose(function.boundaries, found["learned"][: bins - 1], rtol=1e-5, atol=5e-3)
    inputs = [*batches, *(batch[0] for batch in batches), np.array(function.boundaries, np.float32)]
    exact = ask(referee, function.keras_layer, function.keras_arguments(), [], inputs)
    check(function, inputs, exact["outputs"])


@settings(max_examples=samples(40, 500), deadline=None)
@given(
    data=st.data(),
    text=st.booleans(),
    mode=st.sampled_from(["int", "one_hot", "multi_hot", "count"]),
    salt=st.sampled_from([None, 9, [1, -2]]),
    bins=st.sampled_from([1, 2, 7, 1000]),
)
def test_hashes_are_keras(referee: Referee, data: st.DataObject, text: bool, mode: str, salt: Any, bins: int) -> None:
    """Texts of every class of lengths, integers and floats, masks."""
    long = st.binary(max_size=200)
    inputs = data.draw(batches_of_tokens([*WORDS, *data.draw(st.lists(long, max_size=5))] if text else NUMBERS))
    inputs = [leaf for leaf in inputs if not isinstance(leaf, ad.RaggedArray) or mode == "int"]
    if not text and data.draw(st.booleans()):
        inputs = [np.asarray(leaf, np.float32) for leaf in inputs if not isinstance(leaf, ad.RaggedArray)]
    mask = data.draw(st.sampled_from([None, "ab" if text else 2]))
    function = ad.HashToBins(bins, mask_value=mask, salt=salt, output_mode=mode)
    found = ask(referee, function.keras_layer, function.keras_arguments(), [], inputs)
    check(function, inputs, found["outputs"])


TEXTS = st.text("aB ä.,'[-]\n\t\x0b\x1cé#1", max_size=20).map(str.encode)


@settings(max_examples=samples(40, 600), deadline=None)
@given(
    data=st.data(),
    standardize=st.sampled_from([None, "lower", "strip_punctuation", "lower_and_strip_punctuation"]),
    split=st.sampled_from(["whitespace", "character"]),
    ngrams=st.sampled_from([None, 1, 2, 3, (2,), (3, 1)]),
    mode=st.sampled_from(["int", "multi_hot", "count", "tf_idf"]),
)
def test_texts_are_keras(
    referee: Referee, data: st.DataObject, standardize: str | None, split: str, ngrams: Any, mode: str
) -> None:
    """Words, their n-grams and their order; rows that are cut, padded or ragged; vectors and their weights."""
    texts = st.lists(TEXTS, min_size=1, max_size=5).map(ad.BytesArray.from_items)
    learn = data.draw(st.lists(texts, min_size=1, max_size=3))
    inputs: Batches = [*learn, data.draw(texts), np.array([[b"a B"], [b"#"]], object)]
    said: dict[str, Any] = {"standardize": standardize, "split": split, "ngrams": ngrams, "output_mode": mode}
    if mode == "int":
        said["output_sequence_length"] = data.draw(st.sampled_from([None, 1, 5]))
        said["ragged"] = data.draw(st.booleans())
    most = data.draw(st.sampled_from([None, 3, 6]))
    function = ad.adapt(dataset(learn), ad.TextVocabulary(most, **said))
    if not function.vocabulary:
        return  # Keras makes no table of nothing
    found = ask(referee, "TextVectorization", {"max_tokens": most, **said}, learn, inputs)
    words = [word.encode().hex() for word in function.vocabulary]
    assert found["learned"][-len(words) :] == words
    check(function, inputs, found["outputs"])
    exact = ask(referee, function.keras_layer, function.keras_arguments(), [], inputs)
    check(function, inputs, exact["outputs"])
