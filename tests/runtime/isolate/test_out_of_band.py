"""Laws of parcels: whatever way they take, what comes out equals what went in, and its arrays may be written to."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]  # ships no types
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.runtime.isolate import out_of_band


def by_message(value: Any) -> Any:
    """The way of short ones."""
    return out_of_band.load(b"".join(out_of_band.dump_object(value)))


def by_file(value: Any) -> Any:
    """The way of long ones."""
    return out_of_band.load_file(out_of_band.write_file("asyncdata-test", out_of_band.dump_object(value)))


def by_mapping(value: Any) -> Any:
    """The way of plans."""
    pieces = out_of_band.dump(value, cloudpickle.dumps)
    return out_of_band.load_mapped(out_of_band.write_file("asyncdata-test", pieces), out_of_band.nbytes(pieces))


WAYS = (by_message, by_file, by_mapping)


@pytest.mark.parametrize("way", WAYS)
@given(sizes=st.lists(st.integers(0, 300), max_size=6), text=st.text(max_size=20))
def test_what_goes_in_comes_out(way: Callable[[Any], Any], sizes: list[int], text: str) -> None:
    """Arrays of any length beside plain values, writable."""
    arrays = [np.arange(size, dtype=np.int32) for size in sizes]
    again = way((arrays, text))
    assert again[1] == text
    assert len(again[0]) == len(arrays)
    for mine, theirs in zip(arrays, again[0], strict=True):
        assert np.array_equal(mine, theirs)
        theirs[:] = 7


@pytest.mark.parametrize("way", WAYS)
def test_arrays_of_every_make(way: Callable[[Any], Any]) -> None:
    """Fortran order, strides, no axes, no elements, objects, records, byte order, read-only."""
    base = np.arange(24.0).reshape(2, 3, 4)
    frozen = np.arange(5)
    frozen.flags.writeable = False
    arrays = [
        np.asfortranarray(base[0]),
        base[:, ::2, 1:],
        np.array(3.5),
        np.empty((0, 4)),
        np.array([None, "é", {"a": 1}], object),
        np.zeros(3, [("a", "i4"), ("b", "f8")]),
        np.arange(4, dtype=">i2"),
        frozen,
    ]
    for mine, theirs in zip(arrays, way(arrays), strict=True):
        assert theirs.dtype == mine.dtype
        assert np.array_equal(mine, theirs)


def test_many_arrays_in_one_file() -> None:
    """More pieces than one system call takes."""
    arrays = [np.full(100, number) for number in range(3000)]
    assert all(np.array_equal(a, b) for a, b in zip(arrays, by_file(arrays), strict=True))


def test_files_are_closed_also_when_they_are_too_short() -> None:
    """The descriptor is taken over in any case."""
    pieces = out_of_band.dump_object(np.arange(1000))
    fd = out_of_band.write_file("asyncdata-test", pieces)
    os.truncate(fd, 500)
    with pytest.raises(OSError, match="shorter than it says"):
        out_of_band.load_file(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_mapped_arrays_keep_the_file_alone() -> None:
    """No copy is made, and the mapping ends with the last array."""
    array = by_mapping(np.arange(1 << 16))
    assert array.base is not None
    assert "memfd:asyncdata-test" in Path("/proc/self/maps").read_text()
    del array
    assert "memfd:asyncdata-test" not in Path("/proc/self/maps").read_text()


def test_what_cannot_be_pickled_is_an_error_of_pickle() -> None:
    """Also after the second attempt, which takes classes by value."""
    with pytest.raises((TypeError, pickle.PicklingError)):
        out_of_band.dump_object(threading.Lock())
