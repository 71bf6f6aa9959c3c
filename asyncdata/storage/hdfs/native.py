"""hdfs-native's AsyncClient with time limits and typed errors; the only file that imports it (the extra ``hdfs``).

Invariant: a call that has ended, in any way, leaves nothing behind that writes into a caller's memory, because
hdfs-native returns bytes of its own. It tries the other replicas of a block itself, in the order in which the NameNode
listed them when the file was opened, and reports an error only if all fail. Its errors contain little more than text.
The table of phrases below is the only place that inspects this text.

hdfs-native leaves a DataNode that does not answer after ``dfs.client.socket-timeout``, which is a setting of the
client. The normal client uses the limits of the options. After a read was silent for too long, files that are opened
within the next minute use a *brisk* client, which leaves a DataNode so soon that three replicas have their turn within
the shortest limit that is ever learned. Nothing else remembers which DataNode does not answer.

Two properties of hdfs-native need care. First, its coroutines run outside of its own timer, so it would panic if it
waited between two rounds over the NameNodes. It is therefore configured to make one round, and the Fetcher waits.
Second, dropping the last reference to a client waits for its threads while holding the interpreter lock, and one of
these threads may wait for this lock to report a cancelled read: a deadlock. Therefore all readers of a process that
name the same NameNode and options share a client, and clients are never dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

from asyncdata.errors import AccessDeniedError, ObjectNotFoundError, StorageError, UnsupportedURLError
from asyncdata.options import TimeoutOptions
from asyncdata.storage.failures import FailureCause, read_failed, without_frames
from asyncdata.storage.hdfs.exceptions import first_line, java_error
from asyncdata.storage.hdfs.tree import FileStatus
from asyncdata.storage.reader import option_of_names

_ARGUMENTS: Final = ("config_dir", "kerberos_principal", "kerberos_keytab", "kerberos_cache")
_DEFAULT: Final = "fs.defaultFS"
_FAILOVERS: Final = "dfs.client.failover.max.attempts"
_SOCKET_TIMEOUT: Final = "dfs.client.socket-timeout"
_BRISK_PART: Final = 1 / 4
_BRISK_FOR_S: Final = 60.0
_SILENT: Final = frozenset({FailureCause.FIRST_BYTE_TIMEOUT, FailureCause.IDLE_TIMEOUT, FailureCause.OVERTAKEN})
# The time limit of a listing begins anew so often: a page of a NameNode is a thousand.
_ENTRIES_PER_LIMIT: Final = 1000
_VARIANT: Final = re.compile(r"(\w+)\((.*)\)\Z", re.DOTALL)
_RPC: Final = re.compile(r'"([\w.$]+)", "(.*)"\Z', re.DOTALL)
_DATANODE: Final = re.compile(r'ip_addr: "([^"]*)".*?xfer_port: (\d+)', re.DOTALL)

_WORDS: Final[dict[str, FailureCause | type[StorageError]]] = {
    # What hdfs-native calls the kind of an error; what is missing here fails in the same way every time.
    "DataTransferError": FailureCause.BACKEND,
    "ChecksumError": FailureCause.BACKEND,
    "BlocksNotFound": FailureCause.BACKEND,
    "IOError": FailureCause.CONNECTION_LOST,
    "InvalidRPCResponse": FailureCause.MALFORMED,
    "InternalError": FailureCause.SERVER_ERROR,
    "FileNotFound": ObjectNotFoundError,
    "IsADirectoryError": ObjectNotFoundError,
    "InvalidPath": UnsupportedURLError,
    "UrlParseError": UnsupportedURLError,
    "SASLError": AccessDeniedError,
    "GSSAPIError": AccessDeniedError,
    "NoSASLMechanism": AccessDeniedError,
}


@functools.cache
def shared_client(authority: str, config: tuple[tuple[str, str], ...], **arguments: str) -> Any:
    """The one AsyncClient of this process for a NameNode and its options; it serves every event loop.

    Args:
        authority: ``host:port``, or the name of a nameservice; empty for ``fs.defaultFS``.
        config: Hadoop keys and values.
        **arguments: hdfs-native's other arguments.
    """
    try:
        from hdfs_native import AsyncClient  # noqa: PLC0415 -- the door of the extra
    except ImportError as error:
        raise StorageError(f"hdfs:// needs the package hdfs-native (pip install 'asyncdata[hdfs]'): {error}") from None
    client = AsyncClient(f"hdfs://{authority}" if authority else None, dict(config), **arguments)
    # One reference that nobody gives back, lest the interpreter drops the client when it ends.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(client.inner))
    return client


class NativeClient:
    """One NameNode or nameservice, spoken to from one event loop.

    Args:
        authority: ``host:port``, or the name of a nameservice; empty for ``fs.defaultFS``.
        options: ``config``, ``config_dir`` and ``kerberos_…`` as hdfs-native takes them.
        limits: Time limits of one request.
    """

    def __init__(self, authority: str, options: Mapping[str, Any], limits: TimeoutOptions) -> None:
        config = {key: str(value) for key, value in option_of_names(options, "config").items()}
        config.setdefault(_FAILOVERS, str(_failovers(authority, config, options.get("config_dir"))))
        patient_s = min(limits.first_byte_s, limits.idle_s)
        config.setdefault(_SOCKET_TIMEOUT, _milliseconds(patient_s))
        self._metadata_s = limits.connect_s + limits.first_byte_s
        self._authority = authority
        self._arguments = {name: str(options[name]) for name in _ARGUMENTS if options.get(name) is not None}
        self._brisk_config = config | {_SOCKET_TIMEOUT: _milliseconds(_BRISK_PART * min(patient_s, limits.floor_s))}
        self._brisk: Any = None
        self._brisk_until = -1.0
        self._client = self._connect(config)

    async def look(self, path: str) -> FileStatus:
        """Returns what is at a path.

        Raises:
            ObjectNotFoundError: Nothing.
        """
        with _typed_errors():
            async with asyncio.timeout(self._metadata_s):
                return _entry(await self._client.get_file_info(path), path)

    async def entries(self, folder: str) -> list[FileStatus]:
        """What a folder holds; of a file, the file itself.

        Raises:
            ObjectNotFoundError: There is none.
        """
        found: list[FileStatus] = []
        with _typed_errors():
            async with asyncio.timeout(self._metadata_s) as limit:
                async for status in self._client.list_status(folder):
                    found.append(_entry(status, str(status.path)))
                    if not len(found) % _ENTRIES_PER_LIMIT:
                        limit.reschedule(asyncio.get_running_loop().time() + self._metadata_s)
        return found

    async def open(self, path: str, *, brisk: bool = False) -> NativeFile:
        """Asks where the blocks of a file are.

        Args:
            path: Absolute.
            brisk: Reads leave a silent DataNode for the next one soon. Where all DataNodes are slow they fail.
        """
        client = self._client
        if brisk:
            if self._brisk is None:
                self._brisk = self._connect(self._brisk_config)
            client = self._brisk
        with _typed_errors():
            async with asyncio.timeout(self._metadata_s):
                reader = await client.read(path)
            return NativeFile(reader, brisk=brisk)

    @property
    def prefers_brisk(self) -> bool:
        """Whether a read was silent lately."""
        return self._brisk_until > 0 and asyncio.get_running_loop().time() < self._brisk_until

    def note_failure(self, file: NativeFile, cause: FailureCause) -> None:
        """A read of a file failed: that it was silent speaks for brisk reads, and that a brisk one failed against."""
        if file.brisk:
            self._brisk_until = -1.0
        elif cause in _SILENT:
            self._brisk_until = asyncio.get_running_loop().time() + _BRISK_FOR_S

    def _connect(self, config: Mapping[str, str]) -> Any:
        with _typed_errors():
            return shared_client(self._authority, tuple(sorted(config.items())), **self._arguments)


class NativeFile:
    """The blocks of one file, as they were when it was opened.

    Attributes:
        size: Bytes.
        brisk: Whether a silent DataNode is left soon.
    """

    def __init__(self, reader: Any, *, brisk: bool) -> None:
        self._reader = reader
        self.size = len(reader)
        self.brisk = brisk

    async def read(self, start: int, length: int) -> bytes:
        """The bytes ``[start, start + length)``, which must be inside of the file; the time limit is the caller's."""
        with _typed_errors():
            data: bytes = await self._reader.read_range(start, length)
        return data


