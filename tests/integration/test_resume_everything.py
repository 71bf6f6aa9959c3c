"""Any pipeline goes on from any state with exactly the elements that were left, here and in a fresh process."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

import asyncdata as ad
from fake_gcs import FakeGCS
from tests.integration.described_pipelines import dataset_of, in_order, text
from tests.integration.drawn_pipelines import cases, referee_cases, unordered_cases
from tests.integration.fresh_process import FreshProcess, mark_often, rest, taken
from tests.integration.written_formats import CHANGING, Files, changing, write_files
from tests.samples import SOAK, drawing, samples

PARTS = samples(1, 8)
"""Of a law that is tried on 2,000 pipelines, because no single test may take hours."""

pytestmark = [
    pytest.mark.usefixtures("two_workers"),
    pytest.mark.filterwarnings("ignore:.*cannot notice changes"),  # said once, so of the first run only
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Files of every format, some of them empty."""
    return write_files(tmp_path_factory.mktemp("files"), (30, 0, 1, 50))


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[FreshProcess]:
    """Another process."""
    process = FreshProcess()
    yield process
    process.close()


@pytest.fixture(scope="module")
def server() -> Iterator[FakeGCS]:
    """Has the objects that change."""
    with FakeGCS(buckets=["changing"]) as server:
        yield server


@pytest.fixture(autouse=True)
def marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of sixty elements has many."""
    mark_often(monkeypatch.setattr)


def _copy(source: str, target: str) -> None:
    """A file that a running pipeline may have renamed since it was listed: then it is not there at that moment."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(source, target)


