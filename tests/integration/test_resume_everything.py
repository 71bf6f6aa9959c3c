"""Any pipeline, closed at any element, goes on with exactly the elements that were left, here and in a fresh process."""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import asyncdata as ad
from fake_gcs import FakeGCS
from tests.integration.drawn_pipelines import (
    CHANGING,
    Files,
    cases,
    changing,
    dataset_of,
    in_order,
    text,
    unordered_cases,
    write_files,
)
from tests.integration.fresh_process import FreshProcess, rest, taken
from tests.samples import SOAK, samples

pytestmark = pytest.mark.usefixtures("two_workers")


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
        shutil.copytree(self.folder, self._copies / str(moment))
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
"""What states are told that need elements which are not kept, or others than those that are."""


def check(case: dict[str, Any], folder: Path, server: FakeGCS, draw: random.Random, elsewhere: FreshProcess) -> None:
    """Takes all states of one dataset, and restores some of them, here and elsewhere, twice in a row."""
    kept = Kept(folder)
    places = [str(kept.folder), server.url]

    def replace(version: int) -> None:
        for name in CHANGING if case["changes"] else ():
            server.put("changing", name, changing(name, version))

    replace(0)
    try:
        dataset = dataset_of(case, *places)
    except Exception:  # noqa: BLE001 -- refused where it is written
        return

    when = draw.randrange(20)
    states: list[str] = []

    def note(position: int) -> None:
        states.append(json.dumps(it.state_dict()))
        if case["stores"] and (position < 2 or draw.random() < 0.2):
            kept.note(position)
        if position == when:
            replace(1)

    for _ in range(case["epoch"]):
        with dataset.iterator() as it:
            taken(it, lambda _: None)
    with dataset.iterator() as it:
        elements, error = taken(it, note)
    expected = [*elements, ended(error)]
    end = len(states)
    kept.note(end)
    chosen = sorted(draw.sample(range(end), min(end, samples(4, 12))))
    far = draw.sample(chosen, min(len(chosen), 3))
    for position in chosen:
        moments: list[int | None] = [end]
        if case["stores"]:
            moments += [None, *({position} & set(kept.moments))]
        for moment in moments:
            middle = draw.randrange(position, end)
            for go_on in (rest, elsewhere.rest) if position in far else (rest,):
                kept.become(moment)
                if draw.random() < 0.3:
                    replace(draw.randrange(3))
                left, why, later, why_later = go_on(case, places, states[position], middle - position)
                if moment != position and any(words in f"{why} {why_later}" for words in REFUSED):
                    continue
                if (
                    moment != position
                    and position == 0
                    and case["options"]["seed"] is not None
                    and stored_otherwise(case)
                ):
                    continue  # nothing was delivered, and it is the same as an iterator without a state
                context = f"after {position}, kept at {moment} of {end}: {json.dumps(case)} {states[position]} {why}"
                assert [*left, ended(why)] == expected[position:], context
                assert [*later, ended(why_later)] == expected[middle:], f"then {middle}, {why_later}: {context}"


def stored_otherwise(case: dict[str, Any]) -> bool:
    """Whether what is kept may be read in another order than that in which it is written."""
    return '"op": "snapshot"' in json.dumps(case)


def ended(error: str | None) -> str:
    """The kind of an error."""
    return (error or "").partition(":")[0]


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

    @settings(
        max_examples=250,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),
    )
    @given(case=cases(files))
    def attempt(case: dict[str, Any]) -> None:
        dataset_of(case, "", "")

    attempt()
    assert methods | {each.__name__ for each in classes} <= called


@pytest.mark.slow
@pytest.mark.timeout(14_400 if SOAK else 600)
def test_any_pipeline_goes_on_here_and_in_a_fresh_process(
    files: Files, server: FakeGCS, elsewhere: FreshProcess, tmp_path: Path
) -> None:
    """At states of which three are loaded in another process, with what is kept as it was, completed, or gone."""

    @settings(
        max_examples=samples(25, 2000),
        derandomize=not SOAK,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        print_blob=True,
    )
    @given(case=cases(files), seed=st.integers(0, 1 << 30))
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
@pytest.mark.timeout(14_400 if SOAK else 600)
def test_any_pipeline_without_an_order_delivers_every_element_once(files: Files, elsewhere: FreshProcess) -> None:
    """In each epoch: closed three times, here and in another process."""
    delivered = 0

    @settings(
        max_examples=samples(25, 2000),
        derandomize=not SOAK,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        print_blob=True,
    )
    @given(case=unordered_cases(files), seed=st.integers(0, 1 << 30))
    def attempt(case: dict[str, Any], seed: int) -> None:
        nonlocal delivered
        delivered += check_unordered(case, random.Random(seed), elsewhere)

    attempt()
    assert delivered
