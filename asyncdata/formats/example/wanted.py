"""What a spec asks for: the lists to look for in a record, and the features that are made of them.

Both parsers, of one record at a time (``scalar``) and of many together (``columnar``), look for these lists;
``outputs`` makes features of the values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from asyncdata import arguments
from asyncdata.formats.example import partitions as cuts
from asyncdata.formats.example.features import (
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    Kind,
    RaggedFeature,
    VarLenFeature,
    value_of,
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """One list of a record.

    Attributes:
        name: Its feature in the spec, for errors.
        key: Its key in the record.
        kind: What its list must hold.
        shape: Shape of the values; () for any number of them.
        count: Values in the shape; -1 for any number of them.
        step: What the number of values must be a multiple of.
        default: What an absent feature gives; None where its lack is an error.
    """

    name: str
    key: bytes
    kind: Kind
    shape: tuple[int, ...]
    count: int
    step: int
    default: Any

    @property
    def single(self) -> bool:
        """Whether it is exactly one value, without dimensions."""
        return self.count == 1 and not self.shape


class Output(NamedTuple):
    """One feature of a spec and the lists it is made of.

    Attributes:
        name: Its key in the result.
        feature: What it is.
        slot: The list of its values.
        cuts: The list of each partition, outermost first; None for one without a list.
    """

    name: str
    feature: Feature
    slot: int
    cuts: tuple[int | None, ...]


def check_spec(argument: str, spec: Any) -> dict[str, Feature]:
    """A copy of the spec. Raises ``TypeError`` for an entry that is none of the feature classes."""
    if not isinstance(spec, Mapping):
        raise TypeError(f"{argument} must be a dict of features by name, not {arguments.shown(spec)}")
    for name, feature in spec.items():
        arguments.instance(f"every key of {argument}", name, str, "a str")
        if not isinstance(feature, FixedLenFeature | FixedLenSequenceFeature | VarLenFeature | RaggedFeature):
            raise TypeError(
                f"{argument} says of feature {name!r} {arguments.shown(feature)}, which is none of the feature classes"
            )
    return dict(spec)


def plan(spec: Mapping[str, Feature]) -> tuple[list[Wanted], list[Output]]:
    """The lists to look for, each once, and what is made of them."""
    wanted: list[Wanted] = []
    found: dict[Any, int] = {}

    def slot_of(item: Wanted) -> int:
        # Lists of any length are alike if key and kind are; fixed ones have a feature each.
        identity = (item.key, item.kind, item.step) if item.count < 0 else (item.name,)
        if identity not in found:
            found[identity] = len(wanted)
            wanted.append(item)
        return found[identity]

    outputs = []
    for name, feature in spec.items():
        slot = slot_of(want(name, feature))
        parts = feature.partitions if isinstance(feature, RaggedFeature) else ()
        numbers = tuple(
            None if isinstance(part, cuts.UniformRowLength) else slot_of(_any_number(name, part.key, "int64"))
            for part in parts
        )
        outputs.append(Output(name, feature, slot, numbers))
    return wanted, outputs


def want(name: str, feature: Feature) -> Wanted:
    """The list that holds a feature's values."""
    if isinstance(feature, FixedLenFeature):
        assert isinstance(feature.shape, tuple)
        default = feature.default_value
        if default is not None:
            default = value_of(default, feature.dtype, feature.shape)
        return Wanted(name, name.encode(), feature.dtype, feature.shape, math.prod(feature.shape), 1, default)
    if isinstance(feature, FixedLenSequenceFeature):
        assert isinstance(feature.shape, tuple)
        return _any_number(name, name, feature.dtype, math.prod(feature.shape))
    if isinstance(feature, RaggedFeature) and feature.value_key is not None:
        return _any_number(name, feature.value_key, feature.dtype)
    return _any_number(name, name, feature.dtype)


def _any_number(name: str, key: str, kind: Kind, step: int = 1) -> Wanted:
    """A list of any length, which has no values where it is absent."""
    nothing = np.empty(0, object if kind == "bytes" else kind)
    nothing.setflags(write=False)
    return Wanted(name, key.encode(), kind, (), -1, step, nothing)