class Kept:
    """The folder in which a pipeline keeps elements, and copies of it as it was at some moments."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "kept"
        self._copies = folder / "copies"
        self.moments: list[int] = []
        for path in (self.folder, self._copies):
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()

    def note(self, moment: int) -> None:
        """Copies it."""
        shutil.copytree(self.folder, self._copies / str(moment), copy_function=_copy)
        self.moments.append(moment)

    def become(self, moment: int | None) -> None:
        """Makes it what it was, or empty."""
        shutil.rmtree(self.folder)
        if moment is None:
            self.folder.mkdir()
        else:
            shutil.copytree(self._copies / str(moment), self.folder)


MOST = 500
"""More elements than most pipelines have; where there are as many, they take too long."""

REFUSED = ("it is not there", "not known whether", "another run has written it")
"""Parts of the errors that refuse a state because the elements it needs were lost or replaced."""


class Run:
    """One dataset's elements, and the states in front of each and behind the last one.

    Args:
        case: Its description.
        folder: A folder for the elements that it keeps.
        server: Has the objects that change.
        draw: Says when they do, and when it is noted what is kept.
    """

    def __init__(self, case: dict[str, Any], folder: Path, server: FakeGCS, draw: random.Random) -> None:
        self.case = case
        self.states: list[str] = []
        self.expected: list[str] = []
        self.kept = Kept(folder)
        self._draw = draw
        self._server = server
        self._places = [str(self.kept.folder), server.url]

    def replace(self, version: int) -> None:
        """Puts this version of each object where it was."""
        for name in CHANGING if self.case["changes"] else ():
            self._server.put("changing", name, changing(name, version))

    def begin(self) -> bool:
        """Takes all states; whether there are any."""
        self.replace(0)
        try:
            dataset = dataset_of(self.case, *self._places)
            dataset.explain()
        except Exception:  # noqa: BLE001 -- refused before it runs
            return False
        for _ in range(self.case["epoch"]):
            with dataset.iterator() as it:
                taken(it, lambda _: None)
        when = self._draw.randrange(20)

        def note(position: int) -> None:
            self.states.append(json.dumps(it.state_dict()))
            if self.case["stores"] and (position < 2 or self._draw.random() < 0.2):
                self.kept.note(position)
            if position == when:
                self.replace(1)

        with dataset.iterator() as it:
            elements, error = taken(it, note)
        last = json.loads(self.states[-1])
        assert not last["unordered"]
        assert str(ad.state.describe(last)).startswith("state of version 7")
        assert ad.state.diff(last, last) == []
        self.expected = [*elements, kind_of(error)]
        self.kept.note(len(elements) + 1)
        return True

    def moments(self, position: int) -> list[int | None]:
        """What may be kept where a state is loaded: what came since, nothing, what was there when it was taken."""
        if not self.case["stores"]:
            return [len(self.states)]
        gone = [None] * (self._is_straight and not self.case["epoch"])
        return [len(self.states), *gone, *({position} & set(self.kept.moments))]

    @property
    def _is_straight(self) -> bool:
        """Whether every state knows of all that was kept by then; those in front of a dataset that begins do not."""
        return not any(f'"{name}"' in json.dumps(self.case) for name in ("inputs", "inner", "flat_map", "interleave"))

    def check(self, position: int, moment: int | None, go_on: Callable[..., list[Any]]) -> None:
        """Goes on from a state, twice in a row."""
        self.kept.become(moment)
        if self._draw.random() < 0.3:
            self.replace(self._draw.randrange(3))
        middle = self._draw.randrange(position, len(self.states))
        state = self.states[position]
        left, why, later, why_later = go_on(self.case, self._places, state, middle - position)
        context = f"after {position} of {len(self.states)}, kept at {moment}: {json.dumps(self.case)} {state}"
        context = f"{context} {why} {self.expected[-1]}"
        expected = self.expected[position:]
        if moment == position or not self._is_excused(position, why):
            assert [*left, kind_of(why)] == expected, context
        else:
            expected = [*left, kind_of(why)]
        # What is kept is as the iterator before has left it.
        if not self._is_excused(middle, why_later):
            then = f"then {middle}, {why_later}: {context}"
            assert [*later, kind_of(why_later)] == expected[middle - position :], then

    def _is_excused(self, position: int, error: str | None) -> bool:
        """Whether it is known that what is kept by now does not fit the state, or not known whether it does."""
        if not self.case["stores"]:
            return False
        # Nothing tells the state in front of the first element from a new iterator, which reads a snapshot as it lies.
        is_new = not position and self.case["options"]["seed"] is not None and '"snapshot"' in json.dumps(self.case)
        # What was made of objects that have changed is not kept for others.
        refused = REFUSED + ("made by another pipeline",) * self.case["changes"]
        return is_new or any(map((error or "").count, refused))


def kind_of(error: str | None) -> str:
    """Its name."""
    return (error or "").partition(":")[0]


def check(case: dict[str, Any], folder: Path, server: FakeGCS, draw: random.Random, elsewhere: FreshProcess) -> None:
    """Takes all states of one dataset, and restores some of them, here and three of them elsewhere."""
    run = Run(case, folder, server, draw)
    if not run.begin():
        return
    chosen = sorted(draw.sample(range(len(run.states)), min(len(run.states), samples(4, 12))))
    far = draw.sample(chosen, min(len(chosen), 3))
    for position in chosen:
        for moment in run.moments(position):
            run.check(position, moment, rest)
            if position in far:
                run.check(position, moment, elsewhere.rest)


NOT_DRAWN = {
    *("iterator", "as_numpy_iterator", "reduce", "areduce", "get_single_element"),  # iterate
    *("cardinality", "element_spec", "explain"),  # say something
    "apply",  # calls its argument
}
"""What makes no other dataset."""


def test_every_method_and_every_source_is_drawn(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever of `Dataset` is public makes datasets in drawn pipelines, and so does every class of files."""
    called: set[str] = set()

    def noting(owner: type[ad.Dataset], attribute: str, name: str) -> None:
        member = inspect.getattr_static(owner, attribute)
        function = member.__func__ if isinstance(member, staticmethod) else member

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            called.add(name)
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, attribute, staticmethod(call) if isinstance(member, staticmethod) else call)

    methods = {name for name in vars(ad.Dataset) if not name.startswith("_")} - NOT_DRAWN
    for name in methods:
        noting(ad.Dataset, name, name)
    classes = [getattr(ad, name) for name in dir(ad) if name.endswith("Dataset") and name != "Dataset"]
    assert len(classes) > 5
    for each in classes:
        noting(each, "__init__", each.__name__)

    wanted = methods | {each.__name__ for each in classes}

    def is_last(case: dict[str, Any]) -> bool:
        dataset_of(case, "", "")
        return wanted <= called

    few = settings(max_examples=1000, derandomize=True, database=None, deadline=None, phases=(Phase.generate,))
    with contextlib.suppress(NoSuchExample):
        find(cases(files), is_last, settings=few)
    assert wanted - called == set()


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.timeout(7200 if SOAK else 600)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("drawn", [cases, referee_cases])
def test_any_pipeline_goes_on_here_and_in_a_fresh_process(
    part: int,
    drawn: Callable[[Files], st.SearchStrategy[Any]],
    files: Files,
    server: FakeGCS,
    elsewhere: FreshProcess,
    tmp_path: Path,
) -> None:
    """At states of which three are loaded in another process, with what is kept as it was, completed, or gone."""

    @drawing(10, 250)
    @given(case=drawn(files), seed=st.integers(0, 1 << 30))
    def attempt(case: dict[str, Any], seed: int) -> None:
        check(case, tmp_path, server, random.Random(seed), elsewhere)

    attempt()


