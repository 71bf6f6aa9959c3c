from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from asyncdata.errors import AccessDeniedError, TransientStorageError, UnsupportedURLError
from asyncdata.storage.gcs.google_tokens import GoogleTokens
from asyncdata.storage.gcs.tokens import ANONYMOUS, MAX_REFUSALS, Token, Tokens, TokenSource, choose_source
from tests.patience import LIMIT_S, turns


class Source:
    """Tokens that are numbered, with an expiry of one's choice."""

    def __init__(self, *, lasts_s: float = 3600.0, fails: int = 0) -> None:
        self.now = 1000.0
        self.lasts_s = lasts_s
        self.fails = fails
        self.go = threading.Event()
        self.go.set()

    def fetch(self) -> Token:
        """A new token, when the event allows it."""
        self.go.wait(LIMIT_S)
        if self.fails:
            self.fails -= 1
            raise RuntimeError("secret inside")
        return Token(f"Bearer {self.now}", self.now + self.lasts_s)


class InTurn:
    """Each token from another source."""

    def __init__(self, *sources: Source) -> None:
        self._sources = iter(sources)

    def fetch(self) -> Token:
        """That of the next source."""
        return next(self._sources).fetch()


@asynccontextmanager
async def tokens_of(source: TokenSource | None, now: Source | None = None) -> AsyncIterator[Tokens]:
    """Tokens that are closed."""
    tokens = Tokens(source, (lambda: now.now) if now else (lambda: 0.0))
    try:
        yield tokens
    finally:
        await tokens.aclose()


async def test_one_fetch_serves_all_waiters() -> None:
    """However many wait, the token is fetched once; a cancelled waiter takes it from nobody."""
    source = Source()
    source.go.clear()
    async with tokens_of(source, source) as tokens:
        waiting = [asyncio.create_task(tokens.get()) for _ in range(20)]
        await turns(20)
        waiting[0].cancel()
        source.go.set()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(outcomes[0], asyncio.CancelledError)
        assert outcomes[1:] == [Token("Bearer 1000.0", 4600.0)] * 19
        assert tokens.fetches == 1


async def test_each_waiter_has_an_error_of_its_own() -> None:
    """To which it adds what it was about to read."""
    source = Source(fails=1)
    source.go.clear()
    async with tokens_of(source, source) as tokens:
        waiting = [asyncio.create_task(tokens.get()) for _ in range(3)]
        await turns(20)
        source.go.set()
        errors = await asyncio.gather(*waiting, return_exceptions=True)
        assert tokens.fetches == 1
        for number, error in enumerate(errors):
            assert isinstance(error, AccessDeniedError)
            error.complete(url=f"gs://bucket/{number}")
        assert [getattr(error, "url", None) for error in errors] == [f"gs://bucket/{number}" for number in range(3)]


async def test_a_token_is_renewed_before_it_expires() -> None:
    """Near its end the old token is still given while the new one is fetched; after it one waits."""
    source = Source()
    async with tokens_of(source, source) as tokens:
        first = await tokens.get()
        source.now = 4000.0
        assert await tokens.get() is first
        source.now = 4400.0
        source.go.clear()
        assert await tokens.get() is first
        assert await tokens.get() is first
        source.go.set()
        async with asyncio.timeout(LIMIT_S):
            while (token := await tokens.get()) is first:  # a renewal ahead of time is not announced
                await turns(1)
        assert token.header == "Bearer 4400.0"
        source.now = 99_999.0
        assert (await tokens.get()).header == "Bearer 99999.0"
        assert tokens.fetches == 3


async def test_a_refused_token_is_renewed_once_for_all() -> None:
    """Who comes late with the same refusal gets the token that was fetched meanwhile."""
    source = Source()
    async with tokens_of(source, source) as tokens:
        refused = await tokens.get()
        source.now = 1001.0
        renewed = await asyncio.gather(*(tokens.renew(refused) for _ in range(10)))
        assert {token.header for token in renewed} == {"Bearer 1001.0"}
        assert (await tokens.renew(refused)) is renewed[0]
        assert tokens.fetches == 2


