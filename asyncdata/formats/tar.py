"""Members of a tar file: the name of each regular file and the place of its contents.

GNU's long names (type ``L``) and pax headers (name and size of the next member) belong to the member behind them.
Members that are not regular files (directories, links, devices, sparse files) are skipped. A block of zeros ends the
archive; nothing behind it is examined. Where the size of the object is not known, it is compressed: then all of it is
passed over, because the checksum of the compressed stream is at its end. An archive without this block is complete if
it ends behind a whole member.

By WebDataset's convention, consecutive members whose names differ only in their extension are one sample. The key of a
member is its path up to the first dot of its last component; its extension is the rest after that dot, in lower case.
Names without a dot belong to no sample, and neither do names such as ``__so__`` and everything in folders of such
names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from asyncdata.errors import BrokenFrameError
from asyncdata.formats import tar_headers
from asyncdata.formats.framing import Frames, Place, Refs
from asyncdata.formats.signatures import look_of
from asyncdata.formats.tar_headers import BLOCK, Header, HeaderError, padded
from asyncdata.memory.structure import LEAF, Structure

_MOST_META_BYTES: Final = 1 << 20
"""The longest name or pax header that is believed."""

_MOST_AT_A_TIME: Final = 256
"""Members of one call: more would hold the loop for too long."""

_META: Final = frozenset(
    {
        tar_headers.LONG_NAME,
        tar_headers.LONG_LINK,
        tar_headers.PAX,
        tar_headers.PAX_GLOBAL,
        tar_headers.PAX_SOLARIS,
    }
)
_NAME: Final = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)")
_ASIDE: Final = re.compile(r"__[^/]*__($|/)")

KEY: Final = "__key__"


@dataclass(slots=True, kw_only=True)
class Members(Frames):
    """What `TarFramer` finds.

    Attributes:
        names: Of the members, as their headers say.
        over: Whether the block of zeros that ends the archive has been seen.
    """

    names: list[str] = field(default_factory=list)
    over: bool = False

    def parts(self) -> Iterator[tuple[SamplePart, int, tuple[int, int]]]:
        """The members that belong to samples: where the header of each begins, and offset and length of its content."""
        (refs,) = self.values
        assert isinstance(refs, Refs)
        for name, start, (offset, length) in zip(self.names, self.starts.tolist(), refs.rows.tolist(), strict=True):
            part = part_of(name)
            if part is not None:
                yield part, start, (offset, length)


class _Member(NamedTuple):
    """What begins at a header.

    Attributes:
        name: Of a regular file; None for what is passed over.
        content: Position of its first byte.
        size: Of the content.
        stop: Position behind it, padding included.
        whole: Whether the next header is another member's.
    """

    name: str | None
    content: int
    size: int
    stop: int
    whole: bool = True


class _CutOff(Exception):  # noqa: N818 -- a signal: how many bytes are needed to go on
    def __init__(self, need: int) -> None:
        super().__init__(need)
        self.need = need


class TarFramer:
    """See the module's docstring."""

    structure: Structure = LEAF
    in_thread = False

    def __init__(self) -> None:
        # Bytes still to be passed over that belong to no member: content that nobody wants, padding. Padding, which
        # comes last, may be missing at the end of a file.
        self._skip = 0
        self._padding = 0
        # What headers in front of a member said about it, and how long they are together. They are read once, however
        # many there are and however the object is cut.
        self._lead = 0
        self._long_name: str | None = None
        self._pax: dict[str, str] = {}
        # Bytes of a sparse file whose map goes on.
        self._sparse: int | None = None
        self._over = False

    def frame(
        self, view: memoryview, start: int, stop: int, *, limit: int, remaining: int | None, last: bool, place: Place
    ) -> Members:
        """See `Framer`."""
        end = stop if last else None if remaining is None else start + remaining
        starts: list[int] = []
        rows: list[tuple[int, int]] = []
        names: list[str] = []
        need, wrong, at = 0, "", start
        limit = min(limit, _MOST_AT_A_TIME)
        while len(starts) < limit:
            if self._over:
                at = stop
                break
            step = min(self._skip, stop - at)
            self._skip -= step
            at += step
            if at == stop:
                if last and (self._skip > self._padding or self._lead):
                    wrong = "the file ends inside a member"
                break
            if not self._lead and stop - at >= BLOCK and tar_headers.is_end(bytes(view[at : at + BLOCK])):
                self._over = True
                continue
            try:
                member = self._member(view, at, stop, end)
            except _CutOff as cut_off:
                need = cut_off.need
                if last:
                    wrong = f"the file ends inside a member: {need} bytes are needed"
                break
            except HeaderError as problem:
                hint = _recognise(bytes(view[at : at + 8])) if place.offset + at == start else ""
                wrong = f"a tar header is wrong: {problem}{hint}"
                break
            if member.name is not None:
                starts.append(at - self._lead)
                # What has no bytes points at its header, which lies in the same slab.
                rows.append((member.content if member.size else at, member.size))
                names.append(member.name)
            self._lead = 0 if member.whole else self._lead + member.stop - at
            at = min(member.stop, stop)
            self._skip = member.stop - at
            self._padding = member.stop - member.content - member.size
        table = np.array(rows, np.int64).reshape(-1, 2)
        return Members(
            starts=np.array(starts, np.int64),
            values=(Refs(table),),
            stop=at,
            need=need,
            error=place.error(BrokenFrameError, wrong, behind=at - start, record=len(starts)) if wrong else None,
            ended=self._over and remaining is not None,
            names=names,
            over=self._over,
        )

    def _member(self, view: memoryview, at: int, stop: int, end: int | None) -> _Member:
        """The member, or the part of one, whose header is at `at`.

        Raises:
            _CutOff: More of it is needed.
            HeaderError: It is damaged, or reaches beyond the end of the object.
        """
        body = at + BLOCK
        if body > stop:
            _check_inside(body, end)
            raise _CutOff(BLOCK)
        if self._sparse is not None:
            return self._sparse_map(view, at, self._sparse, end)
        header = tar_headers.parse_header(bytes(view[at:body]))
        if header.kind in _META:
            return self._meta(view, at, header, stop, end)
        long_name, self._long_name = self._long_name, None
        pax, self._pax = self._pax, {}
        name = pax.get("path", header.name if long_name is None else long_name)
        # V7 wrote directories like this. Only the whole name counts: what a header holds of a long one may end so, too.
        is_old_folder = header.kind == tar_headers.OLD_REGULAR and name.endswith("/")
        if is_old_folder or header.kind in tar_headers.NO_CONTENT:
            return _Member(None, body, 0, body)
        stated = tar_headers.pax_size(pax)
        size = header.size if stated is None else stated
        if header.kind == tar_headers.SPARSE and header.extended:
            self._sparse = size
            return _Member(None, body, 0, body, whole=False)
        _check_inside(body + size, end)
        wanted = header.kind in tar_headers.REGULAR and not any(key.startswith("GNU.sparse") for key in pax)
        if wanted and body + size > stop:
            self._long_name, self._pax = long_name, pax
            raise _CutOff(body + size - at)
        return _Member(name if wanted else None, body, size, body + padded(size))

    def _meta(self, view: memoryview, at: int, header: Header, stop: int, end: int | None) -> _Member:
        """A header that says something about the member behind it."""
        if header.size > _MOST_META_BYTES:
            raise HeaderError(f"its name or pax header is {header.size} bytes long")
        body = at + BLOCK
        following = body + padded(header.size)
        _check_inside(following, end)
        if following > stop:
            raise _CutOff(following - at)
        content = bytes(view[body : body + header.size])
        if header.kind == tar_headers.LONG_NAME:
            self._long_name = tar_headers.text_of(content)
        elif header.kind in (tar_headers.PAX, tar_headers.PAX_SOLARIS):
            self._pax = tar_headers.parse_pax(content)
        return _Member(None, following, 0, following, whole=False)

    def _sparse_map(self, view: memoryview, at: int, size: int, end: int | None) -> _Member:
        """A block of the map in front of a sparse file's content."""
        body = at + BLOCK
        if view[at + 504]:
            return _Member(None, body, 0, body, whole=False)
        _check_inside(body + size, end)
        self._sparse = None
        return _Member(None, body, size, body + padded(size))


def _check_inside(position: int, end: int | None) -> None:
    if end is not None and position > end:
        raise HeaderError(f"its data extends {position - end} bytes beyond the end of the file, which may be truncated")


def _recognise(head: bytes) -> str:
    look = look_of(head)
    return f"; the file looks like {look}" if look else f"; the file begins with {head.hex(' ')}"


class SamplePart(NamedTuple):
    """A member's place in its sample."""

    key: str
    extension: str


def part_of(name: str) -> SamplePart | None:
    """Which part of which sample a member is; None for none."""
    if _ASIDE.match(name):
        return None
    found = _NAME.fullmatch(name)
    return None if found is None else SamplePart(found[1], found[2].lower())
