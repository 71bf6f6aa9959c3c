"""Faults as the client sees them, over a real socket."""

from __future__ import annotations

import http.client
import socket
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest

from fake_gcs import FakeGCS, Fault, Profile, Rule
from tests.fake_gcs.asking import ask, raw
from tests.fake_gcs.virtual import answered
from tests.patience import LIMIT_S

DATA = bytes(range(256)) * 4096


@contextmanager
def weather(*rules: Rule, **fields: object) -> Iterator[FakeGCS]:
    with FakeGCS(profile=Profile(rules=rules, **fields), buckets=["bkt"]) as server:  # type: ignore[arg-type]  # any field of Profile
        server.put("bkt", "x", DATA)
        yield server


def only(fault: Fault, **fields: object) -> Rule:
    return Rule(fault=fault, media_only=True, limit=1, **fields)  # type: ignore[arg-type]  # any field of Rule


def test_statuses_with_retry_after() -> None:
    """The status, the reason and Retry-After; the next request is served; the journal names the fault."""
    for status, reason in ((408, "uploadBrokenConnection"), (429, "rateLimitExceeded"), (503, "backendError")):
        with weather(Rule(fault=Fault(kind="status", status=status, retry_after_s=2.5), limit=1)) as server:
            answer = ask(server, "GET", "/storage/v1/b/bkt/o/x")
            assert (answer.status, answer.reason, answer.headers["Retry-After"]) == (status, reason, "2.5")
            assert ask(server, "GET", "/bkt/x").body == DATA
            assert [entry.fault for entry in server.journal] == [f"status status={status} retry_after_s=2.5", ""]


def test_an_expired_token_is_401() -> None:
    """With the challenge and the reason authError; in place of bytes with the message alone."""
    with weather(only(Fault(kind="expired-token"))) as server:
        answer = ask(server, "GET", "/storage/v1/b/bkt/o/x?alt=media")
        assert (answer.status, answer.body) == (401, b"Invalid Credentials")
        assert "invalid_token" in answer.headers["WWW-Authenticate"]


def received(server: FakeGCS) -> tuple[int, type[BaseException] | None]:
    """How many bytes of the body came before the end, and what the end was."""
    connection = http.client.HTTPConnection(server.endpoint, timeout=LIMIT_S)
    try:
        connection.request("GET", "/bkt/x")
        answer = connection.getresponse()
        got = b""
        while piece := answer.read(1000):
            got += piece
        assert DATA.startswith(got)
    except (OSError, http.client.HTTPException) as error:
        got = locals().get("got", b"")
        return len(got), type(error)
    else:
        return len(got), None
    finally:
        connection.close()


def test_truncation_ends_early_after_exactly_so_many_bytes() -> None:
    """The announced length is not reached; what came is right."""
    with weather(only(Fault(kind="truncate", after_bytes=100_000))) as server:
        connection = http.client.HTTPConnection(server.endpoint, timeout=LIMIT_S)
        connection.request("GET", "/bkt/x")
        with pytest.raises(http.client.IncompleteRead) as caught:
            connection.getresponse().read()
        connection.close()
        assert caught.value.partial == DATA[:100_000]
        entry = server.journal.entries(target="bkt/x")[0]
        assert (entry.status, entry.sent, entry.fault) == (200, 100_000, "truncate after_bytes=100000")
        assert received(server) == (len(DATA), None)


def test_resets_before_and_in_the_middle() -> None:
    """The client sees ECONNRESET, without an answer or with a part of it."""
    for fault in (Fault(kind="reset"), Fault(kind="reset", after_bytes=500_000)):
        with weather(only(fault)) as server:
            count, end = received(server)
            assert end is ConnectionResetError
            assert count <= 500_000
            assert received(server) == (len(DATA), None)


