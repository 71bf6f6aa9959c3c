"""Lines are counted in bounded memory that others may read at any time."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
import weakref
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from asyncdata.observe.line_table import OTHER_LINES, TABLE_BYTES, Line, LineTable, Spent, since, together
from asyncdata.observe.stack_sampler import line_of
from asyncdata.observe.thread_stacks import stack_of
from tests.patience import LIMIT_S
from tests.samples import samples

LINES = st.builds(
    Line,
    st.sampled_from(["threads", "stage loop"]),
    st.text(st.characters(codec="utf-8", exclude_characters="\t\0"), min_size=1, max_size=90),
    st.text(st.characters(codec="utf-8", exclude_characters="\t\0"), max_size=300),
    st.integers(0, 10**6),
)


@given(st.lists(LINES, max_size=30), st.integers(1, 3))
def test_what_was_added_is_read(lines: list[Line], times: int) -> None:
    """Names may be long and strange; they are cut, and their numbers are not."""
    table = LineTable(bytearray(TABLE_BYTES))
    for line in lines * times:
        table.add(line, 0.5)
    read = table.read()
    assert sum(spent.samples for spent in read.values()) <= times * len(lines)  # what is cut may look alike
    short = Counter(line for line in lines if len(line.function.encode()) < 60 and len(line.file.encode()) < 90)
    for line, count in short.items():
        assert read[line] == (times * count, times * count / 2)


def test_too_many_lines() -> None:
    """What finds no place is counted together."""
    table = LineTable(bytearray(TABLE_BYTES))
    for number in range(5000):
        table.add(Line("threads", "f", "f.py", number), 1.0)
        table.add(Line("threads", "f", "f.py", 0), 1.0)
    read = table.read()
    assert len(read) == 128
    assert read[Line("threads", "f", "f.py", 0)].samples == 5001
    assert sum(spent.samples for spent in read.values()) == 10_000
    assert read[Line("threads", OTHER_LINES, "", 0)].samples > 4000


def test_it_survives_the_process_that_wrote_it() -> None:
    """In shared memory, what a process has noted is there after it was killed."""
    script = (
        "import mmap, os, signal, sys\n"
        "from asyncdata.observe.line_table import *\n"
        "table = LineTable(memoryview(mmap.mmap(int(sys.argv[1]), TABLE_BYTES)))\n"
        "table.add(Line('worker processes', 'f', 'f.py', 7), 0.25)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    fd = os.memfd_create("lines")
    os.ftruncate(fd, TABLE_BYTES)
    ours = mmap.mmap(fd, TABLE_BYTES, prot=mmap.PROT_READ)
    ran = subprocess.run([sys.executable, "-c", script, str(fd)], pass_fds=(fd,), timeout=LIMIT_S, check=False)
    os.close(fd)
    assert ran.returncode == -9
    view = memoryview(ours)
    assert LineTable(view).read() == {Line("worker processes", "f", "f.py", 7): (1, 0.25)}
    view.release()
    ours.close()


def test_sums_and_differences() -> None:
    """Tables of several processes are added up, and what was there before is taken away."""
    one, two = Line("threads", "f", "f.py", 1), Line("threads", "f", "f.py", 2)
    both = together({one: Spent(1, 0.5)}, {one: Spent(2, 1.0), two: Spent(1, 0.5)})
    assert both == {one: (3, 1.5), two: (1, 0.5)}
    assert since(both, {one: both[one]}) == {two: (1, 0.5)}


def test_the_line_that_runs() -> None:
    """Of a thread that waits in a call into the standard library, the line of the user that called."""
    entered, leave = threading.Event(), threading.Event()

    def wait_here() -> None:
        entered.set()
        leave.wait(LIMIT_S)  # this line

    thread = threading.Thread(target=wait_here)
    thread.start()
    entered.wait(LIMIT_S)
    while True:
        line = line_of(stack_of(thread.ident or 0), "threads")
        assert line is not None
        if line.line == wait_here.__code__.co_firstlineno + 2:
            break
    leave.set()
    thread.join()
    assert line.function.endswith("wait_here")
    assert line.file == __file__
    assert stack_of(thread.ident or 0) == []
    assert line_of([], "threads") is None


def test_a_look_keeps_nothing() -> None:
    """What a function refers to is gone when it has returned, however often others look at its stack meanwhile."""
    leave = threading.Event()
    main = threading.get_ident()

    def look() -> None:
        while not leave.is_set():
            stack_of(main)

    class Dropped:
        """Nothing else refers to it."""

    def use() -> weakref.ref[Dropped]:
        thing = Dropped()
        for _ in range(20_000):  # long enough to be looked at
            pass
        return weakref.ref(thing)

    threads = [threading.Thread(target=look) for _ in range(3)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        kept = sum(use()() is not None for _ in range(samples(500, 10_000)))
    finally:
        sys.setswitchinterval(interval)
        leave.set()
        for thread in threads:
            thread.join()
    assert kept == 0
