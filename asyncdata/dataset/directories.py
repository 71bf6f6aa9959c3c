"""Labelled datasets of the files in a directory, with Keras' arguments."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asyncdata import arguments
from asyncdata.dataset import sources
from asyncdata.dataset.dataset import Dataset
from asyncdata.dataset.directory_index import DirectoryIndex, index_directory
from asyncdata.dataset.files import OpenFile
from asyncdata.dataset.handles import node_of
from asyncdata.dataset.transformations import over_files
from asyncdata.formats.resampling import ImageLoader
from asyncdata.options import AUTOTUNE
from asyncdata.plan.files import WholeFile
from asyncdata.plan.node import Node, drawn_seed

IMAGE_SUFFIXES: Final = (".bmp", ".gif", ".jpeg", ".jpg", ".png")
"""Suffixes of image files, as in Keras; only JPEG and PNG can be decoded."""

_CHANNELS: Final = {"grayscale": 1, "rgb": 3, "rgba": 4}
_READS: Final = 16
_BATCHES_IN_BUFFER: Final = 8
_BUFFER: Final = 1024
_SEEDS: Final = 1_000_000


class DirectoryDataset(Dataset):
    """A dataset of the files in a directory.

    Attributes:
        class_names: The names of the labels; None without labels.
        file_paths: The files, in the order before shuffling.
    """

    __slots__ = ("class_names", "file_paths")

    def __init__(self, node: Node, class_names: list[str] | None, file_paths: list[str]) -> None:
        super().__init__(node)
        self.class_names = class_names
        self.file_paths = file_paths

    def __reduce__(self) -> tuple[Any, ...]:
        return DirectoryDataset, (self._node, self.class_names, self.file_paths)


@arguments.suggests
def image_dataset_from_directory(
    directory: str | os.PathLike[str],
    labels: str | Sequence[int] | None = "inferred",
    label_mode: str | None = "int",
    class_names: Sequence[str] | None = None,
    color_mode: str = "rgb",
    batch_size: int | None = 32,
    image_size: int | tuple[int, int] = (256, 256),
    shuffle: bool = True,
    seed: int | None = None,
    validation_split: float | None = None,
    subset: str | None = None,
    interpolation: str = "bilinear",
    follow_links: bool = False,
    crop_to_aspect_ratio: bool = False,
    pad_to_aspect_ratio: bool = False,
    data_format: str | None = None,
    verbose: bool = True,
) -> Any:
    """Batches of images and labels from a directory with one folder per class, like the Keras function.

    The call lists the directory. Files are read during iteration, and worker processes decode the images (needs the
    extra ``images``). Files and their order are those of Keras, and with a seed so is the split; the order in which a
    training set is shuffled is asyncdata's own. JPEG and PNG can be decoded. Pixels of a PNG equal TensorFlow's; those
    of a JPEG differ by a few units, because TensorFlow's decoder rounds differently.

    Args:
        directory: A path or URL of any backend.
        labels: ``"inferred"`` from the folders; None for images without labels; or one integer per file, in order of
            folder and name.
        label_mode: ``"int"`` (int32), ``"categorical"`` (float32, one hot), ``"binary"`` (float32, 0 or 1, of shape
            ``(1,)``), or None for images without labels.
        class_names: The folders to read, in the order of their labels; by default all of them, sorted.
        color_mode: ``"grayscale"``, ``"rgb"`` or ``"rgba"``.
        batch_size: Images per batch; None for single images.
        image_size: Height and width to which images are resized.
        shuffle: True shuffles the files anew in every epoch; False sorts them.
        seed: Seed of the order and of the split. Without it every process has another order, so `shard` is refused.
        validation_split: The fraction of the files to keep for validation: the last ones.
        subset: ``"training"``, ``"validation"``, or ``"both"`` for a list of both datasets; with `validation_split`.
        interpolation: ``"bilinear"``, ``"nearest"``, ``"bicubic"``, ``"area"``, ``"lanczos3"``, ``"lanczos5"``,
            ``"gaussian"`` or ``"mitchellcubic"``, without antialiasing.
        follow_links: Whether to follow links to directories on local file systems. The folder of a class may be a link
            anyway.
        crop_to_aspect_ratio: Crop the middle of the image to the aspect ratio instead of distorting the image.
        pad_to_aspect_ratio: Pad the image with zeros instead of distorting it.
        data_format: ``"channels_last"`` (None) or ``"channels_first"``.
        verbose: Whether to print how many files were found.

    Returns:
        A Dataset of float32 arrays (uint8 for ``"nearest"``), or of pairs with labels, with the attributes
        `class_names` and `file_paths`; or a list of two.

    Raises:
        ValueError: Arguments contradict each other or the directory.
        CorruptRecordError: During iteration, for a file that is not a complete JPEG or PNG.

    Example:
        >>> import asyncdata as ad, cv2, numpy as np, pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("cat", "dog"):
        ...         pathlib.Path(folder, name).mkdir()
        ...         written = cv2.imwrite(f"{folder}/{name}/0.png", np.full((4, 6, 3), len(name), np.uint8))
        ...     ds = ad.image_dataset_from_directory(folder, image_size=(2, 2), shuffle=False, verbose=False)
        ...     [(images, labels)] = ds
        >>> images.shape, labels.tolist(), ds.class_names
        ((2, 2, 2, 3), [0, 1], ['cat', 'dog'])
    """
    arguments.choice("color_mode", color_mode, tuple(_CHANNELS))
    arguments.choice("data_format", data_format, ("channels_last", "channels_first", None))
    crop = arguments.flag("crop_to_aspect_ratio", crop_to_aspect_ratio)
    pad = arguments.flag("pad_to_aspect_ratio", pad_to_aspect_ratio)
    if crop and pad:
        raise ValueError("only one of crop_to_aspect_ratio and pad_to_aspect_ratio can be True")
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    height_width = arguments.integers("image_size", size, least=1)
    if len(height_width) != 2:
        raise ValueError(f"image_size must be (height, width), not {arguments.shown(image_size)}")
    load = ImageLoader(
        channels=_CHANNELS[color_mode],
        size=(height_width[0], height_width[1]),
        interpolation=arguments.instance("interpolation", interpolation, str, "a str").lower(),
        crop=crop,
        pad=pad,
        channels_first=data_format == "channels_first",
    )
    return _from_directory(
        "image_dataset_from_directory",
        directory,
        labels,
        label_mode,
        class_names,
        load=load,
        suffixes=IMAGE_SUFFIXES,
        what="images",
        batch_size=batch_size,
        shuffle=shuffle,
        seed=seed,
        validation_split=validation_split,
        subset=subset,
        follow_links=follow_links,
        verbose=verbose,
    )


@arguments.suggests
def text_dataset_from_directory(
    directory: str | os.PathLike[str],
    labels: str | Sequence[int] | None = "inferred",
    label_mode: str | None = "int",
    class_names: Sequence[str] | None = None,
    batch_size: int | None = 32,
    max_length: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    validation_split: float | None = None,
    subset: str | None = None,
    follow_links: bool = False,
    verbose: bool = True,
) -> Any:
    """Batches of the contents of ``.txt`` files and labels, like the Keras function.

    `image_dataset_from_directory` describes the other arguments.

    Args:
        directory: A path or URL of any backend.
        labels: See above.
        label_mode: See above.
        class_names: See above.
        batch_size: Texts per batch; None for single texts.
        max_length: The most bytes of a text; the rest is cut off.
        shuffle: See above.
        seed: See above.
        validation_split: See above.
        subset: See above.
        follow_links: See above.
        verbose: See above.

    Returns:
        A Dataset of ``bytes`` (in batches, `BytesArray`), or of pairs with labels; or a list of two.

    Example:
        >>> import asyncdata as ad, pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("bad", "good"):
        ...         pathlib.Path(folder, name).mkdir()
        ...         written = pathlib.Path(folder, name, "0.txt").write_text(f"a {name} film")
        ...     [(texts, labels)] = ad.text_dataset_from_directory(folder, shuffle=False, verbose=False)
        >>> list(texts), labels.tolist()
        ([b'a bad film', b'a good film'], [0, 1])
    """
    length = arguments.integer_or_none("max_length", max_length, least=0)
    return _from_directory(
        "text_dataset_from_directory",
        directory,
        labels,
        label_mode,
        class_names,
        load=None if length is None else _Shortened(length),
        suffixes=(".txt",),
        what="text files",
        batch_size=batch_size,
        shuffle=shuffle,
        seed=seed,
        validation_split=validation_split,
        subset=subset,
        follow_links=follow_links,
        verbose=verbose,
    )


class _Shortened:
    """Cuts a file's contents off after some bytes."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __call__(self, content: bytes, *label: Any) -> Any:
        content = content[: self._length]
        return (content, *label) if label else content


