"""Pickles Python objects for another process of the pipeline, in which classes of ``__main__`` are unknown by name.

A worker does not run the user's script, so the script's classes (a namedtuple, a dataclass, an enum) are sent by value.
When an object comes back, its class is the script's own again, because cloudpickle remembers which class it sent.
Objects that refer to no such class are pickled as usual, which is several times faster.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any

from asyncdata.memory import pickling_by_value

_PROTOCOL = 5
_SCRIPT = b"_main__"
"""Part of both names of the script's module: ``__main__``, and ``__mp_main__`` in a child of multiprocessing."""


def dumps(value: object) -> bytes:
    """The pickle of an object that another process of this pipeline, or this one, will load."""
    try:
        pickled = pickle.dumps(value, _PROTOCOL)
    except Exception:
        if (found := _dumps_by_value(value)) is None:
            raise
        return found
    if _SCRIPT in pickled:
        return _dumps_by_value(value) or pickled
    return pickled


def _dumps_by_value(value: object) -> bytes | None:
    # Loaded in every parent, and in a worker as soon as a class or function came by value: useful nowhere else.
    cloudpickle: Any = sys.modules.get("cloudpickle")
    if cloudpickle is None:
        return None
    try:
        return pickling_by_value.dumps(cloudpickle, value, protocol=_PROTOCOL)
    except Exception:  # noqa: BLE001 -- any __reduce__ may run here; the caller has the better error
        return None
