"""A rank's own batches of one epoch, what it gives after their end, and the state after each of them.

After the end, ``even="repeat"`` reads its part of the epoch again, and ``even="pad"`` gives the last batch again,
marked as no data.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from asyncdata.dataset.dataset import Dataset
from asyncdata.errors import PipelineError
from asyncdata.feed.even import NOTHING_TO_REPEAT, Agreed
from asyncdata.feed.ranks import Even
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.ragged import RaggedArray
from asyncdata.memory.structure import flatten, map_leaves
from asyncdata.runtime.consumer.iterate import PipelineIterator
from asyncdata.types import Element

END: Final = object()


class EpochPlace(NamedTuple):
    """Where an epoch is, in the words of a state.

    Attributes:
        epoch: Number of the epoch.
        steps: Batches of it that were used.
        turn: How often this rank's part was read to its end before: 0 but for ``even="repeat"``.
        pipeline: The state of the pipeline, or None at its beginning.
        begun_by: How many ranks divided the epoch before these, so that its number of steps is not known; 0: none.
        agreed: What the ranks have agreed on; None: nothing that reaches further.
    """

    epoch: int
    steps: int = 0
    turn: int = 0
    pipeline: Mapping[str, Any] | None = None
    begun_by: int = 0
    agreed: Agreed | None = None


class _Pass(NamedTuple):
    """One iteration of this rank's part.

    Attributes:
        first: Step of the epoch that its first batch belongs to.
        position: What its iterator counted before that.
        turn: See `EpochPlace`.
        iterator: Reads it.
    """

    first: int
    position: int
    turn: int
    iterator: PipelineIterator


class OwnBatches:
    """See the module's docstring.

    Args:
        dataset: This rank's part.
        whole: A batch of it has the shape of padding where this rank has none.
        place: Where to begin.
        even: How ranks are made even.
    """

    def __init__(self, dataset: Dataset, whole: Dataset, place: EpochPlace, even: Even | None) -> None:
        self._dataset = dataset
        self._whole = whole
        self._even = even
        self._epoch = place.epoch
        self._begun_by = place.begun_by
        self._passes: deque[_Pass] = deque()  # those of which a batch may still wait to be used
        self._begun = self._given = place.steps
        self._commits = False
        self._own_ended = place.turn > 0
        self._last: Element = END
        if place.pipeline is None:
            iterator = dataset.iterator(epoch=place.epoch)
        else:
            iterator = dataset.iterator(state=place.pipeline)
        self._passes.append(_Pass(place.steps, iterator.position, place.turn, iterator))

    def own(self) -> Element:
        """The next batch of the epoch, or `END`."""
        batch = END if self._own_ended else next(self._passes[-1].iterator, END)
        if batch is END:
            self._own_ended = True
            return END
        self._given += 1
        if self._even != "pad":
            return batch
        self._last = batch
        return batch, _mask(batch, fill=True)

    def is_repeatable(self) -> bool:
        """Whether this rank's part of the epoch has any batch, so that `more` can give it again."""
        if self._given > self._begun or self._passes[-1].turn:
            return True
        if not self._begun_by:
            return self._begun > 0
        # The steps before were divided among other ranks, so only reading tells.
        return self._first(self._dataset) is not END

    def more(self) -> Element:
        """A batch after the last one of the epoch: for ranks that have fewer than others."""
        if self._even == "pad":
            if self._last is END:
                self._last = self._pattern()
            self._given += 1
            # Of its own, because the trainer may have kept the last batch, and may write to the padding.
            padding = map_leaves(_copied, self._last, whole_ragged=True)
            return padding, _mask(padding, fill=False)
        batch = END
        if self._passes[-1].turn:
            batch = next(self._passes[-1].iterator, END)
        if batch is END:
            again = self._dataset.iterator(epoch=self._epoch)
            self._passes.append(_Pass(self._given, 0, self._passes[-1].turn + 1, again))
            if self._commits:
                again.commit(0)  # none of its batches was used yet: all its states stay known
            batch = next(again, END)
            if batch is END:
                raise PipelineError(NOTHING_TO_REPEAT)
        self._given += 1
        return batch

    def _pattern(self) -> Element:
        """A batch to pad with, where none was read: after a state at the end, or on a rank without any."""
        for dataset in (self._dataset, self._whole):
            batch = self._first(dataset)
            if batch is not END:
                return batch
        raise PipelineError("even='pad': there is no batch in the whole dataset that could be given as padding")

    def _first(self, dataset: Dataset) -> Element:
        with dataset.iterator(epoch=self._epoch) as batches:
            return next(batches, END)

    def place(self, steps: int) -> EpochPlace:
        """Where the epoch is after so many steps."""
        found = self._of(steps)
        pipeline = found.iterator.state_dict(at=_position(found, steps))
        return EpochPlace(self._epoch, steps, found.turn, pipeline, self._begun_by)

    def commit(self, steps: int) -> None:
        """So many steps were used: the state after them stays known."""
        found = self._of(steps)
        found.iterator.commit(_position(found, steps))
        self._commits = True

    def forget(self, steps: int) -> None:
        """No state after fewer steps will be asked for."""
        while len(self._passes) > 1 and self._passes[1].first <= steps:
            self._passes.popleft()

    def _of(self, steps: int) -> _Pass:
        return next((each for each in reversed(self._passes) if each.first <= steps), self._passes[0])

    def abandon(self) -> None:
        """Ends without waiting; states stay known."""
        self._last = END
        for each in self._passes:
            each.iterator.abandon()

    def close(self) -> None:
        """Ends, and waits for it."""
        self._last = END
        for each in self._passes:
            each.iterator.close()


def _position(found: _Pass, steps: int) -> int:
    """What the iterator of a pass has delivered up to a step; padding is not delivered by it."""
    return min(found.position + steps - found.first, found.iterator.position)


def _copied(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray | BytesArray | RaggedArray) else leaf


def _mask(batch: Element, *, fill: bool) -> npt.NDArray[np.bool_]:
    """True for each row that is data; a single value for an element that is no batch."""
    leaves, _ = flatten(batch, whole_ragged=True)
    rows = next((len(leaf) for leaf in leaves if _has_rows(leaf)), None)
    return np.full(() if rows is None else rows, fill)


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, BytesArray | RaggedArray) or (isinstance(leaf, np.ndarray) and leaf.ndim > 0)
