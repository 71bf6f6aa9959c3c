from __future__ import annotations

import pytest

from asyncdata.formats.framing import WholeFramer
from tests.formats.framers import check_any_chunking, outcome


@pytest.mark.parametrize("data", [b"", b"x", b"some\ntext\0" * 20])
def test_an_object_is_one_record(data: bytes) -> None:
    """Everything there is, in one piece, also when that is nothing."""
    check_any_chunking(WholeFramer, data, [data], rounds=3)
    assert outcome(lambda: WholeFramer("gs://b/o"), data) == ([("gs://b/o", data)], None)
