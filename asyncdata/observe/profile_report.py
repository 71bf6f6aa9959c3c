"""`ProfileReport`: what a profile recorded, frozen; as text, as JSON, and as a page."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from asyncdata.observe.chrome_trace import chrome_trace
from asyncdata.observe.parts import LineStats
from asyncdata.observe.pipeline_profile import PipelineProfile
from asyncdata.observe.plain import finite, plain
from asyncdata.observe.report_page import page
from asyncdata.observe.trace_ring import ProcessTrace
from asyncdata.replacing import replacing

SCHEMA: Final = 1
"""Version of the JSON: fields may be added to a version, but not change their meaning."""

_PACKAGES: Final = ("asyncdata", "numpy", "uvloop", "aiohttp", "gcsfs")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileReport:
    """What was recorded inside ``with ad.profile():``. ``str()`` gives tables and verdicts.

    Example:
        >>> import asyncdata as ad
        >>> with ad.profile() as profile:
        ...     numbers = list(ad.Dataset.range(10))
        >>> [pipeline.plan for pipeline in profile.report().pipelines]
        ['range(10)']

    Attributes:
        taken_at: When the profile began: date and time of day, in UTC.
        began_s: The same by the monotonic clock.
        seconds: How long it took.
        versions: Of Python, the system and the packages that matter.
        pipelines: The pipelines, in the order in which they were started.
        dropped_pipelines: Earlier ones that are not kept, because there were too many.
        lines: The lines in which the thread that entered the block spent its time, when it did not wait for elements.
        trace: What each process noted, this one first; empty without a trace. See `to_chrome_trace`.
    """

    taken_at: str
    began_s: float
    seconds: float
    versions: Mapping[str, str]
    pipelines: tuple[PipelineProfile, ...]
    dropped_pipelines: int = 0
    lines: tuple[LineStats, ...] = ()
    trace: tuple[ProcessTrace, ...] = field(default=(), repr=False, compare=False)

    def __str__(self) -> str:
        """Each pipeline's table and verdict."""
        parts = [f"{each.plan} (epoch {each.epoch})\n\n{each.stats}" for each in self.pipelines]
        if self.dropped_pipelines:
            parts.insert(0, f"{self.dropped_pipelines} earlier pipelines are not kept.")
        return "\n\n".join(parts) or "No pipeline was iterated in this profile."

    def document(self) -> dict[str, Any]:
        """The report as plain data, as in `to_json`."""
        return {
            "schema": SCHEMA,
            "taken_at": self.taken_at,
            "seconds": self.seconds,
            "versions": dict(self.versions),
            "dropped_pipelines": self.dropped_pipelines,
            "lines": plain(self.lines),
            "pipelines": [{"began_s": each.began_s - self.began_s, **each.document()} for each in self.pipelines],
        }

    def to_json(self) -> str:
        """The report as one JSON document. Its field ``schema`` is 1; numbers that are not finite are null.

        Example:
            >>> import asyncdata as ad, json
            >>> with ad.profile() as profile:
            ...     numbers = list(ad.Dataset.range(10))
            >>> json.loads(profile.report().to_json())["schema"]
            1
        """
        return json.dumps(finite(self.document()), separators=(",", ":"), allow_nan=False)

    def to_html(self) -> str:
        """The report as a page that shows the same in every browser, without a network.

        Example:
            >>> import asyncdata as ad
            >>> with ad.profile() as profile:
            ...     numbers = list(ad.Dataset.range(10))
            >>> profile.report().to_html().startswith("<!doctype html>")
            True
        """
        about = {"recorded": f"{self.taken_at}, {self.seconds:.1f} s", **self.versions}
        return page(self.to_json(), self.pipelines, self.lines, self.dropped_pipelines, about)

    def to_chrome_trace(self) -> str:
        """The spans of a profile with ``trace=True``, as JSON that https://ui.perfetto.dev and chrome://tracing open.

        Raises:
            ValueError: The profile was made without a trace.

        Example:
            >>> import asyncdata as ad, json
            >>> with ad.profile(trace=True) as profile:
            ...     numbers = list(ad.Dataset.range(10))
            >>> events = json.loads(profile.report().to_chrome_trace())["traceEvents"]
            >>> {event["name"] for event in events if event["ph"] == "X"} >= {"range", "batch", "step"}
            True
        """
        if not self.trace:
            raise ValueError("nothing was traced: record with ad.profile(trace=True)")
        counted = [(each.stats.loader_pid or self.trace[0].pid, each.moments) for each in self.pipelines]
        return chrome_trace(self.trace, counted, self.began_s, recorded=self.taken_at)

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes `to_chrome_trace` to a local file; all of it or nothing.

        Args:
            path: The file.

        Raises:
            SystemResourceError: It cannot be written.
            ValueError: The profile was made without a trace.
        """
        text = self.to_chrome_trace()
        with replacing(Path(path), "the trace", "profile") as file:
            file.write(text.encode())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the report to a local file, JSON if its name ends in ``.json`` and else HTML; all of it or nothing.

        Args:
            path: The file.

        Raises:
            SystemResourceError: It cannot be written.
        """
        text = self.to_json() if os.fspath(path).endswith(".json") else self.to_html()
        with replacing(Path(path), "the report", "profile") as file:
            file.write(text.encode("utf-8", "xmlcharrefreplace"))  # names of files may be no text


def versions() -> dict[str, str]:
    """What the numbers depend on."""
    found = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "free_threaded": "no" if getattr(sys, "_is_gil_enabled", lambda: True)() else "yes",
    }
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
