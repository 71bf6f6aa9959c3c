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
]
