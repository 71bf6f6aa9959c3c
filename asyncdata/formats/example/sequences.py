"""``tf.train.SequenceExample`` to numpy: ``parse_sequence_example(context_features, sequence_features)``.

::

    SequenceExample = field 1: Features (the context, as in an Example) | field 2: FeatureLists
    FeatureLists    = field 1, repeated: entry of the map
    entry           = field 1: key,  field 2: FeatureList
    FeatureList     = field 1, repeated: Feature, one per step

The values are those of ``tf.io.parse_sequence_example`` and ``tf.io.parse_single_sequence_example``. Records are read
one by one. The steps of all records of a batch are then put together like the records of a batch of Examples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from asyncdata import arguments
from asyncdata.errors import CorruptRecordError
from asyncdata.formats.example.features import (
    AnyFeature,
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
)
from asyncdata.formats.example.outputs import (
    of_batch,
    of_record,
    of_records,
    of_sequences,
    padded,
    ragged,
    stacked,
)
from asyncdata.formats.example.parser import batch_of
from asyncdata.formats.example.scalar import Record, ScalarReader, decode, in_batch, read_entry, what_there_is, words_of
from asyncdata.formats.example.varints import WireError, read_length, skip_field
from asyncdata.formats.example.wanted import Output, Wanted, check_spec, plan
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.ragged import RaggedArray

_LISTS: Final = 0x12
_ENTRY: Final = 0x0A
_STEP: Final = 0x0A


class SequenceExampleParser:
    """A picklable map function: one serialized SequenceExample, or a batch of them.

    One record gives two dicts, ``(context, sequences)``. A batch gives ``(context, sequences, lengths)``; the last one
    has the number of steps of every padded feature by record.

    | feature in a sequence   | one record                  | a batch of n                                     |
    |-------------------------|-----------------------------|--------------------------------------------------|
    | FixedLenSequenceFeature | array (steps, *shape)       | array (n, most steps, *shape), padded            |
    | VarLenFeature           | `RaggedArray` (steps, None) | `RaggedArray` (n, None, None)                    |
    | RaggedFeature           | the same                    | the same; a level more per partition             |

    Attributes:
        context_features: The spec of the context.
        sequence_features: The spec of the sequences.
    """

    def __init__(
        self, context_features: Mapping[str, AnyFeature] | None, sequence_features: Mapping[str, AnyFeature] | None
    ) -> None:
        none: dict[str, AnyFeature] = {}
        self.context_features = check_spec("context_features", none if context_features is None else context_features)
        self.sequence_features = check_spec(
            "sequence_features", none if sequence_features is None else sequence_features
        )
        if not self.context_features and not self.sequence_features:
            raise ValueError("context_features and sequence_features name no feature")
        for name, feature in self.sequence_features.items():
            if isinstance(feature, FixedLenFeature):
                raise TypeError(f"sequence feature {name!r} has steps: use FixedLenSequenceFeature")
        self._context_wanted, self._context = plan(self.context_features)
        self._one = ScalarReader(self._context_wanted)
        # A step of a padded sequence is like a fixed feature in an Example.
        steps: dict[str, Feature] = {
            name: FixedLenFeature(feature.shape, feature.dtype)
            if isinstance(feature, FixedLenSequenceFeature)
            else feature
            for name, feature in self.sequence_features.items()
        }
        self._wanted, self._sequences = plan(steps)
        self._slots: dict[bytes, list[int]] = {}
        for slot, item in enumerate(self._wanted):
            self._slots.setdefault(item.key, []).append(slot)
        self._required = {
            output.slot
            for output in self._sequences
            if isinstance(feature := self.sequence_features[output.name], FixedLenSequenceFeature)
            and not feature.allow_missing
        }

    def __reduce__(self) -> tuple[Callable[..., SequenceExampleParser], tuple[Any, ...]]:
        return SequenceExampleParser, (self.context_features, self.sequence_features)

    def __repr__(self) -> str:
        return f"parse_sequence_example({', '.join([*self.context_features, *self.sequence_features])})"

    def __element_spec__(self, given: Any) -> Any:
        """Returns the spec of the result for records of the spec `given`."""
        return of_sequences(self.context_features, self.sequence_features, of_records(given))

    def __call__(self, record: Any) -> tuple[dict[str, Any], ...]:
        """Parses one record, or a batch of them.

        Raises:
            CorruptRecordError: A record is not a SequenceExample, or a feature contradicts the specs.
        """
        if isinstance(record, bytes | bytearray | memoryview):
            context = self._one.read(record)
            sequences = self._steps(bytes(record))
            return (
                {output.name: of_record(output, context) for output in self._context},
                {output.name: self._of_record(output, sequences) for output in self._sequences},
            )
        return self.batched(record)

    def batched(self, records: Sequence[Record]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Parses a batch.

        Raises:
            CorruptRecordError: A record cannot be parsed; the message says which one of the batch.
        """
        contexts, sequences = [], []
        records = batch_of(records).views()
        for index, record in enumerate(records):
            try:
                contexts.append(self._one.read(record))
                sequences.append(self._steps(bytes(record)))
            except CorruptRecordError as error:
                raise in_batch(error, index, len(records)) from None
        columns = [stacked([c[slot] for c in contexts], item) for slot, item in enumerate(self._context_wanted)]
        context = {output.name: of_batch(output, columns) for output in self._context}
        found: dict[str, Any] = {}
        lengths: dict[str, Any] = {}
        for output in self._sequences:
            counts = [len(steps[output.slot]) for steps in sequences]
            outer = np.zeros(len(counts) + 1, np.int64)
            np.cumsum(counts, out=outer[1:])
            value = self._together(output, sequences)
            feature = self.sequence_features[output.name]
            if isinstance(feature, FixedLenSequenceFeature):
                found[output.name] = padded(feature, np.asarray(value), outer)
                lengths[output.name] = np.array(counts, np.int64)
            else:
                dtype = feature.row_splits_dtype if isinstance(feature, RaggedFeature) else np.int64
                found[output.name] = RaggedArray(value, outer.astype(dtype))
        return context, found, lengths

    # --- one record

    def _steps(self, data: bytes) -> list[list[Any]]:
        """Returns the values of every step, list by list."""
        try:
            places = self._scan(data)
        except (WireError, IndexError) as error:
            raise CorruptRecordError(f"the record is not a tf.train.SequenceExample: {words_of(error)}") from None
        found: list[list[Any]] = []
        for slot, item in enumerate(self._wanted):
            place = places[slot]
            if place is None:
                if slot in self._required:
                    there = what_there_is(data, _LISTS, "sequence features")
                    raise CorruptRecordError(f"sequence feature {item.name!r} ({item.kind}) is missing; {there}")
                found.append([])
                continue
            found.append(_values(data, place, item))
        for output in self._sequences:
            # Here, because records of a batch may have as many of both together.
            if any(slot is not None and len(found[slot]) != len(found[output.slot]) for slot in output.cuts):
                raise CorruptRecordError(f"sequence feature {output.name!r} and its partitions differ in steps")
        return found

    def _scan(self, data: bytes) -> list[tuple[int, int] | None]:
        """Finds the FeatureList of each selected key."""
        places: list[tuple[int, int] | None] = [None] * len(self._wanted)
        position, size = 0, len(data)
        while position < size:
            if data[position] != _LISTS:
                position = skip_field(data, position, size)
                continue
            position, end = read_length(data, position + 1, size)
            while position < end:
                if data[position] != _ENTRY:
                    raise WireError(f"an entry of its map begins with byte {data[position]:#04x}")
                entry, stop = read_length(data, position + 1, end)
                key, begin, until = read_entry(data, entry, stop)
                for slot in self._slots.get(key, ()):
                    places[slot] = begin, until
                position = stop
        return places

    def _of_record(self, output: Output, steps: list[list[Any]]) -> Any:
        feature = self.sequence_features[output.name]
        value = self._together(output, [steps])
        if isinstance(feature, FixedLenSequenceFeature) and isinstance(value, BytesArray):
            return np.asarray(value)
        return value

    # --- steps of one record or many

    def _together(self, output: Output, sequences: Sequence[list[list[Any]]]) -> Any:
        """Returns the steps of all records as the records of a batch of Examples."""
        columns: list[Any] = [None] * len(self._wanted)
        for slot in (output.slot, *output.cuts):
            if slot is not None:
                columns[slot] = stacked([value for steps in sequences for value in steps[slot]], self._wanted[slot])
        feature = self.sequence_features[output.name]
        return ragged(output, feature, columns) if isinstance(feature, RaggedFeature) else columns[output.slot]


