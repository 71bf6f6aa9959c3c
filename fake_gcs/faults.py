"""Faults and the rules that place them, as values: a failing case is one printable line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from fake_gcs.errors import GCSError
from fake_gcs.objects.globs import compile_glob

Kind = Literal["status", "expired-token", "reset", "truncate", "stall", "corrupt", "replace", "drip"]
"""What goes wrong."""

_KINDS = get_args(Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong with one request.

    Attributes:
        kind: ``status`` answers an error; ``expired-token`` answers 401; ``reset`` breaks the connection by RST;
            ``truncate`` closes it early though more was announced; ``stall`` goes silent; ``corrupt`` flips the bits of
            one byte; ``replace`` makes a new generation of the object while the old one is being sent; ``drip`` sends
            the rest of the body slowly.
        status: Status of kind ``status``.
        retry_after_s: Sent as ``Retry-After``, in seconds; None for no such header.
        after_bytes: Body bytes that pass unharmed first; None strikes before anything is answered (kind ``corrupt``,
            ``replace`` and ``drip``: at the first byte). On an upload it counts the received bytes.
        after_fraction: Instead of ``after_bytes``: a range of fractions of the body, of which one is drawn.
        seconds: How long a stall lasts, or a range of which one is drawn; None for ever.
        bytes_per_s: Pace of kind ``drip``.
        content: What kind ``replace`` puts there: ``complement`` (same size, every bit flipped) or ``same``.
    """

    kind: Kind
    status: int = 503
    retry_after_s: float | None = None
    after_bytes: int | None = None
    after_fraction: tuple[float, float] | None = None
    seconds: float | tuple[float, float] | None = None
    bytes_per_s: float = 1024.0
    content: Literal["complement", "same"] = "complement"

    def __post_init__(self) -> None:
        """Refuse what could not be carried out."""
        if self.kind not in _KINDS:
            raise ValueError(f"unknown fault kind {self.kind!r}; one of {', '.join(_KINDS)}")
        if not 400 <= self.status <= 599:
            raise ValueError(f"a fault's status must be 400 to 599, not {self.status}")
        if self.after_bytes is not None and self.after_bytes < 0:
            raise ValueError("after_bytes must not be negative")
        if self.bytes_per_s <= 0:
            raise ValueError("bytes_per_s must be positive")

    def describe(self) -> str:
        """One line with what differs from the defaults."""
        parts: list[str] = [self.kind]
        for item in fields(self)[1:]:
            value = getattr(self, item.name)
            if value != item.default or (item.name == "status" and self.kind == "status"):
                parts.append(f"{item.name}={value}")
        return " ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Where a fault strikes. A request must meet every condition that is given.

    Attributes:
        fault: What happens.
        rate: Fraction of the matching requests that are hit. Drawn from the seed, the request and how often the same
            request came before, so the same run gives the same faults whatever the order of arrival.
        operations: Glob over operation names, such as ``storage.objects.*``.
        objects: Glob over ``bucket/object``; empty for requests of any kind, with or without an object.
        nth: Only the matching requests with these numbers, counted from 1 in order of arrival; empty for all.
        every: Only each matching request whose number is a multiple; 0 for all.
        limit: Most times the rule strikes; None without end.
        test_id: Only requests that carry this ``x-retry-test-id`` or ``x-fake-gcs-test-id`` header.
        media_only: Only answers that send an object's bytes.
    """

    fault: Fault
    rate: float = 1.0
    operations: str = ""
    objects: str = ""
    nth: tuple[int, ...] = ()
    every: int = 0
    limit: int | None = None
    test_id: str | None = None
    media_only: bool = False

    def __post_init__(self) -> None:
        """Refuse what could never match or not be compiled."""
        if not 0.0 <= self.rate <= 1.0:
            raise ValueError(f"a rule's rate must be from 0 to 1, not {self.rate}")
        try:
            compile_glob(self.operations)
            compile_glob(self.objects)
        except GCSError as error:
            raise ValueError(error.message) from error

    def patterns(self) -> tuple[re.Pattern[str] | None, re.Pattern[str] | None]:
        """The compiled globs for operations and objects; None where anything goes."""
        return (
            compile_glob(self.operations) if self.operations else None,
            compile_glob(self.objects) if self.objects else None,
        )


def fault_from(value: Mapping[str, Any]) -> Fault:
    """A fault from JSON or TOML data.

    Raises:
        ValueError: An unknown field or a value that makes no sense.
    """
    return Fault(**_known(Fault, value))


def rule_from(value: Mapping[str, Any]) -> Rule:
    """A rule from JSON or TOML data; the fault is the nested table ``fault``.

    Raises:
        ValueError: An unknown field or a value that makes no sense.
    """
    values = _known(Rule, value)
    fault = values.get("fault")
    if not isinstance(fault, Mapping):
        raise ValueError("a rule needs a fault")  # noqa: TRY004 -- bad data, not a programming error
    return Rule(**{**values, "fault": fault_from(fault)})


def _known(kind: type[Fault | Rule], value: Mapping[str, Any]) -> dict[str, Any]:
    names = {item.name for item in fields(kind)}
    if unknown := sorted(set(value) - names):
        raise ValueError(f"unknown {kind.__name__.lower()} fields: {', '.join(unknown)}")
    return {name: tuple(item) if isinstance(item, list) else item for name, item in value.items()}
