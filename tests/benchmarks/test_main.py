"""``python -m benchmarks``: which benchmarks it starts, with which options."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest

from benchmarks.__main__ import BENCHMARKS, main


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The programs that would have run, each with its options."""
    programs: list[list[str]] = []

    def run(command: list[str], **_: object) -> SimpleNamespace:
        programs.append(command[2:])
        return SimpleNamespace(returncode=int(command[2] == "benchmarks.state_rate"))

    monkeypatch.setattr(subprocess, "run", run)
    return programs


def test_every_benchmark_is_started(started: list[list[str]]) -> None:
    """In full or in its quick form, which some do not have; the exit status counts those that failed."""
    assert main([]) == 1
    assert started == [[f"benchmarks.{name}"] for name in BENCHMARKS]
    started.clear()
    main(["--quick"])
    assert ["benchmarks.elements", "--quick"] in started
    assert ["benchmarks.fake_gcs_server"] in started
    assert len(started) == len(BENCHMARKS)


def test_parts_are_given_to_those_that_have_them(started: list[list[str]]) -> None:
    """The others are left out."""
    assert main(["--quick", "--only", "http", "remote"]) == 0
    assert started == [
        ["benchmarks.range_read", "--quick", "--only", "http"],
        ["benchmarks.end_to_end", "--quick", "--only", "remote"],
    ]
    started.clear()
    main(["--only", "tiny records"])
    assert started == [["benchmarks.autotune", "--only", "tiny records"]]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--help"], 0, "--only PART"),
        (["--quik"], 2, "unrecognized arguments: --quik"),
        (["elements"], 2, "unrecognized arguments: elements"),
        (["--only", "nothing"], 2, "no benchmark has a part 'nothing'"),
    ],
)
def test_nothing_is_started_for_other_words(
    arguments: list[str], status: int, said: str, started: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither for help nor for a mistake."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == status
    assert said in "".join(capsys.readouterr())
    assert not started
