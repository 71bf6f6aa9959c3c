"""The functions that the law of places draws: what users write, and all ready-made ones."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from typing import Any, Final

import numpy as np

import asyncdata as ad
from tests.integration.drawn_sources import Pair, Plain, Point


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
        for item in value.flat if value.dtype == object else ():
            write(item)
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
    "dates": lambda n: np.datetime64("2020-01-01") + np.timedelta64(n, "D"),
    "masked": lambda n: np.ma.masked_array([1, n], mask=[False, True]),
    "array of a subclass": lambda n: np.array([1, n]).view(Numbers),
    "nest": lambda n: {"a": (n, {"b": b"b" * (n % 9)}), "c": np.arange(3) + n},
    "nest of objects": lambda n: ({n}, [b"b", 1], None),
    "nests of two kinds": lambda n: {"a": n, "b": [n]} if n % 2 else (n,),
    "dicts in two orders": lambda n: {"a": n, "b": 1} if n % 2 else {"b": 1, "a": n},
    "empty tuple": lambda _: (),
    "namedtuple": lambda n: Pair(n, b"w" * (n % 9)),
    "dataclass": lambda n: Point(n, {"a": np.arange(2) + n}),
    "plain dataclass": Plain,
    "namedtuple or tuple": lambda n: Pair(n, "w") if n % 2 else (n, "w"),
    "bool": lambda n: n % 2 == 0,
    "complex": lambda n: complex(n, 1),
    "unsigned": lambda n: np.uint64(2**63 + n),
    "flags": lambda n: np.array([n % 2 == 0, True]),
    "durations": lambda n: np.array([n, 1], "m8[s]"),
    "no dates": lambda _: np.array(["NaT"], "M8[ns]"),
    "dict keys": lambda n: {"a": n}.keys(),
    "frozen set": lambda n: frozenset([n]),
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


def choosy(number: int) -> Callable[..., Any]:
    """A user function that fails at some elements and passes the others on."""

    def choose(*parts: Any) -> Any:
        found = size(*parts)
        if found % 7 in {number, number + 2}:
            raise LookupError(f"element of size {found}")
        return same_element(*parts)

    return choose


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


def numbers() -> ad.Dataset:
    """Batches to learn from."""
    return ad.Dataset.range(9).batch(2)


def saved_and_loaded() -> Any:
    """A map function from a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/function.json"
        ad.Bucketize([1, 3]).save(path)
        return ad.load_preprocessing(path)


TEXTS: Final = ["to be", "or not", "To be!", ""]
LEARNED: Final[dict[str, Callable[[], Any]]] = {
    "Normalization": lambda: ad.adapt(numbers(), ad.Normalization(axis=None)),
    "Normalization per column": lambda: ad.adapt(
        ad.Dataset.from_tensor_slices(np.arange(18.0).reshape(9, 2)).batch(2), ad.Normalization(invert=True)
    ),
    "Normalize": lambda: ad.Normalize(2.0, 4.0, None),
    "Quantiles": lambda: ad.adapt(numbers(), ad.Quantiles(3)),
    "Bucketize": lambda: ad.Bucketize([2, 5]),
    "Bucketize to vectors": lambda: ad.Bucketize([2, 5], output_mode="one_hot"),
    "HashToBins": lambda: ad.HashToBins(5),
    "HashToBins of masked": lambda: ad.HashToBins(5, mask_value="", salt=1),
    "Vocabulary": lambda: ad.adapt(ad.Dataset.from_tensor_slices(["é", "éé", "é"]).batch(2), ad.Vocabulary()),
    "Vocabulary of numbers": lambda: ad.adapt(numbers(), ad.Vocabulary(max_tokens=5, num_oov_indices=2)),
    "Lookup": lambda: ad.Lookup(["é", "bb"], mask_token=""),
    "Lookup of counts": lambda: ad.Lookup([1, 2, 3], output_mode="count"),
    "TextVocabulary": lambda: ad.adapt(ad.Dataset.from_tensor_slices(TEXTS).batch(2), ad.TextVocabulary()),
    "TextVocabulary ragged": lambda: ad.adapt(
        ad.Dataset.from_tensor_slices(TEXTS).batch(2), ad.TextVocabulary(ragged=True, split="character")
    ),
    "TextVectorize": lambda: ad.TextVectorize(["two", "one", "w"], output_sequence_length=3),
    "ByLeaf": lambda: ad.ByLeaf((ad.Bucketize([1, 2]), None)),
    "ByLeaf of a dict": lambda: ad.adapt(
        ad.Dataset.from_tensor_slices({"n": np.arange(4), "word": ["w1", "w2", "w1", "é"]}).batch(2),
        {"n": ad.Normalization(axis=None), "word": ad.Vocabulary()},
    ),
    "load_preprocessing": saved_and_loaded,
}
"""Learned map functions; made when they are drawn."""


@functools.cache
def learned(name: str) -> Any:
    """A function of `LEARNED`, the same one every time."""
    return LEARNED[name]()


def function_of(name: str) -> Callable[..., Any]:
    """The function of that name."""
    made: Callable[..., Any] = learned(name) if name in LEARNED else FUNCTIONS[name]
    return made


def serialized(*parts: Any) -> bytes:
    """An Example of what an element is."""
    leaf = first_leaf(same_element(*parts))
    return ad.serialize_example({"size": size(*parts), "leaf": leaf})


def serialized_sequence(*parts: Any) -> bytes:
    """A SequenceExample of it."""
    return ad.serialize_sequence_example({"size": size(*parts)}, {"steps": [[size(*parts)], [1, 2]]})


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
    **{f"chooses {number}": choosy(number) for number in range(4)},
    "serialize_example": serialized,
    "serialize_sequence_example": serialized_sequence,
    "the same": same_element,
    "size": size,
    "described": described,
    "writes": writes,
    "random": random_number,
}
READY_MADE: Final = (
    *(name for name in FUNCTIONS if name.startswith(("parse", "decode", "serialize"))),
    *LEARNED,
)
"""Of both kinds, those of this package: their names begin with the public name."""
