"""``python -m benchmarks.referee``: suites that nobody here wrote, against ``fake_gcs``; TensorFlow, against pipelines.

gcsfs's own test suite is taken from the last source archive that carries it and runs unmodified, in an environment of
its own under ``.cache/referee``, against a fresh server. Then the scenarios of the real clients run, with whichever of
them this environment has; then, where TensorFlow is, pipelines on which it has to agree. Arguments go to gcsfs's
pytest.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import venv
from pathlib import Path
from typing import Final

from benchmarks.servers import REPOSITORY
from fake_gcs import FakeGCSProcess

_VERSION: Final = "2026.3.0"
"""The last release of gcsfs whose source archive has its tests."""
_CACHE: Final = REPOSITORY / ".cache" / "referee"
_PACKAGES: Final = ("pytest", "pytest-asyncio", "pytest-timeout", "pytest-subtests", "requests", "google-cloud-storage")
_LEFT_OUT: Final = {
    "gcsfs/tests/test_core.py::test_sign": "signs with a key of Google's",
    "gcsfs/tests/test_credentials.py::test_credentials_from_raw_token": "asks Google whether a token is good",
}
_FEWEST_PASSED: Final = 300
"""So many pass on a faithful server; fewer mean that the suite did not really run."""


def main(arguments: list[str]) -> int:
    """Run everything; 0 when nothing failed."""
    failed = _gcsfs_suite(arguments)
    command = [sys.executable, "-m", "pytest", "-rs", "-q", "tests/fake_gcs/clients"]
    failed = subprocess.run(command, cwd=REPOSITORY, check=False).returncode or failed
    # TensorFlow's answers, where it is installed, to as many pipelines as a long run draws.
    command = [sys.executable, "-m", "pytest", "-rs", "-q", "-o", "faulthandler_timeout=7200"]
    command += ["--numprocesses", "auto", "--maxprocesses", "4", "--dist", "worksteal", "tests/referee"]
    environment = {**os.environ, "ASYNCDATA_SOAK": "1"}
    return subprocess.run(command, cwd=REPOSITORY, env=environment, check=False).returncode or failed


def _gcsfs_suite(arguments: list[str]) -> int:
    python, source = _environment(), _source()
    for test, reason in _LEFT_OUT.items():
        print(f"left out: {test} ({reason})")
    command = [str(python), "-m", "pytest", "-q", "--timeout=120", "-p", "no:cacheprovider", "--color=no"]
    command += [f"--deselect={test}" for test in _LEFT_OUT]
    with FakeGCSProcess() as server:
        # Names a file that does not exist: no credentials of this machine are used.
        environment = {
            **os.environ,
            "STORAGE_EMULATOR_HOST": server.url,
            "NO_GCE_CHECK": "true",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
            "GOOGLE_APPLICATION_CREDENTIALS": "/nonexistent.json",
            "PYTHONPATH": str(source),
        }
        done = subprocess.run(
            [*command, *(arguments or ["gcsfs/tests"])],
            cwd=source,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    print("\n".join(done.stdout.splitlines()[-40:] if done.returncode else done.stdout.splitlines()[-1:]))
    passed = re.search(r"(\d+) passed", done.stdout)
    if not arguments and int(passed[1] if passed else 0) < _FEWEST_PASSED:
        print(f"gcsfs {_VERSION}: fewer than {_FEWEST_PASSED} tests passed")
        return 1
    return done.returncode


def _environment() -> Path:
    """An interpreter with that version of gcsfs and what its tests import."""
    home = _CACHE / "venv"
    python = home / "bin" / "python"
    stamp = home / f".gcsfs-{_VERSION}"
    if not stamp.exists():
        venv.create(home, with_pip=True, clear=True)
        _pip(python, "install", f"gcsfs=={_VERSION}", *_PACKAGES)
        stamp.touch()
    return python


def _source() -> Path:
    """The unpacked source archive."""
    folder = _CACHE / f"gcsfs-{_VERSION}"
    if not (folder / "gcsfs" / "tests").is_dir():
        _pip(
            Path(sys.executable),
            "download",
            "--no-deps",
            "--no-binary=:all:",
            f"--dest={_CACHE}",
            f"gcsfs=={_VERSION}",
        )
        with tarfile.open(_CACHE / f"gcsfs-{_VERSION}.tar.gz") as archive:
            archive.extractall(_CACHE, filter="data")
    return folder


def _pip(python: Path, *arguments: str) -> None:
    subprocess.run(
        [str(python), "-m", "pip", arguments[0], "--quiet", "--disable-pip-version-check", *arguments[1:]], check=True
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
