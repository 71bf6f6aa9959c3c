"""Which options count: those of the plan's steps, of its branches, or of the Runtime.

Options apply to a whole pipeline, wherever in its plan they are given; of two steps the later one wins. Only
``storage`` is different: a branch's (an input of ``zip``, an inner dataset of ``interleave``) applies to the branch's
own reads. The Runtime's options decide about everything that its pipelines share.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from asyncdata.options import Options, Storage, merged, merged_storage, read_environment
from asyncdata.plan.node import Node, walk
from asyncdata.plan.transformations import WithOptions
from asyncdata.planner.shards import Behind

OF_THE_RUNTIME: Final = frozenset(
    {
        "memory_limit_bytes",
        "num_workers",
        "num_threads",
        "max_requests_in_flight",
        "max_bytes_in_flight",
        "receivers",
        "check_object_crc",
        "hedge",
        "close_timeout_s",
        "isolate",
        "profile_socket",
        "retry",
        "timeouts",
    }
)


class Settings(NamedTuple):
    """What a plan's options come to.

    Attributes:
        options: In force for the pipeline. Their ``storage`` is the Runtime's: that of the plan is found step by step.
        idle: The names of options in the plan that have no effect.
    """

    options: Options
    idle: set[str]


class IdleOptions:
    """Options in datasets that have no effect on a Runtime: warns about each once."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def warn(self, names: AbstractSet[str]) -> None:
        """Warns about those that are new, at the user's line where there is one."""
        new = sorted(names - self._known)
        if not new:
            return
        self._known |= names
        level, frame = 1, inspect.currentframe()
        while frame is not None and frame.f_globals.get("__name__", "").startswith("asyncdata."):
            level, frame = level + 1, frame.f_back
        warnings.warn(
            f"these options of with_options have no effect here: {', '.join(new)}. They apply to a whole pipeline, or "
            "for all pipelines of a Runtime: give them to the dataset that is iterated, or to Runtime(options)",
            stacklevel=level,
        )


def settings_of(plan: Node, shared: Options | None) -> Settings:
    """The options of a plan, together with those of a Runtime that several pipelines share, if there is one."""
    paths = list(_paths(plan))
    own = Options()
    for path in paths:
        own = merged(own, path)
    mine = {name: value for name, value in own.said().items() if name != "storage"}
    if shared is None:
        options = Options(**mine)
    else:
        kept = Options(**{name: value for name, value in mine.items() if name not in OF_THE_RUNTIME})
        options = merged(kept, shared)
    return Settings(options, {name for path in paths for name in _without_effect(path, options)})


def idle_inside(inner: Node, options: Options) -> set[str]:
    """The names of options in an inner dataset that have no effect on the pipeline around it."""
    if not any(isinstance(node, WithOptions) for node in walk(inner)):
        return set()  # of one element's dataset it is quickly said
    return {name for path in _paths(inner) for name in _without_effect(path, options)}


def storage_before(node: Node) -> Storage:
    """What the steps before this one say about storage, from its input to the first step with several inputs."""
    found: Storage = {}
    while len(node.inputs) == 1:
        node = node.inputs[0]
        if isinstance(node, WithOptions):
            found = merged_storage(found, node.options.storage)
    return found


def _paths(plan: Node) -> Iterator[Options]:
    """For every step with options: what it and the steps behind it say together; the outermost first."""
    waiting = [(plan, Options())]
    while waiting:
        node, behind = waiting.pop()
        if isinstance(node, WithOptions):
            behind = merged(behind, node.options)
            yield behind
        waiting.extend((child, behind) for child in reversed(node.inputs))


def _without_effect(path: Options, options: Options) -> Iterator[str]:
    wished = merged(path, options)
    for name in path.given - {"storage"}:
        if getattr(wished, name) != getattr(options, name):
            yield name
    for scheme, mine in options.storage.items():
        if scheme in path.storage and wished.storage[scheme] != mine:
            yield f"storage[{scheme!r}]"


def behind_plans() -> Behind:
    """What comes after every plan: the other processes that train with this one, if the environment names any."""
    world = read_environment().world
    return Behind(redrawn=world is not None and world.isdecimal() and int(world) > 1)
