"""feed.keras: fit, evaluate and predict on JAX's and PyTorch's backends, without TensorFlow."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata import feed
from asyncdata.errors import PipelineError, StateError
from asyncdata.feed.run import Conversion
from tests.architecture.tree import ROOT
from tests.feed.installed import needed, needed_here
from tests.patience import LIMIT_S
from tests.samples import SOAK

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


def with_state(per_call: int) -> Any:
    """A model with all kinds of state: random numbers, a metric that is made late, gradients that are accumulated."""
    keras.utils.set_random_seed(1)
    made = keras.Sequential([keras.layers.Dropout(0.3, seed=2), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(0.05, gradient_accumulation_steps=2)
    eager = per_call == 1  # no time for compiling
    made.compile(optimizer, loss="mse", metrics=["mae"], steps_per_execution=per_call, run_eagerly=eager)
    made.build((None, 3))
    return made


class Ended(keras.callbacks.Callback):  # type: ignore[misc]  # keras is not there where types are checked
    """Ends a run after so many calls of the training function, behind the step and in front of a backup."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self._calls = calls

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Ends."""
        self._calls -= 1
        if self._calls < 0:
            raise StoppedError


@pytest.mark.parametrize(
    ("per_call", "save_freq", "ends"),
    [
        (1, 1, range(1, 12) if SOAK else (1, 5, 6, 10)),  # behind the first step, and around the end of an epoch
        (1, np.int64(4), range(1, 12) if SOAK else (5, 10)),
        (1, "epoch", range(1, 12) if SOAK else (8,)),
        *((4, save_freq, (1, 2, 3)) for save_freq in (1, 6) if BACKEND != "torch"),  # which has one step in a call
    ],
)
def test_a_backup_goes_on_inside_an_epoch(
    per_call: int, save_freq: Any, ends: Iterable[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended in any step: the rest of the epoch and the epochs behind it, with the same weights, losses and metrics."""
    path, epochs = tmp_path / "backup.npz", 2
    with monkeypatch.context() as patch:
        found = given(feed.keras(rows(shuffled=True)), patch)

        def run(*first: Any) -> tuple[Any, dict[str, list[float]]]:
            found.clear()
            trained, batches = with_state(per_call), feed.keras(rows(shuffled=True))
            callbacks = [*first, batches.backup(path, save_freq)]
            fitted = trained.fit(
                batches, epochs=epochs, verbose=0, callbacks=callbacks, validation_data=(X, Y), validation_freq=2
            )
            assert batches.position == epochs * batches.num_batches
            return trained.get_weights(), fitted.history

        stream = [batch[0][:, 0].tolist() for batch in rows(shuffled=True).repeat(epochs)]
        weights, history = run()
        for ended in ends:
            with pytest.raises(StoppedError):
                run(Ended(ended))
            begun = json.loads(np.load(path)["head"].tobytes())["position"]["steps"] if path.exists() else 0
            again, rest = run()
            assert found[-(len(stream) - begun) :] == stream[begun:]
            for one, other in zip(again, weights, strict=True):
                np.testing.assert_array_equal(one, other)
            for name, values in rest.items():
                assert values == history[name][len(history[name]) - len(values) :]
            assert len(rest["loss"]) == epochs - begun // 6
            assert not path.exists()


def test_a_backup_is_refused_where_it_does_not_fit(tmp_path: Path) -> None:
    """Another model, a file that is none, an epoch that is not the interrupted one, another length of epochs."""
    path, batches = tmp_path / "backup.npz", feed.keras(rows())
    with pytest.raises(StoppedError):
        model().fit(batches, epochs=2, verbose=0, callbacks=[Ended(3), batches.backup(path, 2)])
    kept = path.read_bytes()

    def refused(error: type[Exception], message: str, trained: Any = None, **more: Any) -> None:
        with pytest.raises(error, match=message):
            (trained or model()).fit(batches, epochs=2, verbose=0, callbacks=[batches.backup(path, 2)], **more)

    entry = kept.index(b"PK\1\2") + len(b"PK\1\2....")  # the flags of the first array in the list of the file
    encrypted, patched = (kept[:entry] + bytes([flags]) + kept[entry + 1 :] for flags in (0x01, 0x20))
    for damaged in (encrypted, patched, kept.replace(b"model.0", b"modem.0"), kept[:-9], b""):
        path.write_bytes(damaged)
        refused(StateError, "not a backup")
    path.write_bytes(kept)
    other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    other.compile(loss="mse")
    refused(StateError, "another model", other)
    refused(ValueError, "steps=n to feed.keras", steps_per_epoch=3)
    refused(ValueError, "resumes in epoch 0, and fit begins in epoch 1", initial_epoch=1)
    for damaged in (b"", b"nothing", kept[: len(kept) // 2]):
        path.write_bytes(damaged)
        refused(StateError, "not a backup")
    wrongs: list[Any] = [0, "batch", None, 1.5]
    for wrong in wrongs:
        with pytest.raises((ValueError, TypeError), match="save_freq"):
            batches.backup(path, wrong)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"null", b"{}"])
