"""One filesystem that a test has made, for a reader of fsspec's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from asyncdata.storage.fsspec import Filesystems


class GivenFilesystem(Filesystems):
    """The same for every URL."""

    def __init__(self, filesystem: Any) -> None:
        super().__init__(type(filesystem), {})
        self._filesystem = filesystem

    def __iter__(self) -> Iterator[Any]:
        return iter([self._filesystem])

    def of(self, url: str) -> Any:
        """The one."""
        del url
        return self._filesystem
