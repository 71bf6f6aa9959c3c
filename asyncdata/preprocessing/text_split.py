"""`TextSplit`: texts to tokens, as ``keras.layers.TextVectorization`` does: standardize, split, join to n-grams.

    b"To be, or"  ─standardize─▶  b"to be or"  ─split─▶  to | be | or  ─ngrams=2─▶  to | be | or | to be | be or

Only ASCII letters become small, and only ASCII punctuation and white space count as such, as in TensorFlow.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from asyncdata import arguments
from asyncdata.memory.ragged import RaggedArray
from asyncdata.preprocessing.token_leaf import TokenLeaf, tokens_of

_PUNCTUATION: Final = string.punctuation.encode()
_STANDARDS: Final[dict[str | None, Callable[[bytes], bytes]]] = {
    None: lambda text: text,
    "lower": lambda text: text.lower(),
    "strip_punctuation": lambda text: text.translate(None, _PUNCTUATION),
    "lower_and_strip_punctuation": lambda text: text.lower().translate(None, _PUNCTUATION),
}
_SPLITS: Final = ("whitespace", "character")


@dataclass(frozen=True, slots=True)
class TextSplit:
    """How a text becomes tokens.

    Args:
        standardize: ``"lower_and_strip_punctuation"``, ``"lower"``, ``"strip_punctuation"`` or None.
        split: At ``"whitespace"``, or between each ``"character"``.
        ngrams: The lengths of the n-grams that replace the tokens; None: single tokens.
    """

    standardize: str | None
    split: str
    ngrams: tuple[int, ...] | None

    @classmethod
    def checked(cls, standardize: Any, split: Any, ngrams: Any) -> TextSplit:
        """Makes one of arguments; an integer n means n-grams of 1 to n tokens."""
        lengths = ngrams
        if ngrams is not None:
            up_to = isinstance(ngrams, int | np.integer)
            given = range(1, arguments.integer("ngrams", ngrams, least=1) + 1) if up_to else ngrams
            lengths = arguments.integers("ngrams", given, least=1)
        arguments.choice("standardize", standardize, tuple(_STANDARDS))
        return cls(standardize, arguments.choice("split", split, _SPLITS), lengths)

    def tokens(self, leaf: Any) -> TokenLeaf:
        """Returns the tokens of a leaf: flat for one text, else one row per text.

        Raises:
            TypeError: The leaf holds no texts.
            ValueError: It is a table of them.
        """
        texts = tokens_of(leaf)
        shape = texts.shape
        if not texts.text and len(texts.flat):
            raise TypeError(f"texts are needed here, not {arguments.shown(leaf)}")
        if shape is None or len(shape) > 2 or shape[1:] not in ((), (1,)):
            raise ValueError(f"a text or a batch of texts is needed, not {'ragged rows' if shape is None else shape}")
        rows = [self._row(text) for text in texts.items()]
        flat = [token for row in rows for token in row]
        if not shape:
            return TokenLeaf(flat, (len(flat),))
        # Only the arrangement is of interest here, so the values are numbers.
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        return TokenLeaf(flat, ragged=RaggedArray.from_row_lengths(np.arange(len(flat)), lengths))

    def _row(self, text: bytes) -> list[bytes]:
        clean = _STANDARDS[self.standardize](text)
        if self.split == "whitespace":
            words = clean.split()
        else:
            words = [character.encode() for character in clean.decode("utf-8", "replace")]
        if self.ngrams is None:
            return words
        return [b" ".join(words[at : at + n]) for n in self.ngrams for at in range(len(words) - n + 1)]
