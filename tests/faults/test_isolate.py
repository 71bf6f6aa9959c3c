"""The loader in a process of its own: whoever ends, and however, nobody is left and the consumer hears of it."""

from __future__ import annotations

import os
import signal

import pytest

from tests.faults.programs import Program, family, program, run
from tests.patience import LIMIT_S, wait_until

_ISOLATED = """
def isolated(executor, count=100_000, **options):
    options = {"isolate": True, "num_workers": 2, "close_timeout_s": 100} | options
    return pipeline(executor, count).with_options(ad.Options(**options))

def workers_of(pid):
    from asyncdata.testing import procfs
    return [p.pid for p in procfs.processes() if p.ppid == pid]
"""


def _loader(running: Program) -> int:
    """The loader process of a program that says which it is."""
    assert running.popen.stdout is not None
    return int(running.popen.stdout.readline())


@pytest.mark.sampled
@pytest.mark.parametrize("executor", ["inline", "process"])
def test_the_interpreter_ends_with_a_half_read_iterator(executor: str) -> None:
    """No hang, no message: what is open is closed at exit."""
    code, out, err = run(
        _ISOLATED
        + f"""
it = iter(isolated("{executor}"))
print(next(it).shape)
keep = next(it)
"""
    )
    assert (code, out, err) == (0, "(8, 50)\n", "")


@pytest.mark.sampled
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(
            "keep = [iter(isolated('process')), iter(isolated('thread'))]; [next(i) for i in keep]; sys.exit(0)",
            marks=pytest.mark.soak,
        ),
        "r = ad.Runtime(ad.Options(isolate=True)); r.__enter__(); it = iter(pipeline('inline')); next(it)",
        "list(isolated('inline', 100)); r = ad.Runtime(ad.Options(isolate=True, close_timeout_s=100)); r.__enter__()",
        # A batch that is freed while the interpreter is being taken apart.
        "import builtins; builtins.kept = next(iter(isolated('inline')))",
        "it = iter(isolated('inline', 64)); next(it); threading.Thread(target=list, args=(it,)).start()",
    ],
)
def test_other_ways_to_end(body: str) -> None:
    """``sys.exit``, Runtimes nobody left, kept batches, and a thread that is still iterating."""
    assert run(_ISOLATED + body) == (0, "", "")


def test_ctrl_c_reaches_the_consumer_alone() -> None:
    """The whole group gets the signal, the loader and its workers are deaf to it; all is closed by the exception."""
    with program(
        _ISOLATED
        + """
try:
    for number, batch in enumerate(isolated("process").repeat()):
        if number == 2:
            say("reading")
except KeyboardInterrupt:
    say("interrupted")
    raise SystemExit(5)
"""
    ) as running:
        running.expect("reading")
        os.killpg(running.popen.pid, signal.SIGINT)
        code, out, err = running.end()
    assert (code, out, err) == (5, "interrupted\n", "")


def test_ctrl_c_while_waiting_for_an_element() -> None:
    """The wait itself can be interrupted, and everything is closed when the exception is raised."""
    with program("""
        async def never(x):
            print("waiting", file=sys.stderr, flush=True)
            await asyncio.Event().wait()
        try:
            say("begun")
            list(ad.Dataset.range(1).map(never, 1).with_options(ad.Options(isolate=True)))
        except KeyboardInterrupt:
            assert not [t.name for t in threading.enumerate() if t.name.startswith("asyncdata")]
            say("closed")
    """) as running:
        running.expect("begun")
        assert running.popen.stderr is not None
        assert running.popen.stderr.readline() == "waiting\n"
        os.kill(running.popen.pid, signal.SIGINT)
        assert running.end() == (0, "closed\n", "")


@pytest.mark.sampled
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_consumer_is_killed(number: int) -> None:
    """The loader ends with it, and the workers with the loader."""
    with program(
        _ISOLATED
        + """
it = iter(isolated("process"))
next(it)
say("reading")
while True:
    next(it)
"""
    ) as running:
        running.expect("reading")
        wait_until(lambda: len(family(running.popen.pid)) > 3)
        os.kill(running.popen.pid, number)
        assert running.popen.wait(LIMIT_S) == -number
        wait_until(lambda: not family(running.popen.pid))


