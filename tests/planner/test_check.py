from __future__ import annotations

from asyncdata import Dataset, TextLineDataset, TFRecordDataset
from asyncdata.planner.check import will_check


def test_what_is_certain_to_be_checked() -> None:
    """Record files, and functions that are known to open them; not what a function may turn out to do."""
    names = Dataset.from_tensor_slices(["a", "b"])
    assert will_check(TFRecordDataset("a")._node)
    assert will_check(TFRecordDataset(["a", "b"])._node)
    assert will_check(names.interleave(TFRecordDataset).shuffle(10)._node)
    assert will_check(TFRecordDataset(names)._node)
    assert not will_check(names.interleave(lambda name: TFRecordDataset(name))._node)  # noqa: PLW0108 -- a function of the user's
    assert not will_check(names.interleave(TextLineDataset)._node)
    assert not will_check(TextLineDataset(names)._node)
    assert not will_check(Dataset.range(3)._node)
