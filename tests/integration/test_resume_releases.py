"""States that were written by earlier releases are read: what follows is what would have followed there."""

from __future__ import annotations

import json
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pytest

import asyncdata as ad
from asyncdata.runtime.state.document import EARLIEST, VERSION, with_checksum
from tests.integration.earlier_states import pipelines, plain, write_files

FOLDER: Final = Path(__file__).with_name("states_of_releases")
RELEASES: Final = sorted(path.stem for path in FOLDER.glob("*.json"))


def flat(batches: list[Any]) -> list[str]:
    """Their elements, as texts."""
    return [json.dumps(each) for each in chain.from_iterable(batches)]


@pytest.mark.sampled
@pytest.mark.parametrize("release", RELEASES)
def test_states_of_a_release_are_read(release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order what is left, otherwise each element once."""
    monkeypatch.chdir(tmp_path)
    paths = write_files()
    written = json.loads((FOLDER / f"{release}.json").read_text())
    assert written.keys() == pipelines(paths).keys()
    with ad.Runtime(ad.Options(num_workers=0)):
        for name, (dataset, is_ordered) in pipelines(paths).items():
            begun, state = written[name]["delivered"], written[name]["state"]
            found = begun + [plain(batch) for batch in dataset.iterator(state=state)]
            # Of another one, whose first epoch this is.
            whole = [plain(batch) for batch in pipelines(paths)[name][0]]
            if is_ordered:
                assert found == whole, name
            else:
                assert Counter(flat(found)) == Counter(flat(whole)), name


def test_the_format_of_every_release_is_among_them() -> None:
    """A new version of the format needs states that the last release wrote."""
    versions = [json.loads((FOLDER / f"{name}.json").read_text())["shuffle"]["state"] for name in RELEASES]
    assert {state["asyncdata_state"] for state in versions} == set(range(EARLIEST, VERSION + 1))


@pytest.mark.parametrize("version", [1, EARLIEST - 1])
def test_states_from_before_the_first_release_are_refused(version: int) -> None:
    """By name, and not as damaged."""
    dataset = ad.Dataset.range(10)
    with dataset.iterator() as it:
        next(it)
        state = with_checksum({**it.state_dict(), "asyncdata_state": version})
    with pytest.raises(ad.StateError, match=f"of version {version}; this asyncdata reads versions {EARLIEST} to"):
        dataset.iterator(state=state)
