"""`TextVocabulary`: learns the words of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asyncdata.preprocessing.text_split import TextSplit
from asyncdata.preprocessing.text_vectorize import STANDARD, TextVectorize
from asyncdata.preprocessing.token_counts import TokenCounts
from asyncdata.preprocessing.vocabulary import MEMORY_BYTES, Vocabulary


class TextVocabulary:
    """For `adapt`: counts the words of texts, and becomes a `TextVectorize` of the most frequent ones.

    Args:
        max_tokens: The most indices, those for padding and for unknown words included. None: all words are learned.
        standardize: See `TextVectorize`.
        split: See `TextVectorize`.
        ngrams: See `TextVectorize`.
        output_mode: See `Vocabulary`; a text is a document.
        output_sequence_length: See `TextVectorize`.
        ragged: See `TextVectorize`.
        memory_limit_bytes: See `Vocabulary`.

    Example:
        >>> import asyncdata as ad
        >>> ds = ad.Dataset.from_tensor_slices(["To be", "or not to be?"]).batch(2)
        >>> vectorize = ad.adapt(ds, ad.TextVocabulary(max_tokens=4))
        >>> vectorize.vocabulary, vectorize("to be me").tolist()
        (['to', 'be'], [2, 3, 1])
    """

    def __init__(
        self,
        max_tokens: int | None = None,
        *,
        standardize: str | None = STANDARD,
        split: str = "whitespace",
        ngrams: int | Sequence[int] | None = None,
        output_mode: str = "int",
        output_sequence_length: int | None = None,
        ragged: bool = False,
        memory_limit_bytes: int = MEMORY_BYTES,
    ) -> None:
        self._words = Vocabulary(
            max_tokens, mask_token="", output_mode=output_mode, memory_limit_bytes=memory_limit_bytes
        )
        self._text_split = TextSplit.checked(standardize, split, ngrams)
        self._vectorize: dict[str, Any] = {
            "standardize": standardize,
            "split": split,
            "ngrams": ngrams,
            "output_mode": output_mode,
            "output_sequence_length": output_sequence_length,
            "ragged": ragged,
        }
        # What it refuses is refused now.
        TextVectorize([], **self._vectorize, idf_weights=[] if output_mode == "tf_idf" else None)

    def summary(self, leaf: Any) -> TokenCounts:
        """Returns the counts of the words of one leaf, in any process.

        Raises:
            TypeError: The leaf holds no texts.
        """
        return self._words.counted(self._text_split.tokens(leaf))

    def learned(self, found: TokenCounts) -> TextVectorize:
        """Returns the map function."""
        words = self._words.learned(found)
        return TextVectorize(words.vocabulary, **self._vectorize, idf_weights=words.idf_weights)  # type: ignore[arg-type]  # texts
