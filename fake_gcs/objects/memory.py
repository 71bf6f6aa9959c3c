"""Bodies kept in memory, and a backing that keeps nothing else."""

from __future__ import annotations

from fake_gcs.checksums import Checksum, Checksums
from fake_gcs.objects.bodies import Body
from fake_gcs.objects.record import Bucket, ObjectVersion


class MemoryBody:
    """A body in memory; it is its own source, for there is nothing to open."""

    __slots__ = ("_view", "fd", "size")

    def __init__(self, data: bytes | bytearray) -> None:
        self._view = memoryview(data)
        self.size = len(data)
        self.fd: int | None = None

    def open(self) -> MemoryBody:
        """Itself."""
        return self

    def read(self, offset: int, size: int) -> memoryview:
        """A view of the bytes, without copying."""
        return self._view[offset : offset + size]

    def close(self) -> None:
        """Nothing to let go of."""


class MemoryWriter:
    """Collects a body in memory."""

    __slots__ = ("_data", "checksum")

    def __init__(self) -> None:
        self._data = bytearray()
        self.checksum = Checksum()

    @property
    def size(self) -> int:
        """Bytes taken so far."""
        return len(self._data)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes."""
        self._data += data
        self.checksum.update(data)

    def cut(self, size: int, checksum: Checksum) -> None:
        """Forget what was written behind ``size``."""
        del self._data[size:]
        self.checksum = checksum

    def rest(self) -> None:
        """Nothing is open."""

    def finish(self) -> MemoryBody:
        """The finished body; nothing of it stays here."""
        data, self._data = self._data, bytearray()
        return MemoryBody(data)

    def abort(self) -> None:
        """Drop what was collected."""
        self._data = bytearray()


class MemoryBacking:
    """Keeps nothing beyond the process: the catalogue itself is the store."""

    def load(self) -> tuple[list[Bucket], list[ObjectVersion]]:
        """Nothing was kept."""
        return [], []

    def new_body(self) -> MemoryWriter:
        """A body to be written."""
        return MemoryWriter()

    def discard(self, body: Body) -> None:
        """Nothing to do."""

    def save_bucket(self, bucket: Bucket) -> None:
        """Nothing to do."""

    def drop_bucket(self, bucket: Bucket) -> None:
        """Nothing to do."""

    def save(self, version: ObjectVersion) -> ObjectVersion:
        """The version as it is."""
        return version

    def drop(self, version: ObjectVersion) -> None:
        """Nothing to do: the body goes when its last reader lets go of it."""

    def find(self, bucket: str, name: str, known: ObjectVersion | None) -> ObjectVersion | None:  # noqa: ARG002 -- the backing's interface
        """What is known is all there is."""
        return known

    def discover(self, bucket: str) -> list[str]:  # noqa: ARG002 -- the backing's interface
        """Nothing appears by itself."""
        return []

    def hashed(self, version: ObjectVersion, checksums: Checksums) -> None:
        """Nothing to keep."""
