"""What a pipeline has listed, so that an epoch that is resumed ends with the files that it began with.

    Manifest ── note ──▶ Listings ── news ──▶ deliveries ──▶ the iterator ──▶ "listings" of its states
    Manifest ◀─ recall ── Listings ◀── of a state that was loaded

A listing is stored as a manifest file is: a line of JSON per object, known by the digest of all of them. URLs that hold
secrets are never stored: such a listing is made anew, and it is the list of these URLs anyway.
"""

from __future__ import annotations

import functools
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from asyncdata.errors import DataError, StateError
from asyncdata.redaction import redact_url
from asyncdata.runtime.state.json_codec import compressed, decompressed
from asyncdata.storage.manifest_files import MAX_MANIFEST_BYTES, format_entry, parse_entry
from asyncdata.types import ObjectInfo


class RecordedListing:
    """The objects that were found once.

    Args:
        key: What was looked for, see `Listings`.
        infos: The objects, in their order.
    """

    def __init__(self, key: str, infos: Sequence[ObjectInfo]) -> None:
        self.key = key
        self.infos = tuple(infos)

    @functools.cached_property
    def body(self) -> bytes:
        """The lines."""
        return "".join([f"{format_entry(info)}\n" for info in self.infos]).encode()

    @functools.cached_property
    def digest(self) -> str:
        """Of the lines."""
        return digest_of(self.body)

    @functools.cached_property
    def packed(self) -> str:
        """The lines as a text for JSON."""
        return compressed(self.body)

    def to_json(self) -> dict[str, Any]:
        """As a part of a state."""
        return {"of": self.key, "digest": self.digest, "data": self.packed}


def digest_of(body: bytes) -> str:
    """The name of a listing's lines."""
    return hashlib.sha256(body).hexdigest()[:32]


def checksum_of(parts: Iterable[Any]) -> int:
    """Of the listings of a state, without their lines, for which the digests speak."""
    known = [
        {name: value for name, value in part.items() if name != "data"} if isinstance(part, dict) else part
        for part in parts
    ]
    return zlib.crc32(json.dumps(known, sort_keys=True, separators=(",", ":")).encode())


def lines_of(part: Mapping[str, Any]) -> bytes:
    """The lines of a listing that a state contains.

    Raises:
        StateError: It is damaged.
    """
    try:
        body = decompressed(part["data"], MAX_MANIFEST_BYTES)
    except (TypeError, ValueError) as error:
        raise StateError(f"the state is damaged: a listing cannot be read ({error})") from error
    if digest_of(body) != part.get("digest"):
        raise StateError("the state is damaged: a listing is not the one that belongs to it")
    return body


def from_json(part: Any) -> RecordedListing:
    """What `RecordedListing.to_json` made.

    Raises:
        StateError: It is damaged, or only the digest of a listing that lies elsewhere.
    """
    try:
        key = str(part["of"])
        if "data" not in part:
            raise StateError("the state's listing lies in a file beside it: read it with ad.state.load")
        lines = lines_of(part).splitlines()
        return RecordedListing(key, [parse_entry(line, number, "") for number, line in enumerate(lines)])
    except (AttributeError, KeyError, TypeError, DataError) as error:
        raise StateError(f"the state is damaged: a listing cannot be read ({error})") from error


class Listings:
    """The listings of one running pipeline, on the stage loop.

    A listing's key says which storage options found it, as a number in the order of the plan, and what was looked for.

    Args:
        recorded: Of the state that the pipeline was brought back to.
    """

    def __init__(self, recorded: Iterable[RecordedListing]) -> None:
        self._recorded = {listing.key: listing for listing in recorded}
        self._news: list[RecordedListing] = []

    def recall(self, key: str) -> Sequence[ObjectInfo] | None:
        """What was found when the epoch began, if the state knows it."""
        found = self._recorded.get(key)
        return None if found is None else found.infos

    def note(self, key: str, infos: Sequence[ObjectInfo]) -> None:
        """This was found now."""
        if all(redact_url(info.url) == info.url for info in infos):
            self._news.append(RecordedListing(key, infos))

    def news(self) -> tuple[RecordedListing, ...]:
        """What was found since the last call."""
        news, self._news = tuple(self._news), []
        return news


def key_of(access: int, patterns: Sequence[str]) -> str:
    """The key of a listing; no secret can be read from it."""
    text = json.dumps([access, *map(redact_url, patterns)])
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
