from __future__ import annotations

import pytest

from asyncdata.errors import UnsupportedURLError
from asyncdata.storage.proxies import Proxies, check_proxy
from asyncdata.storage.urls import parse_http_url

RULES = Proxies(
    http="http://plain:3128",
    https="http://tls:3128",
    exceptions=(
        "internal.example, .corp.example,*.wild.example,odd:8080, 10.0.0.0/8, 192.168.1.7,[fd00::1]:443,fd01::/16,,"
    ),
)


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("http://example.org/x", "http://plain:3128"),
        ("https://example.org/x", "http://tls:3128"),
        ("https://internal.example/x", None),
        ("https://INTERNAL.example./x", None),
        ("https://deep.internal.example/x", None),
        ("https://notinternal.example/x", "http://tls:3128"),
        ("http://corp.example/x", None),
        ("http://a.corp.example/x", None),
        ("http://a.wild.example/x", None),
        ("http://odd:8080/x", None),
        ("http://odd:8081/x", "http://plain:3128"),
        ("http://10.1.2.3/x", None),
        ("http://11.1.2.3/x", "http://plain:3128"),
        ("http://192.168.1.7/x", None),
        ("http://192.168.1.70/x", "http://plain:3128"),
        ("https://[fd00::1]/x", None),
        ("https://[fd00::1]:8443/x", "http://tls:3128"),
        ("https://[fd01::99]/x", None),
        ("http://127.0.0.1:9/x", None),
        ("http://127.9.9.9:9/x", None),
        ("http://localhost:9/x", None),
        ("https://[::1]/x", None),
    ],
)
def test_the_environment_chooses_by_scheme_and_exceptions(url: str, proxy: str | None) -> None:
    """Exceptions are domains with all below them, addresses and networks, with a port or without."""
    assert RULES.choose(parse_http_url(url)[0]) == proxy


def test_a_star_excepts_everything() -> None:
    """As everywhere."""
    assert Proxies(http="http://p", exceptions="x, *").choose(parse_http_url("http://y/")[0]) is None


def test_an_option_is_for_everything() -> None:
    """Whoever names a proxy means it, for this machine too."""
    rules = Proxies(always="http://p:1", exceptions="*")
    assert rules.choose(parse_http_url("http://127.0.0.1/")[0]) == "http://p:1"


def test_no_password_is_shown() -> None:
    """A proxy's URL may hold one."""
    assert "hush" not in repr(Proxies(always="http://me:hush@p", http="http://me:hush@p"))


@pytest.mark.parametrize(
    ("value", "proxy"), [(None, None), ("", None), ("p:3128", "http://p:3128"), ("https://p", "https://p")]
)
def test_the_option_is_checked(value: object, proxy: str | None) -> None:
    """A proxy without a scheme speaks http."""
    assert check_proxy(value) == proxy


@pytest.mark.parametrize("value", ["socks5://me:hush@p:1080", "http://"])
def test_what_is_no_proxy_is_refused(value: object) -> None:
    """At once, without showing a password."""
    with pytest.raises(UnsupportedURLError) as caught:
        check_proxy(value)
    assert "hush" not in str(caught.value)


def test_the_environments_proxy_is_checked_where_it_counts() -> None:
    """It may come without a scheme; one of another kind is named where it would be used, and harms nobody else."""
    far, near = (parse_http_url(url)[0] for url in ("http://example.org/", "http://localhost/"))
    assert Proxies(http="p:3128").choose(far) == "http://p:3128"
    wrong = Proxies(http="socks5://me:hush@p:1080")
    assert wrong.choose(near) is None
    with pytest.raises(UnsupportedURLError, match="a proxy must be http://host:port") as caught:
        wrong.choose(far)
    assert "hush" not in str(caught.value)