def test_a_stall_is_a_silence_and_then_goes_on() -> None:
    """Nothing comes for the time, then the rest; before the head as well as in the body."""
    for fault in (Fault(kind="stall", seconds=0.3), Fault(kind="stall", seconds=0.3, after_bytes=1000)):
        (body,), elapsed_s = answered(Profile(rules=(only(fault),)), DATA, "GET /bkt/x")
        assert body == DATA
        assert elapsed_s == pytest.approx(0.3, abs=0.01)


def test_a_stall_for_ever_ends_when_the_client_leaves() -> None:
    """It holds the connection as long as the client does, and no longer; other requests go on."""
    with weather(only(Fault(kind="stall", after_bytes=70_000))) as server:
        connection = http.client.HTTPConnection(server.endpoint, timeout=LIMIT_S)
        connection.request("GET", "/bkt/x")
        answer = connection.getresponse()
        assert answer.read(70_000) == DATA[:70_000]
        assert server.journal.entries()[0].ended_s is None
        assert received(server) == (len(DATA), None)
        answer.close()
        connection.close()
        assert server.journal.wait(lambda journal: all(entry.ended_s for entry in journal))


def test_one_byte_is_flipped() -> None:
    """Exactly one byte differs, where the rule says; the announced hash is the right one, so it can be noticed."""
    with weather(only(Fault(kind="corrupt", after_bytes=777))) as server:
        bad, good = ask(server, "GET", "/bkt/x"), ask(server, "GET", "/bkt/x")
        assert good.body == DATA
        assert [place for place in range(len(DATA)) if bad.body[place] != DATA[place]] == [777]
        assert bad.headers["x-goog-hash"] == good.headers["x-goog-hash"]


def test_an_object_is_replaced_while_it_is_read() -> None:
    """The answer is the old generation to its end; the next read is another generation with other bytes."""
    with weather(only(Fault(kind="replace", after_bytes=1000))) as server:
        first, second = ask(server, "GET", "/bkt/x"), ask(server, "GET", "/bkt/x")
        assert first.body == DATA
        assert second.body == bytes(255 - byte for byte in DATA)
        assert int(second.headers["x-goog-generation"]) > int(first.headers["x-goog-generation"])


def test_an_error_is_not_stored_as_an_object() -> None:
    """A replacement that strikes an answer without the object leaves the object as it is."""
    with weather(Rule(fault=Fault(kind="replace", content="same"))) as server:
        missing = ask(server, "GET", "/bkt/x?generation=12345")
        assert missing.status == 404
        assert missing.body != DATA
        assert server.read("bkt", "x") == DATA


def test_a_drip_is_slow() -> None:
    """The rest of the body comes at the pace of the drip."""
    drip = Fault(kind="drip", after_bytes=len(DATA) - 3000, bytes_per_s=10_000)
    (body,), elapsed_s = answered(Profile(rules=(only(drip),)), DATA, "GET /bkt/x")
    assert body == DATA
    assert elapsed_s == pytest.approx(0.3, abs=0.05)


def test_a_place_behind_the_answer_does_not_strike() -> None:
    """A fault after more bytes than are sent leaves the answer alone and the journal clean."""
    with weather(only(Fault(kind="truncate", after_bytes=1 << 30))) as server:
        assert ask(server, "GET", "/bkt/x").body == DATA
        assert server.journal.faults() == []


def test_faults_on_uploads() -> None:
    """A flipped byte is stored flipped; a reset before the end leaves no object."""
    corrupt = Rule(fault=Fault(kind="corrupt", after_bytes=3), operations="storage.objects.insert", limit=1)
    with weather(corrupt) as server:
        ask(server, "PUT", "/bkt/y", b"abcdef")
        assert server.read("bkt", "y") == b"abc" + bytes([ord("d") ^ 0xFF]) + b"ef"
    reset = Rule(fault=Fault(kind="reset", after_bytes=1000), operations="storage.objects.insert", limit=1)
    with weather(reset) as server:
        with pytest.raises(OSError):  # noqa: PT011 -- reset or broken pipe, by chance
            ask(server, "PUT", "/bkt/y", bytes(100_000))
        assert server.names("bkt") == ["x"]


