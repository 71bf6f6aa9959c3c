"""Buckets in a directory: survives a restart, every change is one rename.

    ROOT/BUCKET/any/file.tfrecord             a plain file is an object of that name, found when it is asked for
    ROOT/BUCKET/.fake_gcs/bucket.json         the bucket's settings
    ROOT/BUCKET/.fake_gcs/ab/HASH.GEN.data    the body of one generation
    ROOT/BUCKET/.fake_gcs/ab/HASH.GEN.json    its metadata beside it; this file's rename is the commit
    ROOT/.fake_gcs/tmp/                       bodies being written

Stored bodies are named by a hash of the object name, so no name a client sends ever becomes a path. Plain files are
reached by name, and only when every segment is an ordinary one and the real path lies inside the bucket's folder.
A plain file that is replaced or patched through the API moves into the store.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import stat
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fake_gcs.checksums import Checksum, Checksums
from fake_gcs.errors import GCSError, invalid
from fake_gcs.objects.bodies import Body
from fake_gcs.objects.names import check_bucket_name, check_object_name
from fake_gcs.objects.record import Bucket, ObjectVersion

HIDDEN = ".fake_gcs"
"""Folder of the store's own files, in the root and in each bucket."""
_MAX_SEGMENT_BYTES = 255


class DirectoryBody:
    """A body in a file.

    Attributes:
        path: Where it lies.
        size: Number of bytes.
        stamp: For plain files: modification time in ns, device and inode; a change makes another generation.
    """

    __slots__ = ("_source", "path", "size", "stamp")

    def __init__(self, path: Path, size: int, stamp: tuple[int, ...] | None = None) -> None:
        self._source: FileSource | None = None
        self.path = path
        self.size = size
        self.stamp = stamp

    def open(self) -> FileSource:
        """Open the file; all who read it at the same time share one descriptor."""
        source = self._source
        if source is None or source.fd is None:
            try:
                fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                raise GCSError(404, "No such object: it was removed while it was being read.") from None
            except OSError as error:
                raise _unusable(error) from error
            source = self._source = FileSource(fd)
        source.readers += 1
        return source


