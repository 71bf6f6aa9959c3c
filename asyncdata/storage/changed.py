"""The error for an object that differs from its listing; all backends build it here."""

from __future__ import annotations

from asyncdata.errors import ObjectChangedError
from asyncdata.storage.urls import scheme_of
from asyncdata.types import ObjectInfo


def object_changed(info: ObjectInfo, found: str | None, *, start: int | None, note: str = "") -> ObjectChangedError:
    """Another version is there; the message names both.

    Args:
        info: What was listed.
        found: What is there; None where it cannot be told.
        start: Where the read began; None to let the caller tell.
        note: What the versions are made of.
    """
    what = f"now it is {found}" if found is not None else "now it is another one"
    error = ObjectChangedError(
        f"the object changed: {info.version} was listed, {what}{note}",
        url=info.url,
        version=info.version,
        offset=start,
    )
    error.found = found
    return error


def object_resized(
    info: ObjectInfo, size: int | None, *, start: int | None, found: str | None = None, at_least: bool = False
) -> ObjectChangedError:
    """Another size is there, whatever the version.

    Args:
        info: What was listed.
        size: What is there; None for less than was asked for.
        start: Where the read began; None to let the caller tell.
        found: The version that is there, where it is known.
        at_least: Whether there may be more: the end was not awaited.
    """
    what = f"now it has {'at least ' if at_least else ''}{size}" if size is not None else "now it has fewer"
    error = ObjectChangedError(
        f"the object changed: {info.size} bytes were listed, {what}",
        url=info.url,
        version=info.version,
        offset=start,
    )
    error.found = found
    return error


def object_deleted(info: ObjectInfo, *, start: int | None) -> ObjectChangedError:
    """Nothing is there any more."""
    version = f"{info.version} " if info.version is not None else "it "
    return ObjectChangedError(
        f"the object was deleted after {version}was listed", url=info.url, version=info.version, offset=start
    )


def same_content(url: str, version: str | None, other: str | None) -> bool:
    """Whether two versions are of one content; of a local file the inode may differ, because a copy is as good."""
    if version is None or other is None or version == other:
        return True
    if scheme_of(url) != "file":
        return False
    return version.partition("-")[2] == other.partition("-")[2]