def test_a_fault_of_an_upload_does_not_touch_its_answer() -> None:
    """The place is counted in received bytes only: a small upload passes, and its answer comes whole."""
    rule = Rule(fault=Fault(kind="truncate", after_bytes=100), operations="storage.objects.insert")
    with weather(rule) as server:
        assert ask(server, "POST", "/upload/storage/v1/b/bkt/o?uploadType=media&name=y", b"small").json["size"] == "5"


def test_the_same_seed_gives_the_same_faults(samples: Callable[[int, int], int]) -> None:
    """Two runs with concurrent clients in different orders: each range of each object meets the same fault."""

    def run(threads: int) -> dict[str, str]:
        rules = (
            Rule(fault=Fault(kind="status"), rate=0.2),
            Rule(fault=Fault(kind="truncate", after_fraction=(0.0, 1.0)), rate=0.2, media_only=True),
        )
        with weather(*rules, seed=5) as server, ThreadPoolExecutor(threads) as pool:

            def get(number: int) -> None:
                with suppress(http.client.IncompleteRead):
                    ask(server, "GET", "/bkt/x", Range=f"bytes={number * 1000}-{number * 1000 + 999}")

            list(pool.map(get, range(samples(60, 1000))))
            return {entry.range: entry.fault for entry in server.journal}

    first = run(1)
    assert run(8) == first
    assert {fault.partition(" ")[0] for fault in first.values()} == {"", "status", "truncate"}


def test_streams_keep_their_rate_and_share_the_total() -> None:
    """A stream with 2 MB/s takes half a second for a megabyte; two that share 4 MB/s as well."""
    for profile, count in ((Profile(stream_bytes_per_s=2e6), 1), (Profile(total_bytes_per_s=4e6), 2)):
        bodies, elapsed_s = answered(profile, DATA, *["GET /bkt/x"] * count)
        assert bodies == [DATA] * count
        assert elapsed_s == pytest.approx(0.52, abs=0.05)


def test_uploads_keep_their_rate() -> None:
    """Bandwidth holds in both directions."""
    _, elapsed_s = answered(Profile(stream_bytes_per_s=2e6), b"", "PUT /bkt/y", body=DATA)
    assert elapsed_s == pytest.approx(0.52, abs=0.05)


def test_weather_changes_while_the_server_runs() -> None:
    """Assigning a profile changes what the next request meets."""
    with weather() as server:
        assert ask(server, "GET", "/bkt/x").status == 200
        server.profile = Profile(rules=(Rule(fault=Fault(kind="status")),))
        assert ask(server, "GET", "/bkt/x").status == 503
        server.profile = "zero"
        assert ask(server, "GET", "/bkt/x").status == 200


def test_a_client_that_resets_in_the_middle_harms_nobody() -> None:
    """The entry is marked broken and the server goes on."""
    with weather(stream_bytes_per_s=1e6) as server:
        host, _, port = server.endpoint.rpartition(":")
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(b"GET /bkt/x HTTP/1.1\r\nHost: h\r\n\r\n")
            sock.recv(1000)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert server.journal.wait(lambda journal: any(entry.broken for entry in journal))
        assert ask(server, "GET", "/storage/v1/b/bkt").status == 200


def test_a_fault_of_objects_does_nothing_to_other_answers() -> None:
    """Nor does it wait for a body that the client holds back."""
    rules = (Rule(fault=Fault(kind="replace")),)
    with FakeGCS(buckets=["bkt"], profile=Profile(rules=rules)) as server:
        assert ask(server, "GET", "/nobucket/x").status == 404
        assert ask(server, "GET", "/storage/v1/b?project=p").status == 200
    with FakeGCS(buckets=["bkt"], profile=Profile(rules=(Rule(fault=Fault(kind="status", status=503)),))) as server:
        head = b"PUT /bkt/x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
        assert b" 503 " in raw(server, head)
