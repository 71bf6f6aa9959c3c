"""Whole samples of a tar file, for whoever has all bytes of some of them in one piece.

Reading a file from its beginning to its end needs no such piece: `asyncdata.runtime.stages.sources.tar_samples` groups
members wherever they were received.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Final, NamedTuple

import numpy as np

from asyncdata.formats.framing import NOWHERE, Frames, Place, Refs, Values
from asyncdata.formats.tar import KEY, TarFramer
from asyncdata.memory.structure import LEAF, DictOf, Structure

_MEMBERS: Final = 256


class _Sample(NamedTuple):
    """Where its first header begins, and its members' contents by extension."""

    key: str
    start: int
    parts: dict[str, tuple[int, int]]


class SampleFramer:
    """Frames samples that have the same extensions and follow one another; see `Framer`.

    A sample is known to be whole when another one begins, or the archive ends.
    """

    structure: Structure = LEAF
    in_thread = False

    def frame(
        self, view: memoryview, start: int, stop: int, *, limit: int, remaining: int | None, last: bool, place: Place
    ) -> Frames:
        """See `Framer`; the answer says what the samples are made of."""
        samples, frames = _samples(view, start, stop, limit + 1, remaining=remaining, last=last, place=place)
        is_over = frames.ended or (last and frames.stop == stop and frames.error is None)
        behind = frames.stop
        if samples and (len(samples) > limit or not is_over):
            behind = samples.pop().start
        if not samples:
            behind = behind if is_over else start
            return Frames(starts=NOWHERE, values=(), stop=behind, error=frames.error, ended=frames.ended and is_over)
        kind = samples[0].parts.keys()
        run = list(takewhile(lambda sample: sample.parts.keys() == kind, samples[:limit]))
        if len(run) < len(samples):
            behind = samples[len(run)].start
        values: list[Values] = [[sample.key for sample in run]]
        values += [Refs(np.array([sample.parts[name] for sample in run], np.int64)) for name in kind]
        return Frames(
            starts=np.array([sample.start for sample in run], np.int64),
            values=tuple(values),
            stop=behind,
            ended=frames.ended and behind == frames.stop,
            structure=DictOf((KEY, *kind), (LEAF,) * len(values)),
        )


def _samples(
    view: memoryview, start: int, stop: int, most: int, *, remaining: int | None, last: bool, place: Place
) -> tuple[list[_Sample], Frames]:
    """The samples that begin in these bytes, and what the last look at their members said."""
    framer, samples, at = TarFramer(), list[_Sample](), start
    while True:
        passed = at - start
        found = framer.frame(
            *(view, at, stop),
            limit=_MEMBERS,
            remaining=None if remaining is None else remaining - passed,
            last=last,
            place=Place(url=place.url, version=place.version, offset=place.offset + passed, record=place.record),
        )
        for part, begin, row in found.parts():
            if not samples or samples[-1].key != part.key:
                samples.append(_Sample(part.key, begin, {}))
            samples[-1].parts.setdefault(part.extension, row)
        is_last = found.ended or found.error is not None or found.need > 0 or found.stop in (at, stop)
        if is_last or len(samples) >= most:
            return samples, found
        at = found.stop
