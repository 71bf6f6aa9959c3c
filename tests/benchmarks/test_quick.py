"""Every benchmark runs in its quick form, and prints one Markdown table below what it was measured on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.servers import here
from tests.patience import LIMIT_S

pytestmark = pytest.mark.slow


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        pytest.param(("range_read", "--only", "paced"), 2, marks=pytest.mark.soak),
        (("end_to_end", "--only", "network"), 2),
        pytest.param(("noisy_trainer",), 6, marks=pytest.mark.soak),
        (("remote", "--only", "hang", "--peers", "/nowhere"), 3),
        pytest.param(
            ("remote", "--work", "blobs", "tiny", "--only", "clear", "--peers", "/nowhere"), 14, marks=pytest.mark.soak
        ),
        (("resume",), 6),
        pytest.param(("resume_peers", "--python", "/nowhere"), 1, marks=pytest.mark.soak),
        pytest.param(("state_rate",), 4, marks=pytest.mark.soak),
        pytest.param(("latency_hiding",), 2, marks=pytest.mark.soak),
        pytest.param(("autotune", "--only", "sleeping async map", "tiny records"), 2, marks=pytest.mark.soak),
        pytest.param(("predicted_rates", "--only", "async map", "source"), 2, marks=pytest.mark.soak),
        pytest.param(("range_read", "--only", "http", "paced"), 16, marks=pytest.mark.soak),
        pytest.param(("range_read", "--only", "tls"), 14, marks=pytest.mark.soak),
        pytest.param(("range_read", "--only", "receivers"), 6, marks=pytest.mark.soak),
        pytest.param(
            ("decode", *(word for peer in ("tensorflow", "torch", "spdl") for word in (f"--{peer}", "/nowhere"))),
            8,
            marks=pytest.mark.soak,
        ),
        pytest.param(("end_to_end", "--only", "remote", "parent"), 9, marks=pytest.mark.soak),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_a_benchmark_prints_one_table(arguments: tuple[str, ...], rows: int, tmp_path: Path) -> None:
    """A head, a rule, a row for each thing measured, conditions above it; and no file is left behind."""
    environment = {**here(), "TMPDIR": str(tmp_path)}
    name, *options = arguments
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--quick", *options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == rows + 2
    assert len({line.count("|") for line in table}) == 1
    assert "seed 1" in lines[0]
    assert not list(tmp_path.iterdir())
