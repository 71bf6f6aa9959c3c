"""States of pipelines that keep elements in files: exact whatever has become of the files since, or refused by name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import asyncdata as ad
from tests.integration.test_resume_caches import noisy, plain, taken
from tests.samples import SOAK

D = ad.Dataset

Make = Callable[[str], ad.Dataset]

IN_TURN: dict[str, Make] = {
    "cache": lambda path: D.range(20).shuffle(4, seed=2).cache(path).repeat(2),
    "cache, no seed": lambda path: D.range(20).shuffle(7).cache(path).repeat(2),
    "cache, random numbers": lambda path: D.range(20).map(noisy, rng=True).cache(path).batch(3).repeat(2),
    "cache, inside": lambda path: D.range(2).flat_map(
        lambda x: D.range(6).shuffle(6).cache(f"{path}-{int(x)}").repeat(2)
    ),
}
"""Those that read in the order in which they were written."""


def removed(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def every(states: list[object]) -> range:
    return range(0, len(states), 1 if SOAK else 3)


@pytest.mark.parametrize("is_gone", [False, True], ids=["there", "gone"])
@pytest.mark.parametrize("name", IN_TURN)
def test_what_is_there_or_gone_makes_no_difference(name: str, tmp_path: Path, *, is_gone: bool) -> None:
    """The process goes on behind the state and completes the file, or the resume is on another machine."""
    with ad.Runtime(ad.Options(num_workers=0)):
        make = IN_TURN[name]
        elements, states = taken(make(f"{tmp_path}/kept"))
        for position in every(states):
            if is_gone:
                removed(tmp_path)
            with make(f"{tmp_path}/kept").iterator(state=states[position]) as it:
                assert plain(list(it)) == plain(elements[position:]), position


@pytest.mark.parametrize("name", ["cache, no seed", "cache, random numbers"])
def test_what_another_run_has_written_is_not_mixed_in(name: str, tmp_path: Path) -> None:
    """It is left alone while the run of the state was writing, and refused where that had read its own."""
    with ad.Runtime(ad.Options(num_workers=0)):
        elements, states = taken(IN_TURN[name](f"{tmp_path}/kept"))
        removed(tmp_path)
        others = list(IN_TURN[name](f"{tmp_path}/kept"))
        half = len(elements) // 2
        with IN_TURN[name](f"{tmp_path}/kept").iterator(state=states[4]) as it:
            assert plain(list(it)[: half - 4]) == plain(elements[4:half])
        assert plain(list(IN_TURN[name](f"{tmp_path}/kept"))) == plain(others[:half] * 2)
        with (
            pytest.raises(ad.StateError, match="another run has written it"),
            IN_TURN[name](f"{tmp_path}/kept").iterator(state=states[half + 3]) as it,
        ):
            list(it)