def _from_directory(
    name: str,
    directory: str | os.PathLike[str],
    labels: Any,
    label_mode: str | None,
    class_names: Sequence[str] | None,
    *,
    load: Any,
    suffixes: tuple[str, ...],
    what: str,
    batch_size: int | None,
    shuffle: bool,
    seed: int | None,
    validation_split: float | None,
    subset: str | None,
    follow_links: bool,
    verbose: bool,
) -> Any:
    directory = arguments.url("directory", directory)
    batch_size = arguments.integer_or_none("batch_size", batch_size, least=1)
    seed = arguments.integer_or_none("seed", seed, least=0)
    if seed is not None and seed >= 1 << 32:
        raise ValueError(f"seed must be below 2**32, as for Keras, not {seed}")
    shuffle = arguments.flag("shuffle", shuffle)
    follow_links = arguments.flag("follow_links", follow_links)
    verbose = arguments.flag("verbose", verbose)
    labels = _checked_labels(labels, label_mode, class_names)
    _check_split(validation_split, subset, shuffle=shuffle, seed=seed)
    if labels is None or label_mode is None:
        labels = label_mode = None
    chosen = drawn_seed() % _SEEDS if seed is None else seed
    index = index_directory(
        directory,
        labels,
        suffixes=suffixes,
        class_names=class_names,
        shuffle=shuffle,
        seed=chosen,
        follow_links=follow_links,
    )
    if label_mode == "binary" and len(index.class_names or ()) != 2:
        raise ValueError(f'label_mode="binary" needs exactly 2 classes, not {index.class_names}')
    if verbose:
        classes = "" if index.class_names is None else f" belonging to {len(index.class_names)} classes"
        print(f"Found {len(index.paths)} files{classes}.")  # noqa: T201 -- what verbose asks for, as in Keras
    # Other processes that do not get this dataset from here list the files in another order.
    drawn_by = name if shuffle and seed is None else None
    datasets = []
    for subset_name in ("training", "validation") if subset == "both" else (subset,):
        part = index.part(validation_split, subset_name)
        if not part.paths:
            raise ValueError(
                f"there are no {what} ({', '.join(suffixes)}) in {arguments.shown(directory)}"
                + (f" for {subset_name}" if subset_name else "")
            )
        if verbose and subset_name is not None:
            print(f"Using {len(part.paths)} files for {subset_name}.")  # noqa: T201 -- see above
        shuffled = shuffle and not (subset == "both" and subset_name == "validation")
        node = _pipeline(part, label_mode, load, batch_size, chosen if shuffled else None, drawn_by)
        datasets.append(DirectoryDataset(node, part.class_names, part.paths))
    return datasets if subset == "both" else datasets[0]


