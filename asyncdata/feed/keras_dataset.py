"""Keras: a dataset as a PyDataset, for fit, evaluate and predict on any backend; the only file that imports keras.

`KerasBatches` knows which batches Keras uses. Only Keras' public interface is used, with one exception in `_Backup`.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import keras
import numpy as np
import numpy.typing as npt

from asyncdata import arguments
from asyncdata.dataset.dataset import Dataset
from asyncdata.errors import PipelineError, StateError
from asyncdata.feed.even import known_steps
from asyncdata.feed.keras_batches import KerasBatches
from asyncdata.feed.ranks import Division
from asyncdata.options import read_environment
from asyncdata.replacing import replacing

SaveFreq: TypeAlias = "Literal['epoch'] | int"

_VERSION: Final = 1


class KerasFeed(keras.utils.PyDataset):  # type: ignore[misc]  # keras is not there where types are checked
    """Batches for ``fit``, ``evaluate`` and ``predict``; `asyncdata.feed.keras` makes it."""

    def __init__(self, dataset: Dataset, division: Division, steps: int | None) -> None:
        super().__init__()
        if steps is None:
            mine = division.find(None, read_environment())
            steps = known_steps("drop", *division.counts(dataset, mine))
            if steps is None or steps < 0:
                raise PipelineError(
                    f"how many batches {dataset!r} has is {'infinite' if steps else 'not known in advance'}: say how "
                    "many an epoch of Keras takes with steps=..., or put assert_cardinality(n) after the dataset"
                )
        if steps == 0:
            raise PipelineError(f"{dataset!r} has no batch, or too few for all ranks")
        self._batches = KerasBatches(dataset, division, steps)

    @property
    def num_batches(self) -> int:
        """Steps of the epoch of Keras that begins next: fewer in one that resumes where it was interrupted."""
        return self._batches.next_steps

    @property
    def workers(self) -> int:
        """One, because the dataset has workers of its own. Keras asks for it when a call begins, and only then."""
        self._batches.begin_call()
        return 1

    def __getitem__(self, index: int) -> Any:
        """The next batch, whatever the index: the order belongs to the dataset."""
        return self._batches.take()

    def on_epoch_begin(self) -> None:
        """Keras calls it before each epoch, and before it builds a model."""
        self._batches.begin_epoch()

    def on_epoch_end(self) -> None:
        """Keras calls it after each epoch, and before the first one."""
        self._batches.end_epoch()

    @property
    def position(self) -> int:
        """Batches that were used, those before a loaded state included."""
        return self._batches.position

    def commit(self, position: int) -> None:
        """Says how many batches were used; see `callback`.

        Raises:
            ValueError: So many were not handed out, or more were committed before.
        """
        self._batches.commit(position)

    def state_dict(self) -> dict[str, Any]:
        """After the batches that were handed out or, if any were committed, after those; JSON-serializable."""
        return self._batches.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next batch is the one after the state.

        Raises:
            StateError: It is of something else.
        """
        self._batches.load_state_dict(state)

    def close(self) -> None:
        """Ends the pipeline, and waits for it. Without it the pipeline ends when nobody refers to the feed any more.

        The next call of ``fit``, ``evaluate`` or ``predict`` begins another one at the same position.
        """
        self._batches.close()

    def callback(self, path: str | os.PathLike[str]) -> Any:
        """A ``keras.callbacks.Callback`` that saves the position after each epoch, for use beside ``BackupAndRestore``.

        It commits each batch that was trained on, loads the file when training begins if it is there, and removes it
        when training is complete. To save inside epochs, use `backup`.

        Args:
            path: A local file.
        """
        return _Position(self._batches, Path(path))

    def backup(self, path: str | os.PathLike[str], save_freq: SaveFreq = "epoch") -> Any:
        """A ``keras.callbacks.Callback`` in the place of ``BackupAndRestore``, which can resume inside an epoch.

        It saves all variables of the model, its optimizer and its metrics, the number of the epoch and the position, in
        one file that is replaced as a whole. A run that finds the file takes what is left of the interrupted epoch, and
        the epochs after it. The file is removed when training is complete.

        Args:
            path: A local file.
            save_freq: ``"epoch"`` saves after each epoch; a number after that many batches, and where these end with
                the epoch, after its validation.
        """
        if save_freq != "epoch":
            save_freq = arguments.integer("save_freq", save_freq, least=1)
        return _Backup(self._batches, Path(path), save_freq)


