"""Rates that the verdict predicts, against those that are reached when the step is really made twice as fast.

    python -m benchmarks.predicted_rates [--quick] [--only WORK …] [--rounds N] [--seconds S]

Each work has one strong cause. It runs as it is, and with its cure: a function that takes half the time, a link twice
as wide, more files at a time, twice the memory. Both run in turn, without the first element. *predicted* and *measured*
are how many times the rate; *predicted / measured* is the median over pairs, and the lowest and the highest.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import gzip
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import asyncdata as ad
from benchmarks.conditions import conditions
from benchmarks.measure import in_turn
from benchmarks.servers import fake_gcs
from benchmarks.table import markdown, median_cell

_RECORD: Final = 1 << 16
_FILES: Final = 32
_MIB: Final = 1 << 20
_HEAD: Final = ("work", "cause", "predicted", "measured", "predicted / measured")
_SLOW: Final = {"latency": {"kind": "fixed", "median_s": 0.1}}


class _Run(NamedTuple):
    """One run.

    Attributes:
        cause: That the verdict named.
        rate: Elements per second, without the first.
        gain: How many times the rate the verdict predicts.
    """

    cause: str
    rate: float
    gain: float


class _Place:
    """Files, here and behind links that differ in one number.

    Args:
        root: An empty folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        text = random.Random(1).randbytes(_RECORD // 2).hex().encode()
        for bucket, record, count in (("small", _RECORD, 1), ("large", _RECORD, 64)):
            (root / bucket).mkdir()
            for number in range(_FILES):
                (root / bucket / f"{number:03d}").write_bytes(text[:record] * count)
        (root / "packed").mkdir()
        packed = gzip.compress(text * 1024, 1)
        for number in range(4):
            (root / "packed" / f"{number}.gz").write_bytes(packed)

    @contextlib.contextmanager
    def behind(self, link: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Storage options for the same files behind a link."""
        with fake_gcs(self.root, link) as server:
            for bucket in ("small", "large"):
                for number in range(_FILES):
                    server.touch(bucket, f"{number:03d}")
            yield {"gs": {"endpoint_url": server.url, "token": "anon"}}


def _sleep(x: Any, seconds: float) -> Any:
    time.sleep(seconds)
    return x


async def _wait(x: Any, seconds: float) -> Any:
    await asyncio.sleep(seconds)
    return x


def _mapped(function: Callable[..., Any], seconds: float, calls: int | None = None, batch: int = 4) -> ad.Dataset:
    """Numbers, and a function that takes so long."""
    called = functools.partial(function, seconds=seconds)
    return ad.Dataset.range(1 << 40).map(called, num_parallel_calls=calls).batch(batch)


def _read(bucket: str, files: int) -> ad.Dataset:
    """Records of so many files at a time; the beginnings of 15 others are read ahead."""
    names = ad.Dataset.list_files(f"gs://{bucket}/*", shuffle=False).repeat()
    return names.interleave(lambda name: ad.FixedLengthRecordDataset(name, _RECORD), files)


def _unpacked(place: _Place, files: int) -> ad.Dataset:
    """Records of so many compressed files at a time."""
    names = ad.Dataset.list_files(str(place.root / "packed" / "*"), shuffle=False).repeat()
    return names.interleave(lambda name: ad.FixedLengthRecordDataset(name, _RECORD, compression_type="GZIP"), files)


@contextlib.contextmanager
def _here(ds: ad.Dataset) -> Iterator[tuple[ad.Dataset, ad.Options]]:
    yield ds, ad.Options(num_workers=2)


@contextlib.contextmanager
def _remote(
    place: _Place, ds: ad.Dataset, link: Mapping[str, Any], **options: Any
) -> Iterator[tuple[ad.Dataset, ad.Options]]:
    with place.behind(link) as storage:
        yield ds, ad.Options(storage=storage, **options)


_WORKS: Final[
    Mapping[str, Callable[[_Place, int], contextlib.AbstractContextManager[tuple[ad.Dataset, ad.Options]]]]
] = {
    "map on the loop": lambda _, times: _here(_mapped(_sleep, 0.02 / times)),
    "async map": lambda _, times: _here(_mapped(_wait, 0.04 / times, 2)),
    "map in workers": lambda _, times: _here(_mapped(_sleep, 0.04 / times, 2)),
    "map in front of another": lambda _, times: _here(
        _mapped(_sleep, 0.02 / times).map(functools.partial(_sleep, seconds=0.02))
    ),
    "source": lambda place, times: _remote(place, _read("large", 8), {"total_bytes_per_s": 60e6 * times}),
    "cycle_length": lambda place, times: _remote(
        place, _read("small", 16 * times - 15), _SLOW, max_requests_in_flight=64
    ),
    "decompression": lambda place, times: _here(_unpacked(place, 3 * times - 2)),
    "memory": lambda place, times: _remote(place, _read("large", 4), _SLOW, memory_limit_bytes=4 * _MIB * times),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of short runs: whether it runs at all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="of one run")
    parser.add_argument("--only", nargs="*", default=list(_WORKS), help="works")
    given = parser.parse_args(arguments)
    rounds, seconds = (1, 1.0) if given.quick else (given.rounds, given.seconds)
    print(f"{conditions(packages=('asyncdata', 'uvloop'))}\n")
    rows = []
    with tempfile.TemporaryDirectory(prefix="benchmark-predicted-") as home:
        place = _Place(Path(home))
        for name in given.only:
            _note(name)
            runs = {who: functools.partial(_run, place, name, times, seconds) for who, times in _TIMES.items()}
            found = in_turn(rounds, runs, _note)
            rows.append(_row(name, found["before"], found["after"]))
    print(markdown(_HEAD, rows))
    return 0


_TIMES: Final = {"before": 1, "after": 2}


def _run(place: _Place, name: str, times: int, seconds: float) -> _Run:
    with _WORKS[name](place, times) as (ds, options), ds.with_options(options).iterator() as elements:
        next(elements)
        began = now = time.perf_counter()
        count = 0
        for count, _ in enumerate(elements, 1):  # noqa: B007 -- counted
            now = time.perf_counter()
            if now - began >= seconds:
                break
        verdict = elements.stats().verdict
    return _Run(verdict.cause, count / max(now - began, 1e-9), verdict.faster_rate / max(verdict.rate, 1e-9))


def _row(name: str, before: Sequence[_Run], after: Sequence[_Run]) -> list[str]:
    measured = [cured.rate / run.rate for run, cured in zip(before, after, strict=True)]
    predicted = [run.gain for run in before]
    ratios = [gain / reached for gain, reached in zip(predicted, measured, strict=True)]
    cause = statistics.mode(run.cause for run in before)
    return [name, cause, median_cell(predicted), median_cell(measured), median_cell(ratios)]


def _note(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
