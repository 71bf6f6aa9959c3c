"""Byte strings that are part of what was received are handed over where storage wrote them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from typing import Any, Final

import fsspec
import numpy as np
import pytest

import asyncdata as ad
from asyncdata.memory.pinning import MOST_PINNED
from asyncdata.storage.memory import MemoryReader

MIB: Final = 1 << 20
FILES, RECORDS, SIZE = 4, 60, 40_000
URLS: Final = [f"memory://once/{n}" for n in range(FILES)]
SPEC: Final[dict[str, Any]] = {"image": ad.FixedLenFeature((), bytes), "label": ad.FixedLenFeature((), int)}
MOST_COPIED: Final = 0.02
"""Of the bytes delivered: the record that two reads meet in is put together."""

Spans = list[tuple[int, int]]


def address(view: memoryview) -> int:
    """Where a view's bytes lie in this process."""
    found: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return found


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Spans:
    """Where storage wrote, as addresses and lengths."""
    spans: Spans = []
    read_into = MemoryReader.read_into

    async def noted(self: MemoryReader, info: Any, start: int, buffer: memoryview, attempt: Any = None) -> int:
        spans.append((address(buffer), len(buffer)))
        return await read_into(self, info, start, buffer, attempt)

    monkeypatch.setattr(MemoryReader, "read_into", noted)
    return spans


def store(url: str, examples: list[Any]) -> None:
    """Writes a shard."""
    with fsspec.open(url, "wb") as file, ad.TFRecordWriter(file) as writer:
        writer.write_many(map(ad.serialize_example, examples))


@pytest.fixture(autouse=True)
def files() -> Iterator[None]:
    """Shards of Examples, and the same bytes as lines."""
    filesystem = fsspec.filesystem("memory")
    for number, url in enumerate(URLS):
        images = [np.random.default_rng(record).bytes(SIZE) for record in range(RECORDS)]
        store(url, [{"image": image, "label": number * RECORDS + n} for n, image in enumerate(images)])
    lines = b"\n".join(str(n).encode() * (SIZE // len(str(n))) for n in range(RECORDS))
    filesystem.pipe({"memory://once/lines": lines, "memory://once/fixed": bytes(RECORDS * SIZE)})
    filesystem.pipe({"memory://once/tar": samples_of_images()})
    yield
    filesystem.rm("memory://once", recursive=True)


def samples_of_images() -> bytes:
    """A tar file: an image and its class for every record."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for number in range(RECORDS):
            for extension, content in (("jpg", bytes((number,)) * SIZE), ("cls", str(number).encode())):
                member = tarfile.TarInfo(f"{number:04d}.{extension}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def records() -> ad.Dataset:
    """All records, as they arrive."""
    return ad.Dataset.from_tensor_slices(URLS).interleave(ad.TFRecordDataset, cycle_length=4, deterministic=False)


PARSE: Final = ad.parse_example(SPEC)
WORKS: Final[dict[str, Callable[[], ad.Dataset]]] = {
    "batches": lambda: records().batch(8),
    "batches parsed": lambda: records().batch(8).map(PARSE, ad.AUTOTUNE),
    "small batches parsed": lambda: records().batch(3).map(PARSE, ad.AUTOTUNE),
    "records parsed": lambda: records().map(PARSE, ad.AUTOTUNE).batch(8),
    "records parsed inline": lambda: records().map(PARSE).batch(8),
    "batches parsed in workers": lambda: records().batch(8).map(PARSE, 2),
    "batches parsed in threads": lambda: records().batch(8).map(PARSE, 2, executor="thread"),
    "records parsed in workers": lambda: records().map(PARSE, 2).batch(8),
    "rows of workers": lambda: records().map(PARSE, 2, executor="process").shuffle(3, seed=1).batch(8),
    "parts of batches": lambda: records().batch(8).map(all_but_one, 2, zero_copy=True),
    "prefetched": lambda: records().batch(8).map(PARSE, ad.AUTOTUNE).prefetch(ad.AUTOTUNE),
    "unbatched": lambda: records().batch(8).map(PARSE, ad.AUTOTUNE).unbatch().batch(5),
    "lines": lambda: ad.TextLineDataset("memory://once/lines").batch(8),
    "fixed lengths": lambda: ad.FixedLengthRecordDataset("memory://once/fixed", 1000).batch(8),
    "samples of tar files": lambda: ad.TarDataset("memory://once/tar").batch(8),
    "samples of tar files, shuffled": lambda: ad.TarDataset("memory://once/tar").shuffle(3, seed=1).batch(8),
}


def all_but_one(batch: ad.BytesArray) -> ad.BytesArray:
    """A function of a user's that hands on some of what it was given."""
    return batch[1:]


def strings_of(batch: Any) -> ad.BytesArray:
    """The byte strings of a batch."""
    found = batch.get("image", batch.get("jpg")) if isinstance(batch, dict) else batch
    assert isinstance(found, ad.BytesArray)
    return found


def copied_part(batches: list[Any], written: Spans) -> float:
    """How much of the bytes delivered lies elsewhere than storage wrote it."""
    spans = np.array(sorted(written))
    copied = total = 0
    for view in (view for batch in batches for view in strings_of(batch).views()):
        at, size = address(view), len(view)
        begins, ends = np.maximum(spans[:, 0], at), np.minimum(spans.sum(axis=1), at + size)
        total += size
        copied += size - int(np.maximum(ends - begins, 0).sum())
    return copied / total


def kept(ds: ad.Dataset) -> tuple[list[Any], int]:
    """All batches, kept so that no memory is used a second time, and the bytes of the slabs that they need."""
    with ad.Runtime(ad.Options(memory_limit_bytes=512 * MIB)), ds.iterator() as iterator:
        return list(iterator), iterator.stats().used_bytes


@pytest.mark.sampled
@pytest.mark.parametrize("name", WORKS)
def test_payloads_are_not_copied(name: str, written: Spans) -> None:
    """And what they keep from being used again is not much more than they are."""
    batches, pinned = kept(WORKS[name]())
    assert copied_part(batches, written) <= MOST_COPIED
    assert pinned <= MOST_PINNED * sum(strings_of(batch).nbytes for batch in batches)
    if "label" in batches[0]:
        labels = [int(label) for batch in batches for label in batch["label"]]
        assert sorted(labels) == list(range(FILES * RECORDS))


@pytest.mark.sampled
@pytest.mark.parametrize("parallel", [2, ad.AUTOTUNE])
@pytest.mark.parametrize("step", ["batches", "records"])
def test_a_small_feature_of_large_records_is_copied(step: str, parallel: int) -> None:
    """References would keep the whole records."""
    names = [str(number).encode() * 10 for number in range(400)]
    store(URLS[0], [{"large": bytes(SIZE), "image": name, "label": 0} for name in names])
    ds = ad.TFRecordDataset(URLS[0])
    parsed = ds.batch(50).map(PARSE, parallel) if step == "batches" else ds.map(PARSE, parallel).batch(50)
    batches, pinned = kept(parsed)
    assert [item for batch in batches for item in batch["image"]] == names
    assert pinned < len(names) * SIZE / MOST_PINNED
