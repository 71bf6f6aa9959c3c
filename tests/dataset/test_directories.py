"""Directories of images and texts: files, classes, splits, pixels; Keras itself is asked in ``tests/referee``."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import asyncdata as ad
from asyncdata.dataset import directory_index
from asyncdata.feed.ranks import Division, Rank
from asyncdata.formats.image import encode_jpeg, encode_png
from fake_gcs import FakeGCS
from tests.integration.shards import BUCKET, gs_storage

FILES = ("cat/0.png", "cat/1.JPEG", "cat/old/2.png", "dog/0.png", "dog/1.png", "emu/0.png", "emu/x.txt", "cat/x.txt")


def content(index: int, name: str) -> bytes:
    """An image of one colour, or a text."""
    if name.endswith(".txt"):
        return f"text of {name} ä".encode()
    pixels = np.full((8 + index, 12, 3), 10 * index, np.uint8)
    return encode_png(pixels) if name.endswith(".png") else encode_jpeg(pixels)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes, and one without a file."""
    root = tmp_path / "root"
    for index, name in enumerate(FILES):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(index, name))
    (root / "empty").mkdir()
    (root / ".hidden").mkdir()
    (root / "lone.png").write_bytes(content(9, "lone.png"))
    return root


@pytest.fixture(autouse=True)
def small_runtime() -> Iterator[None]:
    """One Runtime per test, without worker processes."""
    with ad.Runtime(ad.Options(num_workers=0, memory_limit_bytes=32 << 20)):
        yield


def images(where: Any, **arguments: Any) -> Any:
    return ad.image_dataset_from_directory(
        where, **{"image_size": (4, 6), "shuffle": False, "verbose": False, **arguments}
    )


def seen(ds: Any) -> list[tuple[int, int]]:
    """The colour and the label of every image."""
    return [
        (round(float(image.mean())), int(label))
        for batch, labels in ds
        for image, label in zip(batch, labels, strict=True)
    ]


def test_classes_follow_from_folders(folder: Path) -> None:
    """Files class by class, each in the order of its folders; classes without a file count, hidden ones do not."""
    ds = images(folder, batch_size=4)
    assert ds.class_names == ["cat", "dog", "empty", "emu"]
    assert [str(Path(path).relative_to(folder)) for path in ds.file_paths] == list(FILES[:6])
    assert seen(ds) == [(0, 0), (10, 0), (20, 0), (30, 1), (40, 1), (50, 3)]
    (first, labels), *_ = ds
    assert first.dtype == np.float32
    assert labels.dtype == np.int32
    assert seen(images(folder, class_names=["emu", "cat"])) == [(50, 0), (0, 1), (10, 1), (20, 1)]
    everything = images(folder, labels=None, batch_size=None)
    assert [round(float(image.mean())) for image in everything] == [90, 0, 10, 20, 30, 40, 50]
    assert everything.class_names is None


@pytest.mark.parametrize("backend", ["memory", "gs"])
def test_object_stores(folder: Path, backend: str) -> None:
    """The same from object stores, whose folders are parts of names."""
    here = seen(images(folder, class_names=["cat", "dog", "emu"]))
    if backend == "memory":
        for index, name in enumerate(FILES):
            fsspec.filesystem("memory").pipe(f"/pictures/{name}", content(index, name))
        ds = images("memory://pictures/")
        assert ds.class_names == ["cat", "dog", "emu"]
        assert seen(ds) == here
        return
    with FakeGCS(buckets=[BUCKET]) as server:
        for index, name in enumerate(FILES):
            server.put(BUCKET, f"p/{name}", content(index, name))
        options = ad.Options(storage=gs_storage(server), num_workers=0, memory_limit_bytes=32 << 20)
        with ad.Runtime(options):
            assert seen(images(f"gs://{BUCKET}/p")) == here
            assert list(
                ad.text_dataset_from_directory(f"gs://{BUCKET}/p", batch_size=None, verbose=False, shuffle=False)
            )


def test_shuffled_files_keep_their_labels(folder: Path) -> None:
    """Epochs differ in order, never in pairs; a seed decides the split, whoever asks."""
    ds = images(folder, shuffle=True, seed=1)
    pairs = {(0, 0), (10, 0), (20, 0), (30, 1), (40, 1), (50, 3)}
    orders = [tuple(seen(ds)) for _ in range(4)]
    assert all(set(order) == pairs for order in orders)
    assert len(set(orders)) > 1
    training, validation = images(folder, shuffle=True, seed=1, validation_split=0.4, subset="both")
    assert len(seen(training)) == 4
    assert {*seen(training), *seen(validation)} == pairs
    alone = images(folder, shuffle=True, seed=1, validation_split=0.4, subset="validation")
    assert alone.file_paths == validation.file_paths


