"""Laws of what a new interpreter is told."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from asyncdata.testing import check, snapshot
from asyncdata.workers.spawn import Spawner, SpawnPlan, absolute_path, launch, worker_environment


def test_relative_entries_of_the_path_become_absolute() -> None:
    """A later chdir changes nothing for workers that are started then."""
    assert absolute_path(["", "/lib", "sub", "/a.zip"], "/home") == ("/home", "/lib", "/home/sub", "/a.zip")


def test_the_environment_of_the_user_wins() -> None:
    """One thread per numeric library is a default, not a rule."""
    made = worker_environment({"OMP_NUM_THREADS": "4", "HOME": "/h"})
    assert made["OMP_NUM_THREADS"] == "4"
    assert made["MKL_NUM_THREADS"] == "1"
    assert made["HOME"] == "/h"


@pytest.mark.sampled
@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["-O"],
        ["-OO", "-B"],
        ["-s", "-E"],
        ["-I"],
        ["-b", "-W", "error::BytesWarning", "-W", "ignore::UserWarning"],
        ["-X", "utf8=1", "-X", "dev", "-X", "int_max_str_digits=9999"],
        ["-X", "no_debug_ranges"],
    ],
)
def test_a_worker_runs_with_the_options_of_its_parent(flags: list[str]) -> None:
    """What interpreter_flags says gives the same sys.flags, -X options and warning options again."""
    root = str(Path(__file__).parent.parent.parent)
    # Shared by both generations; imports of this project work with -I and -E too.
    prelude = f"import sys; sys.path.insert(0, {root!r}); "
    show = "print([*sys.flags][:-1], sorted(sys._xoptions.items()), sys.warnoptions)"
    child = prelude + show
    parent = (
        f"{prelude}import subprocess; from asyncdata.workers.spawn import interpreter_flags; {show}; "
        f"subprocess.run([sys.executable, *interpreter_flags(), '-c', {child!r}], check=True)"
    )
    shown = subprocess.run(
        [sys.executable, "-u", *flags, "-c", parent], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert len(shown) == 2
    assert shown[0] == shown[1]


def plan(**changes: object) -> SpawnPlan:
    values: dict[str, object] = {
        "executable": sys.executable,
        "arena_fd": 0,
        "arena_bytes": 1,
        "handler": "m:f",
        "path": (),
        "stream": False,
        "pidfd": True,
    }
    return SpawnPlan(**(values | changes))  # type: ignore[arg-type]  # a dict of the right things


def test_a_failed_launch_leaves_no_descriptor() -> None:
    """Everything opened for a process that cannot be started is closed."""
    before = snapshot()
    with pytest.raises(FileNotFoundError):
        launch(plan(executable="/nowhere/python"), "name")
    with pytest.raises(OSError, match="Permission denied"):
        launch(plan(executable="/etc/passwd"), "name")
    assert not check(before, only=("descriptor",))


async def test_the_spawner_works_in_its_own_thread_in_order_and_passes_errors_on() -> None:
    """One thread, alive until close."""
    spawner = Spawner("test-spawner")
    spawner.close()
    spawner = Spawner("test-spawner")
    done: list[int] = []

    def work(i: int) -> str:
        done.append(i)
        return threading.current_thread().name

    names = await asyncio.gather(*[spawner.submit(partial(work, i), str) for i in range(9)])
    assert set(names) == {"test-spawner"}
    assert done == list(range(9))

    def fail() -> int:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await spawner.submit(fail, int)
    spawner.close()


def test_a_result_for_a_closed_loop_is_disposed_of() -> None:
    """A process that was started for nobody is ended, not forgotten."""
    disposed: list[int] = []
    go = threading.Event()

    async def order() -> Spawner:
        spawner = Spawner("test-spawner")

        def work() -> int:
            go.wait()
            return 7

        kept.append(spawner.submit(work, disposed.append))
        return spawner

    kept: list[asyncio.Future[int]] = []
    spawner = asyncio.run(order())
    go.set()
    spawner.close()
    assert disposed == [7]
