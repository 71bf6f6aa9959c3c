"""feed.keras: fit, evaluate and predict on JAX's and PyTorch's backends, without TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata import feed
from asyncdata.errors import PipelineError
from tests.architecture.tree import ROOT
from tests.feed.installed import needed, needed_here
from tests.patience import LIMIT_S

needed("keras")
if os.environ["KERAS_BACKEND"] == "jax":
    needed("jax")
    import jax

    jax.devices()  # the threads of the backend begin here, and belong to no test
import keras  # noqa: E402 -- behind the check

ROWS, BATCH = 22, 4
BACKEND = keras.backend.backend()
if BACKEND == "tensorflow":
    pytestmark = pytest.mark.leaks("TensorFlow starts threads when it needs them, and keeps them")
LOOKED_AT = 2 if BACKEND == "tensorflow" else 1
"""Batches that Keras takes before it trains: to build a model or its metrics, or to learn types."""
X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)


def model(*, built: bool = True) -> Any:
    """A small model, the same each time."""
    keras.utils.set_random_seed(1)
    made = keras.Sequential([keras.layers.Dense(1)])
    made.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
    if built:
        made.build((None, 3))
    return made


def rows(*, shuffled: bool = False) -> ad.Dataset:
    """All rows, in batches of which the last is short."""
    ds = ad.Dataset.from_tensor_slices((X, Y))
    return (ds.shuffle(ROWS, seed=1) if shuffled else ds).batch(BATCH)


def losses(trained: Any) -> list[float]:
    """Of each epoch."""
    return [round(loss, 5) for loss in trained.history["loss"]]


def given(batches: Any, monkeypatch: pytest.MonkeyPatch) -> list[list[float]]:
    """The first column of every batch that Keras takes, as it takes them."""
    found: list[list[float]] = []
    take = type(batches).__getitem__

    def watched(self: Any, index: int) -> Any:
        batch = take(self, index)
        found.append(batch[0][:, 0].tolist())
        return batch

    monkeypatch.setattr(type(batches), "__getitem__", watched)
    return found


def test_training_is_that_of_the_same_arrays() -> None:
    """Epoch after epoch, with validation, evaluation and prediction; a batch to build the model on is not lost."""
    expected, found = model(built=False), model(built=False)
    arrays = expected.fit(X, Y, batch_size=BATCH, epochs=3, shuffle=False, verbose=0, validation_data=(X, Y))
    batches = feed.keras(rows())
    fed = found.fit(batches, epochs=3, verbose=0, validation_data=feed.keras(rows()))
    assert losses(fed) == losses(arrays)
    np.testing.assert_allclose(fed.history["val_loss"], arrays.history["val_loss"], rtol=1e-5)
    np.testing.assert_allclose(found.get_weights()[0], expected.get_weights()[0], rtol=1e-5)
    for _ in range(2):
        np.testing.assert_allclose(found.evaluate(batches, verbose=0), expected.evaluate(X, Y, verbose=0), rtol=1e-5)
        predicted = found.predict(feed.keras(rows()), verbose=0)
        np.testing.assert_allclose(predicted, expected.predict(X, verbose=0), rtol=1e-4)
    np.testing.assert_allclose(model(built=False).predict(feed.keras(rows()), verbose=0).shape, (ROWS, 1))


@pytest.mark.parametrize("built", [True, False])
def test_every_epoch_is_the_datasets_next_one(*, built: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of equal length, each in the order of the dataset, though Keras shuffles indices and drops iterators."""
    batches = feed.keras(rows(shuffled=True))
    found = given(batches, monkeypatch)
    model(built=built).fit(batches, epochs=3, verbose=0)
    stream = [batch[0][:, 0].tolist() for batch in rows(shuffled=True).repeat(3)]
    assert found == stream[:LOOKED_AT] + stream
    assert len(stream) == 3 * batches.num_batches
    assert batches.position == len(stream)


