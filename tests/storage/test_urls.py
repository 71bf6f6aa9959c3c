from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.errors import StorageError, UnsupportedURLError
from asyncdata.storage.urls import (
    Origin,
    basic_credentials,
    join_location,
    parse_http_url,
    quoted,
    scheme_of,
    split_bucket,
)


@pytest.mark.parametrize(
    ("url", "scheme"),
    [
        ("gs://b/o", "gs"),
        ("GS://b/o", "gs"),
        ("/a/b", "file"),
        ("a/b", "file"),
        ("file:///a", "file"),
        ("local:///a", "file"),
        ("local:a", "file"),
        ("s3+x://b", "s3+x"),
        ("a:b/c", "file"),
        ("simplecache::gs://b/o", "simplecache::gs"),
        ("./gs://x", "file"),
    ],
)
def test_schemes(url: str, scheme: str) -> None:
    """What stands before ``://``; everything else is a path."""
    assert scheme_of(url) == scheme


@pytest.mark.parametrize(
    "url", ["gs://b/\ud800", "webhdfs://h:1/\udc80", "s3://b/\udc80", "/a/\ud800", "/a\0b", "file:///\0"]
)
def test_what_no_store_can_be_asked_for_is_refused(url: str) -> None:
    """Characters that are not text, and zero bytes in paths, which elsewhere are characters like any other."""
    with pytest.raises(UnsupportedURLError, match=r"not text|zero byte"):
        scheme_of(url)
    assert scheme_of("/a/\udc80") == "file"  # a byte that is not UTF-8
    assert scheme_of("gs://b/a\0b") == "gs"


def test_buckets_are_split_without_unquoting() -> None:
    """Object names are used as they are written."""
    assert split_bucket("gs://b/a%2Fb?c#d e", ("gs",)) == ("b", "a%2Fb?c#d e")
    assert split_bucket("gs://b", ("gs",)) == ("b", "")
    for bad in ("gs:///o", "s3://b/o", "b/o"):
        with pytest.raises(UnsupportedURLError):
            split_bucket(bad, ("gs",))


def test_http_urls() -> None:
    """Origin and request target, with defaults and with what may not stand in a request line quoted."""
    assert parse_http_url("http://h/a?b=c#d") == (Origin("h", 80, False), "/a?b=c")
    assert parse_http_url("https://h:8443") == (Origin("h", 8443, True), "/")
    assert parse_http_url("http://[::1]:80/a b/ä") == (Origin("::1", 80, False), "/a%20b/%C3%A4")
    assert parse_http_url("http://h/a%20b") == (Origin("h", 80, False), "/a%20b")
    assert parse_http_url("http://h//a///b?c") == (Origin("h", 80, False), "//a///b?c")
    assert Origin("::1", 80, False).authority == "[::1]"
    assert Origin("h", 80, True).authority == "h:80"
    assert parse_http_url("http://a.b.:80/") == (Origin("a.b.", 80, False), "/")
    for bad in ("http://", "ftp://h/", "http://h:port/", "http://[::1/"):
        with pytest.raises(UnsupportedURLError):
            parse_http_url(bad)


@pytest.mark.parametrize(
    "url",
    [
        "http://a..b/x",
        f"http://{'a' * 64}.com/x",
        "http://a b/x",
        "http://a\\b/x",
        "http://a\0b/x",
        "http://bücher.example/x",
        "http://\ud800/x",
        "http://h/\udc80",
        "http://h:0/x",
        "http://h/a\nb",
        "http://h/a\rb",
        "http://h/a\tb",
    ],
)
def test_what_cannot_be_asked_for_is_refused_with_its_url(url: str) -> None:
    """Hosts and ports that cannot exist, characters that are not text, and those that ``urllib`` would drop."""
    with pytest.raises(UnsupportedURLError) as caught:
        parse_http_url(url)
    assert caught.value.url == url
    with pytest.raises(StorageError, match="redirects to something that is not a web address"):
        join_location("http://h/a", url)


@pytest.mark.parametrize("url", ["http://user:hush/hush@h/x", "http://h:hush/", "http://user:hush[hush@h/x"])
def test_a_malformed_url_is_not_quoted_in_the_message(url: str) -> None:
    """What stands where the port should be may be a password."""
    with pytest.raises(UnsupportedURLError) as caught:
        parse_http_url(url)
    assert "hush" not in caught.value.message


@given(st.text(max_size=40))
def test_a_target_never_breaks_the_request_line(path: str) -> None:
    """No URL can put a space or line break into the request."""
    try:
        _, target = parse_http_url(f"http://h/{path}")
    except UnsupportedURLError:
        return
    assert not any(char.isspace() for char in target)
    assert target.isascii()
    assert target.startswith("/")


def test_other_clients_are_given_the_same_target() -> None:
    """What may not stand in a request line is quoted; a user name and a fragment are never sent with it."""
    assert quoted("http://me:pw@h:81/a b/ä?c d#e") == "http://h:81/a%20b/%C3%A4?c%20d"
    assert quoted("https://h/a%20b?c=d%2F") == "https://h/a%20b?c=d%2F"
    assert quoted("http://h") == "http://h/"


def test_a_user_name_becomes_a_header() -> None:
    """Percent signs and letters of every script mean bytes; an @ in a path or a query is no user name."""
    assert basic_credentials("http://Aladdin:open%20sesame@h/x") == "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="
    assert basic_credentials("http://j%C3%B6:ö:@h/x") == basic_credentials("http://jö:%C3%B6%3A@h/x")
    assert basic_credentials("http://token@h/x") == basic_credentials("http://token:@h/x") == "Basic dG9rZW46"
    assert basic_credentials("http://h/me:pw@x?a@b") is None


def test_locations_may_be_relative() -> None:
    """A Location header is resolved against the URL it came from."""
    assert join_location("http://h/a/b?c", "../d") == "http://h/d"
    assert join_location("http://h/a", "https://k/x") == "https://k/x"


def test_a_location_is_bytes() -> None:
    """Servers send them as they are, in whatever encoding; what the user has written stays text."""
    sent = "/\N{LATIN SMALL LETTER E WITH ACUTE}"
    for encoding, target in (("utf-8", "/%C3%A9"), ("latin-1", "/%E9")):
        found = join_location("http://h/a", sent.encode(encoding).decode("latin-1"))
        assert parse_http_url(found)[1] == target
    assert parse_http_url(join_location("http://h/\N{SNOWMAN}/a", "b"))[1] == "/%E2%98%83/b"
