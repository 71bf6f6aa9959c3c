"""From file names to one plan: a file by itself, or an interleave of many."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from asyncdata import arguments
from asyncdata.dataset.dataset import Dataset
from asyncdata.dataset.elements import DEFAULT_CYCLE, MOST_CYCLE
from asyncdata.plan import sources
from asyncdata.plan.node import Node
from asyncdata.planner.element_spec import element_spec

FileNames: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Dataset"
"""What the datasets of files take: a URL, a list of URLs, or a Dataset of URLs."""


class OpenFile:
    """Makes the dataset of one file; a class, so that it can be pickled.

    Args:
        kind: Class of the node.
        fields: Of the node, all but its URL.

    Attributes:
        opens: The node without a URL.
    """

    def __init__(self, kind: Callable[..., Node], fields: dict[str, Any]) -> None:
        self.kind = kind
        self.fields = fields
        self.__qualname__ = getattr(kind, "name", "")
        self.opens = self.node("")
        self.__element_spec__ = element_spec(self.opens)
        self.__checksums__ = kind is sources.TFRecordFile

    def node(self, url: str) -> Node:
        """The node that reads one file."""
        return self.kind(url=url, **self.fields)

    def __call__(self, url: str | bytes) -> Dataset:
        """The dataset of one file."""
        return Dataset(self.node(arguments.url("a file name", url)))


def over_files(filenames: FileNames, open_file: OpenFile, num_parallel_reads: int | None) -> Node:
    """The plan that reads all files: one after the other, or so many in turn, an element each."""
    reads = arguments.integer_or_none("num_parallel_reads", num_parallel_reads, least=1, most=MOST_CYCLE, autotune=True)
    if isinstance(filenames, Dataset):
        urls = filenames
    else:
        names = arguments.urls("filenames", filenames)
        if len(names) == 1:
            return open_file.node(names[0])
        urls = Dataset(sources.Items(items=names))
    cycle = DEFAULT_CYCLE if reads == -1 else (reads or 1)
    return urls.interleave(open_file, cycle_length=cycle)._node  # noqa: SLF001 -- the handle and its plan


class FilesDataset(Dataset):
    """A dataset of files; pickled as the plan that it is."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return Dataset, (self._node,)

    def _read(
        self, filenames: FileNames, num_parallel_reads: int | None, kind: Callable[..., Node], **fields: Any
    ) -> None:
        """Becomes the dataset of these files."""
        super().__init__(over_files(filenames, OpenFile(kind, fields), num_parallel_reads))

    def _become(self, dataset: Dataset) -> None:
        """Becomes another dataset."""
        super().__init__(dataset._node)  # noqa: SLF001 -- the same class
