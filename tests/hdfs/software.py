"""Hadoop for the test cluster: the servers' jars, fetched once into a cache folder outside the repository.

Apache publishes no Hadoop on PyPI, but the source package of pyspark 2.4.8 carries every jar of Hadoop 2.7.3, the
NameNode and the DataNode among them. It is fetched by pip, pinned by its digest, and only the jars that are needed are
kept. WebHDFS wants Jersey 1, which is not among them: Debian has it as packages. Without them the cluster runs without
WebHDFS.

::

    $XDG_CACHE_HOME/asyncdata/hadoop-2.7.3/*.jar       complete, or not there at all: it is renamed into place
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

_REQUIREMENT: Final = "pyspark==2.4.8 --hash=sha256:3a19b71b8dc8dd91ebc943604a05e1ab01bce052456d42937035632d852d78dc\n"
# What its setup script needs to be built; the newest one refuses to run it.
_BUILD_CONSTRAINT: Final = "pypandoc==1.5\n"
_FETCH_TIMEOUT_S: Final = 600
_JARS: Final = (
    "activation-*",
    "apacheds-*",
    "api-asn1-*",
    "api-util-*",
    "commons-*",
    "guava-*",
    "hadoop-annotations-*",
    "hadoop-auth-*",
    "hadoop-common-*",
    "hadoop-hdfs-*",
    "htrace-core-3*",
    "httpclient-*",
    "httpcore-*",
    "jackson-*-asl-*",
    "javax.servlet-api-*",
    "javax.ws.rs-api-*",
    "jaxb-api-*",
    "jetty-*",
    "jsp-api-*",
    "jsr305-*",
    "leveldbjni-*",
    "log4j-*",
    "netty-*",
    "protobuf-java-2*",
    "slf4j-*",
    "stax-*",
    "xercesImpl-*",
    "xmlenc-*",
)
_JAVAX_RS: Final = "javax.ws.rs-api-*"  # Jersey 1 brings an older one of its own
_DEBIAN_JARS: Final = (
    "jersey1-core.jar",
    "jersey1-json.jar",
    "jersey1-server.jar",
    "jersey1-servlet.jar",
    "jsr311-api.jar",
)
DEBIAN_PACKAGES: Final = (
    "libjersey1-core-java",
    "libjersey1-json-java",
    "libjersey1-server-java",
    "libjersey1-servlet-java",
    "libjsr311-api-java",
)
_DEBIAN_FOLDER: Final = Path("/usr/share/java")


class UnavailableError(Exception):
    """The cluster cannot run on this machine; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """What the servers run on.

    Attributes:
        java: The Java program.
        class_path: Every jar.
        webhdfs: Whether the jars that WebHDFS needs are among them.
    """

    java: str
    class_path: tuple[str, ...]
    webhdfs: bool


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/asyncdata``, or the same in ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "asyncdata"


def prepare(*, install_packages: bool = False, note: Callable[[str], None] = lambda _: None) -> Software:
    """Finds Java and the jars; fetches what is not in the cache.

    Args:
        install_packages: Debian's packages for WebHDFS may be installed. They are in any case where ``CI=true``; only
            root can, and only where there is ``apt-get``.
        note: Is told what takes long.

    Raises:
        UnavailableError: There is no Java, or the jars cannot be fetched.
    """
    java = shutil.which("java")
    if java is None:
        raise UnavailableError("there is no java on the PATH (on Debian: apt-get install default-jre-headless)")
    folder = cache_folder() / "hadoop-2.7.3"
    try:
        with _locked(folder.with_name("hadoop-2.7.3.lock")):
            if not folder.is_dir():
                note("fetching Hadoop 2.7.3 (220 MB, once) ...")
                _fetch(folder)
    except OSError as error:
        raise UnavailableError(f"the cache folder {folder.parent} cannot be used: {error}") from None
    allowed = install_packages or os.environ.get("CI") == "true"
    if not _has_jersey() and allowed and os.geteuid() == 0 and shutil.which("apt-get"):
        note("installing Debian's packages for WebHDFS ...")
        _install_packages()
    webhdfs = _has_jersey()
    jars = [str(path) for path in sorted(folder.glob("*.jar")) if not (webhdfs and fnmatch(path.name, _JAVAX_RS))]
    if webhdfs:
        jars += [str(_DEBIAN_FOLDER / name) for name in _DEBIAN_JARS]
    return Software(java=java, class_path=tuple(jars), webhdfs=webhdfs)


def _has_jersey() -> bool:
    return all((_DEBIAN_FOLDER / name).exists() for name in _DEBIAN_JARS)


def _install_packages() -> None:
    """What fails here shows as WebHDFS being absent."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update", "-qq"], ["install", "-qq", "-y", "--no-install-recommends", *DEBIAN_PACKAGES]):
        subprocess.run(["apt-get", *words], env=environment, check=False, stdout=subprocess.DEVNULL)


def _fetch(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetch-") as name:
        work = Path(name)
        (work / "requirements.txt").write_text(_REQUIREMENT)
        (work / "constraint.txt").write_text(_BUILD_CONSTRAINT)
        constraint = str(work / "constraint.txt")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
        command += ["--no-deps", "--no-cache-dir", "--retries", "2", "--timeout", "20", "--dest", str(work)]
        command += ["--require-hashes", "-r", str(work / "requirements.txt")]
        environment = {**os.environ, "PIP_CONSTRAINT": constraint, "PIP_BUILD_CONSTRAINT": constraint}
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False, timeout=_FETCH_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            raise UnavailableError(f"pip did not fetch pyspark 2.4.8 within {_FETCH_TIMEOUT_S} s") from None
        archives = list(work.glob("pyspark-*.tar.gz"))
        if done.returncode or not archives:
            lines = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.splitlines()
            raise UnavailableError(f"pip could not fetch pyspark 2.4.8: {' '.join(lines[-1:]) or done.returncode}")
        fresh = work / "jars"
        fresh.mkdir()
        with tarfile.open(archives[0]) as archive:
            for member in archive:
                file = member.name.rpartition("/")[2]
                wanted = "/deps/jars/" in member.name and any(fnmatch(file, f"{kind}.jar") for kind in _JARS)
                source = archive.extractfile(member) if wanted else None
                if source is not None:
                    (fresh / file).write_bytes(source.read())
        if not list(fresh.glob("hadoop-hdfs-2.7.3.jar")):
            raise UnavailableError("the archive holds no hadoop-hdfs-2.7.3.jar")
        fresh.rename(folder)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
