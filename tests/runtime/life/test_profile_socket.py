"""A running program is asked for a profile by others of its user, and by nobody else."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import asyncdata as ad
from asyncdata.command_line import profiling
from asyncdata.command_line.entry import main
from asyncdata.runtime.life.profile_socket import ask, socket_directory, sockets_of
from tests.patience import LIMIT_S, wait_until

OPTIONS = ad.Options(profile_socket=True)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Temporary files of this test alone; afterwards no socket is left."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield socket_directory()
    assert not list(tmp_path.glob("asyncdata-*/*"))


def raw(path: Path, data: bytes) -> bytes:
    """What comes back for some bytes."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(LIMIT_S)
        connection.connect(str(path))
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(1 << 20), b""))


@pytest.mark.sampled
@pytest.mark.parametrize("isolate", [False, True])
def test_the_command(*, isolate: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Stacks, verdict and report of a program in the middle of an iteration, which goes on."""
    ds = ad.Dataset.range(100).batch(10)
    with ad.Runtime(ad.Options(profile_socket=True, isolate=isolate)), ds.iterator() as batches:
        first = next(batches)
        assert main(["profile", "--pid", str(os.getpid()), "--seconds", "0.01", "--out", "r.html"]) == 0
        out = capsys.readouterr().out
        assert main(["profile", "--pid", str(os.getpid()), "--seconds", "0.01", "--out", "r.json", "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert len(first) + sum(len(batch) for batch in batches) == 100
    assert "Thread MainThread" in out
    assert "range(100) → batch(10)" in out
    assert Path("r.html").read_text().startswith("<!doctype html>")
    (profile,) = document["profiles"]
    assert [each["stats"]["elements"] for each in profile["pipelines"]] == [1]
    assert json.loads(Path("r.json").read_text()) == profile
    (main_stack,) = (stack for name, stack in document["stacks"].items() if name.startswith("MainThread"))
    assert "test_the_command" in main_stack


def test_a_program_that_hangs() -> None:
    """A function that blocks the stage loop is in the answer, and so is a consumer that waits for it."""
    entered, leave = threading.Event(), threading.Event()

    def block(number: Any) -> Any:
        entered.set()
        leave.wait(LIMIT_S)
        return number

    got: list[Any] = []
    ds = ad.Dataset.range(3).map(block).with_options(OPTIONS)
    consumer = threading.Thread(target=lambda: got.extend(ds), name="consumer")
    consumer.start()
    entered.wait(LIMIT_S)
    (path,) = sockets_of(os.getpid())
    answer = ask(path, 0)
    leave.set()
    consumer.join(LIMIT_S)
    assert len(got) == 3
    assert any("in test_a_program_that_hangs.<locals>.block" in stack for stack in answer["stacks"].values())
    assert any(name.startswith("consumer ") for name in answer["stacks"])
    assert answer["document"]["pipelines"][0]["plan"].startswith("range(3)")


def test_what_begins_meanwhile(folder: Path) -> None:
    """Pipelines that start during the recording are in it; a profile of the program's own does not notice."""
    with ad.Runtime(OPTIONS), ad.profile() as own:
        list(ad.Dataset.range(5))
        (path,) = folder.iterdir()
        answers: list[dict[str, Any]] = []
        asker = threading.Thread(target=lambda: answers.append(ask(path, 0.2)))
        asker.start()
        while asker.is_alive():
            assert len(list(ad.Dataset.range(7))) == 7
    asker.join()
    elements = {each["stats"]["elements"] for each in answers[0]["document"]["pipelines"]}
    assert elements <= {0, 5, 7}  # the first pipeline may not be closed yet
    assert 7 in elements
    assert sum(each.elements for each in own.report().pipelines[0].arrivals) in (5, 7)


def test_only_its_user(folder: Path) -> None:
    """Nobody else can enter the directory; one that others could enter is not used."""
    with ad.Runtime(OPTIONS):
        (path,) = folder.iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700
        assert path.stat().st_mode & 0o777 == 0o600
    folder.chmod(0o755)
    for use in (lambda: ad.Runtime(OPTIONS).start(), lambda: sockets_of(1)):
        with pytest.raises(OSError, match="open to other users"):
            use()
    folder.rmdir()
    (elsewhere := folder.with_name("elsewhere")).mkdir(mode=0o700)
    folder.symlink_to(elsewhere)
    with pytest.raises(OSError, match="open to other users"):
        ad.Runtime(OPTIONS).start()
    folder.unlink()


BAD = {
    "nothing": b"",
    "garbage": b"\xff\xfe\n",
    "long": b"x" * 100_000,
    "list": b"[]\n",
    "text": b'{"seconds": "long"}\n',
    "negative": b'{"seconds": -1}\n',
    "nan": b'{"seconds": NaN}\n',
    "huge": b'{"seconds": 1e99}\n',
}


def test_bad_requests(folder: Path) -> None:
    """They are answered by an error, or not at all, and the next request is served."""
    with ad.Runtime(OPTIONS):
        (path,) = folder.iterdir()
        for data in BAD.values():
            try:
                answer = raw(path, data)
            except OSError:
                continue  # not all of it was wanted
            assert not answer or "not a request" in json.loads(answer)["error"]
        assert ask(path, 0)["version"] == 1


def test_without_threads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client gets an error that says so, and the next request is served."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with ad.Runtime(OPTIONS):
        (path,) = folder.iterdir()
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            assert ask(path, 0)["error"] == "no profile can be recorded: can't start new thread"
        assert "document" in ask(path, 0)


def test_closed_while_it_records(folder: Path) -> None:
    """Closing waits for nobody who wants a long profile, who gets an error, or what there is just before the end."""
    ended: list[object] = []

    def want() -> None:
        try:
            ended.append(ask(path, 3600)["version"])
        except OSError as error:
            ended.append(error)

    with ad.Runtime(OPTIONS) as runtime:
        (path,) = folder.iterdir()
        asker = threading.Thread(target=want)
        asker.start()
        wait_until(lambda: runtime.profile_socket is not None and len(runtime.profile_socket.descriptors()) == 2)
    asker.join(LIMIT_S)
    assert len(ended) == 1


def test_what_was_left_behind(folder: Path) -> None:
    """The socket of a program that was killed is removed by the next one; other files are not."""
    folder.mkdir(mode=0o700)
    (folder / "99999999.abc.sock").touch()
    (folder / "notes").touch()
    with ad.Runtime(OPTIONS):
        names = sorted(each.name.partition(".")[0] for each in folder.iterdir())
        assert names == sorted(["notes", str(os.getpid())])
    (folder / "notes").unlink()


@pytest.mark.parametrize("first", [False, True])
def test_a_dead_socket_beside_a_live_one(*, first: bool, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A killed program with the same pid may have left one, as in containers. It is reported, and the others answer."""
    with ad.Runtime(OPTIONS), ad.Dataset.range(9).iterator() as elements:
        next(elements)
        dead = folder / f"{os.getpid()}.{'-' if first else 'x'}.sock"  # sorted before, or behind, any other name
        with socket.socket(socket.AF_UNIX) as left_behind:
            left_behind.bind(str(dead))
        assert main(["profile", "--pid", str(os.getpid()), "--seconds", "0.01", "--out", "r.json", "--json"]) == 0
        dead.unlink()
    told = capsys.readouterr()
    assert len(json.loads(told.out)["profiles"]) == 1
    assert "did not answer" in told.err


@pytest.mark.parametrize("error", [BrokenPipeError(), {"version": 1, "error": "no thread"}, FileNotFoundError("gone")])
def test_nobody_answers(error: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It is a failure of the program that was asked, not of whoever reads the result."""

    def fail(_path: Path, _seconds: float) -> Any:
        if isinstance(error, OSError):
            raise error
        return error

    monkeypatch.setattr(profiling, "ask", fail)
    with ad.Runtime(OPTIONS):
        assert main(["profile", "--pid", str(os.getpid()), "--seconds", "0.01"]) == 3
    assert capsys.readouterr().err


def test_no_such_directory(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It is said before anybody is asked."""
    asked: list[Path] = []
    monkeypatch.setattr(profiling, "ask", lambda path, _seconds: asked.append(path))
    with ad.Runtime(OPTIONS):
        words = ["--pid", str(os.getpid()), "--seconds", "0.01", "--out", "missing/report.html"]
        assert main(["profile", *words]) == 3
    assert "does not exist" in capsys.readouterr().err
    assert not asked


@pytest.mark.parametrize(("words", "code"), [(("--pid", "1"), 3), ((), 2), (("x", "--pid", "1"), 2)])
def test_who_cannot_be_asked(words: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A program without a socket; a command line that names neither or both."""
    with ad.Runtime():
        assert main(["profile", *words]) == code
    assert "--pid" in capsys.readouterr().err or code == 3


def test_no_socket_unless_wanted(folder: Path) -> None:
    """By default nothing is made."""
    list(ad.Dataset.range(3))
    assert not folder.exists()


def test_secrets(folder: Path, tmp_path: Path) -> None:
    """Storage options are not told."""
    options = ad.Options(profile_socket=True, storage={"gs": {"token": "hunter2hunter2"}})
    (tmp_path / "f").write_text("x\n")
    with ad.TextLineDataset(str(tmp_path / "f")).with_options(options).iterator() as lines:
        next(lines)
        (path,) = folder.iterdir()
        assert b"hunter2" not in raw(path, b'{"seconds": 0}\n')