def _values(data: bytes, place: tuple[int, int], item: Wanted) -> list[Any]:
    """Returns the values of every step of one FeatureList."""
    position, end = place
    values: list[Any] = []
    try:
        while position < end:
            if data[position] != _STEP:
                raise WireError(f"a step begins with byte {data[position]:#04x}")
            begin, position = read_length(data, position + 1, end)
            if begin < position:
                values.append(decode(data, (begin, position), item, None))
            elif item.default is not None:
                values.append(item.default)
            else:
                raise WireError("it holds no value")
    except (WireError, IndexError) as error:
        where = f"sequence feature {item.name!r}, step {len(values)}"
        raise CorruptRecordError(f"{where}: {words_of(error)}") from None
    return values


@arguments.suggests
def parse_sequence_example(
    context_features: Mapping[str, AnyFeature] | None = None,
    sequence_features: Mapping[str, AnyFeature] | None = None,
) -> SequenceExampleParser:
    """A map function from serialized ``tf.train.SequenceExample`` to dicts, for one record or a batch.

    Example:
        >>> import asyncdata as ad
        >>> record = ad.serialize_sequence_example({"id": 7}, {"words": [["a"], ["b", "c"]], "x": [0.5, 1.5]})
        >>> parse = ad.parse_sequence_example(
        ...     {"id": ad.FixedLenFeature([], int)},
        ...     {"words": ad.VarLenFeature(bytes), "x": ad.FixedLenSequenceFeature([], float)},
        ... )
        >>> context, sequences = parse(record)
        >>> int(context["id"]), sequences["words"].to_list(), sequences["x"].tolist()
        (7, [[b'a'], [b'b', b'c']], [0.5, 1.5])
        >>> context, sequences, lengths = parse([record, record])
        >>> sequences["words"].shape, lengths["x"].tolist()
        ((2, None, None), [2, 2])

    Args:
        context_features: The features of the context by name, as for `parse_example`.
        sequence_features: The features of the sequences by name: FixedLenSequenceFeature (padded in a batch),
            VarLenFeature or RaggedFeature.
    """
    return SequenceExampleParser(context_features, sequence_features)
