"""TensorFlow as the referee of names: what its Datasets have, ours have, with the same arguments."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import asyncdata as ad
from tests.referee.process import Referee

LEFT_OUT = {"fingerprint", "load", "options", "save", "sparse_batch"}
"""Methods that asyncdata has not: see "Coming from tf.data"."""

ARGUMENTS_LEFT_OUT = {"name", "synchronous", "use_unbounded_threadpool"}
"""What graphs and their threads need."""


@pytest.mark.slow
def test_whatever_a_dataset_of_tensorflow_has_is_here_with_its_arguments(referee: Referee) -> None:
    """Constructors and methods, called with the names of TensorFlow's arguments; what is left out is listed."""
    answer = referee.ask("tf_pipelines", {"op": "signatures"})
    missing: dict[str, Any] = {}
    for name, arguments in answer["signatures"].items():
        mine = getattr(ad, name, None) if name.endswith("Dataset") else getattr(ad.Dataset, name, None)
        if mine is None:
            missing[name] = None
        elif arguments is not None:
            lacking = set(arguments) - set(inspect.signature(mine).parameters) - ARGUMENTS_LEFT_OUT
            if lacking:
                missing[name] = lacking
    assert missing == dict.fromkeys(LEFT_OUT)
