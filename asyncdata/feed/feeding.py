"""`Feed`: epochs of a dataset for one framework. It knows ranks, steps and states; the framework's file does the rest.

An iterator of a feed begins when its first batch is asked for: trainers make iterators that they never use, and these
take no epoch. The feed's state is that of the iterator that began last.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from asyncdata import arguments
from asyncdata.dataset.answers import length
from asyncdata.dataset.dataset import Dataset
from asyncdata.dataset.handles import is_dataset, node_of
from asyncdata.errors import PipelineError, StateError
from asyncdata.feed.even import Agreed, Least, known_steps
from asyncdata.feed.own_batches import END, EpochPlace, OwnBatches
from asyncdata.feed.rank_states import VERSION, state_of
from asyncdata.feed.ranks import Division, Rank
from asyncdata.feed.run import Hand, Run
from asyncdata.options import read_environment
from asyncdata.plan.node import INFINITE_CARDINALITY


class Feed(ABC):
    """What a training loop iterates: once per epoch, and resumable.

    Args:
        dataset: Gives batches.
        division: Which part of it this process gets.
    """

    stays_here: ClassVar[tuple[str, ...]] = ("_begins", "_part", "_run")
    """Attributes that are None in another process."""

    def __init__(self, dataset: Dataset, division: Division) -> None:
        if not is_dataset(dataset):
            raise TypeError(f"dataset must be a Dataset, not {arguments.shown(dataset)}")
        self._whole = dataset
        self._division = division
        self._next = EpochPlace(0)
        self._begins = threading.RLock()  # iterators of several threads never take the same epoch
        self._run: Run | None = None
        self._part: tuple[Rank, Dataset] | None = None
        self._kept = False

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

    def _as_written(self, dataset: Dataset) -> Dataset:
        """What is read in place of this process's part: the same batches, written as the framework takes them."""
        return dataset

    # --- epochs ----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """The next epoch, or the rest of the one that a loaded state is of. Begins with the first batch."""
        self._check_process()
        return FeedIterator(self)

    def __bool__(self) -> bool:
        """A feed is true, also where its length is not known, which ``bool`` would ask for."""
        return True

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
        return run.epoch if run is not None and run.live else self._next.epoch

    def set_epoch(self, epoch: int) -> None:
        """Makes this the number of the next epoch, for trainers that count epochs themselves.

        A loaded state that is of this epoch stays loaded, and an iteration of it that runs continues: it is the one
        that the trainer means, when it has asked for batches ahead. Otherwise the state is the beginning of the epoch,
        unless an iteration of another one still runs.

        Args:
            epoch: From 0 on.
        """
        epoch = arguments.integer("epoch", epoch, least=0)
        run = self._run
        if run is not None and run.live and run.epoch == epoch:
            return
        if epoch != self._next.epoch:
            self._next = EpochPlace(epoch)
        if run is not None and not run.live:
            self._run = None

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
        place, even = self._beginning(), self._division.even
        steps, part = self._known_steps(), self.dataset
        if place.begun_by:
            steps, part = None, self._division.part(self._whole, self._rank(), begun_by=place.begun_by)
        votes = even is not None and steps is None and self._processes() > 1
        if steps == INFINITE_CARDINALITY:
            steps = None
        least = self._least() if votes else None
        own = OwnBatches(self._as_written(part), self._whole, place, even)
        self._run = Run(own, place, steps=steps, even=even, least=least, hand=self._hand(), kept=self._kept)
        self._next = EpochPlace(place.epoch + 1)
        return self._run

    def _beginning(self) -> EpochPlace:
        """Where the next iteration begins: once more where the one before it did, if it is known to be unused.

        A trainer may ask one iterator ahead, and then take another one.
        """
        run = self._run
        if self._kept and run is not None and run.is_unused and self._next == EpochPlace(run.epoch + 1):
            return run.place()
        return self._next

    # --- state -----------------------------------------------------------------------------------------------------

    def commit(self, step: int | None = None) -> None:
        """Says which batches were used: from now on in this epoch, `state_dict` means the state after these.

        Only a trainer that asks for batches before it uses them needs it.

        Args:
            step: Batches of the epoch that were used; None: one more than before.

        Raises:
            ValueError: So many were not handed out, or more were committed before.
        """
        step = None if step is None else arguments.integer("step", step, least=0)
        if self._run is None:
            raise ValueError("nothing can be committed: no batch was handed out")
        self._run.commit(step)

    def look_ahead(self) -> None:
        """Reads up to the next batch: if there is none, the epoch is over, as if the loop had asked for it.

        Then a state that is taken inside the loop after the last batch means the beginning of the next epoch. An
        error is raised when the batch is asked for.
        """
        if self._run is not None:
            self._run.look_ahead()

    def state_dict(self) -> dict[str, Any]:
        """Where the training is: after the batches that were handed out, or those that were committed.

        It is JSON-serializable. Each rank has a state of its own. After the last batch of an epoch it means the end of
        that epoch; once the loop over the epoch has ended it means the beginning of the next one.

        Raises:
            StateError: No state describes the position, see `PipelineIterator.state_dict`.
        """
        return self._state(self._place())

    def _place(self) -> EpochPlace:
        run = self._run
        return self._next if run is None or run.is_used_up else run.place()

    def _state(self, place: EpochPlace) -> dict[str, Any]:
        mine = self._rank()
        return {
            "version": VERSION,
            "epoch": place.epoch,
            "steps": place.steps,
            "turn": place.turn,
            "rank": mine.rank,
            "world": mine.world,
            "begun_by": place.begun_by,
            "agreed": None if place.agreed is None else list(place.agreed),
            "pipeline": place.pipeline,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration gives the batches that the state has left of its epoch, later ones the epochs after it.

        Does nothing if a callback keeps the feed's position, because then the callback loads it.

        Args:
            state: Of `state_dict` of the same rank of as many ranks, in this or another process.

        Raises:
            StateError: It is none, or of another rank. What does not fit the dataset is an error when the iteration
                begins.
        """
        if not self._kept:
            self._load([state])

    def _load(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Begins where this rank's state is, or with this rank's part of what all ranks have left."""
        state = state_of(states, self._rank())
        self._run = None
        agreed = None if state.get("agreed") is None else Agreed(*state["agreed"])
        pipeline, begun_by = state.get("pipeline"), state["begun_by"]
        self._next = EpochPlace(state["epoch"], state["steps"], state["turn"], pipeline, begun_by, agreed)

    def all_ranks(self) -> AllRanks:
        """The position of all ranks together, for checkpoints of which one rank writes all.

        Its ``state_dict()`` contains the states of all ranks, and must be called by all of them. Its
        ``load_state_dict(state)`` loads this rank's own; if there is another number of ranks than before, the rest of
        the epoch is divided among them, see `asyncdata.state.split`.
        """
        return AllRanks(self)

    def _gather(self, state: dict[str, Any]) -> list[dict[str, Any]]:
        """The states of all ranks; every rank calls it."""
        raise PipelineError(
            f"rank {state['rank']} cannot ask the others for their states with {type(self).__name__}: save one of each"
        )

    def close(self) -> None:
        """Ends the iteration that runs, and waits for it; the state stays. A loop that is left ends by itself."""
        if self._run is not None:
            self._run.close()

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: where this one is, and not what runs here."""
        place = self._next
        with contextlib.suppress(StateError):  # no state describes it: the next epoch is as near as one comes
            place = self._place()
        return {**vars(self), "_next": place, **dict.fromkeys(self.stays_here)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begins = threading.RLock()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._whole!r}, epoch {self.epoch}>"


class FeedIterator(Iterator[Any]):
    """One epoch of a feed. When nobody refers to it any more, its pipeline ends, and the feed keeps its state.

    Several threads may share it: each batch goes to one of them.
    """

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._run: Run | None = None
        self._lock = threading.RLock()  # a handler of signals may ask in the middle of anything

    def __next__(self) -> Any:
        run, batch = None, END
        try:
            with self._lock:
                run = self._run
                if run is None:
                    with self._feed._begins:  # noqa: SLF001 -- the two are one
                        run = self._run = self._feed._begin()  # noqa: SLF001 -- as above
                    weakref.finalize(self, run.abandon).atexit = False
                try:
                    batch = END if run.ended else run.next()
                except BaseException as error:
                    # Interrupted at any step, it cannot say any more which batch is the next one; what was handed out
                    # it can.
                    run.fail(error)
                    raise
        except BaseException as error:
            if run is not None and batch is not END:  # nobody gets it
                run.handed -= 1
                run.fail(error)
            raise
        if batch is END:
            raise StopIteration
        return batch


class AllRanks:
    """See `Feed.all_ranks`."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def state_dict(self) -> dict[str, Any]:
        """The states of all ranks, JSON-serializable. Every rank must call it."""
        feed = self._feed
        own = feed.state_dict()
        return {"version": VERSION, "ranks": feed._gather(own) if feed._processes() > 1 else [own]}  # noqa: SLF001 -- a view of it

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where the ranks were.

        Args:
            state: Of `state_dict`, of any number of ranks.

        Raises:
            StateError: It is none, or the pipeline does not allow another number of ranks.
        """
        given: Any = state  # it comes from a file, so it may be anything
        ranks = given.get("ranks") if isinstance(given, Mapping) else None
        if not isinstance(ranks, list):
            raise StateError("this is not a state of all ranks; one of a single rank belongs to the feed itself")
        self._feed._load(ranks)  # noqa: SLF001 -- a view of it


class UsedBatches(AllRanks):
    """The position of a feed as a callback keeps it: after the batches of whole optimizer steps.

    From now on the feed's state means what is committed here, and the callback is who loads it.

    Attributes:
        unused: Batches that were trained on and have not changed the model yet.
    """

    def __init__(self, feed: Feed) -> None:
        arguments.instance("batches", feed, Feed, "a feed, such as asyncdata.feed.torch(ds)")
        super().__init__(feed)
        feed._kept = True  # noqa: SLF001 -- a part of it
        self.unused = 0

    def begin_epoch(self) -> None:
        """Gradients of an optimizer step that was not taken are forgotten."""
        self.unused = 0

    def end_epoch(self, epoch: int | None = None) -> None:
        """The trainer takes no more batches of this epoch: the position is the beginning of the next one.

        Args:
            epoch: Its number; None: the one whose batches were asked for last.
        """
        run = self._feed._run  # noqa: SLF001 -- as above
        if run is not None and epoch in (None, run.epoch):
            self.unused = 0
            run.finish()

    def trained(self, *, stepped: bool) -> None:
        """A batch was trained on.

        Args:
            stepped: The optimizer has used its gradients, and those of the batches before.
        """
        self.unused += 1
        if stepped:
            for _ in range(self.unused):
                self._feed.commit()
            self.unused = 0
