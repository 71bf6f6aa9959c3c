"""What all learned map functions share: their arguments describe them, in a pickle and in a file of JSON.

    arguments ──constructor──▶ function ──arguments()──▶ JSON, pickle, ==

A function holds nothing but what its arguments say and what follows from them, so it can be sent to worker processes
and saved for serving. Reading a file executes nothing: it names one of the functions of this package.
"""

from __future__ import annotations

import json
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from asyncdata import arguments
from asyncdata.memory.ragged import RaggedArray
from asyncdata.replacing import replacing
from asyncdata.wording import counted

FORMAT: Final = "asyncdata preprocessing"
VERSION: Final = 1
CHECKSUM: Final = "checksum"
"""Of a file: the key of the checksum of everything else. Files of asyncdata 0.2.15 and before have none."""


class MapFunction(ABC):
    """A picklable map function for one leaf: a value, or a batch of them.

    Attributes:
        keras_layer: The class in ``keras.layers`` that does the same with `keras_arguments`.
    """

    keras_layer: ClassVar[str]

    @abstractmethod
    def __call__(self, leaf: Any) -> Any:
        """Returns the leaf's result: numbers with the batch axes that the leaf has."""

    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of the constructor, as JSON can hold them."""

    @abstractmethod
    def keras_arguments(self) -> dict[str, Any]:
        """Returns the arguments with which the Keras layer `keras_layer` computes the same."""

    def to_json(self) -> str:
        """Returns the function as a JSON text, which `load_preprocessing` reads from a file."""
        return to_text(described(self))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the function to a local file of JSON, which is replaced as a whole.

        Raises:
            OSError: The file cannot be written.
        """
        write(path, self.to_json())

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _rebuilt, (type(self), self.arguments())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, MapFunction):
            return type(self) is type(other) and self.arguments() == other.arguments()
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # compared by content, like a list

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={_brief(value)}" for name, value in self.arguments().items() if value is not None)
        return f"{type(self).__name__}({said})"


def described(function: MapFunction) -> dict[str, Any]:
    """Returns what a file holds of a function: its name and its arguments."""
    return {"function": type(function).__name__, "arguments": function.arguments()}


def to_text(said: Mapping[str, Any]) -> str:
    """Returns a file's text with what it says."""
    document = {"format": FORMAT, "version": VERSION, **said}
    return json.dumps({**document, CHECKSUM: checksum_of(document)}, allow_nan=False)


def checksum_of(document: Mapping[str, Any]) -> int:
    """Returns the checksum of what a file says, however it is laid out."""
    return zlib.crc32(json.dumps(document, sort_keys=True).encode())


def write(path: str | os.PathLike[str], text: str) -> None:
    """Replaces a local file as a whole."""
    with replacing(local(path, "write the text of to_json() to it"), "the function", "preprocessing") as file:
        file.write(text.encode())


def local(path: str | os.PathLike[str], remedy: str) -> Path:
    """Returns the path of a local file.

    Raises:
        ValueError: It is a URL; the error names the remedy.
    """
    place = os.fspath(path)
    if "://" in place:
        raise ValueError(f"only local files are written and read, and {arguments.shown(place)} is a URL: {remedy}")
    return Path(place)


def on_values(function: Callable[[np.ndarray[Any, Any]], Any], leaf: Any) -> Any:
    """Calls a function of arrays with a leaf of numbers; with the flat values of a RaggedArray, whose rows are kept."""
    if isinstance(leaf, RaggedArray):
        return RaggedArray.from_nested_row_splits(function(numbers(leaf.flat_values)), leaf.nested_row_splits)
    return function(numbers(leaf))


def numbers(leaf: Any) -> np.ndarray[Any, Any]:
    """Returns a leaf of numbers as an array; the flat values of a RaggedArray.

    Raises:
        TypeError: It holds something else.
    """
    array = np.asarray(leaf.flat_values if isinstance(leaf, RaggedArray) else leaf)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"numbers are needed here, not {arguments.shown(leaf)} of dtype {array.dtype}")
    return array


def are_float32(values: Any) -> bool:
    """Whether numbers are finite in float32, too, in which functions compute as Keras does."""
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.asarray(values, np.float64).astype(np.float32)).all())


def _rebuilt(kind: Callable[..., MapFunction], said: Mapping[str, Any]) -> MapFunction:
    return kind(**said)


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:30]}… ({counted(len(value), 'item')})"
