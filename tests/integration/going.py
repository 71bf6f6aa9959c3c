"""Whether everything is gone, without a garbage collection."""

from __future__ import annotations

from asyncdata.testing import ProcessSnapshot, check
from tests.patience import wait_until


def wait_until_gone(before: ProcessSnapshot) -> None:
    """Returns when nothing is left that was not there before; an error names what is."""
    wait_until(lambda: not check(before), lambda: "\n".join(map(str, check(before))))
