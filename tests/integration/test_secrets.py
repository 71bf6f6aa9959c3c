"""A secret in a URL, an option or the environment appears in nothing that anybody is shown, whatever goes wrong."""

from __future__ import annotations

import asyncio
import logging
import pickle
import tempfile
import traceback
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import fsspec
import obstore
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore

import asyncdata as ad
from tests.integration.shards import shard_bytes
from tests.samples import samples

MARK = "5ecre7"
DAMAGED = bytearray(shard_bytes([b"zero" * 9, b"one" * 9]))
DAMAGED[-6] ^= 1
INNER = st.text(alphabet="abcz019-_.~", max_size=5)
SECRETS = st.builds(lambda one, two: f"{one}{MARK}{two}", INNER, INNER)
# White space and characters that end a URL in a sentence; a / and its like in front of the host would end the latter.
ODD = st.text(alphabet="az19-_.~ \t\n;\"'<>", max_size=5)
ODD_SECRETS = st.builds(lambda one, two: f"{one}{MARK}{two}", ODD, ODD)
CLOSED = "127.0.0.1:1"
"""Nobody listens there."""


class _Store(BaseHTTPRequestHandler):
    """Answers by the name that is asked for; most answers repeat what was asked."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        """As GET."""
        self.do_GET()

    def do_GET(self) -> None:
        """A status, a redirect that goes on for ever or nowhere, a damaged file, or what is no answer."""
        name = self.path.partition("?")[0].strip("/")
        if name.isdigit():
            return self._answer(int(name), f"refused: http://me:{MARK}@host{self.path}".encode())
        if name == "around":
            return self._answer(302, b"", Location=self.path)
        if name == "nowhere":
            return self._answer(302, b"", Location=f"http://me:{MARK}@{CLOSED}/x?sig={MARK}")
        if name == "unparsable":
            return self._answer(302, b"", Location=f"http://[{MARK}")
        if name == "damaged":
            size = len(DAMAGED)
            return self._answer(206, bytes(DAMAGED), **{"Content-Range": f"bytes 0-{size - 1}/{size}"})
        self.wfile.write(f"what {self.path}\r\n\r\n".encode())
        self.close_connection = True
        return None

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body)), "ETag": '"1"'}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the signature is the library's
        """Says nothing."""


@pytest.fixture(scope="module", autouse=True)
def _runtime_of_obstore() -> None:
    """obstore's threads are the process's, from the first use on; no single test is to be blamed for them."""

    async def use() -> None:
        await obstore.put_async(MemoryStore(), "x", b"")

    asyncio.run(use())


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """Host and port of the server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Store) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class OutspokenFileSystem(fsspec.AbstractFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """Fails with all that it knows."""

    protocol = "outspoken"

    def __init__(self, *, key: str = "", kind: str = "", **options: Any) -> None:
        super().__init__(**options)
        self._key, self._kind = key, kind
        if kind == "init":
            raise ValueError(f"no such key: {key}")

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Raises."""
        kinds: dict[str, type[Exception]] = {"denied": PermissionError, "missing": FileNotFoundError, "os": OSError}
        raise kinds.get(self._kind, RuntimeError)(f"{path} with {self._key}")

    def glob(self, path: str, **_: Any) -> Any:
        """Raises."""
        return self.info(path)


fsspec.register_implementation("outspoken", OutspokenFileSystem, clobber=True)

Case = tuple[str, dict[str, Any]]
NAMES = ["404", "403", "500", "412", "around", "nowhere", "unparsable", "damaged", "nonsense"]


@st.composite
def cases(draw: st.DrawFn) -> Callable[[str], Case]:
    """A URL with secrets in it, and the storage options that go with it; of the server's host."""
    user, value, end = (draw(st.one_of(SECRETS, ODD_SECRETS)) for _ in range(3))
    option = draw(SECRETS)
    name = draw(st.sampled_from(NAMES))
    kind = draw(
        st.sampled_from(["http", "https", "webhdfs", "gs", "s3", "az", "hdfs", "outspoken", "file", "memory", "wrong"])
    )
    # In names of objects a question mark is a character like any other.
    keys = ["sig=", "X-Goog-Signature=", "x=", "part2=", "se=", *([""] if kind in ("http", "https", "webhdfs") else [])]
    query = f"?generation=7&{draw(st.sampled_from(keys))}{value}"
    scheme = kind if kind != "wrong" else draw(st.sampled_from(["nosuch", "http:", "simplecache::http", "gs+x"]))
    reason = draw(st.sampled_from(["init", "denied", "missing", "os", "else"]))

    def make(host: str) -> Case:
        server = f"http://{host}"
        given: dict[str, Case] = {
            "http": (f"{user}:{value}@{host}/{name}{query}#{end}", {"headers": {"X-Token": option}}),
            "https": (f"{user}@{CLOSED}/x{query}", {"proxy": f"http://me:{option}@{CLOSED}"}),
            "webhdfs": (f"{user}:{value}@{host}/{name}{query}", {"user": option}),
            "gs": (f"bucket/{name}{query}", {"endpoint_url": f"http://me:{option}@{host}", "token": "anon"}),
            "s3": (
                f"bucket/{name}{query}",
                {"key": user, "secret": value, "token": option, "endpoint_url": server, "region": "x"},
            ),
            "az": (
                f"container/{name}{query}",
                {"account_name": "account", "sas_token": f"se=1&sig={option}", "endpoint_url": server},
            ),
            "hdfs": (f"{user}:{value}@{CLOSED}/x{query}", {}),
            "outspoken": (f"{user}:{value}@host/x{query}", {"key": option, "kind": reason}),
            "memory": (f"folder/x{query}", {}),
        }
        rest, options = given.get(kind, (f"{user}:{value}@host/x{query}", {}))
        return f"{scheme}://{rest}", options

    return make


READERS: dict[str, Callable[[str], ad.Dataset]] = {
    "records": ad.TFRecordDataset,
    "lines": ad.TextLineDataset,
    "compressed": lambda url: ad.TFRecordDataset(url, compression_type="GZIP"),
    "tar": ad.TarDataset,
    "whole": ad.FileDataset,
    "parquet": ad.ParquetDataset,
    "listed": lambda url: ad.Dataset.list_files(url).interleave(ad.TFRecordDataset),
    "pattern": lambda url: ad.Dataset.list_files(url.replace("/x?", "/x*?")),
    "interleaved": lambda url: ad.Dataset.from_tensor_slices([url]).interleave(ad.TFRecordDataset),
    "mapped": lambda url: ad.TFRecordDataset(url).map(len, 1, executor="thread").batch(2),
}


def all_of(error: BaseException) -> str:
    """Everything that an error holds, and those that it came from."""
    found, todo, seen = [], [error], set()
    while todo:
        each = todo.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        found += [str(each), repr(each), repr(each.args), repr(vars(each))]
        todo += [link for link in (each.__cause__, each.__context__) if link is not None]
        todo += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
    found += ["".join(traceback.format_exception(error)), pickle.dumps(error).decode("latin-1")]
    return "\n".join(found)


def everything_shown(dataset: ad.Dataset, caplog: pytest.LogCaptureFixture) -> tuple[str, str]:
    """Runs a dataset to its error; the error's text, and everything that anybody is shown."""
    caplog.clear()
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "listed"
        shown, text = [repr(dataset)], ""
        options = ad.Options(errors=ad.ErrorPolicy(max_skipped=0, quarantine=listed, log_warning=True))
        for each in (dataset, dataset.with_options(options)):
            try:
                with each.iterator() as elements:
                    try:
                        list(elements)
                    finally:
                        shown += [repr(elements), repr(elements.stats())]
                        with pytest.raises((ad.PipelineClosedError, StopIteration)) as again:
                            next(elements)
                        shown.append(all_of(again.value))
            except Exception as error:  # noqa: BLE001 -- whatever it is
                text = text or str(error)
                shown.append(all_of(error))
        shown.append(listed.read_text() if listed.exists() else "")
    return text, "\n".join([*shown, caplog.text])


def _options(url: str, storage: dict[str, Any], **changes: Any) -> ad.Options:
    retry = ad.RetryOptions(max_attempts=2, initial_delay_s=0.001)
    by_scheme = {url.partition("://")[0]: storage} if storage else {}
    timeouts = ad.TimeoutOptions(connect_s=1, first_byte_s=1)
    return ad.Options(
        num_workers=0, memory_limit_bytes=16 << 20, retry=retry, timeouts=timeouts, storage=by_scheme, **changes
    )


@settings(
    max_examples=samples(60, 2000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(make=cases(), reader=st.sampled_from(sorted(READERS)))
def test_no_secret_is_shown(
    make: Callable[[str], Case], reader: str, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    """For every backend and reader: not in the error or one behind it, its pickle, a log, a list, stats or a repr."""
    caplog.set_level(logging.DEBUG)
    url, storage = make(store)
    options = _options(url, storage)
    with ad.Runtime(options) as runtime:
        text, shown = everything_shown(READERS[reader](url), caplog)
        assert text or (reader in {"lines", "whole"} and "/damaged?" in url)  # any bytes will do
        shown += repr(options) + repr(runtime)
    at = shown.find(MARK)
    assert at < 0, f"{url}\n{shown[max(0, at - 800) : at + 200]}"


@pytest.mark.sampled
@pytest.mark.parametrize("isolate", [False, True], ids=["process", "isolated"])
def test_no_secret_crosses_to_where_functions_run(isolate: bool, store: str, caplog: pytest.LogCaptureFixture) -> None:
    """Errors of worker processes and of a loader process."""
    caplog.set_level(logging.DEBUG)
    with ad.Runtime(ad.Options(num_workers=1, isolate=isolate, retry=ad.RetryOptions(max_attempts=1))):
        for name in ("404", "nowhere", "damaged"):
            url = f"http://me:{MARK}@{store}/{name}?generation=7&x={MARK}#{MARK}"
            dataset = ad.TFRecordDataset(url).map(len, num_parallel_calls=1).batch(2)
            text, shown = everything_shown(dataset, caplog)
            assert f"http://{store}/{name}?generation=7&x=…#…" in text
            assert MARK not in shown


@pytest.mark.sampled
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_no_secret_of_a_proxy_is_shown(
    scheme: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """User name and password of the proxy that the environment names, reachable or not, or no URL."""
    caplog.set_level(logging.DEBUG)
    for proxy in (
        f"http://me:{MARK}@{CLOSED}",
        f"ftp://me:{MARK}@{CLOSED}",
        f"http://me:{MARK}/x@[",
        f"me:{MARK}@{CLOSED}",
    ):
        monkeypatch.setenv(f"{scheme}_proxy", proxy)
        url = f"{scheme}://example.invalid/x"
        with ad.Runtime(_options(url, {})):
            text, shown = everything_shown(ad.TFRecordDataset(url), caplog)
        assert text
        assert MARK not in shown


@pytest.mark.parametrize(
    "url", ["gs:/bucket/x?key=", "http:/me:{}@host/x", "file://me:{}@host/x", "gs://bucket/x?key={}"]
)
def test_no_secret_is_shown_where_files_are_written(url: str, tmp_path: Path) -> None:
    """A URL that is no local file is refused, not taken for a path with a strange name."""
    url = url.format(MARK) if "{}" in url else url + MARK
    (tmp_path / "x").touch()
    for write in (
        lambda: ad.TFRecordWriter(url),
        lambda: ad.write_manifest(str(tmp_path / "*"), url),
        lambda: list(ad.Dataset.range(1).cache(url)),
        lambda: list(ad.Dataset.range(1).snapshot(url)),
        lambda: ad.image_dataset_from_directory(url),
    ):
        with pytest.raises((ad.AsyncdataError, ValueError)) as caught:
            write()
        assert MARK not in all_of(caught.value)
