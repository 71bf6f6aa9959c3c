"""`TraceRing`: the last spans of what a process did, in a region of bytes that another process may share.

    | pid | names: 4,096 texts | spans: 32,768 records, of which the newest takes the place of the oldest |

A span is written in one call, its number last. Under the interpreter lock nobody in this process sees half a span.
Another process leaves out those that may have been written or replaced while it copied. What a process has written
survives it.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from asyncdata.redaction import redact_url

BLOCK: Final = 1
"""A pull of a step. Values: rows, bytes of the last value's rows; of a source also its number, and record and offset of
the first row."""
WAIT: Final = 2
"""A wait of a step; its reason is in the place of the file."""
CALL: Final = 3
"""A task of a step, from the first thing that is done for it to the last. Values: rows."""
REQUEST: Final = 4
"""An attempt at a range. Values: bytes, offset, and nanoseconds from its beginning until it was sent, answered and
hedged, and that its connection took; negative where that did not happen."""
TASK: Final = 5
"""A task of a worker, from the dispatch to the reply. Values: ticket, the worker's pid, nanoseconds until it began
(negative if it did not), that it ran, and that it waited for memory. The worker's name is in the place of the file."""
BATCH: Final = 6
"""A delivery is made. Values: rows, bytes, of the first row the source's number and the record, and the delivery's
number in its pipeline, whose number is the name."""
STEP: Final = 7
"""What the consumer did before a delivery came. Values: elements, the delivery's number, nanoseconds of waiting."""

FAILED: Final = 1
RESUMED: Final = 2
OVERTAKEN: Final = 4
KILLED: Final = 8
"""Flags: of a request or task that failed, a request for the rest of another, one that a hedge has overtaken, and a
task whose worker is gone."""

_NAMES: Final = 1 << 12
_NAME_BYTES: Final = 128
_HEAD_BYTES: Final = 40
_OTHERS: Final = _NAMES - 1
OTHERS: Final = "others"
"""What names share that find no place of their own."""
_BEING_REPLACED: Final = 16
"""Of a ring that is full, so many of the oldest spans may be just being replaced."""
_MOST_OTHERS: Final = 32
_SPAN: Final = struct.Struct("=HHIdd6qqq")
_RECORD: Final = np.dtype(
    [
        ("kind", "<u2"),
        ("flags", "<u2"),
        ("name", "<u4"),
        ("begin_s", "<f8"),
        ("end_s", "<f8"),
        *((f"value_{place}", "<i8") for place in range(6)),
        ("file", "<i8"),
        ("number", "<i8"),
    ]
)
_FIRST_NAME: Final = 8
_FIRST_SPAN: Final = _FIRST_NAME + _NAMES * _NAME_BYTES

RING_BYTES: Final = _FIRST_SPAN + (1 << 15) * _SPAN.size


@dataclass(frozen=True, slots=True, eq=False)
class ProcessTrace:
    """What a process noted.

    Attributes:
        pid: Its process id.
        names: What names and files in the records stand for.
        packed: The spans, the oldest first.
        dropped: Earlier spans that are not kept.
    """

    pid: int
    names: tuple[str, ...]
    packed: npt.NDArray[Any]
    dropped: int

    def records(self) -> Iterator[TraceRecord]:
        """The spans, the oldest first."""
        for kind, flags, name, begin_s, end_s, *values, file, _ in self.packed.tolist():
            yield TraceRecord(kind, flags, name, begin_s, end_s, tuple(values), file)


class TraceRecord(NamedTuple):
    """One span; see `TraceRing.add`."""

    kind: int
    flags: int
    name: int
    begin_s: float
    end_s: float
    values: tuple[int, ...]
    file: int


