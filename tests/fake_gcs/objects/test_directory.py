"""The directory backing: restarts, crashes, plain files, and paths that must not be left."""

from __future__ import annotations

import http.client
import os
import threading
from pathlib import Path

from fake_gcs import FakeGCS, FakeGCSProcess
from tests.fake_gcs.asking import ask, o, send
from tests.patience import LIMIT_S

B = "/storage/v1/b/bkt/o"


def test_everything_survives_a_restart(tmp_path: Path) -> None:
    """Buckets with their settings, objects with their metadata, generations, archived versions, checksums."""
    with FakeGCS(tmp_path, buckets=["bkt"]) as server:
        send(server, "PATCH", "/storage/v1/b/bkt", {"versioning": {"enabled": True}, "labels": {"a": "b"}})
        for data in (b"1", b"22", b"333"):
            server.put("bkt", "a/b", data, contentType="x/y", metadata={"k": "v"})
        server.put("bkt", "gone", b"x")
        server.delete("bkt", "gone")
        send(server, "PATCH", f"{B}/a%2Fb", {"cacheControl": "no-store"})
        before = ask(server, "GET", f"{B}?versions=true").body.replace(server.url.encode(), b"")
        bucket = ask(server, "GET", "/storage/v1/b/bkt").body.replace(server.url.encode(), b"")
        last = int(ask(server, "GET", f"{B}/a%2Fb").json["generation"])
    with FakeGCS(tmp_path) as server:
        assert ask(server, "GET", f"{B}?versions=true").body.replace(server.url.encode(), b"") == before
        assert ask(server, "GET", "/storage/v1/b/bkt").body.replace(server.url.encode(), b"") == bucket
        assert server.read("bkt", "a/b") == b"333"
        assert server.put("bkt", "a/b", b"4") > last


def test_a_killed_server_has_each_object_whole_or_as_it_was(tmp_path: Path) -> None:
    """SIGKILL under load: after it every object is one of the bodies that were written, whole, and no file is left."""
    bodies = [bytes([65 + number]) * 200_000 for number in range(4)]
    with FakeGCSProcess(tmp_path, buckets=["bkt"]) as server:
        for name in "xyz":
            ask(server, "PUT", f"/bkt/{name}", bodies[0])
        stop = threading.Event()

        def write(number: int) -> None:
            turn = number
            while not stop.is_set():
                turn += 1
                try:
                    ask(server, "PUT", f"/bkt/{'xyz'[turn % 3]}", bodies[turn % 4])
                except OSError:
                    return

        writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for writer in writers:
            writer.start()
        while len(server.entries()) < 60:
            pass
        server.kill()
        stop.set()
        for writer in writers:
            writer.join()
    with FakeGCS(tmp_path) as after:
        assert after.names("bkt") == ["x", "y", "z"]
        assert all(after.read("bkt", name) in bodies for name in "xyz")
        stored = [path for path in (tmp_path / "bkt" / ".fake_gcs").rglob("*") if path.suffix in {".data", ".json"}]
        assert len(stored) == 7  # Body and metadata of three objects, and the bucket's settings.
        assert list((tmp_path / ".fake_gcs" / "tmp").iterdir()) == []


def test_damaged_metadata_is_left_out(tmp_path: Path) -> None:
    """A metadata file that can not be read, or whose body has another size, does not stop the start."""
    with FakeGCS(tmp_path, buckets=["bkt"]) as server:
        for name in ("good", "cut", "junk"):
            server.put("bkt", name, name.encode() * 10)
    for path in (tmp_path / "bkt" / ".fake_gcs").rglob("*.json"):
        if b'"junk"' in path.read_bytes():
            path.write_bytes(b"{")
        if b'"cut"' in path.read_bytes():
            path.with_suffix(".data").write_bytes(b"short")
    with FakeGCS(tmp_path) as server:
        assert server.names("bkt") == ["good"]


def test_plain_files_are_objects(tmp_path: Path) -> None:
    """Files laid into a bucket's folder are served under their relative path, before and during the run."""
    data = bytes(range(256)) * 100
    folder = tmp_path / "data" / "train"
    folder.mkdir(parents=True)
    (folder / "a 1.tfrecord").write_bytes(data)
    with FakeGCS(tmp_path) as server:
        assert server.names("data") == ["train/a 1.tfrecord"]
        answer = ask(server, "GET", f"/data/{o('train/a 1.tfrecord')}", Range="bytes=5-9")
        assert (answer.status, answer.body) == (206, data[5:10])
        assert "crc32c=" in answer.headers["x-goog-hash"]
        resource = ask(server, "GET", f"/storage/v1/b/data/o/{o('train/a 1.tfrecord')}").json
        assert (resource["size"], resource["crc32c"]) == (str(len(data)), server_crc(data))
        (folder / "b.tfrecord").write_bytes(b"later")
        assert ask(server, "GET", "/data/train/b.tfrecord").body == b"later"
        before = int(ask(server, "HEAD", "/data/train/b.tfrecord").headers["x-goog-generation"])
        (folder / "b.tfrecord").write_bytes(b"changed")
        os.utime(folder / "b.tfrecord", ns=(1, 1))
        changed = ask(server, "GET", "/data/train/b.tfrecord")
        assert changed.body == b"changed"
        assert int(changed.headers["x-goog-generation"]) > before
        (folder / "b.tfrecord").unlink()
        assert ask(server, "GET", "/data/train/b.tfrecord").status == 404
        assert server.names("data") == ["train/a 1.tfrecord"]


