"""The algebra of advances, against a list of what happened."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.memory.advance import EMPTY, Advance, Fold, State
from asyncdata.memory.used import Used

Model = list[tuple[list[int], list[str], bool]]
"""Per row what it uses up and the marks in front of it; a last entry without a row is the tail."""


@st.composite
def models(draw: st.DrawFn, rows: st.SearchStrategy[int] = st.integers(0, 6)) -> Model:  # noqa: B008 -- a strategy is a constant
    """A model with numbered source rows and named marks."""
    number = draw(st.integers(0, 1000)) * 100
    model: Model = []
    for row in range(draw(rows) + 1):
        used = [number + 10 * row + j for j in range(draw(st.sampled_from([1, 1, 1, 0, 2, 3])))]
        marks = [f"m{number}.{row}.{j}" for j in range(draw(st.sampled_from([0, 0, 1, 2])))]
        model.append((used, marks, True))
    used, marks, _ = model[-1]
    model[-1] = (used if draw(st.booleans()) else [], marks, False)
    return model


def build(model: Model) -> Advance:
    """The advance of a model."""
    used = [number for numbers, _, _ in model for number in numbers]
    pairs = np.zeros((len(used), 2), np.int64)
    pairs[:, 1] = used
    sizes = [len(numbers) for numbers, _, is_row in model if is_row]
    ends = np.cumsum(sizes, dtype=np.int64)
    marks = tuple((row, mark) for row, (_, marks, _) in enumerate(model) for mark in marks)
    is_plain = all(size == 1 for size in sizes) and len(used) == len(sizes)
    return Advance(len(sizes), marks, Used(pairs, None if is_plain else ends))


def read(advance: Advance) -> Model:
    """The model of an advance."""
    used = advance.used or Used.nothing(advance.rows)
    numbers = used.pairs[:, 1].tolist()
    bounds = [used.end(row) for row in range(advance.rows + 1)]
    marks: list[list[str]] = [[] for _ in range(advance.rows + 1)]
    for row, mark in advance.marks:
        marks[row].append(mark)
    model: Model = [(numbers[a:b], found, True) for a, b, found in zip(bounds, bounds[1:], marks[:-1], strict=False)]
    return [*model, (numbers[bounds[-1] :], marks[-1], False)]


def joined(models_: list[Model]) -> Model:
    """Models end to end: a tail goes with the row that follows."""
    out: Model = []
    used: list[int] = []
    marks: list[str] = []
    for model in models_:
        for numbers, found, is_row in model:
            used, marks = used + numbers, marks + found
            if is_row:
                out.append((used, marks, True))
                used, marks = [], []
    return [*out, (used, marks, False)]


@given(models())
def test_building_and_reading_agree(model: Model) -> None:
    """The tests' own model is faithful."""
    advance = build(model)
    assert read(advance) == model
    assert advance.has_news == bool(model[-1][0] or model[-1][1])


@given(models(), st.data())
def test_split_and_concat_are_inverse(model: Model, data: st.DataObject) -> None:
    """Cut anywhere, the parts are the model's parts; joined again, they are the whole."""
    advance = build(model)
    row = data.draw(st.integers(0, advance.rows))
    head, tail = advance.split(row)
    assert read(head) == [*model[:row], ([], [], False)]
    assert read(tail) == model[row:]
    assert read(Advance.concat([head, tail])) == model


@given(st.lists(models(), min_size=1, max_size=5))
def test_concat_joins_tails_to_the_rows_that_follow(several: list[Model]) -> None:
    """What one block used up behind its last row is used up with the first row of the next."""
    assert read(Advance.concat([build(model) for model in several])) == joined(several)


@given(st.lists(models(), min_size=1, max_size=6), st.data())
def test_concat_is_associative(several: list[Model], data: st.DataObject) -> None:
    """Whichever are joined first, the whole is the same."""
    parts = [build(model) for model in several]
    cut = data.draw(st.integers(0, len(parts)))
    grouped = [Advance.concat(group) for group in (parts[:cut], parts[cut:]) if group]
    assert read(Advance.concat(grouped)) == read(Advance.concat(parts))


@given(models(), st.data())
def test_select_keeps_what_it_drops_used_up(model: Model, data: st.DataObject) -> None:
    """Dropped rows, and the marks in front of them, go with the next row that is kept."""
    rows = len(model) - 1
    kept = sorted(data.draw(st.sets(st.integers(0, rows - 1)))) if rows else []
    expected = joined(
        [[(numbers, marks, is_row and row in kept) for row, (numbers, marks, is_row) in enumerate(model)]]
    )
    assert read(build(model).select(np.array(kept, np.int64))) == expected


