"""What happens to elements that fail: they are counted, reported to the quarantine list, and skipped, up to a quota.

    stage ── Guard (one per step of the plan) ──▶ Skips (one per policy in force) ──▶ Quarantine

Pure counting on the stage loop. Invariants: an element is counted once, by the step in which it failed, when its turn
to be delivered comes, so that in deterministic order the quota ends the pipeline at the same element in every run, also
in one that was interrupted, see `runtime.state.skipped`. No pipeline runs forever without delivering anything, because
consecutive failures are always limited.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from asyncdata.errors import (
    AsyncdataError,
    DataError,
    MissingPackageError,
    ObjectChangedError,
    ObjectNotFoundError,
    TooManyErrorsError,
    TransientStorageError,
)
from asyncdata.memory.advance import Rows
from asyncdata.observe.parts import SkippedStats
from asyncdata.options import ErrorPolicy
from asyncdata.redaction import redact_url
from asyncdata.runtime.quarantine import Quarantine, describe
from asyncdata.runtime.reading.source_table import SourceTable
from asyncdata.runtime.state.skipped import Counted, Failure, Skipped, identity_of
from asyncdata.workers.failure import ends_program, in_a_line

_LOGGER: Final = logging.getLogger(__name__)
_NOTHING: Final = Counted(0, 0)
_SHARD_ERRORS: Final = (DataError, ObjectNotFoundError, ObjectChangedError)


class Skips:
    """One policy in force, and how far its quota is used up.

    Args:
        policy: The policy.
        sources: For naming elements.
        quarantine: Where skipped elements are listed, if anywhere.
        before: What it had let pass when the state was taken that the pipeline is brought back to.
    """

    def __init__(
        self,
        policy: ErrorPolicy,
        sources: SourceTable,
        quarantine: Quarantine | None,
        before: Skipped | None = None,
    ) -> None:
        before = before or Skipped()
        self.policy = policy
        self._sources = sources
        self._quarantine = quarantine
        self._tallies: dict[str, Tally] = {}
        self._elements = before.elements
        self._shards = before.shards
        self._bytes = before.unread_bytes
        self._before = before
        self._known: dict[int, list[int]] = {}
        for failure in before.failures:
            self._known.setdefault(failure.identity, []).append(failure.in_a_row)
        self._news: list[Failure] = []
        self._ended: Skipped | None = None
        self._first = ""
        self._last = ""

    def guard(self, place: str, label: str, around: Sequence[Any] = ()) -> Guard:
        """The guard of one step; it counts together with those of other epochs and inner datasets at this place.

        Args:
            place: Of the step in the plan.
            label: The step.
            around: The epoch and the inner dataset.
        """
        tally = self._tallies.get(place)
        if tally is None:
            tally = self._tallies[place] = Tally(label, before=self._counted_before(place, label))
        return Guard(self, tally, around)

    def _counted_before(self, place: str, label: str) -> Counted:
        before = self._before
        if before.places is not None:
            return before.places.get(place, _NOTHING)
        # States of before 0.2.20 have the failures by label, which is that of several steps, and the most seen by any.
        return Counted(before.seen, before.steps.get(label, 0))

    def ends_shard(self, error: BaseException) -> bool:
        """Whether an error of a source ends only the shard it happened in."""
        kinds: tuple[type[BaseException], ...] = _SHARD_ERRORS
        if self.policy.skip_unreachable:
            kinds = (*kinds, TransientStorageError)
        return isinstance(error, kinds)

    def stats(self) -> SkippedStats:
        """What was skipped so far."""
        return SkippedStats(
            elements=self._elements,
            shards=self._shards,
            unread_bytes=self._bytes,
            steps=self._steps(),
            lines_lost=self._quarantine.lost if self._quarantine is not None else 0,
            last=self._last,
        )

    def _steps(self) -> dict[str, int]:
        steps = dict(self._before.steps)
        for tally in list(self._tallies.values()):
            if tally.skipped:
                steps[tally.label] = steps.get(tally.label, 0) + tally.skipped
        return steps

    def news(self) -> Skipped | None:
        """The counts, and the failures since the last call; None if nobody needs to know."""
        if not self._news and self.policy.max_fraction is None:
            return None
        news, self._news = tuple(self._news), []
        return dataclasses.replace(self._ended or self._counts(), failures=news)

    def _counts(self) -> Skipped:
        return Skipped(
            elements=self._elements,
            shards=self._shards,
            unread_bytes=self._bytes,
            seen=self._seen(),
            steps=self._steps(),
            places={
                **(self._before.places or {}),
                **{place: tally.counted for place, tally in self._tallies.items()},
            },
        )

    def _seen(self) -> int:
        return self._before.seen + max((tally.seen for tally in self._tallies.values()), default=0)

    def count(
        self, guard: Guard, error: BaseException, line: dict[str, Any], identity: int
    ) -> TooManyErrorsError | None:
        """One more that failed; the error to raise if that is one too many."""
        tally = guard.tally
        tally.seen += 1
        known = self._known.get(identity)
        if self._quarantine is not None:
            self._quarantine.put({"id": f"{identity:016x}", **line})
        if known:
            # It failed before the interruption, too, and was not too many then.
            tally.in_a_row = known.pop(0)
            return None
        before = self._counts()
        tally.skipped += 1
        tally.in_a_row += 1
        shard = "unread_bytes" in line
        self._elements += not shard
        self._shards += shard
        self._bytes += line.get("unread_bytes") or 0
        self._last = in_a_line(error)
        self._first = self._first or self._last
        if self.policy.log_warning:
            _LOGGER.warning("skipped in %s: %s", guard.label, _name(line))
        reason = self._exceeded(tally)
        if reason is None:
            self._news.append(Failure(identity, tally.in_a_row))
            return None
        # States of elements in front of this one do not contain it: it is one too many when it comes again.
        self._ended = self._ended or before
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

    def _exceeded(self, tally: Tally) -> str | None:
        policy = self.policy
        total = self._elements + self._shards
        if policy.max_skipped is not None and total > policy.max_skipped:
            return f"and max_skipped is {policy.max_skipped}"
        if policy.max_fraction is not None:
            # Of this step alone: what others have seen depends on how far ahead of it they are.
            seen, failed = tally.counted
            # Of no failure at all there is nothing to estimate: the first one is too many.
            if (seen >= policy.min_elements or not policy.max_fraction) and failed > policy.max_fraction * seen:
                return f"{failed} of the {seen} elements of this step, and max_fraction is {policy.max_fraction:g}"
        if tally.in_a_row > policy.max_in_a_row:
            return f"{tally.in_a_row} of them in a row, and max_in_a_row is {policy.max_in_a_row}"
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


@dataclasses.dataclass(slots=True)
class Tally:
    """What one step has seen, and what of that failed.

    Attributes:
        label: The step.
        seen: Elements, those that failed included.
        skipped: Those of them that failed; shards that ended early count as one each.
        in_a_row: Of those, the last ones, with nothing good between them.
        before: What it had seen before the interruption.
    """

    label: str
    seen: int = 0
    skipped: int = 0
    in_a_row: int = 0
    before: Counted = _NOTHING

    @property
    def counted(self) -> Counted:
        """All of it, with what was seen before the interruption."""
        return Counted(self.before.seen + self.seen, self.before.failed + self.skipped)


class Guard:
    """One step's part in one epoch and one inner dataset.

    Attributes:
        tally: Of the step.
    """

    __slots__ = ("_around", "_skips", "tally")

    def __init__(self, skips: Skips, tally: Tally, around: Sequence[Any]) -> None:
        self._skips = skips
        self._around = around
        self.tally = tally

    @property
    def label(self) -> str:
        """The step."""
        return self.tally.label

    def passed(self, count: int) -> None:
        """So many elements were good."""
        if count:
            self.tally.seen += count
            self.tally.in_a_row = 0

    def skip(self, error: BaseException, origin: Rows) -> BaseException | None:
        """An element failed; the error to raise if it was one too many, else it is left out.

        What ends a program (``SystemExit``, ``KeyboardInterrupt``), or would make every element fail because a package
        is missing, is raised in any case.
        """
        if ends_program(error) or isinstance(error, MissingPackageError):
            return error
        line = {**self._skips.place(error, origin), "stage": self.label, "error": describe(error)}
        return self._skips.count(self, error, line, identity_of(self._around, origin.tolist(), line))

    def end_shard(self, error: BaseException, size: Callable[[], int | None]) -> TooManyErrorsError | None:
        """A shard cannot be read any further; the error to raise if it was one too many, else it ends here.

        Args:
            error: Why.
            size: Of the whole object, if it is known.
        """
        line = {**self._skips.place(error, None), "stage": self.label, "error": describe(error)}
        whole, offset = size(), line["offset"] or 0
        line["unread_bytes"] = None if whole is None else max(0, whole - offset)
        return self._skips.count(self, error, line, identity_of(self._around, "shard", line))

    def ends_shard(self, error: BaseException) -> bool:
        """Whether an error of a source ends only the shard it happened in."""
        return self._skips.ends_shard(error)


def before_stats(skipped: Skipped) -> SkippedStats:
    """What a policy had left out when a state was taken."""
    return SkippedStats(
        elements=skipped.elements,
        shards=skipped.shards,
        unread_bytes=skipped.unread_bytes,
        steps=skipped.steps,
    )


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
    return f"record {line['record']} of {redact_url(line['url'])}: {line['error']}"
