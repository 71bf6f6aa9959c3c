"""What holds for every test: nothing is left behind, samples are seeded, the long versions run only when asked for.

After each test that passed, the leak check of ``asyncdata.testing`` compares with the moment before its first
function-scoped fixture. What module- and session-scoped fixtures hold existed before and is not judged; a last look at
the end of each module catches processes whose own parent has died. At the end of the run the temporary folder must be
empty.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import os
import signal
import uuid
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator

import hypothesis
import pytest
from pytest_asyncio import is_async_test
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from asyncdata import __version__
from asyncdata.testing import (
    LeakError,
    ProcessSnapshot,
    VirtualClockLoop,
    check,
    settle,
    settle_async,
    snapshot,
    start_process_wide,
)
from tests import samples as sample_counts
from tests.temporary import TemporaryFolder

_PASSED = pytest.StashKey[bool]()
_FOLDER = pytest.StashKey[TemporaryFolder]()
_LEFT = pytest.StashKey[list[str]]()
# What was there after the test before; None once wider fixtures have come or gone.
_AFTER = pytest.StashKey[ProcessSnapshot | None]()

# Inherited by every process a test starts; tells this run's orphans from the processes of others.
_RUN_VARIABLE = "ASYNCDATA_TEST_RUN"
_SETTLE_S = float(os.environ.get("ASYNCDATA_TEST_SETTLE_S", "60"))  # what finalizers may take on a busy machine
_RUN = f"{_RUN_VARIABLE}={uuid.uuid4()}"

hypothesis.settings.register_profile("default", derandomize=True, deadline=None, max_examples=30, print_blob=True)
hypothesis.settings.register_profile(
    "soak",
    derandomize=False,
    deadline=None,
    max_examples=2000,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("soak" if sample_counts.SOAK else "default")


def pytest_configure(config: pytest.Config) -> None:
    """Marks this run, and starts what the process as a whole keeps, so that no single test is blamed for it."""
    if _RUN_VARIABLE not in os.environ:  # neither a process of xdist nor a run that a test started
        config.stash[_FOLDER] = TemporaryFolder()
    os.environ[_RUN_VARIABLE] = _RUN.partition("=")[2]
    # A shell starts what runs in its background with Ctrl-C ignored, and programs that tests start would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    start_process_wide()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run whose tests passed fails when they left files in the temporary folder."""
    folder = session.config.stash.get(_FOLDER, None)
    if folder is None:
        return
    left = session.config.stash[_LEFT] = folder.left()
    if left and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config: pytest.Config) -> None:
    """Removes the temporary folder, whatever is in it."""
    if (folder := config.stash.get(_FOLDER, None)) is not None:
        folder.remove()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Names what was left in the temporary folder."""
    if left := config.stash.get(_LEFT, []):
        line = f"LEFT in the temporary folder: {len(left)} files or folders: {', '.join(left[:20])}"
        terminalreporter.write_line(line, red=True, bold=True)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Sets apart what lives until the end: all tests and modules, which no garbage collection need look at."""
    gc.collect()
    gc.freeze()


# A fixture of these folders is one process, which all their tests share: the HDFS cluster, TensorFlow.
_TOGETHER = ("hdfs", "referee")
# They start many processes and take the longest. At the end of a run they would keep one process busy and the others
# idle.
_FIRST = (*_TOGETHER, "test_state.py", "testing", "faults", "benchmarks", "chaos", "integration", "workers")


_SAMPLED = 6
"""One case in so many."""


def _folder(nodeid: str) -> str:
    return nodeid.removeprefix("tests/").partition("/")[0]


class FileByFile(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives each process whole files, for the sake of their fixtures, or whole folders."""

    def _split_scope(self, nodeid: str) -> str:
        folder = _folder(nodeid)
        return folder if folder in _TOGETHER else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FileByFile:
    """How tests are divided where several processes run them (``-n``)."""
    config.option.loadscopereorder = False  # the order is that of `pytest_collection_modifyitems`
    return FileByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is marked ``soak``, and a part of what is marked ``sampled``, in an ordinary run.

    In a long one all have more time. The longest come first.

    Coroutines get a time limit of asyncio's own: under uvloop the alarm of pytest-timeout is never delivered to a loop
    that waits for nothing. It is a little shorter, for the better message.
    """
    if hasattr(config, "workerinput"):  # one of several processes
        ranks = {folder: rank for rank, folder in enumerate(_FIRST)}
        items.sort(key=lambda item: ranks.get(_folder(item.nodeid), len(ranks)))
    if not (sample_counts.SOAK or config.option.keyword or any("::" in each for each in config.args)):
        _take_samples(config, items)
    limit_s = 1800.0 if sample_counts.SOAK else float(config.getini("timeout"))
    for item in items:
        if item.get_closest_marker("soak") and not sample_counts.SOAK:
            item.add_marker(pytest.mark.skip(reason="runs only with ASYNCDATA_SOAK=1 (make soak)"))
        elif sample_counts.SOAK and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(limit_s))
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            marker = item.get_closest_marker("timeout")
            own_s = float(marker.args[0]) if marker is not None and marker.args else limit_s
            item.obj = _limited(item.obj, 0.9 * own_s)