class _Used(keras.callbacks.Callback):  # type: ignore[misc]  # as above
    """Commits the batches that were trained on.

    Attributes:
        used: Batches that this process has trained on in the running epoch.
        left: Batches that the epoch had when this process began with it.
    """

    def __init__(self, batches: KerasBatches) -> None:
        super().__init__()
        self.used = self.left = 0
        self._batches = batches
        self._before = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """The model is built."""
        self._batches.begin_training()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Keras counts the batches of each epoch."""
        self.used, self.left = 0, self._batches.next_steps
        self._before = self._batches.position

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """So many batches were trained on."""
        # With steps_per_execution one call takes several steps, and Keras counts as if the last call had as many.
        self.used = min(batch + 1, self.left)
        self._batches.commit(self._before + self.used)


class _Position(_Used):
    """Keeps the position of a feed in a file; see `KerasFeed.callback`."""

    def __init__(self, batches: KerasBatches, path: Path) -> None:
        super().__init__(batches)
        self._path = path

    def on_train_begin(self, logs: Any = None) -> None:
        """Goes on where a run was interrupted."""
        super().on_train_begin(logs)
        if self._path.exists():
            try:
                state = json.loads(self._path.read_bytes())
            except ValueError as error:
                raise StateError("the file of a position is damaged", url=str(self._path)) from error
            self._batches.load_state_dict(state)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Behind the validation."""
        with replacing(self._path, "the state", type(self).__name__) as file:
            file.write(json.dumps(self._batches.state_dict(), allow_nan=False).encode())

    def on_train_end(self, logs: Any = None) -> None:
        """Nothing is left to resume."""
        self._path.unlink(missing_ok=True)


