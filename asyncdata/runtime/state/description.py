"""`describe` and `diff`: what a state says, for people. Both only read; no pipeline is needed.

Each mark shows which kind of step wrote it by its keys. What is inside a dataset that a function made is described
without its steps, because the plan does not contain them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asyncdata.memory.advance import State
from asyncdata.planner.sharing import shard_name
from asyncdata.redaction import redact, redact_url
from asyncdata.runtime.state import listings
from asyncdata.runtime.state.document import VERSION_KEY, check, naming_damage, tracks_from_json
from asyncdata.runtime.state.filling import Filling
from asyncdata.runtime.state.json_codec import from_json
from asyncdata.runtime.state.places import Places
from asyncdata.runtime.state.tracks import SavedTrack
from asyncdata.wording import grouped

_KINDS: Final = {
    "slots": "interleave",
    "drawn": "shuffle",
    "batch": "batch",
    "window": "window",
    "number": "repeat or concatenate",
    "passed": "take, skip, enumerate or shard",
    "inputs": "zip or sample_from_datasets",
    "record": "file",
    "filling": "cache",
}
"""The steps that write marks, by a key that only their marks have."""

_REPEATS: Final = {
    "filter(": "its function is called again for up to about 1,000 elements: only the function says which are kept",
    "take_while(": "its function is called again for up to about 1,000 elements: only the function says where it ends",
    "interleave(": "up to about 1,000 outputs are made again, because its datasets are of unknown lengths",
    "unbatch(": "up to about 1,000 outputs are made again, because its batches are of unknown lengths",
    "from_generator(": "the generator yields everything again, unless it has state=(get, set)",
    "cache(": "a cache that is not complete is filled again, under {epoch}",
    "snapshot(": "a snapshot that is not complete is written again, under {epoch}",
    "unique(": "everything in front of it is made again, because it must know every element that it has seen",
    "group_by_window(": "everything in front of it is made again, because windows hold elements of any age",
    "scan(": "its function is called again for up to about 1,000 elements",
}
"""What a resume does again in front of the position, by how the line of the step begins, wherever the position is."""

_OF_ONE_EACH: Final = "interleave(function=FileDataset("
"""Datasets of one element each: there it is known which are left."""

_READER: Final = re.compile(r"\(function=(\w+)\(\{'opens': .*\}\), (?=cycle_length=)")
"""How a state writes the reader that `interleave` opens files with: with the settings of its files."""

_MOST_DIFFERENCES: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCursor:
    """A file that is read at the position.

    Attributes:
        url: Without credentials; None if the state does not contain the list of files, or has several of one version.
        version: Of the object: its generation, or size and modification time.
        record: Number of the record where reading begins.
        offset: First byte of it.
        skipped: Records behind it that are read again and dropped.
    """

    url: str | None
    version: str | None
    record: int
    offset: int
    skipped: int

    def __str__(self) -> str:
        again = f", of which {self.skipped:,} are dropped" if self.skipped else ""
        name = self.url or f"file of version {self.version}"
        return f"{name}: records from number {self.record:,} on, at byte {self.offset:,}{again}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDescription:
    """What a state says; ``str()`` makes a text of it.

    Attributes:
        version: Of the format.
        epochs: The epoch's number, then that of the repetition of each ``repeat``, where a mark says it.
        position: Elements that were delivered in the epoch.
        seeds: Of the pipeline, then those that steps drew.
        steps: Of the plan, sources first.
        reader: Such as ``shard(4, 1)``; empty without shards.
        files: Those that are open.
        inputs: Where it is tracked, which elements of each input were delivered, as text.
        repeats: What a resume reads or runs again, and why.
        sizes: Bytes of each part of the state as JSON.
    """

    version: int
    epochs: tuple[int, ...]
    position: int
    seeds: tuple[int, ...]
    steps: tuple[str, ...]
    reader: str
    files: tuple[FileCursor, ...]
    inputs: tuple[str, ...]
    repeats: tuple[str, ...]
    sizes: Mapping[str, int]

    def __str__(self) -> str:
        path = "".join(f", repetition {number}" for number in self.epochs[1:])
        reader = f", of {self.reader}" if self.reader else ""
        sizes = [f"{part}: {grouped(size, 'byte')}" for part, size in self.sizes.items()]
        parts: dict[str, Sequence[object]] = {
            "steps": self.steps,
            "open files": self.files,
            "delivered": self.inputs,
            "a resume repeats": self.repeats,
            f"size {grouped(sum(self.sizes.values()), 'byte')}": sizes,
        }
        behind = grouped(self.position, "element")
        lines = [
            f"state of version {self.version}{reader}: epoch {self.epochs[0]}{path}, behind {behind}",
            f"seeds: {', '.join(map(str, self.seeds))}",
        ]
        for title, part in parts.items():
            if part:
                lines += [f"{title}:", *(f"  {line}" for line in part)]
        return "\n".join(lines)


def describe(state: Mapping[str, Any]) -> StateDescription:
    """Says what is in a state: position, seeds, steps, open files, what was delivered, and what a resume repeats.

    It needs neither the pipeline nor its files, and shows no credentials.

    Args:
        state: Of ``state_dict()``, `load` or `split`.

    Raises:
        StateError: It is none, is damaged, or is of a later version.

    Example:
        >>> import asyncdata as ad
        >>> with ad.Dataset.range(100).shuffle(10, seed=1).filter(bool).iterator(epoch=0) as it:
        ...     elements = [next(it) for _ in range(20)]
        ...     state = it.state_dict()
        >>> print(ad.state.describe(state))
        state of version 7: epoch 0, behind 20 elements
        seeds: ...
        steps:
          range(start=0, stop=100, step=1, dtype='<i8')
          shuffle(buffer_size=10, seed=1, reshuffle=True)
          filter(predicate=bool)
        a resume repeats:
          filter: its function is called again for up to about 1,000 elements: only the function says which are kept
          shuffle: 10 elements of its input are read again, from number 0 on, for the 10 in its buffer...
          20 elements behind the mark of shuffle are made again
        size ...
    """
    with naming_damage():
        return _description(state)


def _description(state: Mapping[str, Any]) -> StateDescription:
    decoded = _Decoded(state)
    numbers = [state["epoch"], state["position"], state["seed"], *state["drawn"]]
    if not all(type(number) is int for number in numbers):
        raise ValueError("a number is none")
    marks = list(decoded.marks())
    steps = tuple(redact(str(line)) for line in decoded.plan)
    shards = [shard_name(*shard) for shard in state["shards"]]
    repetitions = [mark["number"] for kind, mark, _ in marks if kind == _KINDS["number"]]
    if any(line.startswith("concatenate(") for line in steps):
        repetitions = []  # both kinds write the same marks
    return StateDescription(
        version=state[VERSION_KEY],
        epochs=(state["epoch"], *repetitions),
        position=state["position"],
        seeds=(state["seed"], *state["drawn"]),
        steps=tuple(_READER.sub(r"(function=\1, ", line) for line in steps),
        reader=", ".join(shards),
        files=tuple(decoded.open_file(mark, skip) for kind, mark, skip in marks if kind == _KINDS["record"]),
        inputs=tuple(_delivered(decoded.tracks)),
        repeats=(
            *_known_repeats(steps, _filled_under(state, marks)),
            *_counted_repeats(marks),
            *_lying_repeats(decoded.tracks),
        ),
        sizes={part: len(json.dumps(value)) for part, value in state.items()},
    )


def diff(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Says where two states differ, a line each, the first 20; none if they are the same.

    Args:
        one: Of ``state_dict()``, `load` or `split`.
        other: Likewise.

    Raises:
        StateError: One of them is none, is damaged, or is of a later version.

    Example:
        >>> import asyncdata as ad
        >>> with ad.Dataset.range(9).batch(2).iterator(epoch=0) as it:
        ...     batch, one = next(it), it.state_dict()
        ...     batch, other = next(it), it.state_dict()
        >>> ad.state.diff(one, other)[0]
        'position: 1 and 2'
        >>> ad.state.diff(one, one)
        []
    """
    with naming_damage():
        found = _differences("", _Decoded(one).comparable(), _Decoded(other).comparable())
        return [f"{path}: {text}" for path, text in islice(found, _MOST_DIFFERENCES)]


