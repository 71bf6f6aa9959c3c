"""``asyncdata doctor``: what this machine allows, what is installed, and how quickly a URL answers."""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import os
import platform
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import asyncdata
from asyncdata.command_line.result_printer import FAILED, FOUND, OK, ResultPrinter, size
from asyncdata.errors import StorageError
from asyncdata.machine import cpu_quota, memory_left, read_text, usable_cpus
from asyncdata.observe.progress import Display
from asyncdata.options import Options, read_environment, set_variables
from asyncdata.storage import Fetcher

HELP: Final = "report the limits of this machine, what is installed, and how quickly URLs answer"

_DESCRIPTORS: Final = 4096
_MANY_DESCRIPTORS: Final = 65_536
_READ_BYTES: Final = 1 << 20
_READS: Final = 3
_PACKAGES: Final = {
    "uvloop": "event loops are slower without it: pip install uvloop",
    "numpy": "",
    "aiohttp": "",
    "gcsfs": "",
    "crc32c": "",
    "opencv-python-headless": "decode_image needs it: pip install 'asyncdata[images]'",
    "hdfs-native": "hdfs:// needs it: pip install 'asyncdata[hdfs]'",
    "pyarrow": "ParquetDataset needs it: pip install 'asyncdata[parquet]'",
    "obstore": "s3:// and az:// are faster with it: pip install 'asyncdata[obstore]'",
    "tqdm": "progress shows a bar with it: pip install 'asyncdata[progress]'",
}
_PROXIES: Final = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_CREDENTIALS: Final = {
    "gs": ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST"),
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
    "az": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE"),
    "hdfs": ("HADOOP_CONF_DIR", "HADOOP_TOKEN_FILE_LOCATION", "KRB5CCNAME"),
}
"""Environment variables that hold or name credentials, by scheme. Only their names are ever shown."""
_CREDENTIAL_FILES: Final = {
    "gs": (".config/gcloud/application_default_credentials.json",),
    "s3": (".aws/credentials", ".aws/config"),
    "az": (".azure/azureProfile.json",),
}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that was looked at.

    Attributes:
        name: What.
        value: What is there.
        advice: What to do about it; empty if all is well.
        kind: ``ok``, ``note`` (something optional is missing) or ``finding`` (it will cost speed or fail).
    """

    name: str
    value: str
    advice: str = ""
    kind: str = "ok"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that only this command has."""
    parser.add_argument("url", nargs="*", metavar="URL", help="URL of a file to read")


def run(arguments: argparse.Namespace, options: Options, results: ResultPrinter, display: Display) -> int:
    """Looks at everything and tells what it saw."""
    diagnoses = [*_machine(options), *_packages(), *_credentials(options)]
    for each in diagnoses:
        _tell(each, results)
    answers, unreadable = asyncio.run(_asked(arguments.url, options, results, display))
    display.close()
    results.document(checks=[asdict(each) for each in [*diagnoses, *answers]], unreadable=unreadable)
    return FAILED if unreadable else FOUND if any(each.kind == "finding" for each in diagnoses) else OK


def _tell(each: Diagnosis, results: ResultPrinter) -> None:
    mark = {"ok": " ", "note": "-", "finding": "!"}[each.kind]
    results.say(f"{mark} {each.name:22} {each.value}{f'. {each.advice}' if each.advice else ''}")


def _machine(options: Options) -> Iterator[Diagnosis]:
    yield Diagnosis("asyncdata", f"{asyncdata.__version__} on Python {platform.python_version()}")
    yield Diagnosis("system", f"{platform.system()} {platform.release()}, {platform.machine()}")
    yield _cores()
    yield _memory(options)
    yield descriptors(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield _shared_memory()
    pages = _first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled") or "not known"
    yield Diagnosis("huge pages (shmem)", pages)
    proxies = [f"${name}" for name in set_variables([*_PROXIES, *map(str.upper, _PROXIES)])]
    yield Diagnosis("proxies", ", ".join(proxies) or "none")


def descriptors(soft: int, hard: int) -> Diagnosis:
    """Whether there can be enough open files, by the limits of the system."""
    if soft == resource.RLIM_INFINITY or soft >= _DESCRIPTORS:
        return Diagnosis("file descriptors", "unlimited" if soft == resource.RLIM_INFINITY else f"{soft:,}")
    most = _MANY_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MANY_DESCRIPTORS)
    way = f"ulimit -n {most}" if most > soft else "raise the hard limit of the system or the container"
    advice = f"Hundreds of connections and workers may need more: {way}"
    return Diagnosis("file descriptors", f"{soft:,}", advice, "finding")


