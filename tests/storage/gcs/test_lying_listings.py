"""Servers whose listings lie: each lie is one error at once, or is borne; no name is missing without a word."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, urlsplit

import pytest

from asyncdata.errors import StorageError, TransientStorageError
from asyncdata.options import Environment, Options
from asyncdata.storage.backends import spec_for
from asyncdata.storage.fetch import Fetcher
from asyncdata.storage.reader import RangeReader
from tests.storage.raw_server import Peer, RawServer, Request

NAMES = [f"x{number:05d}" for number in range(2500)]
Lie: TypeAlias = Callable[[dict[str, str], int], dict[str, Any]]


def page_of(names: list[str], asked: dict[str, str], **more: Any) -> dict[str, Any]:
    """One page of some names, a thousand long, behind the asked token."""
    at = int(asked.get("pageToken", "0"))
    page: dict[str, Any] = {"items": [{"name": name, "size": "1", "generation": "1"} for name in names[at:][:1000]]}
    if at + 1000 < len(names):
        page["nextPageToken"] = str(at + 1000)
    return page | more


def backwards(asked: dict[str, str], number: int) -> dict[str, Any]:
    """The last name first."""
    return page_of(NAMES[::-1], asked)


def shuffled(asked: dict[str, str], number: int) -> dict[str, Any]:
    """Pages in order, their names not."""
    page = page_of(NAMES, asked)
    random.Random(number).shuffle(page["items"])
    return page


def the_same_again(asked: dict[str, str], number: int) -> dict[str, Any]:
    """There is always another page, and it is this one."""
    return page_of(NAMES[:10], {}, nextPageToken=str(number))


def nothing_for_ever(asked: dict[str, str], number: int) -> dict[str, Any]:
    """There is always another page, and nothing on it."""
    return {"nextPageToken": str(number)}


def no_text(asked: dict[str, str], number: int) -> dict[str, Any]:
    """Half a character."""
    return page_of(["x\ud800"], asked)


@asynccontextmanager
async def lying(lie: Lie) -> AsyncIterator[tuple[RawServer, RangeReader]]:
    """A server whose every listing is what the lie makes of the question and its number."""

    async def script(request: Request, peer: Peer) -> None:
        asked = dict(parse_qsl(urlsplit(request.target).query))
        body = json.dumps(lie(asked, len(server.requests))).encode()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    async with RawServer(script) as server:
        reader = spec_for(
            "gs://b/x", Options(storage={"gs": {"endpoint_url": server.url, "token": "anon"}}), Environment()
        ).open()
        try:
            yield server, reader
        finally:
            await reader.aclose()


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("lie", "words", "most"),
    [
        (backwards, "out of order", 1),
        (shuffled, "out of order", 1),
        (the_same_again, "lead nowhere", 40),
        (nothing_for_ever, "lead nowhere", 1001),
        (no_text, "not text", 1),
    ],
)
async def test_a_listing_that_lies_is_an_error_at_once(lie: Lie, words: str, most: int) -> None:
    """Names out of order would be missing without a word, and pages that lead nowhere be asked for without end."""
    async with lying(lie) as (server, reader):
        with pytest.raises(StorageError, match=words) as caught:
            await reader.glob("gs://b/x*")
        assert not isinstance(caught.value, TransientStorageError)
        assert len(server.requests) <= most


async def test_a_name_that_is_not_text_is_an_error_of_the_pattern() -> None:
    """Where in a listing it is, is known only to those who asked for the listing."""

    async def script(request: Request, peer: Peer) -> None:
        body = json.dumps(no_text({}, 0)).encode()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    async with RawServer(script) as server:
        fetcher = Fetcher(Options(storage={"gs": {"endpoint_url": server.url, "token": "anon"}}), Environment())
        with pytest.raises(StorageError, match="not text") as caught:
            await fetcher.glob("gs://b/x*")
        assert caught.value.url == "gs://b/x*"
        await fetcher.aclose()


async def test_one_page_may_be_in_any_order() -> None:
    """Nothing lies between its names."""
    async with lying(lambda asked, _: page_of(["xb", "xa", "xa"], asked)) as (_, reader):
        assert [info.url for info in await reader.glob("gs://b/x*")] == ["gs://b/xa", "gs://b/xb"]


async def test_a_server_that_knows_no_bounds_is_listed_all_the_same() -> None:
    """Whatever span it is asked for, it begins with its first name; every name is found, and the listing ends."""
    async with lying(lambda asked, _: page_of(NAMES, asked)) as (server, reader):
        assert len(await reader.glob("gs://b/x*")) == len(NAMES)
        assert len(server.requests) <= 16 * 3 + 16


async def test_names_are_taken_as_they_are() -> None:
    """Dots, escapes and line breaks are characters of a name like any other."""
    names = sorted(["x/../../etc", "x%2F..", "x\n1", "x\x00", "x é\u2028", "x😀", "x//y", "x?generation=1#f"])
    async with lying(lambda asked, _: page_of(names, asked)) as (_, reader):
        found = await reader.glob("gs://b/**")
        assert sorted(info.url for info in found) == [f"gs://b/{name}" for name in names]
