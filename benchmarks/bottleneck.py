"""From measurements to the sentence that names the bottleneck. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_BUSY: Final = 0.80
_IDLE: Final = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Shares of the time in which batches flowed, each from 0 to 1.

    Attributes:
        consumer_waited: The consumer waited for the next batch.
        workers_busy: A worker process was inside a task, averaged over the workers.
        machine_busy: A processor worked for this process and its workers, averaged over the processors.
        server_busy: A processor worked for the server on the same machine, averaged over the processors.
        others_busy: A processor worked for anybody else, averaged over the processors.
        reads_waiting: A read waited for its turn because the limit of requests in flight was reached.
        reads_idle: No read was in flight: nobody asked for bytes.
    """

    consumer_waited: float
    workers_busy: float
    machine_busy: float
    server_busy: float = 0.0
    others_busy: float = 0.0
    reads_waiting: float
    reads_idle: float


def name_bottleneck(shares: Shares) -> str:
    """One sentence: what would have to be faster for batches to come faster, and the evidence."""
    waited = f"the consumer waited {_percent(shares.consumer_waited)} of the time"
    if shares.consumer_waited < _IDLE:
        return (
            f"Bottleneck: the consumer; batches lay ready and it waited for them only "
            f"{_percent(shares.consumer_waited)} of the time."
        )
    if shares.workers_busy >= _BUSY:
        return (
            f"Bottleneck: decode CPU; the worker processes were busy {_percent(shares.workers_busy)} of the time, "
            f"no read was in flight {_percent(shares.reads_idle)} of it, and {waited}."
        )
    if shares.machine_busy + shares.server_busy + shares.others_busy >= _BUSY:
        return (
            f"Bottleneck: CPU of this machine; the pipeline used {_percent(shares.machine_busy)}, the server "
            f"{_percent(shares.server_busy)} and other programs {_percent(shares.others_busy)} of all processors, the "
            f"workers were busy {_percent(shares.workers_busy)} of the time, and {waited}."
        )
    if shares.reads_waiting >= 0.5:
        return (
            f"Bottleneck: network, by the limit of requests in flight; reads waited for their turn "
            f"{_percent(shares.reads_waiting)} of the time, the workers were busy only "
            f"{_percent(shares.workers_busy)} of it, and {waited}."
        )
    if shares.reads_idle < 0.5:
        return (
            f"Bottleneck: network; reads were in flight {_percent(1 - shares.reads_idle)} of the time, the workers "
            f"were busy only {_percent(shares.workers_busy)} of it, and {waited}."
        )
    return (
        f"Bottleneck: none stands out; the workers were busy {_percent(shares.workers_busy)} of the time, no read was "
        f"in flight {_percent(shares.reads_idle)} of it, and {waited}."
    )


def _percent(share: float) -> str:
    return f"{100 * min(share, 1.0):.0f} %"