def _pipeline(
    index: DirectoryIndex,
    label_mode: str | None,
    load: Any,
    batch_size: int | None,
    seed: int | None,
    drawn_by: str | None,
) -> Node:
    paths = _texts(index.paths)
    leaves = paths if index.labels is None else (paths, np.array(index.labels, np.int32))
    names = Dataset(sources.slices(leaves, drawn_by=drawn_by))
    if seed is not None:
        names = names.shuffle(batch_size * _BATCHES_IN_BUFFER if batch_size else _BUFFER, seed=seed)
    classes = len(index.class_names or ())
    opener = _OpenLabelled(None if index.labels is None else label_mode, classes)
    ds = Dataset(over_files(node_of("names", names), opener, _READS, deterministic=True))
    if load is not None:
        ds = ds.map(load, num_parallel_calls=AUTOTUNE, deterministic=True)
    if batch_size is not None:
        ds = ds.batch(batch_size)
    return ds.prefetch(AUTOTUNE)._node  # noqa: SLF001 -- a Dataset's own


def _texts(paths: list[str]) -> npt.NDArray[np.object_]:
    out = np.empty(len(paths), object)
    out[:] = paths
    return out


class _OpenLabelled(OpenFile):
    """Makes the node that reads one file and has its label; a class, so that it can be pickled."""

    def __init__(self, label_mode: str | None, classes: int) -> None:
        beside = () if label_mode is None else (_encoded(np.int32(0), label_mode, classes),)
        super().__init__(WholeFile(url="", compression=None, with_url=False, beside=beside))
        self._mode = label_mode
        self._classes = classes

    def __call__(self, url: str | bytes, *label: Any) -> Node:
        """Returns the node of one file."""
        beside = tuple(_encoded(each, self._mode, self._classes) for each in label)
        return dataclasses.replace(self.opens, url=url, beside=beside)  # type: ignore[call-arg]  # whole files have them


def _encoded(label: Any, mode: str | None, classes: int) -> Any:
    if mode == "int":
        return label
    if mode == "binary":
        return np.array([label], np.float32)
    hot = np.zeros(classes, np.float32)
    if 0 <= label < classes:
        hot[label] = 1
    return hot


def _checked_labels(labels: Any, label_mode: str | None, class_names: Sequence[str] | None) -> Any:
    explicit = not (labels is None or (isinstance(labels, str) and labels == "inferred"))
    if explicit and (isinstance(labels, str | bytes) or not isinstance(labels, Sequence | np.ndarray)):
        raise ValueError(f'labels must be "inferred", None or a list of integers, not {arguments.shown(labels)}')
    if class_names is not None and explicit:
        raise ValueError('class_names can only be given with labels="inferred"')
    if class_names is not None and not arguments.texts("class_names", class_names):
        raise ValueError("class_names must name at least one folder")
    arguments.choice("label_mode", label_mode, ("int", "categorical", "binary", None))
    return list(arguments.integers("labels", labels)) if explicit else labels


def _check_split(validation_split: float | None, subset: str | None, *, shuffle: bool, seed: int | None) -> None:
    if validation_split is not None:
        arguments.number("validation_split", validation_split, least=0)
        if validation_split >= 1:
            raise ValueError(f"validation_split must be between 0 and 1, not {validation_split}")
    arguments.choice("subset", subset, ("training", "validation", "both", None))
    if bool(validation_split) != bool(subset):
        raise ValueError("validation_split and subset must be given together")
    if validation_split and shuffle and seed is None:
        raise ValueError("a split of shuffled files needs a seed, or training and validation files overlap")
