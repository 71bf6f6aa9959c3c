"""``python -m fake_gcs --root DIR --profile regional [--tls]``: prints its URL on one line when it is ready."""

from __future__ import annotations

import argparse
import contextlib
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from fake_gcs.errors import GCSError
from fake_gcs.profiles import profile_named
from fake_gcs.server import FakeGCS

_MOST_PORT: Final = 65535


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT."""
    options = _parser().parse_args(arguments)
    try:
        profile = profile_named(options.profile)
        if options.root is not None:
            options.root.mkdir(parents=True, exist_ok=True)
        if options.journal is not None:
            options.journal.open("a").close()  # at the end it would be too late to learn that it cannot be written
    except (OSError, ValueError) as error:
        return _complain(error, 2)
    _allow_many_descriptors()
    try:
        server = FakeGCS(
            options.root,
            profile,
            host=options.host,
            port=options.port,
            tls=options.tls,
            proxy=options.proxy,
            buckets=options.bucket,
        )
        with _signals() as wait_for_signal, server:
            if server.certificate and options.certificate is not None:
                options.certificate.write_bytes(server.certificate)
            print(server.url, flush=True)
            wait_for_signal()
    except GCSError as error:  # of a bucket
        return _complain(error, 2)
    except OSError as error:
        return _complain(error, 1)
    if options.journal is not None:
        with options.journal.open("w") as file:
            file.writelines(entry.as_json() + "\n" for entry in server.journal)
    return 0


def _complain(error: Exception, status: int) -> int:
    """Prints one line; returns the exit status."""
    print(f"fake-gcs: {error}", file=sys.stderr)
    return status


@contextlib.contextmanager
def _signals() -> Iterator[Callable[[], object]]:
    """What waits for SIGTERM or SIGINT, from now on.

    Through a socket: a signal that comes just before this thread begins to wait, or that another thread is given, would
    not wake it from waiting for a lock.
    """

    def note(_signal: int, _frame: FrameType | None) -> None:
        """What the system's handler has written says all."""

    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno())
        signal.signal(signal.SIGTERM, note)
        signal.signal(signal.SIGINT, note)
        try:
            yield lambda: reader.recv(1)
        finally:
            signal.set_wakeup_fd(-1)


def _allow_many_descriptors() -> None:
    """As many open connections and files as this process may allow itself."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > _MOST_PORT:
        raise argparse.ArgumentTypeError(f"{text} is not a number between 0 and {_MOST_PORT}")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fake-gcs", description="A GCS server for tests.")
    parser.add_argument("--root", type=Path, help="directory that keeps the buckets (default: in memory)")
    parser.add_argument("--profile", default="zero", help="zero, regional, far, or a .json or .toml file")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=_port, default=0, help="port to listen on; 0 takes a free one")
    parser.add_argument("--tls", action="store_true", help="serve HTTPS with a certificate made on the fly")
    parser.add_argument("--proxy", action="store_true", help="answer CONNECT by serving the client here over TLS")
    parser.add_argument("--certificate", type=Path, help="write the certificate there (with --tls or --proxy)")
    parser.add_argument("--bucket", action="append", default=[], help="make this bucket (may be repeated)")
    parser.add_argument("--journal", type=Path, help="write the journal there at the end, one JSON object a line")
    return parser


if __name__ == "__main__":
    sys.exit(main())
