"""``tf.train.Example`` to numpy, without TensorFlow and without protobuf: ``parse_example(spec)``.

The values are those of ``tf.io.parse_example`` and ``tf.io.parse_single_example`` for the same bytes: the last entry of
a key counts, an entry without a value counts as absent, lists may be packed or not, int64 are two's complement varints,
and values are never cast. Where TensorFlow lets a length exceed its enclosing message, this parser reports a corrupt
record. ``wanted`` plans once what to look for. ``scalar`` finds it in one record, ``columnar`` in many together, and
``outputs`` makes features of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asyncdata import arguments
from asyncdata.errors import CorruptRecordError
from asyncdata.formats.example.columnar import Column, ColumnarReader
from asyncdata.formats.example.features import AnyFeature, Feature, FixedLenFeature, FixedLenSequenceFeature
from asyncdata.formats.example.keys import MAX_KEY_BYTES
from asyncdata.formats.example.outputs import of_batch, of_examples, of_record, of_records, of_stack, patched, stacked
from asyncdata.formats.example.scalar import Record, ScalarReader, in_batch
from asyncdata.formats.example.varints import ByteArray, IntArray
from asyncdata.formats.example.wanted import check_spec, plan
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.wording import kind_of

_LIGHT: Final = 16
"""Values of fixed features that are read in about a microsecond a record."""


class ExampleParser:
    """A picklable map function: one serialized Example, or a whole batch of them, to a dict by feature name.

    For one record (bytes, bytearray, memoryview) it returns what ``tf.io.parse_single_example`` returns; for a
    `BytesArray` or any other sequence of records, what ``tf.io.parse_example`` returns. ``outputs`` lists the types.

    Attributes:
        spec: What was asked for.
        zero_copy: Bytes values of a single record are memoryviews into it, valid as long as it is. Those of a batch
            always stay where they are, in memory that the result keeps alive.
        accepts_rows: Tells a pipeline that it may call :meth:`rows` with references instead of payloads.
        light: A record costs about a microsecond, hardly more than handing it to another process.
        dense: A batch is nothing else than its records side by side: :meth:`rows` gives the same as :meth:`batched`.
    """

    accepts_rows = True

    def __init__(self, spec: Mapping[str, AnyFeature], *, zero_copy: bool = False) -> None:
        self.spec = check_spec("spec", spec)
        if not spec:
            raise ValueError("the spec names no feature")
        for name, feature in spec.items():
            if isinstance(feature, FixedLenSequenceFeature) and not feature.allow_missing:
                raise ValueError(f"feature {name!r}: a FixedLenSequenceFeature of an Example needs allow_missing=True")
        self.zero_copy = arguments.flag("zero_copy", zero_copy)
        self.dense = all(isinstance(feature, FixedLenFeature) for feature in self.spec.values())
        self._wanted, self._outputs = plan(self.spec)
        self.light = self.dense and sum(item.count for item in self._wanted) <= _LIGHT
        self._one = ScalarReader(self._wanted)
        # Byte strings of records that are read one by one stay where they are, too, where each is a list of its own.
        self._in_place = all(item.single for item in self._wanted if item.kind == "bytes")
        keys = {item.key for item in self._wanted}
        # If two lists share a key, or a key is very long, records are read one by one.
        usual = len(keys) == len(self._wanted) and max(map(len, keys)) <= MAX_KEY_BYTES
        self._many = ColumnarReader(self._wanted) if usual else None

    def __reduce__(self) -> tuple[Callable[..., ExampleParser], tuple[Any, ...]]:
        return _rebuild, (self.spec, self.zero_copy)

    def __repr__(self) -> str:
        return f"parse_example({', '.join(self.spec)})"

    def __element_spec__(self, given: Any) -> dict[str, Any] | None:
        """Returns the spec of the result for records of the spec `given`."""
        return of_examples(self.spec, of_records(given))

    def __call__(self, record: Any) -> dict[str, Any]:
        """Parses one record, or a batch of them.

        Raises:
            CorruptRecordError: A record is not an Example, or a feature contradicts the spec.
            TypeError: The argument is neither a record nor a batch of records.
        """
        if not isinstance(record, bytes | bytearray | memoryview):
            return self.batched(record)
        values = self._one.read(record, memoryview(record) if self.zero_copy else None)
        return {output.name: of_record(output, values) for output in self._outputs}

    def batched(self, records: Sequence[Record]) -> dict[str, Any]:
        """Parses a batch.

        Raises:
            CorruptRecordError: A record cannot be parsed; the message says which one of the batch.
            TypeError: The records are not bytes.
        """
        batch = batch_of(records)
        columns = self._columns(batch.memory, batch.places)
        return {output.name: of_batch(output, columns) for output in self._outputs}

    def rows(self, view: memoryview | npt.NDArray[np.uint8], rows: npt.NDArray[np.int64]) -> dict[str, Any]:
        """Parses single records in ``view`` at ``rows`` = int64[n, 2] of (offset, length), and stacks them.

        Byte strings of the result refer to ``view``.

        Raises:
            CorruptRecordError: A record cannot be parsed; the message says which one of the batch.
            ValueError: Values differ in shape from record to record.
        """
        array = view if isinstance(view, np.ndarray) else np.frombuffer(view, np.uint8)
        columns = self._columns(array, rows)
        return {output.name: of_stack(output, columns) for output in self._outputs}

    def _columns(self, array: ByteArray, rows: IntArray) -> list[Column]:
        """Returns the lists of the records at ``rows``: usual records together, the rest one by one.

        Byte strings are not copied if possible.
        """
        together = None if self._many is None else self._many.read(array, rows)
        left = list(range(len(rows))) if together is None else np.flatnonzero(~together[1]).tolist()
        singles = []
        for index in left:
            offset, length = rows[index].tolist()
            try:
                record = array[offset : offset + length].data
                singles.append(self._one.read(record, record if self._in_place else None))
            except CorruptRecordError as error:
                raise in_batch(error, index, len(rows)) from None
        values = [[single[slot] for single in singles] for slot in range(len(self._wanted))]
        if together is None:
            return [stacked(found, item, array) for found, item in zip(values, self._wanted, strict=True)]
        if not left:
            return together[0]
        return [
            patched(column, left, found, item, array)
            for column, found, item in zip(together[0], values, self._wanted, strict=True)
        ]


@arguments.suggests
def parse_example(spec: Mapping[str, AnyFeature], *, zero_copy: bool = False) -> ExampleParser:
    """A map function from serialized ``tf.train.Example`` to a dict of values, for one record or a batch.

    Example:
        >>> import asyncdata as ad
        >>> parse = ad.parse_example({"label": ad.FixedLenFeature([], int), "words": ad.VarLenFeature(bytes)})
        >>> record = ad.serialize_example({"label": 7, "words": [b"a", b"b"]})
        >>> values = parse(record)
        >>> int(values["label"]), values["words"].tolist()
        (7, [b'a', b'b'])
        >>> batch = parse([record, ad.serialize_example({"label": 8})])
        >>> batch["label"].tolist(), batch["words"].to_list()
        ([7, 8], [[b'a', b'b'], []])

    Args:
        spec: A dict from feature names to instances of the feature classes.
        zero_copy: Return bytes values of a single record as memoryviews into it.
    """
    return ExampleParser(spec, zero_copy=zero_copy)


def batch_of(records: Any) -> BytesArray:
    """Returns a batch of records side by side.

    Raises:
        TypeError: The argument is something else: texts, numbers, a batch of batches.
    """
    items = records.tolist() if isinstance(records, np.ndarray) else records
    if isinstance(items, Sequence) and not isinstance(items, str):
        found = items if isinstance(items, BytesArray) else BytesArray.from_items(items)
        if not found.text:
            return found
    raise TypeError(f"a record is bytes, and a batch of records a sequence of them, not {kind_of(records)}")


def _rebuild(spec: dict[str, Feature], zero_copy: bool) -> ExampleParser:
    return ExampleParser(spec, zero_copy=zero_copy)
