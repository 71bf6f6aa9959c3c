"""Servers to measure against, each a process of its own that ends with whoever started it.

``fake_gcs`` is started through this module, which watches its standard input: when that ends, so does the server, even
if the benchmark was killed. nginx serves the same files where it is installed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fake_gcs.__main__ import main as fake_gcs_main
from fake_gcs.tls import make_certificate

REPOSITORY: Final = Path(__file__).resolve().parent.parent

_NGINX_CONFIG: Final = """\
daemon off;
worker_processes {workers};
error_log stderr error;
pid {home}/nginx.pid;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  sendfile on;
  keepalive_requests 1000000;
  keepalive_timeout 300s;
  default_type application/octet-stream;
  client_body_temp_path {home};
  proxy_temp_path {home};
  fastcgi_temp_path {home};
  uwsgi_temp_path {home};
  scgi_temp_path {home};
  server {{
    listen 127.0.0.1:{port}{tls};
    {certificate}
    root {root};
    rewrite ^/(?:download/)?storage/v1/b/([^/]+)/o/(.+)$ /$1/$2 break;
  }}
}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server.

    Attributes:
        url: ``http://127.0.0.1:PORT`` or ``https://…``.
        pid: Of its process; to be left out of what the client costs.
        ca_file: Its certificate, for clients to trust; empty without TLS.
        root: Where its files lie: ``root / bucket / name``.
    """

    url: str
    pid: int
    ca_file: str
    root: Path

    @property
    def port(self) -> int:
        """The port."""
        return int(self.url.rpartition(":")[2])

    def change_profile(self, profile: Mapping[str, Any]) -> None:
        """Other weather for the requests that come; ``fake_gcs`` only."""
        body = json.dumps(profile).encode()
        request = urllib.request.Request(f"{self.url}/_fake_gcs/profile", data=body, method="PUT")  # noqa: S310 -- our own server
        self._open(request).close()

    def touch(self, bucket: str, name: str) -> None:
        """Reads the first byte of an object, whose checksums the server then knows."""
        url = f"{self.url}/storage/v1/b/{bucket}/o/{name}?alt=media"
        self._open(urllib.request.Request(url, headers={"Range": "bytes=0-0"})).close()  # noqa: S310 -- our own server

    def take_journal(self) -> list[dict[str, Any]]:
        """What was asked since it was asked last, see `fake_gcs.journal.Entry`; ``fake_gcs`` only."""
        url = f"{self.url}/_fake_gcs/journal"
        with self._open(urllib.request.Request(url)) as answer:  # noqa: S310 -- our own server
            entries = [json.loads(line) for line in answer]
        self._open(urllib.request.Request(url, method="DELETE")).close()  # noqa: S310 -- our own server
        return entries

    def _open(self, request: urllib.request.Request) -> Any:
        context = ssl.create_default_context(cafile=self.ca_file) if self.ca_file else None
        return urllib.request.urlopen(request, timeout=60, context=context)  # noqa: S310 -- our own server


@contextlib.contextmanager
def fake_gcs(
    root: Path,
    profile: str | Mapping[str, Any] = "zero",
    *,
    buckets: Sequence[str] = (),
    tls: bool = False,
    cpu: int | None = None,
) -> Iterator[Server]:
    """``fake_gcs`` in a process of its own, until the block is left.

    Args:
        root: Directory that keeps the buckets.
        profile: A name, or the fields of a profile.
        buckets: Made at the start.
        tls: Serve HTTPS.
        cpu: The one processor it may use; None leaves that open.
    """
    with tempfile.TemporaryDirectory(prefix="benchmark-server-") as home:
        name = profile if isinstance(profile, str) else str(Path(home, "profile.json"))
        if not isinstance(profile, str):
            Path(name).write_text(json.dumps(profile))
        command = [sys.executable, "-m", "benchmarks.servers", "--root", str(root), "--profile", name]
        certificate = Path(home, "certificate.pem")
        if tls:
            command += ["--tls", "--certificate", str(certificate)]
        for bucket in buckets:
            command += ["--bucket", bucket]
        # A group of its own: Ctrl-C is for the benchmark, which then ends the server.
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
            env=here(),
        ) as process:
            try:
                assert process.stdout is not None
                url = process.stdout.readline().strip()
                if not url:
                    raise RuntimeError("fake_gcs did not start; its message is above")
                if cpu is not None:
                    os.sched_setaffinity(process.pid, {cpu})
                    _pin_threads(process.pid, cpu)
                yield Server(url=url, pid=process.pid, ca_file=str(certificate) if tls else "", root=root)
            finally:
                process.terminate()
                process.wait()


@contextlib.contextmanager
def nginx(root: Path, *, tls: bool = False, cpu: int | None = None, workers: int = 1) -> Iterator[Server]:
    """Nginx that serves ``root`` by sendfile from one process or several, until the block is left.

    Raises:
        FileNotFoundError: nginx is not installed.
    """
    program = find_nginx()
    if program is None:
        raise FileNotFoundError("nginx is not installed")
    with tempfile.TemporaryDirectory(prefix="benchmark-nginx-") as home:
        port = _free_port()
        certificate = ""
        if tls:
            public, key = make_certificate("127.0.0.1")
            Path(home, "certificate.pem").write_bytes(public)
            Path(home, "key.pem").write_bytes(key)
            certificate = f"ssl_certificate {home}/certificate.pem; ssl_certificate_key {home}/key.pem;"
        config = _NGINX_CONFIG.format(
            home=home, port=port, tls=" ssl" if tls else "", certificate=certificate, root=root, workers=workers
        )
        if os.geteuid() == 0:
            config = "user root;\n" + config
        Path(home, "nginx.conf").write_text(config)
        with subprocess.Popen(
            [program, "-p", home, "-e", "stderr", "-c", str(Path(home, "nginx.conf"))], process_group=0
        ) as process:
            try:
                if cpu is not None:
                    os.sched_setaffinity(process.pid, {cpu})
                _wait_until_open(process, port)
                if cpu is not None:
                    for child in _children(process.pid):
                        os.sched_setaffinity(child, {cpu})
                yield Server(
                    url=f"{'https' if tls else 'http'}://127.0.0.1:{port}",
                    pid=process.pid,
                    ca_file=str(Path(home, "certificate.pem")) if tls else "",
                    root=root,
                )
            finally:
                process.terminate()
                process.wait()


def find_nginx() -> str | None:
    """Where nginx is, if it is installed."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


def here() -> dict[str, str]:
    """The environment of a child process that finds this folder, whatever directory it is started from.

    Bytecode is kept, as that of installed packages is: else each process of this library would compile it again.
    """
    search = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, "PYTHONPATH": search, "PYTHONDONTWRITEBYTECODE": ""}


def _pin_threads(pid: int, cpu: int) -> None:
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), {cpu})


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_open(process: subprocess.Popen[bytes], port: int) -> None:
    for _ in range(200):
        if process.poll() is not None:
            raise RuntimeError(f"nginx ended with {process.returncode}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        threading.Event().wait(0.02)
    raise RuntimeError("nginx does not accept connections")


def _end_with_input() -> None:
    # Not through sys.stdin, whose lock the interpreter wants at its end.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_input, daemon=True).start()
    sys.exit(fake_gcs_main())