@pytest.mark.parametrize("known", [True, False])
def test_an_epoch_takes_as_many_steps_as_one_says(*, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next epoch goes on behind them; unknown and endless datasets need the number."""
    ds = rows() if known else rows().filter(lambda *_: True)
    batches = feed.keras(ds, steps=4)
    found = given(batches, monkeypatch)
    model().fit(batches, epochs=4, verbose=0)
    stream = [batch[0][:, 0].tolist() for batch in ds.repeat(3)][:16]
    assert found == stream[:LOOKED_AT] + stream
    for refused, message in (
        (rows().filter(lambda *_: True), "not known"),
        (rows().repeat(), "infinite"),
        (rows().take(0), "no batch"),
    ):
        with pytest.raises(PipelineError, match=message):
            feed.keras(refused)


def test_an_epoch_may_be_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a model that is built, or trained already: no batch is taken for one that the model was built on."""
    trained = model()
    stream = [batch[0][:, 0].tolist() for batch in rows()]
    for _ in range(2):
        with monkeypatch.context() as patch:
            batches = feed.keras(rows(), steps=1)
            found = given(batches, patch)
            trained.fit(batches, epochs=4, verbose=0, callbacks=[batches.callback(tmp_path / "position.json")])
        assert found[-4:] == stream[:4]
        assert batches.position == 4


class StoppedError(Exception):
    """Ends a run as a crash would."""


class Interrupt(keras.callbacks.Callback):  # type: ignore[misc]  # keras is not there where types are checked
    """Ends a run in the middle of an epoch."""

    def __init__(self, epoch: int, batch: int) -> None:
        super().__init__()
        self._at = epoch, batch
        self._epoch = -1

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Counts."""
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Ends."""
        if (self._epoch, batch) == self._at:
            raise StoppedError


@pytest.mark.parametrize("epoch", [0, 2])
def test_an_interrupted_run_goes_on(epoch: int, tmp_path: Path) -> None:
    """Beside BackupAndRestore: the same weights as without the interruption, whichever epoch it is in."""

    def run(*more: Any) -> Any:
        trained, batches = model(), feed.keras(rows(shuffled=True))
        callbacks = [
            keras.callbacks.BackupAndRestore(str(tmp_path / "backup")),
            batches.callback(tmp_path / "position.json"),
        ]
        trained.fit(batches, epochs=4, verbose=0, callbacks=[*callbacks, *more])
        return trained.get_weights()[0]

    expected = run()
    assert not (tmp_path / "position.json").exists()
    with pytest.raises(StoppedError):
        run(Interrupt(epoch, 2))
    assert (tmp_path / "position.json").exists() == (epoch > 0)
    np.testing.assert_array_equal(run(), expected)


def test_the_position_counts_what_was_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saved every three batches, several steps in one call: the next run's first batch is the one behind these."""
    trained, batches = model(), feed.keras(rows(shuffled=True))
    path = tmp_path / "position.json"
    at_once = 1 if BACKEND == "torch" else 2  # PyTorch's backend has no more
    trained.compile(loss="mse", steps_per_execution=at_once)
    with pytest.raises(StoppedError):
        trained.fit(batches, epochs=2, verbose=0, callbacks=[batches.callback(path, 3), Interrupt(0, 3)])
    saved = 2 + at_once
    assert json.loads(path.read_bytes())["steps"] == saved
    again = feed.keras(rows(shuffled=True))
    found = given(again, monkeypatch)
    trained.fit(again, epochs=1, verbose=0, callbacks=[again.callback(path, 3)])
    assert found[-6:] == [batch[0][:, 0].tolist() for batch in rows(shuffled=True).repeat(2)][saved : saved + 6]


def test_ranks_take_equal_numbers_of_different_batches() -> None:
    """As many as the rank with the fewest has."""
    ds = ad.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
    ranks = [feed.keras(ds, rank=rank, world=4) for rank in range(4)]
    assert [len(rank[0][0]) for rank in ranks] == [4] * 4
    assert {rank.num_batches for rank in ranks} == {2}
    first = {tuple(rank[1][0][:, 0].tolist()) for rank in ranks}
    assert len(first) == 4


WITHOUT_TENSORFLOW = """
import sys

sys.modules["tensorflow"] = None  # importing it is an error from now on
from tests.feed.test_keras_dataset import feed, losses, model, rows

batches = feed.keras(rows())
found = losses(model().fit(batches, epochs=2, verbose=0, validation_data=feed.keras(rows())))
model().predict(feed.keras(rows()), verbose=0)
print(found)
"""


@pytest.mark.skipif(BACKEND == "tensorflow", reason="is the backend")
def test_tensorflow_is_not_needed() -> None:
    """Where it is installed Keras loads it on every backend, so here it cannot."""
    outcome = subprocess.run(
        [sys.executable, "-c", WITHOUT_TENSORFLOW],
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": BACKEND},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert outcome.returncode == 0, outcome.stderr
    assert json.loads(outcome.stdout) == losses(model().fit(feed.keras(rows()), epochs=2, verbose=0))


@pytest.mark.skipif(BACKEND != "jax", reason="is another one")
@pytest.mark.parametrize("backend", ["torch", "tensorflow"])
def test_the_other_backends_pass_the_same_tests(backend: str, tmp_path: Path) -> None:
    """PyTorch's and TensorFlow's, in processes of their own: Keras has one backend for each."""
    needed_here(backend)
    outcome = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__))],
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": backend, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
