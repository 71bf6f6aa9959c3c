"""Builds requests of the WebHDFS protocol and parses its responses. No socket, no clock.

A delegation token is in the query, as the protocol demands; such URLs never appear in a message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from asyncdata.errors import ObjectNotFoundError, StorageError, UnsupportedURLError
from asyncdata.storage.failures import FailureCause, read_failed
from asyncdata.storage.hdfs.exceptions import java_error
from asyncdata.storage.hdfs.tree import FileStatus
from asyncdata.storage.statuses import shorten, status_error
from asyncdata.storage.urls import join_location

_PREFIX: Final = "/webhdfs/v1"
_SCHEMES: Final = {"webhdfs": "http", "swebhdfs": "https"}
_AUTHORITY: Final = re.compile(r"[A-Za-z0-9._-]+(:\d{1,5})?|\[[0-9A-Fa-f:.]+\](:\d{1,5})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks.

    Attributes:
        user: ``user.name`` of a cluster without Kerberos; None lets the server take its own.
        do_as: The user that a proxy user acts for.
        token: A delegation token; with it the two others are not sent.
    """

    user: str | None = None
    do_as: str | None = None
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class NameNodePath:
    """Where a file is.

    Attributes:
        origin: ``http://host:port`` of the NameNode.
        path: Absolute, as it is written.
    """

    origin: str
    path: str


def parse_url(url: str) -> NameNodePath:
    """The place that a ``webhdfs://`` or ``swebhdfs://`` URL means."""
    scheme, separator, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    if not separator or scheme.lower() not in _SCHEMES or not slash or not path:
        raise UnsupportedURLError("expected webhdfs://namenode:port/path")
    if not _AUTHORITY.fullmatch(authority):
        raise UnsupportedURLError("expected host or host:port behind webhdfs://, and nothing else")
    return NameNodePath(origin=f"{_SCHEMES[scheme.lower()]}://{authority}", path=f"/{path}")


def build_url(place: NameNodePath, operation: str, caller: Caller, parameters: Mapping[str, int] | None = None) -> str:
    """The URL of one operation."""
    query: dict[str, str | int] = {"op": operation, **(parameters or {})}
    if caller.token is not None:
        query["delegation"] = caller.token
    else:
        if caller.user is not None:
            query["user.name"] = caller.user
        if caller.do_as is not None:
            query["doas"] = caller.do_as
    return f"{place.origin}{_PREFIX}{quote(place.path)}?{urlencode(query)}"


def follow(url: str, location: str) -> str:
    """The URL a NameNode redirects to.

    Raises:
        StorageError: It is no web address, or leads from https to http.
    """
    given = urlsplit(join_location(url, location))
    if urlsplit(url).scheme == "https" and given.scheme != "https":
        raise StorageError("the NameNode redirects from https to http")
    return given._replace(fragment="").geturl()


def parse_status(body: bytes, path: str) -> FileStatus:
    """The answer to GETFILESTATUS."""
    entry = _entry(_field(_json(body), "FileStatus"), path)
    if entry is None:
        raise ObjectNotFoundError("a symbolic link")
    return entry


def parse_listing(body: bytes, folder: str) -> list[FileStatus]:
    """The answer to LISTSTATUS; empty for a file, whose listing is itself. Symbolic links are left out."""
    statuses = _field(_field(_json(body), "FileStatuses"), "FileStatus")
    if not isinstance(statuses, list):
        raise _malformed("FileStatus is not a list")
    found = []
    for status in statuses:
        name = _field(status, "pathSuffix")
        if name == "":
            return []
        if not isinstance(name, str) or "/" in name or name in {".", ".."}:
            raise _malformed("a name that is none of a file in the folder")
        entry = _entry(status, f"{folder.rstrip('/')}/{name}")
        if entry is not None:
            found.append(entry)
    return found


def answer_error(status: int, body: bytes, caller: Caller) -> StorageError:
    """The typed error of a refusal: by the Java exception that it names, else by its status."""
    try:
        remote = _field(_json(body), "RemoteException")
        name, message = _field(remote, "javaClassName"), str(remote.get("message", ""))
    except StorageError:
        told = _without(body.decode("utf-8", "replace"), caller)  # before half a token is cut off
        return status_error(status, shorten(told.encode()))
    if not isinstance(name, str):
        name = str(remote.get("exception", "RemoteException"))
    return java_error(_without(name, caller)[:200], _without(message, caller))


def _without(text: str, caller: Caller) -> str:
    """The server's words, should it repeat the token, without it."""
    if caller.token:
        text = text.replace(caller.token, "…").replace(quote(caller.token, safe=""), "…")
    return text


def _entry(status: Any, path: str) -> FileStatus | None:
    """A file or a folder; None for a symbolic link."""
    kind, size, changed = _field(status, "type"), _field(status, "length"), _field(status, "modificationTime")
    if kind not in ("FILE", "DIRECTORY", "SYMLINK") or not _is_count(size) or not isinstance(changed, int):
        raise _malformed("a file status without type, length and modificationTime")
    # The number of the inode tells two files apart that were written in the same millisecond; old servers have none.
    inode = status.get("fileId")
    version = f"{changed}-{size}" + (f"-{inode}" if _is_count(inode) else "")
    if kind == "SYMLINK":
        return None
    return FileStatus(path=path, is_folder=kind == "DIRECTORY", size=size, version=version)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise _malformed("no JSON") from None


def _field(value: Any, name: str) -> Any:
    if not isinstance(value, dict) or name not in value:
        raise _malformed(f"{name} is missing")
    return value[name]


def _malformed(what: str) -> StorageError:
    return read_failed(f"not a WebHDFS response: {what}", FailureCause.MALFORMED)
