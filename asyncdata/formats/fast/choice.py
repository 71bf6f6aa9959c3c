"""Whether blocks are read by compiled code, and the compiled code itself."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from pathlib import Path
from typing import Any, Final

from asyncdata.formats.fast import cache
from asyncdata.options import user_cache_directory

_MODULE: Final = "asyncdata.formats.fast.kernels"

PAYS_FROM_RECORDS: Final = 1 << 15
"""Loading the compiler and its cached code takes about 0.3 s, which so many small records win back."""


class Choice:
    """Decides block by block; the values are the same either way.

    Args:
        wish: True: compiled, from the first block on. False: never. None: if numba is installed, once it pays.

    Raises:
        ImportError: If it is True and numba is not installed.
    """

    def __init__(self, wish: bool | None) -> None:
        if wish and not installed():
            raise ImportError("compiled=True needs numba: pip install 'asyncdata[fast]'")
        self._decided = wish
        self._records = 0

    def compiled(self, records: int) -> bool:
        """Whether the next block, of so many records, is read by compiled code."""
        if self._decided is None:
            self._records += records
            if self._records > PAYS_FROM_RECORDS:
                self._decided = installed()
        return bool(self._decided)


@functools.cache
def installed() -> bool:
    """Whether numba is there; it is not imported."""
    return importlib.util.find_spec("numba") is not None


@functools.cache
def kernels() -> tuple[Any, ...]:
    """The compiled kernels of this process."""
    module = importlib.import_module(_MODULE)
    source = Path(str(module.__file__))
    return tuple(module.load(cache.directory(user_cache_directory(), source, module.version())))
