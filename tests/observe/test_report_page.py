"""The page of a profile: in a browser, without a network, with the numbers of the report."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import pytest

import asyncdata as ad
from asyncdata.observe.parts import ConsumerStats, StepStats
from asyncdata.observe.plan_drawing import draw
from asyncdata.observe.profile_report import ProfileReport
from tests.patience import LIMIT_S

VENDORED = {  # uPlot 1.6.32
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uPlot-LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
HOSTILE = "</script><script>document.title='broken'</script><b>&amp;"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> ProfileReport:
    """Files, a join, worker processes, a function with a hostile name, two epochs, and a pipeline that fails."""
    folder = tmp_path_factory.mktemp("files")
    for number in range(3):
        with ad.TFRecordWriter(str(folder / f"{number}.tfrecord")) as writer:
            writer.write_many([bytes(1000)] * 200)

    def size(record: bytes) -> int:
        return len(record)

    size.__qualname__ = HOSTILE
    records = ad.Dataset.list_files(str(folder / "*.tfrecord")).interleave(ad.TFRecordDataset, 3)
    ds = ad.Dataset.zip(records.map(size, num_parallel_calls=2), ad.Dataset.counter()).shuffle(20).batch(10)
    with ad.profile() as profile, ad.Runtime(ad.Options(num_workers=1)):
        for _ in range(2):
            assert len(list(ds)) == 60
        with pytest.raises(ZeroDivisionError):
            list(ad.Dataset.range(3).map(lambda _x: 1 // 0))
    return profile.report()


@pytest.mark.parametrize("name", VENDORED)
def test_what_is_not_ours(name: str) -> None:
    """The files of uPlot are as they were published, with their licence."""
    data = (resources.files("asyncdata.observe") / "page" / name).read_bytes()
    assert hashlib.sha256(data).hexdigest() == VENDORED[name]


def test_it_stands_alone(report: ProfileReport) -> None:
    """Nothing is loaded from anywhere, what users named is text, and it is small enough to mail."""
    html = report.to_html()
    assert """Content-Security-Policy" content="default-src 'unsafe-inline'">""" in html
    assert not re.search(r"\b(?:src|href)\s*=|@import|url\(", html.split('id="report"')[0])
    assert "<script>document.title" not in html
    assert len(html) < 300_000
    (embedded,) = re.findall(r'id="report">(.*?)</script>', html, re.DOTALL)
    assert json.loads(embedded) == json.loads(report.to_json())


def test_settings_that_were_found_are_shown_with_their_reasons() -> None:
    """What AUTOTUNE came to, and why; where nothing is found nothing is said."""
    with ad.profile() as profile:
        for ds in (ad.Dataset.range(3).prefetch(ad.AUTOTUNE), ad.Dataset.range(3)):
            assert list(ds) == [0, 1, 2]
    html = profile.report().to_html()
    assert html.count("<h2>Found by AUTOTUNE</h2>") == 1
    assert "1 times the usual elements, default 1" in html
    assert "<td>the default</td>" in html


def test_the_numbers_are_there_without_scripts(report: ProfileReport) -> None:
    """Verdict, figures and tables are text of the page."""
    html = report.to_html()
    for pipeline in report.pipelines:
        assert pipeline.verdict.sentence.split(":")[0].split(HOSTILE)[0] in html
    elements = re.findall(r'data-figure="elements" data-value="(\d+)"', html)
    assert [int(each) for each in elements] == [each.stats.elements for each in report.pipelines]


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_in_a_browser(report: ProfileReport, tmp_path: Path) -> None:
    """Every chart is drawn, and nothing is complained about: neither an error nor a load, which the page forbids."""
    page = tmp_path / "report.html"
    page.write_text(report.to_html().replace("<details ", "<details open "))
    ran = subprocess.run(
        [
            *(str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path / 'home'}"),
            *("--enable-logging=stderr", "--virtual-time-budget=3000", "--dump-dom", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    dom = ran.stdout
    assert "CONSOLE" not in ran.stderr, [line for line in ran.stderr.splitlines() if "CONSOLE" in line]
    assert "data-failed" not in dom
    (drawn,) = re.findall(r'data-ready="(\d+)"', dom)
    reads = sum(1 for each in report.pipelines if each.moments[-1].bytes_read)  # their rate is one more
    assert int(drawn) == dom.count("data-chart=") + reads
    assert reads == 2
    assert dom.count("<canvas") == int(drawn)
    assert "<title>broken" not in dom
    document = json.loads(report.to_json())
    shown = re.findall(r'data-figure="peak_bytes" data-value="(\d+)"', dom)
    assert [int(each) for each in shown] == [each["stats"]["peak_bytes"] for each in document["pipelines"]]


def test_the_plan() -> None:
    """Every step is a box below its inputs, with an arrow from each; the bottleneck is marked, names are escaped."""
    steps = [
        StepStats(name="zip<&>", elements=3, working_s=1, consumer_s=9, inputs=(1, 2)),
        StepStats(name="map(f)", elements=3, workers_s=8, consumer_s=2, inputs=(3,), runs="process", parallel=4),
        StepStats(name="counter", elements=3, consumer_s=10),
        StepStats(name="range", elements=3, consumer_s=10),
    ]
    svg = draw(steps, 10.0, 3, ConsumerStats(wait_s=9, step_s=1), "map(f)")
    boxes = {name: float(y) for y, name in re.findall(r'<text class="name" x="[\d.]+" y="([\d.]+)">([^<]+)', svg)}
    assert list(boxes) == ["zip&lt;&amp;&gt;", "map(f)", "counter", "range", "consumer: your loop"]
    assert (
        boxes["range"] < boxes["map(f)"] == boxes["counter"] < boxes["zip&lt;&amp;&gt;"] < boxes["consumer: your loop"]
    )
    assert svg.count('class="arrow"') == 4
    assert re.findall(r'class="step bottleneck"><title>([^:]+)', svg) == ["map(f)"]
    assert "in worker processes, 4 at a time" in svg
    assert draw((), 0.0, 0, ConsumerStats()).count("<g ") == 1
