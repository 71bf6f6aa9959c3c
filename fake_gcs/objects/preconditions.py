"""Preconditions on generations and metagenerations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fake_gcs.errors import GCSError, condition_not_met, invalid
from fake_gcs.objects.record import ObjectVersion


@dataclass(frozen=True, slots=True)
class Preconditions:
    """What must hold for a request to go ahead; None where nothing is asked.

    Attributes:
        generation: Must be the live generation; 0 means that there must be none.
        not_generation: Must not be the live generation; 0 means that there must be one.
        metageneration: Must be the metageneration.
        not_metageneration: Must not be the metageneration.
    """

    generation: int | None = None
    not_generation: int | None = None
    metageneration: int | None = None
    not_metageneration: int | None = None

    def __bool__(self) -> bool:
        """Whether anything is asked."""
        return self != NOTHING

    def check(self, version: ObjectVersion | None, *, reading: bool = False) -> None:
        """Hold the conditions against the current version.

        Raises:
            GCSError: 412, or 304 when a ``not`` condition fails on a read.
        """
        current = version.generation if version else 0
        if self.generation is not None and self.generation != current:
            raise condition_not_met()
        if self.metageneration is not None and (version is None or self.metageneration != version.metageneration):
            raise condition_not_met()
        if self.not_generation is not None and self.not_generation == current:
            raise _not_modified() if reading else condition_not_met()
        if self.not_metageneration is not None and version and self.not_metageneration == version.metageneration:
            raise _not_modified() if reading else condition_not_met()


NOTHING = Preconditions()
"""Nothing is asked."""


def _not_modified() -> GCSError:
    return GCSError(304, "Not Modified")


def _number(source: Mapping[str, str], name: str) -> int | None:
    text = source.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 19:
        raise invalid(f"Invalid value for {name}: {text[:40]}")
    return int(text)


def generation_of(source: Mapping[str, str], name: str = "generation") -> int | None:
    """A generation parameter, or None.

    Raises:
        GCSError: 400 when it is not a number.
    """
    return _number(source, name)


def from_query(query: Mapping[str, str], prefix: str = "if") -> Preconditions:
    """The JSON API's preconditions; ``prefix`` is ``if`` or ``ifSource``."""
    return Preconditions(
        generation=_number(query, f"{prefix}GenerationMatch"),
        not_generation=_number(query, f"{prefix}GenerationNotMatch"),
        metageneration=_number(query, f"{prefix}MetagenerationMatch"),
        not_metageneration=_number(query, f"{prefix}MetagenerationNotMatch"),
    )


def from_headers(headers: Mapping[str, str], prefix: str = "x-goog-if") -> Preconditions:
    """The XML API's preconditions; ``prefix`` is ``x-goog-if`` or ``x-goog-copy-source-if``."""
    return Preconditions(
        generation=_number(headers, f"{prefix}-generation-match"),
        not_generation=_number(headers, f"{prefix}-generation-not-match"),
        metageneration=_number(headers, f"{prefix}-metageneration-match"),
        not_metageneration=_number(headers, f"{prefix}-metageneration-not-match"),
    )
