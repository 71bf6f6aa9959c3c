"""Arrow's arrays as columns: numpy arrays, byte strings one behind the other, or Python objects.

| Arrow | value of a row | missing |
|---|---|---|
| integers, booleans | numpy scalar | None |
| floats, dates, timestamps, durations | numpy scalar | NaN, NaT |
| strings, binary | ``str``, ``bytes`` | None |
| lists of numbers | numpy array; a list if a number in it is missing | None |
| structs | dict | dict of missing values |
| anything else | what Arrow makes of it in Python | None |

pyarrow is passed in as an argument, because only ``parquet`` imports it.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from asyncdata.formats.parquet_filters import Filters
from asyncdata.memory.structure import LEAF, DictOf, Structure
from asyncdata.spec import ArraySpec, BytesSpec, StrSpec

_INT32, _INT64, _FLOAT, _DOUBLE, _BYTE_ARRAY = 1, 2, 4, 5, 6
"""Numbers of Parquet's physical types."""


class Packed(NamedTuple):
    """Byte strings, one behind the other, in memory of pyarrow's.

    Attributes:
        data: Their bytes.
        offsets: Where each begins, and the end of the last one.
        text: Whether they are UTF-8.
    """

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]
    text: bool


Leaves: TypeAlias = "list[Packed | npt.NDArray[Any] | list[Any]]"


def passing(batch: Any, filters: Filters, arrow: Any) -> Any:
    """Which rows pass. `in` and `not in` take a missing value like any other; all other conditions on it are false."""
    compute = arrow.compute
    tests = {
        "=": compute.equal,
        "==": compute.equal,
        "!=": compute.not_equal,
        "<": compute.less,
        "<=": compute.less_equal,
        ">": compute.greater,
        ">=": compute.greater_equal,
    }
    passes = None
    for alternative in filters:
        held = None
        for column, operator, value in alternative:
            values = _without_dictionary(batch.column(batch.schema.get_field_index(column)), arrow)
            if operator in tests:
                holds = tests[operator](values, _scalar(value, values.type, arrow))
            else:
                holds = compute.is_in(values, value_set=arrow.array(list(value), type=values.type))
                holds = compute.invert(holds) if operator == "not in" else holds
            holds = compute.fill_null(holds, fill_value=False)
            held = holds if held is None else compute.and_(held, holds)
        if held is not None:
            passes = held if passes is None else compute.or_(passes, held)
    return passes


def _without_dictionary(array: Any, arrow: Any) -> Any:
    """The values themselves where an array holds numbers of values in a dictionary."""
    return array.dictionary_decode() if arrow.types.is_dictionary(array.type) else array


def _scalar(value: Any, kind: Any, arrow: Any) -> Any:
    """The value of a condition: an integer of the column's type if it fits, since int64 and uint64 have no other."""
    if arrow.types.is_integer(kind) and isinstance(value, int) and not isinstance(value, bool):
        try:
            return arrow.scalar(value, kind)
        except (arrow.ArrowInvalid, OverflowError):
            pass
    return arrow.scalar(value)


def stored_value(raw: bytes | None, physical: int, kind: Any, arrow: Any) -> Any:
    """The value that statistics hold in Parquet's plain form; None where its order is not that of Python's values."""
    types = arrow.types
    if raw is None:
        return None
    if physical == _BYTE_ARRAY:
        if types.is_string(kind) or types.is_large_string(kind):
            # Bounds may be cut short, in the middle of a character as well.
            return raw.decode(errors="strict") if _is_utf8(raw) else None
        return raw if types.is_binary(kind) or types.is_large_binary(kind) else None
    if physical in (_FLOAT, _DOUBLE) and len(raw) == (4 if physical == _FLOAT else 8):
        number = float(np.frombuffer(raw, "<f4" if physical == _FLOAT else "<f8")[0])
        return None if np.isnan(number) else number
    if physical in (_INT32, _INT64) and len(raw) == (4 if physical == _INT32 else 8):
        if types.is_integer(kind):
            signed = not str(kind).startswith("u")
            return int.from_bytes(raw, "little", signed=signed)
        if types.is_date(kind) or types.is_timestamp(kind):
            width = arrow.int32() if physical == _INT32 else arrow.int64()
            if types.is_timestamp(kind) and kind.tz is not None:
                # Python compares two datetimes of one zone by their clocks, which are put back each autumn.
                kind = arrow.timestamp(kind.unit, "+00:00")
            try:
                return arrow.scalar(int.from_bytes(raw, "little", signed=True), width).cast(kind).as_py()
            except (arrow.ArrowException, ValueError, OverflowError):
                return None
    return None


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def structure_of(kind: Any, arrow: Any) -> Structure:
    """How the values of a type nest: structs become dicts, everything else is a leaf."""
    if not arrow.types.is_struct(kind) or kind.num_fields == 0:
        return LEAF
    fields = [kind.field(index) for index in range(kind.num_fields)]
    return DictOf(tuple(f.name for f in fields), tuple(structure_of(f.type, arrow) for f in fields))


