"""Where compiled code is kept: a directory that belongs to this user and that nobody else can write to.

What lies there is loaded and run, so a directory that others can change is never used; without one every process
compiles for itself. Its name holds the version of this package, of Python and of the compiler, and a digest of the
source, so that nothing stale is ever loaded.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from pathlib import Path


def directory(home: Path, source: Path, compiler: str) -> str | None:
    """The directory for one version of one source file, made if need be; None where none is safe.

    Args:
        home: The user's cache directory.
        source: The file with what is compiled.
        compiler: Version of the compiler.
    """
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    name = f"{sys.implementation.cache_tag}-{compiler}-{digest}"
    path = home / "asyncdata"
    try:
        home.mkdir(parents=True, exist_ok=True)
        if os.stat(home).st_mode & 0o1002 == 0o002:
            return None  # others could put a directory of theirs in the place of ours
        for part in (path, path / "compiled", path / "compiled" / name):
            part.mkdir(mode=0o700, exist_ok=True)
            if not _is_ours(part):
                return None
    except (OSError, RuntimeError):
        return None
    return str(path / "compiled" / name)


def _is_ours(path: Path) -> bool:
    """Whether it is a real directory of this user's that neither group nor others can write to."""
    found = os.lstat(path)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
