"""Which part of a dataset this process reads: its rank, the number of processes, and the shard that follows.

Where devices of several processes hold parts of one array, a rank follows from the rows that they hold. Processes whose
devices hold copies of the same rows, as replicas of a model that is divided do, need the same data.

    devices   0 1 │ 2 3     process 0 │ process 1
    P("d")    a b │ c d     ranks 0 and 1 of 2
    P(None)   a a │ a a     rank 0 of 1, twice
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from asyncdata import arguments
from asyncdata.dataset.answers import count, options_in_force
from asyncdata.dataset.dataset import Dataset
from asyncdata.dataset.handles import node_of
from asyncdata.errors import PipelineError, StateError
from asyncdata.options import Environment
from asyncdata.plan.label import label_of
from asyncdata.plan.node import UNKNOWN_CARDINALITY, Node, walk
from asyncdata.plan.sequence import Shard
from asyncdata.planner.cardinality import most
from asyncdata.planner.fingerprint import drawn_seeds
from asyncdata.planner.rank_shard import read_apart, shard_of, sharded
from asyncdata.planner.sharing import readers_of

Even: TypeAlias = Literal["drop", "repeat", "pad", "agree"]

EVEN: Final = ("drop", "repeat", "pad", "agree", None)


class Rank(NamedTuple):
    """This process among those that train together."""

    rank: int
    world: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """How a dataset is divided among processes, as the user wants it.

    Attributes:
        rank: Number of this process; None: as the framework or the environment says.
        world: How many processes there are; None likewise.
        shard: Whether the feed shards the dataset; False: it is sharded already, or every process reads all of it.
        even: What makes all processes take the same number of steps; None: nothing does.
    """

    rank: int | None
    world: int | None
    shard: bool
    even: Even | None

    def __post_init__(self) -> None:
        arguments.flag("shard", self.shard, strict=True)
        arguments.choice("even", self.even, EVEN)
        if (self.rank is None) != (self.world is None):
            raise ValueError("give both rank and world, or neither")
        if self.rank is not None and self.world is not None:
            mine = _checked(self.rank, self.world, "the arguments")
            object.__setattr__(self, "rank", mine.rank)
            object.__setattr__(self, "world", mine.world)

    def find(self, distributed: tuple[int, int] | None, environment: Environment) -> Rank:
        """This process's rank: by the arguments, else by the framework if it knows, else by the environment.

        Args:
            distributed: Rank and number of processes as the framework knows them.
            environment: As it is now.
        """
        if self.rank is not None and self.world is not None:
            return Rank(self.rank, self.world)
        if distributed is not None:
            return Rank(*distributed)
        rank, world = environment.rank, environment.world
        if rank is None and world in {None, "1"}:
            return Rank(0, 1)
        if rank is None or world is None:
            there, missing = ("RANK", "WORLD_SIZE") if world is None else ("WORLD_SIZE", "RANK")
            raise ValueError(
                f"the environment has {there}={rank or world!r} and no {missing}, so this process cannot tell which "
                f"part of the dataset is its own: set both, or give rank= and world="
            )
        if not (rank.isdecimal() and world.isdecimal()):
            raise ValueError(f"RANK={rank!r} and WORLD_SIZE={world!r} in the environment must be numbers")
        return _checked(int(rank), int(world), "the environment (RANK, WORLD_SIZE)")

    def part(self, dataset: Dataset, mine: Rank, *, begun_by: int = 0) -> Dataset:
        """What this process reads.

        A single process reads a shard, too, if the states of the dataset can be divided: several may resume from them.

        Args:
            dataset: The whole.
            mine: This process.
            begun_by: How many processes have divided the epoch before these ones; 0: none have.

        Raises:
            PipelineError: The dataset is sharded already.
            StateError: The processes before these have divided it into too few parts.
        """
        plan = node_of("dataset", dataset)
        shard = shard_of(plan)
        if not self.shard:
            return Dataset(read_apart(plan)) if shard and mine.world > 1 and drawn_seeds(plan) else dataset
        if shard:
            if mine.world == 1:
                return dataset
            raise PipelineError(
                f"the dataset is sharded twice: by its own {shard}, and by the feed for rank {mine.rank} of "
                f"{mine.world}. Leave one of them out: shard=False keeps the dataset as it is"
            )
        # The elements of a single file can be divided, and the file cannot.
        placed_for = max(begun_by or mine.world, 2)
        made = sharded(plan, mine.world, mine.rank, placed_for=placed_for)
        if begun_by:
            _check_parts(made, mine, begun_by)
        elif mine.world == 1 and not _is_dividable(made):
            return dataset
        return Dataset(made)

    def counts(self, dataset: Dataset, mine: Rank) -> tuple[int, int]:
        """The most and the least steps that a rank has, as cardinalities."""
        plan = node_of("dataset", dataset)
        if mine.world > 1 and not self.shard:
            return UNKNOWN_CARDINALITY, UNKNOWN_CARDINALITY
        if mine.world == 1:
            return (count(plan),) * 2
        # What one rank has more than another lies with the ranks in front.
        return count(sharded(plan, mine.world, 0)), count(sharded(plan, mine.world, mine.world - 1))


def _is_dividable(plan: Node) -> bool:
    """Whether other readers can resume from the states of a plan."""
    return readers_of(plan, deterministic=options_in_force(plan).deterministic).shard is not None


def _check_parts(plan: Node, mine: Rank, begun_by: int) -> None:
    shard = next(node for node in walk(plan) if isinstance(node, Shard))
    parts = most(shard.input)
    if 0 <= parts < mine.world:
        raise StateError(
            f"the epoch was begun by {begun_by} ranks, which have divided the {parts} elements of "
            f"{label_of(shard.input)}: until its end there can be {parts} ranks at most, and there are {mine.world}. "
            "set_epoch(n) begins another epoch"
        )


def _checked(rank: int, world: int, where: str) -> Rank:
    world = arguments.integer("world", world, least=1)
    rank = arguments.integer("rank", rank, least=0)
    if rank >= world:
        raise ValueError(f"rank {rank} of {world} processes, as {where} say, does not exist: ranks begin with 0")
    return Rank(rank, world)


# --- rows of devices ---------------------------------------------------------------------------------------------

Rows: TypeAlias = frozenset[tuple[int, int]]
"""Intervals of rows, one for each part into which they are cut."""


class Share(NamedTuple):
    """What a process has of the rows of every batch.

    Attributes:
        rank: Its place among those that need different rows.
        world: How many of these there are.
        parts: Into how many parts its own rows are cut.
    """

    rank: int
    world: int
    parts: int


def share_of(process: int, rows_of: Mapping[int, Iterable[tuple[int, int]]]) -> Share:
    """The share of a process.

    Args:
        process: Its number.
        rows_of: The intervals that the devices of each process hold, of any number of rows that divides evenly.

    Raises:
        PipelineError: Rows of this process are cut in another way elsewhere.
    """
    rows: dict[int, Rows] = {number: frozenset(intervals) for number, intervals in rows_of.items()}
    different = sorted(set(rows.values()), key=min)
    whole = frozenset().union(*different)
    if sum(map(len, different)) != len(whole) or len({len(each) for each in different}) > 1:
        raise PipelineError(
            "the sharding gives processes rows that overlap in part: each process must have the same rows as another "
            "one or none in common, and all of them as many"
        )
    if process not in rows:
        raise PipelineError(f"the sharding has no device of this process ({process}), so it has no rows of a batch")
    return Share(different.index(rows[process]), len(different), len(rows[process]))
