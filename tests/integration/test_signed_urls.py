"""A signed URL is a password: whatever goes wrong with what it names, no message, note, log or list shows it."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

import asyncdata as ad
from tests.integration.shards import shard_bytes

SECRET = "5ecre7"
SIGNED = f"?X-Goog-Credential=me&X-Goog-Signature={SECRET}"
RECORDS = [b"zero" * 9, b"one" * 9, b"two" * 9]
WHOLE = shard_bytes(RECORDS)
DAMAGED, BROKEN = bytearray(WHOLE), bytearray(WHOLE)
DAMAGED[len(shard_bytes(RECORDS[:1])) + 14] ^= 1
BROKEN[len(shard_bytes(RECORDS[:1])) + 2] ^= 1
FILES = {"/whole": WHOLE, "/damaged": bytes(DAMAGED), "/broken": bytes(BROKEN)}


class _Store(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """A range of a file; of a file that is not there, what was asked for."""
        data = FILES.get(self.path.partition("?")[0])
        if data is None:
            return self._answer(404, f"nothing at {self.path}".encode())
        start, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        part = data[int(start) : int(last) + 1]
        self._answer(206, part, f"bytes {start}-{int(start) + len(part) - 1}/{len(data)}")
        return None

    def _answer(self, status: int, body: bytes, place: str = "bytes */0") -> None:
        self.send_response(status)
        self.send_header("Content-Range", place)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the signature is the library's
        """Says nothing."""


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """Base URL of a web server with user name and password in it."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Store) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://me:{SECRET}@127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def refuse_two(record: bytes) -> int:
    """A user's function that fails."""
    if record.startswith(b"two"):
        raise ValueError("not this one")
    return len(record)


def of_any_length(record: bytes) -> np.ndarray:
    """Elements that fit into no batch."""
    return np.zeros(len(record))


Case = Callable[[str], ad.Dataset]
CASES: dict[str, Case] = {
    "not there": lambda base: ad.TFRecordDataset(base + "/none" + SIGNED),
    "lines that are not there": lambda base: ad.TextLineDataset(base + "/none" + SIGNED),
    "a damaged record": lambda base: ad.TFRecordDataset(base + "/damaged" + SIGNED),
    "a broken frame": lambda base: ad.TFRecordDataset(base + "/broken" + SIGNED),
    "not compressed": lambda base: ad.TFRecordDataset(base + "/whole" + SIGNED, compression_type="GZIP"),
    "a function": lambda base: ad.TFRecordDataset(base + "/whole" + SIGNED).map(refuse_two),
    "a function in a thread": lambda base: ad.TFRecordDataset(base + "/whole" + SIGNED).map(
        refuse_two, num_parallel_calls=2
    ),
    "a batch": lambda base: ad.TFRecordDataset(base + "/whole" + SIGNED).map(of_any_length).batch(3),
}


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "policy"),
    [
        *((name, "none") for name in CASES),
        ("a damaged record", "quota"),
        ("a function", "quota"),
        ("a damaged record", "skip"),
        ("a broken frame", "skip"),
        ("not there", "skip"),
    ],
)
def test_a_signature_is_never_shown(
    name: str, policy: str, store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in the error with its causes and notes, nor in the log, the quarantine list, or the stats."""
    caplog.set_level(logging.DEBUG)
    listed = tmp_path / "listed"
    most = {"quota": 0, "skip": 9}.get(policy)
    errors = None if policy == "none" else ad.ErrorPolicy(max_skipped=most, quarantine=listed, log_warning=True)
    dataset = CASES[name](store).with_options(ad.Options(errors=errors, num_workers=0))
    shown = ""
    with dataset.iterator() as elements:
        try:
            for _ in elements:
                pass
        except Exception as error:  # noqa: BLE001 -- whatever it is
            shown = "".join(traceback.format_exception(error)) + repr(error)
            assert "127.0.0.1" in shown
        else:
            assert policy == "skip", "it went well"
        shown += repr(elements.stats()) + repr(elements)
    shown += caplog.text
    if policy != "none":
        assert "127.0.0.1" in listed.read_text()
        shown += listed.read_text()
    assert SECRET not in shown


@pytest.mark.parametrize("kind", ["cache", "snapshot"])
def test_kept_elements_of_secret_urls_are_warned_of(kind: str, store: str, tmp_path: Path) -> None:
    """Such URLs are not written down, so nobody can look whether their files have changed; every run says so."""
    signed = ad.TFRecordDataset(store + "/whole" + SIGNED)
    inside = ad.Dataset.range(1).flat_map(lambda _: ad.TFRecordDataset(store + "/whole"))
    for name, dataset in (("signed", signed), ("inside", inside)):
        for _ in range(2):
            with pytest.warns(UserWarning, match=r"cannot notice changes of http://\S*/whole\S* .*secret") as told:
                assert list(getattr(dataset, kind)(str(tmp_path / name))) == RECORDS
            assert SECRET not in str(told[0].message)
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes()
