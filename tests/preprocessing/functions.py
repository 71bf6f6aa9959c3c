"""One map function of each kind, and leaves that it takes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

import asyncdata as ad

FUNCTIONS: Final[list[tuple[Any, Any]]] = [
    (ad.Normalize([1.0, 2.0], [4.0, 9.0]), np.ones((3, 2))),
    (ad.Normalize(1.0, 2.0, invert=True), np.arange(4)),
    (ad.Lookup(["a", b"\xff", "ä"], num_oov_indices=3, mask_token="", salt=7), [b"a", b"\xff", b"z", "ä", ""]),
    (ad.Lookup([5, -1], output_mode="tf_idf", idf_weights=[0.1, 2]), ad.RaggedArray.from_rows([[5, 5], [7]])),
    (ad.Bucketize([0.1, 0.2], output_mode="count"), np.ones((2, 3))),
    (ad.HashToBins(5, mask_value="x", salt=[1, 2]), ["x", "y"]),
    (ad.TextVectorize(["a", "b a"], ngrams=2, output_sequence_length=3, ragged=True), ["b A a", ""]),
    (ad.TextVectorize([b"a"], standardize=None, output_mode="tf_idf", idf_weights=[0.5]), ["a b", "x a a"]),
]
