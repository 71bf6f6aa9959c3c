"""``python -m benchmarks.referee``: suites that nobody here wrote, against ``fake_gcs``; TensorFlow, against pipelines.

gcsfs's own tests and the retry conformance suite of Google's client are taken from source archives and run unmodified,
each in an environment of its own under ``.cache/referee``, against a fresh server. Then the scenarios of the real
clients run, with whichever of them this environment has; then, where TensorFlow is, pipelines on which it has to agree.
Arguments go to gcsfs's pytest.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import venv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.servers import REPOSITORY
from fake_gcs import FakeGCSProcess

_CACHE: Final = REPOSITORY / ".cache" / "referee"
_PROGRAMS: Final = _CACHE / "bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Tests in the source archive of a package.

    Attributes:
        package: Its name on PyPI.
        version: A release whose archive has its tests.
        tests: What pytest is given.
        needs: Packages that the tests import beside their own.
        left_out: Tests that cannot run here, with the reason.
        fewest: So many pass on a faithful server; fewer mean that the suite did not really run.
        options: For pytest.
        variables: For the environment; ``STORAGE_EMULATOR_HOST`` is set for all.
    """

    package: str
    version: str
    tests: str
    needs: tuple[str, ...]
    left_out: Mapping[str, str]
    fewest: int
    options: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def stem(self) -> str:
        """What the archive and its folder are called."""
        return f"{self.package.replace('-', '_')}-{self.version}"


_GCSFS: Final = Suite(
    package="gcsfs",
    version="2026.3.0",  # the last one whose archive has its tests
    tests="gcsfs/tests",
    needs=("pytest-asyncio", "pytest-subtests", "requests", "google-cloud-storage"),
    left_out={
        "gcsfs/tests/test_core.py::test_sign": "signs with a key of Google's",
        "gcsfs/tests/test_credentials.py::test_credentials_from_raw_token": "asks Google whether a token is good",
    },
    fewest=300,
    variables={"GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"},
)
_GOOGLE: Final = Suite(
    package="google-cloud-storage",
    version="3.17.1",
    tests="tests/conformance",
    needs=("pytest-xdist", "requests"),
    left_out={
        "tests/conformance/test_bidi_reads.py": "gRPC, which fake_gcs does not speak",
        "tests/conformance/test_bidi_writes.py": "gRPC, which fake_gcs does not speak",
    },
    fewest=560,
    # Most of the time is spent waiting for the next try. The archive has no settings, and those of this repository,
    # in which it lies, are not meant.
    options=("--numprocesses=4", f"-c{os.devnull}", "--rootdir=."),
    # The suite starts a server of Google's with docker; here a docker that does nothing leaves the place to fake_gcs.
    variables={"PATH": f"{_PROGRAMS}{os.pathsep}{os.environ.get('PATH', os.defpath)}"},
)


def main(arguments: list[str]) -> int:
    """Run everything; 0 when nothing failed."""
    failed = _run(_GCSFS, arguments)
    failed = _run(_GOOGLE, []) or failed
    command = [sys.executable, "-m", "pytest", "-rs", "-q", "tests/fake_gcs/clients"]
    failed = subprocess.run(command, cwd=REPOSITORY, check=False).returncode or failed
    # TensorFlow's answers, where it is installed, to as many pipelines as a long run draws.
    command = [sys.executable, "-m", "pytest", "-rs", "-q", "-o", "faulthandler_timeout=7200"]
    command += ["--numprocesses", "auto", "--maxprocesses", "4", "--dist", "worksteal", "tests/referee"]
    environment = {**os.environ, "ASYNCDATA_SOAK": "1"}
    return subprocess.run(command, cwd=REPOSITORY, env=environment, check=False).returncode or failed


def _run(suite: Suite, arguments: list[str]) -> int:
    python, source = _environment(suite), _source(suite)
    _idle_docker()
    command = [str(python), "-m", "pytest", "-q", "--timeout=120", "-p", "no:cacheprovider", "--color=no"]
    command += suite.options
    for test, reason in suite.left_out.items():
        print(f"left out: {test} ({reason})")
        command.append(f"--deselect={test}" if "::" in test else f"--ignore={test}")
    with FakeGCSProcess() as server:
        # Names a file that does not exist: no credentials of this machine are used.
        environment = {
            **os.environ,
            "STORAGE_EMULATOR_HOST": server.url,
            "NO_GCE_CHECK": "true",
            "GOOGLE_APPLICATION_CREDENTIALS": "/nonexistent.json",
            "PYTHONPATH": str(source),
            **suite.variables,
        }
        done = subprocess.run(
            [*command, *(arguments or [suite.tests])],
            cwd=source,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    lines = done.stdout.splitlines()
    print(f"{suite.package} {suite.version}:", "\n".join(lines[-40:] if done.returncode else lines[-1:]))
    passed = re.search(r"(\d+) passed", done.stdout)
    if not arguments and int(passed[1] if passed else 0) < suite.fewest:
        print(f"{suite.package} {suite.version}: fewer than {suite.fewest} tests passed")
        return 1
    return done.returncode


def _environment(suite: Suite) -> Path:
    """An interpreter with that version of the package and what its tests import."""
    home = _CACHE / f"venv-{suite.package}"
    python = home / "bin" / "python"
    stamp = home / f".{suite.stem}"
    if not stamp.exists():
        venv.create(home, with_pip=True, clear=True)
        _pip(python, "install", f"{suite.package}=={suite.version}", "pytest", "pytest-timeout", *suite.needs)
        stamp.touch()
    return python


def _source(suite: Suite) -> Path:
    """The unpacked source archive."""
    folder = _CACHE / suite.stem
    if not (folder / suite.tests).is_dir():
        wanted = ("--no-deps", "--no-binary=:all:", f"--dest={_CACHE}", f"{suite.package}=={suite.version}")
        _pip(Path(sys.executable), "download", *wanted)
        with tarfile.open(_CACHE / f"{suite.stem}.tar.gz") as archive:
            archive.extractall(_CACHE, filter="data")
    return folder


def _idle_docker() -> None:
    """A ``docker`` that does nothing."""
    _PROGRAMS.mkdir(parents=True, exist_ok=True)
    docker = _PROGRAMS / "docker"
    docker.write_text("#!/bin/sh\nexit 0\n")
    docker.chmod(0o755)


def _pip(python: Path, *arguments: str) -> None:
    subprocess.run(
        [str(python), "-m", "pip", arguments[0], "--quiet", "--disable-pip-version-check", *arguments[1:]], check=True
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
