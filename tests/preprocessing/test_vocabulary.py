from __future__ import annotations

import functools
import io
import math
import pickle
import tempfile
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncdata as ad
from asyncdata.preprocessing.token_counts import TokenCounts
from asyncdata.preprocessing.token_leaf import tokens_of
from asyncdata.preprocessing.vocabulary import MEMORY_BYTES, Vocabulary
from tests.samples import samples

TEXTS = st.binary(max_size=3) | st.text("aä", max_size=2).map(str.encode)
NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-3, 3)


@settings(max_examples=samples(60, 2000), deadline=None)
@given(
    batches=st.lists(st.lists(TEXTS, min_size=1), min_size=1, max_size=8)
    | st.lists(st.lists(NUMBERS, min_size=1), min_size=1, max_size=8),
    limit=st.sampled_from([1, 400, 1000, MEMORY_BYTES]),
    most=st.sampled_from([None, 1, 3]),
    halves=st.booleans(),
    shipped=st.booleans(),
)
def test_counts_are_exact(batches: list[list[Any]], limit: int, most: int | None, halves: bool, shipped: bool) -> None:
    """In memory or spilled after every batch, however merged, from other processes or not: what Counter counts."""

    def summary(batch: list[Any]) -> TokenCounts:
        counts = TokenCounts(limit, by_document=True)
        counts.add(tokens_of(batch))
        return pickle.loads(pickle.dumps(counts)) if shipped else counts

    def merged(parts: list[TokenCounts]) -> TokenCounts:
        if halves and len(parts) > 2:
            return merged(parts[: len(parts) // 2]).merged(merged(parts[len(parts) // 2 :]))
        return functools.reduce(TokenCounts.merged, parts)

    found = merged([summary(batch) for batch in batches])
    assert len(batches) == 1 or found._held_bytes <= limit
    counts = Counter(token for batch in batches for token in batch)
    documents = Counter(token for batch in batches for token in set(batch))
    without = batches[0][:1]
    expected = sorted(((count, token) for token, count in counts.items() if token not in without), reverse=True)[:most]
    top = found.most_frequent(most, without)
    found.close()
    found.close()
    assert [(each.occurrences, each.token) for each in top] == expected
    assert [each.documents for each in top] == [documents[token] for _, token in expected]
    assert found.documents == len(batches)


def test_a_large_vocabulary_spills_and_stays_exact() -> None:
    """Many more tokens than the memory holds, learned from a dataset: the most frequent ones, nothing left behind."""
    count = samples(20_000, 1_000_000)
    numbers = np.random.default_rng(1).zipf(1.2, count).astype(np.int64) % (1 << 40)
    words = [b"word %d" % number for number in numbers]
    ds = ad.Dataset.from_tensor_slices(np.array(words)).batch(1000)
    small = ad.Vocabulary(500, memory_limit_bytes=200_000)
    assert ad.adapt(ds, small) == ad.adapt(ds, ad.Vocabulary(500))
    expected = sorted(((n, word) for word, n in Counter(words).items()), reverse=True)[:499]
    assert ad.adapt(ds, small).vocabulary == [word.decode() for _, word in expected]


def test_an_error_leaves_no_file() -> None:
    """When the pass fails after something was spilled, the temporary file is closed; the leak check sees to that."""

    def batches() -> Any:
        yield [b"a", b"b"]
        yield [b"c"]
        raise OSError("the end")

    with pytest.raises(OSError, match="the end"):
        ad.adapt(ad.Dataset.from_generator(batches), ad.Vocabulary(memory_limit_bytes=1))
    mixed = ad.Dataset.from_generator(lambda: iter([[b"a"], [b"b"], [1]]))
    with pytest.raises(TypeError, match="all texts or all integers"):
        ad.adapt(mixed, ad.Vocabulary(memory_limit_bytes=1))


def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what was written and where it goes, and nothing is raised again when the file is closed."""
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: io.BufferedRandom(io.FileIO("/dev/full", "r+")))
    ds = ad.Dataset.range(100).batch(10)
    with pytest.raises(ad.SystemResourceError, match=r"counts of tokens.*TMPDIR.*No space left.*free space"):
        ad.adapt(ds, ad.Vocabulary(memory_limit_bytes=1))


@pytest.mark.parametrize(
    "leaf",
    [
        [b"b", b"zz", b"a", b""],
        ["b", "zz", "a", ""],
        ad.BytesArray.from_items([b"b", b"zz", b"a", b""]),
        ad.BytesArray.from_items(["b", "zz", "a", ""]),
        np.array([b"b", b"zz", b"a", b""]),
        np.array(["b", "zz", "a", ""]),
        np.array([b"b", "zz", b"a", ""], object),
        ad.BytesArray.from_items([b"-", b"b", b"zz", b"a", b""])[1:],
        ad.BytesArray.from_items([b"", b"-" * 99, b"a", b"-" * 99, b"zz", b"-" * 99, b"b"])[::-2],
    ],
    ids=lambda leaf: type(leaf).__name__,
)
def test_texts_may_come_in_any_shape(leaf: Any) -> None:
    """Bytes and str, arrays of any kind, batches that share memory with others: the same indices."""
    lookup = ad.Lookup(["a", b"b"])
    assert lookup == ad.Lookup(np.array([b"a", b"b"])) == ad.Lookup(np.array(["a", "b"]))
    assert lookup(leaf).tolist() == [2, 0, 1, 0]
    assert [int(lookup(item)) for item in leaf] == [2, 0, 1, 0]
    rows = ad.RaggedArray(leaf if isinstance(leaf, ad.BytesArray) else np.array(leaf, object), np.array([0, 3, 4]))
    assert lookup(rows).to_list() == [[2, 0, 1], [0]]


def test_an_empty_leaf_has_no_kind() -> None:
    """Rows that are all empty, and arrays without rows, suit every function, whatever their dtype."""
    functions: list[Any] = [ad.Lookup(["a"]), ad.Lookup([1]), ad.HashToBins(3, mask_value="a"), ad.TextVectorize(["a"])]
    for function in functions:
        for empty in (np.zeros(0), np.zeros(0, object), ad.BytesArray.from_items([])):
            assert function(empty).size == 0
    rows = ad.RaggedArray.from_rows([[], []])
    assert all(function(rows).to_list() == [[], []] for function in functions[:3])
    assert ad.Lookup(["a"], output_mode="count")(rows).tolist() == [[0, 0], [0, 0]]


def test_numbers_beyond_int64_are_unknown_tokens() -> None:
    """They are no error, and have an index."""
    assert ad.Lookup([1], num_oov_indices=3)(np.array([(1 << 64) - 1, 1], np.uint64)).tolist() == [0, 3]


@pytest.mark.parametrize("salt", [None, 5])
def test_a_vocabulary_of_nothing_has_no_kind(salt: int | None) -> None:
    """Any token is unknown, and has the index that other vocabularies have for it."""
    nothing = ad.adapt(ad.Dataset.from_tensors(["[UNK]"]), ad.Vocabulary(num_oov_indices=3, salt=salt))
    assert nothing.vocabulary == []
    for tokens, known in (["b", "c", ""], ["a"]), ([2, -7], [1]):
        assert nothing(tokens).tolist() == ad.Lookup(known, num_oov_indices=3, salt=salt)(tokens).tolist()


@pytest.mark.parametrize(
    ("tokens", "mask", "name"),
    [(["a"], None, "[UNK]"), (["[UNK]", "a"], "[UNK]_", "[UNK]__"), ([-1, 0], -2, -3), ([1], None, -1)],
)
def test_no_token_has_the_name_that_keras_has_for_unknown_ones(tokens: list[Any], mask: Any, name: Any) -> None:
    """If the first token had, a layer would not count it, and all other tokens would have other indices."""
    said = ad.Lookup(tokens, mask_token=mask).keras_arguments()
    assert (said["vocabulary"], said["oov_token"]) == (tokens, name)


def test_weights_are_those_of_documents() -> None:
    """A row is a document; unknown tokens have the mean weight."""
    ds = ad.Dataset.from_tensors(np.array([[1, 1, 2], [1, 3, 3]]))
    lookup = ad.adapt(ds, ad.Vocabulary(output_mode="tf_idf"))
    assert lookup.vocabulary == [1, 3, 2]
    weights = [math.log(1 + 2 / 3), math.log(2), math.log(2)]
    np.testing.assert_allclose(lookup([1, 1, 9]), [sum(weights) / 3, 2 * weights[0], 0, 0], rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ad.Lookup(["a", b"a"]), "'a' twice"),
        (lambda: ad.Lookup([*range(1 << 17), 7]), "7 twice"),
        (lambda: ad.Lookup("ab"), "list of texts"),
        (lambda: ad.Lookup(["a", 1]), "text"),
        (lambda: ad.Lookup([1.5]), "integer"),
        (lambda: ad.Lookup(["a"], mask_token="a"), "mask"),
        (lambda: ad.Lookup(["a"], mask_token=1), "mask_token must be a text"),
        (lambda: ad.Lookup(["a"], output_mode="many"), "output_mode"),
        (lambda: ad.Lookup(["a"], output_mode="tf_idf"), "idf_weights"),
        (lambda: ad.Lookup(["a"], output_mode="tf_idf", idf_weights=[1, 2]), "1 finite"),
        (lambda: ad.Lookup(["a"], output_mode="tf_idf", idf_weights=[1e39]), "1 finite"),
        (lambda: ad.Lookup(["a"], salt=[1, 2, 3]), "salt"),
        (lambda: ad.Lookup(["a"])([1]), "consists of texts"),
        (lambda: ad.Lookup([1])(["a"]), "consists of integers"),
        (lambda: ad.Lookup([1])([0.5]), "tokens are texts or integers"),
        (lambda: ad.Lookup([1], num_oov_indices=0)([2]), "num_oov_indices=0"),
        (lambda: ad.Lookup([1], output_mode="count")(ad.RaggedArray.from_rows([[[1]], [[2], [3]]])), "rows of rows"),
        (lambda: Vocabulary(2, num_oov_indices=2), "no place"),
        (lambda: Vocabulary(output_mode="x"), "output_mode"),
    ],
)
def test_what_has_no_meaning_is_refused(call: Any, message: str) -> None:
    """Where it is passed, and the message says what it is about."""
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_specs_are_true() -> None:
    """Shapes and dtypes are known in every mode before the function runs."""
    for mode in ("int", "one_hot", "multi_hot", "count", "tf_idf"):
        lookup = ad.Lookup([1, 2], output_mode=mode, idf_weights=[1, 2] if mode == "tf_idf" else None)
        for shape in ((5,), (4, 1), (4, 3)):
            given = ad.ArraySpec((None, *shape[1:]), np.int64)
            spec = lookup.__element_spec__(given)
            found = lookup(np.ones(shape, np.int64))
            if spec is not None:
                assert spec.dtype == found.dtype
                assert [a is None or a == b for a, b in zip(spec.shape, found.shape, strict=True)] == [
                    True
                ] * found.ndim
        ragged = lookup.__element_spec__(ad.RaggedSpec((None, None), np.int64))
        assert ragged == (ad.RaggedSpec((None, None), np.int64) if mode == "int" else None)
