"""In a forked child: an inherited iterator says so, its descriptors are dropped, and a Dataset works anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.programs import run

_FORK = """
import gc
from asyncdata.testing import procfs

def in_child(body):
    pid = os.fork()
    if pid == 0:
        try:
            body()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        sys.exit(0)  # exit handlers run in the child too
    assert os.waitpid(pid, 0)[1] == 0
"""


def test_an_inherited_iterator_says_so_and_a_dataset_works() -> None:
    """The child gets a clear error and can iterate anew; the parent goes on unharmed."""
    code, out, err = run(
        _FORK
        + """
ds = pipeline("process", 800)
it = iter(ds)
first = next(it)
def child():
    for attempt in range(2):
        try:
            next(it)
        except ad.ForkedProcessError:
            say("forked")
    try:
        asyncio.run(anext(it))
    except ad.ForkedProcessError:
        say("forked")
    assert (first[0] == 0).all()
    assert sum(len(batch) for batch in ds) == 800
    it.close()
    try:
        next(it)
    except ad.PipelineClosedError:
        say("closed")
in_child(child)
assert len(first) + sum(len(batch) for batch in it) == 800
"""
    )
    assert (code, err) == (0, "")
    assert out == "forked\nforked\nforked\nclosed\n"


def test_inside_a_runtime_a_child_makes_its_own() -> None:
    """The Runtime of a ``with`` around the fork belongs to the parent."""
    code, out, err = run(
        _FORK
        + """
with ad.Runtime() as runtime:
    ds = pipeline("thread", 80)
    it = iter(ds)
    next(it)
    def child():
        assert sum(len(batch) for batch in ds) == 80
        try:
            runtime.start()
        except ad.ForkedProcessError:
            say("forked")
        runtime.close()
    in_child(child)
    assert sum(len(batch) for batch in it) == 72
"""
    )
    assert (code, out, err) == (0, "forked\n", "")


def test_the_childs_descriptors_lead_nowhere() -> None:
    """Arena, loops and worker sockets are dropped; what cannot be attributed (io_uring of the loop) is named here."""
    code, _, err = run(
        _FORK
        + """
before = set(procfs.descriptors())
it = iter(pipeline("process"))
first = next(it)
def child():
    ours = {fd: to for fd, to in procfs.descriptors().items() if fd not in before}
    kept = {fd: to for fd, to in ours.items() if to != os.devnull and "io_uring" not in to and "pipe:" not in to}
    assert not kept, kept
    del globals()["it"], globals()["first"]
    gc.collect()
in_child(child)
assert next(it)[0, 0] == 8
"""
    )
    assert (code, err) == (0, "")


def test_an_inherited_iterator_may_load_a_state() -> None:
    """It is the child's own from then on: it can be iterated, closed and abandoned, and nothing of it is left."""
    code, out, err = run(
        _FORK
        + """
it = iter(pipeline("thread", 80))
next(it)
state = it.state_dict()
def child():
    for end in (it.close, it.abandon):
        it.load_state_dict(state)
        next(it)
        assert "asyncdata-stages" in [thread.name for thread in threading.enumerate()]
        end()
        for thread in threading.enumerate():
            if thread is not threading.current_thread():
                thread.join(60)
                assert not thread.is_alive(), thread
    it.load_state_dict(state)
    assert sum(len(batch) for batch in it) == 72
    assert threading.active_count() == 1, threading.enumerate()
    say("closed")
in_child(child)
assert sum(len(batch) for batch in it) == 72
"""
    )
    assert (code, out, err) == (0, "closed\n", "")


@pytest.mark.parametrize("end", ["it.close()", "del globals()['it']; gc.collect()", "pass"])
def test_an_order_log_stays_locked(end: str, tmp_path: Path) -> None:
    """Whether the child closes the iterator, lets it go or ends: the parent still writes its log alone."""
    code, out, err = run(
        _FORK
        + f"""
ds = ad.Dataset.range(80).with_options(ad.Options(order_log={str(tmp_path / "log")!r}))
it = ds.iterator(epoch=0)
next(it)
def child():
    {end}
in_child(child)
try:
    ds.iterator(epoch=0)
except ad.StateError:
    say("locked")
assert len(list(it)) == 79
ds.iterator(epoch=0).close()
"""
    )
    assert (code, out, err) == (0, "locked\n", "")


@pytest.mark.sampled
@pytest.mark.parametrize("moment", ["waiting", "closing"])
def test_a_fork_at_any_moment(moment: str) -> None:
    """Locks of the parent's threads may be held at the fork; the child needs none of them to let go."""
    code, _, err = run(
        _FORK
        + f"""
moment = {moment!r}
for round in range(6):
    it = pipeline("thread", 80_000).iterator()
    next(it)
    reader = threading.Thread(target=it.close if moment == "closing" else lambda: [None for _ in zip(it, range(300))])
    reader.start()
    def child():
        try:
            next(it)
        except (ad.ForkedProcessError, ad.PipelineClosedError):
            pass
        it.close()
        del globals()["it"]
        gc.collect()
        os._exit(0)
    in_child(child)
    reader.join()
    it.close()
"""
    )
    assert (code, err) == (0, "")


def test_multiprocessing_children() -> None:
    """Fork-started processes of multiprocessing may use a Dataset that is being iterated."""
    code, out, err = run("""
        import multiprocessing
        ds = pipeline("inline", 80)
        it = iter(ds)
        next(it)

        def child():
            print(sum(len(batch) for batch in ds), flush=True)

        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join()
        assert process.exitcode == 0
        assert sum(len(batch) for batch in it) == 72
    """)
    assert (code, out, err) == (0, "80\n", "")


@pytest.mark.parametrize("executor", ["process", "thread"])
@pytest.mark.parametrize("end", ["return -1", "raise ValueError(x)"])
def test_a_copy_that_comes_out_of_a_user_function_ends(end: str, executor: str) -> None:
    """It shares the memory for results with the original, which it must not write to."""
    code, out, err = run(f"""
        def twin(x):
            if os.environ.get("copy"):
                print("a copy goes on", file=sys.stderr, flush=True)
                os._exit(1)
            if x == 3:
                warnings.simplefilter("ignore")  # in a worker, too, which has threads
                pid = os.fork()
                if not pid:
                    os.environ["copy"] = "1"
                    {end}
                os.waitpid(pid, 0)
            return x

        options = ad.Options(errors=ad.ErrorPolicy(max_skipped=3), num_workers=1)
        numbers = ad.Dataset.range(8).map(twin, executor={executor!r}).batch(8).with_options(options)
        print([batch.tolist() for batch in numbers])
    """)
    assert (code, out, err) == (0, "[[0, 1, 2, 3, 4, 5, 6, 7]]\n", "")
