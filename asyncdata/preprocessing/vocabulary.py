"""`Vocabulary`: learns the tokens of a leaf, the most frequent ones first."""

from __future__ import annotations

import math
from typing import Any, Final

from asyncdata import arguments
from asyncdata.preprocessing.lookup import Lookup, Salt
from asyncdata.preprocessing.token_counts import Counted, TokenCounts
from asyncdata.preprocessing.token_leaf import Term, TokenLeaf, as_bytes, tokens_of
from asyncdata.wording import counted

MEMORY_BYTES: Final = 256 << 20
"""Default memory for counts, before they are written to a temporary file."""
_NEVER_LEARNED: Final[tuple[Term, ...]] = (b"[UNK]", -1)
"""Keras' names of the unknown token."""


class Vocabulary:
    """For `adapt`: counts texts or integers, and becomes a `Lookup` of the most frequent ones.

    Tokens are ordered by falling count; tokens of one count from the greatest to the smallest, as in Keras. Counts are
    exact: beyond `memory_limit_bytes` they are sorted into a temporary file. As in Keras, the text ``[UNK]`` and the
    number -1 stand for unknown tokens, and are never learned.

    Args:
        max_tokens: The most indices of the `Lookup`, those for the mask and for unknown tokens included. None: all
            tokens are learned, and the vocabulary has to fit in memory.
        num_oov_indices: See `Lookup`.
        mask_token: See `Lookup`; it is not learned.
        output_mode: See `Lookup`. For ``"tf_idf"``, documents are counted: a weight is
            ``log(1 + documents / (1 + documents with the token))``.
        salt: See `Lookup`.
        memory_limit_bytes: About how much memory the counts may take, in the process that calls `adapt`.

    Example:
        >>> import asyncdata as ad
        >>> ds = ad.Dataset.from_tensor_slices(["to", "be", "or", "not", "to", "be"]).batch(4)
        >>> lookup = ad.adapt(ds, ad.Vocabulary(max_tokens=4))
        >>> lookup.vocabulary, lookup(["be", "not", "never"]).tolist()
        (['to', 'be', 'or'], [2, 0, 0])
    """

    def __init__(
        self,
        max_tokens: int | None = None,
        *,
        num_oov_indices: int = 1,
        mask_token: str | bytes | int | None = None,
        output_mode: str = "int",
        salt: Salt = None,
        memory_limit_bytes: int = MEMORY_BYTES,
    ) -> None:
        self.max_tokens = arguments.integer_or_none("max_tokens", max_tokens, least=2)
        self.memory_limit_bytes = arguments.integer("memory_limit_bytes", memory_limit_bytes, least=1)
        self._weighted = output_mode == "tf_idf"
        self._lookup: dict[str, Any] = {
            "num_oov_indices": num_oov_indices,
            "mask_token": mask_token,
            "output_mode": output_mode,
            "salt": salt,
        }
        # What it refuses is refused now, and the number of its indices without a vocabulary is known.
        empty = Lookup([], **self._lookup, idf_weights=[] if self._weighted else None)
        self._special = empty.depth
        if self.max_tokens is not None and self.max_tokens <= self._special:
            raise ValueError(
                f"max_tokens={max_tokens} leaves no place behind "
                f"{counted(self._special, 'special index', 'special indices')}"
            )

    def summary(self, leaf: Any) -> TokenCounts:
        """Returns the counts of one leaf, in any process.

        Raises:
            TypeError: The leaf holds neither texts nor integers.
        """
        return self.counted(tokens_of(leaf))

    def counted(self, tokens: TokenLeaf) -> TokenCounts:
        """Returns the counts of tokens."""
        counts = TokenCounts(self.memory_limit_bytes, by_document=self._weighted)
        counts.add(tokens)
        return counts

    def learned(self, found: TokenCounts) -> Lookup:
        """Returns the map function."""
        mask = self._lookup["mask_token"]
        without = (*_NEVER_LEARNED, as_bytes(mask) if isinstance(mask, str) else mask)
        most = None if self.max_tokens is None else self.max_tokens - self._special
        chosen = found.most_frequent(most, [token for token in without if token is not None])
        weights = [_idf(each, found.documents) for each in chosen] if self._weighted else None
        return Lookup([each.token for each in chosen], **self._lookup, idf_weights=weights)


def _idf(counted: Counted, documents: int) -> float:
    """The inverse document frequency."""
    return math.log(1 + documents / (1 + counted.documents))
