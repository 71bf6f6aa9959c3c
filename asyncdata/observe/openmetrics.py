"""Statistics for Prometheus and other readers of OpenMetrics, by the package ``prometheus_client``.

Numbers are read when somebody scrapes them. Between scrapes nothing runs. Labels are names that the program chose,
kinds of steps, and numbers: neither URLs nor functions, which could be secret, or too many.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol

from asyncdata import arguments
from asyncdata.errors import PipelineError
from asyncdata.observe.parts import StepStats
from asyncdata.observe.snapshot import PipelineStats

_TIMES: Final = {
    "working": "working_s",
    "input": "input_s",
    "memory": "memory_s",
    "workers": "workers_s",
    "idle": "consumer_s",
}


class HasStats(Protocol):
    """What has statistics: an iterator of a dataset."""

    def stats(self) -> PipelineStats:
        """The numbers now."""


class _Sample(NamedTuple):
    labels: tuple[str, ...]
    value: float


class _Family(NamedTuple):
    """All samples of one name; `counts` tells a number that only grows from one that may fall."""

    name: str
    text: str
    labels: tuple[str, ...]
    counts: bool
    samples: list[_Sample]


class PipelineMetrics:
    """A collector that reads the statistics of the pipelines it watches. Make one per process.

    Example:
        >>> import asyncdata as ad
        >>> from prometheus_client import CollectorRegistry, generate_latest
        >>> registry = CollectorRegistry()  # or prometheus_client.REGISTRY, which start_http_server() serves
        >>> metrics = ad.PipelineMetrics(registry)
        >>> with ad.Dataset.range(10).batch(4).iterator() as batches, metrics.watch("train", batches):
        ...     count = len(list(batches))
        ...     text = generate_latest(registry).decode()
        >>> 'asyncdata_elements_total{pipeline="train"} 3.0' in text
        True

    Args:
        registry: A ``CollectorRegistry``; the collector registers there.

    Raises:
        PipelineError: ``prometheus_client`` is not installed.
    """

    def __init__(self, registry: Any) -> None:
        try:
            from prometheus_client import core  # noqa: PLC0415 -- an extra, needed for metrics only
        except ImportError:
            raise PipelineError("metrics need an extra: pip install 'asyncdata[profile]'") from None
        self._core: Any = core
        self._lock = threading.Lock()
        self._watched: dict[str, HasStats] = {}
        registry.register(self)

    @contextlib.contextmanager
    def watch(self, pipeline: str, iterator: HasStats) -> Generator[None]:
        """Inside, the statistics of an iterator are served.

        Args:
            pipeline: The value of the label ``pipeline``.
            iterator: Of a dataset.

        Raises:
            TypeError: `pipeline` is no text, or `iterator` has no statistics, as a Dataset.
            ValueError: Another iterator is watched under this name.
        """
        arguments.instance("pipeline", pipeline, str, "a text")
        if not hasattr(iterator, "stats"):
            raise TypeError(f"iterator must be one of a dataset (dataset.iterator()), not {arguments.shown(iterator)}")
        with self._lock:
            if pipeline in self._watched:
                raise ValueError(
                    f"a pipeline is watched as {arguments.shown(pipeline)} already: give each its own name"
                )
            self._watched[pipeline] = iterator
        try:
            yield
        finally:
            with self._lock:
                del self._watched[pipeline]

    def describe(self) -> list[Any]:
        """For the registry, which would otherwise collect to learn the names: there are none to compare."""
        return []

    def collect(self) -> Iterator[Any]:
        """For the registry, at each scrape."""
        with self._lock:
            watched = dict(self._watched)
        for family in families_of({name: iterator.stats() for name, iterator in watched.items()}):
            kind = self._core.CounterMetricFamily if family.counts else self._core.GaugeMetricFamily
            made = kind(family.name, family.text, labels=family.labels)
            for sample in family.samples:
                made.add_metric(sample.labels, sample.value)
            yield made


def families_of(stats: Mapping[str, PipelineStats]) -> list[_Family]:
    """The numbers of pipelines, by their names, as metrics. Pure."""
    one, step, kind = ("pipeline",), ("pipeline", "step"), ("pipeline", "kind")
    plain: list[tuple[str, str, Callable[[PipelineStats], float], bool]] = [
        ("elements", "Elements that the consumer received.", lambda of: of.elements, True),
        ("bytes_read", "Bytes that were received from storage.", lambda of: of.reads.bytes, True),
        ("retries", "Attempts at reads that followed a failure.", lambda of: of.reads.retries, True),
        ("skipped_elements", "Elements that failed and were left out.", lambda of: of.skipped.elements, True),
        ("consumer_wait_seconds", "Time the consumer waited.", lambda of: of.consumer.wait_s, True),
        ("consumer_step_seconds", "Time the consumer worked.", lambda of: of.consumer.step_s, True),
        ("workers_busy_seconds", "Time workers spent in tasks.", lambda of: of.cpu.workers_busy_s, True),
        ("workers", "Worker processes.", lambda of: 0 if of.workers is None else of.workers.processes, False),
        ("window_seconds", "Time since the pipeline started.", lambda of: of.window_s, False),
    ]
    families = [
        _Family(f"asyncdata_{name}", text, one, counts, [_Sample((key,), value(of)) for key, of in stats.items()])
        for name, text, value, counts in plain
    ]
    memory = {"used": "used_bytes", "limit": "limit_bytes", "peak": "peak_bytes"}
    families.append(
        _Family(
            "asyncdata_memory_bytes",
            "Memory of buffers.",
            kind,
            False,
            [_Sample((key, name), getattr(of, field)) for key, of in stats.items() for name, field in memory.items()],
        )
    )
    steps = [(key, label, each) for key, of in stats.items() for label, each in _labelled(of.steps)]
    families.append(
        _Family(
            "asyncdata_step_elements",
            "Elements that a step passed on.",
            step,
            True,
            [_Sample((key, label), each.elements) for key, label, each in steps],
        )
    )
    families += [
        _Family(
            f"asyncdata_step_{name}_seconds",
            f"Time of a step: {name}. A mean over its copies, which may fall.",
            step,
            False,
            [_Sample((key, label), getattr(each, field)) for key, label, each in steps],
        )
        for name, field in _TIMES.items()
    ]
    return families


def _labelled(steps: tuple[StepStats, ...]) -> list[tuple[str, StepStats]]:
    """The steps, sources first, as ``1_range``: a number and the kind."""
    return [(f"{number}_{step.kind}", step) for number, step in enumerate(reversed(steps), 1)]
