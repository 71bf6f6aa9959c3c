"""``tf.train.Example`` in protobuf, without TensorFlow: its schema, and the two ways in which programs fill it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_KINDS: Final = {
    "bytes_list": ("BytesList", _FIELD.TYPE_BYTES),
    "float_list": ("FloatList", _FIELD.TYPE_FLOAT),
    "int64_list": ("Int64List", _FIELD.TYPE_INT64),
}


def message_classes() -> dict[str, Callable[..., Any]]:
    """The classes of ``example.proto`` and ``feature.proto`` by name; each call makes them anew."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="example", syntax="proto3")

    def message(name: str, **fields: str) -> Any:
        made = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(fields.items(), 1):
            made.field.add(name=field, number=number, label=1, type=_FIELD.TYPE_MESSAGE, type_name=f".example.{kind}")
        return made

    for name, kind in _KINDS.values():
        file.message_type.add(name=name).field.add(name="value", number=1, label=3, type=kind)
    feature = message("Feature", **{field: name for field, (name, _) in _KINDS.items()})
    feature.oneof_decl.add(name="kind")
    for field in feature.field:
        field.oneof_index = 0
    message("FeatureList").field.add(
        name="feature", number=1, label=3, type=_FIELD.TYPE_MESSAGE, type_name=".example.Feature"
    )
    for name, field_name, kind in (
        ("Features", "feature", "Feature"),
        ("FeatureLists", "feature_list", "FeatureList"),
    ):
        holder, entry = message(name), f"{''.join(map(str.capitalize, field_name.split('_')))}Entry"
        pair = holder.nested_type.add(name=entry)
        pair.options.map_entry = True
        pair.field.add(name="key", number=1, label=1, type=_FIELD.TYPE_STRING)
        pair.field.add(name="value", number=2, label=1, type=_FIELD.TYPE_MESSAGE, type_name=f".example.{kind}")
        place = f".example.{name}.{entry}"
        holder.field.add(name=field_name, number=1, label=3, type=_FIELD.TYPE_MESSAGE, type_name=place)
    message("Example", features="Features")
    message("SequenceExample", context="Features", feature_lists="FeatureLists")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    names = [made.name for made in file.message_type]
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"example.{name}")) for name in names}


class ExampleWriter:
    """Writes Examples with protobuf."""

    def __init__(self) -> None:
        self._classes = message_classes()

    def by_fields(self, features: Mapping[str, Any]) -> bytes:
        """The quick way: values go straight into the message's own fields."""
        example = self._classes["Example"]()
        feature = example.features.feature
        for key, value in features.items():
            if isinstance(value, list | np.ndarray):
                getattr(feature[key], _kind_of(value[0])).value.extend(value)
            else:
                getattr(feature[key], _kind_of(value)).value.append(value)
        return bytes(example.SerializeToString())

    def by_messages(self, features: Mapping[str, Any]) -> bytes:
        """The usual way, as tutorials show it: a message for each feature, then one of them all."""
        made = {}
        for key, value in features.items():
            values = value if isinstance(value, list | np.ndarray) else [value]
            field = _kind_of(values[0])
            made[key] = self._classes["Feature"](**{field: self._classes[_KINDS[field][0]](value=values)})
        classes = self._classes
        return bytes(classes["Example"](features=classes["Features"](feature=made)).SerializeToString())


def _kind_of(value: Any) -> str:
    if isinstance(value, bytes):
        return "bytes_list"
    return "float_list" if isinstance(value, float | np.floating) else "int64_list"
