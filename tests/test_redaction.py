"""Secrets in URLs, and in sentences about URLs, are left out; everything else stays as it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.redaction import redact


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "https://me:pw@h/a?X-Goog-Signature=abcd&x=1&token=tt",
            "https://h/a?X-Goog-Signature=…&x=1&token=…",
        ),
        ("https://h/a?X-Amz-Security-Token=a%2Fb/c+d==&x=1#end", "https://h/a?X-Amz-Security-Token=…&x=1#end"),
        ("https://token@h/a", "https://h/a"),
        ("http://me:p@ss@h:80/a@b", "http://h:80/a@b"),
        ("sftp://me:pw@h/a", "sftp://h/a"),
        ("TFRecordDataset(https://h/a?sig=ab)", "TFRecordDataset(https://h/a?sig=…)"),
        ("[url https://h/a?Signature=ab, offset 5]", "[url https://h/a?Signature=…, offset 5]"),
        ("no such key /o?X-Goog-Signature=ab.", "no such key /o?X-Goog-Signature=…."),
        ("https://h/a?sig=a)b,c", "https://h/a?sig=…"),
        ("webhdfs://h/a?delegation=ab;user=me", "webhdfs://h/a?delegation=…"),
    ],
)
def test_secrets_are_left_out(text: str, shown: str) -> None:
    """Signatures, tokens, user names and passwords, wherever a URL stands; once and twice are the same."""
    assert redact(text) == shown
    assert redact(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "/plain/path",
        "gs://bucket/a@b?c=d",
        "abfs://container@account.dfs.core.windows.net/a",
        "hdfs://me@namenode/a",
        "expected key=value, got token=3",
        "https://h/a?page=1&keys=2#part",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    """Names in paths, an option that is called key, a container's name."""
    assert redact(text) == text


@given(
    before=st.text(max_size=20),
    secret=st.text(alphabet="abcdef0123456789%+/-_~.", min_size=8).map(lambda text: text + "0"),
    behind=st.sampled_from(["", "&x=1", "#f", ", offset 1]", ")", "\n", "'"]),
)
def test_no_character_of_a_signature_is_shown(before: str, secret: str, behind: str) -> None:
    """Whatever stands around it."""
    assert secret not in redact(f"https://h/{before}?Expires=1&Signature={secret}{behind}").replace(before, "")
