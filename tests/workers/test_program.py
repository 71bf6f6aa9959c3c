"""What a worker executes, called directly: results in place, payloads apart, failures by row."""

from __future__ import annotations

import itertools
import os
import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from asyncdata.formats.example.features import FixedLenFeature
from asyncdata.formats.example.parser import parse_example
from asyncdata.formats.example.serialize import serialize_example
from asyncdata.formats.tfrecord import check_payloads, encode_many, frame
from asyncdata.memory.advance import Rows
from asyncdata.memory.arena import GRANULE, Arena
from asyncdata.memory.layout import Layout, parts_of
from asyncdata.memory.leaf import BYTES, UNCHECKED_BYTES, Leaf
from asyncdata.memory.unlike import first_misfit
from asyncdata.memory.wire import Part, Shape
from asyncdata.workers.child import GrantDeniedError
from asyncdata.workers.failure import decode_failure
from asyncdata.workers.program import Program, execute, generator
from asyncdata.workers.task_records import (
    DAMAGED,
    DONE,
    HUNG,
    NO_SPAN,
    RAGGED,
    RESULTS,
    Reply,
    Task,
    decode_failed,
    decode_unlike,
    encode_failed,
    encode_shape,
)
from asyncdata.workers.whereabouts import Mark, open_crash_file, read_mark


