"""How large the results of tasks are going to be, judged by those that have come.

Memory for the results of a task is taken before it runs. A slab of results has the same size for rows that are alike;
payloads of byte strings vary. What was judged too small is asked for by the task, and charged at once as debt.
"""

from __future__ import annotations

from typing import Final

_MORE: Final = 1.125
"""Payloads are expected to be an eighth larger than they were on average."""
_WEIGHT: Final = 0.2
_SLACK_BYTES: Final = 1024
"""For the gaps between the leaves in a slab of more or fewer rows than were seen."""


class OutputSizes:
    """See the module.

    Attributes:
        known: Whether a task has come so far that its successors can be judged by it.
        are_whole: Whether one has ended, so that what payloads take is known, too.
    """

    def __init__(self) -> None:
        self.known = False
        self.are_whole = False
        self._rows = 1
        self._nbytes = 0
        self._payload = 0.0

    def saw_results(self, rows: int, nbytes: int) -> None:
        """A slab of results for so many rows takes so much."""
        self.known = True
        if nbytes > self.results(rows):
            self._rows, self._nbytes = rows, nbytes

    def saw_payloads(self, rows: int, nbytes: int) -> None:
        """The payloads of so many rows took so much; none of them is known by 0 bytes."""
        self.known = self.are_whole = True
        each = nbytes / max(rows, 1)
        self._payload = each if each > self._payload else self._payload + _WEIGHT * (each - self._payload)

    def results(self, rows: int) -> int:
        """Bytes of a slab of results; 0 for none."""
        if rows == self._rows or not self._nbytes:
            return self._nbytes
        return -(-self._nbytes * rows // self._rows) + _SLACK_BYTES

    def payloads(self, rows: int) -> int:
        """Bytes of a task's payloads; 0 for none."""
        return int(_MORE * self._payload * rows)
