"""Batches as Keras takes them: one endless sequence, of which Keras' epochs take the next ones.

Keras makes iterators and drops them as it likes, and takes batches that it does not train on: to build a model, or to
learn types. It does not say which these are, but the order of its calls does:

    call begins ─▶ [ takes ] ─▶ [ epoch begins ─▶ takes ─▶ epoch ends ] ─▶ epoch begins ─▶ takes ─▶ epoch ends ─▶ …
                     types               builds the model                       trains

In each call of ``fit``, ``evaluate`` or ``predict``, batches are only looked at if they are taken outside of epochs, or
in a first epoch that another one of the same call follows. They are given again. ``predict`` may have a first epoch
only: its batches were used, which the beginning of the next call tells.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any, Final, Literal, TypeAlias

from asyncdata.dataset.dataset import Dataset
from asyncdata.errors import PipelineError, StateError
from asyncdata.feed.even import Least
from asyncdata.feed.feeding import Feed
from asyncdata.feed.own_batches import END
from asyncdata.feed.ranks import Division
from asyncdata.feed.run import Conversion, Hand
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.ragged import RaggedArray
from asyncdata.memory.structure import flatten, leaf_names
from asyncdata.types import Element

_LOOKED_AT: Final = 2
"""Batches that Keras looks at in a row, at most: with TensorFlow; and with JAX on a GPU, because it asks one ahead."""

_NO_ARRAYS: Final = (BytesArray, RaggedArray, bytes, str)

_Phase: TypeAlias = Literal["outside", "first epoch", "after it", "used"]
"""Of a call of Keras. From "used" on, every batch is used."""


class _Endless(Feed):
    """All epochs one after the other, as numpy arrays."""

    def _distributed(self) -> tuple[int, int] | None:
        return None

    def _check_process(self) -> None:
        """Any process will do."""

    def _least(self) -> Least:
        raise AssertionError("no rank asks another: each has batches without end")

    def _hand(self) -> Hand:
        return Conversion(_checked)

    @property
    def has_ended(self) -> bool:
        """Whether its iteration was closed, or failed: it gives no batch any more."""
        return self._run is not None and not self._run.live

    def state_before(self, waiting: int) -> dict[str, Any]:
        """As `state_dict`; if nothing was committed, the last batches that were handed out are not used yet."""
        run = self._run
        if run is None or run.committed is not None:
            return self.state_dict()
        return self._state(run.place(run.handed - waiting))

    def commit_all_before(self, waiting: int) -> None:
        """If any were committed, commits all that were handed out but the last, which are not used yet."""
        run = self._run
        if run is not None and run.live and run.committed is not None:
            run.commit(max(run.committed, run.handed - waiting))


def _checked(batch: Element) -> Element:
    leaves, structure = flatten(batch, whole_ragged=True)
    for leaf, name in zip(leaves, leaf_names(structure), strict=True):
        if isinstance(leaf, _NO_ARRAYS):
            raise PipelineError(
                f"Keras takes arrays of numbers, and this is a {type(leaf).__name__}: leave it out of the batches, or "
                "make numbers of it in a map; padded_batch makes arrays of rows of different lengths",
                leaf=name or None,
            )
    return batch


class KerasBatches:
    """See the module's docstring.

    Args:
        dataset: Gives whole batches.
        division: Which part of it this process gets.
        steps: Of an epoch of Keras.
    """

    def __init__(self, dataset: Dataset, division: Division, steps: int) -> None:
        self.steps = steps
        self._made_of = dataset, division, steps
        self.next_steps = steps  # of the epoch that begins next: less, if it was interrupted
        self._feed = _Endless(dataset.repeat(), division)
        self._batches = iter(self._feed)
        self._phase: _Phase = "outside"
        self._looked_at: list[Any] = []
        self._again: deque[Any] = deque()

    def take(self) -> Any:
        """The next batch."""
        batch = self._again.popleft() if self._again else next(self._batches, END)
        if batch is END:
            raise PipelineError("the dataset has no batch")
        if self._phase in ("outside", "first epoch"):
            self._looked_at.append(batch)
            if len(self._looked_at) > _LOOKED_AT:
                self._looked_at = []
                self._phase = "used"
        return batch

    def peek(self) -> Any:
        """The next batch, which stays the next one."""
        batch = self.take()
        self._again.appendleft(batch)
        return batch

    def begin_call(self) -> None:
        """Of ``fit``, ``evaluate`` or ``predict``; after one that was interrupted it continues there."""
        if self._feed.has_ended:
            with contextlib.suppress(StateError):  # no state describes the position: taking a batch says what happened
                self.load_state_dict(self.state_dict())
        if self._phase == "outside":
            self._give_again()
        self._looked_at = []
        self._phase = "outside"
        self.next_steps = self.steps

    def begin_epoch(self) -> None:
        """Or the model is about to be built."""
        first = self._phase == "outside"
        self._give_again()
        self._phase = "first epoch" if first else "used"

    def end_epoch(self) -> None:
        """Or the model was built, now or before."""
        self.next_steps = self.steps
        if self._phase == "outside":
            self._begin_use()
        elif self._phase == "first epoch":
            self._phase = "after it"

    def begin_training(self) -> None:
        """From here on batches are committed, so those before them must be, too: ``evaluate`` commits none."""
        self._begin_use()
        self._feed.commit_all_before(len(self._again))

    def _begin_use(self) -> None:
        """Whatever was taken in this call was looked at, and what comes is used."""
        self._give_again()
        self._phase = "used"

    def _give_again(self) -> None:
        self._again.extendleft(reversed(self._looked_at))
        self._looked_at = []

    def commit(self, position: int) -> None:
        """See `KerasFeed.commit`."""
        self._feed.commit(position)

    @property
    def position(self) -> int:
        """Batches that were used, those before a loaded state included."""
        return int(self.state_dict()["steps"])

    def state_dict(self) -> dict[str, Any]:
        """See `KerasFeed.state_dict`."""
        looked_at = len(self._looked_at)
        # After a first epoch nobody knows yet. One that was shorter than others has most likely built a model.
        is_used = self._phase == "first epoch" or (self._phase == "after it" and looked_at >= self.steps)
        return self._feed.state_before(len(self._again) + (0 if is_used else looked_at))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `KerasFeed.load_state_dict`."""
        self._feed.load_state_dict(state)
        self._batches = iter(self._feed)
        self._again.clear()
        self._looked_at = []

    def close(self) -> None:
        """See `KerasFeed.close`."""
        self._feed.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process: where this one is, and not what runs here."""
        return _at, (*self._made_of, self.state_dict())


def _at(dataset: Dataset, division: Division, steps: int, state: dict[str, Any]) -> KerasBatches:
    made = KerasBatches(dataset, division, steps)
    made.load_state_dict(state)
    return made