def test_a_damaged_position_is_refused(content: bytes, tmp_path: Path) -> None:
    """Not taken for the beginning."""
    path, batches = tmp_path / "position.json", feed.keras(rows())
    path.write_bytes(content)
    with pytest.raises(StateError):
        model().fit(batches, verbose=0, callbacks=[batches.callback(path)])


def test_a_model_can_be_trained_on_behind_a_run_that_went_on(tmp_path: Path) -> None:
    """From its first epoch, as another fit: the number of the interrupted epoch belongs to the run that went on."""
    path, trained = tmp_path / "backup.npz", model()
    batches = feed.keras(rows())
    for ends in ([Ended(8)], []):
        with pytest.raises(StoppedError) if ends else contextlib.nullcontext():
            trained.fit(batches, epochs=2, verbose=0, callbacks=[*ends, batches.backup(path, 1)])
    assert len(trained.fit(batches, epochs=2, verbose=0).history["loss"]) == 2


@pytest.mark.skipif(BACKEND == "torch", reason="has one step in a call")
def test_a_last_call_may_have_fewer_steps(tmp_path: Path) -> None:
    """Keras counts it as if it had as many as the others; what is committed is what was trained on."""
    trained, batches = with_state(4), feed.keras(rows())
    trained.fit(batches, epochs=2, verbose=0, callbacks=[batches.callback(tmp_path / "position.json")])
    assert batches.position == 12


