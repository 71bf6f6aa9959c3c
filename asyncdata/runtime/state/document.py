"""`state_dict`: what a state says beside the position, and whether it fits a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from asyncdata.errors import StateError
from asyncdata.memory.advance import State
from asyncdata.plan.node import Node
from asyncdata.planner.fingerprint import drawn_seeds, fingerprint, first_unlike
from asyncdata.runtime.state import listings, skipped
from asyncdata.runtime.state.choices import Recorded
from asyncdata.runtime.state.json_codec import from_json, packed, to_json
from asyncdata.runtime.state.news import NOTHING, News
from asyncdata.runtime.state.tracks import Saved, from_saved, to_saved

VERSION: Final = 1
_KEY: Final = "asyncdata_state"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The part of a state that a running pipeline needs.

    Attributes:
        state: What the pipeline is brought back to; None: it begins.
        before: What else had happened by then.
        choices: In which order steps pass elements on; None: as they are ready.
    """

    state: Saved | None = None
    before: News = NOTHING
    choices: Recorded | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """A state in memory.

    Attributes:
        epoch: Number of the epoch.
        position: Elements of it that were delivered.
        seed: Of the pipeline: the one of its options, or the one it drew.
        drawn: Seeds that steps of the plan drew.
        state: What the pipeline is brought back to.
        causes: The steps that pass elements on as they are ready.
        news: What else has happened in the epoch.
    """

    epoch: int
    position: int
    seed: int
    drawn: tuple[int, ...]
    state: Saved
    causes: tuple[str, ...] = ()
    news: News = NOTHING

    @property
    def start(self) -> Start:
        """The part that a running pipeline needs."""
        return Start(state=self.state, before=self.news)


def to_document(saved: SavedState, plan: Node) -> dict[str, Any]:
    """The state as JSON can hold it."""
    document = {
        _KEY: VERSION,
        "epoch": saved.epoch,
        "position": saved.position,
        "seed": saved.seed,
        "drawn": list(saved.drawn),
        "plan": fingerprint(plan),
        "state": to_json(saved.state) if isinstance(saved.state, State) else packed(to_json(to_saved(saved.state))),
        "unordered": list(saved.causes),
    }
    if saved.news.listings:
        document["listings"] = [listing.to_json() for listing in saved.news.listings]
    if saved.news.skipped:
        document["skipped"] = skipped.to_json(saved.news.skipped)
    return document


def check_version(document: Any) -> None:
    """Looks whether this is a state.

    Raises:
        StateError: It is none, or of a later version.
    """
    version = document.get(_KEY) if hasattr(document, "get") else None
    if type(version) is not int:
        raise StateError("this is no state: state_dict() of an iterator makes one")
    if version > VERSION:
        raise StateError(f"the state is of version {version}; this asyncdata reads versions up to {VERSION}")


def from_document(document: Mapping[str, Any], plan: Node) -> SavedState:
    """The state, if it is one of this plan.

    Raises:
        StateError: It is damaged, of a later version, or of another plan; the message names the first difference.
    """
    check_version(document)
    try:
        unlike = first_unlike(fingerprint(plan), [str(line) for line in document["plan"]])
        if unlike is not None:
            raise StateError(f"the state is of another pipeline: {unlike}")
        state = from_json(document["state"])
        numbers = [document[name] for name in ("epoch", "position", "seed")]
        drawn = tuple(document["drawn"])
        causes = tuple([str(label) for label in document["unordered"]])
        if causes:
            state = from_saved(state)
        news = News(
            tuple(map(listings.from_json, document.get("listings", ()))),
            skipped.from_json(document.get("skipped", {})),
        )
    except KeyError as error:
        raise StateError(f"the state is damaged: {error} is missing") from error
    except (TypeError, ValueError) as error:
        raise StateError(f"the state is damaged: {error}") from error
    if not (causes or isinstance(state, State)) or not all(type(number) is int for number in (*numbers, *drawn)):
        raise StateError("the state is damaged: a number or the position is missing")
    if len(drawn) != len(drawn_seeds(plan)):
        raise StateError("the state is damaged: seeds are missing")
    epoch, position, seed = numbers
    return SavedState(epoch=epoch, position=position, seed=seed, drawn=drawn, state=state, causes=causes, news=news)
