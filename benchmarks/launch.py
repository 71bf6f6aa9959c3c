"""Runs one piece of work in a process of its own, and finds the interpreters that have a peer installed."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.datasets import Shards
from benchmarks.servers import REPOSITORY, here
from benchmarks.workloads import Epoch, Work

PEERS_PYTHON: Final = REPOSITORY / ".cache" / "peers" / "bin" / "python"
"""Where ``python -m benchmarks.end_to_end`` looks for peers that the environment it runs in lacks."""

_TIMEOUT_S: Final = 300


def run_here(work: Work) -> list[Epoch]:
    """The work done by this library, one result per epoch."""
    command = [sys.executable, "-m", "benchmarks.workloads", json.dumps(dataclasses.asdict(work))]
    return [Epoch(**values) for values in run_json(command)]


def run_peer(python: str, script: str, work: Work, timeout_s: float | None = None) -> list[Epoch]:
    """The work done by a peer, one result per epoch.

    Args:
        python: An interpreter that has the peer.
        script: Name of a file in ``benchmarks/peers``.
        work: What to do.
        timeout_s: When to stop it; some minutes unless given.

    Raises:
        subprocess.TimeoutExpired: It was stopped.
    """
    path = REPOSITORY / "benchmarks" / "peers" / script
    # OpenSSL and rustls both look there.
    trusted = {"SSL_CERT_FILE": work.ca_file} if work.ca_file else {}
    epochs = run_json([python, str(path), json.dumps(dataclasses.asdict(work))], trusted, timeout_s)
    shards = Shards(kind=work.kind, shards=work.shards, records=work.records)
    expected = shards.numbers * shards.repeats, shards.repeats * sum(range(shards.numbers))
    for values in epochs:
        if (values["records"], values.pop("checksum")) != expected:
            raise RuntimeError(f"{script} read {values['records']} of {expected[0]} records, or others than it should")
    return [Epoch(**values) for values in epochs]


def run_json(
    command: Sequence[str], environment: Mapping[str, str] | None = None, timeout_s: float | None = None
) -> Any:
    """Runs a program that finds this folder; returns what it prints last, as JSON."""
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        text=True,
        timeout=timeout_s or _TIMEOUT_S,
        check=True,
        env={**here(), **(environment or {})},
    )
    return json.loads(done.stdout.splitlines()[-1])


def find_python(modules: tuple[str, ...], wish: str | None) -> str | None:
    """An interpreter that can import all of `modules`: the one wished for, this one, or that of the peers."""
    if wish is None and all(importlib.util.find_spec(module) for module in modules):
        return sys.executable
    python = Path(wish) if wish is not None else PEERS_PYTHON
    if not python.exists():
        return None
    looks = "; ".join(f"assert importlib.util.find_spec({module!r})" for module in modules)
    found = subprocess.run([str(python), "-c", f"import importlib.util; {looks}"], capture_output=True, check=False)
    return str(python) if found.returncode == 0 else None