def check_unordered(case: dict[str, Any], draw: random.Random, elsewhere: FreshProcess) -> int:
    """Closes one at random elements until it ends, the second time in another process; how many elements it has."""
    places = ["", ""]
    ordered = dataset_of({**case, "plan": in_order(case["plan"])}, *places)
    try:
        with ordered.iterator(epoch=case["epoch"]) as it:
            expected = Counter(map(text, itertools.islice(it, MOST)))
    except Exception:  # noqa: BLE001 -- where an error comes without an order is a matter of time
        return 0
    if expected.total() == MOST:
        return 0
    delivered: list[str] = []
    state = None
    for life in range(3):
        with dataset_of(case, *places).iterator(epoch=None if life else case["epoch"], state=state) as it:
            first, count = it.position, draw.randrange(expected.total() + 2)
            heard = list(map(text, itertools.islice(it, count)))
            used = draw.randint(max(0, len(heard) - 10), len(heard))
            try:
                state = json.loads(json.dumps(it.state_dict(at=first + used)))
            except ad.StateError as refused:
                assert "as they are ready" in str(refused)  # noqa: PT017 -- either outcome is right
                return 0
        delivered += heard[:used]
    again = draw.randint(0, expected.total() - len(delivered))
    left, why, later, why_later = elsewhere.rest(case, places, json.dumps(state), again)
    context = f"after {len(delivered)} of {expected.total()}: {json.dumps(case)}"
    assert (why, why_later) == (None, None), context
    for found in (delivered + left, delivered + left[:again] + later):
        more, fewer = Counter(found) - expected, expected - Counter(found)
        assert not more + fewer, f"{more} too many, {fewer} missing, {context}"
    return expected.total()


@pytest.mark.slow
@pytest.mark.timeout(7200 if SOAK else 600)
@pytest.mark.parametrize("part", range(PARTS))
def test_any_pipeline_without_an_order_delivers_every_element_once(
    part: int, files: Files, elsewhere: FreshProcess
) -> None:
    """In each epoch: closed three times, here and in another process."""
    delivered = 0

    @drawing(10, 250)
    @given(case=unordered_cases(files), seed=st.integers(0, 1 << 30))
    def attempt(case: dict[str, Any], seed: int) -> None:
        nonlocal delivered
        delivered += check_unordered(case, random.Random(seed), elsewhere)

    attempt()
    assert delivered