def spec_of_type(kind: Any, arrow: Any) -> Any:
    """What the values of a type are as elements, nested as `structure_of` nests them; None where it depends on them."""
    types = arrow.types
    if structure_of(kind, arrow) is not LEAF:
        return {kind.field(i).name: spec_of_type(kind.field(i).type, arrow) for i in range(kind.num_fields)}
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return StrSpec()
    if _offset_type(kind, types) is not None or types.is_binary_view(kind):
        return BytesSpec()
    if _is_plain(kind, types) or types.is_timestamp(kind) or types.is_date(kind) or types.is_duration(kind):
        return ArraySpec((), arrow.array([], kind).to_numpy(zero_copy_only=False).dtype)
    if types.is_fixed_size_list(kind) and _is_plain(kind.value_type, types):
        return ArraySpec((kind.list_size,), kind.value_type.to_pandas_dtype())
    if (types.is_list(kind) or types.is_large_list(kind)) and _is_plain(kind.value_type, types):
        return ArraySpec((None,), kind.value_type.to_pandas_dtype())
    return None


def add_leaves(array: Any, leaves: Leaves, arrow: Any) -> None:
    """Appends the values of a column, leaf by leaf, as `structure_of` nests them."""
    if structure_of(array.type, arrow) is LEAF:
        leaves.append(_leaf(array, arrow))
        return
    # A missing struct becomes one of missing values.
    for child in array.flatten():
        add_leaves(child, leaves, arrow)


def _leaf(array: Any, arrow: Any) -> Any:
    types = arrow.types
    array = _without_dictionary(array, arrow)
    if types.is_string_view(array.type):
        array = array.cast(arrow.large_string())
    if types.is_binary_view(array.type):
        array = array.cast(arrow.large_binary())
    kind = array.type
    if types.is_string(kind) or types.is_large_string(kind):
        array.validate(full=True)  # that it is UTF-8
    if array.null_count == 0 and (offset_type := _offset_type(kind, types)) is not None:
        return _packed(array, offset_type)
    if types.is_floating(kind) or types.is_timestamp(kind) or types.is_date(kind) or types.is_duration(kind):
        # Missing values are NaN, or NaT.
        return array.to_numpy(zero_copy_only=False)
    if types.is_integer(kind) or types.is_boolean(kind):
        return _whole_numbers(array, kind)
    if (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)) and _is_plain(
        kind.value_type, types
    ):
        return _lists(array, arrow)
    return array.to_pylist()


def _whole_numbers(array: Any, kind: Any) -> Any:
    if array.null_count == 0:
        return array.to_numpy(zero_copy_only=False)
    make = np.dtype(kind.to_pandas_dtype()).type
    return [None if item is None else make(item) for item in array.to_pylist()]


def _offset_type(kind: Any, types: Any) -> type[np.integer[Any]] | None:
    """How the offsets of byte strings are stored; None for what is no byte strings."""
    if types.is_string(kind) or types.is_binary(kind) or types.is_fixed_size_binary(kind):
        return np.int32
    if types.is_large_string(kind) or types.is_large_binary(kind):
        return np.int64
    return None


def _packed(array: Any, offset_type: type[np.integer[Any]]) -> Packed:
    count = len(array)
    if "fixed_size" in str(array.type):
        data = array.buffers()[1]
        bounds = np.arange(array.offset, array.offset + count + 1, dtype=np.int64) * array.type.byte_width
        return Packed(np.frombuffer(data, np.uint8), bounds, text=False)
    _, offsets, data = array.buffers()
    if offsets is None or not count:
        return Packed(np.empty(0, np.uint8), np.zeros(count + 1, np.int64), text=False)
    bounds = np.frombuffer(offsets, offset_type)[array.offset : array.offset + count + 1].astype(np.int64)
    content = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return Packed(content, bounds, text="string" in str(array.type))


def _is_plain(kind: Any, types: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _lists(array: Any, arrow: Any) -> Any:
    """Lists of numbers: an array per row, or one array of all rows where all are of one length by type.

    A list in which a number is missing is one of Python's. It does not depend on the rows that are decoded with it.
    """
    values = array.flatten()
    if values.null_count:
        return [_list(row.values) for row in array]
    numbers = values.to_numpy(zero_copy_only=False)
    if arrow.types.is_fixed_size_list(array.type) and not array.null_count:
        return numbers.reshape(len(array), array.type.list_size)
    lengths = arrow.compute.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    stops = np.cumsum(lengths)
    parts: list[Any] = [numbers[a:b] for a, b in zip((stops - lengths).tolist(), stops.tolist(), strict=True)]
    if array.null_count:
        valid = array.is_valid().to_pylist()
        parts = [part if there else None for part, there in zip(parts, valid, strict=True)]
    return parts


def _list(numbers: Any) -> Any:
    if numbers is None or not numbers.null_count:
        return None if numbers is None else numbers.to_numpy(zero_copy_only=False)
    return numbers.to_pylist()
