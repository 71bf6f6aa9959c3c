"""`state_dict`: what a state says beside the position, and whether it fits a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from asyncdata.errors import StateError
from asyncdata.memory.advance import State
from asyncdata.plan.node import Node
from asyncdata.planner.fingerprint import drawn_seeds, fingerprint, first_unlike
from asyncdata.runtime.state.json_codec import from_json, to_json

VERSION: Final = 1
_KEY: Final = "asyncdata_state"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """A state in memory.

    Attributes:
        epoch: Number of the epoch.
        position: Elements of it that were delivered.
        seed: Of the pipeline: the one of its options, or the one it drew.
        drawn: Seeds that steps of the plan drew.
        state: What the last step is brought back to.
    """

    epoch: int
    position: int
    seed: int
    drawn: tuple[int, ...]
    state: State


def to_document(saved: SavedState, plan: Node) -> dict[str, Any]:
    """The state as JSON can hold it."""
    return {
        _KEY: VERSION,
        "epoch": saved.epoch,
        "position": saved.position,
        "seed": saved.seed,
        "drawn": list(saved.drawn),
        "plan": fingerprint(plan),
        "state": to_json(saved.state),
    }


def from_document(document: Mapping[str, Any], plan: Node) -> SavedState:
    """The state, if it is one of this plan.

    Raises:
        StateError: It is damaged, of a later version, or of another plan; the message names the first difference.
    """
    version = document.get(_KEY) if hasattr(document, "get") else None
    if type(version) is not int:
        raise StateError("this is no state: state_dict() of an iterator makes one")
    if version > VERSION:
        raise StateError(f"the state is of version {version}; this asyncdata reads versions up to {VERSION}")
    try:
        unlike = first_unlike(fingerprint(plan), [str(line) for line in document["plan"]])
        if unlike is not None:
            raise StateError(f"the state is of another pipeline: {unlike}")
        state = from_json(document["state"])
        numbers = [document[name] for name in ("epoch", "position", "seed")]
        drawn = tuple(document["drawn"])
    except KeyError as error:
        raise StateError(f"the state is damaged: {error} is missing") from error
    if not isinstance(state, State) or not all(type(number) is int for number in (*numbers, *drawn)):
        raise StateError("the state is damaged: a number or the position is missing")
    if len(drawn) != len(drawn_seeds(plan)):
        raise StateError("the state is damaged: seeds are missing")
    epoch, position, seed = numbers
    return SavedState(epoch=epoch, position=position, seed=seed, drawn=drawn, state=state)
