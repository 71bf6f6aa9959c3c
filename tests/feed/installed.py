"""Frameworks that not every environment has: tests that need one are skipped, and say how it is installed."""

from __future__ import annotations

import importlib.util

import pytest


def needed(package: str) -> None:
    """Skips the module that calls it where a package is not installed."""
    pytest.importorskip(package, reason=f"{package} is not installed here: make feeds", exc_type=ImportError)


def needed_here(*packages: str) -> None:
    """Skips the test that calls it where one of these packages is not installed; nothing is imported."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed here: make trainers")