class FileSource:
    """An open file, read at offsets only, so that several readers do not disturb each other.

    Attributes:
        fd: The descriptor; None when it is closed.
        readers: How many have it open.
    """

    __slots__ = ("fd", "readers")

    def __init__(self, fd: int) -> None:
        self.fd: int | None = fd
        self.readers = 0

    def read(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``offset``."""
        if self.fd is None:
            raise ValueError("the file is closed")
        return os.pread(self.fd, size, offset)

    def close(self) -> None:
        """One reader less; the last one closes the descriptor."""
        self.readers -= 1
        if self.fd is not None and self.readers <= 0:
            os.close(self.fd)
            self.fd = None


class DirectoryWriter:
    """Writes a body to a file in the temporary folder."""

    __slots__ = ("_ended", "_fd", "_path", "checksum", "size")

    def __init__(self, folder: Path) -> None:
        self._path = folder / secrets.token_hex(16)
        try:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _unusable(error) from error
        self._ended = False
        self.size = 0
        self.checksum = Checksum()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes."""
        view = memoryview(data)
        self.checksum.update(view)
        self.size += len(view)
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            raise _unusable(error) from error

    def cut(self, size: int, checksum: Checksum) -> None:
        """Forget what was written behind ``size``."""
        self.rest()
        os.truncate(self._path, size)
        self.size, self.checksum = size, checksum

    def finish(self) -> DirectoryBody:
        """The finished body, still in the temporary folder until it is committed."""
        self.rest()
        self._ended = True
        return DirectoryBody(self._path, self.size)

    def abort(self) -> None:
        """Remove what was written."""
        self.rest()
        if not self._ended:
            self._ended = True
            self._path.unlink(missing_ok=True)

    def rest(self) -> None:
        """Close the file until the next write."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class DirectoryBacking:
    """Keeps buckets in a directory."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._tmp = self._root / HIDDEN / "tmp"
        self._plain: dict[str, set[str]] = {}
        shutil.rmtree(self._tmp, ignore_errors=True)
        self._tmp.mkdir(parents=True)

    # Buckets.

    def load(self) -> tuple[list[Bucket], list[ObjectVersion]]:
        """Every folder that has a bucket's name, and every committed version."""
        buckets: list[Bucket] = []
        versions: list[ObjectVersion] = []
        for folder in sorted(self._root.iterdir()):
            if not folder.is_dir() or folder.is_symlink() or not _is_bucket_name(folder.name):
                continue
            buckets.append(self._load_bucket(folder))
            versions += self._load_versions(folder)
        return buckets, versions

    def _load_bucket(self, folder: Path) -> Bucket:
        try:
            kept = json.loads((folder / HIDDEN / "bucket.json").read_bytes())
            return Bucket(folder.name, **kept)
        except FileNotFoundError:
            created = folder.stat().st_mtime
            return Bucket(folder.name, created, created, 1, {})

    def _load_versions(self, folder: Path) -> list[ObjectVersion]:
        found: list[ObjectVersion] = []
        claimed: set[Path] = set()
        for path in (folder / HIDDEN).glob("??/*.json"):
            version = _read_version(folder.name, path)
            data = path.with_suffix(".data")
            if version is None or not data.is_file():
                path.unlink()
                continue
            claimed.add(data)
            found.append(version)
        for data in (folder / HIDDEN).glob("??/*.data"):
            if data not in claimed:
                data.unlink()
        return found

    def save_bucket(self, bucket: Bucket) -> None:
        """Write the bucket's settings."""
        kept = asdict(bucket)
        del kept["name"]
        folder = self._root / check_bucket_name(bucket.name) / HIDDEN
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._write_json(folder / "bucket.json", kept)
        except OSError as error:
            raise _unusable(error) from error

    def drop_bucket(self, bucket: Bucket) -> None:
        """Remove the bucket's folder, with whatever empty folders are left in it."""
        shutil.rmtree(self._root / check_bucket_name(bucket.name), ignore_errors=True)

    # Versions.

    def new_body(self) -> DirectoryWriter:
        """A body in the temporary folder."""
        return DirectoryWriter(self._tmp)

    def discard(self, body: Body) -> None:
        """Remove a body that is still in the temporary folder."""
        if isinstance(body, DirectoryBody) and body.path.parent == self._tmp:
            body.path.unlink(missing_ok=True)

    def save(self, version: ObjectVersion) -> ObjectVersion:
        """Move or link the body to its place, then write the metadata: the rename of that file is the commit."""
        if not isinstance(version.body, DirectoryBody):
            raise TypeError("a body of another backing")
        try:
            return self._save(version, version.body)
        except OSError as error:
            raise _unusable(error) from error

    def _save(self, version: ObjectVersion, body: DirectoryBody) -> ObjectVersion:
        data, meta = self._places(version)
        if body.path != data:
            data.parent.mkdir(parents=True, exist_ok=True)
            # Other names may mean the same path, as "a//b" does; what lies there is another object's.
            named = {self._root / version.bucket / version.name} if _is_plain_name(version.name) else set()
            if body.path in {self._tmp / body.path.name, *named}:
                body.path.rename(data)
            elif body.stamp is not None:
                shutil.copyfile(body.path, data)  # Not a link: the file may be written to from outside.
            else:
                _link_or_copy(body.path, data)
            version = replace(version, body=DirectoryBody(data, body.size))
        self._write_json(meta, _as_kept(version))
        return version

    def drop(self, version: ObjectVersion) -> None:
        """Remove the metadata, then the body."""
        body = version.body
        if isinstance(body, DirectoryBody) and body.stamp is not None:
            body.path.unlink(missing_ok=True)
            return
        data, meta = self._places(version)
        meta.unlink(missing_ok=True)
        data.unlink(missing_ok=True)

    def _places(self, version: ObjectVersion) -> tuple[Path, Path]:
        digest = hashlib.sha256(version.name.encode()).hexdigest()[:40]
        folder = self._root / check_bucket_name(version.bucket) / HIDDEN / digest[:2]
        stem = f"{digest}.{version.generation}"
        return folder / f"{stem}.data", folder / f"{stem}.json"

    def _write_json(self, path: Path, value: dict[str, Any]) -> None:
        draft = self._tmp / secrets.token_hex(16)
        draft.write_bytes(json.dumps(value).encode())
        draft.rename(path)

    # Plain files.

    def find(self, bucket: str, name: str, known: ObjectVersion | None) -> ObjectVersion | None:
        """A stored version as it is known; a plain file as it is on disk now."""
        if known is not None:
            body = known.body
            if not isinstance(body, DirectoryBody) or body.stamp is None:
                return known
        return self._adopt(bucket, name, known)

    def _adopt(self, bucket: str, name: str, known: ObjectVersion | None) -> ObjectVersion | None:
        folder = self._root / bucket
        if not _is_plain_name(name):
            return None
        path = folder / name
        try:
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode):
                return None
            stamp = (status.st_mtime_ns, status.st_dev, status.st_ino)
            if known and isinstance(known.body, DirectoryBody) and known.body.stamp == stamp:
                return known
            if not Path(os.path.realpath(path)).is_relative_to(folder):
                return None
        except (OSError, ValueError):
            return None
        generation = max(status.st_mtime_ns // 1000, known.generation + 1 if known else 1)
        body = DirectoryBody(path, status.st_size, stamp)
        when = status.st_mtime
        return ObjectVersion(bucket, name, generation, 1, None, when, when, None, None, {}, body)

    def discover(self, bucket: str) -> list[str]:
        """Names of plain files under the bucket's folder, now or the last time."""
        folder = self._root / bucket
        found = set[str]()
        for parent, folders, files in os.walk(folder):
            folders[:] = sorted(name for name in folders if name != HIDDEN)
            for file in files:
                name = str((Path(parent) / file).relative_to(folder))
                with contextlib.suppress(GCSError, UnicodeEncodeError):
                    found.add(check_object_name(name))
        before = self._plain.get(bucket, set())
        self._plain[bucket] = found
        return sorted(found | before)

    def hashed(self, version: ObjectVersion, checksums: Checksums) -> None:
        """Checksums of plain files are kept only as long as the process lives."""


def _unusable(error: OSError) -> GCSError:
    return GCSError(503, f"The store can not be used: {error.strerror}")


def _is_bucket_name(name: str) -> bool:
    try:
        check_bucket_name(name)
    except GCSError:
        return False
    return True


def _is_plain_name(name: str) -> bool:
    segments = name.split("/")
    if "\0" in name or HIDDEN in segments:
        return False
    return all(segment not in {"", ".", ".."} and len(segment.encode()) <= _MAX_SEGMENT_BYTES for segment in segments)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _as_kept(version: ObjectVersion) -> dict[str, Any]:
    checksums = version.checksums
    return {
        "name": version.name,
        "generation": version.generation,
        "metageneration": version.metageneration,
        "size": version.size,
        "crc32c": checksums.crc32c if checksums else None,
        "md5": checksums.md5.hex() if checksums and checksums.md5 else None,
        "created": version.created,
        "updated": version.updated,
        "deleted": version.deleted,
        "components": version.components,
        "settings": version.settings,
    }


def _read_version(bucket: str, path: Path) -> ObjectVersion | None:
    try:
        kept = json.loads(path.read_bytes())
        checksums = None
        if kept["crc32c"] is not None:
            checksums = Checksums(kept["crc32c"], bytes.fromhex(kept["md5"]) if kept["md5"] else None)
        data = path.with_suffix(".data")
        size = data.stat().st_size
        if size != kept["size"]:
            raise invalid("the body was cut short")
        return ObjectVersion(
            bucket,
            kept["name"],
            kept["generation"],
            kept["metageneration"],
            checksums,
            kept["created"],
            kept["updated"],
            kept["deleted"],
            kept["components"],
            kept["settings"],
            DirectoryBody(data, size),
        )
    except (OSError, ValueError, KeyError, TypeError, GCSError):
        return None
