"""The tokens of a leaf: texts or integers, flat, and how they were arranged.

    b"a"                  one text                          shape ()
    [b"a" b"b"]           BytesArray, list, array           shape (2,)
    [[1 2] [3]]           RaggedArray: flat values, rows    shape None

A *document* is what a count is made for: the tokens along the last axis; a leaf with one axis or none is one document.
Texts are UTF-8, so ``str`` and ``bytes`` are the same tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from asyncdata import arguments
from asyncdata.memory.bytesarray import BytesArray, copied_items
from asyncdata.memory.ragged import RaggedArray

Term: TypeAlias = "bytes | int"
Integers: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class TokenLeaf:
    """The tokens of one leaf.

    Attributes:
        flat: All of them, in order: texts in a list or a BytesArray, or numbers in an array.
        shape: How they are arranged; None for a RaggedArray.
        ragged: The RaggedArray.
    """

    flat: list[bytes] | BytesArray | npt.NDArray[Any]
    shape: tuple[int, ...] | None = None
    ragged: RaggedArray | None = None

    @property
    def text(self) -> bool:
        """Whether they are texts."""
        return not isinstance(self.flat, np.ndarray)

    def items(self) -> list[Any]:
        """Returns them as Python objects, texts as bytes."""
        if isinstance(self.flat, list):
            return self.flat
        if isinstance(self.flat, BytesArray):
            return copied_items(self.flat.memory, self.flat.places)
        numbers: list[Any] = self.flat.tolist()
        return numbers

    def arranged(self, values: npt.NDArray[Any]) -> Any:
        """Returns values, one per token, arranged as the tokens are."""
        if self.ragged is not None:
            return RaggedArray.from_nested_row_splits(values, self.ragged.nested_row_splits)
        assert self.shape is not None
        return values.reshape((*self.shape, *values.shape[1:]))[()]

    def documents(self) -> tuple[int, ...]:
        """Returns how the documents are arranged.

        Raises:
            ValueError: They are rows of rows that differ in length.
        """
        if self.ragged is None:
            assert self.shape is not None
            return self.shape[:-1]
        if self.ragged.ragged_rank > 1:
            raise ValueError("tokens are counted in rows of values, but this RaggedArray has rows of rows")
        return (len(self.ragged),)

    def document_ids(self) -> Integers:
        """Returns the number of each token's document."""
        if self.ragged is not None:
            return np.asarray(self.ragged.value_rowids(), np.int64)
        assert self.shape is not None
        length = self.shape[-1] if self.shape else 1
        return np.repeat(np.arange(len(self.flat) // max(length, 1)), length)


def tokens_of(leaf: Any, *, floats: bool = False) -> TokenLeaf:
    """Returns the tokens of a leaf.

    Args:
        leaf: Texts or integers in any arrangement.
        floats: Floats are accepted, too.

    Raises:
        TypeError: It holds something else.
    """
    if isinstance(leaf, RaggedArray):
        flat = tokens_of(leaf.flat_values, floats=floats)
        if flat.shape is None or len(flat.shape) > 1:
            raise TypeError(f"tokens are single values, not values of the shape {leaf.shape}")
        return TokenLeaf(flat.flat, ragged=leaf)
    if isinstance(leaf, bytes | str | memoryview):
        return TokenLeaf([as_bytes(leaf)], ())
    if isinstance(leaf, BytesArray):
        return TokenLeaf(leaf, (len(leaf),))
    # Lists of texts become arrays of objects, because numpy's own texts lose zeros at their end.
    array = np.asarray(leaf, object if isinstance(leaf, list | tuple) and _begins_with_text(leaf) else None)
    if not array.size:
        return TokenLeaf([], array.shape)  # of any dtype: rows that are all empty do not know theirs
    if array.dtype.kind in ("iuf" if floats else "iu"):
        return TokenLeaf(array.ravel(), array.shape)
    if array.dtype.kind in "OSU" and isinstance(array.flat[0], bytes | str | memoryview):
        return TokenLeaf(list(map(as_bytes, array.ravel().tolist())), array.shape)
    raise TypeError(f"tokens are texts or integers, not {arguments.shown(leaf)} of dtype {array.dtype}")


def _begins_with_text(leaf: Any) -> bool:
    while isinstance(leaf, list | tuple) and leaf:
        leaf = leaf[0]
    return isinstance(leaf, bytes | str | memoryview)


def as_bytes(token: Any) -> bytes:
    """Returns a text as UTF-8.

    Raises:
        TypeError: It is none.
    """
    if isinstance(token, bytes):
        return bytes(token)  # the same object, unless it is one of numpy's
    if isinstance(token, str):
        return token.encode("utf-8", "surrogateescape")
    if isinstance(token, memoryview):
        return token.tobytes()
    raise TypeError(f"a text is needed here, not {arguments.shown(token)}")


def as_text(token: Term) -> str | int:
    """Returns a token as JSON can hold it: bytes that are no UTF-8 become surrogates, which `as_bytes` undoes."""
    return token.decode("utf-8", "surrogateescape") if isinstance(token, bytes) else token


def vocabulary_of(name: str, tokens: Any) -> list[Term]:
    """Returns the tokens of a vocabulary, which are all texts or all integers.

    Raises:
        TypeError: They are neither, or both.
        ValueError: One occurs twice.
    """
    if isinstance(tokens, str | bytes) or not isinstance(tokens, Sequence | np.ndarray):
        raise TypeError(f"{name} must be a list of texts or of integers, not {arguments.shown(tokens)}")
    items = list(tokens)
    if items and isinstance(items[0], str | bytes):
        found: list[Term] = list(map(as_bytes, items))
    else:
        found = [arguments.integer(f"every item of {name}", item) for item in items]
    if len(set(found)) < len(found):
        twice = next(token for token, times in Counter(found).items() if times > 1)
        raise ValueError(f"{name} contains {as_text(twice)!r} twice")
    return found