def test_kinds_of_labels(folder: Path) -> None:
    """Integers, one hot, and 0 or 1 with an axis."""
    assert [label.tolist() for _, label in images(folder, label_mode="categorical", batch_size=None)][3] == [0, 1, 0, 0]
    two = images(folder, class_names=["dog", "cat"], label_mode="binary")
    ((_, labels),) = two
    assert labels.dtype == np.float32
    assert labels.tolist() == [[0], [0], [1], [1], [1]]
    given = images(folder, labels=[5, 5, 6, 6, 7, 7, 5])
    assert given.class_names == ["5", "6", "7"]
    assert [label for _, label in seen(given)] == [5, 5, 6, 6, 7, 7, 5]


def test_shapes_and_channels(folder: Path) -> None:
    """Sizes, channels first, grey and alpha, frames of zeros and parts cut out."""

    def one(**arguments: Any) -> Any:
        return next(iter(images(folder, labels=None, batch_size=None, **arguments)))

    assert one(image_size=5).shape == (5, 5, 3)
    assert one(data_format="channels_first").shape == (3, 4, 6)
    assert one(color_mode="grayscale").shape == (4, 6, 1)
    assert one(color_mode="rgba")[..., 3].tolist() == [[255.0] * 6] * 4
    assert one(interpolation="nearest").dtype == np.uint8
    padded = one(image_size=(9, 9), pad_to_aspect_ratio=True)
    assert (padded[:, 0] == 0).all()
    assert padded[:, 4].min() == 90
    assert one(image_size=(9, 9), crop_to_aspect_ratio=True).min() == 90


def test_in_workers_and_pickled(folder: Path) -> None:
    """Images are decoded in worker processes; a dataset travels with its attributes."""
    ds = images(folder, batch_size=2)
    again = pickle.loads(pickle.dumps(ds))
    assert (again.class_names, again.file_paths) == (ds.class_names, ds.file_paths)
    with ad.Runtime(ad.Options(num_workers=1)):
        assert seen(again) == seen(ds)


def test_texts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Contents as bytes, cut off where wished; what was found is printed when asked for."""
    ds = ad.text_dataset_from_directory(folder, shuffle=False)
    ((texts, labels),) = ds
    assert texts.tolist() == ["text of cat/x.txt ä".encode(), "text of emu/x.txt ä".encode()]
    assert labels.tolist() == [0, 3]
    assert capsys.readouterr().out == "Found 2 files belonging to 4 classes.\n"
    short = ad.text_dataset_from_directory(folder, labels=None, max_length=4, batch_size=None, shuffle=False)
    assert list(short) == [b"text", b"text"]
    assert capsys.readouterr().out == "Found 2 files.\n"
    ad.text_dataset_from_directory(folder, seed=1, validation_split=0.5, subset="training")
    assert capsys.readouterr().out.endswith("Using 1 files for training.\n")


class Counted(str):
    """A folder that counts how often it is looked at."""

    looks = 0
    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.looks += 1
        return str(self) == other

    def startswith(self, *given: Any) -> bool:
        Counted.looks += 1
        return super().startswith(*given)

    def partition(self, sep: str) -> tuple[str, str, str]:
        Counted.looks += 1
        return super().partition(sep)


def test_many_classes_and_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work per file does not depend on how many classes there are."""
    names = [f"class{number:03}" for number in range(100)]
    files = [(Counted(f"{name}/inner"), f"{number}.txt") for name in names for number in range(10)]
    monkeypatch.setattr(directory_index, "_list", lambda *_, **__: (set(names), files))
    index = directory_index.index_directory(
        *("/d", "inferred"), suffixes=(".txt",), class_names=None, shuffle=False, seed=0, follow_links=False
    )
    assert index.paths == [f"/d/{folder}/{file}" for folder, file in files]
    assert index.labels == [number // 10 for number in range(1000)]
    assert Counted.looks <= 2 * len(files)


def test_links(folder: Path) -> None:
    """Links to directories are followed when asked for; links to files, and classes that are links, always."""
    (folder / "dog" / "more").symlink_to(folder / "emu", target_is_directory=True)
    (folder / "dog" / "link.png").symlink_to(folder / "cat" / "0.png")
    assert [label for _, label in seen(images(folder))].count(1) == 3
    assert [label for _, label in seen(images(folder, follow_links=True))].count(1) == 4
    (folder / "fox").symlink_to(folder / "cat", target_is_directory=True)
    (folder / ".linked").symlink_to(folder / "cat", target_is_directory=True)
    classes = images(folder).class_names
    labels = [label for _, label in seen(images(folder))]
    assert labels.count(classes.index("fox")) == labels.count(classes.index("cat")) == 3
    unlabelled = images(folder, labels=None).file_paths
    assert not [path for path in unlabelled if "/fox/" in path]


def test_a_file_that_is_no_image(folder: Path) -> None:
    """A damaged file is an error that names it."""
    (folder / "cat" / "0.png").write_bytes(b"no image")
    with pytest.raises(ad.CorruptRecordError) as caught:
        list(images(folder))
    assert "0.png" in str(caught.value) + str(getattr(caught.value, "__notes__", ""))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"labels": "x"}, "labels must be"),
        ({"labels": [1, 2]}, "2 labels were given for 7 files"),
        ({"labels": [1] * 7, "class_names": ["cat"]}, "class_names"),
        ({"labels": None, "class_names": ["cat"]}, "class_names"),
        ({"class_names": ["cow"]}, "cow"),
        ({"class_names": ["cat", "dog", "cat"]}, "twice"),
        ({"label_mode": "float"}, "label_mode"),
        ({"label_mode": "binary"}, "exactly 2"),
        ({"color_mode": "cmyk"}, "color_mode"),
        ({"image_size": (0, 3)}, "image_size"),
        ({"image_size": (1, 2, 3)}, "image_size"),
        ({"interpolation": "magic"}, "interpolation"),
        ({"data_format": "hwc"}, "data_format"),
        ({"crop_to_aspect_ratio": True, "pad_to_aspect_ratio": True}, "only one"),
        ({"validation_split": 2.0, "subset": "training"}, "between 0 and 1"),
        ({"validation_split": 0.2}, "together"),
        ({"subset": "training"}, "together"),
        ({"validation_split": 0.2, "subset": "test"}, "subset"),
        ({"validation_split": 0.2, "subset": "both", "shuffle": True}, "seed"),
        ({"validation_split": 0.01, "subset": "training"}, "no images"),
        ({"class_names": ["empty"]}, "no images"),
    ],
)
def test_arguments(folder: Path, arguments: dict[str, Any], words: str) -> None:
    """Arguments that do not fit each other, or what is there, are refused in words."""
    with pytest.raises(ValueError, match=words):
        images(folder, **arguments)


