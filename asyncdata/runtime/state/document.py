"""`state_dict`: what a state says beside the position, and whether it fits a pipeline."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from asyncdata.errors import StateError
from asyncdata.memory.advance import State
from asyncdata.plan.node import Node, walk
from asyncdata.planner.fingerprint import drawn_seeds, fingerprint, first_unlike
from asyncdata.planner.sharing import shard_name, shards_of
from asyncdata.runtime.state import listings, skipped
from asyncdata.runtime.state.choices import Recorded
from asyncdata.runtime.state.filling import Filling
from asyncdata.runtime.state.json_codec import from_json, packed, to_json
from asyncdata.runtime.state.news import NOTHING, News
from asyncdata.runtime.state.tracks import UNTOUCHED, Saved, SavedTrack, from_saved, to_saved

VERSION: Final = 7
EARLIEST: Final = 4
"""What asyncdata 0.2.0 wrote."""

VERSION_KEY: Final = "asyncdata_state"
"""Of a state: the version of its format."""

_MOST_PACKED: Final = 1 << 14
"""Of a position: that of hundreds of open files has less."""

_CHECKSUM: Final = "checksum"
_LISTED: Final = "listed"
"""Says which listings a state has; those of earlier releases lack it."""

_APART: Final = frozenset({_CHECKSUM, "listings"})
"""Parts that the checksum does not cover: the lines of listings may lie beside the state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The part of a state that a running pipeline needs.

    Attributes:
        state: What the pipeline is brought back to.
        before: What else had happened by then.
        choices: In which order steps pass elements on; None: as they are ready.
    """

    state: Saved = UNTOUCHED
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
        division: How it can be divided among other readers, see `Readers.division`.
        caches: In which run each cache in memory was filled.
    """

    epoch: int
    position: int
    seed: int
    drawn: tuple[int, ...]
    state: Saved
    causes: tuple[str, ...] = ()
    news: News = NOTHING
    division: Mapping[str, Any] = field(default_factory=dict)
    caches: tuple[Filling | None, ...] = ()

    @property
    def start(self) -> Start:
        """The part that a running pipeline needs."""
        return Start(state=self.state, before=self.news)


class PlanLines(NamedTuple):
    """What every state of one plan says about it, and what need not be found for each.

    Attributes:
        steps: See `fingerprint`.
        shards: See `shards_of`.
    """

    steps: list[str]
    shards: list[list[int]]

    @classmethod
    def of(cls, plan: Node) -> PlanLines:
        """Those of a plan."""
        return cls(fingerprint(plan), shards_of(plan))


def to_document(saved: SavedState, lines: PlanLines) -> dict[str, Any]:
    """The state as JSON can hold it."""
    document = {
        VERSION_KEY: VERSION,
        "epoch": saved.epoch,
        "position": saved.position,
        "seed": saved.seed,
        "drawn": list(saved.drawn),
        "plan": list(lines.steps),
        "state": packed(to_json(saved.state.state), _MOST_PACKED),
        "unordered": list(saved.causes),
        "shards": list(map(list, lines.shards)),
    }
    if saved.state.tracks:
        document["tracks"] = tracks_to_json(saved.state.tracks)
    if document["shards"]:
        document["division"] = dict(saved.division)
    if saved.caches:
        document["caches"] = [filling and filling.to_mark() for filling in saved.caches]
    if saved.news.listings:
        document["listings"] = [listing.to_json() for listing in saved.news.listings]
    if saved.news.skipped:
        document["skipped"] = skipped.to_json(saved.news.skipped)
    return with_checksum(document)


def with_checksum(document: dict[str, Any]) -> dict[str, Any]:
    """The same state, which says from now on what it should be: `check` finds what is changed later."""
    if "listings" in document:
        document[_LISTED] = listings.checksum_of(document["listings"])
    document[_CHECKSUM] = _checksum_of(document)
    return document


def _checksum_of(document: Mapping[str, Any]) -> int:
    covered = {key: value for key, value in document.items() if key not in _APART}
    return zlib.crc32(json.dumps(covered, sort_keys=True, separators=(",", ":")).encode())


