"""Files that may be begun again, or end early: the lowering of a file, inside what the options want around it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from asyncdata.plan.label import label_of
from asyncdata.plan.node import Node
from asyncdata.runtime.lower.registry import register
from asyncdata.runtime.scope import Scope
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.sources.guarded import GuardedStage
from asyncdata.runtime.stages.sources.reread import RestartStage

N = TypeVar("N", bound=Node)


def register_file(kind: type[N], make: Callable[[N, Scope], Stage]) -> None:
    """Like `register`, for a node that reads the file named by its ``url``."""
    register(kind, functools.partial(_guarded, make))


def _guarded(make: Callable[[Any, Scope], Stage], node: Any, scope: Scope) -> Stage:
    if scope.reads is not None:
        scope.reads.add(node.url)
    stage = _restartable(make, node, scope)
    guard = scope.guard(node.label)
    if guard is None:
        return stage

    def size() -> int | None:
        info = scope.access.manifest.get(node.url, None)
        return None if info is None else info.size

    return GuardedStage(stage, guard, size)


def _restartable(make: Callable[[Any, Scope], Stage], node: Any, scope: Scope) -> Stage:
    if scope.services.options.on_change == "raise":
        return make(node, scope)

    def forget() -> None:
        access = scope.access
        access.manifest.forget(node.url)
        access.io.note_restart()

    return RestartStage(label_of(node), functools.partial(make, node, scope), forget)
