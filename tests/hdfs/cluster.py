"""A real HDFS for tests: one NameNode and two DataNodes of Hadoop 2.7.3 on 127.0.0.1, replication 2.

In a program::

    with running_cluster() as cluster:          # ends with the block, and with the process
        cluster.url("/folder/file")             # hdfs://127.0.0.1:port/folder/file
        cluster.kill("datanode1")

By hand::

    python -m tests.hdfs.cluster prepare        # fetches what is needed; tells what is missing
    python -m tests.hdfs.cluster start          # until stop
    python -m tests.hdfs.cluster status
    python -m tests.hdfs.cluster stop

The servers belong to a process of their own, see ``tests.hdfs.guard``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tests.hdfs.software import DEBIAN_PACKAGES, Software, UnavailableError, cache_folder, prepare
from tests.patience import LIMIT_S

_ROOT: Final = Path(__file__).parents[2]
_LIMIT_S: Final = 120.0


class Cluster:
    """A running cluster.

    Args:
        folder: Where it keeps its state and its data.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        return f"<Cluster {self.folder}>"

    @property
    def state(self) -> dict[str, Any]:
        """Ports and processes, as they are now."""
        state: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
        return state

    @property
    def webhdfs(self) -> bool:
        """Whether WebHDFS is served."""
        return bool(self.state["webhdfs"])

    @property
    def address(self) -> str:
        """Where the NameNode listens for ``hdfs://``."""
        return f"127.0.0.1:{self.state['rpc_port']}"

    @property
    def http_address(self) -> str:
        """Where the NameNode listens for ``webhdfs://``."""
        return f"127.0.0.1:{self.state['http_port']}"

    def url(self, path: str) -> str:
        """The ``hdfs://`` URL of an absolute path."""
        return f"hdfs://{self.address}{path}"

    def webhdfs_url(self, path: str) -> str:
        """The ``webhdfs://`` URL of an absolute path."""
        return f"webhdfs://{self.http_address}{path}"

    def http_ports(self) -> set[int]:
        """The ports of WebHDFS: the NameNode's and the DataNodes'."""
        url = f"http://{self.http_address}/jmx?qry=Hadoop:service=NameNode,name=NameNodeInfo"
        with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
            nodes = json.loads(json.load(answer)["beans"][0]["LiveNodes"])
        return {self.state["http_port"], *(int(node["infoAddr"].rpartition(":")[2]) for node in nodes.values())}

    def pids(self) -> list[int]:
        """The guard's process and the servers'."""
        return [self.state["guard"], *self.state["servers"].values()]

    def kill(self, name: str) -> None:
        """``kill -9`` of ``namenode``, ``datanode1`` or ``datanode2``; returns when it is gone."""
        self._tell(f"kill {name}")

    def start(self, name: str) -> None:
        """Starts a server that was killed; returns when it serves again."""
        self._tell(f"start {name}")

    def pause(self, name: str) -> None:
        """``kill -STOP``: from now on the server answers nothing, but keeps its connections."""
        self._tell(f"pause {name}")

    def resume(self, name: str) -> None:
        """``kill -CONT``."""
        self._tell(f"resume {name}")

    def replicas(self, datanode: str) -> dict[str, Path]:
        """The files in which a DataNode keeps its blocks, by their names ``blk_…``."""
        files = (self.folder / f"{datanode}-data").rglob("blk_*")
        return {path.name: path for path in files if path.suffix != ".meta"}

    def stop(self) -> None:
        """Ends everything and removes the data."""
        with contextlib.suppress(FileNotFoundError, ConnectionError):
            self._tell("stop")

    def _tell(self, command: str) -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_LIMIT_S)
            connection.connect(str(self.folder / "control"))
            connection.sendall(f"{command}\n".encode())
            answer = connection.makefile().readline().strip()
        if answer != "ok":
            raise RuntimeError(f"{command}: {answer or 'the guard ended'}")


