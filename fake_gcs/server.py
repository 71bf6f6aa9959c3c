"""``FakeGCS``: the server as a value to be entered and left, by ``async with`` or ``with``, or started and closed.

It runs on an event loop of its own in a thread of its own, so blocking clients and virtual clocks in the test do not
disturb it. The thread has ended when the block is left. A server that nobody closed is closed when the interpreter
ends: its thread is a daemon so that the interpreter gets that far.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from fake_gcs.event_loop import new_event_loop
from fake_gcs.journal import Journal
from fake_gcs.objects.bodies import pieces
from fake_gcs.objects.catalogue import Backing, Catalogue
from fake_gcs.objects.directory import DirectoryBacking
from fake_gcs.objects.memory import MemoryBacking
from fake_gcs.objects.preconditions import NOTHING
from fake_gcs.objects.record import ObjectVersion
from fake_gcs.profiles import Profile, profile_named
from fake_gcs.service import Service, ServiceOptions
from fake_gcs.serving import Limits, Serving, listen
from fake_gcs.tls import make_certificate, server_context

T = TypeVar("T")


class FakeGCS:
    """A GCS server for as long as the block lasts, or from ``start()`` to ``close()``.

    >>> with FakeGCS(buckets=["data"]) as server:
    ...     _ = server.put("data", "name", b"bytes")
    ...     server.read("data", "name")
    b'bytes'

    Args:
        root: Directory that keeps the buckets; None keeps them in memory.
        profile: ``zero``, ``regional``, ``far``, the path of a JSON or TOML file, or a ``Profile``.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        tls: Serve HTTPS with a certificate made on the fly; ``certificate`` has it.
        proxy: Answer CONNECT to any host by serving the client here over TLS, for clients whose hosts are fixed: they
            take the server as their HTTPS proxy and ``certificate`` as their authority.
        buckets: Made at the start where they do not exist.
        limits: What a client may take.
        options: How the service behaves.

    Attributes:
        url: ``http://127.0.0.1:PORT``.
        endpoint: ``127.0.0.1:PORT``, for clients that want no scheme.
        port: The port.
        journal: What was asked.
        certificate: The certificate as PEM; empty without TLS.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        profile: str | Profile = "zero",
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: bool = False,
        proxy: bool = False,
        buckets: Iterable[str] = (),
        limits: Limits | None = None,
        options: ServiceOptions | None = None,
    ) -> None:
        self._root = None if root is None else Path(root)
        self._profile = profile_named(profile) if isinstance(profile, str) else profile
        self._host = host
        self._port = port
        self._buckets = tuple(buckets)
        self._limits = limits or Limits()
        self._options = options or ServiceOptions()
        self._key = b""
        self.certificate = b""
        self._tls = tls
        self._proxy = proxy
        if tls or proxy:
            self.certificate, self._key = make_certificate(host)
        self.journal = Journal()
        self.port = port
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serving: Serving | None = None
        self._main: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._closing = False

    @property
    def endpoint(self) -> str:
        """``host:port``."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """``scheme://host:port``."""
        return f"{'https' if self._tls else 'http'}://{self.endpoint}"

    def __repr__(self) -> str:
        """Where it is, and how much was asked."""
        state = "running" if self._serving else "not running"
        return f"<FakeGCS {self.url} {self._profile.name} {state}, {len(self.journal)} requests>"

    # Entering and leaving.

    def start(self) -> Self:
        """Start, and return when connections are accepted; for where no block fits, a notebook say.

        >>> server = FakeGCS(buckets=["data"]).start()
        >>> server.names("data")
        []
        >>> server.close()

        Raises:
            OSError: The port is taken.
            RuntimeError: The server is running.
        """
        started: Future[None] = Future()
        self._start(lambda error: started.set_exception(error) if error else started.set_result(None))
        try:
            started.result()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Stop, and return when the thread has ended. Idempotent.

        A closed server may be started again; without ``root`` it begins empty.
        """
        self._stop()
        self._join()

    def __enter__(self) -> Self:
        """``start()``."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """``close()``."""
        self.close()

    async def __aenter__(self) -> Self:
        """Start, and return when connections are accepted; the caller's loop is not blocked."""
        loop = asyncio.get_running_loop()
        started: asyncio.Future[None] = loop.create_future()

        def tell(error: BaseException | None) -> None:
            if started.cancelled():
                return
            if error is None:
                started.set_result(None)
            else:
                started.set_exception(error)

        self._start(lambda error: loop.call_soon_threadsafe(tell, error))
        try:
            await started
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """``close()``."""
        self.close()

    def _start(self, tell: Callable[[BaseException | None], object]) -> None:
        if self._thread is not None:
            raise RuntimeError("this server is already running")
        self._closing = False
        self._thread = threading.Thread(target=self._run, args=(tell,), name="fake_gcs", daemon=True)
        atexit.register(self.close)
        self._thread.start()

    def _stop(self) -> None:
        self._closing = True
        loop, main = self._loop, self._main
        if loop is not None and main is not None and not loop.is_closed():
            loop.call_soon_threadsafe(main.cancel)

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            atexit.unregister(self.close)

    def _run(self, tell: Callable[[BaseException | None], object]) -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._serve(tell))
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # noqa: BLE001 -- handed to whoever started the server
            tell(error)
        finally:
            self._serving = None
            self._main = None

    async def _serve(self, tell: Callable[[BaseException | None], object]) -> None:
        listener = listen(self._host, self._port)
        try:
            context = server_context(self.certificate, self._key) if self.certificate else None
            self._open(listener, context if self._proxy else None)
            self._loop = asyncio.get_running_loop()
            self._main = asyncio.current_task()
            serving = self._serving
            if serving is None:
                raise RuntimeError("the server was not opened")
            if self._closing:  # Whoever started it gave up before there was a task to cancel.
                return
            tell(None)
            await serving.accept(listener, context if self._tls else None)
        finally:
            listener.close()
            if self._serving is not None:
                self._serving.service.close()

    def _open(self, listener: socket.socket, proxy: ssl.SSLContext | None) -> None:
        backing: Backing = MemoryBacking() if self._root is None else DirectoryBacking(self._root)
        catalogue = Catalogue(backing)
        known = {bucket.name for bucket in catalogue.buckets()}
        for name in self._buckets:
            if name not in known:
                catalogue.create_bucket(name)
        self.port = listener.getsockname()[1]
        self._serving = Serving(Service(catalogue, self._options), self._profile, self.journal, self._limits, proxy)

    # What a test does to the server.

    def _call(self, action: Callable[[Serving], T]) -> T:
        """Run something on the server's thread and wait for it."""
        serving, loop = self._serving, self._loop
        if serving is None or loop is None:
            raise RuntimeError("the server is not running")
        done: Future[T] = Future()

        def act() -> None:
            try:
                done.set_result(action(serving))
            except BaseException as error:  # noqa: BLE001 -- handed to the caller
                done.set_exception(error)

        loop.call_soon_threadsafe(act)
        return done.result()

    def create_bucket(self, name: str, settings: Mapping[str, Any] | None = None) -> None:
        """Make a bucket."""
        self._call(lambda serving: serving.service.catalogue.create_bucket(name, settings))

    def put(self, bucket: str, name: str, data: bytes, **settings: Any) -> int:
        """Make an object without the network; returns its generation. Settings are spelled as in the JSON API."""

        def act(serving: Serving) -> ObjectVersion:
            catalogue = serving.service.catalogue
            writer = catalogue.new_body()
            writer.write(data)
            checksums = writer.checksum.value()
            return catalogue.commit(bucket, name, writer.finish(), checksums, settings, conditions=NOTHING)

        return self._call(act).generation

    def read(self, bucket: str, name: str, generation: int | None = None) -> bytes:
        """The bytes of an object."""

        def act(serving: Serving) -> bytes:
            return b"".join(
                bytes(piece) for piece in pieces(serving.service.catalogue.get(bucket, name, generation).body)
            )

        return self._call(act)

    def delete(self, bucket: str, name: str) -> None:
        """Remove an object."""
        self._call(lambda serving: serving.service.catalogue.delete(bucket, name, None, NOTHING))

    def names(self, bucket: str) -> list[str]:
        """The names of the live objects, in order."""
        return self._call(lambda serving: list(serving.service.catalogue.live_names(bucket, refresh=True)[0]))

    @property
    def profile(self) -> Profile:
        """The weather. Assigning another one changes it for the requests that come."""
        return self._profile

    @profile.setter
    def profile(self, profile: str | Profile) -> None:
        changed = profile_named(profile) if isinstance(profile, str) else profile
        if self._serving is not None:
            self._call(lambda serving: serving.change_weather(changed))
        self._profile = changed