def test_the_loader_is_killed_while_user_code_holds_it() -> None:
    """The error names process and signal; what had arrived is delivered before it; the workers go, too."""
    with program(
        _ISOLATED
        + """
it = iter(isolated("process").repeat())
first = next(it)
say(str(it.stats().loader_pid))
try:
    for batch in it:
        pass
except ad.WorkerDiedError as error:
    say(str(error))
assert (first[0] == 0).all()
assert not [t.name for t in threading.enumerate() if t.name.startswith("asyncdata")]
try:
    next(it)
except ad.PipelineClosedError:
    say("over")
"""
    ) as running:
        pid = _loader(running)
        wait_until(lambda: len(family(running.popen.pid)) > 3)
        os.kill(pid, signal.SIGKILL)
        code, out, err = running.end()
        wait_until(lambda: not family(running.popen.pid))
    assert f"the loader process (pid {pid}) was killed by SIGKILL" in out
    assert out.endswith("over\n")
    assert (code, err) == (0, "")


def test_a_shared_runtime_whose_loader_was_killed_says_so() -> None:
    """To those that wait on any loop, and to those that come later; it can still be closed."""
    with program(
        _ISOLATED
        + """
async def never(x):
    await asyncio.Event().wait()
async def main(ds):
    try:
        async for _ in ds:
            pass
    except ad.WorkerDiedError as error:
        say("lost")
with ad.Runtime(ad.Options(isolate=True)):
    ds = ad.Dataset.range(1).map(never, 1)
    it = ds.iterator()
    say(str(it.stats().loader_pid))
    asyncio.run(main(ds))
    for attempt in range(2):
        try:
            list(ds)
        except ad.WorkerDiedError as error:
            say("lost")
    try:
        next(it)
    except ad.WorkerDiedError:
        say("lost")
"""
    ) as running:
        os.kill(_loader(running), signal.SIGKILL)
        assert running.end() == (0, "lost\n" * 4, "")


def test_a_crash_in_native_code_leaves_its_stack() -> None:
    """The user's function is in the error."""
    code, out, err = run("""
        import ctypes
        def crash(x):
            ctypes.string_at(0)
        try:
            list(ad.Dataset.range(1).map(crash).with_options(ad.Options(isolate=True)))
        except ad.WorkerDiedError as error:
            say(str(error))
    """)
    assert "was killed by SIGSEGV" in out
    assert "in crash" in out
    assert (code, err) == (0, "")


def test_in_a_forked_child_an_inherited_iterator_says_so() -> None:
    """Its sockets lead nowhere there, a Dataset works, and the parent goes on unharmed."""
    code, out, err = run(
        _ISOLATED
        + """
import gc
ds = isolated("inline", 800)
it = iter(ds)
first = next(it)
pid = os.fork()
if pid == 0:
    try:
        try:
            next(it)
        except ad.ForkedProcessError:
            say("forked")
        assert (first[0] == 0).all()
        del first
        assert sum(len(batch) for batch in ds) == 800
        del it
        gc.collect()
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert len(first) + sum(len(batch) for batch in it) == 800
"""
    )
    assert (code, out, err) == (0, "forked\n", "")


def test_a_program_without_a_main_guard_and_from_stdin() -> None:
    """Nothing of the consumer's main module is run again; its functions travel by value."""
    code, out, err = run("""
        say("once")
        class Point(tuple):
            pass
        from collections import namedtuple
        Pair = namedtuple("Pair", "x y")
        def make(x):
            return Pair(x, np.full(3, x))
        pairs = list(ad.Dataset.range(3).map(make).with_options(ad.Options(isolate=True)))
        assert type(pairs[0]) is Pair, type(pairs[0])
        assert pairs[2].y.tolist() == [2, 2, 2]
    """)
    assert (code, out, err) == (0, "once\n", "")
