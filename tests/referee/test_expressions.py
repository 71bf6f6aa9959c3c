"""TensorFlow as the referee of arguments: all constructors and transformations with values that are seldom given."""

from __future__ import annotations

import json
from typing import Any

import pytest

import asyncdata as ad
from tests.referee import expressions
from tests.referee.process import Referee
from tests.samples import samples

NUMPYS = {'"<i4"': '"<i8"', '"<f4"': '"<f8"'}
"""Python's numbers are 32 bits wide for TensorFlow, 64 for numpy."""


def widened(answer: dict[str, Any]) -> dict[str, Any]:
    """The same with numbers of numpy's widths."""
    text = json.dumps(answer)
    for narrow, wide in NUMPYS.items():
        text = text.replace(narrow, wide)
    found: dict[str, Any] = json.loads(text)
    return found


def agree(found: Any, expected: Any) -> bool:
    """Whether what is known of a spec is true."""
    if found is None or expected is None:
        return True
    if isinstance(found, dict) and isinstance(expected, dict):
        ((kind, mine),), ((other, theirs),) = found.items(), expected.items()
        if kind != other or len(mine) != len(theirs):
            return False
        keys = range(len(mine)) if kind == "tuple" else mine
        return all(key in keys and agree(mine[key], theirs[key]) for key in keys)
    return bool(found == expected)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_expressions_mean_what_they_mean_to_tensorflow(referee: Referee) -> None:
    """Elements, specs, cardinality, and which of them are refused; what TensorFlow alone refuses is listed."""
    chosen = expressions.lines()[:: samples(12, 1)]
    wrong: list[Any] = []
    with ad.Runtime(ad.Options(num_workers=0)):
        for line, wider in chosen:
            expected = referee.ask("tf_expressions", line)
            assert expected is not None, line
            expected, found = widened(expected), widened(expressions.answer(line))
            both = line, expected["error"], found["error"], expected["elements"], found["elements"]
            if wider:
                if expected["error"] is None or found["error"] is not None:
                    wrong.append(("wider", *both))
                continue
            if (found["error"] is None) != (expected["error"] is None) or found["elements"] != expected["elements"]:
                wrong.append(both)
            counts = {expected["cardinality"], found["cardinality"]}
            if expected["cardinality"] is not None and len(counts - {ad.UNKNOWN_CARDINALITY}) > 1:
                wrong.append((line, "cardinality", expected["cardinality"], found["cardinality"]))
            if not agree(found["spec"], expected["spec"]):
                wrong.append((line, "spec", expected["spec"], found["spec"]))
    assert wrong == []
