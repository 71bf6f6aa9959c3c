"""TensorFlow: a dataset as a ``tf.data.Dataset``; the only file that imports tensorflow.

TensorFlow is given numpy's arrays, whose memory it takes over without a copy where that begins on a 64-byte boundary,
as all leaves that workers write do.
"""

from __future__ import annotations

import contextlib
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from asyncdata.dataset.dataset import Dataset
from asyncdata.errors import PipelineError
from asyncdata.feed.even import Least
from asyncdata.feed.feeding import Feed
from asyncdata.feed.ranks import Division
from asyncdata.feed.run import Conversion, Hand
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.ragged import RaggedArray
from asyncdata.memory.structure import flatten, leaf_names, map_leaves
from asyncdata.spec import ArraySpec, BytesSpec, RaggedSpec, StrSpec
from asyncdata.types import Element

TfDataset: TypeAlias = tf.data.Dataset


class TensorflowFeed(Feed):
    """Epochs of a dataset in values that TensorFlow converts; `asyncdata.feed.tensorflow` makes one.

    Attributes:
        signature: What TensorFlow was told of batches, if nobody but this file told it.
    """

    signature: Any = None

    def _distributed(self) -> tuple[int, int] | None:
        return None

    def _check_process(self) -> None:
        """Any process will do."""

    def _least(self) -> Least:
        raise PipelineError(
            f"even={self._division.even!r}: the ranks cannot agree on the number of steps, which is not known in "
            "advance. Give even=None and steps_per_epoch to fit, or assert_cardinality(n) after the dataset"
        )

    def _hand(self) -> Hand:
        return Conversion(self._values)

    def _values(self, batch: Element) -> Any:
        if self.signature is not None:
            self._check_types(batch)
        return map_leaves(_value, batch, whole_ragged=True)

    def _check_types(self, batch: Element) -> None:
        """TensorFlow would convert another type to that of the signature, and cut what does not fit."""
        specs = _by_name(self.signature)
        for name, leaf in _by_name(batch).items():
            spec, found = specs.get(name), _type_of(leaf)
            if spec is not None and found != spec.dtype:  # without one, TensorFlow says how the structures differ
                raise PipelineError(
                    f"a batch has values of {found.name} where the signature, of the first batch or of the dataset, "
                    f"has {spec.dtype.name}: convert them in a map, or give output_signature=...",
                    leaf=name or None,
                )


def as_tf_dataset(dataset: Dataset, division: Division, signature: Any) -> TfDataset:
    """See `asyncdata.feed.tensorflow`."""
    batches = TensorflowFeed(dataset, division)
    if signature is None:
        signature = _signature(dataset)
        if division.even == "pad":
            signature = signature, _mask_of(signature)
        batches.signature = signature
    made = tf.data.Dataset.from_generator(lambda: batches, output_signature=signature)
    with contextlib.suppress(TypeError):  # not known, or infinite
        made = made.apply(tf.data.experimental.assert_cardinality(len(batches)))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return made.with_options(options)


def _by_name(element: Any) -> dict[str, Any]:
    leaves, structure = flatten(element, whole_ragged=True)
    return dict(zip(leaf_names(structure), leaves, strict=True))


def _value(leaf: Any) -> Any:
    """What TensorFlow makes a tensor of."""
    if isinstance(leaf, np.ma.MaskedArray):
        raise PipelineError("TensorFlow would lose the mask of a masked array: fill it in a map")
    splits: list[Any] = []
    while isinstance(leaf, RaggedArray):
        splits.append(leaf.row_splits.astype(np.int64, copy=False))
        leaf = leaf.values
    if splits:
        return tf.RaggedTensor.from_nested_row_splits(_value(leaf), splits, validate=False)
    return np.asarray(leaf, object) if isinstance(leaf, BytesArray) else leaf


# --- the signature -----------------------------------------------------------------------------------------------


def _signature(dataset: Dataset) -> Any:
    """TensorFlow's specs of the batches; what the plan does not know is learned from the first one."""
    found = map_leaves(_spec, dataset.element_spec)
    if all(spec is not None for spec in tf.nest.flatten(found)):
        return found
    with dataset.iterator(epoch=0) as batches:
        for batch in batches:
            return map_leaves(_spec_of, batch, whole_ragged=True)
    raise PipelineError("the dataset has no batch from which its types could be learned: give output_signature=...")


def _mask_of(signature: Any) -> Any:
    """The spec of the mask beside batches of a signature: as many values as they have rows."""
    shapes = [spec.shape for spec in tf.nest.flatten(signature)]
    rows: Any = next((shape[:1] for shape in shapes if shape.rank != 0), [])
    return tf.TensorSpec(rows, tf.bool)


def _spec(spec: Any) -> Any:
    if isinstance(spec, BytesSpec | StrSpec):
        return tf.TensorSpec(spec.shape, tf.string)
    if isinstance(spec, RaggedSpec) and spec.dtype is not None:
        return tf.RaggedTensorSpec(spec.shape, _dtype(spec.dtype), spec.ragged_rank, tf.int64)
    if isinstance(spec, ArraySpec) and spec.dtype is not None:
        return tf.TensorSpec(spec.shape, _dtype(spec.dtype))
    return None


def _spec_of(leaf: Any) -> Any:
    """Of a batch: other batches may have another number of rows, and nothing else."""
    dtype, rank = _type_of(leaf), 0
    while isinstance(leaf, RaggedArray):
        leaf, rank = leaf.values, rank + 1
    if rank:
        inner = () if isinstance(leaf, BytesArray) else leaf.shape[1:]
        return tf.RaggedTensorSpec([None] * (rank + 1) + list(inner), dtype, rank, tf.int64)
    if isinstance(leaf, bytes | str | BytesArray):
        return tf.TensorSpec([None] if isinstance(leaf, BytesArray) else [], dtype)
    array = np.asarray(leaf)
    for item in array.flat if array.dtype.hasobject else ():
        if not isinstance(item, bytes | str):
            raise _no_type(type(item).__name__)
    return tf.TensorSpec([None, *array.shape[1:]] if array.ndim else [], dtype)


def _type_of(leaf: Any) -> Any:
    while isinstance(leaf, RaggedArray):
        leaf = leaf.values
    if isinstance(leaf, bytes | str | BytesArray):
        return tf.string
    return _dtype(np.asarray(leaf).dtype)


def _dtype(dtype: Any) -> Any:
    try:
        return tf.as_dtype(dtype)
    except TypeError:
        raise _no_type(dtype) from None


def _no_type(name: Any) -> PipelineError:
    return PipelineError(f"TensorFlow has no type for {name}: convert it in a map, or leave it out of the batches")
