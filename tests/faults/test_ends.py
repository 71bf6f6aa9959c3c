"""Programs that end, are interrupted or killed in the middle of an iteration: no process stays, nothing is printed."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.faults.programs import family, program, run
from tests.patience import LIMIT_S, wait_until

EXECUTORS = ("inline", "thread", "process", "async")


@pytest.mark.sampled
@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_interpreter_ends_with_a_half_read_iterator(executor: str) -> None:
    """No hang, no message: what is open is closed at exit."""
    code, out, err = run(f"""
        it = iter(pipeline("{executor}"))
        print(next(it).shape)
        keep = next(it)
    """)
    assert (code, out, err) == (0, "(8, 50)\n", "")


@pytest.mark.sampled
@pytest.mark.parametrize(
    "body",
    [
        "keep = [iter(pipeline('process')), iter(pipeline('thread'))]; [next(i) for i in keep]; sys.exit(0)",
        "ad.Runtime().__enter__(); it = iter(pipeline('process')); next(it)",
        "list(pipeline('process', 100)); runtime = ad.Runtime(); runtime.__enter__()",
        # A batch that is freed while the interpreter is being taken apart.
        "import builtins; builtins.kept = next(iter(pipeline('inline')))",
        "it = iter(pipeline('process', 64)); next(it); threading.Thread(target=list, args=(it,)).start()",
    ],
)
def test_other_ways_to_end(body: str) -> None:
    """``sys.exit``, Runtimes nobody left, kept batches, and a thread that is still iterating."""
    assert run(body) == (0, "", "")


@pytest.mark.sampled
@pytest.mark.skipif(
    (3, 12) <= sys.version_info < (3, 12, 2),
    reason="this Python starts no thread once the main thread has ended (CPython issue 113964)",
)
@pytest.mark.parametrize("isolate", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["here", "isolated"])
def test_a_thread_that_outlives_the_main_thread(isolate: bool) -> None:
    """It reads on, begins new pipelines, leaves some half read and keeps others: the program ends when it does."""
    code, out, err = run(f"""
        def read_on():
            threading.main_thread().join()
            for iterator in begun:
                assert len(list(iterator)) == 499
            for executor in {EXECUTORS}:
                assert len(list(pipeline(executor, 400))) == 50
                next(iter(pipeline(executor)))
                kept.append(iter(pipeline(executor)))
                next(kept[-1])
            say("done")

        kept, begun = [], []
        if {isolate}:
            options = ad.Options(isolate=True)
            begun += [iter(pipeline(executor, 4000).with_options(options)) for executor in {EXECUTORS}]
            for iterator in begun:
                next(iterator)
        threading.Thread(target=read_on).start()
    """)
    assert (code, out, err) == (0, "done\n", "")


def test_a_thread_that_does_not_read_outlives_the_main_thread() -> None:
    """What the main thread has left half read is closed after the thread has ended."""
    code, out, err = run("""
        def wait():
            threading.main_thread().join()
            say("done")

        kept = [iter(pipeline(executor)) for executor in ("inline", "thread", "process", "async")]
        for each in kept:
            next(each)
        threading.Thread(target=wait).start()
    """)
    assert (code, out, err) == (0, "done\n", "")


def test_the_interpreter_ends_inside_asyncio_run() -> None:
    """A half-read ``async for`` at the end of ``asyncio.run``, and one in a task that is cancelled there."""
    code, out, err = run("""
        async def forever():
            async for batch in pipeline("process"):
                await asyncio.sleep(0)

        async def main():
            task = asyncio.create_task(forever())
            async for batch in pipeline("async"):
                say("read")
                return

        asyncio.run(main())
    """)
    assert (code, out, err) == (0, "read\n", "")


@pytest.mark.sampled
@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_process_without_standard_descriptors(executor: str) -> None:
    """As some schedulers start them: nothing of a pipeline takes the place of what is missing."""
    code, out, err = run(f"""
        inner = os.fork()
        if inner == 0:
            os.closerange(0, 3)
            os.execv(sys.executable, [sys.executable, "-c", '''
        import numpy as np
        import asyncdata as ad

        async def awaited(x):
            return np.full(50, x)

        kind = "{executor}"
        count = None if kind == "inline" else 2
        dataset = ad.Dataset.range(20)
        if kind == "async":
            dataset = dataset.map(awaited, 2)
        else:
            dataset = dataset.map(lambda x: np.full(50, x), count, executor=kind)
        for epoch in range(2):
            assert len(list(dataset)) == 20
        '''.replace(chr(10) + "        ", chr(10))])
        say(str(os.waitpid(inner, 0)[1]))
    """)
    assert (code, out, err) == (0, "0\n", "")


def test_an_unhandled_error_is_all_that_is_printed() -> None:
    """The traceback names the user's line once, and nothing else is written."""
    code, _, err = run("""
        def explode(x):
            raise ValueError("here")
        list(ad.Dataset.range(10).map(explode, 2, executor="process"))
    """)
    assert code == 1
    assert "ValueError: here" in err
    assert "in explode" in err
    assert "in map(explode), element 0 of range" in err
    assert "Exception ignored" not in err


def test_sys_exit_in_a_map_function_is_an_error_of_the_pipeline() -> None:
    """A worker that exits takes nobody with it."""
    code, _, err = run("""
        def leave(x):
            sys.exit(7)
        for executor in ("process", "thread", "inline"):
            try:
                list(ad.Dataset.range(10).map(leave, None if executor == "inline" else 2, executor=executor))
            except Exception as error:
                assert "SystemExit: 7" in str(error), error
            else:
                raise AssertionError(executor)
    """)
    assert (code, err) == (0, "")


