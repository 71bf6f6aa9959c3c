"""What a measurement depends on besides the code: machine, versions, seed. Printed above every table."""

from __future__ import annotations

import os
import platform
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from asyncdata.machine import usable_cpus

SEED: Final = 1
"""Of every draw in the benchmarks that the caller may not choose."""

_PACKAGES: Final = ("asyncdata", "aiohttp", "gcsfs", "numpy", "opencv-python-headless", "obstore", "uvloop")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """One machine at one time.

    Attributes:
        cpu: Model of the processor.
        cpus: Processors this process may use.
        memory_gb: Main memory, GB.
        kernel: Operating system and its version.
        python: Version of the interpreter, and of the TLS library it uses.
        packages: Versions of what is measured.
        load: Processes that wanted to run in the minute before: above the number of processors, the machine is shared.
        seed: Of the random draws.
    """

    cpu: str
    cpus: int
    memory_gb: float
    kernel: str
    python: str
    packages: dict[str, str]
    load: float
    seed: int

    def __str__(self) -> str:
        packages = ", ".join(f"{name} {version}" for name, version in self.packages.items())
        return (
            f"{self.cpus} x {self.cpu}, {self.memory_gb:.0f} GB, {self.kernel}, {self.python}; {packages}; "
            f"load {self.load:.1f} at the start; seed {self.seed}. "
            "Client and server share the machine; traffic is loopback; GB = 1e9 bytes."
        )


def conditions(seed: int = SEED, packages: Sequence[str] = _PACKAGES) -> Conditions:
    """What holds here and now."""
    return Conditions(
        cpu=_cpu_model(),
        cpus=usable_cpus(),
        memory_gb=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9,
        kernel=f"{platform.system()} {platform.release()}",
        python=f"Python {platform.python_version()}, {ssl.OPENSSL_VERSION}",
        packages={name: version for name in packages if (version := _version(name))},
        load=os.getloadavg()[0],
        seed=seed,
    )


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
