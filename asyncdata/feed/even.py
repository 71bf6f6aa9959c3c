"""How many steps all ranks take together: known in advance, or agreed a few steps ahead.

Training in parallel exchanges gradients in each step, so a rank that has no batch left makes the others wait for ever.
Ranks whose numbers of batches are known need no word of each other. Others vote every `WINDOW` steps, before they use
a batch of these: each says how many it has, and all take the least of it ("drop"), or the most ("repeat", "pad").

    steps   0 1 2 3 │ 4 5 6 7 │ 8 9 ┃        votes before 0, 4 and 8; by the last one the epoch has 10 steps

Votes are before the same steps of an epoch in every run. A state between two of them knows what was agreed, and a run
that resumes there takes these steps and votes where the interrupted one would have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from asyncdata.errors import PipelineError
from asyncdata.feed.ranks import Even
from asyncdata.plan.node import UNKNOWN_CARDINALITY

WINDOW: Final = 4
"""Steps between votes: so many batches wait in each rank while it votes. States know multiples of it."""

_EPOCHS: Final = 1 << 31
"""Ranks compare numbers of 32 bits, and an epoch may have a greater one."""

NOTHING_TO_REPEAT: Final = "even='repeat': a rank has no batch that it could repeat; use fewer ranks, or even='pad'"

Least: TypeAlias = Callable[[list[int]], list[int]]
"""Gives the least number of all ranks, place by place; every rank calls it with a list of the same length."""


class Granted(NamedTuple):
    """What a rank may do.

    Attributes:
        steps: Take so many; None: as many as it has.
        last: And then it ends.
    """

    steps: int | None
    last: bool


def known_steps(even: Even, most: int, least: int) -> int | None:
    """How many steps an epoch has on every rank; None if that is not known in advance.

    Args:
        even: How ranks are made even.
        most: The cardinality of the rank that has the most batches.
        least: Of the one that has the least.
    """
    if even == "agree" or UNKNOWN_CARDINALITY in (most, least):
        return None
    if even == "drop":
        return least
    if most > 0 and least == 0 and even == "repeat":
        raise PipelineError(NOTHING_TO_REPEAT)
    return most


class Place(NamedTuple):
    """Where a rank is when it asks the others, which must be there, too.

    Attributes:
        epoch: Number of the epoch.
        step: Steps that it has taken in this epoch.
    """

    epoch: int
    step: int


class Agreed(NamedTuple):
    """What a state knows of the votes before it.

    Attributes:
        even: How ranks were made even.
        steps: Of the epoch up to the next vote, those that were taken included; or all, where it ends before a vote.
    """

    even: Even
    steps: int


def until_vote(step: int) -> int:
    """How many steps there are from one on to the next vote."""
    return WINDOW - step % WINDOW


def recalled(agreed: int, place: Place, least: Least) -> Granted | None:
    """What the ranks have agreed on before a state; None if they do not know the same, or nothing: then they vote.

    Args:
        agreed: See `Agreed`; 0 for nothing.
        place: Of this rank.
        least: Asks the other ranks.

    Raises:
        PipelineError: As `vote`.
    """
    fewest, most = _compared(agreed, place, least)
    step, last = place.step, fewest % WINDOW > 0
    if fewest != most or fewest < step or (fewest == step and not last):
        return None
    return Granted(fewest - step, last=last)


def vote(even: Even, ready: int, place: Place, least: Least, *, failed: bool = False) -> Granted:
    """Agrees with the other ranks on the steps up to the next vote.

    Args:
        even: How ranks are made even.
        ready: Batches of its own that this rank has for them, up to as many as there are; -1 if it has neither one for
            them nor one that it could repeat.
        place: Of this rank.
        least: Asks the other ranks.
        failed: This rank cannot continue. The others learn it by this vote; the rank's own error follows.

    Raises:
        PipelineError: Another rank failed, or ranks are in different epochs, or at different steps.
    """
    if failed:
        _compared(ready, place, least, failed=True)
        return Granted(0, last=True)
    fewest, most = _compared(ready, place, least)
    if even == "repeat" and fewest < 0 < most:
        raise PipelineError(NOTHING_TO_REPEAT)
    steps = max(fewest if even in ("drop", "agree") else most, 0)
    return Granted(steps, last=steps < until_vote(place.step))


def _compared(number: int, place: Place, least: Least, *, failed: bool = False) -> tuple[int, int]:
    """The least and the most that a rank says, if all are well and at the same place."""
    epoch = place.epoch % _EPOCHS
    said = [number, -number, place.step, -place.step, int(not failed), epoch, -epoch]
    fewest, most, first, last, sound, lowest, highest = least(said)
    if failed:
        return fewest, -most
    if not sound:
        raise PipelineError("another rank failed, so this one ends too; the other rank's error says why")
    if lowest != -highest:
        raise PipelineError(
            f"the ranks are in different epochs, from {lowest} to {-highest}: all of them must load states of the same "
            "step, or set_epoch() the same number"
        )
    if first != -last:
        raise PipelineError(
            f"the ranks are at different steps, from {first} to {-last}: all of them must load states of the same "
            "step, and begin their epochs together"
        )
    return fewest, -most
