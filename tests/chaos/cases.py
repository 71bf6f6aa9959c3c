"""Cases of bad weather as values: the name of a case says all there is to know about it, and makes it again."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import Final, Self

from fake_gcs import Fault, Profile, Rule

FAULTS: Final = {
    "503": Fault(kind="status", status=503),
    "500": Fault(kind="status", status=500),
    "408": Fault(kind="status", status=408),
    "429": Fault(kind="status", status=429, retry_after_s=0.05),
    "expired": Fault(kind="expired-token"),
    "reset": Fault(kind="reset"),
    "reset-inside": Fault(kind="reset", after_fraction=(0.0, 1.0)),
    "truncate": Fault(kind="truncate", after_fraction=(0.0, 1.0)),
    "stall": Fault(kind="stall", seconds=5.0),
    "stall-inside": Fault(kind="stall", seconds=5.0, after_fraction=(0.0, 1.0)),
    "hang-inside": Fault(kind="stall", after_fraction=(0.0, 1.0)),
    "drip": Fault(kind="drip", bytes_per_s=200.0),
    "corrupt": Fault(kind="corrupt", after_fraction=(0.0, 1.0)),
    "replace": Fault(kind="replace"),
}
FATAL: Final = frozenset({"corrupt", "replace"})
"""What may end in an error: nobody can deliver records whose bytes the store has lost."""

MIXED: Final = tuple(name for name in FAULTS if name not in FATAL)
RATES: Final = (0.01, 0.05, 0.2)
ORDERS: Final = ("deterministic", "sloppy")
SCHEMES: Final = ("http", "tls")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run. ``str(case)`` and `Case.parse` are each other's inverse.

    Attributes:
        faults: Name of a fault, or "mixed" for all that cost no record.
        rate: Fraction of the requests that are hit, over all faults.
        order: "deterministic" or "sloppy".
        scheme: "http" or "tls".
        seed: Of the server's draws.
    """

    faults: str
    rate: float
    order: str
    scheme: str
    seed: int

    def __str__(self) -> str:
        return f"{self.faults}@{self.rate * 100:g}%,{self.order},{self.scheme},seed={self.seed}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The case with this name."""
        what, order, scheme, seed = text.split(",")
        faults, _, rate = what.partition("@")
        return cls(
            faults=faults,
            rate=float(rate.removesuffix("%")) / 100,
            order=order,
            scheme=scheme,
            seed=int(seed.removeprefix("seed=")),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The faults that may strike."""
        return MIXED if self.faults == "mixed" else (self.faults,)

    @property
    def profile(self) -> Profile:
        """The weather: each fault on the answers that send bytes, those of metadata too where they can strike there."""
        share = self.rate / len(self.names)
        rules = tuple(
            Rule(fault=FAULTS[name], rate=share, operations="storage.objects.get", media_only=True)
            for name in self.names
        )
        return Profile(name=str(self), rules=rules, seed=self.seed)


def every_case() -> list[Case]:
    """Every fault alone and all of them mixed, at every rate, in both orders, over both schemes."""
    grid = itertools.product((*FAULTS, "mixed"), RATES, ORDERS, SCHEMES)
    return [
        Case(faults=faults, rate=rate, order=order, scheme=scheme, seed=number)
        for number, (faults, rate, order, scheme) in enumerate(grid)
    ]


def some_cases(seed: int = 4) -> list[Case]:
    """One case of each fault and two of the mixture, so chosen that rates, orders and schemes all occur."""
    draw = random.Random(seed)
    cases = every_case()
    return [
        draw.choice([case for case in cases if case.faults == faults and case.rate == rate])
        for faults, rate in zip((*FAULTS, "mixed", "mixed"), itertools.cycle(RATES), strict=False)
    ]
