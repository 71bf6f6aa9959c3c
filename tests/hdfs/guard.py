"""The process that owns the servers of one test cluster: starts them, restarts them on demand, ends with them.

It is started detached, by ``tests.hdfs.cluster``. What always holds: no server outlives it, for each dies with its
parent by the kernel's doing; and it does not outlive its lifeline, a pipe whose other end the tests hold. Its folder is
removed when it ends.

::

    pytest ──lifeline──▶ guard ──▶ namenode, datanode1, datanode2
             ──socket──▶ "start datanode1", "kill datanode1", "stop"
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

from tests.hdfs.settings import DATANODES, write_settings

_PACKAGE: Final = "org.apache.hadoop.hdfs.server"
_CLASSES: Final = {"namenode": f"{_PACKAGE}.namenode.NameNode"} | dict.fromkeys(
    DATANODES, f"{_PACKAGE}.datanode.DataNode"
)
# Small, quick to start, one thread for the garbage; and what Hadoop 2 touches inside of a modern Java.
_JAVA_OPTIONS: Final = (
    "-Xmx128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-XX:-UsePerfData",  # a file per process in the machine's temporary folder
    "-Djava.net.preferIPv4Stack=true",
    "-Djava.security.egd=file:/dev/urandom",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
)
# Runs a program that is killed by the kernel when the process that started it ends, in whatever way.
_WITH_PARENT: Final = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[1]) or sys.exit(1); os.execv(sys.argv[2], sys.argv[2:])"
)
_START_LIMIT_S: Final = 50.0
# The DataNode's words for: the NameNode knows me and what I have.
_REPORTED: Final = b"uccessfully sent block report"


class Guard:
    """See the module's text.

    Args:
        folder: The cluster's own, to be removed at the end.
        java: The Java program.
        class_path: Every jar.
        webhdfs: Whether WebHDFS is served.
    """

    def __init__(self, folder: Path, java: str, class_path: list[str], *, webhdfs: bool) -> None:
        self._folder = folder
        self._java = java
        self._class_path = class_path
        self._webhdfs = webhdfs
        self._http_port = 0
        self._rpc_port = 0
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        self._started = 0

    def start_all(self) -> None:
        """Formats and starts everything; returns when files can be written to both DataNodes."""
        self._rpc_port, self._http_port = _free_ports(2)
        write_settings(self._folder, rpc_port=self._rpc_port, http_port=self._http_port, webhdfs=self._webhdfs)
        logs = self._folder / "format.log"
        with logs.open("wb") as log:
            done = subprocess.run(
                [*self._command("namenode"), "-format", "-force", "-nonInteractive"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=False,
                timeout=_START_LIMIT_S,
            )
        if done.returncode:
            raise RuntimeError(f"the NameNode could not be formatted: {_tail(logs)}")
        # Started together: DataNodes knock until the NameNode opens.
        for name in _CLASSES:
            self._spawn(name)
        deadline = time.monotonic() + _START_LIMIT_S
        for name in _CLASSES:
            self._wait(name, deadline)
        self._write_state()

    def start(self, name: str) -> None:
        """Starts one server again and waits until it serves."""
        self._spawn(name)
        self._wait(name, time.monotonic() + _START_LIMIT_S)
        self._write_state()

    def kill(self, name: str) -> None:
        """``kill -9``, and waits for the end."""
        server = self._servers[name]
        server.kill()
        server.wait()

    def pause(self, name: str) -> None:
        """``kill -STOP``, and waits until every thread stands: on a busy machine they go on for a while."""
        server = self._servers[name]
        server.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, server.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self, name: str) -> None:
        """``kill -CONT``; nothing happens where the server runs."""
        self._servers[name].send_signal(signal.SIGCONT)

    def stop_all(self) -> None:
        """Ends every server and removes the folder; nothing they hold is needed any more."""
        for server in self._servers.values():
            server.kill()
        for server in self._servers.values():
            server.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _command(self, name: str) -> list[str]:
        class_path = os.pathsep.join([str(self._folder / "conf" / name), *self._class_path])
        launcher = [sys.executable, "-S", "-c", _WITH_PARENT, str(os.getpid())]
        # Web applications are unpacked there.
        temporary = f"-Djava.io.tmpdir={self._folder / 'tmp'}"
        return [*launcher, self._java, *_JAVA_OPTIONS, temporary, "-cp", class_path, _CLASSES[name]]

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _spawn(self, name: str) -> None:
        running = self._servers.get(name)
        if running is not None and running.poll() is None:
            raise RuntimeError(f"{name} is running")
        log = self._log(name)
        if log.exists():
            self._started += 1
            log.rename(log.with_suffix(f".{self._started}.log"))
        with log.open("wb") as file:
            self._servers[name] = subprocess.Popen(
                self._command(name), stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )

    def _wait(self, name: str, deadline: float) -> None:
        """Until the server serves; Hadoop tells nobody, so its log and its state are looked at again and again."""
        wake = threading.Event()
        while not self._serves(name):
            code = self._servers[name].poll()
            if code is not None:
                raise RuntimeError(f"{name} ended with {code}: {_tail(self._log(name))}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{name} does not serve after {_START_LIMIT_S:.0f} s: {_tail(self._log(name))}")
            wake.wait(0.1)

    def _serves(self, name: str) -> bool:
        if name != "namenode":
            return _REPORTED in self._log(name).read_bytes()
        try:
            url = f"http://127.0.0.1:{self._http_port}/jmx?qry=Hadoop:service=NameNode,name=NameNodeInfo"
            with urllib.request.urlopen(url, timeout=2) as answer:
                beans = json.load(answer)["beans"]
        except OSError:
            return False
        return bool(beans) and beans[0].get("Safemode") == "" and len(json.loads(beans[0]["LiveNodes"])) > 0

    def _write_state(self) -> None:
        state = {
            "rpc_port": self._rpc_port,
            "http_port": self._http_port,
            "webhdfs": self._webhdfs,
            "guard": os.getpid(),
            "servers": {name: server.pid for name, server in self._servers.items()},
        }
        fresh = self._folder / "state.new"
        fresh.write_text(json.dumps(state))
        fresh.rename(self._folder / "state.json")


def _free_ports(count: int) -> list[int]:
    """Ports that nobody has, from below those that the kernel gives out: some seconds pass until they are taken."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    candidates = range(max(1024, lowest - 10_000), lowest) or range(10_000, 60_000)
    free: list[int] = []
    for port in random.SystemRandom().sample(candidates, min(200, len(candidates))):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            free.append(port)
        if len(free) == count:
            return free
    raise RuntimeError(f"none of {candidates} is free")


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    telling = [line for line in lines if "Exception" in line or "ERROR" in line or "FATAL" in line]
    return " | ".join((telling or lines)[-3:])


