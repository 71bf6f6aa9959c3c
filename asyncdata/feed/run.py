"""One epoch of a feed: as many batches as all ranks agreed on, handed out one at a time, with the state after each.

    own batches ─▶ [ window: waits for a vote ] ─▶ [ queue: on its way to the device ] ─▶ trainer

Both buffers are bounded: `even.WINDOW` batches, filled when a vote is due, and what `hand` keeps, filled before each
batch is handed out. At the end, at an error and when nobody refers to the iterator any more both are dropped; what was
in them was not handed out, so a state counts it as left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from asyncdata.errors import PipelineClosedError, PipelineError
from asyncdata.feed.even import WINDOW, Agreed, Granted, Least, Place, recalled, until_vote, vote
from asyncdata.feed.own_batches import END, EpochPlace, OwnBatches
from asyncdata.feed.ranks import Even
from asyncdata.types import Element
from asyncdata.workers.failure import annotate, in_a_line

_HISTORY: Final = 16
"""Until the first commit, the states of the last so many steps are kept: the default of `Options.state_history`."""


class Hand(Protocol):
    """Turns batches into what the trainer gets, some of them ahead of time."""

    @property
    def waiting(self) -> int:
        """Batches that were sent and not received."""

    @property
    def depth(self) -> int:
        """How many may be."""

    def send(self, batch: Element) -> None:
        """Starts the way of a batch."""

    def receive(self) -> Any:
        """The batch that was sent first of those that wait."""

    def clear(self, *, wait: bool) -> None:
        """Drops those that wait, and waits until none is on its way any more, if it may."""


class Conversion:
    """Converts batches, some of them before they are asked for.

    Args:
        convert: What the trainer gets of a batch.
        depth: How many are converted while the trainer uses one.
    """

    def __init__(self, convert: Callable[[Element], Any], depth: int = 0) -> None:
        self.depth = depth
        self._convert = convert
        self._waiting: deque[Any] = deque()

    @property
    def waiting(self) -> int:
        """See `Hand`."""
        return len(self._waiting)

    def send(self, batch: Element) -> None:
        """See `Hand`."""
        self._waiting.append(self._convert(batch))

    def receive(self) -> Any:
        """See `Hand`."""
        return self._waiting.popleft()

    def clear(self, *, wait: bool) -> None:  # noqa: ARG002 -- of `Hand`; nothing runs here that could be waited for
        """See `Hand`."""
        self._waiting.clear()


class Run:
    """See the module's docstring.

    Args:
        own: This rank's batches.
        place: Where the epoch begins.
        steps: How many it has on every rank; None: as many as this rank has, or as `least` says.
        even: How ranks are made even.
        least: Asks the other ranks; None: nobody is asked.
        hand: The way to the trainer.
        kept: Whether only those batches count as used that are committed.
    """

    def __init__(
        self,
        own: OwnBatches,
        place: EpochPlace,
        *,
        steps: int | None,
        even: Even | None,
        least: Least | None,
        hand: Hand,
        kept: bool = False,
    ) -> None:
        self.epoch = place.epoch
        self.begun = self.handed = place.steps
        self.committed: int | None = None
        self.ended = False
        self.live = True  # until its end, or until the trainer has left
        self._own = own
        self._even = even
        self._least = least
        self._hand = hand
        self._taken = place.steps
        self._error: Exception | None = None
        self._failure = ""
        self._window: deque[Element] = deque()
        known = None if steps is None else max(steps - place.steps, 0)
        self._granted = Granted(known, last=True) if least is None else Granted(0, last=False)
        # All ranks of a resumed run ask first, whatever their states know.
        self._recall = place.agreed if place.steps else None
        self._recalls = place.steps > 0
        self._total: int | None = None  # steps of the epoch, once they were agreed on
        if kept:
            self.commit(place.steps)

    def next(self) -> Any:
        """The next batch, or `END`.

        An error belongs to its batch: those that were sent before it are received first.
        """
        if self._error is None:
            if not self.live:
                # Not at the end: batches that were read ahead are dropped, so nothing that is left may look like it.
                raise PipelineClosedError(
                    f"the iteration ended in epoch {self.epoch}, before the epoch did: "
                    f"{self._failure or 'it was closed'}"
                )
            try:
                self._prepare()
            except Exception as error:
                if not self._hand.waiting:
                    raise
                self._error = error
        if self._hand.waiting:
            found = self._hand.receive()
            # An interrupt in the middle leaves it a batch that was not handed out.
            self._own.forget(self.handed + 1 - _HISTORY if self.committed is None else self.committed)
            self.handed += 1
            return found
        if self._error is not None:
            kept, self._error = self._error, None
            raise kept
        self.ended = True
        self.close()
        return END

    def look_ahead(self) -> None:
        """Ends, if no batch is left: then a state after the last one means the next epoch.

        An error belongs to the next batch, and is kept for it.
        """
        if not self.live or self._error is not None:
            return
        try:
            self._prepare()
        except Exception as error:  # noqa: BLE001 -- `next` raises it
            self._error = error
            return
        except BaseException as error:
            self.fail(error)  # interrupted: it cannot say any more which batch is the next one
            raise
        if not self._hand.waiting:
            self.ended = True
            self.close()

    def _prepare(self) -> None:
        while self._hand.waiting < self._hand.depth + 1:
            batch = self._take()
            if batch is END:
                break
            self._hand.send(batch)
            del batch

    def _take(self) -> Element:
        steps, last = self._granted
        if steps == 0:
            if last:
                return END
            steps, last = self._granted = self._ask()
            if steps == 0:
                return END
        batch = self._window.popleft() if self._window else self._own.own()
        if batch is END:
            if steps is None:
                return END
            if self._even not in ("repeat", "pad"):
                raise PipelineError(
                    f"this rank has {self._taken} batches, though its dataset said that it has at least "
                    f"{self._taken + steps}; even='agree' asks all ranks as they go"
                )
            batch = self._own.more()
        self._taken += 1
        self._granted = Granted(None if steps is None else steps - 1, last)
        return batch

    def _ask(self) -> Granted:
        assert self._least is not None
        assert self._even is not None
        here = Place(self.epoch, self._taken)
        try:
            wanted = until_vote(self._taken)
            while len(self._window) < wanted and (batch := self._own.own()) is not END:
                self._window.append(batch)
            ready = len(self._window)
            if not ready and self._even == "repeat" and not self._own.is_repeatable():
                ready = -1
        except Exception as error:
            # The others would wait for this rank.
            try:
                vote(self._even, 0, here, self._least, failed=True)
            except PipelineError as missed:
                annotate(error, in_a_line(missed))
            raise
        granted = None
        if self._recalls:
            granted = recalled(self._known(), here, self._least)
        if granted is None:
            granted = vote(self._even, ready, here, self._least)
        self._recalls = False
        if granted.last and granted.steps is not None:
            self._total = self._taken + granted.steps
        return granted

    def _known(self) -> int:
        """The steps that the state says were agreed on, if this rank has the batches for them; else 0."""
        agreed = self._recall
        if agreed is None or agreed.even != self._even:
            return 0
        enough = self._even in ("repeat", "pad") or len(self._window) >= agreed.steps - self._taken
        return agreed.steps if enough else 0

    def _agreed(self, steps: int) -> Agreed | None:
        """What a state after so many steps knows: by the votes before them, which all ranks have taken part in."""
        if self._even is None or self._least is None or not steps % WINDOW:
            return None
        if self._recalls:
            return self._recall  # nobody has voted since
        vote_behind = steps + until_vote(steps)
        return Agreed(self._even, vote_behind if self._total is None else min(vote_behind, self._total))

    def commit(self, steps: int | None) -> None:
        """So many batches of the epoch were used; None: one more than before."""
        before = self.begun if self.committed is None else self.committed
        if steps is None:
            steps = before + 1
        if steps > self.handed:
            raise ValueError(f"step {steps} cannot be committed: {self.handed} batches of the epoch were handed out")
        if steps < before:
            raise ValueError(f"step {steps} was committed after {before}")
        self._own.commit(steps)
        self.committed = steps
        self._own.forget(steps)

    @property
    def _used(self) -> int:
        """Batches that were used: committed, or else handed out."""
        return self.handed if self.committed is None else self.committed

    @property
    def is_used_up(self) -> bool:
        """Whether the epoch has ended, and all its batches were used: the next epoch's beginning is the place then."""
        return self.ended and self._used == self.handed

    @property
    def is_unused(self) -> bool:
        """Whether no batch was used, though there was one."""
        return self._used == self.begun and not self.is_used_up

    def place(self, steps: int | None = None) -> EpochPlace:
        """Where the epoch is after so many batches, or else after those that were used."""
        if steps is None:
            steps = self._used
        return self._own.place(steps)._replace(agreed=self._agreed(steps))

    def finish(self) -> None:
        """Ends before the epoch does: what is left of it, and what was handed out ahead, is not wanted."""
        self.handed = self._used
        self.ended = True
        self.close()

    def close(self) -> None:
        """Ends, and waits for it."""
        self.live = False
        self._own.close()
        self._window.clear()
        self._hand.clear(wait=True)

    def fail(self, error: BaseException) -> None:
        """Ends without waiting, because of an error, which later calls say."""
        self._failure = self._failure or in_a_line(error)
        self.abandon()

    def abandon(self) -> None:
        """Ends without waiting, when the trainer has left."""
        self.live = False
        self._own.abandon()
        self._window.clear()
        self._hand.clear(wait=False)
