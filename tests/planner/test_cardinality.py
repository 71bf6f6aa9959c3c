"""How many elements and of what kind, without running: tf.data's rules, and that running agrees."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.formats.image import encode_png
from asyncdata.plan import combining, files, grouping, node, sequence, sources, transformations
from asyncdata.planner.element_spec import _rule, spec_of
from asyncdata.spec import ArraySpec, BytesSpec, DatasetSpec, RaggedSpec, StrSpec
from tests.specs import agrees

D = ad.Dataset
INFINITE, UNKNOWN = ad.INFINITE_CARDINALITY, ad.UNKNOWN_CARDINALITY

NODES = sorted(
    {
        kind
        for module in (combining, files, grouping, sequence, sources, transformations)
        for kind in vars(module).values()
        if inspect.isclass(kind) and issubclass(kind, node.Node) and kind is not node.Node
    },
    key=lambda kind: kind.__name__,
)

NESTS = set(_rule.registry) - {object}
UNKNOWN_NUMBER = {
    *("Filter", "GroupByWindow", "IgnoreErrors", "Interleave", "Rebatch", "RejectionResample", "TakeWhile", "Unbatch"),
    *("Unique", "Generator", "ListFiles", "ManifestFile", "StoredFile", "TFRecordFile", "FramedFile"),
    *("TarSamples", "ParquetRows"),
}
UNKNOWN_ELEMENTS = {
    *("Contents", "GroupByWindow", "ParquetRows", "Rebatch", "Scan", "StoredFile", "TarSamples"),
}

five = D.range(5)
endless = five.repeat()
some = five.filter(lambda x: x > 1)
lenient = ad.Options(errors=ad.ErrorPolicy())


def inverse(number: int) -> float:
    """Fails for one element."""
    return 1 // number


def zero(element: Any) -> int:
    """The class of every element."""
    del element
    return 0


TABLE: dict[str, tuple[ad.Dataset, int]] = {
    "range": (five, 5),
    "range down": (D.range(5, 0, -2), 3),
    "range nothing": (D.range(5, 0), 0),
    "repeat 0": (five.repeat(0), 0),
    "repeat 3": (five.repeat(3), 15),
    "repeat for ever": (endless, INFINITE),
    "repeat nothing for ever": (D.range(0).repeat(), 0),
    "filter": (some, UNKNOWN),
    "filter, repeat 0": (some.repeat(0), 0),
    "filter for ever": (some.repeat(), INFINITE),
    "take": (endless.take(3), 3),
    "take more": (five.take(9), 5),
    "take all": (five.take(-1), 5),
    "take of unknown": (some.take(2), UNKNOWN),
    "skip": (five.skip(2), 3),
    "skip more": (five.skip(9), 0),
    "skip all": (endless.skip(-1), 0),
    "skip of endless": (endless.skip(3), INFINITE),
    "batch": (five.batch(2), 3),
    "batch drop": (five.batch(2, drop_remainder=True), 2),
    "padded batch": (five.padded_batch(2), 3),
    "shuffle": (five.shuffle(3), 5),
    "map": (five.map(str), 5),
    "zip": (D.zip(five, endless), 5),
    "zip endless": (D.zip(endless, endless), INFINITE),
    "zip of unknown": (D.zip(five, some), UNKNOWN),
    "concatenate": (five.concatenate(five).concatenate(five), 15),
    "concatenate endless": (some.concatenate(endless), INFINITE),
    "concatenate unknown": (five.concatenate(some), UNKNOWN),
    "interleave": (five.interleave(lambda _: D.range(3)), UNKNOWN),
    "enumerate": (five.enumerate(), 5),
    "shard 0": (five.shard(2, 0), 3),
    "shard 1": (five.shard(2, 1), 2),
    "shard of endless": (endless.shard(2, 1), INFINITE),
    "take while": (five.take_while(lambda x: x < 3), UNKNOWN),
    "scan": (five.scan(0, lambda s, x: (s, x)), 5),
    "unique": (five.unique(), UNKNOWN),
    "sample": (D.sample_from_datasets([five, five]), UNKNOWN),
    "sample endless": (D.sample_from_datasets([five, endless]), INFINITE),
    "sample endless, stopping": (D.sample_from_datasets([endless, endless], None, None, True), INFINITE),
    "sample that stops": (D.sample_from_datasets([endless, five], None, None, True), UNKNOWN),
    "sample without weight": (D.sample_from_datasets([endless, five], [0.0, 2.0]), 5),
    "sample of nothing": (D.sample_from_datasets([five], [0.0]), 0),
    "choose": (D.choose_from_datasets([five, five], D.range(2)), UNKNOWN),
    "choose of endless": (D.choose_from_datasets([endless, endless], D.range(2)), UNKNOWN),
    "choose endless": (D.choose_from_datasets([endless, endless], D.range(2).repeat()), INFINITE),
    "random": (D.random(), INFINITE),
    "counter": (D.counter(), INFINITE),
    "window": (five.window(2, shift=1), 5),
    "window drop": (five.window(3, shift=1, drop_remainder=True), 3),
    "window stride": (five.window(3, shift=2, stride=2, drop_remainder=True), 1),
    "generator": (D.from_generator(lambda: iter(range(3))), UNKNOWN),
    "tensors": (D.from_tensors(1), 1),
    "slices": (D.from_tensor_slices([1, 2]), 2),
    "asserted": (some.assert_cardinality(3), 3),
    "asserted endless": (endless.assert_cardinality(INFINITE), INFINITE),
    "prefetch": (five.prefetch(2), 5),
    "options": (five.with_options(ad.Options()), 5),
    "options that skip": (five.shuffle(2).batch(2).with_options(lenient), 3),
    "map whose failures are skipped": (five.map(inverse).batch(2).with_options(lenient), UNKNOWN),
    "the same, asserted": (five.map(inverse).batch(2).assert_cardinality(2).with_options(lenient), 2),
    "the same, endless": (five.repeat().map(inverse).with_options(lenient), INFINITE),
    "the same, empty": (five.take(0).map(inverse).with_options(lenient), 0),
    "a file that may be skipped": (ad.FileDataset("/missing").with_options(lenient), UNKNOWN),
    "map and batch": (five.map_and_batch(lambda x: x, 2), 3),
    "rejection": (five.rejection_resample(zero, [1.0]), UNKNOWN),
    "unbatch": (five.batch(2).unbatch(), UNKNOWN),
    "group by window": (
        five.group_by_window(lambda x: x, lambda _, window: window.batch(2), window_size=2),
        UNKNOWN,
    ),
}


@pytest.mark.parametrize("kind", NODES, ids=lambda kind: kind.__name__)
def test_every_kind_of_node_has_rules(kind: type[node.Node]) -> None:
    """Whoever adds a node says what is known of its number of elements and of their kind."""
    own = vars(kind)
    assert kind.same_number or "cardinality" in own or kind.__name__ in UNKNOWN_NUMBER
    assert kind.same_elements or "element_spec" in own or kind in NESTS or kind.__name__ in UNKNOWN_ELEMENTS


@pytest.mark.sampled
@pytest.mark.parametrize("name", TABLE)
def test_the_number_is_tf_datas_and_true(name: str) -> None:
    """The number is as announced; where it is known, running the dataset gives as many."""
    ds, expected = TABLE[name]
    assert ds.cardinality() == expected
    if expected >= 0:
        assert len(ds) == expected
        assert sum(1 for _ in ds) == expected
    else:
        with pytest.raises(TypeError, match="infinite" if expected == INFINITE else "not known"):
            len(ds)
        if expected == INFINITE:
            assert sum(1 for _ in ds.take(40)) == 40
    assert bool(ds)


I64 = ArraySpec((), np.int64)
words = D.from_tensor_slices(["a", "b", "c"])
mixed = D.from_tensor_slices(
    {"x": np.zeros((4, 2, 3), np.float32), "y": (np.arange(4, dtype=np.int16), [b"", b"a"] * 2)}
)


def serialized(n: Any) -> bytes:
    """An Example."""
    return ad.serialize_example({"x": [n, 1.5], "b": b"ab"[:n], "v": [n] * n, "w": [b"x"] * n})


records = D.from_tensor_slices([serialized(n) for n in range(5)])
parse = ad.parse_example(
    {
        "x": ad.FixedLenFeature((2,), float),
        "b": ad.FixedLenFeature((), bytes),
        "v": ad.VarLenFeature(int),
        "w": ad.VarLenFeature(bytes),
        "s": ad.FixedLenSequenceFeature((3,), int, allow_missing=True),
    }
)
parse_steps = ad.parse_sequence_example(
    {"b": ad.FixedLenFeature((), bytes)},
    {"v": ad.VarLenFeature(int), "s": ad.FixedLenSequenceFeature((3,), int, allow_missing=True)},
)
pictures = D.from_tensor_slices([encode_png(np.zeros((3, 4, 3), np.uint8))] * 2)

NEST = {"x": ArraySpec((2, 3), np.float32), "y": (ArraySpec((), np.int16), BytesSpec())}

SPECS: dict[str, tuple[ad.Dataset, Any]] = {
    "range": (five, I64),
    "range of a dtype": (D.range(0, 3, 1, np.uint8), ArraySpec((), np.uint8)),
    "counter": (D.counter(dtype=np.float32).take(2), ArraySpec((), np.float32)),
    "random": (D.random().take(2), I64),
    "words": (words, StrSpec()),
    "words batched": (words.batch(2), StrSpec((None,))),
    "words batched drop": (words.batch(2, drop_remainder=True), StrSpec((2,))),
    "nest": (mixed, NEST),
    "batches batched": (five.enumerate().batch(3).batch(1), (ArraySpec((None, None), np.int64),) * 2),
    "tensors": (
        D.from_tensors((1, 2.5, "a", b"b", np.zeros((2, 0)))),
        (I64, ArraySpec((), np.float64), StrSpec(), BytesSpec(), ArraySpec((2, 0), np.float64)),
    ),
    "map": (five.map(str), None),
    "zip": (
        D.zip({"a": five, "b": (words, five.batch(2))}),
        {"a": I64, "b": (StrSpec(), ArraySpec((None,), np.int64))},
    ),
    "enumerate": (words.enumerate(), (I64, StrSpec())),
    "concatenate": (five.batch(5).concatenate(five.batch(2)), ArraySpec((None,), np.int64)),
    "concatenate shapes": (
        D.from_tensors(np.zeros(3)).concatenate(D.from_tensors(np.zeros(2))),
        ArraySpec((None,), np.float64),
    ),
    "concatenate unlike": (five.concatenate(words), None),
    "concatenate nests": (words.enumerate().concatenate(five.enumerate()), (I64, None)),
    "sample": (D.sample_from_datasets([five, five.shuffle(2)]), I64),
    "choose": (D.choose_from_datasets([words, five], D.range(2)), None),
    "unbatched": (mixed.batch(3).unbatch(), NEST),
    "window": (words.window(2), DatasetSpec(StrSpec())),
    "rejection": (words.rejection_resample(zero, [1.0]), (I64, StrSpec())),
    "scan": (five.scan(0, lambda s, x: (s, x)), None),
    "files": (D.list_files(__file__), StrSpec()),
    "lines": (ad.TextLineDataset([__file__, __file__]), BytesSpec()),
    "lines of listed files": (D.list_files(__file__).interleave(ad.TextLineDataset), BytesSpec()),
    "rows": (ad.CsvDataset([__file__] * 2, [0, ""]).take(0), (ArraySpec((), np.int32), BytesSpec())),
    "parsed": (
        records.map(parse),
        {"x": ArraySpec((2,), np.float32), "b": BytesSpec(), "v": ArraySpec((None,), np.int64), "w": None}
        | {"s": ArraySpec((None, 3), np.int64)},
    ),
    "parsed batches": (
        records.batch(2).map(parse),
        {"x": ArraySpec((None, 2), np.float32), "b": BytesSpec((None,)), "v": RaggedSpec((None, None), np.int64, 1)}
        | {"w": RaggedSpec((None, None), object, 1), "s": ArraySpec((None, None, 3), np.int64)},
    ),
    "parsed and batched": (
        records.map(ad.parse_example({"x": ad.FixedLenFeature(2, float)}), 2).batch(3, drop_remainder=True),
        {"x": ArraySpec((3, 2), np.float32)},
    ),
    "parsed sequences": (
        records.map(parse_steps),
        ({"b": BytesSpec()}, {"v": RaggedSpec((None, None), np.int64, 1), "s": ArraySpec((None, 3), np.int64)}),
    ),
    "parsed batches of sequences": (
        records.batch(2, drop_remainder=True).map(parse_steps),
        (
            {"b": BytesSpec((2,))},
            {"v": RaggedSpec((2, None, None), np.int64, 2), "s": ArraySpec((2, None, 3), np.int64)},
            {"s": ArraySpec((2,), np.int64)},
        ),
    ),
    "parsed, of what is not known": (five.map(serialized).map(parse), None),
    "images": (pictures.map(ad.decode_image()), ArraySpec((None, None, 3), np.uint8)),
    "images of one size": (
        D.zip({"i": pictures, "n": five}).map(ad.decode_image(1, (2, 5), feature="i")).batch(2),
        {"i": ArraySpec((None, 2, 5, 1), np.uint8), "n": ArraySpec((None,), np.int64)},
    ),
    "padded": (D.from_tensors(np.zeros(3)).padded_batch(2), ArraySpec((None, 3), np.float64)),
    "padded nests": (
        mixed.padded_batch(3, {"x": [5, None], "y": ([], [])}, drop_remainder=True),
        {"x": ArraySpec((3, 5, 3), np.float32), "y": (ArraySpec((3,), np.int16), BytesSpec((3,)))},
    ),
    "padded, of several lengths": (
        D.from_generator(
            lambda: [[[1, 2]], [[3, 4]] * 2], output_signature=ArraySpec((None, 2), np.int64)
        ).padded_batch(2, [4, None]),
        ArraySpec((None, 4, 2), np.int64),
    ),
    "padded twice": (
        five.batch(2).padded_batch(2).padded_batch(1, (-1, 7)),
        ArraySpec((None, None, 7), np.int64),
    ),
    "padded and ragged": (
        D.from_tensor_slices(np.zeros((3, 2, 3))).padded_batch(2).ragged_batch(2),
        RaggedSpec((None, None, 2, 3), np.float64, 1),
    ),
    "padded in a wrong nest": (five.padded_batch(2, ([], [])).take(0), None),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", SPECS)
def test_the_spec_is_as_announced_and_true(name: str) -> None:
    """Specs nest like the elements, and every element that comes is allowed by them."""
    ds, expected = SPECS[name]
    assert ds.element_spec == expected
    if name != "window":
        for element in ds.take(5):
            assert agrees(ds.element_spec, spec_of(element)), (ds.element_spec, spec_of(element))


def test_specs_are_values() -> None:
    """Equal specs are equal, hashable, and take what numpy takes."""
    assert ArraySpec((None, -1, 3), "int32") == ArraySpec((None, None, 3), np.int32)
    assert len({ArraySpec((), int), ArraySpec((), np.int64), BytesSpec(), StrSpec()}) == 3
    assert ArraySpec() == ArraySpec(None, None)
