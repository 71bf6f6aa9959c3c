"""One cluster for all tests of this folder; where it cannot run they are skipped, and the closing lines say why.

What is missing is fetched before the first test, so that no test's time limit includes it. The cluster starts with
the first test of this folder and ends with the run, or with the process, however that ends.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
import uvloop

from asyncdata.testing import Leak, LeakError, ProcessSnapshot, check, settle, snapshot
from tests.hdfs.cluster import Cluster, running_cluster
from tests.hdfs.software import DEBIAN_PACKAGES, Software, UnavailableError, prepare
from tests.patience import LIMIT_S

_HERE: Final = Path(__file__).parent
_SOFTWARE: Final = pytest.StashKey[Software]()
_MISSING: Final = pytest.StashKey[list[str]]()

# libuv keeps one pipe per process from its first loop on; no single test is to be blamed for it.
uvloop.new_event_loop().close()


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop every async test of this folder runs on: that of the library."""
    return {"uvloop": uvloop.new_event_loop}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fetches what is missing, where any test of this folder is going to run."""
    if session.config.option.collectonly or not any(item.path.is_relative_to(_HERE) for item in session.items):
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    note = reporter.write_line if reporter is not None else print
    missing = session.config.stash.setdefault(_MISSING, [])
    try:
        software = session.config.stash[_SOFTWARE] = prepare(note=note)
        if not software.webhdfs:
            missing.append(f"webhdfs://: these Debian packages are not installed: {' '.join(DEBIAN_PACKAGES)}")
    except UnavailableError as error:
        missing.append(f"hdfs:// and webhdfs://: {error}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Says in the closing lines what was not tested."""
    for reason in config.stash.get(_MISSING, []):
        terminalreporter.write_line(f"NOT TESTED {reason}", red=True, bold=True)


@pytest.fixture(scope="session", autouse=True)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The running cluster."""
    pytest.importorskip("hdfs_native", reason="hdfs-native is not installed")
    stash = request.config.stash
    if _SOFTWARE not in stash:
        pytest.skip(f"no HDFS on this machine: {stash[_MISSING][0]}")
    try:
        running = running_cluster(stash[_SOFTWARE])
        with running as cluster:
            yield cluster
    except UnavailableError as error:
        stash[_MISSING].append(f"hdfs:// and webhdfs://: {error}")
        pytest.skip(f"no HDFS on this machine: {error}")


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[ProcessSnapshot]:
    """As everywhere, but for what hdfs-native keeps for the process: its timers and connections of its own protocols.

    Connections by HTTP must be closed.
    """
    before, failed = snapshot(), request.session.testsfailed
    yield before
    if request.session.testsfailed > failed:  # what a failed test held is still held by its traceback
        return
    leaks = check(before)
    if leaks:
        leaks = settle(before, settle_s=LIMIT_S, only=("task", "thread", "process", "shared memory"))
        leaks += _settled_sockets(before, tuple(f", {port})" for port in cluster.http_ports()))
    if leaks:
        raise LeakError(leaks)


def _settled_sockets(before: ProcessSnapshot, ends: tuple[str, ...]) -> list[Leak]:
    """Connections to these ends that are still there after hdfs-native had the time to close them."""
    wake = threading.Event()
    found: list[Leak] = []
    for _ in range(400):
        gc.collect()
        found = [leak for leak in check(before, only=("descriptor",)) if leak.name.endswith(ends)]
        if not found:
            break
        wake.wait(0.05)
    return found


@pytest.fixture
def needs_webhdfs(cluster: Cluster) -> None:
    """Skips the test where WebHDFS is not served."""
    if not cluster.webhdfs:
        pytest.skip(f"WebHDFS needs Debian's {' '.join(DEBIAN_PACKAGES)}")


@pytest.fixture(scope="session")
def numbers() -> Iterator[int]:
    """For names that no other test uses."""
    return itertools.count()


@pytest.fixture
def folder(numbers: Iterator[int]) -> str:
    """A folder of the cluster for one test; it does not exist yet."""
    return f"/test-{next(numbers)}"


@pytest.fixture
def whole_cluster(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster of which servers may be killed: afterwards all run again."""
    yield cluster
    for name, pid in cluster.state["servers"].items():
        if not Path(f"/proc/{pid}").exists():
            cluster.start(name)