@given(models(), st.data())
def test_expand_puts_marks_at_the_first_output(model: Model, data: st.DataObject) -> None:
    """A row that becomes several has its marks at the first of them; one that becomes none is as if dropped."""
    model = [([], marks, is_row) for _, marks, is_row in model]
    rows = len(model) - 1
    counts = data.draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows))
    out: Model = []
    for (_, marks, _), count in zip(model, counts, strict=False):
        if not count:
            out.append(([], marks, False))
        for j in range(count):
            out.append(([], marks if j == 0 else [], True))
    advance = Advance(rows, build(model).marks)
    assert read(advance.expand(np.array(counts, np.int64))) == joined([[*out, model[-1]]])


@given(models(), st.randoms())
def test_reorder_moves_what_rows_use_up(model: Model, shuffle: Any) -> None:
    """Every row takes what it uses up along; the tail stays behind, and the marks are the caller's."""
    order = list(range(len(model) - 1))
    shuffle.shuffle(order)
    found = read(build(model).reorder(np.array(order, np.int64), ((0, "new"),) if order else ()))
    assert [numbers for numbers, _, _ in found] == [model[row][0] for row in order] + [model[-1][0]]
    assert [mark for _, marks, _ in found for mark in marks] == (["new"] if order else [])


@given(models(), st.data())
def test_group_uses_up_whole_groups(model: Model, data: st.DataObject) -> None:
    """Output j uses up the rows of its group; what follows the last group is the tail."""
    rows = len(model) - 1
    stops = sorted(data.draw(st.sets(st.integers(1, rows)))) if rows else []
    found = read(build(model).group(stops, ()))
    bounds = [0, *stops, rows + 1]
    expected = [[n for numbers, _, _ in model[a:b] for n in numbers] for a, b in pairwise(bounds)]
    assert [numbers for numbers, _, _ in found] == expected


@given(st.lists(st.sampled_from([0, 1, 1, 2]), max_size=5), st.lists(st.booleans(), min_size=1, max_size=3))
def test_rows_side_by_side_use_up_what_all_of_them_use_up(sizes: list[int], tracked: list[bool]) -> None:
    """In the order of the parts; a part that is not tracked adds nothing, and where none is nothing is."""
    parts: list[Advance] = []
    expected: list[list[int]] = [[] for _ in sizes]
    for number, is_tracked in enumerate(tracked):
        model: Model = [
            ([100 * number + 10 * row + j for j in range(size)], [], True) for row, size in enumerate(sizes)
        ]
        parts.append(build([*model, ([], [], False)]) if is_tracked else Advance(len(sizes)))
        for row, (numbers, _, _) in enumerate(model):
            expected[row] += numbers if is_tracked else []
    found = Advance.side_by_side(parts)
    assert (found.used is None) == (not any(tracked))
    assert [numbers for numbers, _, _ in read(found)[:-1]] == expected


@given(models())
def test_what_is_added_goes_in_front_of_the_last_one_of_its_row(model: Model) -> None:
    """A row that used up nothing uses up what is added alone; the tail stays."""
    *rows, tail = model
    added = np.column_stack((np.zeros(len(rows), np.int64), -1 - np.arange(len(rows))))
    expected = [
        ([*numbers[:-1], -1 - row, *numbers[-1:]], marks, is_row) for row, (numbers, marks, is_row) in enumerate(rows)
    ]
    assert read(build(model).using(added)) == [*expected, tail]


def test_marks_can_be_replaced() -> None:
    """Another stage's marks take the place of those from upstream; everything else stays."""
    advance = build([([1], ["old"], True), ([2], [], False)])
    assert read(advance.with_marks(((1, "new"),))) == [([1], [], True), ([2], ["new"], False)]
    assert "rows=1" in repr(advance)


@given(st.lists(models(), max_size=6), st.data())
def test_the_folded_state_does_not_depend_on_the_cuts(several: list[Model], data: st.DataObject) -> None:
    """Base + skip after k rows is the newest mark in front of row k and the rows since, however they came."""
    whole = joined(several)
    newest: list[State] = []
    mark, skip = None, 0
    for _, marks, is_row in whole:
        if is_row:
            if marks:
                mark, skip = marks[-1], 0
            skip += 1
            newest.append(State(mark, skip))
    rest = build(whole)
    fold = Fold()
    seen: list[State] = []
    while rest.rows or rest.has_news:
        row = data.draw(st.integers(0, rest.rows))
        part, rest = rest.split(row) if row < rest.rows else (rest, EMPTY)
        seen += [fold.at(part, k) for k in range(1, part.rows + 1)]
        fold.feed(part)
        if row == 0:
            # A tail may also come alone.
            part, rest = rest, EMPTY
            seen += [fold.at(part, k) for k in range(1, part.rows + 1)]
            fold.feed(part)
    assert seen == newest
    if newest:
        assert fold.state == newest[-1]


def test_a_fold_goes_on_from_a_state() -> None:
    """Folding continues where a saved state stands, and row 0 of the next block is that state."""
    fold = Fold(State("base", 7))
    assert fold.at(EMPTY, 0) == State("base", 7)
    fold.feed(build([([1], [], True), ([], [], False)]))
    assert fold.state == State("base", 8)