def _take_samples(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of functions that are marked ``sampled``, those cases whose checksums say so, and one of each at least.

    They are other ones with every version.
    """
    cases: dict[str, list[tuple[int, pytest.Item]]] = {}
    for item in items:
        if item.get_closest_marker("sampled"):
            name = item.nodeid
            cases.setdefault(name.partition("[")[0], []).append((zlib.crc32(f"{__version__} {name}".encode()), item))
    left_out = {
        item
        for found in cases.values()
        for number, item in found
        if number % _SAMPLED and number != min(number for number, _ in found)
    }
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))


def _limited(test: Callable[..., Awaitable[None]], limit_s: float) -> Callable[..., Awaitable[None]]:
    """The same test, cancelled where it waits after ``limit_s`` seconds."""

    @functools.wraps(test)
    async def run(*args: object, **kwargs: object) -> None:
        async with asyncio.timeout(limit_s):
            await test(*args, **kwargs)

    return run


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remembers whether the test passed: a failed one still holds everything through its traceback."""
    report = yield
    if call.when == "call":
        item.stash[_PASSED] = report.passed
    return report


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[ProcessSnapshot]:
    """No test leaves a task, thread, process, descriptor or shared memory behind."""
    stash = request.config.stash
    before = stash.get(_AFTER, None) or snapshot(started_with=_RUN)
    stash[_AFTER] = None
    yield before
    if request.node.get_closest_marker("leaks") is not None or not request.node.stash.get(_PASSED, False):
        return
    after = snapshot(started_with=_RUN)
    if not check(before, after):
        stash[_AFTER] = after
        return
    del after  # holds the tasks that a garbage collection may free now
    if leaks := settle(before, settle_s=_SETTLE_S):
        raise LeakError(leaks)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """What a wider fixture starts is no test's."""
    if fixturedef.scope != "function":
        request.config.stash[_AFTER] = None
    return (yield)


def pytest_fixture_post_finalizer(fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest) -> None:
    """What a wider fixture held is not there for the next test."""
    if fixturedef.scope != "function":
        request.config.stash[_AFTER] = None


@pytest.fixture(autouse=True)
def no_tasks(request: pytest.FixtureRequest, no_leaks: ProcessSnapshot) -> None:
    """No asynchronous test leaves a task on its own loop."""
    if is_async_test(request.node):
        # Asked for first, hence torn down last of what uses the test's loop, and just before the loop itself.
        request.getfixturevalue("_no_tasks_left")


@pytest.fixture
async def _no_tasks_left(request: pytest.FixtureRequest, no_leaks: ProcessSnapshot) -> AsyncIterator[None]:
    """On the test's own loop, before closing it cancels the evidence."""
    yield
    if request.node.get_closest_marker("leaks") is not None or not request.node.stash.get(_PASSED, False):
        return
    # Only tasks: the loop is still open and holds descriptors and executor threads of its own.
    if leaks := await settle_async(no_leaks, settle_s=_SETTLE_S, only=("task",)):
        raise LeakError(leaks)


@pytest.fixture(autouse=True, scope="module")
def no_orphans() -> Iterator[None]:
    """No module leaves a process behind, even one whose parent has died or that a wider fixture started."""
    before = snapshot(started_with=_RUN)
    yield
    if leaks := settle(before, settle_s=_SETTLE_S, only=("process",)):
        raise LeakError(leaks)


@pytest.fixture
def samples() -> Callable[[int, int], int]:
    """``samples(default, full)``: how many rounds a loop makes in this run."""
    return sample_counts.samples


@pytest.fixture
def virtual_loop() -> Iterator[asyncio.Runner]:
    """A runner on a loop whose time jumps when idle: ``virtual_loop.run(main())``; for tests that are not async."""
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        yield runner