@contextlib.contextmanager
def _typed_errors() -> Iterator[None]:
    try:
        yield
    except BaseException as error:  # a panic of hdfs-native is no Exception; what is none of its errors passes through
        typed = typed_error(error)
        if typed is error:
            raise
        without_frames(error)
        raise typed from None


def typed_error(error: BaseException) -> BaseException:
    """The typed error for what hdfs-native raised; what is none of its errors is returned as it is."""
    if type(error).__module__ == "pyo3_runtime":  # a panic, which is no Exception
        return read_failed(f"hdfs-native failed: {first_line(str(error))}", FailureCause.SERVER_ERROR)
    if isinstance(error, TimeoutError):
        return read_failed("HDFS did not answer in time", FailureCause.FIRST_BYTE_TIMEOUT)
    if not isinstance(error, Exception) or isinstance(error, StorageError):
        return error
    if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError):
        return ObjectNotFoundError("no such file")
    if isinstance(error, PermissionError):
        return AccessDeniedError(first_line(str(error)))
    if isinstance(error, OSError):
        return read_failed(f"the connection failed: {first_line(str(error))}", FailureCause.CONNECT)
    return _typed_text(str(error))


def _typed_text(text: str) -> StorageError:
    found = _VARIANT.match(text)
    if found is None:
        return StorageError(f"hdfs-native failed: {first_line(text)}")
    variant, inside = found.groups()
    told = first_line(inside.replace("\\n", "\n").strip('"'))
    if variant in {"RPCError", "FatalRPCError"}:
        rpc = _RPC.match(inside)
        return java_error(rpc[1], rpc[2].replace("\\n", "\n").replace('\\"', '"')) if rpc else java_error(variant, told)
    if "All DataNodes failed" in inside:
        # Which of the two it was hdfs-native does not tell.
        nodes = ", ".join(f"{host}:{port}" for host, port in _DATANODE.findall(inside.replace('\\"', '"')))
        told = f"no replica can be read: every DataNode that has the block is down, or its copy is damaged ({nodes})"
    meaning = _WORDS.get(variant)
    if isinstance(meaning, FailureCause):
        return read_failed(told, meaning)
    return (meaning or StorageError)(f"{variant}: {told}")


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(1000 * seconds)))