def tracks_to_json(tracks: Sequence[SavedTrack]) -> Any:
    """Tracks as a part of a state; `tracks_from_json` reads it."""
    value = to_saved(tracks)
    # Where elements lie is arrays, which are compressed.
    apart = {"lying": to_json(value.pop("lying"))} if "lying" in value else {}
    return {"columns": packed(to_json(value)), **apart}


def tracks_from_json(document: Mapping[str, Any]) -> tuple[SavedTrack, ...]:
    """The tracks of a state.

    Raises:
        StateError: They are damaged.
        KeyError: They are damaged.
        TypeError: They are damaged.
        ValueError: They are damaged.
    """
    if "tracks" not in document:
        return ()
    value = from_json(document["tracks"])
    # Up to version 5 all of it was compressed once more.
    return from_saved({**value.pop("columns"), **value} if "columns" in value else value)


@contextlib.contextmanager
def naming_damage() -> Generator[None]:
    """Makes errors of one kind of those that a state causes which is not what it should be."""
    try:
        yield
    except KeyError as error:
        raise StateError(f"the state is damaged: {error} is missing") from error
    except (AttributeError, IndexError, RecursionError, TypeError, ValueError) as error:
        if isinstance(error, StateError):
            raise
        raise StateError(f"the state is damaged: {error}") from error


def check(document: Any) -> None:
    """Looks whether this is a state, and as it was made.

    Raises:
        StateError: It is none, of a version that is not read, or damaged.
    """
    version = document.get(VERSION_KEY) if hasattr(document, "get") else None
    if type(version) is not int:
        raise StateError("this is not a state: state_dict() of an iterator makes one")
    if not EARLIEST <= version <= VERSION:
        raise StateError(f"the state is of version {version}; this asyncdata reads versions {EARLIEST} to {VERSION}")
    with naming_damage():
        if document[_CHECKSUM] != _checksum_of(document):
            raise StateError("the state is damaged: it is not as it was made, its checksum says")
        if _LISTED in document and document[_LISTED] != listings.checksum_of(document.get("listings", ())):
            raise StateError("the state is damaged: its lists of files are not those that belong to it")


def from_document(document: Mapping[str, Any], plan: Node) -> SavedState:
    """The state, if it is one of this plan.

    Raises:
        StateError: It is damaged, of a version that is not read, or of another plan, of which the message names the
            first difference.
    """
    check(document)
    with naming_damage():
        unlike = first_unlike(fingerprint(plan), [str(line) for line in document["plan"]])
        if unlike is not None:
            raise StateError(f"the state is of another pipeline: {unlike}{_cure(plan)}")
        _check_shards(document["shards"], shards_of(plan))
        state = from_json(document["state"])
        numbers = [document[name] for name in ("epoch", "position", "seed")]
        drawn = tuple(document["drawn"])
        causes = tuple([str(label) for label in document["unordered"]])
        tracks = tracks_from_json(document)
        division = dict(document.get("division", {}))
        caches = tuple(value and Filling.from_mark(value) for value in document.get("caches", ()))
        news = News(
            tuple(map(listings.from_json, document.get("listings", ()))),
            skipped.from_json(document.get("skipped", {})),
        )
    # Without a position it is known what was delivered, unless nothing was.
    placed = isinstance(state, State) if state is not None else bool(tracks) or not numbers[1]
    if not placed or not all(type(number) is int for number in (*numbers, *drawn)):
        raise StateError("the state is damaged: a number or the position is missing")
    if len(drawn) != len(drawn_seeds(plan)):
        raise StateError("the state is damaged: seeds are missing")
    epoch, position, seed = numbers
    return SavedState(
        epoch=epoch,
        position=position,
        seed=seed,
        drawn=drawn,
        state=Saved(state, tracks),
        causes=causes,
        news=news,
        division=division,
        caches=caches,
    )


def _cure(plan: Node) -> str:
    """What to do about files in another order than before, in words."""
    names = [name for node in walk(plan) if (name := getattr(node, "drawn_by", None)) is not None]
    return f". Without a seed, {names[0]} puts files in another order in every process: give it one" if names else ""


def _check_shards(there: Any, here: list[list[int]]) -> None:
    if there != here:
        names = [", ".join(shard_name(*shard) for shard in shards) or "no shard" for shards in (here, there)]
        raise StateError(
            f"the state is of another reader: {names[0]} here, {names[1]} in the state. asyncdata.state.split makes "
            "states for another number of readers"
        )
