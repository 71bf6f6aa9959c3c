"""Readers that do not do what they promise: an error says which method did not, and nothing that they left is data."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

import asyncdata as ad
from asyncdata.errors import StorageError
from asyncdata.options import Environment, Options, RetryOptions
from asyncdata.storage import Fetcher, RangeReader, ReaderSpec, backends
from asyncdata.storage.failures import FailureCause, ReadFailedError
from asyncdata.storage.reader_promises import check_filled, check_opened
from asyncdata.types import ObjectInfo

DATA = bytes(range(256))
INFO = ObjectInfo(url="anyones://x", size=len(DATA), version="1")


class Anyones(RangeReader):
    """Returns what a test wants; reads at most so many bytes at a time."""

    most = len(DATA)
    stated: Any = INFO
    listed: ClassVar[Any] = [INFO]
    returned: Any = None
    opened: Any = None
    closed = 0

    def __init__(self, spec: ReaderSpec) -> None:
        del spec

    async def stat(self, url: str) -> Any:
        del url
        return self.stated

    async def glob(self, pattern: str) -> Any:
        del pattern
        return self.listed

    async def read_into(self, info: ObjectInfo, start: int, buffer: memoryview, attempt: object = None) -> Any:
        del info, attempt
        data = DATA[start : start + min(len(buffer), self.most)]
        buffer[: len(data)] = data
        return len(data) if self.returned is None else self.returned

    async def open_read(self, url: str, buffer: memoryview, attempt: Any = None) -> Any:
        return self.opened or await super().open_read(url, buffer, attempt)

    async def aclose(self) -> None:
        Anyones.closed += 1


@pytest.fixture
def anyones(monkeypatch: pytest.MonkeyPatch) -> type[Anyones]:
    """A reader that keeps its promises, until a test changes an attribute."""
    monkeypatch.setattr(backends, "_REGISTERED", {})
    monkeypatch.setattr(Anyones, "closed", 0)
    kind = type("Changed", (Anyones,), {})
    ad.register_backend("anyones", ad.BackendSpec(kind))
    return kind


def fetcher() -> Fetcher:
    """Tries three times, at once."""
    return Fetcher(Options(retry=RetryOptions(max_attempts=3, initial_delay_s=0)), Environment())


@pytest.mark.parametrize("opening", [False, True])
async def test_a_reader_that_returns_less_is_asked_for_the_rest(anyones: type[Anyones], opening: bool) -> None:
    """As after a body that broke off; where it brings too little every time, the read fails."""
    anyones.most = 100
    reading = fetcher()
    buffer = bytearray(b"\xa5" * len(DATA))
    if opening:
        assert await reading.open_read(INFO.url, memoryview(buffer)) == (INFO, len(DATA))
    else:
        await reading.read(INFO, 0, memoryview(buffer))
    assert buffer == DATA
    assert reading.stats().failures == {FailureCause.SHORT_BODY: 2}
    anyones.most = 10
    with pytest.raises(ReadFailedError, match="returned 10 after a read of 236 bytes") as caught:
        await reading.read(INFO, 0, memoryview(buffer))
    assert (caught.value.url, caught.value.version, caught.value.attempts) == (INFO.url, INFO.version, 3)
    assert caught.value.offset == 3 * anyones.most
    await reading.aclose()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("stated", None, "stat returned NoneType instead of ObjectInfo"),
        ("stated", ObjectInfo(url=INFO.url, size=-1), "stat returned an ObjectInfo whose size is -1"),
        ("listed", None, "glob returned NoneType instead of a list"),
        ("listed", [INFO.url], "glob returned str instead of ObjectInfo"),
        ("returned", len(DATA) + 1, "returned 257 after a read of 256 bytes; it must"),
        ("returned", -1, "returned -1 after"),
        ("returned", "all", "returned 'all' after"),
        ("opened", INFO, "open_read returned ObjectInfo instead of"),
        ("opened", (INFO, len(DATA) + 1), "returned 257 after a read of 256 bytes; it must"),
        ("opened", (INFO.url, 1), "open_read returned str instead of ObjectInfo"),
    ],
)
async def test_what_is_not_promised_is_refused_once(anyones: type[Anyones], name: str, value: Any, words: str) -> None:
    """The error names the URL and the method."""
    setattr(anyones, name, value)
    reading, buffer = fetcher(), memoryview(bytearray(len(DATA)))
    asked = {"stated": reading.stat, "listed": reading.glob}.get(name)
    with pytest.raises(StorageError, match=words) as caught:
        await (reading.open_read(INFO.url, buffer) if asked is None else asked(INFO.url))
    assert (caught.value.url, caught.value.attempts) == (INFO.url, 1)
    await reading.aclose()


def test_what_opened_an_object_is_kept_of_a_short_read() -> None:
    """What follows is pinned to it."""
    assert check_opened((INFO, 5), 5) == (INFO, 5)
    assert check_opened((INFO, len(DATA)), 1000) == (INFO, len(DATA))
    with pytest.raises(ReadFailedError) as caught:
        check_opened((INFO, 4), 5)
    assert (caught.value.info, caught.value.filled) == (INFO, 4)
    check_filled(5, 5)


async def test_what_is_no_reader_is_refused_and_hinders_no_other_from_closing(anyones: type[Anyones]) -> None:
    """The error says what was made instead; a reader whose ``aclose`` cannot be awaited is closed like the others."""

    class NotAwaited(Anyones):
        def aclose(self) -> None:  # type: ignore[override]  # this is what is wrong with it
            raise RuntimeError("not closed")

    ad.register_backend("none", ad.BackendSpec(lambda _: object()))  # type: ignore[arg-type, return-value]  # likewise
    ad.register_backend("notawaited", ad.BackendSpec(NotAwaited))
    reading = fetcher()
    with pytest.raises(StorageError, match=r"none:// made object instead of a reader") as caught:
        await reading.stat("none://x")
    assert caught.value.url == "none://x"
    await reading.stat("notawaited://x")
    await reading.stat(INFO.url)
    with pytest.raises(RuntimeError, match="not closed"):
        await reading.aclose()
    assert anyones.closed == 1
