"""Where the loader runs: here, and for a sample of the tests (all that can, in a long run) in a process of its own."""

from __future__ import annotations

import gc
import zlib
from collections.abc import Callable, Iterator
from typing import Final

import cloudpickle  # type: ignore[import-untyped]  # ships no types
import pytest

from asyncdata.options import Options
from asyncdata.runtime.life.runtime import Runtime
from asyncdata.testing import snapshot
from tests.integration.going import wait_until_gone
from tests.samples import samples

_MODULES: Final = {
    "test_bad_functions",
    "test_bad_input",
    "test_consumers",
    "test_kept_batches",
    "test_leaving",
    "test_random_pipelines",
}
# They start most of the workers, and it is not their point where functions are from.
_BY_VALUE: Final = {"test_consumers", "test_kept_batches", "test_leaving", "test_memory_limit", "test_task_timeout"}
_HERE_ONLY: Final = {
    # Their functions share an event or a lock with the test.
    "test_wait_for_may_time_out_again_and_again",
    "test_a_loop_closed_while_it_waited_takes_nothing_with_it",
    "test_closing_while_another_task_waits",
    "test_the_consumers_loop_is_never_held",
    # Their functions share an iterator with the test.
    "test_a_function_that_asks_for_the_next_element_of_its_own_pipeline",
    "test_a_function_that_asks_for_the_next_element_of_a_pipeline_on_the_same_loop",
    # The loader's log is that of another process.
    "test_an_object_replaced_after_it_was_listed",
    "test_an_object_replaced_or_deleted_while_it_is_read",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Both places, for what can be isolated."""
    if metafunc.module.__name__.rpartition(".")[2] in _MODULES and metafunc.function.__name__ not in _HERE_ONLY:
        metafunc.parametrize("where", ["here", "isolated"], indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out most of the isolated ones, and those that read the ``memory://`` of this process."""
    left_out = [item for item in items if _is_isolated(item) and not _is_chosen(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        chosen = set(left_out)
        items[:] = [item for item in items if item not in chosen]


def _is_isolated(item: pytest.Item) -> bool:
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    return parameters.get("where") == "isolated"


def _is_chosen(item: pytest.Item) -> bool:
    return "memory" not in item.name.rpartition("[")[2] and zlib.crc32(item.nodeid.encode()) % samples(20, 1) == 0


@pytest.fixture(autouse=True)
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """``here``, or ``isolated``: then ``Options()`` means ``Options(isolate=True)``."""
    mode: str = getattr(request, "param", "here")
    if mode == "isolated":
        defaults = Options.__init__.__kwdefaults__
        assert defaults is not None
        monkeypatch.setitem(defaults, "isolate", True)
    return mode


@pytest.fixture(autouse=True, scope="module")
def by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """Functions of test modules go to worker processes with their code.

    Else each worker would import the module they are from, and with it pytest, hypothesis and all of the package,
    which takes longer than to start the worker. Other modules test that functions are found by their names.
    """
    chosen = request.module.__name__.rpartition(".")[2] in _BY_VALUE
    if chosen:
        cloudpickle.register_pickle_by_value(request.module)
    yield
    if chosen:
        cloudpickle.unregister_pickle_by_value(request.module)


@pytest.fixture
def two_workers() -> Iterator[None]:
    """A Runtime for all pipelines of a test."""
    with Runtime(Options(num_workers=2)):
        yield


@pytest.fixture
def gone() -> Iterator[Callable[[], None]]:
    """Asserts that nothing is left, without a garbage collection."""
    before = snapshot()
    gc.collect()
    gc.disable()

    yield lambda: wait_until_gone(before)
    gc.enable()