def test_no_directory(tmp_path: Path) -> None:
    """A directory that is not there is not found."""
    with pytest.raises(ad.ObjectNotFoundError):
        images(tmp_path / "nowhere")
    with pytest.raises(ad.ObjectNotFoundError):
        images("memory://nowhere/at/all")
    with pytest.raises(ValueError, match="wildcards"):
        images("memory://pictures/*")


def unseeded(folder: Path, what: str, **arguments: Any) -> Any:
    """Shuffled, in an order that the call draws."""
    if what == "texts":
        return ad.text_dataset_from_directory(folder, verbose=False, **arguments)
    return images(folder, shuffle=True, **arguments)


@pytest.mark.parametrize("what", ["texts", "images"])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_shards_of_an_order_without_a_seed_are_refused(folder: Path, what: str, batch_size: int | None) -> None:
    """Every process puts the files in an order of its own, which a seed of the options comes too late to change."""
    refused = rf"shard\(2, 0\) comes after {what[:-1]}_dataset_from_directory.*Give \w+ a seed( \[|$)"
    ds = unseeded(folder, what, batch_size=batch_size)
    division = Division(rank=0, world=2, shard=True, even=None)
    for part in (ds.shard(2, 0), ds.shard(2, 0).with_options(ad.Options(seed=1)), division.part(ds, Rank(0, 2))):
        with pytest.raises(ad.PipelineError, match=refused):
            list(part)
    for right in (
        unseeded(folder, what, batch_size=batch_size, seed=1),
        ad.text_dataset_from_directory(folder, shuffle=False, batch_size=batch_size, verbose=False),
    ):
        parts = [len(list(right.shard(2, index))) for index in range(2)]
        assert sum(parts) == len(list(right))


@pytest.mark.parametrize("what", ["texts", "images"])
def test_an_order_without_a_seed_is_resumed(folder: Path, what: str) -> None:
    """Of the same dataset, or of its copy in another process, the rest is what it would have been."""
    ds = unseeded(folder, what, batch_size=None)
    with ds.iterator(epoch=1) as whole:
        next(whole)
        state = whole.state_dict()
        rest = [repr(element) for element in whole]
    for same in (ds, pickle.loads(pickle.dumps(ds))):
        with same.iterator() as again:
            again.load_state_dict(state)
            assert [repr(element) for element in again] == rest
    with pytest.raises(ad.StateError, match=rf"Without a seed, {what[:-1]}_dataset_from_directory puts files"):
        unseeded(folder, what, batch_size=None).iterator(state=state).close()


def test_datasets_of_directories_that_a_function_makes_follow_from_the_seed_of_the_pipeline(folder: Path) -> None:
    """So a pipeline that is brought back to a state reads the same files."""

    def make(_: Any) -> Any:
        return unseeded(folder, "images", batch_size=1)

    ds = ad.Dataset.range(3).flat_map(make).with_options(ad.Options(seed=1))
    first, second = seen(ds.iterator(epoch=0)), seen(ds.iterator(epoch=0))
    assert first == second
    assert len({tuple(first[at : at + 6]) for at in range(0, 18, 6)}) > 1
