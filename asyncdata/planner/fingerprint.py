"""What a saved state is of: the steps of a plan and the settings that change elements, as lines of text.

Two plans with the same lines give the same elements in the same order, as far as that can be said without running
functions, which are known by their names. Parallelism, executors and prefetching are left out: a state may be loaded
where these are different. So is `shard`, because readers of one source have states of one plan; each state names its
own.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Final

import numpy as np

from asyncdata.plan.label import function_name
from asyncdata.plan.node import Node, numbered, rebuilt, walk
from asyncdata.plan.sequence import Shard
from asyncdata.plan.transformations import Prefetch, WithOptions
from asyncdata.planner.recipe import CHANGE_NOTHING
from asyncdata.redaction import redact_url

_TRANSPARENT: Final = (Prefetch, Shard, WithOptions)
_CHANGE_NOTHING: Final = frozenset({*CHANGE_NOTHING, "setup"})
_LONGEST: Final = 200
_BATCH_SIZE: Final = re.compile(r"^((?:padded_|ragged_)?batch)\(size=\d+(?:, )?")


def fingerprint(node: Node) -> list[str]:
    """A line per step, sources first; see the module's docstring."""
    lines: list[str] = []
    for each, inputs in numbered(node, _TRANSPARENT):
        settings = {name: value for name, value in each.settings.items() if name not in _CHANGE_NOTHING}
        shown = ", ".join(f"{name}={_shown(value)}" for name, value in settings.items() if value is not None)
        joined = "" if inputs in ([], [len(lines) - 1]) else f" of steps {', '.join(map(str, inputs))}"
        lines.append(f"{each.label}({shown}){joined}")
    return lines


def first_unlike(here: Sequence[str], there: Sequence[str], place: str = "in the state") -> str | None:
    """The first step that differs, in words, or None.

    Args:
        here: The lines of this program's plan.
        there: Those of the other one; `without_batch_sizes` where batches may be of any size.
        place: Where these come from, in words.
    """
    for mine, other in zip_longest(here, there):
        if mine != other and without_batch_sizes([mine or ""]) != [other]:
            return f"{mine or 'no more steps'} here, {other or 'no more steps'} {place}"
    return None


def without_batch_sizes(lines: Sequence[str]) -> list[str]:
    """The lines of a plan whose batches may be of any size."""
    return [_BATCH_SIZE.sub(r"\1(", line) for line in lines]


def drawn_seeds(node: Node) -> list[int]:
    """The seeds that steps drew when they were made, for an order that stays, the last step's first."""
    return [getattr(each, "drawn", 0) for each in walk(node) if draws_once(each)]


def draws_once(node: Node) -> bool:
    """Whether a step drew a seed when it was made, for an order that stays."""
    fresh = getattr(node, "reshuffle", None) or getattr(node, "rerandomize", None)
    return hasattr(node, "drawn") and not fresh and getattr(node, "seed", None) is None


def with_drawn_seeds(node: Node, seeds: Sequence[int]) -> Node:
    """The plan with other such seeds, in that order."""
    drawn = {id(each): seed for each, seed in zip(filter(draws_once, walk(node)), seeds, strict=True)}

    def change(old: Node, new: Node) -> Node:
        if id(old) not in drawn:
            return new
        return dataclasses.replace(new, drawn=drawn[id(old)])  # type: ignore[call-arg]  # nodes that have it

    return rebuilt(node, change)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        text = repr(redact_url(value))
    elif isinstance(value, np.ndarray):
        text = f"{value.dtype}{list(value.shape)}"
    elif isinstance(value, tuple | list):
        text = f"[{', '.join(map(_shown, value[:16]))}{', …' if len(value) > 16 else ''}]"
    elif value is None or isinstance(value, bool | int | float | np.generic):
        text = str(value)
    elif callable(value):
        text = function_name(value)
    else:
        text = type(value).__qualname__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