class Positions(keras.callbacks.Callback):  # type: ignore[misc]  # keras is not there where types are checked
    """Asks for the position before each epoch."""

    def __init__(self, batches: Any) -> None:
        super().__init__()
        self.found: list[int] = []
        self._batches = batches

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Asks."""
        self.found.append(self._batches.position)


def test_asking_for_the_position_does_not_hold_it() -> None:
    """A batch that the model was built on is not counted, and those that follow are."""
    batches = feed.keras(rows())
    positions = Positions(batches)
    model(built=False).fit(batches, epochs=3, verbose=0, callbacks=[positions])
    assert positions.found == [0, 6, 12]
    assert batches.position == 18


@pytest.mark.parametrize(
    "between",
    # TensorFlow asks ahead, in a thread that no interrupt reaches.
    ["evaluate", "predict", "fit", *(["interrupt"] if BACKEND != "tensorflow" else [])],
)
def test_training_commits_the_batches_that_it_is_given(between: str, tmp_path: Path) -> None:
    """Behind calls that commit none, and a step that was interrupted; a state that is asked for there is unchanged."""
    path, trained = tmp_path / "backup.npz", model()
    batches = feed.keras(rows(shuffled=True))
    trained.fit(batches, epochs=2, verbose=0, callbacks=[batches.backup(path)])
    if between == "interrupt":
        with pytest.raises(StoppedError):
            trained.fit(batches, verbose=0, callbacks=[Ended(3), batches.backup(path)])
    else:
        getattr(trained, between)(batches, verbose=0)
    assert batches.position == (15 if between == "interrupt" else 12)
    trained.fit(batches, epochs=2, verbose=0, callbacks=[batches.backup(path)])
    again = feed.keras(rows(shuffled=True))
    again.load_state_dict(batches.state_dict())
    np.testing.assert_array_equal(again[0][0], batches[0][0])


@pytest.mark.parametrize("per_epoch", [1, 2, 3])
@pytest.mark.parametrize("built", [True, False])
def test_no_batch_is_predicted_twice(per_epoch: int, *, built: bool) -> None:
    """Nor left out, however short the epochs are, in whichever order predict, evaluate and fit are called."""
    numbers = np.arange(40, dtype=np.float32)[:, None]
    batches = feed.keras(ad.Dataset.from_tensor_slices((numbers, numbers)).batch(1), steps=per_epoch)
    same = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
    same.compile(keras.optimizers.SGD(0.0), loss="mse")
    if built:
        same.build((None, 1))
    found: list[float] = []
    for _ in range(3):
        found += same.predict(batches, verbose=0)[:, 0].tolist()
    if BACKEND != "tensorflow":  # which asks ahead, and would leave batches out
        found += same.predict(batches, verbose=0, steps=1)[:, 0].tolist()
    assert found == list(range(len(found)))
    same.evaluate(batches, verbose=0)
    same.compile(keras.optimizers.SGD(0.0), loss="mae", metrics=["mse"])  # Keras looks at a batch once more
    same.fit(batches, epochs=2, verbose=0)
    expected = len(found) + 3 * per_epoch
    assert batches.position == expected
    assert same.predict(batches, verbose=0)[0, 0] == expected


@pytest.mark.skipif(BACKEND != "jax", reason="asks for no batch ahead on a GPU")
@pytest.mark.parametrize("per_epoch", [1, 2, 5])
def test_a_batch_asked_ahead_is_looked_at_as_the_first_one(per_epoch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Keras does on a GPU, when it builds a model."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    batches = feed.keras(rows(), steps=per_epoch)
    found = given(batches, monkeypatch)
    model(built=False).fit(batches, epochs=2, verbose=0)
    assert found[-2 * per_epoch :] == [batch[0][:, 0].tolist() for batch in rows().repeat(2)][: 2 * per_epoch]
    assert batches.position == 2 * per_epoch


@pytest.mark.skipif(BACKEND == "tensorflow", reason="asks ahead, in a thread that no interrupt reaches")
@pytest.mark.parametrize("end", ["interrupt", "close"])
def test_the_next_call_goes_on_behind_one_that_ended(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while Keras waits for a batch, or close(), ends the pipeline, and not the use of the feed."""
    batches, trained = feed.keras(rows(shuffled=True)), model()
    found = given(batches, monkeypatch)
    if end == "close":
        trained.fit(batches, steps_per_epoch=4, verbose=0)
        batches.close()
    else:
        with monkeypatch.context() as patch:
            patch.setattr(Conversion, "receive", interrupting(4))
            with pytest.raises(KeyboardInterrupt):
                trained.fit(batches, verbose=0)
    assert batches.position == 4
    trained.fit(batches, verbose=0)
    assert found[-10:] == [batch[0][:, 0].tolist() for batch in rows(shuffled=True).repeat(2)][:10]
    assert batches.position == 10


def interrupting(after: int) -> Any:
    """Hands out so many batches, and is interrupted then."""
    receive, left = Conversion.receive, iter(range(after))

    def received(self: Conversion) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return receive(self)

    return received


def test_a_leaf_that_is_no_array_is_named() -> None:
    """Keras would say that it knows no type "object", and not where."""
    texts = ad.Dataset.from_tensor_slices(({"x": X, "name": ["a"] * ROWS}, Y)).batch(BATCH)
    ragged = ad.Dataset.range(1, 7).map(lambda number: (np.arange(number), np.float32(number))).ragged_batch(2)
    for ds, message in (
        (texts, r"this is a BytesArray.*leaf \[0\]\.name"),
        (ragged, r"this is a RaggedArray.*leaf \[0\]"),
    ):
        with pytest.raises(PipelineError, match=message):
            _ = feed.keras(ds)[0]


def test_a_copy_goes_on_where_the_feed_is() -> None:
    """In this process or another."""
    batches = feed.keras(rows(shuffled=True))
    model().fit(batches, epochs=1, verbose=0)
    batches.on_epoch_begin()
    _ = batches[0]
    again = pickle.loads(pickle.dumps(batches))
    assert again.state_dict() == batches.state_dict()
    np.testing.assert_array_equal(again[0][0], batches[0][0])


def test_keras_starts_no_threads_to_take_batches() -> None:
    """They would take them in any order; the dataset has workers of its own."""
    batches: Any = feed.keras(rows())
    assert batches.workers == 1
    with pytest.raises(AttributeError):
        batches.workers = 4


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
    """PyTorch's and TensorFlow's, in processes of their own, as often as in a short run: Keras has one backend each."""
    needed_here(backend)
    outcome = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__))],
        cwd=ROOT,
        env={
            **os.environ,
            "ASYNCDATA_SOAK": "",
            "KERAS_BACKEND": backend,
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
