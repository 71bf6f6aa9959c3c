"""Limits the depth of a pipeline, because stages call one another and Python limits nested calls."""

from __future__ import annotations

import sys
from typing import Final

from asyncdata.errors import PipelineError
from asyncdata.plan.node import Node, walk
from asyncdata.runtime.lower import lower
from asyncdata.runtime.scope import Scope
from asyncdata.runtime.stage import Stage

_ROOM: Final = 100
"""Calls that are left to functions of the user, and to what is around the stages."""

_FRAMES: Final = 3
"""Calls that one stage may take: `aclose`, that of its base class, and `close_all`."""

_MOST_FRAMES: Final = 2 * _FRAMES
"""Calls that one step may take: those that collect rows have a stage in front of them, which charges these rows."""


def lower_whole(plan: Node, scope: Scope) -> Stage:
    """The stage of a whole plan.

    Raises:
        PipelineError: It has more steps than can call one another.
    """
    try:
        root = lower(plan, scope)
    except RecursionError:
        raise _too_deep(plan) from None
    if _frames(root) + _ROOM > sys.getrecursionlimit():
        raise _too_deep(plan)
    return root


def _frames(root: Stage) -> int:
    """Calls on the longest way from the last stage to a source, when all are closed."""
    most = 0
    waiting = [(root, 0)]
    while waiting:
        stage, above = waiting.pop()
        frames = above + (_FRAMES - 1 if type(stage).aclose is Stage.aclose else _FRAMES)
        most = max(most, frames)
        waiting.extend((child, frames) for child in stage.inputs)
    return most


def _too_deep(plan: Node) -> PipelineError:
    limit, steps = sys.getrecursionlimit(), _steps(plan)
    enough = _ROOM + 2 * _FRAMES * steps
    return PipelineError(
        f"the pipeline is {steps} steps deep; {(limit - _ROOM) // _MOST_FRAMES} can always run while Python lets "
        f"{limit} calls nest. Make one function of several in a row, or call sys.setrecursionlimit({enough}) before"
    )


def _steps(plan: Node) -> int:
    """Nodes on the longest way to a source."""
    found: dict[int, int] = {}
    for node in reversed(list(walk(plan))):
        found[id(node)] = 1 + max((found[id(child)] for child in node.inputs), default=0)
    return found[id(plan)]
