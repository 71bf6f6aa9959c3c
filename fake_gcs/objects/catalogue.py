"""Buckets, objects and their generations: what the server knows, and the only place where that changes.

Every change is one synchronous step: conditions are checked and the new state is in place before anyone else looks, so
concurrent writers to one name get GCS's semantics (last commit wins; of those that ask for ``generation 0`` one wins).
A backing keeps the state beyond the process, or does not.

    live:      name -> the version that a plain GET sees, and the names in order
    archived:  name -> replaced and deleted versions, oldest first (buckets with versioning only)
"""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from fake_gcs.checksums import Checksum, Checksums
from fake_gcs.errors import GCSError, no_such_bucket, no_such_object
from fake_gcs.objects.bodies import Body, BodyWriter, pieces
from fake_gcs.objects.names import check_bucket_name, check_object_name
from fake_gcs.objects.preconditions import Preconditions
from fake_gcs.objects.record import Bucket, ObjectVersion


class Backing(Protocol):
    """Keeps bodies and metadata."""

    def load(self) -> tuple[list[Bucket], list[ObjectVersion]]:
        """Everything that was kept."""

    def new_body(self) -> BodyWriter:
        """A body to be written."""

    def discard(self, body: Body) -> None:
        """Forget a finished body that was never part of a version."""

    def save_bucket(self, bucket: Bucket) -> None:
        """Keep a new or changed bucket."""

    def drop_bucket(self, bucket: Bucket) -> None:
        """Forget an empty bucket."""

    def save(self, version: ObjectVersion) -> ObjectVersion:
        """Keep a new or changed version, atomically; returns it with its body where it now lies."""

    def drop(self, version: ObjectVersion) -> None:
        """Forget a version."""

    def find(self, bucket: str, name: str, known: ObjectVersion | None) -> ObjectVersion | None:
        """The live version as it is now, where it can change or appear from outside."""

    def discover(self, bucket: str) -> list[str]:
        """Names that may have appeared, changed or vanished from outside."""

    def hashed(self, version: ObjectVersion, checksums: Checksums) -> None:
        """The checksums of a version found from outside are known now."""


@dataclass(slots=True)
class _Shelf:
    bucket: Bucket
    live: dict[str, ObjectVersion] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    archived: dict[str, list[ObjectVersion]] = field(default_factory=dict)

    def put(self, version: ObjectVersion) -> None:
        if version.name not in self.live:
            insort(self.names, version.name)
        self.live[version.name] = version

    def remove(self, name: str) -> None:
        del self.live[name]
        del self.names[bisect_left(self.names, name)]