@pytest.mark.sampled
@pytest.mark.parametrize("group", [pytest.param(False, marks=pytest.mark.soak), True], ids=["consumer", "group"])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_ctrl_c(executor: str, group: bool) -> None:
    """One KeyboardInterrupt in the consumer, whoever else got the signal, and then nothing is left.

    It may come in front of the first step of ``__next__``. Then the traceback holds the iterator, and all is closed
    when the traceback is gone.
    """
    with program(f"""
        def read():
            for batch in pipeline("{executor}").repeat():
                if batch[0, 0] == 0:
                    say("reading")

        try:
            read()
        except KeyboardInterrupt:
            say("interrupted")
        for thread in threading.enumerate():
            if thread.name.startswith("asyncdata"):
                thread.join()  # the finalizer of a loop that was left signals, and waits for nothing
        raise SystemExit(5)
    """) as running:
        running.expect("reading")
        (os.killpg if group else os.kill)(running.popen.pid, signal.SIGINT)
        code, out, err = running.end()
    assert "interrupted" in out
    assert (code, err) == (5, "")


def test_ctrl_c_while_waiting_for_an_element() -> None:
    """The wait itself can be interrupted, and everything is closed when the exception is raised."""
    with program("""
        async def never(x):
            say("waiting")
            await asyncio.Event().wait()
        try:
            list(ad.Dataset.range(1).map(never, 1))
        except KeyboardInterrupt:
            assert not [t.name for t in threading.enumerate() if t.name.startswith("asyncdata")]
            say("closed")
    """) as running:
        running.expect("waiting")
        os.kill(running.popen.pid, signal.SIGINT)
        assert running.end() == (0, "closed\n", "")


def test_ctrl_c_in_asyncio_run() -> None:
    """asyncio turns it into a cancellation, then into the KeyboardInterrupt the caller sees."""
    with program("""
        async def main():
            async for batch in pipeline("process").repeat():
                if batch[0, 0] == 0:
                    say("reading")
        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            say("interrupted")
    """) as running:
        running.expect("reading")
        os.killpg(running.popen.pid, signal.SIGINT)
        code, out, err = running.end()
    assert "interrupted" in out
    assert (code, err) == (0, "")


@pytest.mark.sampled
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_parent_is_killed(number: int) -> None:
    """Its workers end by themselves; the memory is unnamed and goes with the last of them."""
    with program("""
        it = iter(pipeline("process"))
        next(it)
        say("reading")
        while True:
            next(it)
    """) as running:
        running.expect("reading")
        wait_until(lambda: len(family(running.popen.pid)) > 1)
        os.kill(running.popen.pid, number)
        assert running.popen.wait(LIMIT_S) == -number
        wait_until(lambda: not family(running.popen.pid))


def test_a_worker_is_killed_in_the_middle_of_a_batch(tmp_path: Path) -> None:
    """The batch arrives all the same, and all others with it."""
    with program(f"""
        def deadly(x):
            if x == 1234:
                try:
                    os.close(os.open({str(tmp_path / "killed")!r}, os.O_CREAT | os.O_EXCL))
                    os.kill(os.getpid(), signal.SIGKILL)
                except FileExistsError:
                    pass
            return np.full(50, x)
        total = 0
        for i, batch in enumerate(ad.Dataset.range(3000).map(deadly, 2).batch(30)):
            assert (batch[:, 0] == np.arange(30 * i, 30 * i + 30)).all()
            total += len(batch)
        say(str(total))
    """) as running:
        code, out, err = running.end()
    assert (code, out) == (0, "3000\n")
    assert "was killed by SIGKILL" in err  # logged, once
    assert len(err.splitlines()) == 1


def test_results_of_another_size_after_a_death_are_those_of_the_last_call(tmp_path: Path) -> None:
    """The call that was lost had asked for more memory than there is need for now."""
    code, out, _ = run(f"""
        def cropped(x):
            if x // 8 == 5 and not os.path.exists({str(tmp_path / "killed")!r}):
                if x % 8 == 7:
                    os.close(os.open({str(tmp_path / "killed")!r}, os.O_CREAT | os.O_EXCL))
                    os.kill(os.getpid(), signal.SIGKILL)
                return np.full(10_000, x)
            return np.full(32, x)
        try:
            for i, batch in enumerate(ad.Dataset.range(80).map(cropped, 1, executor="process").batch(8)):
                assert batch[:, 0].tolist() == list(range(8 * i, 8 * i + 8)), (i, batch[:, 0])
        except ad.UnbatchableError:
            assert i == 4  # on a slow machine a task of its own has done a part of the batch
        say(str(os.path.exists({str(tmp_path / "killed")!r})))
    """)
    assert (code, out) == (0, "True\n")


def test_workers_that_keep_dying_end_the_pipeline_with_an_error() -> None:
    """A function that kills its process is reported with its stage, not tried for ever."""
    code, out, err = run("""
        def suicide(x):
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            list(ad.Dataset.range(10).map(suicide, 2))
        except ad.WorkerDiedError as error:
            say(str(error))
            say(error.__notes__[0])
    """)
    assert "map(suicide)" in out
    assert "element 0 of range" in out
    assert "SIGKILL" in out
    assert code == 0, err
