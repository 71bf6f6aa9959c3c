"""What happens to elements that fail: they are counted, reported to the quarantine list, and skipped, up to a quota.

    stage ── Guard (one per step of the plan) ──▶ Skips (one per policy in force) ──▶ Quarantine

Pure counting on the stage loop. Invariants: an element is counted once, by the step in which it failed, when its turn
to be delivered comes, so that in deterministic order the quota ends the pipeline at the same element in every run. No
pipeline runs forever without delivering anything, because consecutive failures are always limited.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from asyncdata.errors import (
    AsyncdataError,
    DataError,
    ObjectChangedError,
    ObjectNotFoundError,
    TooManyErrorsError,
    TransientStorageError,
)
from asyncdata.memory.advance import Rows
from asyncdata.observe.snapshot import SkippedStats
from asyncdata.options import ErrorPolicy
from asyncdata.redaction import redact
from asyncdata.runtime.quarantine import Quarantine, describe
from asyncdata.runtime.reading.source_table import SourceTable
from asyncdata.workers.failure import ends_program, in_a_line

_LOGGER: Final = logging.getLogger(__name__)
_SHARD_ERRORS: Final = (DataError, ObjectNotFoundError, ObjectChangedError)


class Skips:
    """One policy in force, and how far its quota is used up.

    Args:
        policy: The policy.
        sources: For naming elements.
        quarantine: Where skipped elements are told, if anywhere.
    """

    def __init__(self, policy: ErrorPolicy, sources: SourceTable, quarantine: Quarantine | None) -> None:
        self.policy = policy
        self._sources = sources
        self._quarantine = quarantine
        self._guards: dict[str, Guard] = {}
        self._elements = 0
        self._shards = 0
        self._bytes = 0
        self._first = ""
        self._last = ""

    def guard(self, place: str, label: str) -> Guard:
        """The guard of one step; the same for every epoch and every inner dataset at this place of the plan."""
        return self._guards.setdefault(place, Guard(self, label))

    def ends_shard(self, error: BaseException) -> bool:
        """Whether an error of a source ends only the shard it happened in."""
        kinds: tuple[type[BaseException], ...] = _SHARD_ERRORS
        if self.policy.skip_unreachable:
            kinds = (*kinds, TransientStorageError)
        return isinstance(error, kinds)

    def stats(self) -> SkippedStats:
        """What was skipped so far."""
        steps: dict[str, int] = {}
        for guard in self._guards.values():
            if guard.skipped:
                steps[guard.label] = steps.get(guard.label, 0) + guard.skipped
        return SkippedStats(
            elements=self._elements,
            shards=self._shards,
            unread_bytes=self._bytes,
            steps=steps,
            lines_lost=self._quarantine.lost if self._quarantine is not None else 0,
            last=self._last,
        )

    def count(self, guard: Guard, error: BaseException, line: dict[str, Any]) -> TooManyErrorsError | None:
        """One more that failed; the error to raise if that is one too many."""
        shard = "unread_bytes" in line
        self._elements += not shard
        self._shards += shard
        self._bytes += line.get("unread_bytes") or 0
        self._last = in_a_line(error)
        self._first = self._first or self._last
        if self._quarantine is not None:
            self._quarantine.put(line)
        if self.policy.log_warning:
            _LOGGER.warning("skipped in %s: %s", guard.label, _name(line))
        reason = self._exceeded(guard)
        if reason is None:
            return None
        total = self._elements + self._shards
        over = TooManyErrorsError(
            f"{total} failed, {reason}. The first: {self._first}; the last: {self._last}",
            stage=guard.label,
            url=line["url"],
            version=line["generation"],
            offset=line["offset"],
            record=line["record"],
        )
        over.skipped, over.first, over.last = total, self._first, self._last
        over.__cause__ = error
        return over

    def _exceeded(self, guard: Guard) -> str | None:
        policy = self.policy
        total = self._elements + self._shards
        if policy.max_skipped is not None and total > policy.max_skipped:
            return f"and max_skipped is {policy.max_skipped}"
        if policy.max_fraction is not None:
            seen = max(each.seen for each in self._guards.values())
            # Of no failure at all there is nothing to estimate: the first one is too many.
            if (seen >= policy.min_elements or not policy.max_fraction) and total > policy.max_fraction * seen:
                return f"of {seen} elements, and max_fraction is {policy.max_fraction:g}"
        if guard.in_a_row > policy.max_in_a_row:
            return f"{guard.in_a_row} of them in a row, and max_in_a_row is {policy.max_in_a_row}"
        return None

    def place(self, error: BaseException, origin: Rows | None) -> dict[str, Any]:
        """Where an element is, as a line of the quarantine list says it."""
        found: dict[str, Any] = {} if origin is None else self._sources.place(origin)
        if isinstance(error, AsyncdataError):
            found |= error.place()
        return {
            "url": found.get("url"),
            "generation": found.get("version"),
            "offset": found.get("offset"),
            "record": found.get("record"),
        }


class Guard:
    """One step's part: what it has seen, and what of that failed.

    Attributes:
        label: The step.
        seen: Elements, those that failed included.
        skipped: Those of them that failed; shards that ended early count as one each.
        in_a_row: Of those, the last ones, with nothing good between them.
    """

    __slots__ = ("_skips", "in_a_row", "label", "seen", "skipped")

    def __init__(self, skips: Skips, label: str) -> None:
        self._skips = skips
        self.label = label
        self.seen = 0
        self.skipped = 0
        self.in_a_row = 0

    def passed(self, count: int) -> None:
        """So many elements were good."""
        if count:
            self.seen += count
            self.in_a_row = 0

    def skip(self, error: BaseException, origin: Rows) -> BaseException | None:
        """An element failed; the error to raise if it was one too many, else it is left out.

        What ends a program (``SystemExit``, ``KeyboardInterrupt``) is raised in any case.
        """
        if ends_program(error):
            return error
        return self._count(error, {**self._skips.place(error, origin), "stage": self.label, "error": describe(error)})

    def end_shard(self, error: BaseException, size: Callable[[], int | None]) -> TooManyErrorsError | None:
        """A shard cannot be read any further; the error to raise if it was one too many, else it ends here.

        Args:
            error: Why.
            size: Of the whole object, if it is known.
        """
        line = {**self._skips.place(error, None), "stage": self.label, "error": describe(error)}
        whole, offset = size(), line["offset"] or 0
        line["unread_bytes"] = None if whole is None else max(0, whole - offset)
        return self._count(error, line)

    def ends_shard(self, error: BaseException) -> bool:
        """Whether an error of a source ends only the shard it happened in."""
        return self._skips.ends_shard(error)

    def _count(self, error: BaseException, line: dict[str, Any]) -> TooManyErrorsError | None:
        self.seen += 1
        self.skipped += 1
        self.in_a_row += 1
        return self._skips.count(self, error, line)


def sum_up(parts: Sequence[SkippedStats]) -> SkippedStats:
    """What several policies of one pipeline left out together."""
    steps: dict[str, int] = {}
    for part in parts:
        for label, count in part.steps.items():
            steps[label] = steps.get(label, 0) + count
    return SkippedStats(
        elements=sum(part.elements for part in parts),
        shards=sum(part.shards for part in parts),
        unread_bytes=sum(part.unread_bytes for part in parts),
        steps=steps,
        lines_lost=max((part.lines_lost for part in parts), default=0),
        last=next((part.last for part in reversed(parts) if part.last), ""),
    )


def _name(line: dict[str, Any]) -> str:
    if line["url"] is None:
        return f"element {line['record']}: {line['error']}"
    return f"record {line['record']} of {redact(line['url'])}: {line['error']}"
