from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncdata as ad
from tests.samples import samples


@settings(max_examples=samples(40, 1000), deadline=None)
@given(
    texts=st.lists(st.text("aB c.\n", max_size=12), min_size=1, max_size=6),
    ngrams=st.sampled_from([None, 2, [3]]),
    mode=st.sampled_from(["int", "count", "multi_hot", "one_hot"]),
    length=st.sampled_from([None, 1, 4]),
    ragged=st.booleans(),
)
def test_a_text_has_its_row_in_any_company(
    texts: list[str], ngrams: Any, mode: str, length: int | None, ragged: bool
) -> None:
    """A batch gives what its texts give one by one, apart from the padding to the longest."""
    more: dict[str, Any] = {"output_sequence_length": length, "ragged": ragged} if mode == "int" else {}
    vectorize = ad.TextVectorize(["a", "b", "c", "a b"], ngrams=ngrams, output_mode=mode, **more)
    rows = vectorize(ad.BytesArray.from_items(texts))
    assert len(rows) == len(texts)
    for text, row in zip(texts, rows, strict=True):
        alone = vectorize(text)
        np.testing.assert_array_equal(row[: len(alone)], alone)
        assert row.dtype == alone.dtype
        assert mode != "int" or not row[len(alone) :].any()
        if length is not None and more:
            assert len(alone) <= length if ragged else len(alone) == length


def test_words_are_learned_from_many_shapes() -> None:
    """Single texts, batches of str, columns of bytes: the same vocabulary."""
    texts = ["The cat, the hat!", "a cat", ""]
    ds = ad.Dataset.from_tensor_slices(texts)
    learner = ad.TextVocabulary(5, output_mode="tf_idf")
    expected = ad.adapt(ds, learner)
    assert expected.vocabulary == ["the", "cat", "hat", "a"]
    assert ad.adapt(ds.batch(2), learner) == expected
    column = np.array([[text.encode()] for text in texts], object)
    assert ad.adapt(ad.Dataset.from_generator(lambda: iter([column])), learner) == expected


def test_specs_are_true() -> None:
    """What is announced of the result is so."""
    texts = ad.Dataset.from_tensor_slices(["a b", "b", "c c c"]).batch(3, drop_remainder=True)
    for mode in ("int", "count", "tf_idf", "one_hot"):
        weights = [1.0] if mode == "tf_idf" else None
        vectorize = ad.TextVectorize(["b"], output_mode=mode, idf_weights=weights)
        spec, found = texts.map(vectorize).element_spec, next(iter(texts.map(vectorize)))
        if mode == "one_hot":
            assert spec is None
        else:
            assert (spec.dtype, spec.shape[0], found.ndim) == (found.dtype, 3, 2)
            assert spec.shape[1] in (None, found.shape[1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ad.TextVectorize(["a"], standardize="upper"), "standardize"),
        (lambda: ad.TextVectorize(["a"], split="words"), "split"),
        (lambda: ad.TextVectorize(["a"], ngrams=0), "ngrams"),
        (lambda: ad.TextVectorize([1, 2]), "mask_token must be a text"),  # type: ignore[list-item]  # the law
        (lambda: ad.TextVectorize(["a"], output_mode="count", ragged=True), "ragged"),
        (lambda: ad.TextVectorize(["a"])([1]), "texts are needed"),
        (lambda: ad.TextVectorize(["a"])([["a", "b"]]), "batch of texts"),
        (lambda: ad.TextVectorize(["a"])(ad.RaggedArray.from_rows([["a"], []])), "ragged rows"),
        (lambda: ad.TextVocabulary(2), "no place"),
        (lambda: ad.TextVocabulary(output_mode="count", output_sequence_length=3), "ragged"),
    ],
)
def test_what_has_no_meaning_is_refused(call: Any, message: str) -> None:
    """The message says what it is about."""
    with pytest.raises((TypeError, ValueError), match=message):
        call()
