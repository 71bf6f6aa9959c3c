"""`HashToBins`: texts and numbers to bins by their hash, as ``keras.layers.Hashing`` does."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from asyncdata import arguments
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.preprocessing.encoding import MODES, encoded, encoded_spec
from asyncdata.preprocessing.function import MapFunction
from asyncdata.preprocessing.lookup import Salt, hashed, salt_of
from asyncdata.preprocessing.token_leaf import Integers, TokenLeaf, as_bytes, as_text, tokens_of


class HashToBins(MapFunction):
    """A map function from texts or numbers to bins, or to vectors of these. Nothing has to be learned.

    A number is hashed as its decimal digits, after it was rounded towards zero. The bins are those of Keras and of
    TensorFlow's ``to_hash_bucket_fast`` (FarmHash64), with a salt of ``to_hash_bucket_strong`` (SipHash-2-4).

    Args:
        num_bins: How many bins, that of the mask included.
        mask_value: A text or number that means "nothing here": bin 0, and the others begin with 1.
        salt: One or two integers, the key of SipHash.
        output_mode: ``"int"`` (int64), ``"one_hot"``, ``"multi_hot"`` or ``"count"`` (float32); the latter two make one
            vector of the last axis.

    Example:
        >>> import asyncdata as ad
        >>> ad.HashToBins(10)(["a", "b", "a"]).tolist()
        [9, 2, 9]
        >>> ad.HashToBins(10, mask_value="", salt=1)(["a", ""]).tolist()
        [7, 0]
    """

    keras_layer: ClassVar[str] = "Hashing"

    def __init__(
        self,
        num_bins: int,
        *,
        mask_value: str | bytes | float | None = None,
        salt: Salt = None,
        output_mode: str = "int",
    ) -> None:
        self.num_bins = arguments.integer("num_bins", num_bins, least=1)
        self.output_mode: str = arguments.choice("output_mode", output_mode, MODES)
        self.salt = salt_of(salt)
        self._mask: Any = as_bytes(mask_value) if isinstance(mask_value, str | bytes) else mask_value
        if self._mask is not None and not isinstance(self._mask, bytes):
            self._mask = arguments.number("mask_value", self._mask)
            if not math.isfinite(self._mask):
                raise ValueError(f"mask_value must be finite, not {self._mask}")
        self._dtype = np.int64 if output_mode == "int" else np.float32

    def __call__(self, leaf: Any) -> Any:
        """Returns bins or vectors.

        Raises:
            TypeError: The leaf holds neither texts nor numbers, or others than the mask.
        """
        tokens = tokens_of(leaf, floats=True)
        return encoded(self._bins(tokens), tokens, self.output_mode, depth=self.num_bins, dtype=self._dtype)

    def _bins(self, tokens: TokenLeaf) -> Integers:
        if self._mask is None or self.num_bins == 1:
            return hashed(_texts_of(tokens), self.num_bins, self.salt)
        if len(tokens.flat) and isinstance(self._mask, bytes) is not tokens.text:
            raise TypeError(f"mask_value={as_text(self._mask)!r} does not suit {'texts' if tokens.text else 'numbers'}")
        found = hashed(_texts_of(tokens), self.num_bins - 1, self.salt) + 1
        if isinstance(tokens.flat, np.ndarray):
            masked = tokens.flat == self._mask
        else:
            masked = np.fromiter((item == self._mask for item in tokens.items()), np.bool_, len(found))
        found[masked] = 0
        return found

    def __element_spec__(self, given: Any) -> Any:
        """Returns the spec of the result for a leaf of the spec `given`."""
        return encoded_spec(given, self.output_mode, self.num_bins, self._dtype)

    def arguments(self) -> dict[str, Any]:
        """See `MapFunction`."""
        return {
            "num_bins": self.num_bins,
            "mask_value": as_text(self._mask),
            "salt": self.salt,
            "output_mode": self.output_mode,
        }

    def keras_arguments(self) -> dict[str, Any]:
        """See `MapFunction`."""
        return self.arguments()


def _texts_of(tokens: TokenLeaf) -> BytesArray:
    """Texts side by side: where they are, if they are already."""
    if isinstance(tokens.flat, np.ndarray):
        return _decimals(tokens.flat)
    return tokens.flat if isinstance(tokens.flat, BytesArray) else BytesArray.from_items(tokens.flat)


def _decimals(numbers: np.ndarray[Any, Any]) -> BytesArray:
    """Numbers as texts, side by side in the memory that numpy writes them to."""
    with np.errstate(invalid="ignore"):  # NaN and what is too large have the digits of some number, as in TensorFlow
        whole = numbers.astype(np.int64) if numbers.dtype.kind == "f" else numbers
    texts = whole.astype("S21")  # the longest are 20 characters; a zero byte ends each
    memory = texts.view(np.uint8)
    places = np.empty((len(texts), 2), np.int64)
    places[:, 0] = np.arange(len(texts)) * texts.itemsize
    places[:, 1] = np.char.str_len(texts)
    return BytesArray(memory, places)
