"""Certificates that are not to be trusted: one clear error at once, whatever is asked for and by whichever way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import asyncdata as ad
from asyncdata.errors import StorageError, TransientStorageError
from asyncdata.options import Environment, Options
from asyncdata.storage import Fetcher
from asyncdata.types import ObjectInfo
from tests.storage.certificate import make_certificate
from tests.storage.raw_server import RawServer, honest

ASKED: dict[str, Callable[[Fetcher, str], Awaitable[object]]] = {
    "a range": lambda fetcher, url: fetcher.read(ObjectInfo(url=f"{url}/o", size=10), 0, memoryview(bytearray(10))),
    "metadata": lambda fetcher, url: fetcher.stat(f"{url}/o"),
    "a beginning": lambda fetcher, _: fetcher.open_read("gs://bucket/x", memoryview(bytearray(10))),
    "a listing": lambda fetcher, _: fetcher.glob("gs://bucket/x*"),
}


@pytest.mark.sampled
@pytest.mark.parametrize("what", ASKED)
@pytest.mark.parametrize(
    ("address", "days", "trusted", "why"),
    [
        ("127.0.0.1", (-1, 1), False, "self.signed"),
        ("127.0.0.1", (-2, -1), True, "expired"),
        ("127.0.0.1", (1, 2), True, "not yet valid"),
        ("10.1.2.3", (-1, 1), True, "not valid for '127.0.0.1'"),
    ],
)
async def test_it_is_refused_with_the_reason(
    what: str, address: str, days: tuple[int, int], trusted: bool, why: str, tmp_path: Path
) -> None:
    """Another attempt would meet the same certificate; nothing was sent to whoever has it."""
    authority, tls = make_certificate(tmp_path, address=address, days=days)
    options = {"ca_file": str(authority)} if trusted else {}
    async with RawServer(honest, tls=tls) as server:
        gs = {**options, "endpoint_url": server.url, "token": "anon"}
        fetcher = Fetcher(Options(storage={"https": options, "gs": gs}), Environment())
        try:
            with pytest.raises(StorageError, match=f"not trusted: .*{why}") as caught:
                await ASKED[what](fetcher, server.url)
            assert not isinstance(caught.value, TransientStorageError)
            assert caught.value.attempts == 1
            assert server.requests == []
        finally:
            await fetcher.aclose()


@pytest.mark.sampled
@pytest.mark.parametrize("value", [None, 0, 1, "no", ""])
@pytest.mark.parametrize("scheme", ["gs", "https", "swebhdfs"])
def test_only_false_turns_the_verification_off(scheme: str, value: object) -> None:
    """What is no bool is an error, not a decision."""
    options = ad.Options(storage={scheme: {"verify_tls": value}})
    with pytest.raises(ad.StorageError, match="'verify_tls' must be True or False"):
        list(ad.TFRecordDataset(f"{scheme}://127.0.0.1:1/x").with_options(options))
