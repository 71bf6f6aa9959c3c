"""Partial responses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_gcs.api_json.fields import select_fields
from fake_gcs.errors import GCSError
from tests.fake_gcs.asking import refusal_of

VALUE = {"kind": "k", "items": [{"name": "a", "size": "1", "m": {"x": 1, "y": 2}}, {"name": "b"}], "next": "t"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("kind", {"kind": "k"}),
        ("items/name,next", {"items": [{"name": "a"}, {"name": "b"}], "next": "t"}),
        ("items(name,m/x)", {"items": [{"name": "a", "m": {"x": 1}}, {"name": "b"}]}),
        ("items(name),items(size)", {"items": [{"name": "a", "size": "1"}, {"name": "b"}]}),
        ("*", VALUE),
        ("items", {"items": VALUE["items"]}),
        ("none", {}),
    ],
)
def test_selections(fields: str, expected: object) -> None:
    """Lists, paths, groups and stars."""
    assert select_fields(VALUE, fields) == expected


@given(st.text(alphabet="ab(),/*", max_size=30))
def test_any_selector_selects_or_is_refused(fields: str) -> None:
    """There is no third outcome."""
    assert refusal_of(lambda: select_fields(VALUE, fields)) in {0, 400}


def test_deep_selectors_are_refused() -> None:
    """Nesting is bounded."""
    with pytest.raises(GCSError):
        select_fields(VALUE, "a(" * 50 + "b" + ")" * 50)
