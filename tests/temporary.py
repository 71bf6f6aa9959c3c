"""The temporary folder of one run of the tests: a folder of its own, so that what is left in it can be told.

Everything the tests and their processes write to the temporary folder goes there, for they inherit ``TMPDIR``::

    /tmp/asyncdata-tests-…      empty when the last test has ended, or the run fails; then it is removed
    /tmp/pytest-of-…            pytest's own, with the files of tests that failed
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

_VARIABLE = "TMPDIR"
_OF_PYTEST = "PYTEST_DEBUG_TEMPROOT"


class TemporaryFolder:
    """Becomes the temporary folder of this process and of those it starts from now on, until it is removed."""

    def __init__(self) -> None:
        self._before = {name: os.environ.get(name) for name in (_VARIABLE, _OF_PYTEST)}
        os.environ.setdefault(_OF_PYTEST, tempfile.gettempdir())
        self.path = Path(tempfile.mkdtemp(prefix="asyncdata-tests-"))
        os.environ[_VARIABLE] = str(self.path)
        tempfile.tempdir = None  # is looked up again

    def left(self) -> list[str]:
        """The names of what lies there."""
        return sorted(os.listdir(self.path))

    def remove(self) -> None:
        """Removes the folder with all it holds; the temporary folder is what it was before."""
        shutil.rmtree(self.path, ignore_errors=True)
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        tempfile.tempdir = None
