"""The words of hdfs-native and what they mean; texts as version 0.14 writes them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from asyncdata.errors import AccessDeniedError, ObjectNotFoundError, StorageError, UnsupportedURLError
from asyncdata.options import TimeoutOptions
from asyncdata.storage.failures import FailureCause, ReadFailedError
from asyncdata.storage.hdfs.native import NativeClient, NativeFile, _failovers, typed_error
from asyncdata.storage.hdfs.reader import split_url
from tests.patience import LIMIT_S

_NODES = 'id: DatanodeIdProto { ip_addr: \\"10.0.0.1\\", host_name: \\"a\\", xfer_port: 9866, info_port: 1 }'


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (FileNotFoundError("/x"), ObjectNotFoundError, "no such file"),
        (IsADirectoryError("/x"), ObjectNotFoundError, "no such file"),
        (PermissionError("no"), AccessDeniedError, "no"),
        (OSError("Connection refused (os error 111)"), ReadFailedError, "refused"),
        (TimeoutError(), ReadFailedError, "in time"),
        (RuntimeError('RPCError("org.apache.hadoop.security.AccessControlException", "denied: user=a\\n\\tat B")'),
         AccessDeniedError, "user=a"),
        (RuntimeError('RPCError("org.apache.hadoop.ipc.StandbyException", "standby")'), ReadFailedError, "standby"),
        (RuntimeError('RPCError("org.apache.hadoop.fs.InvalidPathException", "a:b")'), UnsupportedURLError, "a:b"),
        (RuntimeError('RPCError("java.lang.NullPointerException", "")'), StorageError, "NullPointer"),
        (RuntimeError(f'DataTransferError("All DataNodes failed: [DatanodeInfoProto {{ {_NODES} }}]")'),
         ReadFailedError, r"down, or its copy is damaged \(10.0.0.1:9866\)"),
        (RuntimeError('GSSAPIError(1, 2, "no credentials")'), AccessDeniedError, "credentials"),
        (RuntimeError('InvalidArgument("No NameNode hosts found")'), StorageError, "No NameNode hosts"),
        (RuntimeError("words of another version"), StorageError, "another version"),
    ],
)  # fmt: skip
def test_every_kind_of_error_has_its_type(error: Exception, kind: type[Exception], words: str) -> None:
    """Only what may pass is transient; stack traces are left out."""
    typed = typed_error(error)
    assert type(typed) is kind
    with pytest.raises(kind, match=words):
        raise typed
    assert "\tat" not in str(typed)


def test_what_is_no_error_of_a_read_passes() -> None:
    """Cancellation and the like are nobody's to translate."""
    for error in (KeyboardInterrupt(), SystemExit(1), StorageError("ours")):
        assert typed_error(error) is error


async def test_an_exception_that_hdfs_native_keeps_holds_nothing_of_ours() -> None:
    """Its threads may let go of one long after the call."""
    kept = OSError("Connection refused (os error 111)")

    class Reader:
        def __len__(self) -> int:
            return 9

        async def read_range(self, *_: int) -> bytes:
            raise kept

    with pytest.raises(ReadFailedError, match="refused"):
        await NativeFile(Reader(), brisk=False).read(0, 9)
    assert kept.__traceback__ is None
    assert kept.__context__ is None


def test_a_panic_is_a_failed_attempt() -> None:
    """hdfs-native's panics are no exceptions to Python."""
    panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
    typed = typed_error(panic("there is no reactor running"))
    assert isinstance(typed, ReadFailedError)
    assert typed.cause is FailureCause.SERVER_ERROR


QUESTIONS: dict[str, Callable[[NativeClient], Awaitable[object]]] = {
    "look": lambda client: client.look("/x"),
    "entries": lambda client: client.entries("/x"),
    "open": lambda client: client.open("/x"),
    "open briskly": lambda client: client.open("/x", brisk=True),
}


@pytest.mark.sampled
@pytest.mark.leaks("hdfs-native's clients, and their threads, are the process's")
@pytest.mark.parametrize("question", QUESTIONS)
async def test_a_namenode_that_never_answers_keeps_nobody(question: str) -> None:
    """It accepts connections, and that is all: every question ends, by its time limit or with its caller."""
    pytest.importorskip("hdfs_native", reason="hdfs-native is not installed: its time limits were not tested")
    # The kernel accepts for a socket that nobody reads from, as for a NameNode that hangs.
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        ask = QUESTIONS[question]
        hasty = NativeClient(address, {}, TimeoutOptions(connect_s=0.1, first_byte_s=0.1))
        with pytest.raises(ReadFailedError) as caught:
            await asyncio.wait_for(ask(hasty), LIMIT_S)
        assert caught.value.cause is FailureCause.FIRST_BYTE_TIMEOUT
        patient = NativeClient(address, {}, TimeoutOptions(connect_s=600, first_byte_s=600))
        for steps in range(20):
            asking = asyncio.ensure_future(ask(patient))
            for _ in range(steps):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking], timeout=LIMIT_S)
            assert asking.cancelled()


def test_each_namenode_is_tried_once(tmp_path: Path) -> None:
    """As many more as the nameservice has; the options go before the files."""
    (tmp_path / "hdfs-site.xml").write_text(
        "<configuration><property><name>dfs.ha.namenodes.n</name><value>a,b,c</value></property></configuration>"
    )
    (tmp_path / "core-site.xml").write_text("<configuration><property>")
    assert _failovers("h:1", {}, str(tmp_path)) == 0
    assert _failovers("n", {}, str(tmp_path)) == 2
    assert _failovers("n", {"dfs.ha.namenodes.n": "a"}, str(tmp_path)) == 0
    assert _failovers("", {"fs.defaultFS": "hdfs://n/"}, str(tmp_path)) == 2
    assert _failovers("", {}, str(tmp_path)) == 1
    assert _failovers("unknown", {}, None) == 1


def test_urls_are_used_as_they_are_written() -> None:
    """Nothing is unquoted; an empty authority means the default of the configuration."""
    assert split_url("hdfs://h:1/a b%20?#c") == ("h:1", "/a b%20?#c")
    assert split_url("hdfs:///x") == ("", "/x")
    for url in ("hdfs://h", "hdfs://h/", "hdfs://me@h/x", "x"):
        with pytest.raises(UnsupportedURLError):
            split_url(url)
