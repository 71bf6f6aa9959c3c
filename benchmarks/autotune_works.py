"""The works of `benchmarks.autotune`, and the process that does one of them with one setting.

A setting is a dict: ``calls`` and ``second`` are calls at a time of the first and the second async function, ``tasks``
those of worker processes, ``workers`` a number of these, ``prefetch`` a number of elements, ``executor`` where a parser
runs. What it does not name is AUTOTUNE, which keeps its defaults unless the setting is `FOUND`.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from asyncdata.planner import autotune, placement
from benchmarks.datasets import Shards

Setting: TypeAlias = Mapping[str, Any]

FOUND: Final[Setting] = {"found": True}
"""AUTOTUNE, which changes settings while the pipeline runs."""
DEFAULT: Final[Setting] = {}
"""AUTOTUNE, which keeps what it begins with."""

BLOBS: Final = Shards(kind="blobs", shards=16, records=100)
SCALARS: Final = Shards(kind="wide", shards=4, records=5000)

_COMPUTING_S: Final = 0.002
_HUGE: Final = 500_000
"""Float64 of 4 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One pipeline.

    Attributes:
        make: Of the setting, and of where its files are.
        settings: The sweep.
        shards: What it reads; None without files.
        remote: Whether they lie behind a link.
        step_s: What the consumer does with each batch.
        changes_s: When the pipeline changes its nature; 0: it does not.
    """

    make: Callable[[Setting, str], Any]
    settings: Sequence[Setting]
    shards: Shards | None = None
    remote: bool = False
    step_s: float = 0.0
    changes_s: float = 0.0


def grid(**values: Sequence[Any]) -> list[Setting]:
    """Every combination."""
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


async def _wait(x: Any, seconds: float) -> Any:
    await asyncio.sleep(seconds)
    return x


async def _wait_for_much(_: Any, seconds: float) -> Any:
    await asyncio.sleep(seconds)
    return np.zeros(_HUGE)


def _compute(x: Any) -> Any:
    until = time.thread_time() + _COMPUTING_S
    while time.thread_time() < until:
        pass
    return x


def _waiting(setting: Setting, *seconds: float, function: Callable[..., Any] = _wait, batch: int = 16) -> Any:
    """Numbers, and async functions that wait."""
    import asyncdata as ad  # noqa: PLC0415 -- behind what fixes settings

    ds = ad.Dataset.range(1 << 40)
    for name, wait_s in zip(("calls", "second"), seconds, strict=False):
        ds = ds.map(functools.partial(function, seconds=wait_s), num_parallel_calls=setting.get(name, ad.AUTOTUNE))
    return ds.batch(batch).prefetch(setting.get("prefetch", ad.AUTOTUNE))


def _changing(setting: Setting, _: str) -> Any:
    """Waits twenty times as long from some moment on."""
    began = time.monotonic()

    async def wait(x: Any, seconds: float) -> Any:
        late = time.monotonic() - began >= setting["changes_s"]
        return await _wait(x, seconds * (20 if late else 1))

    return _waiting(setting, 0.01, function=wait)


def _computing(setting: Setting, _: str) -> Any:
    import asyncdata as ad  # noqa: PLC0415 -- behind what fixes settings

    ds = ad.Dataset.range(1 << 40).map(_compute, num_parallel_calls=ad.AUTOTUNE).batch(16)
    return ds.prefetch(setting.get("prefetch", ad.AUTOTUNE))


def _parsing(setting: Setting, pattern: str, shards: Shards, batch: int) -> Any:
    import asyncdata as ad  # noqa: PLC0415 -- behind what fixes settings
    from benchmarks.workloads import parser  # noqa: PLC0415 -- the same

    ds = ad.Dataset.list_files(pattern, shuffle=False).repeat()
    ds = ds.interleave(ad.TFRecordDataset, cycle_length=shards.shards, deterministic=False).batch(batch)
    ds = ds.map(parser(shards.kind), ad.AUTOTUNE, executor=setting.get("executor"))
    return ds.prefetch(setting.get("prefetch", ad.AUTOTUNE))


_ASYNC: Final = grid(calls=(4, 16, 64, 256), prefetch=(2, 8, 32))
_PLACES: Final = grid(executor=("inline", "process"), prefetch=(2, 8, 32))
WORKS: Final[Mapping[str, Work]] = {
    "link-bound": Work(
        make=functools.partial(_parsing, shards=BLOBS, batch=64), settings=_PLACES, shards=BLOBS, remote=True
    ),
    "decode-bound": Work(make=_computing, settings=grid(tasks=(2, 4, 8, 16), workers=(1, 2), prefetch=(2, 8, 32))),
    "consumer-bound": Work(make=lambda setting, _: _waiting(setting, 0.05), settings=_ASYNC, step_s=0.02),
    "tiny records": Work(
        make=functools.partial(_parsing, shards=SCALARS, batch=1024), settings=_PLACES, shards=SCALARS
    ),
    "huge records": Work(
        make=lambda setting, _: _waiting(setting, 0.2, function=_wait_for_much, batch=1),
        settings=grid(calls=(4, 16, 64), prefetch=(2, 8)),
    ),
    "sleeping async map": Work(make=lambda setting, _: _waiting(setting, 0.05), settings=_ASYNC),
    "two maps that compete": Work(
        make=lambda setting, _: _waiting(setting, 0.05, 0.02), settings=grid(calls=(16, 64, 256), second=(16, 64, 256))
    ),
    "changing half-way": Work(make=_changing, settings=grid(calls=(4, 16, 64, 256), prefetch=(2, 8)), changes_s=3.0),
}
"""At most 24 settings each."""


def iterate(name: str, setting: Setting, before_s: float, seconds: float, pattern: str, url: str) -> dict[str, Any]:
    """Does a work for some seconds.

    Args:
        name: Of the work.
        setting: For it.
        before_s: Left out first.
        seconds: Of the measurement.
        pattern: Where its files are.
        url: Of the server that has them; empty: they are local.

    Returns:
        Elements per second, and what AUTOTUNE says that it found.
    """
    work = WORKS[name]
    if setting != FOUND:
        _keep(setting.get("tasks"))
    import asyncdata as ad  # noqa: PLC0415 -- behind the line above

    storage = {"gs": {"endpoint_url": url, "token": "anon"}} if url else {}
    # Where the work changes, a run with fixed settings measures what came behind the change, too.
    changes_s = min(work.changes_s, before_s / 2)
    ds = work.make({**setting, "changes_s": changes_s}, pattern)
    options = ad.Options(num_workers=setting.get("workers", ad.AUTOTUNE), storage=storage)
    with ds.with_options(options).iterator() as batches:
        began = now = time.perf_counter()
        count, at = 0, 0.0
        for batch in batches:
            now = time.perf_counter() - began
            if now >= before_s:
                if at:
                    count += len(next(iter(batch.values())) if isinstance(batch, dict) else batch)
                else:
                    at = now
            if at and now >= at + seconds:
                break
            until = time.perf_counter() + work.step_s
            while time.perf_counter() < until:
                pass
        knobs = {f"{knob.step} {knob.counts}": knob.value for knob in batches.stats().knobs}
    return {"rate": count / max(now - at, 1e-9), "knobs": knobs}


def _keep(tasks: int | None) -> None:
    """Leaves settings what they are; called before what uses the ranges is loaded."""
    autotune.Autotuner.decide = lambda *_: {}  # type: ignore[method-assign]  # for the whole process
    placement.Placement.decide = lambda *_args, **_named: False  # type: ignore[method-assign]  # the same
    if tasks is not None:
        autotune.tasks = lambda workers: autotune.KnobRange(first=tasks, most=tasks)  # noqa: ARG005 -- whatever there are


if __name__ == "__main__":
    work_name, words, before, length, files, server = sys.argv[1:]
    print(json.dumps(iterate(work_name, json.loads(words), float(before), float(length), files, server)))
