"""Hashes against published values; the tests with TensorFlow compare many more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncdata as ad
from asyncdata.preprocessing.farmhash import fingerprint64
from asyncdata.preprocessing.siphash import siphash
from tests.samples import samples

# Appendix A of the paper on SipHash: the key 00 01 … 0f, the input 00 01 … 0e.
PUBLISHED_KEY = (0x0706050403020100, 0x0F0E0D0C0B0A0908)
PUBLISHED_HASH = 0xA129CA6149BE45E5


def test_siphash_is_the_published_one() -> None:
    """The test vector of its authors."""
    batch = ad.BytesArray.from_items([bytes(range(15)), b""])
    assert int(siphash(batch, PUBLISHED_KEY)[0]) == PUBLISHED_HASH


@settings(max_examples=samples(60, 3000), deadline=None)
@given(items=st.lists(st.binary(max_size=200), min_size=1, max_size=20), key=st.integers(-(1 << 63), (1 << 63) - 1))
def test_an_item_has_its_hash_in_any_company(items: list[bytes], key: int) -> None:
    """Among strings of any lengths, in memory shared with others, or alone."""
    batch = ad.BytesArray.from_items(items)[:: max(1, len(items) // 3)]
    for hashes in (fingerprint64, lambda found: siphash(found, (key, 5))):
        alone = [int(hashes(ad.BytesArray.from_items([item]))[0]) for item in batch]
        assert hashes(batch).tolist() == alone
    assert len({int(hash_) for hash_ in fingerprint64(ad.BytesArray.from_items(items))}) == len(set(items))


def test_numbers_are_hashed_as_their_digits() -> None:
    """Integers of any dtype, and floats rounded towards zero."""
    bins = ad.HashToBins(1000)
    texts = ["0", "-3", "12", str(-(1 << 63))]
    expected = bins(texts).tolist()
    assert bins([0, -3, 12, -(1 << 63)]).tolist() == expected
    assert bins(np.array([0.9, -3.9, 12.5])).tolist() == expected[:3]
    assert bins(np.array([(1 << 64) - 1], np.uint64)).tolist() == bins([str((1 << 64) - 1)]).tolist()
    assert bins(np.zeros(0, np.int64)).tolist() == bins(ad.BytesArray.from_items([])).tolist() == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ad.HashToBins(0), "num_bins"),
        (lambda: ad.HashToBins(5, salt=[1]), "salt"),
        (lambda: ad.HashToBins(5, mask_value=True), "mask_value"),
        (lambda: ad.HashToBins(5, mask_value=float("nan")), "mask_value"),
        (lambda: ad.HashToBins(5, mask_value=float("inf")), "mask_value"),
        (lambda: ad.HashToBins(5, mask_value="x")([1]), "does not suit numbers"),
        (lambda: ad.HashToBins(5, mask_value=1)(["x"]), "does not suit texts"),
        (lambda: ad.HashToBins(5)([None]), "tokens are texts"),
    ],
)
def test_what_has_no_meaning_is_refused(call: Any, message: str) -> None:
    """The message says what it is about."""
    with pytest.raises((TypeError, ValueError), match=message):
        call()