class Desk:
    """An arena with records in it, and memory for whoever needs some."""

    def __init__(self, payloads: list[bytes]) -> None:
        self.arena = Arena(1024 * GRANULE)
        raw = encode_many(payloads)
        self.arena.view[: len(raw)] = raw
        self.rows: Rows = frame(self.arena.view, 0, len(raw)).rows
        self.free = GRANULE * (1 + len(raw) // GRANULE)
        self.needs: list[int] = []

    def need(self, nbytes: int, _slot: int) -> tuple[int, int]:
        offset = self.free
        self.free += -(-nbytes // GRANULE) * GRANULE
        self.needs.append(nbytes)
        return offset, nbytes

    def task(self, leaf: Leaf, **changes: Any) -> Task:
        count = len(self.rows)
        origin = np.zeros((count, 4), np.int64)
        origin[:, 1] = np.arange(count)
        rows = np.zeros(-(-16 * count // 64) * 64, np.uint8)
        rows[: 16 * count] = self.rows.reshape(-1).view(np.uint8)
        fields: dict[str, Any] = {
            "offset": NO_SPAN,
            "count": count,
            "batch_size": count,
            "batch_start": 0,
            "keys": (1, 2),
            "with_origin": True,
            "shape": encode_shape(Shape(None, (Part("refs", leaf=leaf),))),
            "inline": rows.tobytes() + origin.tobytes(),
        }
        return Task(**{**fields, **changes})

    def run(self, program: Program, leaf: Leaf = BYTES, **changes: Any) -> Reply:
        return Reply.decode(execute(self.arena.view, program, self.task(leaf, **changes).encode(), self.need))

    def batch(self, reply: Reply) -> list[Any]:
        """The leaves of a finished batch, tables as lists of bytes."""
        layout: Layout = pickle.loads(reply.body)
        parts = parts_of(self.arena.array, reply.offset, layout)
        return [
            [self.arena.array[o : o + n].tobytes() for o, n in part.tolist()] if leaf.kind == "table" else part
            for leaf, part in zip(layout.leaves, parts, strict=True)
        ]


@pytest.fixture
def desk() -> Iterator[Callable[[list[bytes]], Desk]]:
    made: list[Desk] = []

    def make(payloads: list[bytes]) -> Desk:
        made.append(Desk(payloads))
        return made[-1]

    yield make
    for each in made:
        each.arena.close()


PAYLOADS = [b"", b"a", b"bc" * 40]


def test_numbers_and_arrays_are_written_in_place(desk: Callable[[list[bytes]], Desk]) -> None:
    """A function's numbers and arrays become the rows of the batch slab, whose size is asked for once."""
    at = desk(PAYLOADS)
    reply = at.run(Program(functions=(lambda b: (len(b), np.full((2, 3), len(b), np.float32)),), rng=(False,)))
    lengths, arrays = at.batch(reply)
    assert reply.status == DONE
    assert lengths.tolist() == [0, 1, 80]
    assert arrays.shape == (3, 2, 3)
    assert arrays[2].tolist() == [[80.0] * 3] * 2
    assert len(at.needs) == 1


def test_byte_strings_get_a_slab_of_their_own(desk: Callable[[list[bytes]], Desk]) -> None:
    """Byte strings and texts of any length come back unchanged, through tables into a second slab."""
    at = desk(PAYLOADS)
    reply = at.run(Program(functions=(lambda b: {"twice": b * 2, "text": f"é{len(b)}"},), rng=(False,)))
    twice, text = at.batch(reply)
    assert twice == [p * 2 for p in PAYLOADS]
    assert [t.decode() for t in text] == ["é0", "é1", "é80"]
    assert len(at.needs) == 2
    assert reply.payloads >= 0


def test_a_part_fills_only_its_own_rows(desk: Callable[[list[bytes]], Desk]) -> None:
    """Two tasks of one batch write disjoint rows of the slab that both are given."""
    at = desk(PAYLOADS)
    program = Program(functions=(len,), rng=(False,), stack=True)
    slab = at.need(64, RESULTS)
    at.needs.clear()
    at.run(program, batch_size=6, batch_start=0, results=slab)
    reply = at.run(program, batch_size=6, batch_start=3, results=slab)
    assert not at.needs
    assert at.batch(reply)[0].tolist() == [0, 1, 80, 0, 1, 80]


def test_views_are_slices_of_the_arena_when_asked_for(desk: Callable[[list[bytes]], Desk]) -> None:
    """With zero_copy a function sees a memoryview of the record, and may return it: what is kept is a copy."""
    at = desk(PAYLOADS)

    def first(view: memoryview) -> memoryview:
        assert isinstance(view, memoryview)
        return view[:1]

    reply = at.run(Program(functions=(first,), rng=(False,), zero_copy=True))
    assert at.batch(reply)[0] == [b"", b"a", b"b"]


def test_a_batch_of_unlike_results_is_refused_by_row(desk: Callable[[list[bytes]], Desk]) -> None:
    """A result that does not fit the first one of its batch fails at its row, saying what differs."""
    at = desk(PAYLOADS)
    reply = at.run(Program(functions=(lambda b: np.zeros(len(b)),), rng=(False,), stack=True))
    kinds = decode_unlike(reply.failed)
    assert kinds is not None
    row, error = first_misfit([(0, kinds)])
    assert (reply.count, row, kinds.count) == (1, 1, 3)
    assert "float64[0]" in str(error)
    assert "float64[1]" in str(error)


def test_functions_are_called_behind_unlike_results(desk: Callable[[list[bytes]], Desk]) -> None:
    """What they raise is said first, as if the batch were made only then."""
    at = desk(PAYLOADS)
    values = [1, "text"]
    reply = at.run(Program(functions=(lambda _b: values.pop(0),), rng=(False,), stack=True))
    ((row, blob),) = decode_failed(reply.failed)
    assert (reply.count, row) == (1, 2)
    assert isinstance(decode_failure(blob, where="here"), IndexError)
    assert decode_unlike(reply.failed) is None


def test_ragged_rows_are_described_one_by_one(desk: Callable[[list[bytes]], Desk]) -> None:
    """Arrays of different lengths, then text, in one column: a leaf per row, payloads aligned."""
    at = desk(PAYLOADS)
    values = iter([np.arange(3), np.arange(5.0), "text"])
    reply = at.run(Program(functions=(lambda _b: next(values),), rng=(False,), stack=False))
    assert reply.status == RAGGED
    tables_at, ragged = pickle.loads(reply.body)
    table = at.arena.array[tables_at : tables_at + 48].view(np.int64).reshape(3, 2)
    (leaves,) = ragged.leaves
    assert [leaf.kind for leaf in leaves] == ["array", "array", "str"]
    assert at.arena.array[table[1, 0] : table[1, 0] + table[1, 1]].view(np.float64).tolist() == [0, 1, 2, 3, 4]
    assert all(offset % 64 == 0 for offset in table[:, 0].tolist())


def test_a_failing_function_names_its_row(desk: Callable[[list[bytes]], Desk]) -> None:
    """The reply says at which row user code failed, and with what; sys.exit is a failure too."""
    at = desk(PAYLOADS)

    def fail(payload: bytes) -> int:
        if payload == b"a":
            raise SystemExit(3)
        return 1

    reply = at.run(Program(functions=(fail,), rng=(False,)))
    ((row, blob),) = decode_failed(reply.failed)
    assert (reply.count, row) == (1, 1)
    assert at.batch(reply)[0].tolist()[:1] == [1]
    assert "SystemExit" in str(decode_failure(blob, where="here"))


def test_the_rows_before_a_failure_have_their_results(desk: Callable[[list[bytes]], Desk]) -> None:
    """A task ends at its first bad row, whichever it is: a damaged payload, or one that the function refuses."""
    for damaged in range(5):
        for refused in range(5):
            at = desk([bytes([65 + row]) * 3 for row in range(5)])
            at.arena.view[int(at.rows[damaged, 0])] ^= 128

            def take(payload: bytes, refused: int = refused) -> bytes:
                if payload[0] == 65 + refused:
                    raise ValueError("refused")
                return payload

            reply = at.run(Program(functions=(take,), rng=(False,), check=check_payloads), UNCHECKED_BYTES)
            ((row, blob),) = decode_failed(reply.failed)
            assert reply.count == row == min(damaged, refused)
            assert (blob == DAMAGED) == (damaged <= refused)
            if row:
                assert at.batch(reply)[0][:row] == [bytes([65 + i]) * 3 for i in range(row)]


def test_with_skip_all_others_have_theirs_too(desk: Callable[[list[bytes]], Desk]) -> None:
    """Rows that fail are left out, and every one of them is told with its own error."""
    at = desk([bytes([65 + row]) * 3 for row in range(6)])
    at.arena.view[int(at.rows[1, 0])] ^= 128

    def take(payload: bytes) -> bytes:
        if payload[0] in b"AE":
            raise ValueError(payload.decode())
        return payload

    reply = at.run(Program(functions=(take,), rng=(False,), check=check_payloads, skip=True), UNCHECKED_BYTES)
    failed = decode_failed(reply.failed)
    assert [row for row, _ in failed] == [0, 1, 4]
    assert [blob == DAMAGED for _, blob in failed] == [False, True, False]
    assert str(decode_failure(failed[2][1], where="here")) == "EEE"
    assert reply.count == 3
    assert at.batch(reply)[0][:3] == [b"CCC", b"DDD", b"FFF"]


def test_many_failures_stay_small(desk: Callable[[list[bytes]], Desk]) -> None:
    """When everything fails, later exceptions travel without their tracebacks; type and text stay."""
    at = desk([b"x"] * 2000)

    def fail(payload: bytes) -> None:
        raise ValueError("y" * 1000)

    reply = at.run(Program(functions=(fail,), rng=(False,), skip=True))
    failed = decode_failed(reply.failed)
    assert (reply.count, len(failed), len(reply.body)) == (0, 2000, 0)
    assert len(reply.failed) < 3 << 20
    last = decode_failure(failed[-1][1], where="here")
    assert isinstance(last, ValueError)
    assert "yyy" in str(last)


def test_elements_that_nest_in_different_ways_are_bare_objects(desk: Callable[[list[bytes]], Desk]) -> None:
    """Rows of one task need not be alike in structure, at whichever row that shows."""
    values: list[Any] = [1, (2, b"two"), {"three": [3]}]
    for order in ((0, 1, 2), (1, 0, 2), (2, 1, 0), (1, 1, 2)):
        at = desk(PAYLOADS)
        results = iter([values[i] for i in order])
        reply = at.run(Program(functions=(lambda _b, results=results: next(results),), rng=(False,)))
        assert (reply.status, reply.count, reply.failed) == (RAGGED, 3, b"")
        assert pickle.loads(reply.body)[1].structure is None


def test_a_refused_grant_is_no_failure_of_the_user(desk: Callable[[list[bytes]], Desk]) -> None:
    """What the parent refuses passes through: the parent knows why."""
    at = desk(PAYLOADS)

    def refuse(nbytes: int, _slot: int) -> tuple[int, int]:
        raise GrantDeniedError(nbytes)

    at.need = refuse  # type: ignore[method-assign]  # the parent's answer
    with pytest.raises(GrantDeniedError):
        at.run(Program(functions=(len,), rng=(False,)))


@pytest.mark.parametrize("bad", range(3))
def test_a_damaged_payload_is_found_before_its_function_runs(desk: Callable[[list[bytes]], Desk], bad: int) -> None:
    """The checksum behind an unchecked payload is verified; the reply names the row, and no function has seen it."""
    at = desk([b"xyz", b"uvw", b"rst"])
    at.arena.view[int(at.rows[bad, 0])] ^= 1
    calls: list[bytes] = []
    program = Program(functions=(calls.append,), rng=(False,), check=check_payloads)
    reply = at.run(program, UNCHECKED_BYTES)
    assert (reply.count, decode_failed(reply.failed)) == (bad, [(bad, DAMAGED)])
    assert len(calls) == bad


def test_a_parser_takes_all_rows_at_once(desk: Callable[[list[bytes]], Desk]) -> None:
    """A parser of Examples is called once per task; its columns are the batch. One bad record is found by its row."""
    examples = [serialize_example({"x": [i], "name": [f"n{i}".encode()]}) for i in range(5)]
    spec = {"x": FixedLenFeature((), np.int64), "name": FixedLenFeature((), bytes)}
    at = desk(examples)
    reply = at.run(Program(functions=(parse_example(spec),), rng=(False,)))
    x, name = at.batch(reply)
    assert x.tolist() == list(range(5))
    assert name == [f"n{i}".encode() for i in range(5)]
    at = desk([*examples[:3], b"\xff\xff", *examples[3:]])
    reply = at.run(Program(functions=(parse_example(spec),), rng=(False,)))
    assert [row for row, _ in decode_failed(reply.failed)] == [3]
    assert reply.count == 3


def test_no_function_is_called_for_a_row_that_hung(desk: Callable[[list[bytes]], Desk]) -> None:
    """With skip the other rows have results; without, those before it. Whichever row fails first is the first one."""
    at = desk([b"%d" % i for i in range(6)])
    called: list[int] = []

    def number(payload: bytes) -> int:
        called.append(int(payload))
        if payload == b"4":
            raise ValueError
        return int(payload)

    reply = at.run(Program(functions=(number,), skip=True), hung=(5, 2))
    assert [(row, blob == HUNG) for row, blob in decode_failed(reply.failed)] == [(2, True), (4, False), (5, True)]
    assert (at.batch(reply)[0][: reply.count].tolist(), called) == ([0, 1, 3], [0, 1, 3, 4])
    called.clear()
    for hung, rows, failed in (((5, 2), [0, 1], 2), ((5,), [0, 1, 2, 3], 4), ((0,), [], 0)):
        reply = at.run(Program(functions=(number,)), hung=hung)
        assert reply.count == len(rows)
        assert [row for row, _ in decode_failed(reply.failed)] == [failed]
    assert called == [0, 1, 0, 1, 2, 3, 4]


def test_the_parent_can_see_which_row_each_function_has(
    desk: Callable[[list[bytes]], Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call has the whole limit; between calls, and where memory is awaited, nothing is due."""
    fd = open_crash_file()
    at = desk([b"%d" % i for i in range(3)])
    seen: list[tuple[int, int]] = []
    due: list[int] = []
    clock = itertools.count(1)
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(clock))

    def look(value: Any) -> Any:
        row, due_ns = read_mark(fd)
        seen.append((row, int(value)))
        due.append(due_ns)
        assert due_ns > 10**12
        if value == b"1":
            raise ValueError
        return value

    def need(nbytes: int, slot: int) -> tuple[int, int]:
        assert read_mark(fd)[1] == 0
        return at.need(nbytes, slot)

    program = Program(functions=(look, look), skip=True, limit_ns=10**12)
    execute(at.arena.view, program, at.task(BYTES).encode(), need, Mark(fd))
    assert seen == [(0, 0), (0, 0), (1, 1), (2, 2), (2, 2)]
    assert due == sorted(set(due))
    assert read_mark(fd)[1] == 0
    os.close(fd)


def test_generators_follow_provenance_alone(desk: Callable[[list[bytes]], Desk]) -> None:
    """The draws for a record are the same whichever task it is in, and differ between records and functions."""
    at = desk(PAYLOADS)

    def draw(_payload: Any, rng: np.random.Generator) -> int:
        return int(rng.integers(1 << 60))

    reply = at.run(Program(functions=(draw,), rng=(True,)))
    drawn = at.batch(reply)[0].tolist()
    origin = np.array([0, 2, 0, 0])
    assert drawn[2] == int(generator((1, 2), origin, 0).integers(1 << 60))
    assert len(set(drawn)) == 3
    assert drawn[2] != int(generator((1, 2), origin, 1).integers(1 << 60))


def test_messages_survive_the_trip() -> None:
    """Tasks and replies decode to what was encoded."""
    task = Task(5, 6, 7, 8, (2**64 - 1, 3), True, b"shape", b"inline", (0, 4))
    reply = Reply(RAGGED, 3, 4, NO_SPAN, 0.5, b"body", encode_failed([(1, b"why")]))
    assert Task.decode(task.encode()) == task
    assert Reply.decode(reply.encode()) == reply