class Catalogue:
    """The server's state."""

    def __init__(self, backing: Backing) -> None:
        self._backing = backing
        self._shelves: dict[str, _Shelf] = {}
        self._last_generation = 0
        self._load()

    def _load(self) -> None:
        buckets, versions = self._backing.load()
        self._shelves = {bucket.name: _Shelf(bucket) for bucket in sorted(buckets, key=lambda bucket: bucket.name)}
        for version in sorted(versions, key=lambda version: version.generation):
            self._last_generation = max(self._last_generation, version.generation)
            shelf = self._shelves[version.bucket]
            if version.deleted is not None:
                shelf.archived.setdefault(version.name, []).append(version)
                continue
            if older := shelf.live.get(version.name):
                self._retire(shelf, older)
            shelf.live[version.name] = version
        for shelf in self._shelves.values():
            shelf.names = sorted(shelf.live)

    # Buckets.

    def buckets(self) -> list[Bucket]:
        """All buckets by name."""
        return [self._shelves[name].bucket for name in sorted(self._shelves)]

    def bucket(self, name: str) -> Bucket:
        """A bucket; 404 when there is none."""
        return self._shelf(name).bucket

    def create_bucket(self, name: str, settings: Mapping[str, Any] | None = None) -> Bucket:
        """Make a bucket; 409 when it exists, 400 for a name that is not allowed."""
        check_bucket_name(name)
        if name in self._shelves:
            message = f"Your previous request to create the named bucket succeeded and you already own it: {name}"
            raise GCSError(409, message, code="BucketAlreadyOwnedByYou")
        now = time.time()
        bucket = Bucket(name, now, now, 1, dict(settings or {}))
        self._backing.save_bucket(bucket)
        self._shelves[name] = _Shelf(bucket)
        return bucket

    def change_bucket(self, name: str, settings: Mapping[str, Any]) -> Bucket:
        """Replace a bucket's settings."""
        known = self.bucket(name)
        count = known.metageneration + 1
        return self.keep_bucket(replace(known, settings=dict(settings), updated=time.time(), metageneration=count))

    def keep_bucket(self, bucket: Bucket) -> Bucket:
        """Put a changed bucket in the place of what was known of it."""
        shelf = self._shelf(bucket.name)
        self._backing.save_bucket(bucket)
        shelf.bucket = bucket
        return bucket

    def delete_bucket(self, name: str, *, strict: bool) -> None:
        """Remove an empty bucket; 409 while it holds an object, or (strictly) while it holds an archived version."""
        shelf = self._shelf(name)
        self._discover(shelf)
        if shelf.live or (strict and shelf.archived):
            raise GCSError(409, "The bucket you tried to delete is not empty.")
        for group in shelf.archived.values():
            for version in group:
                self._backing.drop(version)
        self._backing.drop_bucket(shelf.bucket)
        del self._shelves[name]

    def _shelf(self, bucket: str) -> _Shelf:
        shelf = self._shelves.get(bucket)
        if shelf is None:
            raise no_such_bucket(bucket)
        return shelf

    # Reading.

    def find(self, bucket: str, name: str, generation: int | None = None) -> ObjectVersion | None:
        """The live version, or the one with that generation; None when there is none."""
        shelf = self._shelf(bucket)
        known = shelf.live.get(name)
        live = self._backing.find(bucket, name, known)
        if live is not known:
            self._learn(shelf, name, live)
        if generation is None or (live and live.generation == generation):
            return live
        for version in shelf.archived.get(name, ()):
            if version.generation == generation:
                return version
        return None

    def get(self, bucket: str, name: str, generation: int | None = None) -> ObjectVersion:
        """Like ``find``; 404 when there is none."""
        version = self.find(bucket, name, generation)
        if version is None:
            raise no_such_object(bucket, name)
        return version

    def live_names(self, bucket: str, *, refresh: bool) -> tuple[list[str], Mapping[str, ObjectVersion]]:
        """The names in order and the versions behind them; not to be changed by the caller."""
        shelf = self._shelf(bucket)
        if refresh:
            self._discover(shelf)
        return shelf.names, shelf.live

    def all_versions(self, bucket: str) -> list[ObjectVersion]:
        """Live and archived versions by name, then generation."""
        shelf = self._shelf(bucket)
        self._discover(shelf)
        versions = [version for group in shelf.archived.values() for version in group]
        versions += shelf.live.values()
        return sorted(versions, key=lambda version: (version.name, version.generation))

    def _discover(self, shelf: _Shelf) -> None:
        for name in self._backing.discover(shelf.bucket.name):
            self.find(shelf.bucket.name, name)

    def _learn(self, shelf: _Shelf, name: str, version: ObjectVersion | None) -> None:
        if version is None:
            shelf.remove(name)
        else:
            self._last_generation = max(self._last_generation, version.generation)
            shelf.put(version)

    # Writing.

    def new_body(self) -> BodyWriter:
        """A body to be committed later."""
        return self._backing.new_body()

    def discard(self, body: Body) -> None:
        """Forget a finished body that will not be committed."""
        self._backing.discard(body)

    def commit(
        self,
        bucket: str,
        name: str,
        body: Body,
        checksums: Checksums | None,
        settings: Mapping[str, Any],
        *,
        conditions: Preconditions,
        components: int | None = None,
    ) -> ObjectVersion:
        """Make a finished body the live version of a name, if the conditions hold now."""
        try:
            check_object_name(name)
            shelf = self._shelf(bucket)
            current = self.find(bucket, name)
            conditions.check(current)
            if current is not None:
                self._check_holds(current)
        except GCSError:
            self._backing.discard(body)
            raise
        now = time.time()
        self._last_generation = max(self._last_generation + 1, int(now * 1_000_000))
        generation, kept = self._last_generation, dict(settings)
        if default := shelf.bucket.settings.get("defaultObjectAcl"):
            kept.setdefault("acl", default)
        draft = ObjectVersion(bucket, name, generation, 1, checksums, now, now, None, components, kept, body)
        try:
            version = self._backing.save(draft)
        except GCSError:
            self._backing.discard(body)
            raise
        shelf.put(version)
        if current is not None:
            self._retire(shelf, current)
        return version

    def change(self, version: ObjectVersion, settings: Mapping[str, Any]) -> ObjectVersion:
        """Replace the settings of a version that ``find`` has just returned."""
        count = version.metageneration + 1
        changed = replace(version, settings=dict(settings), updated=time.time(), metageneration=count)
        return self._exchange(version, self._backing.save(changed))

    def _exchange(self, old: ObjectVersion, new: ObjectVersion) -> ObjectVersion:
        shelf = self._shelf(old.bucket)
        if shelf.live.get(old.name) is old:
            shelf.live[old.name] = new
        else:
            group = shelf.archived.get(old.name, [])
            group[:] = [new if version is old else version for version in group]
        return new

    def delete(self, bucket: str, name: str, generation: int | None, conditions: Preconditions) -> None:
        """Remove the live version (archived where versions are kept), or one generation for good."""
        shelf = self._shelf(bucket)
        version = self.get(bucket, name, generation)
        conditions.check(version)
        self._check_holds(version)
        if shelf.live.get(name) is version:
            shelf.remove(name)
            if generation is None:
                self._retire(shelf, version)
            else:
                self._backing.drop(version)
            return
        group = shelf.archived[name]
        group.remove(version)
        if not group:
            del shelf.archived[name]
        self._backing.drop(version)

    @staticmethod
    def _check_holds(version: ObjectVersion) -> None:
        if version.settings.get("temporaryHold") or version.settings.get("eventBasedHold"):
            message = f"Object '{version.bucket}/{version.name}' is under active hold and cannot be changed."
            raise GCSError(403, message)

    def _retire(self, shelf: _Shelf, version: ObjectVersion) -> None:
        if shelf.bucket.versioned:
            archived = self._backing.save(replace(version, deleted=time.time()))
            shelf.archived.setdefault(version.name, []).append(archived)
        else:
            self._backing.drop(version)

    # Checksums of what was found from outside.

    def hash_steps(self, version: ObjectVersion) -> Iterator[None]:
        """Compute the CRC32C of a version that came without one; yields between slices."""
        running = Checksum()
        for piece in pieces(version.body):
            running.update(piece)
            yield
        checksums = running.value(with_md5=False)
        self._backing.hashed(version, checksums)
        shelf = self._shelves.get(version.bucket)
        if shelf and shelf.live.get(version.name) is version:
            shelf.live[version.name] = replace(version, checksums=checksums)