def server_crc(data: bytes) -> str:
    with FakeGCS(buckets=["bkt"]) as server:
        server.put("bkt", "x", data)
        return str(ask(server, "GET", f"{B}/x").json["crc32c"])


def test_plain_files_move_into_the_store_when_they_change(tmp_path: Path) -> None:
    """Replacing, patching and deleting by the API take the plain file away and keep what GCS would keep."""
    folder = tmp_path / "bkt"
    folder.mkdir()
    for name in ("replaced", "patched", "deleted", "copied"):
        (folder / name).write_bytes(name.encode())
    with FakeGCS(tmp_path) as server:
        ask(server, "PUT", "/bkt/replaced", b"new")
        send(server, "PATCH", f"{B}/patched", {"contentType": "x/y"})
        ask(server, "DELETE", f"{B}/deleted")
        assert send(server, "POST", f"{B}/copied/copyTo/b/bkt/o/copy").json["crc32c"]
        expected = ["copied", "copy", "patched", "replaced"]
        assert server.names("bkt") == expected
    assert [path.name for path in folder.iterdir() if path.is_file()] == ["copied"]
    with FakeGCS(tmp_path) as server:
        assert server.names("bkt") == expected
        assert (server.read("bkt", "patched"), server.read("bkt", "replaced")) == (b"patched", b"new")
        assert ask(server, "HEAD", "/bkt/patched").headers["Content-Type"] == "x/y"


def test_nothing_outside_the_bucket_is_reachable(tmp_path: Path) -> None:
    """Dots, absolute names, symbolic links and the store's own files are not objects, and are never written."""
    root = tmp_path / "root"
    (root / "bkt" / "sub").mkdir(parents=True)
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    (root / "bkt" / "link").symlink_to(secret)
    (root / "bkt" / "folder").symlink_to(tmp_path)
    with FakeGCS(root) as server:
        server.put("bkt", "own", b"x")
        for name in (
            "link",
            "folder/secret",
            "../../secret",
            "sub/../../../secret",
            str(secret),
            "/../../secret",
            ".fake_gcs/bucket.json",
            "sub/../../.fake_gcs",
            "./own",
        ):
            for path in (f"/bkt/{o(name)}", f"{B}/{o(name)}?alt=media", f"/bkt/{name}"):
                assert ask(server, "GET", path).status in {400, 404}, path
        for bucket in ("..", ".", ".fake_gcs", "%2e%2e", "..%2froot"):
            assert ask(server, "GET", f"/{bucket}/secret").status in {400, 404}
            assert ask(server, "PUT", f"/{bucket}/secret", b"x").status in {400, 404}
        for name in ("../escaped", "/etc/escaped", "a/../../escaped"):
            assert ask(server, "PUT", f"/bkt/{o(name)}", b"x").status == 200
        assert server.names("bkt") == sorted(["own", "../escaped", "/etc/escaped", "a/../../escaped"])
    assert secret.read_bytes() == b"secret"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["root", "secret"]
    assert sorted(path.name for path in root.iterdir()) == [".fake_gcs", "bkt"]


def test_readers_of_a_replaced_object_read_on(tmp_path: Path) -> None:
    """A body that is being sent is sent to its end, whatever happens to its name meanwhile."""
    data = os.urandom(32 << 20)
    with FakeGCS(tmp_path, buckets=["bkt"]) as server:
        server.put("bkt", "x", data)
        connection = http.client.HTTPConnection(server.endpoint, timeout=LIMIT_S)
        connection.request("GET", "/bkt/x")
        answer = connection.getresponse()
        first = answer.read(1000)
        server.put("bkt", "x", b"new")
        server.delete("bkt", "x")
        assert first + answer.read() == data
        connection.close()
        assert ask(server, "GET", "/bkt/x").status == 404


def test_a_store_that_can_not_be_written_answers_503(tmp_path: Path) -> None:
    """Where the disk refuses, the client is told to come again, and the objects that were there stay."""
    with FakeGCS(tmp_path, buckets=["bkt"]) as server:
        server.put("bkt", "x", b"old")
        tmp = tmp_path / ".fake_gcs" / "tmp"
        tmp.rename(tmp_path / "away")
        assert ask(server, "PUT", "/bkt/x", b"new").status == 503
        assert send(server, "POST", "/storage/v1/b?project=p", {"name": "other"}).status == 503
        assert send(server, "PATCH", f"{B}/x", {"contentType": "x/y"}).status == 503
        assert ask(server, "GET", "/bkt/x").body == b"old"
        (tmp_path / "away").rename(tmp)
        assert ask(server, "PUT", "/bkt/x", b"new").status == 200
        assert server.read("bkt", "x") == b"new"


def test_a_copy_to_another_spelling_of_a_name_leaves_the_file(tmp_path: Path) -> None:
    """What the system takes for the same path is another object."""
    (tmp_path / "bkt" / "a").mkdir(parents=True)
    (tmp_path / "bkt" / "a" / "b").write_bytes(b"x")
    with FakeGCS(tmp_path) as server:
        for name in ("a%2F%2Fb", "a%2F.%2Fb", "a%2Fb%2F"):
            assert ask(server, "POST", f"/storage/v1/b/bkt/o/a%2Fb/copyTo/b/bkt/o/{name}", b"{}").status == 200
            assert (tmp_path / "bkt" / "a" / "b").read_bytes() == b"x"
        assert sorted(server.names("bkt")) == ["a/./b", "a//b", "a/b", "a/b/"]
