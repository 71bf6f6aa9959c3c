"""`TextVectorize`: texts to the indices of their words, as ``keras.layers.TextVectorization`` does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from asyncdata import arguments
from asyncdata.memory.ragged import RaggedArray
from asyncdata.preprocessing.function import MapFunction
from asyncdata.preprocessing.lookup import Lookup
from asyncdata.preprocessing.text_split import TextSplit
from asyncdata.spec import ArraySpec, BytesSpec, StrSpec

STANDARD = "lower_and_strip_punctuation"


class TextVectorize(MapFunction):
    """A map function from texts to indices of their words, padded with 0, or to one vector per text.

    Index 1 means unknown words (0 in the vectors). One text gives one row without the batch axis.

    Args:
        vocabulary: The words, by index.
        standardize: What happens to a text first: ``"lower_and_strip_punctuation"``, ``"lower"``,
            ``"strip_punctuation"`` or None. Only ASCII is changed.
        split: Where words begin: at ``"whitespace"``, or at each ``"character"``.
        ngrams: A number n: the words, then all sequences of 2, …, n words count as words. A list: sequences of these
            lengths only.
        output_mode: See `Lookup`.
        output_sequence_length: For ``"int"``: rows are cut or padded to this length. None: to the longest of the batch.
        ragged: For ``"int"``: rows are not padded, and the result is a `RaggedArray`.
        idf_weights: See `Lookup`.

    Example:
        >>> import asyncdata as ad
        >>> vectorize = ad.TextVectorize(["be", "to"])
        >>> vectorize(["To be, or", "Be!"]).tolist()
        [[3, 2, 1], [2, 0, 0]]
    """

    keras_layer: ClassVar[str] = "TextVectorization"

    def __init__(
        self,
        vocabulary: Sequence[str | bytes],
        *,
        standardize: str | None = STANDARD,
        split: str = "whitespace",
        ngrams: int | Sequence[int] | None = None,
        output_mode: str = "int",
        output_sequence_length: int | None = None,
        ragged: bool = False,
        idf_weights: Any = None,
    ) -> None:
        self.text_split = TextSplit.checked(standardize, split, ngrams)
        self.lookup = Lookup(vocabulary, mask_token="", output_mode=output_mode, idf_weights=idf_weights)
        self.output_sequence_length = arguments.integer_or_none(
            "output_sequence_length", output_sequence_length, least=1
        )
        self.ragged = arguments.flag("ragged", ragged)
        if output_mode != "int" and (ragged or output_sequence_length is not None):
            raise ValueError('ragged and output_sequence_length are for output_mode="int"')

    @property
    def vocabulary(self) -> list[str | int]:
        """The words; the index of the first is 2, in vectors 1."""
        return self.lookup.vocabulary

    def __call__(self, leaf: Any) -> Any:
        """Returns indices or vectors.

        Raises:
            TypeError: The leaf holds no texts.
            ValueError: It is a table of them.
        """
        tokens = self.text_split.tokens(leaf)
        found = self.lookup.encoded(tokens, self.lookup.indices(tokens))
        if self.lookup.output_mode != "int":
            return found
        if isinstance(found, RaggedArray):
            return self._cut(found) if self.ragged else self._padded(found)
        one = RaggedArray(found, np.array([0, len(found)]))
        return (self._cut(one) if self.ragged else self._padded(one))[0]

    def _padded(self, rows: RaggedArray) -> np.ndarray[Any, np.dtype[np.int64]]:
        lengths, starts = np.diff(rows.row_splits), rows.row_splits[:-1]
        width = self.output_sequence_length or int(lengths.max(initial=0))
        out = np.zeros((len(lengths), width), np.int64)
        column = np.arange(width)
        filled = column < lengths[:, None]
        out[filled] = np.asarray(rows.values)[(starts[:, None] + column)[filled]]
        return out

    def _cut(self, rows: RaggedArray) -> RaggedArray:
        most = self.output_sequence_length
        if most is None:
            return rows
        lengths = np.diff(rows.row_splits)
        place = np.arange(len(rows.values)) - np.repeat(rows.row_splits[:-1], lengths)
        return RaggedArray.from_row_lengths(np.asarray(rows.values)[place < most], np.minimum(lengths, most))

    def __element_spec__(self, given: Any) -> Any:
        """Returns the spec of the result for a leaf of the spec `given`."""
        if not isinstance(given, BytesSpec | StrSpec) or given.shape is None or self.ragged:
            return None
        mode, batch = self.lookup.output_mode, given.shape[:1]
        if mode == "int":
            return ArraySpec((*batch, self.output_sequence_length), np.int64)
        dtype = np.float32 if mode == "tf_idf" else np.int64
        return None if mode == "one_hot" else ArraySpec((*batch, self.lookup.depth), dtype)

    def arguments(self) -> dict[str, Any]:
        """See `MapFunction`."""
        return {
            "vocabulary": self.vocabulary,
            "standardize": self.text_split.standardize,
            "split": self.text_split.split,
            "ngrams": self.text_split.ngrams,
            "output_mode": self.lookup.output_mode,
            "output_sequence_length": self.output_sequence_length,
            "ragged": self.ragged,
            "idf_weights": self.lookup.idf_weights,
        }

    def keras_arguments(self) -> dict[str, Any]:
        """See `MapFunction`."""
        return self.arguments()
