"""The arguments of `CsvDataset` that describe a file's columns, checked and converted for the framer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count, islice, pairwise
from typing import Any, Final

import numpy as np

from asyncdata import arguments
from asyncdata.formats.csv_values import Column
from asyncdata.spec import ArraySpec, BytesSpec
from asyncdata.wording import counted

_NUMBERS: Final = ("int32", "int64", "float32", "float64")
_NAMED: Final = {
    **{name: np.dtype(name) for name in _NUMBERS},
    "float": np.float32,
    "double": np.float64,
    "string": bytes,
}
"""Texts that tf.data takes for dtypes; all others are defaults."""


def csv_settings(
    record_defaults: Sequence[Any] | Mapping[str, Any],
    *,
    header: bool,
    field_delim: str,
    use_quote_delim: bool,
    na_value: str,
    select_cols: Sequence[int] | None,
    exclude_cols: Sequence[int] | None,
    column_names: Sequence[str] | None,
) -> dict[str, Any]:
    """The arguments of `CsvFramer`, and the spec of a row."""
    if isinstance(record_defaults, Mapping):
        wanted = arguments.texts("the keys of record_defaults", list(record_defaults))
        defaults: Iterable[Any] = record_defaults.values()
    elif isinstance(record_defaults, str | bytes) or not isinstance(record_defaults, Iterable):
        raise TypeError(
            "record_defaults must be a list of a dtype or default per column, or a dict by their names, not "
            f"{arguments.shown(record_defaults)}"
        )
    else:
        wanted, defaults = None, record_defaults
    columns = tuple(_column(_NAMED.get(item, item) if isinstance(item, str) else item) for item in defaults)
    delimiter = _text("field_delim", field_delim)
    if len(delimiter) != 1 or delimiter in (b"\n", b"\r", b'"' if use_quote_delim else b"\n"):
        raise ValueError(
            f"field_delim must be an ASCII character other than line end and quote, not {arguments.shown(field_delim)}"
        )
    if not columns:
        raise ValueError("record_defaults must name at least one column")
    places = _places(wanted, column_names, _selected(select_cols, exclude_cols, len(columns)), columns, header=header)
    row = tuple(BytesSpec() if dtype == "bytes" else ArraySpec((), dtype) for dtype, _ in columns)
    return {
        "spec": dict(zip(places["names"], row, strict=True)) if "names" in places else row,
        "columns": columns,
        "header": header,
        "delimiter": delimiter,
        "quotes": use_quote_delim,
        "na_value": _text("na_value", na_value),
        **places,
    }


def _text(name: str, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    text: str = arguments.instance(name, value, str, "a str")
    return text.encode()


def _column(default: Any) -> Column:
    """Returns the type of a column."""
    if isinstance(default, type | np.dtype):
        if default in (bytes, str):
            return Column("bytes", None)
        name = "int32" if default is int else "float32" if default is float else np.dtype(default).name
        if name not in _NUMBERS:
            raise TypeError(f"record_defaults may contain {', '.join(_NUMBERS)} or bytes, not {name}")
        return Column(name, None)
    if isinstance(default, list | tuple) and len(default) == 1:
        default = default[0]
    if isinstance(default, np.ndarray | np.generic) and default.size == 1:
        value = default.reshape(()).item() if default.dtype.kind not in "OSU" else default.reshape(-1)[0]
        if default.dtype.name in _NUMBERS:
            return Column(default.dtype.name, value)
        default = value
    if isinstance(default, str | bytes):
        return Column("bytes", default.encode() if isinstance(default, str) else bytes(default))
    if isinstance(default, int) and not isinstance(default, bool):
        if not np.iinfo(np.int32).min <= default <= np.iinfo(np.int32).max:
            raise ValueError(f"the default {default} does not fit int32, the type of an int; pass np.int64({default})")
        return Column("int32", default)
    if isinstance(default, float):
        with np.errstate(over="ignore"):
            fits = np.isinf(np.float32(default)) == np.isinf(default)
        if not fits:
            raise ValueError(
                f"the default {default} does not fit float32, the type of a float; pass np.float64({default})"
            )
        return Column("float32", default)
    raise TypeError(f"every item of record_defaults must be a dtype, a number or a str, not {arguments.shown(default)}")


def _places(
    wanted: tuple[str, ...] | None,
    column_names: Sequence[str] | None,
    selected: tuple[int, ...] | None,
    columns: Sequence[Any],
    *,
    header: bool,
) -> dict[str, Any]:
    """Returns the numbers and names of the selected columns, as arguments of the framer."""
    names = None if column_names is None else arguments.texts("column_names", column_names)
    if names is not None and len(set(names)) < len(names):
        raise ValueError(f"column_names must differ, not {list(names)}")
    if wanted is None:
        if names is None:
            return {"selected": selected}
        most = len(columns) - 1 if selected is None else selected[-1]
        if len(names) <= most or (selected is None and len(names) != len(columns)):
            raise ValueError(
                f"column_names must name all columns of the files: there are {len(names)} names, and record_defaults "
                f"has {counted(len(columns), 'item')}" + ("" if selected is None else f", the last for column {most}")
            )
        return {"selected": selected, "names": names if selected is None else tuple(names[i] for i in selected)}
    if selected is not None:
        raise ValueError("a dict of record_defaults selects columns by name; do not pass select_cols or exclude_cols")
    if names is None:
        if not header:
            raise ValueError(
                "record_defaults names columns: pass header=True if the first line of the files has the names, or "
                "column_names"
            )
        return {"selected": None, "names": wanted, "by_header": True}
    absent = [name for name in wanted if name not in names]
    if absent:
        raise ValueError(f"record_defaults names the column {arguments.shown(absent[0])}, which is not in column_names")
    return {"selected": tuple(map(names.index, wanted)), "names": wanted}


def _selected(select: Sequence[int] | None, exclude: Sequence[int] | None, columns: int) -> tuple[int, ...] | None:
    if select is not None and exclude is not None:
        raise ValueError("give either select_cols or exclude_cols")
    if exclude is not None:
        left_out = set(arguments.integers("exclude_cols", exclude, least=0))
        if not left_out:
            return None  # not all their numbers: those would allow rows with more fields
        return tuple(islice((number for number in count() if number not in left_out), columns))
    if select is None:
        return None
    numbers = arguments.integers("select_cols", select, least=0)
    if len(numbers) != columns:
        raise ValueError(f"select_cols names {len(numbers)} columns, but record_defaults has {columns}")
    if any(b <= a for a, b in pairwise(numbers)):
        raise ValueError(f"select_cols must ascend, not {list(numbers)}")
    return numbers
