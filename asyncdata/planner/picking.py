"""Which inputs of `shuffle` can be read row by row: elements of files, whole files, and what `map` makes of each.

    files ─▶ interleave ─▶ filter ─▶ map ─▶ shuffle      rows of the buffer, from somewhere before the oldest of them on
             PickedRows ───────────▶ map ─▶ shuffle      the same rows, from where they lie

A step that only drops, mixes or repeats elements has nothing to do for elements that have passed it. Elements of
several datasets are read of each of them. `enumerate` gets the numbers that it had given, if the shuffle counts
elements as it did. If a step makes elements of several others, or several of one, only running it again tells what it
makes.
"""

from __future__ import annotations

from typing import Any, Final

from asyncdata.options import Options
from asyncdata.plan.combining import ChooseFrom, Concatenate, SampleFrom
from asyncdata.plan.files import FramedFile, PickedRows, TarSamples, WholeFile
from asyncdata.plan.node import Node, walk
from asyncdata.plan.sequence import Enumerate, EnumeratePicked, Shard, TakeWhile
from asyncdata.plan.sources import Items, ListFiles, ManifestFile, TensorSlices, TFRecordFile
from asyncdata.plan.transformations import (
    Filter,
    IgnoreErrors,
    Interleave,
    Map,
    Prefetch,
    Repeat,
    Shuffle,
    Skip,
    Take,
    WithOptions,
)
from asyncdata.spec import BytesSpec

_HOLDING: Final = (FramedFile, TarSamples, TFRecordFile, WholeFile)
"""Files in which each element lies in one piece."""

JOINING: Final = (ChooseFrom, Concatenate, SampleFrom)
"""Each element is one of their ``datasets``."""

_CHOOSING: Final = (Filter, IgnoreErrors, Repeat, Shard, Shuffle, Skip, Take, TakeWhile)
_PASSING: Final = (*_CHOOSING, Enumerate, Map, Prefetch, WithOptions)
_NAMES: Final = (
    *(Items, ListFiles, ManifestFile, TensorSlices),
    *(Prefetch, Repeat, Shard, Shuffle, Skip, Take, WithOptions),
)
"""What gives the names of files again, and reads none of them."""


def reads_bytes(node: Node) -> bool:
    """Whether elements are records as they are in files, one file or several in turn."""
    file = _opened(node)
    return isinstance(file, TFRecordFile) or (isinstance(file, FramedFile) and file.spec == BytesSpec())


def keeps_bytes(node: Node) -> bool:
    """Whether elements may have all bytes of a record, as far as that is known before files are opened."""
    source: Any = source_of(node)
    if isinstance(source, JOINING):
        return all(map(keeps_bytes, source.datasets))
    file = _opened(source)
    return not isinstance(file, FramedFile) or file.spec == BytesSpec()


def reads_objects(node: Node) -> bool:
    """Whether elements are known to be whole objects, each of which costs a request of its own."""
    source: Any = source_of(node)
    if isinstance(source, JOINING):
        return any(map(reads_objects, source.datasets))
    return isinstance(_opened(source), WholeFile)


def source_of(node: Node) -> Node:
    """What gives the elements that the last steps of a plan choose from, or make others of."""
    while isinstance(node, _PASSING):
        node = node.input
    return node


def file_of(node: Node) -> Node | None:
    """The file that holds each element of a dataset at a place of its own; None if there is none."""
    file: Any = source_of(node)
    return file if isinstance(file, _HOLDING) and not file.compression else None


def is_pickable(node: Node, *, repeated: bool = False) -> bool:
    """Whether elements can be read by themselves, as far as that is known before files are opened.

    Args:
        node: The last step.
        repeated: Whether its elements are repeated behind it.
    """
    source: Any = source_of(node)
    differs = (repeated or gives_again(node)) and tells_apart(node)  # and is read once
    if differs or not _counts_alike(node):
        return False
    if isinstance(source, JOINING):
        repeated = repeated or has_step(node, Repeat)
        return all(is_pickable(each, repeated=repeated) and not has_step(each, Enumerate) for each in source.datasets)
    if isinstance(source, Interleave):
        return all(isinstance(each, _NAMES) for each in walk(source.input))
    return file_of(source) is not None


