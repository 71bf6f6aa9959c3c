"""Imports point down only: the contracts of pyproject.toml hold, and would notice if they did not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT
from tests.patience import LIMIT_S

LINT = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs import-linter over the packages in a folder, with the configuration that lies there."""
    return subprocess.run(
        [sys.executable, "-c", LINT],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


def test_the_contracts_hold() -> None:
    """Every import contract of the project is kept."""
    outcome = lint_imports(ROOT)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.fixture(scope="module")
def small_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Empty files of every layer, which keep every contract."""
    folder = tmp_path_factory.mktemp("layers")
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name in (
        "asyncdata/__init__.py",
        "asyncdata/errors.py",
        "asyncdata/plan/__init__.py",
        "asyncdata/plan/node.py",
        "asyncdata/storage/__init__.py",
        "asyncdata/storage/url.py",
        "asyncdata/formats/__init__.py",
        "asyncdata/formats/tfrecord.py",
        "asyncdata/workers/__init__.py",
        "asyncdata/workers/child.py",
        "asyncdata/runtime/__init__.py",
        "asyncdata/runtime/lower.py",
        "asyncdata/runtime/life/__init__.py",
        "asyncdata/runtime/life/runtime.py",
        "fake_gcs/__init__.py",
        "fake_gcs/app.py",
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    clean = lint_imports(folder)
    assert clean.returncode == 0, clean.stdout + clean.stderr
    return folder


@pytest.mark.parametrize(
    ("importer", "statement"),
    [
        ("asyncdata/storage/url.py", "import asyncdata.formats.tfrecord"),
        ("asyncdata/plan/node.py", "from asyncdata.runtime import lower"),
        ("asyncdata/storage/url.py", "from asyncdata.plan import node"),
        ("asyncdata/errors.py", "import asyncdata.plan.node"),
        ("asyncdata/workers/child.py", "import aiohttp"),
        ("asyncdata/runtime/life/runtime.py", "import fake_gcs.app"),
        ("fake_gcs/app.py", "import asyncdata.errors"),
        ("asyncdata/utilities.py", "import asyncdata.errors"),
    ],
)
def test_the_contracts_bite(small_tree: Path, tmp_path: Path, importer: str, statement: str) -> None:
    """One import in a wrong direction, or a module without a layer, breaks a contract."""
    shutil.copytree(small_tree, tmp_path, dirs_exist_ok=True)
    (tmp_path / importer).write_text(statement + "\n", encoding="utf-8")
    broken = lint_imports(tmp_path)
    assert broken.returncode == 1, broken.stdout + broken.stderr
    assert "BROKEN" in broken.stdout


@pytest.mark.parametrize("module", ["child", "program"])
def test_a_worker_process_loads_no_network_stack(module: str) -> None:
    """What a worker imports to start contains no event loop, no HTTP client and no image library."""
    script = f"import asyncdata.workers.{module}, sys; print(*sys.modules)"
    outcome = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=LIMIT_S
    )
    loaded = {name.partition(".")[0] for name in outcome.stdout.split()}
    assert "asyncdata" in loaded
    assert loaded.isdisjoint({"aiohttp", "cv2", "fsspec", "gcsfs", "google", "uvloop"})
