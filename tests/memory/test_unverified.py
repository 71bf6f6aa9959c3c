"""Payloads that nobody has verified: found in every kind of column, and marked as verified there."""

from __future__ import annotations

import pickle

import numpy as np

from asyncdata.formats.tfrecord import check_payloads, encode_many
from asyncdata.memory.columns import ArrayColumn, Column, ObjectColumn, RefColumn, as_objects, concat
from asyncdata.memory.leaf import BYTES, UNCHECKED_BYTES
from asyncdata.memory.unverified import holds, plain, unverified_rows, verified
from tests.memory.places import Place, place

PAYLOADS = [b"", b"one", b"two"]


def records(found: Place) -> RefColumn:
    """Payloads with their checksums behind them."""
    framed = [bytes(encode_many([payload]))[12:] for payload in PAYLOADS]
    column = found.column(framed, UNCHECKED_BYTES)
    column.rows[:, 1] -= 4
    return column


def test_rows_are_found_in_whatever_column_they_end() -> None:
    """Alone, beside references of another leaf, as objects and in nests of them."""
    with place() as found:
        check_columns(found)


def check_columns(slabs: Place) -> None:
    """See the test."""
    column = records(slabs)
    others = column.gather(np.array([1]))
    others.leaf = BYTES
    mixed = concat([others, column.gather(np.arange(3))])
    objects = as_objects(concat([ObjectColumn([b"x", {"a": 1}]), column.gather(np.arange(3))]))
    nests = ObjectColumn([(1, item) for item in objects.items])
    cases: list[tuple[Column, list[int]]] = [
        (column, [0, 1, 2]),
        (mixed, [1, 2, 3]),
        (objects, [2, 3, 4]),
        (nests, [2, 3, 4]),
        (ArrayColumn(np.arange(3)), []),
    ]
    for found, rows in cases:
        assert unverified_rows(found).tolist() == rows
        elements = [found.element(row) for row in range(len(found))]
        after = verified(found)
        assert not len(unverified_rows(after))
        assert [after.element(row) for row in range(len(after))] == elements
        assert {type(plain(element)) for element in elements if isinstance(element, bytes)} <= {bytes}
    mixed.release()
    column.release()


def test_a_copy_keeps_its_checksum() -> None:
    """Also through a pickle; a copy that is changed does not hold."""
    with place() as found:
        column = records(found)
        copies = [pickle.loads(pickle.dumps(column.element(row))) for row in range(3)]
        column.release()
    assert copies == PAYLOADS
    for copy in copies:
        assert holds((copy, 1), check_payloads)
        copy.footer = b"none"
        assert not holds(copy, check_payloads)
    assert holds(b"a payload without one", check_payloads)
