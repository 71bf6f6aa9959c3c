from __future__ import annotations

import io
import random
import tarfile
from collections.abc import Iterator, Sequence

import pytest

from asyncdata.errors import BrokenFrameError, DataError
from asyncdata.formats import tar_headers
from asyncdata.formats.framing import Place, Refs
from asyncdata.formats.tar import Members, TarFramer
from asyncdata.formats.tar_headers import Header, HeaderError, parse_header, parse_pax
from asyncdata.testing.decoders import (
    Pieces,
    check_every_cut,
    check_piece_sizes,
    check_random_cuts,
    pieces_of,
    run,
)
from tests.samples import samples

FORMATS = pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
LONG = "a/" * 40 + "b" * 30 + ".txt"
LONGER = "ü" * 300 + ".bin"


def archive(members: Sequence[tuple[str, bytes | None]], form: int = tarfile.PAX_FORMAT, *, end: bool = True) -> bytes:
    """A tar file; members without content are directories."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if content is None:
                info.type = tarfile.DIRTYPE
            info.size = len(content or b"")
            tar.addfile(info, io.BytesIO(content or b""))
        length = tar.offset
    return file.getvalue() if end else file.getvalue()[:length]


def decode(pieces: Pieces) -> Iterator[bytes]:
    """Name and content of each member, joined; the object's size is not known."""
    return _decode(TarFramer(), pieces)


def _decode(framer: TarFramer, pieces: Pieces, *, size: int | None = None) -> Iterator[bytes]:
    held = bytearray()
    offset = 0
    for piece in _and_none(pieces):
        held += piece or b""
        while True:
            with memoryview(held) as view:
                remaining = None if size is None else size - offset
                frames = framer.frame(
                    view, 0, len(view), limit=2, remaining=remaining, last=piece is None, place=Place(offset=offset)
                )
                found = contents(frames, view)
            yield from found
            if frames.error is not None:
                raise frames.error
            if frames.ended:
                return
            last = piece is None and frames.stop == len(held)
            del held[: frames.stop]
            offset += frames.stop
            if last:
                return
            if not found:
                break


def _and_none(pieces: Pieces) -> Iterator[memoryview | None]:
    yield from pieces
    yield None


def contents(frames: Members, view: memoryview) -> list[bytes]:
    """Name and content of each member, joined."""
    (refs,) = frames.values
    assert isinstance(refs, Refs)
    return [
        name.encode() + b"=" + bytes(view[at : at + size])
        for name, (at, size) in zip(frames.names, refs.rows.tolist(), strict=True)
    ]


MEMBERS: list[tuple[str, bytes | None]] = [
    ("d", None),
    ("d/one.txt", b"first"),
    ("empty", b""),
    ("block", b"b" * 512),
    ("d/more", b"c" * 513),
    (LONG, b"long"),
]


def joined(members: Sequence[tuple[str, bytes | None]]) -> list[bytes]:
    """What `decode` gives for these."""
    return [name.encode() + b"=" + content for name, content in members if content is not None]


@FORMATS
def test_members_however_the_archive_is_cut(form: int) -> None:
    """Directories are passed over, long names of every kind are read; any chunking gives the same members."""
    members = MEMBERS if form == tarfile.USTAR_FORMAT else [*MEMBERS, (LONGER, b"longer"), ("last", b"l")]
    data = archive(members, form)
    expected = joined(members)
    assert list(_decode(TarFramer(), pieces_of(data, 1 << 20), size=len(data))) == expected
    check_piece_sizes(decode, data, expected, [100, 511, 512, 513])
    check_random_cuts(decode, data, expected, seed=form, rounds=samples(10, 1000))
    if form == tarfile.GNU_FORMAT:
        short = archive([("d", None), ("x" * 120, b"12"), ("y", b"")], form, end=False)
        check_every_cut(decode, short, [b"x" * 120 + b"=12", b"y="])


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_long_name_may_have_a_slash_where_its_header_ends(form: int) -> None:
    """The header holds the first hundred bytes of the name, which then look like a directory's."""
    members: list[tuple[str, bytes | None]] = [("a" * 99 + f"/{n}.txt", b"%d" % n * 600) for n in range(3)]
    data = archive(members, form)
    check_piece_sizes(decode, data, joined(members), [100, 512, len(data)])


def test_directories_of_v7_are_passed_over() -> None:
    """They are files whose names end with a slash; what follows their header is the next one."""
    info = tarfile.TarInfo("d/")
    info.type, info.size = tarfile.AREGTYPE, 600
    data = info.tobuf(tarfile.USTAR_FORMAT) + archive([("d/a", b"1")], tarfile.USTAR_FORMAT)
    assert list(decode(pieces_of(data, 512))) == [b"d/a=1"]