async def test_a_renewal_ahead_of_time_that_brings_nothing_new_is_not_hurried() -> None:
    """A token server that fails, or gives the token it gave before, is asked again after a while, not at every read."""
    source = Source()
    async with tokens_of(source, source) as tokens:
        first = await tokens.get()
        source.now, source.fails = 4400.0, 99
        for _ in range(30):
            source.now += 1.0
            assert await tokens.get() is first
            if fetching := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(fetching)
        assert tokens.fetches == 1 + 3


async def test_a_new_token_that_is_refused_counts_once_for_all_who_tried_it() -> None:
    """A thousand reads at a time that meet a server which does not know the new token yet are no thousand refusals."""
    source = Source()
    async with tokens_of(source, source) as tokens:
        token = await tokens.get()
        for refusals in range(1, MAX_REFUSALS + 2):
            source.now += 1.0
            token = await tokens.renew(token)
            assert {tokens.refused(token) for _ in range(1000)} == {refusals > MAX_REFUSALS}
        tokens.accepted()
        source.now += 1.0
        assert not tokens.refused(await tokens.renew(token))


async def test_failures_hide_what_they_are_about() -> None:
    """An error of the credentials' machinery reaches nobody with its words; the next caller tries again."""
    source = Source(fails=1)
    async with tokens_of(source, source) as tokens:
        with pytest.raises(AccessDeniedError) as caught:
            await tokens.get()
        assert "secret" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert (await tokens.get()).header.startswith("Bearer")


@pytest.mark.parametrize("lasts_s", [0.0, -5.0, 3.0])
async def test_tokens_that_are_born_expired_are_not_fetched_for_every_read(lasts_s: float) -> None:
    """A token server that says nothing of use about the time is asked every few seconds, not a thousand times."""
    source = Source(lasts_s=lasts_s)
    async with tokens_of(source, source) as tokens:
        for _ in range(1000):
            await tokens.get()
        assert tokens.fetches <= 2
        source.now += 11.0
        assert (await tokens.get()).header == f"Bearer {source.now}"


async def test_a_token_server_that_hangs_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """All who wait get an error that is tried again; the next fetch is another one, and closing waits for none."""
    monkeypatch.setattr("asyncdata.storage.gcs.tokens.LONGEST_FETCH_S", 0.05)
    monkeypatch.setattr("asyncdata.storage.gcs.tokens.CLOSE_S", 0.05)
    source, hanging = Source(), Source()
    hanging.go.clear()
    try:
        async with tokens_of(InTurn(hanging, source, hanging), source) as tokens:
            outcomes = await asyncio.gather(*(tokens.get() for _ in range(5)), return_exceptions=True)
            assert {str(outcome) for outcome in outcomes} == {"the token server returned no token within 0.05 s"}
            assert all(isinstance(outcome, TransientStorageError) for outcome in outcomes)
            assert tokens.fetches == 1
            monkeypatch.setattr("asyncdata.storage.gcs.tokens.LONGEST_FETCH_S", 60.0)
            assert (await tokens.get()).header == "Bearer 1000.0"
            source.now = 99_999.0
            waiting = asyncio.create_task(tokens.get())
            await asyncio.sleep(0)
            async with asyncio.timeout(LIMIT_S):
                await tokens.aclose()
            assert isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], asyncio.CancelledError)
    finally:
        hanging.go.set()
        for thread in threading.enumerate():
            if thread.name == "asyncdata-token":
                thread.join()


@pytest.mark.parametrize("text", ["hush\r\nX: y", "hush\u2026", "hush\x00", ""])
async def test_a_token_that_cannot_be_sent_is_refused(text: str) -> None:
    """At once, and none of it is shown."""

    class Odd:
        def fetch(self) -> Token:
            return Token(text, None)

    async with tokens_of(Odd()) as tokens:
        with pytest.raises(AccessDeniedError, match="cannot be sent") as caught:
            await tokens.get()
        assert "hush" not in repr(caught.value)


