"""HDFS errors by the name of the Java exception: one table for both protocols. Pure."""

from __future__ import annotations

import re
from typing import Final

from asyncdata.errors import AccessDeniedError, ObjectNotFoundError, StorageError, UnsupportedURLError
from asyncdata.storage.failures import FailureCause, read_failed

_TRANSIENT: Final = {
    "StandbyException": FailureCause.SERVER_ERROR,
    "ObserverRetryOnActiveException": FailureCause.SERVER_ERROR,
    "RetriableException": FailureCause.THROTTLED,
    "ServerTooBusyException": FailureCause.THROTTLED,
    "SafeModeException": FailureCause.SERVER_ERROR,
    "NotReplicatedYetException": FailureCause.SERVER_ERROR,
    "BlockMissingException": FailureCause.BACKEND,
    "ChecksumException": FailureCause.BACKEND,
    "ReplicaNotFoundException": FailureCause.BACKEND,
    "SocketTimeoutException": FailureCause.SERVER_ERROR,
    "ConnectTimeoutException": FailureCause.SERVER_ERROR,
    "ConnectException": FailureCause.SERVER_ERROR,
    "EOFException": FailureCause.SERVER_ERROR,
    "IOException": FailureCause.SERVER_ERROR,
}
_FATAL: Final[dict[str, type[StorageError]]] = {
    "FileNotFoundException": ObjectNotFoundError,
    "PathIsNotDirectoryException": ObjectNotFoundError,
    "ParentNotDirectoryException": ObjectNotFoundError,
    "AccessControlException": AccessDeniedError,
    "AuthenticationException": AccessDeniedError,
    "AuthorizationException": AccessDeniedError,
    "InvalidToken": AccessDeniedError,
    "SecurityException": AccessDeniedError,
    "InvalidPathException": UnsupportedURLError,
    "UnresolvedLinkException": UnsupportedURLError,
}
_LONGEST: Final = 300
_PROTOBUF_BYTES: Final = re.compile(r"[\x00-\x1f]+")


def java_error(name: str, message: str) -> StorageError:
    """The typed error that a Java exception means.

    Args:
        name: Its class, with or without the package.
        message: The server's message; only its first line is kept, because a stack trace may follow.
    """
    short = name.rpartition(".")[2].rpartition("$")[2]
    told = first_line(message)
    text = f"HDFS refused: {short}" + (f": {told}" if told else "")
    cause = _TRANSIENT.get(short)
    if cause is not None:
        return read_failed(text, cause)
    return _FATAL.get(short, StorageError)(text)


def first_line(message: str) -> str:
    """The beginning of a message that may go on with a stack trace."""
    line = _PROTOBUF_BYTES.split(message.strip(), maxsplit=1)[0].strip()
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
