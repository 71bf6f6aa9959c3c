"""Secrets in URLs, and in sentences about URLs, are left out; everything else stays as it was."""

from __future__ import annotations

import pickle
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncdata as ad
from asyncdata.errors import StorageError
from asyncdata.redaction import mask, redact, redact_url
from asyncdata.storage.backends import check_storage


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
        ("no answer from http://me:my 5ecre7@h/x, tried twice", "no answer from http://h/x, tried twice"),
        ("http://h/x?alt=media;sig=5ecre7", "http://h/x?alt=media;sig=…"),
        ("gs://b/x?generation=7;sig=5ecre7", "gs://b/x?generation=7;sig=…"),
        ("http://h/x?alt=media?sig=5ecre7", "http://h/x?alt=media?sig=…"),
        ("http://h/x?sig=<5ecre7>, twice", "http://h/x?sig=…>, twice"),
        ('http://h/x?sig=a"5ecre7', "http://h/x?sig=…"),
        ("http://h/a'b?5ecre7==", "http://h/a'b?…"),
        ("http://h/x?a/b=5ecre7", "http://h/x?…"),
        ("1http://me:5ecre7@h/x and _http://me:5ecre7@h/x", "1http://h/x and _http://h/x"),
        ("https://h/a?sig=…5ecre7", "https://h/a?sig=…"),
        ("sftp://h/x?sig=5ecre7", "sftp://h/x?sig=…"),
    ],
)
def test_secrets_are_left_out(text: str, shown: str) -> None:
    """Values of any unknown name, values without one, user names and passwords; once and twice are the same."""
    assert redact(text) == shown
    assert redact(shown) == shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://me:my 5ecre7@127.0.0.1:1/x", "http://127.0.0.1:1/x"),
        ("https://me:5ecre7\n@h/x", "https://h/x"),
        ("https://my name:5ec/re7 5ecre7@h/x", "https://h/x"),
        ("s3://me:my 5ecre7@bucket/a b", "s3://bucket/a b"),
        ("http://h/x?sig=<a 5ecre7>&alt=media", "http://h/x?sig=…&alt=media"),
        ("http://h/x?a 5ecre7#b 5ecre7", "http://h/x?…#…"),
        ("gs://bucket/a b?sig=a\t5ecre7&generation=7", "gs://bucket/a b?sig=…&generation=7"),
        ("simplecache::https://h/x?sig=a 5ecre7", "simplecache::https://h/x?sig=…"),
    ],
)
def test_secrets_of_a_url_alone_are_left_out_to_its_end(url: str, shown: str) -> None:
    """White space in a URL that is not part of a sentence does not end it; neither here nor in errors about it."""
    assert redact_url(url) == shown
    assert redact_url(shown) == redact(shown) == shown
    error = StorageError(f"cannot read {url}", url=url)
    later = StorageError(f"cannot read {url}")
    later.complete(url=url)
    escaped = StorageError(f"HTTP error: {quote(url)}")
    escaped.complete(url=url)
    for each in (error, later, escaped):
        assert "5ecre7" not in f"{each!r} {each} {vars(each)}"
        assert b"5ecre7" not in pickle.dumps(each)
    assert "5ecre7" not in repr(ad.TFRecordDataset(url))