@FORMATS
def test_an_archive_that_ends_early(form: int) -> None:
    """Behind a whole member an archive may end; anywhere else that is an error, behind the whole members."""
    members: list[tuple[str, bytes | None]] = [("a", b"1"), ("b", b"2" * 600), ("c" * 105, b""), ("d", b"3")]
    if form == tarfile.USTAR_FORMAT:
        members[2] = ("c", b"")
    data = archive(members, form, end=False)
    ends = {0}
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for info in tar:
            # The padding of the last member may be cut off.
            stop = info.offset_data + info.size
            ends |= {stop, stop + 1, stop + 200} if info.size else {stop}
            ends.add(-(-stop // 512) * 512)
    sizes = {near for end in ends for near in (end - 1, end, end + 1) if 0 <= near < len(data)}
    for size in sorted(sizes | set(range(0, len(data), samples(61, 1)))):
        outcome = run(decode, pieces_of(data[:size], 300))
        assert outcome.records == joined(members)[: len(outcome.records)]
        assert (outcome.error is None) == any(stop <= size <= -(-stop // 512) * 512 for stop in ends), size


def test_links_devices_and_sparse_files_are_passed_over() -> None:
    """What is no regular file is no member, whatever its header says about its size."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE):
            info = tarfile.TarInfo(f"special{kind.decode()}")
            info.type, info.linkname, info.size = kind, "somewhere" * 20, 12345
            tar.addfile(info)
        tar.addfile(_sized("after", 3), io.BytesIO(b"abc"))
        length = tar.offset
    sparse = bytearray(file.getvalue()[:length])
    header = bytearray(_sized("sparse", 700).tobuf(tarfile.GNU_FORMAT))
    header[156:157], header[482] = b"S", 1
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    extension = bytearray(512)
    extension[504] = 1
    sparse += header + extension + bytes(512) + b"s" * 700 + bytes(324)
    sparse += _sized("last", 1).tobuf() + b"z" + bytes(511)
    check_piece_sizes(decode, bytes(sparse), [b"after=abc", b"last=z"], [1, 300, 512, 5000])


def _sized(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size
    return info


def test_pax_headers() -> None:
    """Path and size of a pax header count; a global one is passed over; GNU's sparse format is no regular file."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "for all"}) as tar:
        big = _sized("x", 5)
        big.pax_headers = {"path": "π/renamed", "size": "5"}
        tar.addfile(big, io.BytesIO(b"12345"))
        holes = _sized("holes", 4)
        holes.pax_headers = {"GNU.sparse.major": "1"}
        tar.addfile(holes, io.BytesIO(b"skip"))
        tar.addfile(_sized("z", 1), io.BytesIO(b"!"))
    check_piece_sizes(decode, file.getvalue(), ["π/renamed=12345".encode(), b"z=!"], [1, 512, 9999])


def test_what_follows_the_end_is_not_looked_at() -> None:
    """A block of zeros ends the archive; another archive behind it does not belong to it."""
    data = archive([("a", b"1")], end=False) + bytes(512) + archive([("b", b"2")])
    assert list(decode(pieces_of(data, 700))) == [b"a=1"]


@pytest.mark.parametrize("size", [10, 1 << 30, 1 << 62])
def test_a_lying_size_is_an_error_and_no_allocation(size: int) -> None:
    """A size beyond the end of the object is told at once; one that is not known to lie asks for no more than it."""
    data = bytearray(archive([("a", b"1"), ("b", b"22")]))
    info = _sized("b", size)
    data[1024:1536] = info.tobuf(tarfile.GNU_FORMAT)
    outcome = run(lambda pieces: _decode(TarFramer(), pieces, size=1540), pieces_of(bytes(data[:1540]), 600))
    assert outcome.records == [b"a=1"]
    assert isinstance(outcome.error, BrokenFrameError)
    assert outcome.error.offset == 1024


@pytest.mark.parametrize(("place", "change"), [(0, b"\xff"), (148, b"9"), (124, b"xx"), (100, b"\0\0"), (130, b"7777")])
def test_a_damaged_header_is_an_error(place: int, change: bytes) -> None:
    """A changed byte anywhere in a header does not go unnoticed."""
    data = bytearray(archive([("a", b"1"), ("b", b"2")]))
    data[1024 + place : 1024 + place + len(change)] = change
    outcome = run(decode, pieces_of(bytes(data), 512))
    assert outcome.records == [b"a=1"]
    assert isinstance(outcome.error, BrokenFrameError)


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        (b"\x1f\x8b" + bytes(600), "gzip: pass compression_type='GZIP'"),
        (b"PK\x03\x04" + bytes(600), "zip"),
        (b"<html>" * 200, "HTML"),
        (b"hello world " * 100, "begins with 68 65"),
        (b"short", "may be truncated"),
    ],
)
def test_what_is_no_tar_file_is_named(data: bytes, hint: str) -> None:
    """The error says what the file looks like."""
    error = run(decode, pieces_of(data, 1000)).error
    assert isinstance(error, DataError)
    assert hint in str(error)


@pytest.mark.parametrize(
    "data", [b"x", b"12", b"99 a=b\n", b"7 a=b\nx", b"6 a=bc", b"5 ab\n", b"6 =ab\n", b"-6 a=b\n", b" 6 a=b\n"]
)
def test_damaged_pax_records(data: bytes) -> None:
    """A record whose length or form is wrong is refused."""
    with pytest.raises(HeaderError):
        parse_pax(data)


def test_random_bytes_are_never_taken_for_a_header() -> None:
    """Fuzzed headers are refused or make sense; nothing else is raised."""
    source = random.Random(4)
    good = archive([("name", b"content")])[:512]
    for _ in range(samples(300, 20_000)):
        block = bytearray(good)
        for _ in range(source.randint(1, 6)):
            block[source.randrange(512)] = source.choice([0, 32, 48, 57, 128, 255, source.randrange(256)])
        try:
            header = parse_header(bytes(block))
        except HeaderError:
            continue
        assert header.size >= 0


def test_base_256_and_signed_checksums() -> None:
    """Sizes above 8 GB and checksums of old writers are read; a negative size is refused."""
    info = _sized("big", 1 << 40)
    assert parse_header(info.tobuf(tarfile.GNU_FORMAT)).size == 1 << 40
    block = bytearray(_sized("ü" * 5, 3).tobuf(tarfile.GNU_FORMAT))
    block[148:156] = b" " * 8
    signed = sum(byte - 256 if byte > 127 else byte for byte in block)
    block[148:156] = f"{signed:06o}\0 ".encode()
    assert parse_header(bytes(block)).name == "ü" * 5
    block[124:136] = b"\xff" * 12
    block[148:156] = b" " * 8
    block[148:156] = f"{sum(block):06o}\0 ".encode()
    with pytest.raises(HeaderError, match="size"):
        parse_header(bytes(block))


@pytest.mark.parametrize("piece", [512, 700, 5000, 1 << 20])
@pytest.mark.parametrize("kind", [b"L", b"K", b"x", b"g", b"S"])
def test_headers_in_a_row_are_read_once(kind: bytes, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many names, pax headers or blocks of a sparse map follow one another, and however they are cut."""
    count = 600
    name = {b"x": b"14 path=named\n", b"g": b"13 comment=x\n", b"S": b""}.get(kind, b"named")
    info = _sized("before", len(name))
    info.type = kind
    head = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block = bytearray(512)
    block[: len(name)] = name
    if kind == b"S":
        head[482], block[504] = 1, 1
        head[148:156] = b" " * 8
        head[148:156] = f"{sum(head):06o}\0 ".encode()
        data = bytes(head + block * (2 * count) + bytes(512))
    else:
        data = bytes((head + block) * count)
    data += archive([("last", b"content")])
    parsed: list[int] = []
    whole = tar_headers.parse_header

    def counting(block: bytes) -> Header:
        parsed.append(len(block))
        return whole(block)

    monkeypatch.setattr(tar_headers, "parse_header", counting)
    framer, shown, offset, held = TarFramer(), 0, 0, bytearray()
    expected = b"named=content" if kind in b"Lx" else b"last=content"
    found: list[bytes] = []
    for cut in range(0, len(data) + piece, piece):
        held += data[cut : cut + piece]
        with memoryview(held) as view:
            shown += len(view)
            frames = framer.frame(
                view, 0, len(view), limit=9, remaining=None, last=cut >= len(data), place=Place(offset=offset)
            )
            assert frames.error is None
            found += contents(frames, view)
            if len(frames.starts):
                assert offset + int(frames.starts[0]) == (2 * count + 2) * 512 * (kind == b"S")
        if frames.ended:
            break
        del held[: frames.stop]
        offset += frames.stop
    assert found == [expected]
    assert len(parsed) <= 2 * count + 10
    assert shown <= len(data) + (len(data) // piece + 2) * 1536