def picked(node: Node, places: Any, parts: int = 1, *, repeated: bool = False) -> Node:
    """The plan whose elements are those at these places.

    Args:
        node: The last step of the plan.
        places: Where the elements lie.
        parts: The plan is one of so many, which have some of the elements each.
        repeated: Whether the plan is repeated.
    """
    repeated = repeated or has_step(node, Repeat)
    return made_of(node, PickedRows(source=source_of(node), places=places, parts=parts, repeated=repeated))


def made_of(node: Node, rows: PickedRows) -> Node:
    """What the last steps of a plan make of these elements of its source."""
    if not isinstance(node, _PASSING):
        return rows
    below = made_of(node.input, rows)
    if isinstance(node, Enumerate):
        return EnumeratePicked(input=below, start=node.start, places=rows.places)
    if not isinstance(node, _CHOOSING):
        return node.with_inputs((below,))
    # What is left out keeps its place in the plan, and is a step if it was one: these are keys of random numbers.
    return Take(input=below, count=-1) if node.steps else WithOptions(input=below, options=Options())


def once(names: Node, *, repeated: bool) -> Node:
    """The names of files without those that are given again, of which there may be no end.

    Steps that choose among repeated names are left out, because they may choose other ones in each repetition.

    Args:
        names: The last step of their plan.
        repeated: Whether it is repeated itself.
    """
    return _all_of(names) if repeated or any(isinstance(each, Repeat) for each in walk(names)) else names


def _all_of(names: Node) -> Node:
    below = tuple(map(_all_of, names.inputs))
    return (
        Take(input=below[0], count=-1) if isinstance(names, Repeat | Shard | Skip | Take) else names.with_inputs(below)
    )


def gives_again(node: Node) -> bool:
    """Whether one element may come several times, as far as that is known before files are opened."""
    source: Any = source_of(node)
    if isinstance(source, JOINING):
        return has_step(node, Repeat) or any(map(gives_again, source.datasets))
    names = walk(source.input) if isinstance(source, Interleave) else ()
    return has_step(node, Repeat) or any(isinstance(each, Repeat) for each in names)


def maps_of(node: Node) -> list[Map]:
    """The functions that elements of a file have passed, the last one first."""
    found = []
    while isinstance(node, _PASSING):
        if isinstance(node, Map):
            found.append(node)
        node = node.input
    return found


def has_step(node: Node, *kinds: type[Node]) -> bool:
    """Whether one of these kinds of steps is behind `source_of`, or behind that of a dataset that it joins."""
    while isinstance(node, _PASSING):
        if isinstance(node, kinds):
            return True
        node = node.input
    return isinstance(node, JOINING) and any(has_step(each, *kinds) for each in node.datasets)


def tells_apart(node: Node) -> bool:
    """Whether steps make something else of an element each time that it comes: other numbers, or random ones."""
    while isinstance(node, _PASSING):
        if isinstance(node, Enumerate) or (isinstance(node, Map) and node.rng):
            return True
        node = node.input
    return isinstance(node, JOINING) and any(map(tells_apart, node.datasets))


def may_lose(node: Node, *, errors: bool) -> bool:
    """Whether what `map` makes of an element is left out if it fails.

    Args:
        node: The last step.
        errors: Whether failures are left out behind it.
    """
    while isinstance(node, _PASSING):
        errors = errors or isinstance(node, IgnoreErrors)
        if errors and isinstance(node, Map):
            return True
        node = node.input
    return isinstance(node, JOINING) and any(may_lose(each, errors=errors) for each in node.datasets)


def _opened(node: Node) -> Node | None:
    if isinstance(node, PickedRows):
        node = node.source
    return node.reader if isinstance(node, Interleave) else node


def _counts_alike(node: Node) -> bool:
    """Whether `enumerate` counts the elements that who reads from these steps counts: none behind it chooses some."""
    chosen = False
    while isinstance(node, _PASSING):
        if chosen and isinstance(node, Enumerate):
            return False
        chosen = chosen or isinstance(node, _CHOOSING)
        node = node.input
    return True
