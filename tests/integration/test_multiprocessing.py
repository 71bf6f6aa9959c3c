"""Scripts that iterate in children which multiprocessing has spawned: there the script's module is no ``__main__``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import LIMIT_S

ROOT = Path(__file__).parent.parent.parent

SCRIPT = """
import dataclasses, enum, functools, multiprocessing, sys, typing

import asyncdata as ad

@dataclasses.dataclass
class Point:
    x: int
    def moved(self, by):
        return Point(self.x + by)

class Pair(typing.NamedTuple):
    a: int
    b: int

class Color(enum.Enum):
    RED = 0
    BLUE = 1

class OddError(ValueError):
    pass

class Scale:
    def __init__(self, factor):
        self.factor = factor
    def __call__(self, x):
        return Point(self.factor * int(x))
    def method(self, x):
        return self(x)

OFFSET = 5

def add(x):
    return int(x) + OFFSET

def closure(factor):
    return lambda x: add(x) * factor

def with_multiprocessing(x):
    import multiprocessing
    return Point(int(x))

def refuse(x):
    raise OddError("odd")

def child(isolate):
    assert __name__ == "__mp_main__", __name__
    numbers = ad.Dataset.range(3)
    with ad.Runtime(ad.Options(num_workers=1, isolate=isolate)):
        assert list(numbers.map(add, 2)) == [5, 6, 7]
        assert list(numbers.map(closure(3), 2)) == [15, 18, 21]
        assert list(numbers.map(functools.partial(pow, 2), 2).map(add, 2)) == [6, 7, 9]
        assert list(numbers.map(Scale(2), 2)) == [Point(0), Point(2), Point(4)]
        assert list(numbers.map(Scale(2).method, 2)) == [Point(0), Point(2), Point(4)]
        assert list(numbers.map(with_multiprocessing, 2)) == [Point(0), Point(1), Point(2)]
        points = ad.Dataset.from_generator(lambda: iter([Point(1), Point(2)]))
        assert list(points.map(lambda point: point.moved(1), 2)) == [Point(2), Point(3)]
        assert [type(pair) for pair in numbers.map(lambda x: Pair(x, x), 2)] == [Pair] * 3
        assert [type(pair) for pair in numbers.map(lambda x: Pair(x, x), 2).batch(3)] == [Pair]
        assert list(numbers.take(2).map(lambda x: {"color": [Color(int(x))]}, 2))[1]["color"][0] is Color.BLUE
        try:
            list(numbers.map(refuse, 2))
        except OddError as error:
            assert type(error) is OddError
        else:
            raise AssertionError

if __name__ == "__main__":
    start_method, isolate = sys.argv[1:]
    process = multiprocessing.get_context(start_method).Process(target=child, args=(isolate == "isolated",))
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize(
    ("isolate", "start_method", "program"),
    [
        ("here", "spawn", ["trains.py"]),
        pytest.param("here", "forkserver", ["trains.py"], marks=pytest.mark.soak),
        pytest.param("isolated", "spawn", ["-m", "trains"], marks=pytest.mark.soak),
        ("isolated", "forkserver", ["-m", "trains"]),
    ],
)
def test_what_a_script_defines_works_in_its_children_as_in_itself(
    tmp_path: Path, start_method: str, isolate: str, program: list[str]
) -> None:
    """Functions, closures, methods and classes of the script are mapped in workers; results are of its own classes."""
    (tmp_path / "trains.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, *program, start_method, isolate],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, done.stderr) == (0, "")
