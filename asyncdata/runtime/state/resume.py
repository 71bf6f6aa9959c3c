"""How a step of a plan is brought back to a state: what it begins at, what its inputs begin at, what it drops.

A state is *base + skip* (see `asyncdata.memory.advance`). A step that writes marks begins at its own; a step that
writes none passes the marks of its input on, and with them the state. The outputs to be dropped are dropped by the
lowest step that can: where rows of the output are counted off from rows of the input, the input drops them, before
anything is decoded.

    shuffle     begins at its mark; drops `skip` outputs itself, whose rows it does not read if they lie in files
    map         writes no marks, a row for a row:  the state is its input's
    filter      writes no marks, drops rows:       the base is its input's, the skip its own
    batch(4)    begins at its mark; drops 4 x `skip` rows of its input

All of this is pure; the stages' part is `Stage.restore`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from asyncdata.memory.advance import Mark, State


class Resume(NamedTuple):
    """What one step does to come to a state.

    Attributes:
        mark: What its stage begins at, see `Stage.restore`; None: at the beginning.
        inputs: What its inputs begin at, by number; those that are not named begin at their beginning.
        drop: Outputs to drop then.
    """

    mark: Mark = None
    inputs: Sequence[State | None] = ()
    drop: int = 0


BEGIN: Final = Resume()
"""There is no state: everything begins."""

_COUNTS: Final = frozenset(
    ("at", "batch", "drawn", "next", "offset", "passed", "record", "row", "skip", "slot", "taken")
)
"""What marks of every kind count by."""

_OF_THE_USER: Final = ("state", "value")
"""What `scan` carries, and what a generator says about itself."""


def check_counts(mark: Mark) -> None:
    """Raises ``TypeError`` where a changed state counts in anything but integers: it would fail much later, or not."""
    if isinstance(mark, dict):
        for key, item in mark.items():
            is_wrong = type(item) is not int if key in _COUNTS else type(item) is float and key not in _OF_THE_USER
            if is_wrong:
                raise TypeError(f"{key} is {item!r}, which is no integer")


Rule: TypeAlias = Callable[[Any, State], Resume]
"""``rule(node, state)``."""


def checked(resume: Resume) -> Resume:
    """The same; raises ``TypeError`` where a changed state has something else than the state of an input."""
    for state in resume.inputs:
        if state is not None and not isinstance(state, State):
            raise TypeError(f"an input begins at {state!r}, which is no state")
    return resume


def again(node: Any, state: State) -> Resume:  # noqa: ARG001 -- a rule
    """From the beginning; the mark counts rows, and may say in which run what is kept in front was made."""
    mark = state.mark or {"at": 0}
    return Resume(inputs=(mark["begins"],) if "begins" in mark else (), drop=mark["at"] + state.skip)


def cursor(node: Any, state: State) -> Resume:  # noqa: ARG001 -- a rule
    """A source that can begin anywhere."""
    return Resume({"at": (state.mark["at"] if state.mark else 0) + state.skip})


def own(node: Any, state: State) -> Resume:  # noqa: ARG001 -- a rule
    """At its mark; it must see every input behind it."""
    if state.mark is None:
        return Resume(drop=state.skip)
    inputs = state.mark["inputs"] if "inputs" in state.mark else (state.mark.get("input"),)
    return Resume(state.mark, inputs, state.skip)


def drawn(node: Any, state: State) -> Resume:
    """At its mark; where the buffer lies in files, the stage drops outputs itself, and need not read them."""
    if state.mark is None or "places" not in state.mark:
        return own(node, state)
    return Resume({**state.mark, "skip": state.skip}, (state.mark["input"],))


def passed_on(node: Any, state: State) -> Resume:  # noqa: ARG001 -- a rule
    """A row for a row, without marks."""
    return Resume(inputs=(state,))


def selected(node: Any, state: State) -> Resume:  # noqa: ARG001 -- a rule
    """Without marks, and rows that do not correspond to rows of the input."""
    return Resume(inputs=(State(state.mark, 0),), drop=state.skip)


def in_turn(node: Any, state: State) -> Resume:
    """`interleave`; where each dataset is known to have one element, its input goes on behind those delivered."""
    reader, mark = node.reader, state.mark
    if reader is None or reader.cardinality(lambda _: 0) != 1:
        return own(node, state)
    if mark is None:
        row, begin = state.skip, state
    else:
        row = mark["slots"][mark["slot"]]["row"] + state.skip
        begin = State(mark["input"].mark, mark["input"].skip + row - mark["row"])
    return Resume({"slot": 0, "taken": 0, "slots": [], "next": row, "row": row, "input": begin}, (begin,))


def alone(node: Any, state: State) -> Resume:
    """A source of one element: nothing is read behind it."""
    if state.skip or (state.mark is not None and state.mark["record"]):
        return Resume({"record": 1, "offset": 0, "version": None})
    return own(node, state)


def at_row(node: Any, state: State) -> Resume:
    """A file that knows in front of which of its rows every part of it is; rows that filters drop are not counted."""
    if node.filters:
        return own(node, state)
    mark = state.mark or {"record": 0, "offset": 0, "version": None, "row_group": 0}
    return Resume({**mark, "record": mark["record"] + state.skip})


def counted(rows: Callable[[Any, Mark, int], int] = lambda _node, _mark, skip: skip) -> Rule:
    """At its mark, where so many outputs behind it are so many rows of each input.

    Args:
        rows: ``rows(node, mark, skip)`` says how many.
    """

    def rule(node: Any, state: State) -> Resume:
        if state.mark is None:
            return Resume(drop=state.skip)
        more = rows(node, state.mark, state.skip)
        mark = {**state.mark, "skip": state.skip}
        several = "inputs" in mark
        inputs = [State(mark, skip + more) for mark, skip in (mark["inputs"] if several else [mark["input"]])]
        mark["inputs" if several else "input"] = inputs if several else inputs[0]
        return Resume(mark, inputs)

    return rule


def loose(rule: Rule) -> Rule:
    """The same where elements may be left out: rows of the output are not counted off from rows of the input."""
    return selected if rule is passed_on else own if rule is in_turn else rule


batches: Final = counted(lambda node, _mark, skip: skip * node.size)
"""Batches of `size` elements each."""