def _cores() -> Diagnosis:
    cores, quota = usable_cpus(), cpu_quota()
    part = "" if quota is None or quota >= cores else f"; the container may use {quota:g}"
    return Diagnosis("cores", f"{cores}{part}")


def _memory(options: Options) -> Diagnosis:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    kilobytes = {line.partition(":")[0]: int(line.split()[1]) for line in lines}
    free = kilobytes["MemAvailable"] * 1024
    left = memory_left()
    if left is not None:
        free = min(free, left)
    value = f"{size(free)} free; a pipeline's limit is {size(options.memory_limit_bytes)}"
    if free >= 2 * options.memory_limit_bytes:
        return Diagnosis("memory", value)
    return Diagnosis("memory", value, "Lower Options.memory_limit_bytes, or end other programs", "finding")


def _shared_memory() -> Diagnosis:
    try:
        os.close(os.memfd_create("asyncdata-doctor"))
    except (AttributeError, OSError):
        free = os.statvfs("/dev/shm")  # noqa: S108 -- the mount of shared memory, of which only the size is asked
        value = f"no memfd; /dev/shm has {size(free.f_bavail * free.f_frsize)} free"
        return Diagnosis("shared memory", value, "Buffers lie in /dev/shm: it must hold the memory limit", "finding")
    return Diagnosis("shared memory", "memfd, limited by memory only")


def _first_line(path: str) -> str:
    return read_text(path).partition("\n")[0].strip()


def _packages() -> Iterator[Diagnosis]:
    needs = dict(_PACKAGES)
    if sys.version_info < (3, 14):
        needs["backports.zstd"] = "ZSTD needs it: pip install 'asyncdata[zstd]'"
    for name, use in needs.items():
        try:
            yield Diagnosis(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Diagnosis(name, "not installed", use[:1].upper() + use[1:], "note")


def _credentials(options: Options) -> Iterator[Diagnosis]:
    for scheme, names in _CREDENTIALS.items():
        found = [f"${name}" for name in set_variables(names)]
        for name in _CREDENTIAL_FILES.get(scheme, ()):
            path = Path(os.path.expanduser(f"~/{name}"))  # Path's own fails where there is no home
            if path.is_file():
                found.append(f"~/{name}{_kind_of_credentials(path)}")
        if scheme == "gs" and _first_line("/sys/class/dmi/id/product_name") == "Google Compute Engine":
            found.append("the metadata server of this machine")
        found += [f"option {name}" for name in options.storage.get(scheme, ())]
        yield Diagnosis(f"credentials for {scheme}", ", ".join(found) or "none found")


def _kind_of_credentials(path: Path) -> str:
    """The type that a credentials file of Google's states, such as ``service_account``; nothing else of it."""
    try:
        kind = json.loads(path.read_text(encoding="utf-8")).get("type")
    except (OSError, ValueError, AttributeError):
        return ""
    return f" ({kind})" if isinstance(kind, str) and kind.isidentifier() and len(kind) < 40 else ""


async def _asked(
    urls: list[str], options: Options, results: ResultPrinter, display: Display
) -> tuple[list[Diagnosis], list[str]]:
    """Reads the beginning of each URL some times."""
    fetcher = Fetcher(options, read_environment())
    answers: list[Diagnosis] = []
    unreadable: list[str] = []
    try:
        for url in urls:
            display.show(len(answers), lambda: "URLs asked")
            try:
                answers.append(await _asked_once(fetcher, url))
            except StorageError as error:
                error.complete(url=url)
                unreadable.append(str(error))
                results.complain(str(error))
            else:
                _tell(answers[-1], results)
    finally:
        await fetcher.aclose()
    return answers, unreadable


async def _asked_once(fetcher: Fetcher, url: str) -> Diagnosis:
    firsts, rates = [], []
    buffer = bytearray(_READ_BYTES)
    for _ in range(_READS):
        began = time.perf_counter()
        await fetcher.open_read(url, memoryview(buffer)[:1])
        opened = time.perf_counter()
        _, count = await fetcher.open_read(url, memoryview(buffer))
        firsts.append(opened - began)
        rates.append(count / max(1e-9, time.perf_counter() - opened))
    times = ", ".join(f"{first * 1e3:.1f}" for first in firsts)
    return Diagnosis(
        url, f"first byte after {times} ms (the first with connecting); {size(max(rates))}/s in one request"
    )
