"""What a saved state is of: the steps of a plan and the settings that change elements, as lines of text.

Two plans with the same lines give the same elements in the same order, as far as that can be said without running
functions, which are known by their names; those of this package also by what they are made of. Parallelism, executors
and prefetching are left out: a state may be loaded where these are different. So is `shard`, because readers of one
source have states of one plan; each state names its own.
"""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asyncdata.plan.label import function_name
from asyncdata.plan.node import Node, numbered, rebuilt, walk
from asyncdata.plan.sequence import Shard
from asyncdata.plan.transformations import Prefetch, WithOptions
from asyncdata.planner.recipe import CHANGE_NOTHING
from asyncdata.redaction import redact_url

_TRANSPARENT: Final = (Prefetch, Shard, WithOptions)
_CHANGE_NOTHING: Final = frozenset({*CHANGE_NOTHING, "setup"})
_LONGEST: Final = 200
_OUR_OWN: Final = __name__.partition(".")[0]
_ENCODING: Final = ("utf-8", "surrogatepass")
_ITEMS: Final = 1 << 16
_FEW: Final = 1 << 10
"""Items of which the checksum of an array is formed; of objects, which have to be written as text, fewer."""
_SIGNS: Final = "?@=;#"
"""One of these is in each URL that has secrets; of a hundred thousand names of files, hardly any has one."""
_SCHEME_BYTES: Final = 32
_STATE: Final = 2
"""Where the state is in what pickle makes of an object."""
_BATCH_SIZE: Final = re.compile(r"^((?:padded_|ragged_)?batch)\(size=\d+(?:, )?")


def fingerprint(node: Node) -> list[str]:
    """A line per step, sources first; see the module's docstring."""
    lines: list[str] = []
    for each, inputs in numbered(node, _TRANSPARENT):
        joined = "" if inputs in ([], [len(lines) - 1]) else f" of steps {', '.join(map(str, inputs))}"
        lines.append(f"{_line(each, _shown)}{joined}")
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


def _line(node: Node, shown: Callable[[Any], str]) -> str:
    settings = {name: value for name, value in node.settings.items() if name not in _CHANGE_NOTHING}
    found = ", ".join(f"{name}={shown(value)}" for name, value in settings.items() if value is not None)
    return f"{node.label}({found})"


def _shown(value: Any) -> str:
    """A setting; of what is too long to be shown, the beginning and a checksum of all."""
    text = _text(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… {zlib.crc32(text.encode(*_ENCODING)):08x}"


def _text(value: Any) -> str:
    if isinstance(value, str | bytes):
        return _unsigned(value)
    if value is None or isinstance(value, bool | int | float | np.generic):
        return str(value)
    if isinstance(value, np.ndarray):
        return _of_array(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_text(key)}: {_text(item)}' for key, item in value.items())}}}"
    if isinstance(value, Node):
        return _line(value, _text)
    if isinstance(value, type) or not type(value).__module__.startswith(f"{_OUR_OWN}."):
        return function_name(value) if callable(value) else type(value).__qualname__
    name = function_name(value) if callable(value) else type(value).__qualname__
    made = _made_of(value)
    return f"{name}({', '.join(map(_text, made))})" if made else name


def _unsigned(value: str | bytes) -> str:
    """Of a URL without secrets, which may be other ones the next time; of bytes, which may be long, if one begins."""
    if isinstance(value, str):
        return repr(redact_url(value) if any(sign in value for sign in _SIGNS) else value)
    if b"://" in value[:_SCHEME_BYTES] and any(sign.encode() in value for sign in _SIGNS):
        value = redact_url(value.decode(errors="surrogateescape")).encode(errors="surrogateescape")
    return str(value)


def _of_array(array: npt.NDArray[Any]) -> str:
    """What an array is, and a checksum; of URLs with secrets without these, of which the type has the length."""
    if array.dtype.kind in "US":
        items = array.ravel()
        whole = items[:: max(1, len(items) // _FEW)].tolist()
        unsigned = list(map(_unsigned, whole))
        if unsigned != [str(item) if isinstance(item, bytes) else repr(item) for item in whole]:
            return f"{array.dtype.kind}{list(array.shape)} {zlib.crc32(', '.join(unsigned).encode(*_ENCODING)):08x}"
    return f"{array.dtype}{list(array.shape)} {_sum(array):08x}"


def _made_of(value: Any) -> list[Any]:
    """What an object of this package is made of, as pickle has it; nothing where pickle refuses it."""
    try:
        reduced = value.__reduce_ex__(4)
    except (TypeError, AttributeError):
        return []
    if isinstance(reduced, str):
        return []
    made = [part for part in reduced[1] if part is not type(value)]
    state = reduced[2] if len(reduced) > _STATE else None
    made += map(_without_names, state if isinstance(state, tuple) else (state,))
    return [part for part in made if part is not None and not (isinstance(part, dict) and not part)]


def _without_names(state: Any) -> Any:
    """Without what is only said of a function, such as its name, which is not what it does."""
    if not isinstance(state, dict):
        return state
    return {key: item for key, item in state.items() if item is not None and not key.startswith("__")}


def _sum(array: npt.NDArray[Any]) -> int:
    """A checksum of an array; of a large one, of items at equal distances, because each iterator forms it."""
    items = array.ravel()[:: max(1, array.size // _ITEMS)]
    if items.dtype.hasobject:
        return zlib.crc32(", ".join(map(_text, items[:: max(1, len(items) // _FEW)].tolist())).encode(*_ENCODING))
    return zlib.crc32(items.tobytes())