class _Decoded:
    """A state that was read as far as it can be without its plan."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        check(state)
        self.state = from_json(state["state"])
        self.tracks = tracks_from_json(state)
        self.plan: list[str] = state["plan"]
        found = [listings.from_json(part) for part in state.get("listings", ())]
        self._simple = {key: state[key] for key in ("epoch", "position", "seed", "drawn", "shards", "unordered")}
        self._listed = {f"list of files {listing.key}": listing.digest for listing in found}
        self._urls: dict[str | None, str | None] = {}
        for info in (info for listing in found for info in listing.infos):
            self._urls[info.version] = None if info.version in self._urls else redact_url(info.url)

    def comparable(self) -> dict[str, Any]:
        """What `diff` compares, by the words for it."""
        plan = {f"step {number}": line for number, line in enumerate(self.plan)}
        tracks = {
            f"delivered of input {track.number}": {"before": track.at, "later": track.later, "all": track.total}
            for track in self.tracks
        }
        return {**self._simple, **plan, **self._listed, **tracks, **_readable(self.state)}

    def marks(self) -> Iterator[tuple[str, Any, int]]:
        """Kind, mark, and outputs behind it, of every state inside; of tracks where there is no other."""
        begin = [track.state for track in self.tracks] if self.state is None else [self.state]
        waiting: list[Any] = begin[::-1]
        while waiting:
            value = waiting.pop()
            if isinstance(value, State):
                mark = _mark_of_step(value)
                if (kind := _kind(mark)) is not None:
                    yield kind, mark, value.skip
                waiting.append(mark)
            elif isinstance(value, dict):
                waiting += list(value.values())[::-1]
            elif isinstance(value, list | tuple):
                waiting += value[::-1]

    def open_file(self, mark: Any, skip: int) -> FileCursor:
        """The file of a mark."""
        version = mark["version"]
        url = self._urls.get(version)
        return FileCursor(url=url, version=version, record=mark["record"], offset=mark["offset"], skipped=skip)


def _mark_of_step(state: State) -> Any:
    """The mark, without what says where it is in a track or snapshot."""
    mark = state.mark
    return mark["input"] if isinstance(mark, dict) and mark.keys() - {"filling", "kept"} == {"at", "input"} else mark


def _kind(mark: Any) -> str | None:
    return next((kind for key, kind in _KINDS.items() if isinstance(mark, dict) and key in mark), None)


def _delivered(tracks: Sequence[SavedTrack]) -> Iterator[str]:
    untouched = 0
    for track in tracks:
        around = "" if track.owner.track < 0 else f", made of element {track.owner.position:,} of {track.owner.track}"
        total = "" if track.total is None else f" of {track.total:,}"
        text = f"input {track.number}{around}: the first {track.at:,}{total}"
        if len(track.later):
            missing = int(track.later[-1]) + 1 - track.delivered
            text += f" and {len(track.later):,} later ones; {missing:,} between them were not"
        if track.delivered:
            yield text
        else:
            untouched += 1
    if untouched:
        yield f"nothing of {untouched:,} inputs that were begun"


def _filled_under(state: Mapping[str, Any], marks: Sequence[tuple[str, Any, int]]) -> str:
    """The run in which caches are filled again."""
    said = [mark["filling"] for kind, mark, _ in marks if kind == _KINDS["filling"]]
    first = next((value for value in (*said, *state.get("caches", ())) if value is not None), None)
    epoch, *repetitions = (state["epoch"],) if first is None else Filling.from_mark(first).epoch
    return f"epoch {epoch}" + "".join(map(_repetition, repetitions))


def _repetition(number: int) -> str:
    # Made of a digest where it tells an element apart that comes again, and the cache is of a dataset made of it.
    return f", repetition {number}" if number < 1 << 32 else ", an element that came again"


def _known_repeats(steps: Sequence[str], epoch: str) -> Iterator[str]:
    for line in steps:
        for name, text in _REPEATS.items():
            if line.startswith(name) and not line.startswith(_OF_ONE_EACH):
                yield f"{name[:-1]}: {text.format(epoch=epoch)}"
        if "compression='" in line:
            yield f"{line.partition('(')[0]}: files are decompressed from their beginnings, because none can be entered"


def _counted_repeats(marks: Sequence[tuple[str, Any, int]]) -> Iterator[str]:
    for kind, mark, skip in marks:
        if kind == _KINDS["drawn"] and "places" in mark:
            lying = grouped(
                len(mark["places"]),
                "element in its buffer is read from where it lies in files",
                "elements in its buffer are read from where they lie in files",
            )
            yield f"{kind}: the {lying}"
        elif kind == _KINDS["drawn"]:
            again = grouped(mark["next"] - mark["row"], "element of its input is", "elements of its input are")
            yield (
                f"{kind}: {again} read again, from number {mark['row']:,} on, for the "
                f"{len(mark['buffer']):,} in its buffer, because they do not lie in files as they are"
            )
        if kind in (_KINDS["drawn"], _KINDS["slots"], _KINDS["number"]) and skip:
            behind = f"behind the mark of {kind}"
            yield f"{grouped(skip, f'element {behind} is', f'elements {behind} are')} made again"


def _lying_repeats(tracks: Sequence[SavedTrack]) -> Iterator[str]:
    if count := sum(len(track.lying) for track in tracks if track.lying is not None):
        yield f"{count:,} elements that were read and not delivered are read from where they lie in files"


# --- differences ----------------------------------------------------------------------------------------------------


def _readable(value: Any) -> Any:
    """A state with words in place of keys."""
    if isinstance(value, Places):
        return {"file": value.origin[:, 0], "record": value.origin[:, 1]}
    if isinstance(value, State):
        mark = _mark_of_step(value)
        if not isinstance(mark, dict):
            return {"delivered since the beginning": value.skip}
        return {_kind(mark) or "source": {"delivered behind its mark": value.skip, **_readable(mark)}}
    if isinstance(value, dict):
        return {str(key): _readable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return {f"{number}": _readable(item) for number, item in enumerate(value)}
    return value if value is not None else {}


def _differences(path: str, one: Any, other: Any) -> Iterator[tuple[str, str]]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys([*one, *other]):
            yield from _differences(f"{path} > {key}" if path else key, one.get(key), other.get(key))
    elif isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and _rows_of(one) == _rows_of(other):
        unlike = sum(_is_unlike(a, b) for a, b in zip_longest(one.ravel().tolist(), other.ravel().tolist()))
        if unlike:
            yield path, f"{unlike:,} of {max(one.size, other.size):,} numbers"
    elif isinstance(one, dict | np.ndarray) or isinstance(other, dict | np.ndarray) or _is_unlike(one, other):
        yield path, f"{_shown(one)} and {_shown(other)}"


def _rows_of(array: npt.NDArray[Any]) -> tuple[int, ...]:
    """What must be the same in arrays of which numbers are compared; only the length may differ."""
    return array.ndim, *array.shape[1:]


def _is_unlike(one: Any, other: Any) -> bool:
    """Two that are not a number, and so not even equal to themselves, are alike."""
    return bool(one != other and (one == one or other == other))  # noqa: PLR0124 -- False for NaN


def _shown(value: Any) -> str:
    if value is None or (isinstance(value, dict) and not value):
        return "nothing"
    return redact(str(value)) if isinstance(value, int | float | str | list) else "something"
