"""What stored elements were made of: the steps of a plan, their settings and functions, as data for JSON.

Two recipes are compared step by step, so that the first difference has a name. Settings that do not change elements are
omitted: parallelism, executors, prefetching, caches, and options other than the seed and whether elements may be
skipped.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from itertools import zip_longest
from typing import Any, Final

from asyncdata.options import Options
from asyncdata.plan.grouping import Cache, GroupByWindow, Snapshot
from asyncdata.plan.node import Node, numbered, walk
from asyncdata.plan.transformations import Interleave, Map, Prefetch, WithOptions
from asyncdata.planner.digests import Parts, parts_of
from asyncdata.redaction import redact_url

PYTHON: Final = sys.implementation.cache_tag
"""Code is compared where it was compiled by the same version."""

_TRANSPARENT: Final = (Prefetch, WithOptions, Cache)
CHANGE_NOTHING: Final = (
    *("parallelism", "deterministic", "executor", "zero_copy", "log_warning"),
    *("drawn", "drawn_by", "narrow", "apart", "flat", "buckets"),
    *("cell", "make", "node_of", "recipe", "codec", "path", "filename", "get_state", "set_state", "state_every"),
)
_MOST_SHOWN: Final = 16
_LONGEST_SHOWN: Final = 2000
_URL: Final = re.compile(r"[\w+.-]+://[^@?#=]*[@?#=]")
"""Of which something may be secret."""

_NOTHING: Final = object()

Step = dict[str, Any]


class Recipe:
    """How the elements that come out of a plan are made.

    Args:
        node: The last node of the plan, before any rewrite.
        options: In force for it.
        shard: Of a snapshot: the function that says where elements go, or None.
    """

    def __init__(self, node: Node, options: Options, shard: Any = None) -> None:
        self.node = node
        self._options = options
        self._shard = shard

    def steps(self) -> list[Step]:
        """The steps now, sources first; functions and what they refer to may change while a program runs."""
        skips = self._options.errors is not None
        seed = self._options.seed if any(map(_may_draw, walk(self.node))) else None
        first: Step = {"step": "options", "inputs": [], "settings": {"seed": seed, "skips errors": skips}, "parts": {}}
        if self._shard is not None:
            first["parts"] = parts_of([("shard_func", self._shard)], _as_text)
        return [first, *_steps(self.node)]


def keep_recipe(node: Node, options: Options) -> Node:
    """Gives steps that keep elements in files the recipe of these. The first of the rewrites, to see none of others."""
    if isinstance(node, Cache) and node.filename is not None and node.recipe is None:
        return dataclasses.replace(node, recipe=Recipe(node.input, options))
    if isinstance(node, Snapshot) and node.recipe is None:
        return dataclasses.replace(node, recipe=Recipe(node.input, options, node.shard))
    return node


def settled(before: list[Step], after: list[Step]) -> list[Step]:
    """The recipe of a run: what it changed or made itself cannot be compared with anything."""
    return [{**old, "parts": _settled(old["parts"], new["parts"])} for old, new in zip(before, after, strict=True)]


def _settled(old: Parts, new: Parts) -> Parts:
    return {name: old[name] if name in old and old[name] == new.get(name) else None for name in {**old, **new}}


def uncompared(*recipes: list[Step]) -> list[str]:
    """The names of what has no digest in any of these recipes."""
    return list(
        dict.fromkeys(
            f"{name} (in {step['step']})"
            for steps in recipes
            for step in steps
            for name, part in step["parts"].items()
            if part is None
        )
    )


def first_difference(was: list[Step], now: list[Step], *, functions: bool) -> str | None:
    """The first difference in words, or None.

    Args:
        was: A recipe that was stored.
        now: The one of this program.
        functions: Whether code can be compared.
    """
    for number, (old, new) in enumerate(zip_longest(was, now)):
        if old is None or new is None or (old["step"], old["inputs"]) != (new["step"], new["inputs"]):
            names = ["nothing" if step is None else step["step"] for step in (old, new)]
            joined = " with other inputs" if names[0] == names[1] else ""
            return f"step {number} was {names[0]} and is {names[1]}{joined}"
        place = new["step"] if number == 0 else f"step {number}, {new['step']}"
        for name in sorted({*old["settings"], *new["settings"]}):
            values = [step["settings"].get(name) for step in (old, new)]
            if json.dumps(values[0]) != json.dumps(values[1]):  # so that 1 is not True
                return f"{name} of {place} was {values[0]!r} and is {values[1]!r}"
        changed = _changed(old["parts"], new["parts"]) if functions else None
        if changed is not None:
            return f"{changed} in {place}"
    return None


def _changed(old: Parts, new: Parts) -> str | None:
    for name in {**new, **old}:
        was, now = old.get(name, _NOTHING), new.get(name, _NOTHING)
        if was is None or now is None:
            continue  # a run may have made it, and another one not yet
        if now is _NOTHING:
            return f"{name} is gone"
        if was is _NOTHING:
            return f"{name} is new"
        if was != now:
            return f"{name} has changed"
    return None


def _may_draw(node: Node) -> bool:
    """Whether the seed of the options may change elements of this step."""
    if isinstance(node, Interleave):
        return getattr(node.function, "__element_spec__", None) is None  # what other functions make is not known
    if isinstance(node, Map):
        return node.rng
    return isinstance(node, GroupByWindow) or (node.draws > 0 and getattr(node, "seed", None) is None)


def _steps(node: Node) -> list[Step]:
    # The first entry of a recipe is none of the plan's steps.
    return [_step(each, [number + 1 for number in inputs]) for each, inputs in numbered(node, _TRANSPARENT)]


def _step(node: Node, inputs: list[int]) -> Step:
    settings: dict[str, Any] = {}
    others: list[tuple[str, Any]] = []
    for name, value in node.settings.items():
        if name in CHANGE_NOTHING:
            continue
        known, shown = _shown(value)
        if known:
            settings[name] = shown
        else:
            others.append((name, _without_secrets(value)))
    if isinstance(node, Map) and node.executor == "vectorized":
        settings["vectorized"] = True
    return {"step": node.label, "inputs": inputs, "settings": settings, "parts": parts_of(others, _as_text)}


def _shown(value: Any) -> tuple[bool, Any]:
    """Whether a value can be stored as it is, and how; signatures of URLs are left out."""
    if value is None or isinstance(value, bool | int):
        return True, value
    if isinstance(value, float):
        return True, repr(value)
    if isinstance(value, str):
        shown = redact_url(value)
        return len(value) <= _LONGEST_SHOWN, {"text": shown} if _is_like_float(shown) else shown
    if type(value) is tuple and len(value) <= _MOST_SHOWN:
        parts = [_shown(part) for part in value]
        return all(known for known, _ in parts), [shown for _, shown in parts]
    return False, None


def _without_secrets(value: Any) -> Any:
    """The same for texts and tuples that are too long to be stored; a text that is no URL is data."""
    if isinstance(value, str):
        return redact_url(value) if _URL.match(value) else value
    return tuple(map(_without_secrets, value)) if type(value) is tuple else value


def _is_like_float(text: str) -> bool:
    """Whether a text is what a float is stored as."""
    try:
        return repr(float(text)) == text
    except ValueError:
        return False


def _as_text(node: Node) -> str:
    return json.dumps(_steps(node), sort_keys=True)
