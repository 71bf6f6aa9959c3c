"""Secrets in URLs, and in sentences about URLs, are left out; everything else stays as it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.redaction import mask, redact


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:pw@h/a?X-Goog-Signature=abcd&x=1&token=tt", "https://h/a?X-Goog-Signature=…&x=…&token=…"),
        ("https://h/a?X-Amz-Security-Token=a%2Fb/c+d==&part=1#end", "https://h/a?X-Amz-Security-Token=…&part=1#…"),
        ("https://token@h/a", "https://h/a"),
        ("http://me:p@ss@h:80/a@b", "http://h:80/a@b"),
        ("http://me:pa/ss@h:80/a", "http://h:80/a"),
        ("http:/me:pw@h/a", "http:/h/a"),
        ("sftp://me:pw@h/a", "sftp://h/a"),
        ("hdfs://me@namenode/a", "hdfs://namenode/a"),
        ("simplecache::s3://key:secret@bucket/a", "simplecache::s3://bucket/a"),
        ("abfs://me:pw@account/a", "abfs://account/a"),
        ("TFRecordDataset(https://h/a?sig=ab)", "TFRecordDataset(https://h/a?sig=…)"),
        ("[url https://h/a?Signature=ab, offset 5]", "[url https://h/a?Signature=…, offset 5]"),
        ("no such key /o?X-Goog-Signature=ab.", "no such key /o?X-Goog-Signature=…."),
        ("https://h/a?sig=a)b,c", "https://h/a?sig=…"),
        ("['https://h/a?sig=a', 2]", "['https://h/a?sig=…', 2]"),
        ("webhdfs://h/a?delegation=ab;user=me", "webhdfs://h/a?delegation=…"),
        ("gs://bucket/a?access_token=ab", "gs://bucket/a?access_token=…"),
        ("https://h/a?se=2020&sv=3&sr=b", "https://h/a?se=…&sv=…&sr=…"),
        ("https://h/a?5ecre7&alt=media, twice", "https://h/a?…&alt=media, twice"),
        ("https://h/a#5ecre7.", "https://h/a#…."),
    ],
)
def test_secrets_are_left_out(text: str, shown: str) -> None:
    """Values of any unknown name, values without one, user names and passwords; once and twice are the same."""
    assert redact(text) == shown
    assert redact(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "/plain/path",
        "gs://bucket/a@b#c",
        "gs://bucket/day=1/shard-?.tfrecord",
        "abfs://container@account.dfs.core.windows.net/a",
        "http://h:80/a@b:c@d",
        "expected key=value, got token=3",
        "https://h/a?generation=7&alt=media&prefix=a/b&X-Goog-Expires=60",
        "is it? yes",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    """Names in paths, what was asked for and until when, a container's name: objects can be told apart."""
    assert redact(text) == text


@given(
    before=st.text(max_size=20),
    secret=st.text(alphabet="abcdef0123456789%+/-_~.", min_size=8).map(lambda text: text + "0"),
    behind=st.sampled_from(["", "&x=1", "#f", ", offset 1]", ")", "\n", "'"]),
)
def test_no_character_of_a_signature_is_shown(before: str, secret: str, behind: str) -> None:
    """Whatever stands around it."""
    assert secret not in redact(f"https://h/{before}?Expires=1&Signature={secret}{behind}").replace(before, "")


SCHEMES = st.sampled_from(
    ["https", "http", "http:", "gs", "s3", "hdfs", "webhdfs", "ftp", "abfs", "memory", "file", "simplecache::https"]
)
INNER = st.text(alphabet="abcxyz019%+-_.~!$*(),:@'", max_size=6)
SECRETS = st.builds(lambda one, two: f"{one}5ecre7{two}", INNER, INNER)


@given(SCHEMES, SECRETS, SECRETS, SECRETS, st.sampled_from(["sig", "x", "se", "generation2", ""]), st.booleans())
def test_no_secret_of_a_url_is_shown(scheme: str, user: str, value: str, end: str, name: str, in_words: bool) -> None:
    """In front of the host, in the query with a name and without, behind it; of any scheme, also in a sentence."""
    named = name or not scheme.endswith(("http", "https", "webhdfs"))
    url = f"{scheme}://{user}:{user}@host/folder/object?generation=7&{f'{name or chr(120)}=' if named else ''}{value}"
    if scheme.endswith(("http", "https", "webhdfs")):
        url += f"#{end}"
    shown = redact(f"no answer from {url!r}, tried 3 times" if in_words else url)
    assert "5ecre7" not in shown
    assert "://host/folder/object?generation=7&" in shown
    assert redact(shown) == shown


def test_options_are_masked() -> None:
    """What an option holds is left out of a text, however deep it lies; short words and addresses are not."""
    options = {"token": "5ecre7", "anon": True, "client_kwargs": {"headers": {"Authorization": "Bearer x5ecre7"}}}
    text = "refused 5ecre7 and Bearer x5ecre7 at http://me:pw@host with /etc/ca.pem"
    places = {"endpoint_url": "http://host", "ca_file": "/etc/ca.pem"}
    assert mask(text, {**options, **places}) == "refused … and … at http://host with /etc/ca.pem"
