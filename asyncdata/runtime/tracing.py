"""What a pipeline notes for a trace: other kinds of meters, deliverers and arrivals do it, so others pay nothing."""

from __future__ import annotations

from typing import Any, Final

from asyncdata.memory.block import Block
from asyncdata.observe.stopwatch import Stopwatch, clock
from asyncdata.observe.timeline import Arrivals
from asyncdata.observe.trace_ring import BATCH, BLOCK, CALL, STEP, WAIT, PipelineTrace, TraceRing
from asyncdata.plan.node import Node
from asyncdata.runtime.consumer.delivery import Deliverer, Delivery
from asyncdata.runtime.meter import Meter
from asyncdata.runtime.reading.source_table import SourceTable

_MOST_FILES: Final = 256


class _NotedWaits(Stopwatch):
    """Notes the times in which at least one interval is open."""

    __slots__ = ("_add", "_name", "_reason", "_since")

    def __init__(self, ring: TraceRing, name: int, reason: str) -> None:
        super().__init__()
        self._add = ring.add
        self._name = name
        self._reason = ring.name(reason)
        self._since = 0.0

    def begin(self) -> float:
        """See `Stopwatch`."""
        now = super().begin()
        if self.open == 1:
            self._since = now
        return now

    def end(self) -> float:
        """See `Stopwatch`."""
        now = super().end()
        if not self.open:
            self._add(WAIT, 0, self._name, self._since, now, file=self._reason)
        return now


class TracedMeter(Meter):
    """As `Meter`, and each block, call and wait is noted.

    Args:
        label: The step.
        node: Of the plan; None for one that has inputs.
        place: Of the node.
        ring: Where it is noted.
        sources: Names of files.
    """

    def __init__(self, label: str, node: Node | None, place: str, ring: TraceRing, sources: SourceTable) -> None:
        super().__init__(label, "" if node is None else node.label)
        self._ring = ring
        self._add = ring.add
        self._name = ring.name(f"{place}\t{label}")
        self._sources = sources
        self._files: dict[int, int] = {}
        self._is_source = node is not None and not node.inputs
        # Offsets in what was decompressed lead to no request.
        self._has_offsets = self._is_source and not getattr(node, "compression", None)
        self.full = _NotedWaits(ring, self._name, "is far enough ahead")
        self.storage = _NotedWaits(ring, self._name, "waits for storage")
        self.memory = _NotedWaits(ring, self._name, "waits for memory")
        self.calls = _NotedWaits(ring, self._name, "waits for its calls")

    def note(self, block: Block, began_s: float, ended_s: float) -> None:
        """See `Meter`."""
        Meter.note(self, block, began_s, ended_s)
        rows = len(block.origin)
        if not rows:
            return
        sampled, nbytes = self._sample
        if not self._is_source:
            self._add(BLOCK, 0, self._name, began_s, ended_s, rows, nbytes, 0, 0, 0, sampled)
            return
        source, record, _, offset = block.origin[0].tolist()
        file = 0
        if self._has_offsets:
            known = self._files.get(source)
            file = self._enter(source) if known is None else known
        self._add(BLOCK, 0, self._name, began_s, ended_s, rows, nbytes, source, record, offset, sampled, file)

    def _enter(self, number: int) -> int:
        source = self._sources[number]
        if len(self._files) >= _MOST_FILES:
            self._files.clear()
        self._files[number] = file = self._ring.name(source.name) if source.is_file else 0
        return file

    def called(self, began_s: float, count: int) -> None:
        """See `Meter`."""
        self._add(CALL, 0, self._name, began_s, clock(), count)


class TracedDeliverer(Deliverer):
    """As `Deliverer`, and each delivery is noted.

    Args:
        trace: Where.
        passed_on: What a `Deliverer` takes.
        named: Likewise.
    """

    def __init__(self, trace: PipelineTrace, *passed_on: Any, **named: Any) -> None:
        super().__init__(*passed_on, **named)
        self._trace = trace

    def deliver(self, block: Block) -> tuple[Delivery, Block | None]:
        """See `Deliverer`."""
        began_s, nbytes = clock(), self.nbytes
        source, record, _, _ = block.origin[0].tolist()
        delivery, rest = super().deliver(block)
        ring, number = self._trace
        nbytes = self.nbytes - nbytes
        ring.add(BATCH, 0, number, began_s, clock(), len(delivery), nbytes, source, record, self.deliveries)
        return delivery, rest


class TracedArrivals(Arrivals):
    """As `Arrivals`, and each delivery is noted.

    Args:
        trace: Where.
    """

    def __init__(self, trace: PipelineTrace) -> None:
        super().__init__()
        self._trace = trace
        self._count = 0
        self._before_s: float | None = None
        self._before_waited_s = 0.0

    def begin(self, now: float, waited_s: float) -> None:
        """See `Arrivals`."""
        super().begin(now, waited_s)
        self._before_s, self._before_waited_s = now, waited_s

    def add(self, began_s: float, now: float, elements: int, waited_s: float) -> None:
        """See `Arrivals`."""
        super().add(began_s, now, elements, waited_s)
        self._count += 1
        before_s = began_s if self._before_s is None else self._before_s
        wait_ns = int((waited_s - self._before_waited_s) * 1e9)
        self._before_s, self._before_waited_s = now, waited_s
        ring, number = self._trace
        ring.add(STEP, 0, number, before_s, now, elements, self._count, wait_ns)
