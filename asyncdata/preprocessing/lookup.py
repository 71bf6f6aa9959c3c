"""`Lookup`: tokens to indices of a vocabulary, as ``keras.layers.StringLookup`` and ``IntegerLookup`` do.

    index    0          1 … num_oov_indices    then
             the mask   unknown tokens         the vocabulary, in its order

There is a place for the mask only if there is a mask token and the mode is ``"int"``; in the other modes masked tokens
are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, repeat
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asyncdata import arguments
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.preprocessing.encoding import WEIGHTED_MODES, encoded, encoded_spec
from asyncdata.preprocessing.farmhash import fingerprint64
from asyncdata.preprocessing.function import MapFunction, are_float32
from asyncdata.preprocessing.siphash import siphash
from asyncdata.preprocessing.token_leaf import Integers, Term, TokenLeaf, as_text, tokens_of, vocabulary_of

Salt = int | Sequence[int] | None

_UNKNOWN: Final = -1
_MASKED: Final = -2


class Lookup(MapFunction):
    """A map function from texts or integers to their indices in a vocabulary, or to vectors of these indices.

    Texts may be ``str`` or ``bytes``, in any arrangement: single, a `BytesArray`, an array of objects, a `RaggedArray`.
    ``"multi_hot"``, ``"count"`` and ``"tf_idf"`` make one vector of the last axis, the document.

    Args:
        vocabulary: The tokens, all texts or all integers, each once; of a layer of Keras
            ``get_vocabulary(include_special_tokens=False)``.
        num_oov_indices: Indices for unknown tokens. With several, FarmHash64 chooses one for a text, the remainder for
            an integer. With 0, an unknown token is an error.
        mask_token: A token that means "nothing here": index 0, or left out of vectors.
        output_mode: ``"int"``, ``"one_hot"``, ``"multi_hot"``, ``"count"`` (all int64) or ``"tf_idf"`` (float32).
        idf_weights: For ``"tf_idf"``: the weight of each token of the vocabulary; unknown tokens have their mean.
        salt: One or two integers: SipHash with this key chooses the index of an unknown token.

    Example:
        >>> import asyncdata as ad
        >>> ad.Lookup(["b", "a"])([b"a", b"z", b"b"]).tolist()
        [2, 0, 1]
        >>> ad.Lookup([7, 8], output_mode="count")([[7, 7, 1], [8, 0, 0]]).tolist()
        [[1, 2, 0], [2, 0, 1]]
    """

    def __init__(
        self,
        vocabulary: Any,
        *,
        num_oov_indices: int = 1,
        mask_token: str | bytes | int | None = None,
        output_mode: str = "int",
        idf_weights: Any = None,
        salt: Salt = None,
    ) -> None:
        self._tokens = vocabulary_of("vocabulary", vocabulary)
        self.num_oov_indices = arguments.integer("num_oov_indices", num_oov_indices, least=0)
        self.output_mode: str = arguments.choice("output_mode", output_mode, WEIGHTED_MODES)
        self._mask: Term | None = None if mask_token is None else vocabulary_of("mask_token", [mask_token])[0]
        self.salt = salt_of(salt)
        self.idf_weights = self._weights_of(idf_weights)
        kinds = set(map(type, self._tokens if self._mask is None else [*self._tokens, self._mask]))
        if len(kinds) > 1:
            raise TypeError("mask_token must be a text if the vocabulary consists of texts, else an integer")
        self._text = kinds == {bytes}
        first = self._first_unknown + self.num_oov_indices
        if self._mask in self._tokens:
            raise ValueError(f"the vocabulary contains the mask token {mask_token!r}")
        self._index: dict[Term, int] = {token: first + place for place, token in enumerate(self._tokens)}
        if self._mask is not None:
            self._index[self._mask] = 0 if self.output_mode == "int" else _MASKED
        self.depth = first + len(self._tokens)
        self._weights: npt.NDArray[np.float32] | None = None
        if self.idf_weights is not None:
            front = float(np.mean(self.idf_weights)) if len(self.idf_weights) else 0.0
            self._weights = np.array([*[front] * self.num_oov_indices, *self.idf_weights], np.float32)

    @property
    def vocabulary(self) -> list[str | int]:
        """The tokens without mask and unknown ones; the place of the first is ``depth - len(vocabulary)``."""
        return list(map(as_text, self._tokens))

    @property
    def keras_layer(self) -> str:  # type: ignore[override]  # one class here, two there
        """See `MapFunction`."""
        return "StringLookup" if self._text or not self._index else "IntegerLookup"

    def __call__(self, leaf: Any) -> Any:
        """Returns indices or vectors.

        Raises:
            TypeError: The leaf holds other tokens than the vocabulary.
            ValueError: A token is unknown, and there is no index for it.
        """
        tokens = tokens_of(leaf)
        return self.encoded(tokens, self.indices(tokens))

    def indices(self, tokens: TokenLeaf) -> Integers:
        """Returns the index of each token.

        Raises:
            TypeError: They are of another kind than the vocabulary.
            ValueError: One is unknown, and there is no index for it.
        """
        items = tokens.items()
        if items and self._index and tokens.text is not self._text:
            kinds = ("texts", "integers") if self._text else ("integers", "texts")
            raise TypeError(f"the vocabulary consists of {kinds[0]}, and the leaf of {kinds[1]}")
        found = np.fromiter(map(self._index.get, items, repeat(_UNKNOWN)), np.int64, len(items))
        if self.num_oov_indices == 1:
            found[found == _UNKNOWN] = self._first_unknown
            return found
        unknown = np.flatnonzero(found == _UNKNOWN)
        if len(unknown):
            found[unknown] = self._first_unknown + self._buckets([items[place] for place in unknown.tolist()])
        return found

    def encoded(self, tokens: TokenLeaf, indices: Integers) -> Any:
        """Returns indices of tokens in the output mode."""
        mode, depth = self.output_mode, self.depth
        return encoded(indices, tokens, mode, depth=depth, dtype=np.int64, weights=self._weights)

    def __element_spec__(self, given: Any) -> Any:
        """Returns the spec of the result for a leaf of the spec `given`."""
        return encoded_spec(given, self.output_mode, self.depth, np.int64 if self._weights is None else np.float32)

    def arguments(self) -> dict[str, Any]:
        """See `MapFunction`."""
        return {
            "vocabulary": self.vocabulary,
            "num_oov_indices": self.num_oov_indices,
            "mask_token": None if self._mask is None else as_text(self._mask),
            "output_mode": self.output_mode,
            "idf_weights": self.idf_weights,
            "salt": self.salt,
        }

    def keras_arguments(self) -> dict[str, Any]:
        """See `MapFunction`."""
        said = self.arguments()
        if self.salt is not None and not self._text:
            said["oov_method"] = "farmhash"
        # A layer passes over a first token that has the name of the unknown ones.
        taken = {*said["vocabulary"], said["mask_token"]}
        texts = self.keras_layer == "StringLookup"
        names = (f"[UNK]{'_' * number}" if texts else -1 - number for number in count())
        return {**said, "oov_token": next(name for name in names if name not in taken)}

    @property
    def _first_unknown(self) -> int:
        return int(self._mask is not None and self.output_mode == "int")

    def _buckets(self, unknown: list[Any]) -> Integers:
        """The place of each unknown token among the indices for them."""
        count = self.num_oov_indices
        if not count:
            shown = arguments.shown(unknown[0])
            raise ValueError(
                f"the token {shown} is not in the vocabulary, and num_oov_indices=0 leaves no index for it"
            )
        text = isinstance(unknown[0], bytes)  # a vocabulary of nothing does not know
        if not text and self.salt is None:
            return np.array([token % count for token in unknown], np.int64)
        texts = unknown if text else [b"%d" % token for token in unknown]
        return hashed(BytesArray.from_items(texts), count, self.salt)

    def _weights_of(self, weights: Any) -> list[float] | None:
        if (weights is not None) != (self.output_mode == "tf_idf"):
            raise ValueError('idf_weights and output_mode="tf_idf" go together')
        if weights is None:
            return None
        found = [float(weight) for weight in weights]
        if len(found) != len(self._tokens) or not are_float32(found):
            raise ValueError(f"idf_weights must be {len(self._tokens)} finite numbers, one per token of the vocabulary")
        return found


def hashed(texts: BytesArray, count: int, salt: tuple[int, int] | None) -> Integers:
    """Returns a number below `count` for each text: FarmHash64, or SipHash with a salt."""
    hashes = fingerprint64(texts) if salt is None else siphash(texts, salt)
    return (hashes % np.uint64(count)).astype(np.int64)


def salt_of(salt: Salt) -> tuple[int, int] | None:
    """Returns the key of SipHash.

    Raises:
        ValueError: It is not one integer, or two.
    """
    if salt is None:
        return None
    found = arguments.integers("salt", [salt, salt] if isinstance(salt, int | np.integer) else salt)
    if len(found) != 2:
        raise ValueError(f"salt must be one integer or two, not {arguments.shown(salt)}")
    return found[0], found[1]
