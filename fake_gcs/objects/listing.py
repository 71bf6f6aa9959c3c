"""Listing objects: prefix, delimiter, offsets, globs, versions and pages, as one pure function.

Names are in order of their code points, which is the order of their UTF-8 bytes. With a delimiter, a whole group of
names under one common prefix is skipped by bisection, so a directory of a million names costs one step.
"""

from __future__ import annotations

import base64
import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fake_gcs.errors import invalid
from fake_gcs.objects.globs import compile_glob
from fake_gcs.objects.record import ObjectVersion

MAX_RESULTS = 1000
"""Most entries of one page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What a listing asks for.

    Attributes:
        prefix: Only names that begin so.
        delimiter: Names that contain it behind the prefix are folded into common prefixes; empty for none.
        start: First name, inclusive.
        end: Behind the last name, exclusive; empty for none.
        after: Only names behind this one.
        glob: Only names that match this pattern; empty for all.
        trailing: Names that end in the delimiter are also listed as items.
        limit: Most items and prefixes together.
        token: Where the last page ended; empty for the first page.
    """

    prefix: str = ""
    delimiter: str = ""
    start: str = ""
    end: str = ""
    after: str = ""
    glob: str = ""
    trailing: bool = False
    limit: int = MAX_RESULTS
    token: str = ""


@dataclass(slots=True)
class Page:
    """One page of a listing.

    Attributes:
        items: Versions, in order.
        prefixes: Common prefixes, in order.
        token: For the next page; empty when this was the last.
    """

    items: list[ObjectVersion] = field(default_factory=list)
    prefixes: list[str] = field(default_factory=list)
    token: str = ""


def list_live(names: Sequence[str], live: Mapping[str, ObjectVersion], query: Query) -> Page:
    """A page of the live versions."""
    return _walk(names, lambda index: live[names[index]], query, unique=True)


def list_versions(versions: Sequence[ObjectVersion], query: Query) -> Page:
    """A page of all versions, sorted by name and generation."""
    return _walk([version.name for version in versions], lambda index: versions[index], query, unique=False)


def _walk(names: Sequence[str], item: Callable[[int], ObjectVersion], query: Query, *, unique: bool) -> Page:
    page = Page()
    glob = compile_glob(query.glob) if query.glob else None
    limit = max(1, min(query.limit, MAX_RESULTS))
    index = max(bisect_left(names, query.prefix), bisect_left(names, query.start))
    if query.after:
        index = max(index, bisect_right(names, query.after))
        if query.after.startswith(query.prefix) and _fold(query.after, query) == query.after:
            index = max(index, _behind(names, query.after))  # the last thing of a page was a prefix
    if query.token:
        index = max(index, _resume(names, item, query.token, unique=unique))
    while index < len(names):
        name = names[index]
        if not name.startswith(query.prefix) or (query.end and name >= query.end):
            break
        folded = _fold(name, query)
        if glob is not None and not glob.match(name) and not (folded and glob.match(folded)):
            index += 1
            continue
        if len(page.items) + len(page.prefixes) >= limit:
            page.token = _token(page)
            break
        if folded is None:
            page.items.append(item(index))
            index += 1
            continue
        if not page.prefixes or page.prefixes[-1] != folded:
            page.prefixes.append(folded)
        if query.trailing and name == folded:
            page.items.append(item(index))
        index = max(index + 1, _behind(names, folded))
    return page


def _behind(names: Sequence[str], prefix: str) -> int:
    """The place behind all names that begin so."""
    return bisect_right(names, prefix, key=lambda name: name[: len(prefix)])


def _fold(name: str, query: Query) -> str | None:
    if not query.delimiter:
        return None
    cut = name.find(query.delimiter, len(query.prefix))
    return None if cut < 0 else name[: cut + len(query.delimiter)]


def _token(page: Page) -> str:
    last = page.items[-1] if page.items else None
    folded = page.prefixes[-1] if page.prefixes else ""
    place = [last.name, last.generation, False] if last and last.name > folded else [folded, 0, True]
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode()


def _resume(names: Sequence[str], item: Callable[[int], ObjectVersion], token: str, *, unique: bool) -> int:
    try:
        last, generation, folded = json.loads(base64.urlsafe_b64decode(token))
    except (ValueError, TypeError):
        raise invalid("Invalid pageToken") from None
    if not isinstance(last, str) or not isinstance(generation, int):
        raise invalid("Invalid pageToken")
    if folded:
        return _behind(names, last)
    if unique:
        return bisect_right(names, last)
    index = bisect_left(names, last)
    while index < len(names) and names[index] == last and item(index).generation <= generation:
        index += 1
    return index
