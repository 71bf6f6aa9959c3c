"""Indices as they are, or as vectors: the output modes of Keras' layers.

| mode | result |
|---|---|
| int | the indices, arranged as the tokens |
| one_hot | a vector per token; an axis of length 1 in the last place makes way for it |
| multi_hot | a vector per document: 1 for each index that occurs in it |
| count | a vector per document: how often each index occurs |
| tf_idf | the counts times the weights of the indices |

An index outside of the vector is left out.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asyncdata.preprocessing.token_leaf import Integers, TokenLeaf
from asyncdata.spec import ArraySpec, BytesSpec, RaggedSpec, StrSpec

MODES: Final = ("int", "one_hot", "multi_hot", "count")
WEIGHTED_MODES: Final = (*MODES, "tf_idf")


def encoded(
    indices: Integers,
    tokens: TokenLeaf,
    mode: str,
    *,
    depth: int,
    dtype: Any,
    weights: npt.NDArray[np.float32] | None = None,
) -> Any:
    """Returns the indices of tokens in an output mode.

    Args:
        indices: One per token.
        tokens: Where they stand.
        mode: See above.
        depth: The length of a vector.
        dtype: Of the result; with weights, theirs.
        weights: One per index, for ``"tf_idf"``.

    Raises:
        ValueError: The mode counts in rows, but they are rows of rows.
    """
    if mode == "int":
        return tokens.arranged(indices.astype(dtype, copy=False))
    inside = (indices >= 0) & (indices < depth)
    if mode == "one_hot":
        return _one_hot(indices, inside, tokens, depth, dtype)
    shape = (*tokens.documents(), depth)
    cells = (tokens.document_ids() * depth + indices)[inside]
    if mode == "multi_hot":
        flat = np.zeros(math.prod(shape), dtype)
        flat[cells] = 1
        return flat.reshape(shape)
    counts = np.bincount(cells, minlength=math.prod(shape)).reshape(shape)
    return counts.astype(dtype, copy=False) if weights is None else counts.astype(weights.dtype) * weights


def _one_hot(indices: Integers, inside: npt.NDArray[np.bool_], tokens: TokenLeaf, depth: int, dtype: Any) -> Any:
    flat = np.zeros((len(indices), depth), dtype)
    flat[np.flatnonzero(inside), indices[inside]] = 1
    found = tokens.arranged(flat)
    if tokens.shape is not None and len(tokens.shape) > 1 and tokens.shape[-1] == 1:
        return found.reshape((*tokens.shape[:-1], depth))
    return found


def encoded_spec(given: Any, mode: str, depth: int, dtype: Any) -> Any:
    """Returns the spec of the result for tokens of the spec `given`; None if it is not known."""
    if isinstance(given, RaggedSpec) and mode == "int":
        return RaggedSpec(given.shape, dtype, given.ragged_rank)
    if not isinstance(given, ArraySpec | BytesSpec | StrSpec) or given.shape is None:
        return None
    if mode == "int":
        return ArraySpec(given.shape, dtype)
    shape = given.shape
    if mode == "one_hot" and (len(shape) < 2 or shape[-1] != 1):
        return None if len(shape) > 1 and shape[-1] is None else ArraySpec((*shape, depth), dtype)
    return ArraySpec((*shape[:-1], depth), dtype)
