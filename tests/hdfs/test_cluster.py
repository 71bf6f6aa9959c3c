"""The test cluster itself: it listens to this machine only, and ends with whoever started it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.architecture.tree import ROOT
from tests.hdfs.cluster import Cluster

_STARTS_ONE = """
import json, threading
from tests.hdfs.cluster import running_cluster
with running_cluster() as cluster:
    print(json.dumps([str(cluster.folder), *cluster.pids()]), flush=True)
    threading.Event().wait()
"""


def test_a_cluster_ends_with_the_process_that_started_it() -> None:
    """Killed without notice, that process leaves no server and no file behind."""
    with subprocess.Popen(
        [sys.executable, "-c", _STARTS_ONE], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as starter:
        assert starter.stdout is not None
        folder, *pids = json.loads(starter.stdout.readline())
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        starter.kill()
    wake = threading.Event()
    for _ in range(600):
        if not any(Path(f"/proc/{pid}").exists() for pid in pids) and not Path(folder).exists():
            return
        wake.wait(0.1)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    raise AssertionError(f"processes {pids} or {folder} are still there")


def test_servers_listen_on_the_loopback_interface_only(cluster: Cluster) -> None:
    """No port of the cluster can be reached from another machine."""
    own: set[str] = set()
    for pid in cluster.state["servers"].values():
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # closed since
                target = os.readlink(entry.path)
                own |= {target[len("socket:[") : -1]} if target.startswith("socket:[") else set()
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in own:
                listening.append(fields[1].rpartition(":")[0])
    assert len(listening) >= 6
    assert set(listening) == {"0100007F"}  # 127.0.0.1 in the kernel's order of bytes
