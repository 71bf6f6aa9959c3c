"""Listing against the obvious model."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from fake_gcs.checksums import Checksums
from fake_gcs.objects.listing import Page, Query, list_live, list_versions
from fake_gcs.objects.memory import MemoryBody
from fake_gcs.objects.record import ObjectVersion

NAMES = st.lists(st.text(alphabet="ab/é\U0010ffff", min_size=1, max_size=6), max_size=30, unique=True)


def version(name: str, generation: int = 1) -> ObjectVersion:
    return ObjectVersion("b", name, generation, 1, Checksums(0, None), 0, 0, None, None, {}, MemoryBody(b""))


def pages(names: list[str], query: Query) -> list[Page]:
    live = {name: version(name) for name in names}
    out = [list_live(sorted(names), live, query)]
    while out[-1].token:
        assert len(out) < 100
        out.append(list_live(sorted(names), live, replace(query, token=out[-1].token)))
    return out


def model(names: list[str], query: Query) -> tuple[list[str], list[str]]:
    items: list[str] = []
    prefixes: set[str] = set()
    for name in sorted(names):
        if not name.startswith(query.prefix) or name < query.start or (query.end and name >= query.end):
            continue
        rest = name[len(query.prefix) :]
        if query.delimiter and query.delimiter in rest:
            folded = query.prefix + rest[: rest.index(query.delimiter) + len(query.delimiter)]
            prefixes.add(folded)
            if query.trailing and name == folded:
                items.append(name)
        else:
            items.append(name)
    return items, sorted(prefixes)


@example(names=["a", "/b\U0010ffffa"], prefix="", delimiter="b", start="", end="", trailing=False, limit=1)
@given(
    names=NAMES,
    prefix=st.text(alphabet="ab/", max_size=2),
    delimiter=st.sampled_from(["", "/", "b", "a/"]),
    start=st.text(alphabet="ab/", max_size=2),
    end=st.text(alphabet="ab/é", max_size=2),
    trailing=st.booleans(),
    limit=st.integers(1, 5),
)
def test_all_pages_together_are_the_listing(
    names: list[str], prefix: str, delimiter: str, start: str, end: str, trailing: bool, limit: int
) -> None:
    """Whatever the page size, the pages in a row have every item and every prefix exactly once, in order."""
    query = Query(prefix=prefix, delimiter=delimiter, start=start, end=end, trailing=trailing, limit=limit)
    found = pages(names, query)
    items = [item.name for page in found for item in page.items]
    prefixes = [one for page in found for one in page.prefixes]
    assert (items, prefixes) == model(names, query)


@given(names=NAMES, per_name=st.integers(1, 3), limit=st.integers(1, 4))
def test_versions_are_paged_without_loss(names: list[str], per_name: int, limit: int) -> None:
    """Several generations of one name may fall on different pages; none is lost or repeated."""
    versions = [version(name, generation) for name in sorted(names) for generation in range(1, per_name + 1)]
    query = Query(limit=limit)
    got: list[tuple[str, int]] = []
    while True:
        page = list_versions(versions, query)
        got += [(item.name, item.generation) for item in page.items]
        if not page.token:
            break
        query = replace(query, token=page.token)
    assert got == [(item.name, item.generation) for item in versions]


def test_globs_fold_and_filter() -> None:
    """A glob filters items; with a delimiter a prefix is listed when it or something below it matches."""
    names = ["a/1.txt", "a/2.bin", "b/3.bin", "c.txt"]
    plain = pages(names, Query(glob="**.txt"))[0]
    assert [item.name for item in plain.items] == ["a/1.txt", "c.txt"]
    folded = pages(names, Query(glob="**.txt", delimiter="/"))[0]
    assert ([item.name for item in folded.items], folded.prefixes) == (["c.txt"], ["a/"])
