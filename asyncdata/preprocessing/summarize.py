"""What `adapt` runs on every element: a summary of each leaf that is learned from, here or in a worker process."""

from __future__ import annotations

from typing import Any, Protocol

from asyncdata.preprocessing.function import MapFunction
from asyncdata.preprocessing.nest import Nest, leaves_of, named, paired, whole


class Summary(Protocol):
    """What was seen so far; merging is associative, as far as the result is concerned."""

    def merged(self, other: Any) -> Any:
        """Returns the summary of what both have seen. Neither is used afterwards."""

    def close(self) -> None:
        """Frees what the summary holds outside of memory."""


class Learner(Protocol):
    """Learns one map function."""

    def summary(self, leaf: Any) -> Any:
        """Returns the summary of one leaf."""

    def learned(self, found: Any) -> MapFunction:
        """Returns the function that a summary leads to."""


class Partial:
    """The summaries of some elements, one per learner. It is a leaf of its own, whatever they consist of."""

    def __init__(self, summaries: list[Any]) -> None:
        self.summaries = summaries

    def merge(self, other: Partial, learners: Nest) -> None:
        """Takes the summaries of another one, which is not used afterwards."""
        for place, (path, _) in enumerate(leaves_of(learners)):
            with named(path):
                self.summaries[place] = self.summaries[place].merged(other.summaries[place])

    def close(self) -> None:
        """Frees what the summaries hold outside of memory."""
        for summary in self.summaries:
            summary.close()


class Summarize:
    """A picklable map function from an element to its `Partial`."""

    def __init__(self, learners: Nest) -> None:
        self._learners = learners

    def __call__(self, *parts: Any) -> Partial:
        """Summarizes an element that `map` passes, a tuple in parts."""
        found = []
        for path, learner, leaf in paired(self._learners, whole(self._learners, parts)):
            with named(path):
                found.append(learner.summary(leaf))
        return Partial(found)

    def of(self, element: Any) -> Partial:
        """Summarizes an element, as `map` would."""
        return self(*element) if type(element) is tuple else self(element)
