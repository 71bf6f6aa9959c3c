"""The server in a process of its own.

For measurements, for clients that hold the interpreter's lock while they wait for the network (a server in a thread of
the same process could never answer them), and for tests that kill the server.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

from fake_gcs.journal import Entry
from fake_gcs.profiles import Profile, profile_named


class FakeGCSProcess:
    """``python -m fake_gcs`` for as long as the block lasts.

    Args:
        root: Directory that keeps the buckets; None keeps them in memory.
        profile: As for ``FakeGCS``.
        port: Port to listen on; 0 takes a free one.
        tls: Serve HTTPS with a certificate made on the fly.
        proxy: Answer CONNECT, see ``FakeGCS``.
        buckets: Made at the start where they do not exist.

    Attributes:
        url: ``http://127.0.0.1:PORT``.
        pid: Process id.
        certificate: The certificate as PEM; empty without TLS and proxy.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        profile: str | Profile = "zero",
        *,
        port: int = 0,
        tls: bool = False,
        proxy: bool = False,
        buckets: Iterable[str] = (),
    ) -> None:
        self._profile = profile_named(profile) if isinstance(profile, str) else profile
        self._arguments = ["--port", str(port), *(f"--bucket={name}" for name in buckets)]
        if root is not None:
            self._arguments.append(f"--root={os.fspath(root)}")
        self._flags = [flag for flag, wanted in (("--tls", tls), ("--proxy", proxy)) if wanted]
        self._process: subprocess.Popen[str] | None = None
        self.url = ""
        self.pid = 0
        self.certificate = b""

    @property
    def endpoint(self) -> str:
        """``host:port``."""
        return self.url.partition("://")[2]

    def __enter__(self) -> Self:
        """Start, and return when connections are accepted."""
        with tempfile.TemporaryDirectory() as folder:
            profile = Path(folder) / "profile.json"
            profile.write_text(json.dumps(asdict(self._profile)))
            certificate = Path(folder) / "certificate.pem"
            command = [sys.executable, "-m", "fake_gcs", *self._arguments, *self._flags]
            command += [f"--profile={profile}", f"--certificate={certificate}"]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)  # noqa: S603 -- this package
            self._process = process
            line = process.stdout.readline().strip() if process.stdout else ""
            if not line:
                self.close()
                raise OSError("the server did not start; see what it wrote to stderr")
            self.url, self.pid = line, process.pid
            if self._flags:
                self.certificate = certificate.read_bytes()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and return when the process has ended."""
        self.close()

    def close(self) -> None:
        """Ask the process to end and wait for it."""
        if self._process is not None:
            self._process.terminate()
            self._reap()

    def kill(self) -> None:
        """End the process at once, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._reap()

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None

    def entries(self) -> list[Entry]:
        """The journal so far."""
        return [Entry(**json.loads(line)) for line in self._ask("GET", "journal").splitlines()]

    def clear_journal(self) -> None:
        """Forget the journal so far."""
        self._ask("DELETE", "journal")

    def change_profile(self, profile: str | Profile) -> None:
        """Other weather for the requests that come."""
        changed = profile_named(profile) if isinstance(profile, str) else profile
        self._ask("PUT", "profile", json.dumps(asdict(changed)).encode())

    def _ask(self, method: str, name: str, body: bytes | None = None) -> bytes:
        request = urllib.request.Request(f"{self.url}/_fake_gcs/{name}", data=body, method=method)  # noqa: S310 -- our own server
        context = None
        if self.certificate and self.url.startswith("https"):
            context = ssl.create_default_context(cadata=self.certificate.decode())
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:  # noqa: S310 -- our own server
            return bytes(answer.read())