class TraceRing:
    """See the module. Any thread of one process adds to it; any process may read it.

    Args:
        region: ``RING_BYTES`` bytes, zeros at first; or fewer, for fewer spans.
        reads: This process only reads it.

    Attributes:
        add: Adds one more span. Takes the kind, flags, the number of a name, beginning and end by the clock of
            `stopwatch`, the six values that the kind says, and the number of a second name.
        others: What other processes note about pipelines of this one.
    """

    def __init__(self, region: bytearray | memoryview, *, reads: bool = False) -> None:
        self._region = region
        self._spans = (len(region) - _FIRST_SPAN) // _SPAN.size
        self.add = _adder(region, self._spans)
        self._names: dict[str, int] = {}
        self._numbers = itertools.count(1)
        self._pipelines = itertools.count(1)
        self.others: deque[TraceRing] = deque(maxlen=_MOST_OTHERS)
        if not reads:
            region[:_FIRST_NAME] = os.getpid().to_bytes(_FIRST_NAME, "little")

    def name(self, text: str) -> int:
        """The number under which a text is kept, without what is secret in it; of very many, the last share one."""
        return self._names.get(text) or self._keep(text)

    def _keep(self, text: str) -> int:
        # Without a lock, which the stage loop would wait for while a handler of signals waits for the stage loop. Two
        # threads that keep the same text at once waste a number.
        number = next(self._numbers)
        if number >= _OTHERS:
            number, text = _OTHERS, OTHERS
        else:
            number = self._names.setdefault(text, number)
        data = redact_url(text).encode("utf-8", "replace")
        if len(data) > _NAME_BYTES:  # where a step is in the plan comes first; of a path, the end tells most
            data = data[:_HEAD_BYTES] + b"..." + data[_HEAD_BYTES + 3 - _NAME_BYTES :]
        at = _FIRST_NAME + number * _NAME_BYTES
        self._region[at : at + _NAME_BYTES] = data.ljust(_NAME_BYTES, b"\0")
        return number

    def add_task(
        self,
        label: str,
        worker: str,
        sent_s: float,
        ended_s: float,
        values: tuple[int, ...],
        *,
        failed: bool,
        killed: bool,
    ) -> None:
        """A task of a worker; with the values of `TASK`."""
        flags = FAILED * failed | KILLED * killed
        self.add(TASK, flags, self.name(label), sent_s, ended_s, *values, file=self.name(worker))

    def begin_pipeline(self) -> PipelineTrace:
        """One more pipeline notes what it does."""
        return PipelineTrace(self, next(self._pipelines))

    def read(self) -> ProcessTrace:
        """What there is now."""
        live = np.frombuffer(self._region, _RECORD, self._spans, _FIRST_SPAN)
        before = int(live["number"].max())
        records = live.copy()
        after = int(live["number"].max())
        dropped = 0 if after < self._spans else after - self._spans + _BEING_REPLACED
        records = records[(records["number"] > dropped) & (records["number"] <= before)]
        texts = bytes(self._region[_FIRST_NAME:_FIRST_SPAN])
        names = [
            texts[at : at + _NAME_BYTES].rstrip(b"\0").decode("utf-8", "replace")
            for at in range(0, len(texts), _NAME_BYTES)
        ]
        pid = int.from_bytes(self._region[:_FIRST_NAME], "little")
        return ProcessTrace(pid, tuple(names), records[np.argsort(records["number"])], dropped)


def _adder(region: bytearray | memoryview, spans: int) -> Callable[..., None]:
    """Adds a span: a closure, because it is called for every block, and attributes would cost as much as the rest."""
    numbers, pack, size = itertools.count(1), _SPAN.pack_into, _SPAN.size

    def add(
        kind: int,
        flags: int,
        name: int,
        begin_s: float,
        end_s: float,
        first: int = 0,
        second: int = 0,
        third: int = 0,
        fourth: int = 0,
        fifth: int = 0,
        sixth: int = 0,
        file: int = 0,
    ) -> None:
        number = next(numbers)  # one step, whatever other threads do
        at = _FIRST_SPAN + number % spans * size
        pack(region, at, kind, flags, name, begin_s, end_s, first, second, third, fourth, fifth, sixth, file, number)

    return add


class PipelineTrace(NamedTuple):
    """Where one pipeline notes what it does.

    Attributes:
        ring: The ring of the process in which it runs, or of the consumer.
        pipeline: Its number in the profile.
    """

    ring: TraceRing
    pipeline: int


class Profiled(NamedTuple):
    """What is recorded of a pipeline while it runs.

    Attributes:
        sample_hz: How often per second to look at which line user code is in; 0: never.
        trace: Where it notes what it does; None: nowhere.
    """

    sample_hz: float = 0.0
    trace: PipelineTrace | None = None
