"""Filters of Parquet: conditions on columns, and which row groups their statistics rule out. No Parquet library.

Filters are alternatives of conditions that must all be true, as in pyarrow::

    [("x", ">", 3), ("y", "in", {"a", "b"})]          one alternative
    [[("x", ">", 3)], [("y", "==", "a")]]             two

A row group is ruled out only if no row can pass. If something is not known or cannot be compared, the row group is
read.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from asyncdata import arguments

Condition: TypeAlias = tuple[str, str, Any]
Filters: TypeAlias = tuple[tuple[Condition, ...], ...]

_FORM: Final = "must be a list of (column, operator, value), or a list of such lists"

_SECOND: Final = datetime.timedelta(seconds=1)
OPERATORS: Final = ("=", "==", "!=", "<", ">", "<=", ">=", "in", "not in")


class Bounds(NamedTuple):
    """What the statistics of a column in a row group say.

    Attributes:
        least: No value is smaller; None: not known.
        most: No value is larger; None: not known.
        all_null: There is no value at all.
    """

    least: Any
    most: Any
    all_null: bool


def checked_filters(filters: Any) -> Filters:
    """Filters as a plan holds them.

    Raises:
        ValueError: They are not of the form that the module's docstring shows.
        TypeError: They are no list, or what a value must be in is none.
    """
    if filters is None:
        return ()
    if not isinstance(filters, Sequence) or isinstance(filters, str | bytes):
        raise TypeError(f"filters {_FORM}, not {arguments.shown(filters)}")
    if not filters:
        return ()
    if all(_is_condition(item) for item in filters):
        return (tuple(_condition(item) for item in filters),)
    alternatives = []
    for alternative in filters:
        is_list = isinstance(alternative, list | tuple) and len(alternative) > 0
        if not is_list or not all(_is_condition(item) for item in alternative):
            raise ValueError(f"filters {_FORM}, not {arguments.shown(filters)}")
        alternatives.append(tuple(_condition(item) for item in alternative))
    return tuple(alternatives)


def _is_condition(item: Any) -> bool:
    return isinstance(item, tuple | list) and len(item) == 3 and isinstance(item[0], str) and isinstance(item[1], str)


def _condition(item: Sequence[Any]) -> Condition:
    column, operator, value = item
    if operator not in OPERATORS:
        raise ValueError(f"an operator in filters is one of {', '.join(OPERATORS)}, not {arguments.shown(operator)}")
    if operator not in ("in", "not in"):
        return column, operator, value
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        # A text would be taken apart into its characters.
        raise TypeError(f"the value of {operator!r} in filters must be a list, not {arguments.shown(value)}")
    return column, operator, tuple(value)


def columns_of(filters: Filters) -> list[str]:
    """The columns that conditions speak of."""
    return list(dict.fromkeys(column for alternative in filters for column, _, _ in alternative))


def may_pass(filters: Filters, bounds: Mapping[str, Bounds | None]) -> bool:
    """Whether some row of a row group with these statistics may pass."""
    if not filters:
        return True
    return any(
        all(_may_hold(operator, value, bounds.get(column)) for column, operator, value in alternative)
        for alternative in filters
    )


def _may_hold(operator: str, value: Any, bounds: Bounds | None) -> bool:
    if bounds is None or operator in ("!=", "not in") or (operator == "in" and any(map(_is_outside, value))):
        return True
    if bounds.all_null:
        return False
    if bounds.least is None or bounds.most is None:
        return True
    try:
        return bool(_TESTS[operator](tuple(map(_wide, value)) if operator == "in" else _wide(value), bounds))
    except (TypeError, OverflowError):
        return True


def _wide(value: Any) -> Any:
    """A NumPy float as Python's: a bound would be rounded to its type, and rows are not."""
    return value.item() if isinstance(value, np.floating) else value


def _is_between(item: Any, bounds: Bounds) -> bool:
    """Whether a listed value may be in a column, to whose type it is rounded: to single precision, to a second."""
    if bounds.least <= item <= bounds.most:
        return True
    if isinstance(item, datetime.datetime):
        return bool(bounds.least - _SECOND <= item <= bounds.most + _SECOND)
    if not isinstance(item, float):
        return False
    with np.errstate(over="ignore"):
        return bool(bounds.least <= float(np.float32(item)) <= bounds.most)


def _is_outside(value: Any) -> bool:
    """Whether it is None or NaN, of which the bounds of a column say nothing."""
    return value is None or (isinstance(value, float | np.floating) and bool(np.isnan(value)))


_TESTS: Final[dict[str, Callable[[Any, Bounds], Any]]] = {
    "=": lambda value, bounds: bounds.least <= value <= bounds.most,
    "==": lambda value, bounds: bounds.least <= value <= bounds.most,
    "<": lambda value, bounds: bounds.least < value,
    "<=": lambda value, bounds: bounds.least <= value,
    ">": lambda value, bounds: bounds.most > value,
    ">=": lambda value, bounds: bounds.most >= value,
    "in": lambda value, bounds: any(_is_between(item, bounds) for item in value),
}
