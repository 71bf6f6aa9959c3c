"""The quarantine list: lines that are whole, and files that cannot be written."""

from __future__ import annotations

import json
import logging
import os
import resource
import threading
from pathlib import Path

import pytest

from asyncdata.errors import CorruptRecordError, QuarantineError
from asyncdata.runtime.quarantine import Quarantine, describe
from asyncdata.workers.failure import decode_failure, encode_failure
from tests.patience import wait_until


def test_lines_are_appended_whole(tmp_path: Path) -> None:
    """Several writers of one file do not mix lines, and what stood there stays."""
    path = tmp_path / "list.jsonl"
    path.write_text("kept\n")
    lists = [Quarantine(str(path)) for _ in range(3)]
    for number, each in enumerate(lists):
        each.open()
        for record in range(200):
            each.put({"url": f"gs://b/{number}", "record": record, "error": "é" * 100})
    for each in lists:
        each.close()
        each.close()
    kept, *lines = path.read_text().splitlines()
    assert kept == "kept"
    found = [json.loads(line) for line in lines]
    for number in range(3):
        assert [item["record"] for item in found if item["url"] == f"gs://b/{number}"] == list(range(200))
    assert [each.lost for each in lists] == [0, 0, 0]


def test_a_new_list_is_its_owners_alone(tmp_path: Path) -> None:
    """URLs of private data are not for everybody."""
    path = tmp_path / "list.jsonl"
    quarantine = Quarantine(str(path))
    quarantine.open()
    quarantine.close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_secrets_of_urls_are_left_out(tmp_path: Path) -> None:
    """Passwords and signatures in a URL do not get into the list."""
    path = tmp_path / "list.jsonl"
    quarantine = Quarantine(str(path))
    quarantine.open()
    quarantine.put({"url": "https://user:geheim@host/file?X-Goog-Signature=abcdef"})
    quarantine.close()
    assert "geheim" not in path.read_text()
    assert "abcdef" not in path.read_text()


def test_a_file_that_cannot_be_opened_is_an_error_at_once(tmp_path: Path) -> None:
    """A wrong path is told before anything is read."""
    with pytest.raises(QuarantineError, match="No such file or directory"):
        Quarantine(str(tmp_path / "missing" / "list.jsonl")).open()
    os.mkfifo(tmp_path / "pipe")  # that nobody reads
    with pytest.raises(QuarantineError):
        Quarantine(str(tmp_path / "pipe")).open()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_costs_lines_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    """Lines that cannot be written are counted, and warned of once."""
    quarantine = Quarantine("/dev/full")
    quarantine.open()
    with caplog.at_level(logging.WARNING):
        for record in range(10):
            quarantine.put({"record": record})
        quarantine.close()
    assert quarantine.lost == 10
    assert [record.getMessage().count("are lost: No space left on device") for record in caplog.records] == [1]


def test_a_line_that_is_torn_stays_alone(tmp_path: Path) -> None:
    """Where the space ends within a line, and comes back: every other line can be read, and the torn one is counted."""
    path = tmp_path / "list.jsonl"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    quarantine = Quarantine(str(path))
    quarantine.open()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1005, hard))
    try:
        quarantine.put({"error": "x" * 900})
        quarantine.put({"error": "y" * 900})
        quarantine.put({"error": "z" * 900})
        wait_until(lambda: quarantine.lost == 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    quarantine.put({"record": 4})
    quarantine.close()
    first, torn, last = path.read_bytes().splitlines()
    assert [json.loads(line) for line in (first, last)] == [{"error": "x" * 900}, {"record": 4}]
    assert torn.startswith(b'{"error": "yy')
    assert quarantine.lost == 2


def test_a_file_that_is_not_taken_from_blocks_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A pipe that nobody empties stands for a file system that hangs: `put` returns, lines are counted as lost."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    quarantine = Quarantine(str(path))
    quarantine.open()
    with caplog.at_level(logging.WARNING):
        for record in range(6000):
            quarantine.put({"record": record, "error": "x" * 1000})
    assert quarantine.lost > 0
    drained = threading.Thread(target=_drain, args=(reader,))
    drained.start()
    quarantine.close()
    drained.join()


def _drain(reader: int) -> None:
    os.set_blocking(reader, True)
    while os.read(reader, 1 << 16):
        pass
    os.close(reader)


def test_only_type_and_place_of_a_users_exception_are_told() -> None:
    """An exception's text may quote the element; that of this library names places only."""

    def fail() -> None:
        raise ValueError("the patient's name")

    with pytest.raises(ValueError, match="patient") as caught:
        fail()
    for error in (caught.value, decode_failure(encode_failure(caught.value), where="worker")):
        text = describe(error)
        assert text.startswith("ValueError at ")
        assert "test_quarantine.py" in text
        assert "patient" not in text
    assert describe(CorruptRecordError("damaged", url="gs://b/o")) == "CorruptRecordError: damaged"
