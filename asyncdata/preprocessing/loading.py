"""Reads learned functions back from JSON. A file can name the functions of this package, and nothing else."""

from __future__ import annotations

import json
import os
from typing import Any, Final

from asyncdata.errors import DataError
from asyncdata.preprocessing.bucketize import Bucketize
from asyncdata.preprocessing.function import CHECKSUM, FORMAT, VERSION, MapFunction, checksum_of, local
from asyncdata.preprocessing.hash_to_bins import HashToBins
from asyncdata.preprocessing.lookup import Lookup
from asyncdata.preprocessing.nest import ByLeaf, Nest
from asyncdata.preprocessing.normalize import Normalize
from asyncdata.preprocessing.text_vectorize import TextVectorize
from asyncdata.wording import listed

_KINDS: Final[tuple[type[MapFunction], ...]] = (Bucketize, HashToBins, Lookup, Normalize, TextVectorize)
_FUNCTIONS: Final = {kind.__name__: kind for kind in _KINDS}


def load_preprocessing(path: str | os.PathLike[str]) -> Any:
    """Reads a function that ``save`` wrote, or the text that ``to_json`` returned, from a local file.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It is a URL.
        DataError: It is something else, of a later version, or damaged.

    Example:
        >>> import tempfile, asyncdata as ad
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ad.Normalize(2.0, 4.0).save(f"{folder}/age.json")
        ...     ad.load_preprocessing(f"{folder}/age.json")
        Normalize(mean=2.0, variance=4.0, invert=False)
    """
    file = local(path, "copy it to a local file first")
    try:
        return loaded(file.read_text(encoding="utf-8"))
    except DataError as error:
        error.complete(url=str(file))
        raise
    except UnicodeDecodeError:
        raise DataError("no saved preprocessing: the file is no text", url=str(file)) from None


def loaded(text: str) -> Any:
    """Returns the function that a JSON text describes.

    Raises:
        DataError: It describes none.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise DataError("not a saved preprocessing: the text is truncated or is not JSON") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise DataError("not a saved preprocessing: the JSON contains something else")
    if found.get("version") != VERSION:
        raise DataError(f"version {found.get('version')!r} was saved; this asyncdata reads version {VERSION}")
    try:
        if found.pop(CHECKSUM, None) not in (None, checksum_of(found)):
            raise ValueError("its content does not match its checksum; save it again, or remove that if you edited it")
        # If the checksum's key is damaged, there is a part that nothing writes.
        if found.keys() not in ({"format", "version", "leaves"}, {"format", "version", "function", "arguments"}):
            raise ValueError(f"it has the parts {listed(list(found))}")
        return ByLeaf(_nest(found["leaves"])) if "leaves" in found else _function(found)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError, OverflowError) as error:
        raise DataError(f"the saved preprocessing is damaged: {error}") from None


def _nest(found: Any) -> Nest:
    if found is None:
        return None
    if "dict" in found:
        return {key: _nest(part) for key, part in found["dict"]}
    if "tuple" in found:
        return tuple(map(_nest, found["tuple"]))
    return _function(found)


def _function(found: dict[str, Any]) -> MapFunction:
    return _FUNCTIONS[found["function"]](**found["arguments"])
