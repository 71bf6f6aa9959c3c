"""Metrics are read at the scrape, carry no URLs, and are valid for the client's own parser."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

import asyncdata as ad
from asyncdata import PipelineMetrics
from asyncdata.errors import PipelineError

prometheus = pytest.importorskip("prometheus_client")


def scrape(registry: object) -> dict[tuple[str, ...], float]:
    """All samples by name and label values, read by the parser of OpenMetrics."""
    exposition, parser = (import_module(f"prometheus_client.openmetrics.{name}") for name in ("exposition", "parser"))
    text = exposition.generate_latest(registry).decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_two_pipelines_are_served_while_they_are_watched(tmp_path: Path) -> None:
    """Each under its name; names of files are in no label."""
    secret = tmp_path / "secret.txt"
    secret.write_text("a\nb\nc\n")
    registry = prometheus.CollectorRegistry()
    metrics = PipelineMetrics(registry)
    assert scrape(registry) == {}
    lines = ad.TextLineDataset(str(secret)).batch(2)
    with lines.iterator() as train, ad.Dataset.range(5).iterator() as evaluation:
        with metrics.watch("train", train), metrics.watch("eval", evaluation):
            next(train)
            assert len(list(evaluation)) == 5
            found = scrape(registry)
            with pytest.raises(ValueError, match="'eval' already"), metrics.watch("eval", train):
                pass
        assert scrape(registry) == {}
    assert found["asyncdata_elements_total", "train"] == 1
    assert found["asyncdata_elements_total", "eval"] == 5
    assert found["asyncdata_bytes_read_total", "train"] == 6
    assert found["asyncdata_step_elements_total", "eval", "1_range"] == 5
    assert found["asyncdata_memory_bytes", "limit", "train"] > found["asyncdata_memory_bytes", "used", "train"] > 0
    times = [name for name in found if name[0].startswith("asyncdata_step_") and name[1:] == ("eval", "1_range")]
    assert len(times) == 6
    assert not [name for name in found if "secret" in str(name)]


@pytest.mark.parametrize(("label", "source"), [("train", ad.Dataset.range(3)), (0, None)])
def test_what_cannot_be_served_is_refused_before_a_scrape_fails(label: Any, source: Any) -> None:
    """A Dataset instead of its iterator, and a label that is no text."""
    metrics = PipelineMetrics(prometheus.CollectorRegistry())
    with pytest.raises(TypeError, match=r"iterator must be|pipeline must be"), metrics.watch(label, source):
        pass


def test_they_are_served_over_http_while_the_pipeline_runs() -> None:
    """Scraped from another thread, as Prometheus does."""
    registry = prometheus.CollectorRegistry()
    metrics = PipelineMetrics(registry)
    server, thread = prometheus.start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        with ad.Dataset.range(10).iterator() as numbers, metrics.watch("train", numbers):
            next(numbers)
            with urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as answer:
                assert b'asyncdata_elements_total{pipeline="train"} 1.0' in answer.read()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing else of the library needs it."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(PipelineError, match=r"asyncdata\[profile\]"):
        PipelineMetrics(object())
