"""`Feed`: epochs of a dataset for one framework. It knows ranks, steps and states; the framework's file does the rest.

An iterator of a feed begins when its first batch is asked for: trainers make iterators that they never use, and these
take no epoch. The feed's state is that of the iterator that began last.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

from asyncdata import arguments
from asyncdata.dataset.answers import length
from asyncdata.dataset.dataset import Dataset
from asyncdata.dataset.handles import is_dataset, node_of
from asyncdata.errors import StateError
from asyncdata.feed.even import Least, known_steps
from asyncdata.feed.own_batches import END, EpochPlace, OwnBatches
from asyncdata.feed.ranks import Division, Rank
from asyncdata.feed.run import Hand, Run
from asyncdata.options import read_environment
from asyncdata.plan.node import INFINITE_CARDINALITY

VERSION: Final = 1

_KEYS: Final = {"version": int, "epoch": int, "steps": int, "turn": int, "rank": int, "world": int}


class Feed(ABC):
    """What a training loop iterates: once per epoch, and resumable.

    Args:
        dataset: Gives batches.
        division: Which part of it this process gets.
    """

    stays_here: ClassVar[tuple[str, ...]] = ("_part", "_run")
    """Attributes that are None in another process."""

    def __init__(self, dataset: Dataset, division: Division) -> None:
        if not is_dataset(dataset):
            raise TypeError(f"dataset must be a Dataset, not {arguments.shown(dataset)}")
        self._whole = dataset
        self._division = division
        self._next = EpochPlace(0)
        self._run: Run | None = None
        self._part: tuple[Rank, Dataset] | None = None

    # --- what the framework's file knows ---------------------------------------------------------------------------

    @abstractmethod
    def _distributed(self) -> tuple[int, int] | None:
        """Rank and number of processes, where the framework knows them."""

    @abstractmethod
    def _least(self) -> Least:
        """Asks the other processes."""

    @abstractmethod
    def _hand(self) -> Hand:
        """The way of an epoch's batches to the trainer."""

    @abstractmethod
    def _check_process(self) -> None:
        """Raises an error where batches cannot be read."""

    # --- epochs ----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """The next epoch, or the rest of the one that a loaded state is of. Begins with the first batch."""
        self._check_process()
        return FeedIterator(self)

    def __len__(self) -> int:
        """Steps of an epoch.

        Raises:
            TypeError: It is not known, or infinite.
        """
        steps = self._known_steps()
        if steps is not None and steps >= 0:
            return steps
        if steps is None and self._division.even is not None and self._processes() > 1:
            raise TypeError("the number of steps is not known in advance: the ranks agree on it as they go")
        return length(node_of("dataset", self.dataset))

    @property
    def dataset(self) -> Dataset:
        """What this process reads: the dataset with its shard."""
        mine = self._rank()
        if self._part is None or self._part[0] != mine:
            self._part = mine, self._division.part(self._whole, mine)
        return self._part[1]

    @property
    def epoch(self) -> int:
        """Number of the epoch whose batch comes next: the one that runs, or else the one that would begin."""
        run = self._run
        return self._next.epoch if run is None or run.ended else run.epoch

    def set_epoch(self, epoch: int) -> None:
        """Makes this the number of the next epoch, for trainers that count epochs themselves.

        A loaded state that is of this epoch stays loaded, and an iteration of it that runs goes on: it is the one that
        the trainer means, when it has asked for batches ahead.

        Args:
            epoch: From 0 on.
        """
        arguments.integer("epoch", epoch, least=0)
        runs = self._run is not None and self._run.live and self._run.epoch == epoch
        if epoch != self._next.epoch and not runs:
            self._next = EpochPlace(epoch)

    def _processes(self) -> int:
        """How many processes take their steps together."""
        return self._rank().world

    def _rank(self) -> Rank:
        return self._division.find(self._distributed(), read_environment())

    def _known_steps(self) -> int | None:
        even = self._division.even
        if even is None:
            return None
        return known_steps(even, *self._division.counts(self._whole, self._rank()))

    def _begin(self) -> Run:
        """Starts the next epoch."""
        self._check_process()
        place, even = self._next, self._division.even
        steps = self._known_steps()
        votes = even is not None and steps is None and self._processes() > 1
        if steps == INFINITE_CARDINALITY:
            steps = None
        least = self._least() if votes else None
        own = OwnBatches(self.dataset, self._whole, place, even)
        self._run = Run(own, place, steps=steps, even=even, least=least, hand=self._hand())
        self._next = EpochPlace(place.epoch + 1)
        return self._run

    # --- state -----------------------------------------------------------------------------------------------------

    def commit(self, step: int | None = None) -> None:
        """Says which batches were used: from now on in this epoch, `state_dict` means the state behind these.

        Only a trainer that asks for batches before it uses them needs it.

        Args:
            step: Batches of the epoch that were used; None: one more than before.

        Raises:
            ValueError: So many were not handed out, or more were committed before.
        """
        if step is not None:
            arguments.integer("step", step, least=0)
        if self._run is None:
            raise ValueError("nothing can be committed: no batch was handed out")
        self._run.commit(step)

    def state_dict(self) -> dict[str, Any]:
        """Where the training is: behind the batches that were handed out, or those that were committed.

        JSON can hold it. Each rank has a state of its own. Behind the last batch of an epoch it means the end of that
        epoch; once the loop over the epoch has ended it means the beginning of the next one.

        Raises:
            StateError: No state describes the position, see `PipelineIterator.state_dict`.
        """
        run = self._run
        place = self._next if run is None else run.place()
        mine = self._rank()
        return {
            "version": VERSION,
            "epoch": place.epoch,
            "steps": place.steps,
            "turn": place.turn,
            "rank": mine.rank,
            "world": mine.world,
            "pipeline": place.pipeline,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration gives the batches that the state has left of its epoch, later ones the epochs behind it.

        Args:
            state: Of `state_dict` of the same rank of as many ranks, in this or another process.

        Raises:
            StateError: It is none, or of another rank. What does not fit the dataset is an error when the iteration
                begins.
        """
        if not all(isinstance(state.get(key), kind) for key, kind in _KEYS.items()):
            raise StateError("this is not the state of a feed; a state of PipelineIterator belongs to ds.iterator()")
        if state["version"] > VERSION:
            raise StateError(f"the state is of version {state['version']}, and this library knows {VERSION}")
        mine = self._rank()
        if (state["rank"], state["world"]) != mine:
            raise StateError(
                f"the state is that of rank {state['rank']} of {state['world']}, and this is rank {mine.rank} of "
                f"{mine.world}: each rank loads its own state, and there must be as many ranks as before"
            )
        self._run = None
        self._next = EpochPlace(state["epoch"], state["steps"], state["turn"], state.get("pipeline"))

    def close(self) -> None:
        """Ends the iteration that runs, and waits for it; the state stays. A loop that is left ends by itself."""
        if self._run is not None:
            self._run.close()

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: not what runs here."""
        return {**vars(self), **dict.fromkeys(self.stays_here)}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._whole!r}, epoch {self.epoch}>"


class FeedIterator(Iterator[Any]):
    """One epoch of a feed. When nobody refers to it any more, its pipeline ends, and the feed keeps its state."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._run: Run | None = None

    def __next__(self) -> Any:
        run = self._run
        if run is None:
            run = self._run = self._feed._begin()  # noqa: SLF001 -- the two are one
            weakref.finalize(self, run.abandon).atexit = False
        try:
            batch = END if run.ended else run.next()
        except BaseException:
            # Interrupted at any step, it cannot say any more which batch is the next one; what was handed out it can.
            run.abandon()
            raise
        if batch is END:
            raise StopIteration
        return batch
