"""Keras: a dataset as a PyDataset, for fit, evaluate and predict on any backend; the only file that imports keras.

Keras takes batches from iterators that it makes and drops as it likes, and builds a model on a batch that it never
trains on. So the feed is one endless sequence of batches, of which every Keras epoch takes the next ones, whatever
index it asks for. Only Keras' public interface is used.
"""

from __future__ import annotations

import json
import os
from collections import deque
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import keras

from asyncdata.dataset.dataset import Dataset
from asyncdata.errors import PipelineError
from asyncdata.feed.even import Least, known_steps
from asyncdata.feed.feeding import Feed
from asyncdata.feed.own_batches import END
from asyncdata.feed.ranks import Division
from asyncdata.feed.run import Conversion, Hand
from asyncdata.options import read_environment
from asyncdata.replacing import replacing

_LOOKED_AT: Final = 2
"""Batches that Keras takes outside of epochs on TensorFlow's backend, to learn their types."""

SaveFreq: TypeAlias = "Literal['epoch'] | int"


class _Endless(Feed):
    """All epochs one after the other, as numpy arrays."""

    def _distributed(self) -> tuple[int, int] | None:
        return None

    def _check_process(self) -> None:
        """Any process will do."""

    def _least(self) -> Least:
        raise AssertionError("no rank asks another: each has batches without end")

    def _hand(self) -> Hand:
        return Conversion(lambda batch: batch)


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
                    "many an epoch of Keras takes with steps=..., or put assert_cardinality(n) behind the dataset"
                )
        if steps == 0:
            raise PipelineError(f"{dataset!r} has no batch, or too few for all ranks")
        self._steps = steps
        self._feed = _Endless(dataset.repeat(), division)
        self._batches = iter(self._feed)
        self._begun = self._inside = False
        self._handed = self._taken = 0
        self._looked_at: list[Any] = []
        self._again: deque[Any] = deque()

    @property
    def num_batches(self) -> int:
        """Steps of an epoch of Keras."""
        return self._steps

    def __getitem__(self, index: int) -> Any:
        """The next batch, whatever the index: the order belongs to the dataset."""
        self._taken += 1
        if self._again:
            batch = self._again.popleft()
        else:
            batch = next(self._batches, END)
            self._handed += 1
        if batch is END:
            raise PipelineError("the dataset has no batch")
        if self._taken <= (1 if self._inside else _LOOKED_AT) and not (self._inside and self._begun):
            self._looked_at.append(batch)
        return batch

    def on_epoch_begin(self) -> None:
        """Keras calls it before each epoch, and before it builds a model."""
        if not self._inside:
            self._give_again(_LOOKED_AT)
        self._inside = True
        self._taken = 0

    def on_epoch_end(self) -> None:
        """Keras calls it after each epoch, and before the first one."""
        # The first time inside, the model was built on it. If the first time is not inside, the model was built before.
        self._give_again(1 if self._inside else _LOOKED_AT)
        self._begun = True
        self._inside = False

    def _give_again(self, most: int) -> None:
        """What Keras has looked at so far, unless it took more: then it was an epoch."""
        if self._taken <= most:
            self._again.extendleft(reversed(self._looked_at))
        self._looked_at = []
        self._taken = 0

    @property
    def position(self) -> int:
        """Batches that were used, those before a loaded state included."""
        return int(self.state_dict()["steps"])

    def commit(self, position: int) -> None:
        """Says how many batches were used; see `callback`.

        Raises:
            ValueError: So many were not handed out, or more were committed before.
        """
        self._feed.commit(position)

    def state_dict(self) -> dict[str, Any]:
        """Behind the batches that were handed out or, if any were committed, behind those; JSON can hold it."""
        if not self._inside:
            self._give_again(_LOOKED_AT)
        if self._again:
            self._feed.commit(self._handed - len(self._again))
        return self._feed.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next batch is the one behind the state.

        Raises:
            StateError: It is of something else.
        """
        self._feed.load_state_dict(state)
        self._batches = iter(self._feed)
        self._handed = self._feed.state_dict()["steps"]
        self._again.clear()
        self._looked_at = []

    def close(self) -> None:
        """Ends the pipeline, and waits for it. Without it the pipeline ends when nobody refers to the feed any more."""
        self._feed.close()

    def callback(self, path: str | os.PathLike[str], save_freq: SaveFreq = "epoch") -> Any:
        """A ``keras.callbacks.Callback`` that saves the position, for use beside ``BackupAndRestore``.

        It commits each batch that was trained on, loads the file when training begins if it is there, and removes it
        when training is complete.

        Args:
            path: A local file.
            save_freq: ``"epoch"`` saves after each epoch, a number after that many batches. Give the same to
                ``BackupAndRestore``.
        """
        return _Position(self, Path(path), save_freq)


class _Position(keras.callbacks.Callback):  # type: ignore[misc]  # keras is not there where types are checked
    """Keeps the position of a feed in a file; see `KerasFeed.callback`."""

    def __init__(self, feed: KerasFeed, path: Path, save_freq: SaveFreq) -> None:
        super().__init__()
        self._feed = feed
        self._path = path
        self._save_freq = save_freq
        self._before = 0
        self._saved = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Goes on where a run was interrupted."""
        if self._path.exists():
            self._feed.load_state_dict(json.loads(self._path.read_bytes()))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Keras counts the batches of each epoch."""
        self._before = self._saved = self._feed.position

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """So many batches were trained on."""
        used = self._before + batch + 1
        self._feed.commit(used)
        if isinstance(self._save_freq, int) and used - self._saved >= self._save_freq:
            self._save()
            self._saved = used

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Behind the validation."""
        if self._save_freq == "epoch":
            self._save()

    def on_train_end(self, logs: Any = None) -> None:
        """Nothing is left to resume."""
        self._path.unlink(missing_ok=True)

    def _save(self) -> None:
        with replacing(self._path, "the state", type(self).__name__) as file:
            file.write(json.dumps(self._feed.state_dict(), allow_nan=False).encode())
