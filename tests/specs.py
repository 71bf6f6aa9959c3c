"""Whether specs are true of what was found."""

from __future__ import annotations

from typing import Any

from asyncdata.spec import ArraySpec


def agrees(spec: Any, found: Any) -> bool:
    """Whether what is announced allows what was found."""
    if spec is None:
        return True
    if isinstance(spec, tuple):
        return type(spec) is type(found) and all(map(agrees, spec, found))
    if isinstance(spec, dict):
        return spec.keys() == found.keys() and all(agrees(spec[key], found[key]) for key in spec)
    if type(spec) is not type(found):
        return False
    if isinstance(spec, ArraySpec) and spec.dtype is not None and spec.dtype != found.dtype:
        return False
    return spec.shape is None or (
        len(spec.shape) == len(found.shape)
        and all(a is None or a == b for a, b in zip(spec.shape, found.shape, strict=True))
    )
