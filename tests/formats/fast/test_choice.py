"""Compiled code is taken when it is asked for, or pays."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from asyncdata.formats.example.features import FixedLenFeature, VarLenFeature
from asyncdata.formats.example.parser import parse_example
from asyncdata.formats.example.serialize import serialize_example
from asyncdata.formats.fast import choice

NUMBA = importlib.util.find_spec("numba") is not None


def test_it_must_be_installed_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """compiled=True without numba is an error that names the extra; compiled=None goes without."""
    monkeypatch.setattr(choice, "installed", lambda: False)
    with pytest.raises(ImportError, match=r"asyncdata\[fast\]"):
        parse_example({"a": FixedLenFeature([], int)}, compiled=True)
    undecided = choice.Choice(None)
    assert not any(undecided.compiled(choice.PAYS_FROM_RECORDS) for _ in range(3))


@pytest.mark.skipif(not NUMBA, reason="needs the extra 'fast'")
def test_it_is_taken_once_it_pays() -> None:
    """Without a wish, after so many records; with one, at once or never."""
    undecided = choice.Choice(None)
    assert [undecided.compiled(choice.PAYS_FROM_RECORDS // 2) for _ in range(4)] == [False, False, True, True]
    assert choice.Choice(True).compiled(1)
    assert not choice.Choice(False).compiled(choice.PAYS_FROM_RECORDS * 2)


@pytest.mark.skipif(not NUMBA, reason="needs the extra 'fast'")
def test_both_ways_give_the_same_across_the_change() -> None:
    """A parser that changes its way in the middle of a run gives what it gave before."""
    records = [serialize_example({"a": i, "v": np.arange(i % 7)}) for i in range(4096)]
    parse = parse_example({"a": FixedLenFeature([], int), "v": VarLenFeature(int)})
    expected = [[list(range(i % 7)) for i in range(4096)]]
    for _ in range(choice.PAYS_FROM_RECORDS // 4096 + 2):
        batch = parse(records)
        assert batch["a"].tolist() == list(range(4096))
        assert [batch["v"].to_list()] == expected
