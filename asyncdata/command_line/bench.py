"""``asyncdata bench``: how fast files, or a pipeline of the user's, are read, and what it costs."""

from __future__ import annotations

import argparse
import dataclasses
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from asyncdata.command_line.measured_datasets import (
    add_measured_arguments,
    ending_at,
    measured_dataset,
    running_user_code,
)
from asyncdata.command_line.result_printer import OK, ResultPrinter, size
from asyncdata.dataset.dataset import Dataset
from asyncdata.observe.progress import Display
from asyncdata.observe.snapshot import PipelineStats
from asyncdata.observe.stopwatch import clock
from asyncdata.options import Options
from asyncdata.wording import grouped

HELP: Final = "measure how fast files or a pipeline are read"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that only this command has."""
    add_measured_arguments(parser, seconds=10)


@dataclass(slots=True)
class Measured:
    """One measurement.

    Attributes:
        epochs: Epochs that were read to their end.
        elements: Elements that were delivered.
        seconds: From the start to the last element.
        first_s: From the start to the first element; None without any.
        waited_s: Part of the time that was spent waiting for elements: nearly all of it, as nothing is done with them.
        bytes: Bytes that were read from storage.
        cpu_s: CPU seconds of this process and its workers.
        peak_bytes: The most memory that the buffers of any epoch used.
        stats: Of the last epoch.
    """

    epochs: int = 0
    elements: int = 0
    seconds: float = 0.0
    first_s: float | None = None
    waited_s: float = 0.0
    bytes: int = 0
    cpu_s: float = 0.0
    peak_bytes: int = 0
    stats: PipelineStats = dataclasses.field(default_factory=PipelineStats)

    def figures(self) -> dict[str, Any]:
        """What the result tells, as plain data."""
        return {
            "epochs": self.epochs,
            "elements": self.elements,
            "seconds": round(self.seconds, 6),
            "first_element_s": None if self.first_s is None else round(self.first_s, 6),
            "elements_per_s": self.elements / self.seconds if self.seconds else None,
            "bytes_read": self.bytes,
            "bytes_read_per_s": self.bytes / self.seconds if self.seconds else None,
            "waited_s": round(self.waited_s, 6),
            "waited": self.waited_s / self.seconds if self.seconds else None,
            "cpu_s": round(self.cpu_s, 6),
            "cpu_s_per_gb": self.cpu_s / self.bytes * 1e9 if self.bytes else None,
            "peak_memory_bytes": self.peak_bytes,
        }


def run(arguments: argparse.Namespace, options: Options, results: ResultPrinter, display: Display) -> int:
    """Iterates and measures."""
    dataset = measured_dataset(arguments, options, results, display)
    with running_user_code():
        measured = _measure(dataset, options, arguments.seconds, arguments.epochs, display)
    display.close()
    for line in _lines(measured):
        results.say(line)
    results.document(source=arguments.url, **measured.figures(), limits=_what_limits(measured.stats))
    return OK


def _measure(dataset: Dataset, options: Options, seconds: float, epochs: int, display: Display) -> Measured:
    measured = Measured()
    cpu_before = _cpu_s()
    began = clock()
    until = began + seconds
    while measured.epochs < epochs and clock() < until:
        with dataset.with_options(options).iterator() as elements, ending_at(until, elements):
            _take(elements, measured, began, display)
            measured.epochs += 1
        measured.stats = elements.stats()
        measured.peak_bytes = max(measured.peak_bytes, measured.stats.peak_bytes)
        measured.bytes += int(measured.stats.fetch.get("bytes", 0))
    # Now that all worker processes have ended, the system has counted them.
    measured.cpu_s = _cpu_s() - cpu_before
    return measured


def _take(elements: Iterator[Any], measured: Measured, began: float, display: Display) -> None:
    """Takes elements to the end of the epoch."""
    asked = clock()
    for _ in elements:
        now = clock()
        measured.waited_s += now - asked
        measured.elements += 1
        measured.seconds = now - began
        if measured.first_s is None:
            measured.first_s = now - began
        display.show(measured.elements, lambda: f"elements, {measured.elements / measured.seconds:,.0f}/s")
        asked = clock()


def _cpu_s() -> float:
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _lines(measured: Measured) -> Iterator[str]:
    """The result for people."""
    figures = measured.figures()
    if measured.first_s is None:
        yield "no elements"
        return
    end = grouped(measured.epochs, "whole epoch")
    yield f"elements   {measured.elements:,} in {measured.seconds:.2f} s ({end})"
    yield f"first      after {measured.first_s:.3f} s"
    yield f"rate       {figures['elements_per_s']:,.1f} elements/s, {size(figures['bytes_read_per_s'])}/s read"
    per_gb = "" if figures["cpu_s_per_gb"] is None else f", {figures['cpu_s_per_gb']:.2f} s per GB read"
    yield f"CPU        {measured.cpu_s:.2f} s{per_gb}"
    yield f"memory     {size(measured.peak_bytes)} of {size(measured.stats.limit_bytes)} at the most"
    for name, value in _what_limits(measured.stats).items():
        yield f"{name:10} {value}"


def _what_limits(stats: PipelineStats) -> dict[str, Any]:
    """What the statistics tell about what limits the pipeline."""
    fetch = stats.fetch
    found: dict[str, Any] = {
        "verdict": str(stats.verdict),
        "requests": fetch.get("requests", 0),
        "retries": fetch.get("retries", 0),
        "in flight": fetch.get("peak_in_flight", 0),
    }
    if stats.workers is not None:
        found["workers"] = stats.workers.processes
        found["busy"] = f"{stats.workers.busy_s:.2f} s in worker processes"
    return found