def start_cluster(software: Software, *, lifeline: int | None = None) -> Cluster:
    """Starts a cluster; takes some ten seconds.

    Args:
        software: What it runs on.
        lifeline: The reading end of a pipe; the cluster ends when nobody holds the other end any more.

    Raises:
        UnavailableError: It did not start; the message says why.
    """
    folder = Path(tempfile.mkdtemp(prefix="asyncdata-hdfs-"))
    reading, writing = os.pipe()
    arguments = {
        "folder": str(folder),
        "software": asdict(software),
        "lifeline": lifeline,
        "ready": writing,
        "detach": True,
    }
    # What a test run marks its own processes with is not for the cluster, which outlives each single test.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ASYNCDATA_")}
    try:
        with os.fdopen(reading) as answer:
            kept = [number for number in (writing, lifeline) if number is not None]
            command = [sys.executable, "-m", "tests.hdfs.guard", json.dumps(arguments)]
            try:
                subprocess.run(command, cwd=_ROOT, env=environment, pass_fds=kept, check=True)
            finally:
                os.close(writing)
            report = answer.read()
    except subprocess.CalledProcessError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise UnavailableError(f"the cluster's guard did not start: {error}") from None
    problem = json.loads(report)["error"] if report else "its guard ended without a word"
    if problem is not None:
        raise UnavailableError(f"the cluster did not start: {problem}")
    return Cluster(folder)


@contextlib.contextmanager
def running_cluster(software: Software | None = None) -> Iterator[Cluster]:
    """A cluster that ends with the block, or with this process, however that ends."""
    reading, writing = os.pipe()
    try:
        try:
            cluster = start_cluster(software or prepare(), lifeline=reading)
        finally:
            os.close(reading)
        try:
            yield cluster
        finally:
            cluster.stop()
    finally:
        os.close(writing)


def _pointer() -> Path:
    """Where ``start`` notes which cluster ``stop`` means."""
    return cache_folder() / "cluster"


def _noted() -> Cluster | None:
    try:
        cluster = Cluster(Path(_pointer().read_text()))
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(cluster.folder / "control"))
            probe.sendall(b"\n")
    except OSError:
        return None
    return cluster


def _describe(cluster: Cluster) -> str:
    lines = [f"hdfs://{cluster.address}/"]
    lines += [f"webhdfs://{cluster.http_address}/"] if cluster.webhdfs else []
    lines += [f"{name} has process {pid}" for name, pid in cluster.state["servers"].items()]
    lines += [f"logs and data in {cluster.folder}"]
    return "\n".join(lines)


def main(words: list[str] | None = None) -> int:
    """The command line; see the module's text."""
    parser = argparse.ArgumentParser(prog="python -m tests.hdfs.cluster", description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("prepare", "start", "status", "stop"))
    parser.add_argument(
        "--install-debian-packages",
        action="store_true",
        help=f"lets apt-get install what WebHDFS needs ({' '.join(DEBIAN_PACKAGES)}); needs root",
    )
    arguments = parser.parse_args(words)
    cluster = _noted()
    if arguments.command == "stop":
        if cluster is not None:
            cluster.stop()
        _pointer().unlink(missing_ok=True)
        return 0
    if arguments.command == "status":
        print(_describe(cluster) if cluster is not None else "no cluster was started by hand")  # noqa: T201 -- a command line prints
        return 0 if cluster is not None else 1
    try:
        software = prepare(install_packages=arguments.install_debian_packages, note=_say)
        if not software.webhdfs:
            _say(f"WebHDFS will be missing; it needs: apt-get install {' '.join(DEBIAN_PACKAGES)}")
        if arguments.command == "start":
            if cluster is None:
                cluster = start_cluster(software)
                _pointer().write_text(str(cluster.folder))
            _say(_describe(cluster))
    except UnavailableError as error:
        _say(f"no HDFS on this machine: {error}")
        return 1
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201 -- a command line prints


if __name__ == "__main__":
    sys.exit(main())