class _Backup(_Used):
    """Keeps a training run in a file; see `KerasFeed.backup`."""

    def __init__(self, batches: KerasBatches, path: Path, save_freq: SaveFreq) -> None:
        super().__init__(batches)
        self._path = path
        self._save_freq = save_freq
        self._unsaved = 0
        self._epoch = 0
        self._done = 0  # batches of the running epoch that were trained on before this process
        self._metrics: list[npt.NDArray[Any]] | None = None  # of a resumed run, until its first epoch begins
        self._no_warning = contextlib.ExitStack()

    def on_train_begin(self, logs: Any = None) -> None:
        """Goes on where a run was interrupted."""
        super().on_train_begin(logs)
        model, steps = self.model, self._batches.steps
        if not model.built:
            raise ValueError("build the model before fit, so that its variables can be restored: model.build(shape)")
        if self.params["steps"] != steps:
            raise ValueError(
                f"an epoch of fit has {self.params['steps']} steps, and one of the feed {steps}: give steps=n to "
                "feed.keras instead of steps_per_epoch=n to fit"
            )
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        self._unsaved = self._epoch = self._done = 0
        self._metrics = None
        if self._path.exists():
            self._restore(model)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Keras has reset the metrics."""
        self.model._initial_epoch = None  # noqa: SLF001 -- it would be that of the next fit, too
        goes_on, self._metrics = self._metrics, None
        if goes_on is None:
            self._done = 0
        elif epoch != self._epoch:
            raise ValueError(
                f"{self._path} resumes in epoch {self._epoch}, and fit begins in epoch {epoch}: remove the file, or "
                "leave initial_epoch= and BackupAndRestore out"
            )
        elif self._done:
            self._batches.next_steps = self._batches.steps - self._done
            self._restore_metrics(self.model, goes_on)
            # An epoch that ends before the others is a reason for Keras to warn, and to continue.
            self._no_warning.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", "Your input ran out of data", UserWarning)
        self._epoch = epoch
        super().on_epoch_begin(epoch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Saves inside the epoch."""
        before = self.used
        super().on_train_batch_end(batch, logs)
        self._unsaved += self.used - before
        if self._is_due() and self.used < self.left:
            self._save(self._epoch, self._done + self.used)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Behind the validation."""
        self._no_warning.close()
        if self._save_freq == "epoch" or self._is_due():
            self._save(epoch + 1, 0)

    def on_train_end(self, logs: Any = None) -> None:
        """Nothing is left to resume."""
        self.model._initial_epoch = None  # noqa: SLF001 -- no epoch was left, if it is not None yet
        self._path.unlink(missing_ok=True)

    def _is_due(self) -> bool:
        return isinstance(self._save_freq, int) and self._unsaved >= self._save_freq

    # --- the file --------------------------------------------------------------------------------------------------

    def _save(self, epoch: int, done: int) -> None:
        model = self.model  # Keras brings its variables up to date when a callback asks for it
        head = {"version": _VERSION, "epoch": epoch, "done": done, "position": self._batches.state_dict()}
        arrays: dict[str, Any] = {"head": np.frombuffer(json.dumps(head, allow_nan=False).encode(), np.uint8)}
        for kind, group in _variables(model).items():
            arrays |= {f"{kind}.{number}": _array(variable) for number, variable in enumerate(group)}
        with replacing(self._path, "the backup", type(self).__name__) as file:
            np.savez(file, **arrays)
        self._unsaved = 0

    def _restore(self, model: Any) -> None:
        groups = _variables(model)
        saved: dict[str, list[npt.NDArray[Any]]] = {kind: [] for kind in groups}
        try:
            with self._path.open("rb") as file, np.load(file, allow_pickle=False) as saved_arrays:
                arrays = dict(saved_arrays)
            head = json.loads(arrays.pop("head").tobytes())
            version, self._epoch, self._done, position = (head[key] for key in ("version", "epoch", "done", "position"))
            for name, array in arrays.items():
                saved[name.partition(".")[0]].append(array)
        except (OSError, EOFError, ValueError, KeyError, RuntimeError, zipfile.BadZipFile) as error:
            raise StateError("this is not a backup of a training run", url=str(self._path)) from error
        if version != _VERSION:
            raise StateError(f"the backup has version {version}, not {_VERSION}", url=str(self._path))
        self._metrics = saved.pop("metrics")
        for kind, found in saved.items():
            self._assign(kind, groups[kind], found)
        self._batches.load_state_dict(position)
        # The only way from a callback to the number of the first epoch; BackupAndRestore takes it, too. If it does not
        # work any more, the beginning of that epoch says so.
        model._initial_epoch = self._epoch  # noqa: SLF001 -- see above

    def _restore_metrics(self, model: Any, saved: list[npt.NDArray[Any]]) -> None:
        """So that the means of the epoch are those of all its batches."""
        if len(model.metrics_variables) != len(saved):
            # TensorFlow's backend makes those of some metrics in the first step.
            x, y, weights = keras.utils.unpack_x_y_sample_weight(self._batches.peek())
            predicted = model(x, training=False)
            model.compute_loss(x, y, predicted, weights)
            model.compute_metrics(x, y, predicted, weights)
        self._assign("metrics", model.metrics_variables, saved)

    def _assign(self, kind: str, variables: Sequence[Any], saved: list[npt.NDArray[Any]]) -> None:
        shapes = [tuple(variable.shape) for variable in variables]
        if shapes != [array.shape for array in saved]:
            raise StateError(f"the backup is of another model: its variables differ ({kind})", url=str(self._path))
        for variable, array in zip(variables, saved, strict=True):
            variable.assign(array)


def _variables(model: Any) -> dict[str, Sequence[Any]]:
    """All that training changes."""
    return {"model": model.variables, "optimizer": model.optimizer.variables, "metrics": model.metrics_variables}


def _array(variable: Any) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = keras.ops.convert_to_numpy(variable)
    # A file has no other types; each value of bfloat16 or of eight bits is one of float32.
    return array if array.dtype.isbuiltin == 1 else array.astype(np.float32)