def _failovers(authority: str, config: Mapping[str, str], folder: str | None) -> int:
    """How often another NameNode is tried: each one once.

    Args:
        authority: ``host:port``, or the name of a nameservice.
        config: Overrides the configuration files.
        folder: Where Hadoop's configuration files are.
    """
    if not authority:
        default = config.get(_DEFAULT) or _configured(folder, "core-site.xml", _DEFAULT) or ""
        authority = default.partition("://")[2].partition("/")[0]
    if ":" in authority:
        return 0
    key = f"dfs.ha.namenodes.{authority}"
    known = config.get(key) or _configured(folder, "hdfs-site.xml", key)
    return len(known.split(",")) - 1 if known else 1


def _configured(folder: str | None, file: str, key: str) -> str | None:
    """One value of a Hadoop configuration file; None where the file or the value is missing."""
    if folder is None:
        return None
    try:
        properties = ElementTree.parse(Path(folder, file)).getroot().iter("property")  # noqa: S314 -- the user's own configuration
    except (OSError, ElementTree.ParseError):
        return None  # hdfs-native reads the file as well, and says what is wrong with it
    return next((item.findtext("value") for item in properties if item.findtext("name", "").strip() == key), None)


def _entry(status: Any, path: str) -> FileStatus:
    return FileStatus(
        path=path,
        is_folder=bool(status.isdir),
        size=int(status.length),
        version=f"{status.modification_time}-{status.length}",
    )
