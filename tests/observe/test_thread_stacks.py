"""Looking at other threads neither stops nor crashes the interpreter, nor switches the garbage collector."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import CodeType

import pytest

from asyncdata.observe.thread_stacks import stack_of, text_of
from tests.patience import LIMIT_S
from tests.samples import samples

# What the collector frees here gives up the interpreter lock, and somebody always wants to start a thread.
STARTING = """
import gc, itertools, mmap, sys, threading
from asyncdata.observe.thread_stacks import stack_of

class Cycle:
    pass

def start_threads():
    while not done:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()

done = False
gc.set_threshold(30)
sys.setswitchinterval(1e-5)
starting = [threading.Thread(target=start_threads) for _ in range(3)]
for thread in starting:
    thread.start()
for count in itertools.islice(itertools.cycle(range(1, 40)), 10 * int(sys.argv[1])):
    cycle = Cycle()
    cycle.itself, cycle.memory = cycle, mmap.mmap(-1, 4096)
    del cycle
    objects = [[] for _ in range(count)]  # the next collection is due at any step of what follows
    stack_of(starting[count % 3].ident)
done = True
for thread in starting:
    thread.join()
print("done", gc.isenabled())
"""

# The threads go on, and leave the functions that they are in, whenever the collector runs.
LEAVING = """
import gc, sys, threading
from asyncdata.observe.thread_stacks import stack_of

class Cycle:
    def __del__(self):
        left.clear()
        left.wait(0.01)

def call(depth):
    return call(depth - 1) + 1 if depth else 0

def call_and_leave():
    while not done:
        for depth in 1, 600, 2, 900, 3, 300:
            call(depth)
            left.set()

left = threading.Event()
done = False
gc.set_threshold(100)
threads = [threading.Thread(target=call_and_leave) for _ in range(2)]
for thread in threads:
    thread.start()
for count in range(int(sys.argv[1])):
    cycle = Cycle()
    cycle.itself = cycle
    del cycle
    objects = [[] for _ in range(2 * count % 37)]
    for thread in threads:
        assert stack_of(thread.ident)
done = True
for thread in threads:
    thread.join()
print("done", gc.isenabled())
"""


@pytest.mark.sampled
@pytest.mark.parametrize("program", [STARTING, LEAVING], ids=["threads that start", "functions that return"])
def test_the_collector_at_the_wrong_moment_stops_nobody(program: str) -> None:
    """Python 3.11 stood still for ever, or ended with a segmentation fault."""
    command = [sys.executable, "-c", program, str(samples(1000, 2000))]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (ran.stdout, ran.stderr) == ("done True\n", "")


@pytest.fixture(params=[True, False], ids=["collecting", "not collecting"])
def collects(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether the collector is on."""
    if not request.param:
        gc.disable()
    yield request.param
    gc.enable()


def test_the_collector_stays_as_it_is(collects: bool) -> None:
    """Also where there is no such thread."""
    mine = threading.get_ident()
    assert [code.co_name for code, _ in stack_of(mine)][:2] == ["stack_of", "test_the_collector_stays_as_it_is"]
    assert stack_of(-1) == []
    assert stack_of(None) == []
    assert gc.isenabled() is collects


def test_a_deep_stack_is_cut_and_its_text_is_that_of_a_traceback() -> None:
    """The innermost calls are shown, the last one last."""

    def call(depth: int) -> list[tuple[CodeType, int | None]]:
        return call(depth - 1) if depth else stack_of(threading.get_ident())

    stack = call(300)
    assert len(stack) == 200
    text = text_of(stack)
    assert f'File "{__file__}", line {stack[1][1]}, in call\n    return call(depth - 1) if depth' in text
    assert text.splitlines()[-2].endswith("in stack_of")
    assert text_of([]) == "  no stack\n"
