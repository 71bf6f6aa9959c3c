"""`TokenCounts`: how often each token occurs, and in how many documents; exact, in bounded memory.

    tokens ─▶ dict ──full──▶ sorted run in a temporary file
                              run, run, …, dict ──merged by token──▶ the most frequent ones

The file has no name from the beginning, so no end of the process leaves it behind. It contains counts and plain bytes.
"""

from __future__ import annotations

import heapq
import itertools
import os
import struct
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import IO, Any, Final, NamedTuple

import numpy as np

from asyncdata.errors import refused
from asyncdata.preprocessing.token_leaf import Term, TokenLeaf

_ENTRY_BYTES: Final = 140
"""What a token costs in a dict besides its own bytes: the object, the entry, the count."""
_READ_BYTES: Final = 1 << 16
_HEAD: Final = struct.Struct("<QQI")


class Counted(NamedTuple):
    """A token, how often it occurs, and in how many documents."""

    token: Term
    occurrences: int
    documents: int


class TokenCounts:
    """Counts tokens.

    Args:
        memory_limit_bytes: When the dict takes about so much, merging writes it to the temporary file.
        by_document: Count documents, too.

    Attributes:
        documents: How many documents there were.
    """

    def __init__(self, memory_limit_bytes: int, *, by_document: bool = False) -> None:
        self._limit = memory_limit_bytes
        self._by_document = by_document
        self._counts: Counter[Term] = Counter()
        self._in_documents: Counter[Term] = Counter()
        self._kind: type[Term] | None = None
        self._held_bytes = 0
        self._file: IO[bytes] | None = None
        self._runs: list[tuple[int, int]] = []
        self.documents = 0

    def add(self, tokens: TokenLeaf) -> None:
        """Counts the tokens of a leaf, in memory: they were there before.

        Raises:
            TypeError: They are texts, and those before were integers, or vice versa.
        """
        items = tokens.items()
        if items:
            self._check(bytes if tokens.text else int)
        self._counts.update(items)
        if self._by_document:
            self._in_documents.update(_once_per_document(tokens, items))
            self.documents += int(np.prod(tokens.documents(), dtype=np.int64))
        entry = _ENTRY_BYTES * (2 if self._by_document else 1)
        self._held_bytes = entry * len(self._counts) + sum(
            len(term) for term in self._counts if isinstance(term, bytes)
        )

    def merged(self, other: TokenCounts) -> TokenCounts:
        """Takes the counts of another one, which is not used afterwards.

        Raises:
            TypeError: One has counted texts, the other one integers.
        """
        if other._kind is not None:
            self._check(other._kind)
        self.documents += other.documents
        for run in other._runs:
            for term, count, documents in other._read(*run):
                self._take({term: count}, {term: documents}, _ENTRY_BYTES + len(str(term)))
        self._take(other._counts, other._in_documents, other._held_bytes)
        other.close()
        return self

    def all(self) -> Iterator[Counted]:
        """Yields every token once, in no particular order if nothing was written, else in their own."""
        held = (Counted(token, count, self._in_documents[token]) for token, count in self._counts.items())
        if not self._runs:
            yield from held
            return
        runs: list[Iterable[Counted]] = [self._read(start, stop) for start, stop in self._runs]
        together = heapq.merge(*runs, sorted(held))
        for token, same in itertools.groupby(together, key=lambda each: each.token):
            parts = list(same)
            yield Counted(token, sum(part.occurrences for part in parts), sum(part.documents for part in parts))

    def most_frequent(self, most: int | None, without: Iterable[Term]) -> list[Counted]:
        """Returns the tokens by falling count, those of one count from the greatest to the smallest.

        Args:
            most: How many at the most; None means all.
            without: TokenLeaf that are left out.
        """
        out = set(without)
        chosen = (each for each in self.all() if each.token not in out)
        if most is None:
            return sorted(chosen, key=_rank, reverse=True)
        return heapq.nlargest(most, chosen, key=_rank)

    def close(self) -> None:
        """Removes the temporary file; idempotent."""
        if self._file is not None:
            with suppress(OSError):  # what could not be written before: nobody reads it
                self._file.close()
            self._file = None
        self._runs.clear()

    def _check(self, kind: type[Term]) -> None:
        if self._kind not in (None, kind):
            raise TypeError("the tokens of one vocabulary are all texts or all integers, but here are both")
        self._kind = kind

    def _take(self, counts: Mapping[Term, int], in_documents: Mapping[Term, int], held_bytes: int) -> None:
        """Adds counts of distinct tokens that take so much memory."""
        before = len(self._counts)
        self._counts.update(counts)
        if self._by_document:
            self._in_documents.update(in_documents)
        self._held_bytes += held_bytes * (len(self._counts) - before) // max(len(counts), 1)
        if self._held_bytes > self._limit:
            self._spill()

    def _spill(self) -> None:
        """Writes what the dict holds as a sorted run."""
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="asyncdata-vocabulary-")  # noqa: SIM115 -- close() closes it
            start = self._file.seek(0, os.SEEK_END)
            for token in sorted(self._counts):
                data = token if isinstance(token, bytes) else b"%d" % token
                self._file.write(_HEAD.pack(self._counts[token], self._in_documents[token], len(data)) + data)
            self._file.flush()
        except OSError as error:
            what = "the counts of tokens cannot be written to a temporary file, where TMPDIR says"
            raise refused(what, error, url=tempfile.tempdir, stage="adapt") from error
        self._runs.append((start, self._file.tell()))
        self._counts.clear()
        self._in_documents.clear()
        self._held_bytes = 0

    def _read(self, start: int, stop: int) -> Iterator[Counted]:
        """Yields a run; reads a little at a time, because all runs are read together."""
        assert self._file is not None
        text = self._kind is bytes
        held = b""
        while start < stop or held:
            more = os.pread(self._file.fileno(), min(_READ_BYTES, stop - start), start)
            start += len(more)
            held += more
            at = 0
            while len(held) - at >= _HEAD.size:
                count, documents, length = _HEAD.unpack_from(held, at)
                if at + _HEAD.size + length > len(held):
                    break
                data = held[at + _HEAD.size : at + _HEAD.size + length]
                yield Counted(data if text else int(data), count, documents)
                at += _HEAD.size + length
            held = held[at:]


def _once_per_document(tokens: TokenLeaf, items: list[Any]) -> Iterable[Term]:
    """Yields each token once per document in which it occurs."""
    numbers: dict[Term, int] = {}
    ids = np.fromiter((numbers.setdefault(item, len(numbers)) for item in items), np.int64, len(items))
    pairs = np.unique(tokens.document_ids() * max(len(numbers), 1) + ids)
    known = list(numbers)
    return (known[number] for number in (pairs % max(len(numbers), 1)).tolist())


def _rank(counted: Counted) -> tuple[int, Term]:
    return counted.occurrences, counted.token