async def test_anonymous_access_asks_nobody() -> None:
    """No token, no fetch."""
    async with tokens_of(None) as tokens:
        assert await tokens.get() is ANONYMOUS
        assert await tokens.renew(ANONYMOUS) is ANONYMOUS
        assert tokens.fetches == 0


def test_a_token_does_not_show_itself() -> None:
    """Neither repr nor str holds the secret."""
    assert "abc" not in repr(Token("Bearer abc", 1.0))
    assert "abc" not in f"{Token('Bearer abc', 1.0)}"


def test_choices(tmp_path: Path) -> None:
    """The documented values of the option; anything else says what is allowed."""
    assert choose_source("anon") is None
    assert isinstance(choose_source(None), GoogleTokens)
    assert isinstance(choose_source("google_default"), GoogleTokens)
    with pytest.raises(AccessDeniedError, match="names no file"):
        choose_source(str(tmp_path / "missing.json"))
    with pytest.raises(UnsupportedURLError, match="path of a credentials file") as caught:
        choose_source({"private_key": "hush"})
    assert "hush" not in str(caught.value)


class _TokenServer(BaseHTTPRequestHandler):
    """Answers like an OAuth server; ``answers`` is consumed from the front."""

    answers: list[tuple[int, dict[str, object]]]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        status, body = self.answers.pop(0) if self.answers else (200, {"access_token": "tt", "expires_in": 3600})
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the signature is the library's
        """Says nothing."""


@pytest.fixture
def token_server() -> Iterator[tuple[str, list[tuple[int, dict[str, object]]]]]:
    """(URL, answers) of an OAuth server."""
    answers: list[tuple[int, dict[str, object]]] = []
    handler = type("Handler", (_TokenServer,), {"answers": answers})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/token", answers
        server.shutdown()
        thread.join()


def service_account(folder: Path, token_uri: str, email: str = "me@example.com") -> str:
    """A service-account file with a key of its own."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = folder / f"{email}.json"
    path.write_text(
        json.dumps(
            {
                "type": "service_account",
                "client_email": email,
                "private_key": pem.decode(),
                "private_key_id": "1",
                "token_uri": token_uri,
                "project_id": "p",
            }
        )
    )
    return str(path)


@pytest.mark.sampled
async def test_a_service_account_file_gives_tokens(
    tmp_path: Path, token_server: tuple[str, list[tuple[int, dict[str, object]]]]
) -> None:
    """The file's own token server is asked, in a thread; refusals and outages are told apart."""
    url, answers = token_server
    source = choose_source(await asyncio.to_thread(service_account, tmp_path, url))
    async with tokens_of(source) as tokens:
        token = await tokens.get()
        assert token.header == "Bearer tt"
        assert token.expires_at is not None
        answers.append((400, {"error": "invalid_grant", "error_description": "no"}))
        with pytest.raises(AccessDeniedError, match="refused"):
            await tokens.renew(token)
    dead = choose_source(await asyncio.to_thread(service_account, tmp_path, "http://127.0.0.1:9/token"))
    async with tokens_of(dead) as tokens:
        with pytest.raises(TransientStorageError, match="token server"):
            await tokens.get()


@pytest.mark.parametrize(("writes", "scope"), [(False, "read_only"), (True, "read_write")])
def test_tokens_allow_no_more_than_is_needed(writes: bool, scope: str, tmp_path: Path) -> None:
    """Those for reading cannot write."""
    source = choose_source(service_account(tmp_path, "http://127.0.0.1:9/token"), writes=writes)
    assert isinstance(source, GoogleTokens)
    credentials = source._load()
    assert [name.rpartition(".")[2] for name in credentials.scopes] == [scope]
