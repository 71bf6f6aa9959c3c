"""feed.tensorflow: a tf.data.Dataset with the right signature, also under a strategy."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.architecture.tree import ROOT
from tests.feed.installed import needed_here
from tests.patience import LIMIT_S


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What TensorFlow said, in a process of its own: its threads belong to no test."""
    needed_here("tensorflow")
    outcome = subprocess.run(
        [sys.executable, "-m", "tests.feed.tensorflow_answers"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert outcome.returncode == 0, outcome.stderr
    answers: dict[str, Any] = json.loads(outcome.stdout.splitlines()[-1])
    return answers


def test_every_type_has_its_signature(found: dict[str, Any]) -> None:
    """From the plan, and from the first batch where the plan does not know; strings and ragged leaves, too."""
    assert found["known"] == found["learned"]
    assert found["known"] == {
        "flag": "TensorSpec(shape=(None,), dtype=tf.bool, name=None)",
        "floats": "TensorSpec(shape=(None, 3), dtype=tf.float32, name=None)",
        "name": "TensorSpec(shape=(None,), dtype=tf.string, name=None)",
        "rows": "RaggedTensorSpec(TensorShape([None, None]), tf.int32, 1, tf.int64)",
        "text": "TensorSpec(shape=(None,), dtype=tf.string, name=None)",
    }


def test_batches_are_those_of_the_dataset(found: dict[str, Any]) -> None:
    """With a known cardinality, epoch after epoch."""
    assert found["values"] == found["expected"]
    assert found["cardinality"] == [3, -2]
    assert found["epochs"] == found["expected epochs"]


def test_arrays_of_workers_are_not_copied(found: dict[str, Any]) -> None:
    """TensorFlow takes their memory over."""
    assert found["shared"] == [True] * 3


def test_a_strategy_divides_each_batch(found: dict[str, Any]) -> None:
    """MirroredStrategy with two devices: each element is given once, to one of them; nothing is sharded."""
    assert found["policy"] == "OFF"
    assert sorted(value for step in found["mirrored"] for replica in step for value in replica) == list(range(16))
    assert [[len(replica) for replica in step] for step in found["mirrored"]] == [[2, 2]] * 4


def test_padding_is_marked(found: dict[str, Any]) -> None:
    """With even="pad" the signature has a mask, and what it marks is each element once, in as many steps per rank."""
    batches, made, elements = found["padded"]
    assert batches == ["(None,)", [3, 3], list(range(22))]
    assert made == ["(None,)", [2, 2], list(range(16))]
    assert elements == ["()", [3, 3], list(range(5))]


def test_a_model_is_trained(found: dict[str, Any]) -> None:
    """fit takes the same steps as with tf.data's own dataset."""
    assert found["losses"] == found["expected losses"]


def test_errors_say_what_to_do(found: dict[str, Any]) -> None:
    """Types that TensorFlow does not have or would convert in silence, and datasets without a batch."""
    assert "no type for datetime64" in found["dates"]
    assert "output_signature" in found["empty"]
    assert "no type for NoneType" in found["none"]
    assert "mask" in found["masked"]
    assert "values of float64 where the signature" in found["changing"]
    assert "leaf x" in found["changing"]
    assert not found["changing as told"]
