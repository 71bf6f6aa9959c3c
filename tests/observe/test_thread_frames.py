"""Looking at the frames of all threads neither stops the interpreter nor switches the garbage collector."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from asyncdata.observe.stack_sampler import stack_of
from asyncdata.observe.thread_frames import current_frames
from tests.patience import LIMIT_S

# What the collector frees here gives up the interpreter lock, and somebody always wants to start a thread.
PROGRAM = """
import gc, itertools, mmap, sys, threading
from asyncdata.observe.stack_sampler import stack_of
from asyncdata.observe.thread_frames import current_frames

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
for count in itertools.islice(itertools.cycle(range(1, 40)), 20_000):
    cycle = Cycle()
    cycle.itself, cycle.memory = cycle, mmap.mmap(-1, 4096)
    del cycle
    objects = [[] for _ in range(count)]  # the next collection is due at any step of what follows
    stack_of(starting[0].ident) if count % 2 else current_frames()
done = True
for thread in starting:
    thread.join()
print("done", gc.isenabled())
"""


def test_the_collector_at_the_wrong_moment_stops_nobody() -> None:
    """Python 3.11 stood still for ever."""
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=LIMIT_S, check=False)
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
    frame = current_frames()[mine].f_back
    assert frame is not None
    assert frame.f_code.co_name == "test_the_collector_stays_as_it_is"
    assert stack_of(mine)[1][0] is frame.f_code
    assert stack_of(-1) == []
    assert gc.isenabled() is collects
