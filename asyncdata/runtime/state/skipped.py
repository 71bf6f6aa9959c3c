"""What error policies have let pass, for states: the counts, and which failures they contain.

A pipeline that is brought back to a state makes some elements again, and those of them that failed fail again. They are
known by their identity, and are not counted twice; so the quota is used up at the same element as without the
interruption.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np

from asyncdata.errors import StateError
from asyncdata.redaction import redact_url
from asyncdata.runtime.state.json_codec import from_json as value_from_json
from asyncdata.runtime.state.json_codec import to_json as value_to_json

_MOST_FAILURES: Final = 4096
"""The last ones; earlier ones lie behind everything that is made again, unless the whole epoch is."""


class Failure(NamedTuple):
    """One failure that was counted.

    Attributes:
        identity: See `identity_of`.
        in_a_row: Failures of its step without a good element between them, this one included.
    """

    identity: int
    in_a_row: int


class Counted(NamedTuple):
    """What one step has seen.

    Attributes:
        seen: Elements, those that failed included.
        failed: Those of them that failed.
    """

    seen: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """What one policy has let pass in an epoch.

    Attributes:
        elements: Elements that failed.
        shards: Shards that ended early.
        unread_bytes: Of these, what was not read.
        seen: Elements that the step with the most of them has seen.
        steps: Failures by step.
        places: What each step has seen, by its place in the plan: several steps may have one name. None in states that
            releases before 0.2.20 wrote.
        failures: The last ones.
    """

    elements: int = 0
    shards: int = 0
    unread_bytes: int = 0
    seen: int = 0
    steps: Mapping[str, int] = field(default_factory=dict)
    places: Mapping[str, Counted] | None = None
    failures: tuple[Failure, ...] = ()

    def then(self, later: Skipped) -> Skipped:
        """The counts of later, which has only those failures that came since."""
        return replace(later, failures=(*self.failures, *later.failures)[-_MOST_FAILURES:])


def identity_of(around: Sequence[Any], failed: Any, line: Mapping[str, Any]) -> int:
    """A number for one failure, the same in every run.

    Args:
        around: Epochs, and elements that made the datasets around it.
        failed: Provenance of the element, or what else failed.
        line: Where it was: ``url``, ``generation``, ``offset``, ``record``.
    """
    place = failed
    if line["url"] is not None:
        # The same file may have another signature, or, copied to another machine, another version.
        generation = line["generation"] if "://" in line["url"] else None
        part = failed if isinstance(failed, str) else failed[2]
        place = (redact_url(line["url"]), generation, line["record"], line["offset"], part)
    digest = hashlib.blake2b(repr((around, place)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def to_json(skipped: Mapping[str, Skipped]) -> dict[str, Any]:
    """As a part of a state; by place of the policy in the plan."""
    return {
        place: {
            "elements": part.elements,
            "shards": part.shards,
            "unread_bytes": part.unread_bytes,
            "seen": part.seen,
            "steps": dict(part.steps),
            **({} if part.places is None else {"places": {step: [*of] for step, of in part.places.items()}}),
            "failures": value_to_json(np.array([failure.identity for failure in part.failures], np.int64)),
            "in_a_row": value_to_json(np.array([failure.in_a_row for failure in part.failures], np.int64)),
        }
        for place, part in skipped.items()
    }


def from_json(parts: Any) -> dict[str, Skipped]:
    """What `to_json` made.

    Raises:
        StateError: It is damaged.
    """
    try:
        return {str(place): _part(part) for place, part in parts.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StateError(f"the state is damaged: what was skipped cannot be read ({error})") from error


def _part(part: Any) -> Skipped:
    numbers = {name: part[name] for name in ("elements", "shards", "unread_bytes", "seen")}
    steps = {str(label): count for label, count in part["steps"].items()}
    places = part.get("places")
    if places is not None:
        places = {str(place): Counted(*counted) for place, counted in places.items()}
    counts = chain(numbers.values(), steps.values(), *(places or {}).values())
    if not all(type(number) is int and number >= 0 for number in counts):
        raise ValueError("a number is none")
    identities, in_a_row = (value_from_json(part[name]).tolist() for name in ("failures", "in_a_row"))
    return Skipped(**numbers, steps=steps, places=places, failures=tuple(map(Failure, identities, in_a_row)))
