"""The files of a directory, their order and their classes, by Keras' rules, on local paths and on object stores.

    directory/                      files sorted by (folder, name), class by class
        cat/ a.jpg  old/b.jpg       class names are the folders in the directory, sorted; hidden ones are left out
        dog/ c.jpg

An object store has no folders: they follow from the names of the objects.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncdata import arguments
from asyncdata.dataset.dataset import Dataset
from asyncdata.errors import ObjectNotFoundError
from asyncdata.storage.globs import has_wildcard
from asyncdata.storage.local.paths import path_of
from asyncdata.storage.urls import is_local


@dataclass(frozen=True, slots=True)
class DirectoryIndex:
    """Files and labels, in one order.

    Attributes:
        paths: URLs or paths.
        labels: One integer per file, or None without labels.
        class_names: The names of the integers; None without labels.
    """

    paths: list[str]
    labels: list[int] | None
    class_names: list[str] | None

    def part(self, fraction: float | None, subset: str | None) -> DirectoryIndex:
        """Returns the files for training (the first ones) or for validation; without a fraction, all of them."""
        if not fraction:
            return self
        count = int(fraction * len(self.paths))
        rows = slice(None, -count) if subset == "training" else slice(-count, None)
        return DirectoryIndex(self.paths[rows], None if self.labels is None else self.labels[rows], self.class_names)


def index_directory(
    directory: str,
    labels: Any,
    *,
    suffixes: tuple[str, ...],
    class_names: Sequence[str] | None,
    shuffle: bool,
    seed: int,
    follow_links: bool,
) -> DirectoryIndex:
    """Lists a directory.

    Args:
        directory: A path or URL.
        labels: ``"inferred"``, None, or a sequence of integers, one per file.
        suffixes: Suffixes of the files to include, in lower case.
        class_names: The classes and their order, when labels are inferred.
        shuffle: Whether to shuffle the files, in the order of Keras for this seed.
        seed: Seed of that order.
        follow_links: Whether to follow links to directories.

    Raises:
        ValueError: Arguments contradict the directory.
        ObjectNotFoundError: There is no such directory.
    """
    directory = directory.rstrip("/") or "/"
    folders, files = _list(directory, suffixes, follow_links=follow_links, by_class=labels == "inferred")
    found: list[int] | None = None
    if labels == "inferred":
        names = _classes(folders, class_names)
        paths = []
        found = []
        by_class: dict[str, list[tuple[str, str]]] = {}
        for folder, file in files:
            by_class.setdefault(folder.partition("/")[0], []).append((folder, file))
        for number, name in enumerate(names):
            inside = by_class.get(name, [])
            paths += [_join(directory, folder, file) for folder, file in inside]
            found += [number] * len(inside)
    else:
        if class_names is not None:
            raise ValueError('class_names can only be given with labels="inferred"')
        paths = [_join(directory, folder, file) for folder, file in files]
        names = None
        if labels is not None:
            found = [int(label) for label in labels]
            names = [str(label) for label in sorted(set(found))]
            if len(found) != len(paths):
                raise ValueError(
                    f"{len(found)} labels were given for {len(paths)} files in {arguments.shown(directory)}"
                )
    if shuffle:
        # Keras' generator and order, so that both make the same split.
        np.random.RandomState(seed).shuffle(paths)
        if found is not None:
            np.random.RandomState(seed).shuffle(found)
    return DirectoryIndex(paths, found, names)


def _classes(folders: Iterable[str], class_names: Sequence[str] | None) -> list[str]:
    known = sorted(folder for folder in folders if not folder.startswith("."))
    if class_names is None:
        return known
    if not set(class_names) <= set(known):
        raise ValueError(f"class_names {list(class_names)} are not among the folders of the directory: {known}")
    if len(set(class_names)) < len(class_names):
        raise ValueError(f"class_names {list(class_names)} name a folder twice")
    return list(class_names)


def _join(directory: str, folder: str, file: str) -> str:
    inside = f"{folder}/{file}" if folder else file
    return f"{directory.rstrip('/')}/{inside}"


def _list(
    directory: str, suffixes: tuple[str, ...], *, follow_links: bool, by_class: bool
) -> tuple[set[str], list[tuple[str, str]]]:
    """Returns the folders in the directory, and (folder, name) of all files below it, sorted.

    By class, files that are in no folder may be left out, and a folder in the directory may be a link.
    """
    if is_local(directory):
        return _list_local(path_of(directory), suffixes, follow_links=follow_links, by_class=by_class)
    if has_wildcard(directory):
        raise ValueError(f"the directory must not contain wildcards: {arguments.shown(directory)}")
    folders: set[str] = set()
    files: list[tuple[str, str]] = []
    for url in Dataset.list_files(f"{directory}/**", shuffle=False):
        folder, _, file = str(url)[len(directory) + 1 :].rpartition("/")
        if folder:
            folders.add(folder.partition("/")[0])
        if file.lower().endswith(suffixes):
            files.append((folder, file))
    return folders, sorted(files)


def _list_local(
    path: str, suffixes: tuple[str, ...], *, follow_links: bool, by_class: bool
) -> tuple[set[str], list[tuple[str, str]]]:
    if not os.path.isdir(path):
        raise ObjectNotFoundError("there is no such directory", url=path)
    folders = {entry.name for entry in os.scandir(path) if entry.is_dir()}
    tops = [path]
    if by_class:
        # As in Keras: what a walk begins at may be a link.
        tops = [os.path.join(path, folder) for folder in folders if not folder.startswith(".")]
    files = []
    for top in tops:
        for root, _, names in os.walk(top, followlinks=follow_links):
            folder = os.path.relpath(root, path).replace(os.sep, "/")
            files += [("" if folder == "." else folder, name) for name in names if name.lower().endswith(suffixes)]
    return folders, sorted(files)
