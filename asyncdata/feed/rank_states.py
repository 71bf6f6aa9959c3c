"""The states of all ranks of a feed: which one is a rank's own, and what a rank resumes from if there were others.

Ranks are at the same step of the same epoch. If their number changes, `asyncdata.state.split` divides what they have
left of it; the epochs after it are divided as usual.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from asyncdata.errors import StateError
from asyncdata.feed.ranks import Rank
from asyncdata.runtime.state.division import split

VERSION: Final = 1

_KEYS: Final = ("version", "epoch", "steps", "turn", "rank", "world", "begun_by")


def state_of(states: Sequence[Mapping[str, Any]], mine: Rank) -> Mapping[str, Any]:
    """The state that a rank loads.

    Args:
        states: One of this rank, or one of each rank of another number of them.
        mine: This rank.

    Raises:
        StateError: One is no state, is missing, or is of another step; or the pipeline cannot be divided.
    """
    found = {}
    for state in states:
        _check(state)
        found[state["rank"], state["world"]] = state
    if mine in found:
        return found[mine]
    worlds = {world for _, world in found}
    if len(worlds) != 1 or len(found) != max(worlds):
        had = ", ".join(f"rank {rank} of {world}" for rank, world in sorted(found))
        raise StateError(
            f"the state is that of {had or 'no rank'}, and this is rank {mine.rank} of {mine.world}: each rank loads "
            "its own state. Another number of ranks needs the states of all of them, which all_ranks() saves"
        )
    return _divided([found[key] for key in sorted(found)], mine)


def _check(state: Any) -> None:
    """A state comes from a file, so it may be anything."""
    whole = isinstance(state, Mapping) and all(_is_count(state.get(key)) for key in _KEYS)
    if not whole or state["rank"] >= state["world"]:
        raise StateError("this is not the state of a feed; a state of PipelineIterator belongs to ds.iterator()")
    agreed = state.get("agreed")
    if agreed is not None and not (isinstance(agreed, list | tuple) and list(map(type, agreed)) == [str, int]):
        raise StateError(f"the state of a feed says that ranks have agreed on {agreed!r}, which is not on steps")
    if state["version"] > VERSION:
        raise StateError(f"the state is of version {state['version']}, and this library knows {VERSION}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0


def _divided(states: Sequence[Mapping[str, Any]], mine: Rank) -> Mapping[str, Any]:
    first = states[0]
    for state in states:
        if (state["epoch"], state["steps"]) != (first["epoch"], first["steps"]):
            raise StateError(
                f"rank {state['rank']} was at step {state['steps']} of epoch {state['epoch']}, and rank "
                f"{first['rank']} at step {first['steps']} of epoch {first['epoch']}: the states do not belong together"
            )
        if state["turn"]:
            raise StateError(
                f"rank {state['rank']} was reading its part again (even='repeat'), so the rest of the epoch cannot be "
                "divided among other ranks"
            )
    # What other ranks have agreed on was about other batches.
    own = {**first, "rank": mine.rank, "world": mine.world, "agreed": None}
    if not first["steps"]:
        return {**own, "pipeline": None, "begun_by": 0}
    try:
        parts = split([state["pipeline"] for state in states], mine.world)
    except StateError as error:
        raise StateError(
            f"{error}. So the rest of epoch {first['epoch']} cannot be divided among {mine.world} ranks: set_epoch(n) "
            "begins another epoch"
        ) from error
    return {**own, "pipeline": parts[mine.rank], "begun_by": first["begun_by"] or len(states)}
