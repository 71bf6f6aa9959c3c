"""Whether kept elements are those that would be made now: same steps, functions and files as when they were written.

    written   {"python": "cpython-311", "steps": [...], "listed": {url: [size, version]}, "read": {...},
               "patterns": [[...]], "listed_inside": {...}}
    used      the steps are compared, the listings made again, every other file that was read is looked at again

Functions that make inner datasets are not run to compare: what these have listed is listed again by its patterns.

The first difference is an error. What cannot be compared (see `planner.digests`), also because the run that wrote the
elements changed it, is warned of. Nothing that was stored is executed or unpickled.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from asyncdata.errors import AsyncdataError, DataError, ObjectNotFoundError, StaleDataError, StateError
from asyncdata.memory.advance import State
from asyncdata.plan.node import walk
from asyncdata.plan.sources import ListFiles, ManifestFile
from asyncdata.planner.fingerprint import drawn_seeds
from asyncdata.planner.recipe import PYTHON, Recipe, Step, first_difference, settled, uncompared
from asyncdata.redaction import redact_url
from asyncdata.runtime.reading.io import Io
from asyncdata.runtime.reading.manifest import Manifest
from asyncdata.runtime.stage import StageContext
from asyncdata.runtime.state.filling import Filling, Told
from asyncdata.storage.groups import gather_bounded
from asyncdata.types import Json, ObjectInfo

_VERSION: Final = 1
_LOOKS_AT_A_TIME: Final = 64
_LISTINGS_AT_A_TIME: Final = 16
_MOST_LISTED: Final = 10_000
"""Longer listings are kept as a number and a digest of files per folder."""

_MOST_PATTERNS: Final = 10_000
"""Of inner datasets; the files of others are not compared."""

_MOST_NAMED: Final = 8

Files = dict[str, Any]

Patterns = tuple[str, ...]
"""What was listed; of a manifest file an empty text and its URL."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """What the elements were made of that memory keeps: nobody reads or lists it again for them.

    Attributes:
        files: URLs of files that were read.
        listings: By patterns, the URLs that were listed.
        infos: What was known of the files of both.
        uncompared: As in `Reads`.
    """

    files: frozenset[str]
    listings: dict[Patterns, list[str]]
    infos: dict[str, ObjectInfo]
    uncompared: frozenset[str]


@dataclass
class Reads:
    """What was read while elements were made. Stage loop only.

    Attributes:
        files: URLs of files.
        listings: By patterns, what has listed them.
        uncompared: Listings that cannot be made again, in words.
        remembered: Of files that were read or listed before, what they were then.
        remembered_listings: By patterns, what was listed before.
        outer: Collects the same, and more.
    """

    files: set[str] = field(default_factory=set)
    listings: dict[Patterns, Manifest] = field(default_factory=dict)
    uncompared: set[str] = field(default_factory=set)
    remembered: dict[str, ObjectInfo] = field(default_factory=dict)
    remembered_listings: dict[Patterns, list[str]] = field(default_factory=dict)
    outer: Reads | None = None

    def update(self, other: Reads) -> None:
        """Adds what is in another."""
        self.files |= other.files
        self.listings |= other.listings
        self.uncompared |= other.uncompared
        self.remembered |= other.remembered
        self.remembered_listings |= other.remembered_listings
        if self.outer is not None:
            self.outer.update(other)

    def read(self, url: str) -> None:
        """Adds a file."""
        self.files.add(url)
        if self.outer is not None:
            self.outer.read(url)

    def listed(self, patterns: Patterns, manifest: Manifest) -> None:
        """Adds a listing."""
        self.listings[patterns] = manifest
        if self.outer is not None:
            self.outer.listed(patterns, manifest)

    async def remember(self, manifest: Manifest) -> Remembered:
        """For pipelines that find the elements in memory; the manifest is the one of the step that keeps them."""
        listings: dict[Patterns, list[str]] = {}
        infos = {url: manifest.get(url, None) for url in self.files}
        uncompared = set(self.uncompared)
        for patterns, of in list(self.listings.items()):
            if of is not manifest:
                uncompared.add(_with_options_of_its_own(patterns))
                continue
            known = self.remembered_listings.get(patterns)
            try:
                listings[patterns] = urls = await find_any(manifest, patterns) if known is None else known
            except AsyncdataError:  # of a listing that had failed, which a policy allowed
                uncompared.add(_files_of(patterns))
                continue
            infos |= {url: manifest.get(url, None) for url in urls}
        known_infos = {url: info for url, info in infos.items() if info is not None}
        return Remembered(frozenset(self.files), listings, known_infos | self.remembered, frozenset(uncompared))

    def recall(self, found: Remembered, manifest: Manifest) -> None:
        """Adds what elements were made of that were found in memory."""
        listings = dict.fromkeys(found.listings, manifest)
        self.update(Reads(set(found.files), listings, set(found.uncompared), found.infos, found.listings))


class Freshness:
    """Of one snapshot, or cache in a file, in one epoch. Stage loop only.

    Args:
        context: Of the stage.
        recipe: What is compared.
        cure: What the user can do about a difference.
        access: What lists files and looks at them.
        outer: Collects what is read for a snapshot or cache that comes after this one.
        filling: The run in which the input makes the elements, if it does.
        told: What the state says that the run begins at.
        in_turn: Whether elements are read in the order in which they were written.
        resumed: Whether the pipeline begins at a state, but these elements at their beginning.
        drawn: Whether the pipeline's seed was drawn, so that no other run has it by chance.

    Attributes:
        filling: The run in which the elements are or were made; None where what is kept does not say it.
        reads: Filled while the input runs.
    """

    def __init__(
        self,
        context: StageContext,
        recipe: Recipe,
        cure: str,
        *,
        access: tuple[Io, Manifest],
        outer: Reads | None,
        filling: Filling | None = None,
        told: Told | None = None,
        in_turn: bool = True,
        resumed: bool = False,
        drawn: bool = True,
    ) -> None:
        self.filling = self._own = filling
        self._resumed = resumed
        self._drawn = drawn
        self._told = told
        self._in_turn = in_turn
        self._recipe = recipe
        self._label = context.label
        self._cure = cure
        self._io, self._manifest = access
        self._threads = context.threads
        self._outer = outer
        self._steps: list[Step] = []
        self.reads = Reads()

    async def begin(self) -> None:
        """Nothing is kept yet: from here on the input runs.

        Raises:
            StateError: The run of the state read what is kept, and nobody can make it again in the order it had.
        """
        told = self._told
        if told is not None and told.kept and (told.filling is None or not self._in_turn):
            raise StateError(
                "the state is of a run that read what was kept here, and it is not there. Copy it from where the "
                "state was made, or begin the epoch again",
                stage=self._label,
            )
        self._steps = await self._threads.run(self._recipe.steps)

    def begins(self, state: State | None) -> None:
        """The input began at a state, which says what was kept in front; None: it says nothing."""
        self.filling = self.filling and self.filling.beginning(state)

    async def finish(self) -> Json:
        """The input has ended: what its elements were made of."""
        steps = settled(self._steps, await self._threads.run(self._recipe.steps))
        patterns = self._patterns()
        listed, inside = await self._listed(), await self._listed_inside(patterns)
        read = await self._read(sorted(self.reads.files - listed.keys() - inside.keys()))
        secret = {redact_url(url) for url in self.reads.files if _has_secret(url)} - listed.keys() - inside.keys()
        self._leave_out([f"{url} (a URL with a secret)" for url in sorted(secret)], "files of URLs with secrets")
        self._warn([*uncompared(steps), *sorted(self.reads.uncompared)])
        self._pass_on()
        return {
            "version": _VERSION,
            "python": PYTHON,
            "steps": steps,
            "listed": _folded(listed),
            "read": read,
            "filling": self.filling and self.filling.to_mark(),
            "drawn": drawn_seeds(self._recipe.node),
            "patterns": [list(each) for each in patterns],
            "listed_inside": _folded(inside),
            "uncompared": sorted(self.reads.uncompared),
        }

    async def check(self, made_of: Any) -> None:
        """Something is kept.

        Args:
            made_of: What `finish` returned then.

        Raises:
            StaleDataError: It was made of something else.
            DataError: What it says cannot be read.
        """
        if made_of is None:
            raise self._stale(
                "it was written by an earlier version of asyncdata, which did not note what it was made of"
            )
        now = await self._threads.run(self._recipe.steps)
        try:
            if made_of["version"] != _VERSION:
                raise self._stale("it was written by another version of asyncdata")
            was, same = made_of["steps"], made_of["python"] == PYTHON
            difference = first_difference(was, now, functions=same)
            unknown = uncompared(was, now) if same else [f"the functions, because {made_of['python']} wrote it"]
            listed, read = dict(made_of["listed"]), dict(made_of["read"])
            filling = made_of.get("filling") and Filling.from_mark(made_of["filling"])
            # With other seeds of its own, a shuffle of the same run makes another order.
            self.filling = filling if made_of.get("drawn") == drawn_seeds(self._recipe.node) else None
            # What earlier versions wrote has none of these.
            patterns: list[Patterns] = [tuple(map(str, each)) for each in made_of.get("patterns", ())]
            if () in patterns or ("",) in patterns:
                raise ValueError("a listing of nothing")
            inside, unlisted = dict(made_of.get("listed_inside", ())), list(map(str, made_of.get("uncompared", ())))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError("what the elements were made of cannot be read", stage=self._label) from error
        difference = difference or _other_file(listed, _folded(await self._listed()))
        difference = difference or _other_file(inside, _folded(await self._listed_inside(patterns)))
        difference = difference or _other_file(read, await self._read(sorted(read)))
        if difference is not None:
            raise self._stale(difference)
        self._warn([*unknown, *unlisted])
        own = map(patterns_of, self._nodes())  # which finish notes, too
        self.reads.update(Reads(set(read), dict.fromkeys([*own, *patterns], self._manifest), set(unlisted)))
        self._pass_on()

    def fits(self) -> bool:
        """Something is kept, and was checked: whether a run that begins at the state can read it.

        Otherwise elements were delivered in another order than that in which they would be read.

        Raises:
            StateError: The run of the state read something else here.
        """
        told = self._told
        if told is None:
            return self._in_turn or not self._resumed or not self._is_written_since()
        same = told.filling is None or told.filling == self.filling
        if told.kept and not same:
            raise StateError(
                "the state is of a run that read what was kept here, and another run has written it again since. Copy "
                "it from where the state was made, or begin the epoch again",
                stage=self._label,
            )
        if not told.kept and not (same and self._in_turn):
            self.filling = told.filling  # in which the input makes the elements
            return False
        return True

    def _is_written_since(self) -> bool:
        """Whether the run of the state has written it itself: elements of it may lie in front of the state."""
        if self.filling is None or self._own is None or self.filling.run != self._own.run:
            return False
        if not self._drawn:
            raise StateError(
                "it is not known whether the run of the state wrote what is kept here, or read it: with "
                "Options(seed=...) other runs look alike. Remove what is kept here, or begin the epoch again",
                stage=self._label,
            )
        return True

    def _pass_on(self) -> None:
        if self._outer is not None:
            self._outer.update(self.reads)

    def _stale(self, why: str) -> StaleDataError:
        return StaleDataError(
            f"what is kept was made by another pipeline: {why}. To have it made anew, {self._cure}", stage=self._label
        )

    def _warn(self, names: list[str]) -> None:
        if names:
            warnings.warn(
                f"{self._label} cannot notice changes of {', '.join(names)}. After a change {self._cure}", stacklevel=1
            )

    def _nodes(self) -> list[ListFiles | ManifestFile]:
        return [node for node in walk(self._recipe.node) if isinstance(node, ListFiles | ManifestFile)]

    async def _listed(self) -> Files:
        """What is listed for the plan now."""
        found: Files = {}
        for node in self._nodes():
            patterns = patterns_of(node)
            known = self.reads.remembered_listings.get(patterns)
            found |= await self._known(await find(self._manifest, patterns) if known is None else known)
        return found

    def _patterns(self) -> list[Patterns]:
        """What inner datasets have listed; of URLs with a secret in them nothing is kept."""
        known = {patterns_of(node) for node in self._nodes()}
        kept: list[Patterns] = []
        others: list[str] = []
        count = more = 0
        for patterns, manifest in sorted(self.reads.listings.items(), key=lambda item: item[0]):
            if patterns in known:
                continue
            if any(map(_has_secret, patterns)):
                others.append(f"{_files_of(patterns)} (a URL with a secret)")
            elif manifest is not self._manifest:
                # Which storage options listed them only the function can say.
                others.append(_with_options_of_its_own(patterns))
            elif (count := count + len(patterns)) > _MOST_PATTERNS:
                more += 1
            else:
                kept.append(patterns)
        self._leave_out(others, "listings")
        if more:
            self.reads.uncompared.add(f"the files of {more} listings of inner datasets")
        return kept

    def _leave_out(self, names: list[str], what: str) -> None:
        """Notes what is not compared."""
        self.reads.uncompared |= set(names[:_MOST_NAMED])
        if len(names) > _MOST_NAMED:
            self.reads.uncompared.add(f"{len(names) - _MOST_NAMED} more {what}")

    async def _listed_inside(self, listings: list[Patterns]) -> Files:
        """What is listed for these patterns now; nothing for those that match nothing."""
        found: Files = {}
        for urls in await gather_bounded(self._find_any, listings, min(_LISTINGS_AT_A_TIME, len(listings))):
            found |= await self._known(urls)
        return found

    async def _find_any(self, patterns: Patterns) -> list[str]:
        known = self.reads.remembered_listings.get(patterns)
        return await find_any(self._manifest, patterns) if known is None else known

    async def _known(self, urls: Sequence[str]) -> Files:
        """What files of a listing are now; it may know no more than their names, such as one that a state brought."""
        infos = {url: self._info(url) for url in urls}
        unknown = [url for url, info in infos.items() if info is None]
        found: Files = {redact_url(url): [info.size, info.version] for url, info in infos.items() if info is not None}
        looked = await gather_bounded(self._look, unknown, min(_LOOKS_AT_A_TIME, len(unknown)))
        return found | dict(zip(map(redact_url, unknown), looked, strict=True))

    async def _read(self, urls: list[str]) -> Files:
        """What these files are now; of a URL with a secret in it nothing is kept."""
        urls = [url for url in urls if not _has_secret(url)]
        return dict(zip(urls, await gather_bounded(self._look, urls, min(_LOOKS_AT_A_TIME, len(urls))), strict=True))

    async def _look(self, url: str) -> Json:
        info = self._info(url)
        if info is None:
            try:
                self._manifest[url] = info = await self._io.stat(url)
            except ObjectNotFoundError:
                return None
        return [info.size, info.version]

    def _info(self, url: str) -> ObjectInfo | None:
        """What is known about a file: first, what it was when elements were made that memory keeps."""
        return self.reads.remembered.get(url) or self._manifest.get(url, None)


def _files_of(patterns: Patterns) -> str:
    return f"the files of {', '.join(map(redact_url, filter(None, patterns)))}"


def _with_options_of_its_own(patterns: Patterns) -> str:
    return f"{_files_of(patterns)} (storage options of its own)"


def _has_secret(url: str) -> bool:
    return redact_url(url) != url


def patterns_of(node: ListFiles | ManifestFile) -> Patterns:
    """What a source lists."""
    return node.patterns if isinstance(node, ListFiles) else ("", node.url)  # no pattern is empty


async def find(manifest: Manifest, patterns: Patterns) -> list[str]:
    """The URLs that are listed, once per pipeline."""
    return await (manifest.listed_in(patterns[1]) if patterns[0] == "" else manifest.matching(patterns))


async def find_any(manifest: Manifest, patterns: Patterns) -> list[str]:
    """The same; nothing for what matches nothing."""
    try:
        return await find(manifest, patterns)
    except ObjectNotFoundError:
        return []


def _other_file(was: Files, now: Files) -> str | None:
    for url in sorted({*was, *now}):
        if url not in now or (now[url] is None and was.get(url) is not None):
            return f"{url} is gone"
        if url not in was:
            return f"{url} is new"
        if was[url] != now[url]:
            return f"{url} has changed"
    return None


def _folded(listed: Files) -> Files:
    if len(listed) <= _MOST_LISTED:
        return listed
    folders: dict[str, Any] = {}
    for url in sorted(listed):
        folders.setdefault(url.rpartition("/")[0] + "/", []).append((url, listed[url]))
    return {
        name: [len(files), hashlib.blake2b(repr(files).encode()).hexdigest()[:32]] for name, files in folders.items()
    }
