"""What is said of plans by one rule per kind of node, which asks for the node's inputs: of any number of steps."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from asyncdata.plan.node import Node, walk

T = TypeVar("T")


@dataclass(slots=True)
class _Answers:
    """What was said while one question is answered.

    Attributes:
        said: By rule and node.
        upwards: The rules that are asked from the sources upwards.
    """

    said: dict[tuple[int, int], Any] = field(default_factory=dict)
    upwards: set[int] = field(default_factory=set)


_answers: Final[contextvars.ContextVar[_Answers | None]] = contextvars.ContextVar("asyncdata_answers", default=None)


class Upwards(Generic[T]):
    """Calls a rule for a node; the rule calls this object for the node's inputs.

    Where Python does not let so many calls nest, the inputs are asked first, from the sources upwards, and what they
    said is remembered for that long.

    Args:
        rule: Says it of one node.
    """

    def __init__(self, rule: Callable[[Node], T]) -> None:
        self._rule = rule

    def __call__(self, node: Node) -> T:
        """What is said of a node."""
        answers = _answers.get()
        if answers is not None:
            return self._inner(node, answers)
        answers = _Answers()
        token = _answers.set(answers)
        try:
            return self._rule(node)
        except RecursionError:
            return self._upwards(node, answers)
        finally:
            _answers.reset(token)

    def _inner(self, node: Node, answers: _Answers) -> T:
        if not answers.upwards:
            return self._rule(node)
        said, key = answers.said, (id(self), id(node))
        if key not in said:
            if id(self) not in answers.upwards:
                return self._upwards(node, answers)
            said[key] = self._rule(node)
        found: T = said[key]
        return found

    def _upwards(self, node: Node, answers: _Answers) -> T:
        answers.upwards.add(id(self))
        found: T
        for each in reversed(list(walk(node))):
            found = answers.said[id(self), id(each)] = self._rule(each)
        return found