def _serve(guard: Guard, listener: socket.socket, lifeline: int | None) -> None:
    """Obeys until it is told to stop, or until the lifeline ends."""
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        if lifeline is not None:
            selector.register(lifeline, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not listener:
                    return
                connection, _ = listener.accept()
                with connection:
                    word, _, name = connection.makefile().readline().strip().partition(" ")
                    answer = "ok"
                    if word == "stop":
                        guard.stop_all()
                    else:
                        commands = {
                            "start": guard.start,
                            "kill": guard.kill,
                            "pause": guard.pause,
                            "resume": guard.resume,
                        }
                        try:
                            commands[word](name)
                        except (KeyError, RuntimeError) as error:
                            answer = f"{type(error).__name__}: {error}"
                    with contextlib.suppress(OSError):
                        connection.sendall(answer.encode() + b"\n")
                    if word == "stop":
                        return


def main(arguments: dict[str, Any]) -> None:
    """Runs one cluster; reports over the descriptor ``ready`` with one line of JSON when it serves, or why not."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    folder = Path(arguments["folder"])
    software = arguments["software"]
    guard = Guard(folder, software["java"], software["class_path"], webhdfs=software["webhdfs"])
    try:
        with socket.socket(socket.AF_UNIX) as listener, os.fdopen(arguments["ready"], "w") as ready:
            listener.bind(str(folder / "control"))
            listener.listen()
            try:
                guard.start_all()
            except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                ready.write(json.dumps({"error": f"{type(error).__name__}: {error}"}))
                return
            ready.write(json.dumps({"error": None}))
            ready.close()
            _serve(guard, listener, arguments["lifeline"])
    finally:
        guard.stop_all()


def detach(arguments: dict[str, Any]) -> None:
    """Starts this program again in a session of its own; its parent is then the system's first process."""
    kept = [number for number in (arguments["ready"], arguments["lifeline"]) if number is not None]
    command = [sys.executable, "-m", "tests.hdfs.guard", json.dumps({**arguments, "detach": False})]
    log = Path(arguments["folder"], "guard.log")
    with log.open("wb") as file:
        subprocess.Popen(
            command, start_new_session=True, pass_fds=kept, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    (detach if given["detach"] else main)(given)