def test_errors_about_arguments_show_no_secret() -> None:
    """Nor do those of checks, whatever was given in place of what."""
    url = "http://me:my 5ecre7@h/d?sig=a 5ecre7"
    dataset = ad.Dataset.range(1)
    wrongly_named: Any = {url: 1}
    for wrong in (
        lambda: ad.Options(storage={url: {}}),
        lambda: check_storage({url.replace("://", ":/"): {}}),
        lambda: ad.Options(order_log=url),
        lambda: dataset.map(len, executor=url),
        lambda: ad.ParquetDataset("x", filters=[("url", url, 1)]),
        lambda: ad.ParquetDataset("x", filters=url),
        lambda: ad.CsvDataset("x", [1], field_delim=url),
        lambda: ad.register_backend(url, ad.BackendSpec("x.y")),
        lambda: ad.Options(**wrongly_named),
    ):
        with pytest.raises((TypeError, ValueError)) as caught:
            wrong()
        assert "5ecre7" not in str(caught.value)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "part", ["a.", "a://b:c/", "http://h:x/?", "?a=;", ";=", "://", "a:", "x?", " http://h", "#", "http://h/a?alt=1;"]
)
def test_long_texts_are_searched_once(part: str) -> None:
    """A search that began anew at each place would take hours for megabytes."""
    text = part * (500_000 // len(part))
    for each in (text, f"{text} @ ?="):
        assert redact(each)
        assert redact_url(f"http://h/{each}")


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
        "hdfs://namenode/shard-?.tfrecord",
        "sftp://h/shard-?5.tfrecord",
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
CHARACTERS = "abcxyz019%+-_.~!$*(),:@';\"<>=…"
BLANKS = " \t\n\u00a0"


def _secrets(alphabet: str) -> st.SearchStrategy[str]:
    inner = st.text(alphabet=alphabet, max_size=6)
    return st.builds(lambda one, two: f"{one}5ecre7{two}", inner, inner)


@st.composite
def _urls(draw: st.DrawFn, blanks: str) -> str:
    """In front of the host, in the query with a name and without, behind it; blanks in the values if given."""
    scheme, user, value = draw(SCHEMES), draw(_secrets(CHARACTERS + BLANKS)), draw(_secrets(CHARACTERS + blanks))
    name = draw(st.sampled_from(["sig", "x", "se", "generation2", ""]))
    is_web = scheme.endswith(("http", "https", "webhdfs"))
    key = f"{name or 'x'}=" if name or not is_web else ""
    # In a query without a name, an = may stand behind one.
    value = value if key else value.replace("=", "")
    end = f"#{draw(_secrets(CHARACTERS + blanks))}" if is_web else ""
    return f"{scheme}://{user}:{user}@host/folder/object?generation=7{draw(st.sampled_from('&;'))}{key}{value}{end}"


@given(_urls(BLANKS))
def test_no_secret_of_a_url_is_shown(url: str) -> None:
    """Of any scheme, whatever characters it has; and what is shown is shown as it is, also in a sentence."""
    shown = redact_url(url)
    assert "5ecre7" not in shown
    assert "://host/folder/object?generation=7" in shown
    assert redact_url(shown) == redact(shown) == shown


@given(_urls(""), st.booleans())
def test_no_secret_of_a_url_in_a_sentence_is_shown(url: str, quoted: bool) -> None:
    """White space ends it there, but not in front of the host."""
    shown = redact(f"no answer from {repr(url) if quoted else url}, tried 3 times")
    assert "5ecre7" not in shown
    assert "://host/folder/object?generation=7" in shown
    assert shown.endswith(" tried 3 times")
    assert redact(shown) == shown


@given(st.text(alphabet="htpgs:/@?#&;=a1 \n'…,", max_size=40))
def test_what_was_shown_once_stays(text: str) -> None:
    """Texts pass through several places that remove secrets."""
    assert redact(redact(text)) == redact(text)
    assert redact_url(redact_url(text)) == redact_url(text)


def test_options_are_masked() -> None:
    """What an option holds is left out of a text, however deep it lies; short words and addresses are not."""
    options = {"token": "5ecre7", "anon": True, "client_kwargs": {"headers": {"Authorization": "Bearer x5ecre7"}}}
    text = "refused 5ecre7 and Bearer x5ecre7 at http://me:pw@host with /etc/ca.pem"
    places = {"endpoint_url": "http://host", "ca_file": "/etc/ca.pem"}
    assert mask(text, {**options, **places}) == "refused … and … at http://host with /etc/ca.pem"
