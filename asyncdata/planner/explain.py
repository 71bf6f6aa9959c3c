"""Says what becomes of a plan, without running it. Pure.

Which steps are joined, where each one runs and why, what memory it reserves, and what a resume repeats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from asyncdata.arguments import is_async_generator
from asyncdata.observe.table import as_html
from asyncdata.options import AUTOTUNE, Options, merged
from asyncdata.plan import combining, files, grouping, sequence, sources, transformations
from asyncdata.plan.label import label_of, steps_of
from asyncdata.plan.node import Node, numbered, walk
from asyncdata.plan.transformations import Interleave, Map, MapBatch, Shuffle
from asyncdata.planner.autotune import CALLS
from asyncdata.planner.fuse import joined_name
from asyncdata.planner.picking import is_pickable
from asyncdata.planner.rules import rewrite
from asyncdata.planner.sizes import current_shards, divide, worker_stages
from asyncdata.planner.unordered import unordered_part
from asyncdata.wording import grouped

HEAD: Final = ("step", "runs", "because", "reserves", "a resume repeats")

_POOLS: Final = {"process": "in worker processes", "thread": "in threads"}
_ON_LOOP: Final = "on the stage loop"
_EITHER: Final = "on the stage loop, or in workers"
_FILES: Final = (sources.TFRecordFile, files.FramedFile, files.WholeFile, files.TarSamples)

EVERYTHING: Final = "everything before it, from the beginning of the epoch"
NOTHING: Final = "nothing"
_OUTPUTS: Final = "about 1,024 elements"
_INNER_OUTPUTS: Final = f"{_OUTPUTS}, of small datasets that read no files about 32"
_WITHOUT_COUNT: Final = ("process", "thread")
"""Executors whose calls `AUTOTUNE` counts if nobody else does."""

_REPEATS: Final[tuple[tuple[tuple[type[Node], ...], str], ...]] = (
    (
        (sequence.Unique, grouping.GroupByWindow, grouping.Cache, grouping.Snapshot, grouping.StoredFile),
        EVERYTHING,
    ),
    (
        (
            *(transformations.Filter, sequence.Scan, sequence.TakeWhile, grouping.Unbatch, transformations.Interleave),
            *(combining.Concatenate, transformations.Repeat, combining.SampleFrom, combining.ChooseFrom),
            sequence.RejectionResample,
        ),
        _OUTPUTS,
    ),
    ((files.ParquetRows,), "the row group"),
    (_FILES, "up to 1,024 elements or 256 KiB"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """One step as it will run.

    Attributes:
        name: The step, as errors and statistics name it.
        runs: Where its work is done.
        because: Why there, or what was joined; empty where there was no choice.
        reserved_bytes: Memory that no other step may take for long.
        repeats: What is done again when an iteration is resumed.
        inputs: Places of its inputs in ``Explanation.steps``.
    """

    name: str
    runs: str
    because: str
    reserved_bytes: int
    repeats: str
    inputs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A plan as written and as it will run. ``str()`` is the text; notebooks show a table.

    Attributes:
        written: The steps as written, in one line.
        steps: The steps as they will run, sources first. What `interleave` or `flat_map` opens for an element is
            planned when that element is there.
        order: What is said about the order of elements, and about states.
        consumer_bytes: Memory that is reserved for the elements that the consumer holds.
        limit_bytes: The memory limit.
        isolate: Whether all of it runs in a loader process, where "threads" and "loops" are those of that process.
    """

    written: str
    steps: tuple[PlannedStep, ...]
    order: str
    consumer_bytes: int
    limit_bytes: int
    isolate: bool = False

    @property
    def reserved_bytes(self) -> int:
        """Memory that is reserved at least. The rest of the limit is for whoever can use it: mainly read-ahead."""
        return self.consumer_bytes + sum(step.reserved_bytes for step in self.steps)

    def __str__(self) -> str:
        lines = [f"Written: {self.written}", "Runs:"]
        for number, step in enumerate(self.steps):
            reads = (
                "" if step.inputs in ((), (number - 1,)) else f" of steps {', '.join(str(i + 1) for i in step.inputs)}"
            )
            because = f" ({step.because})" if step.because else ""
            lines.append(f"{number + 1:3}. {step.name}{reads}")
            lines.append(f"     runs {step.runs}{because}")
            if step.reserved_bytes:
                lines.append(f"     reserves {_mib(step.reserved_bytes)}")
            if step.repeats != NOTHING:
                lines.append(f"     a resume repeats {step.repeats}")
        return "\n".join([*lines, *self._totals()])

    def _repr_html_(self) -> str:
        rows = [
            [step.name, step.runs, step.because, _mib(step.reserved_bytes) if step.reserved_bytes else "", step.repeats]
            for step in self.steps
        ]
        return as_html(HEAD, rows, " ".join(self._totals()))

    def _totals(self) -> list[str]:
        reserved, limit, consumer = map(_mib, (self.reserved_bytes, self.limit_bytes, self.consumer_bytes))
        memory = f"Memory: {reserved} of {limit} are reserved, {consumer} of these for the consumer."
        isolated = ["Isolated: all steps run in a loader process, because of isolate=True."] if self.isolate else []
        return [memory, self.order, *isolated]


def explain(plan: Node, options: Options, *, limit_bytes: int) -> Explanation:
    """Says what will be made of a plan.

    Args:
        plan: The last step, as written.
        options: In force for it.
        limit_bytes: The part of their memory limit that the pipeline may use.

    Raises:
        PipelineError: The plan cannot run.
        MemoryLimitError: It cannot run within the memory limit.
    """
    run = rewrite(plan, options)
    written = {id(node.function): node for node in walk(plan) if isinstance(node, Map)}
    parts = max(1, options.memory_limit_bytes // limit_bytes)
    own = merged(Options(memory_limit_bytes=limit_bytes), options)
    shares = divide(own, current_shards=current_shards(run), worker_stages=worker_stages(run), parts=parts)
    steps = []
    for node, inputs in numbered(run, (transformations.WithOptions,)):
        runs, because = _place(node, written, options)
        reserved = 0
        if isinstance(node, MapBatch | grouping.PaddedBatch | grouping.RaggedBatch | transformations.Batch) or (
            isinstance(node, Map) and node.executor in (*_POOLS, "either")
        ):
            reserved = shares.task_bytes
        elif isinstance(node, (Interleave, *_FILES)):
            reserved = shares.far_chunk_bytes * getattr(node, "cycle_length", 1)
        steps.append(
            PlannedStep(
                name=joined_name(node) if isinstance(node, MapBatch) else label_of(node),
                runs=runs,
                because=because,
                reserved_bytes=reserved,
                repeats=repeats(node),
                inputs=tuple(inputs),
            )
        )
    return Explanation(
        written=steps_of(plan),
        steps=tuple(steps),
        order=_order(run, options),
        consumer_bytes=shares.consumer_bytes,
        limit_bytes=limit_bytes,
        isolate=options.isolate,
    )


def repeats(node: Node) -> str:
    """What a step does again when an iteration is resumed behind it."""
    if isinstance(node, Shuffle):
        buffer = f"the {grouped(node.buffer_size, 'element')} in the buffer"
        lies = is_pickable(node.input)
        again = f"{buffer}, from where they lie," if lies else f"its input from the oldest of {buffer} on,"
        return f"{again} and up to 1,024 draws"
    if isinstance(node, sources.Generator):
        return EVERYTHING if node.set_state is None else f"at most {grouped(node.state_every, 'element')}"
    if getattr(node, "compression", None):
        return "the file, from its beginning"
    if isinstance(node, Interleave) and node.reader is None:
        return _INNER_OUTPUTS
    return next((text for kinds, text in _REPEATS if isinstance(node, kinds)), NOTHING)


def _place(node: Node, written: dict[int, Map], options: Options) -> tuple[str, str]:
    """Where a step runs, and why."""
    if isinstance(node, MapBatch):
        why = _why(written[id(node.functions[0])], node.executor, options)
        return _POOLS.get(str(node.executor), _ON_LOOP), f"joined: tasks write the finished batch; {why}"
    if isinstance(node, Map):
        where = {
            **_POOLS,
            "async": "as coroutines on the stage loop",
            "vectorized": f"{_ON_LOOP}, a block at a time",
            "either": _EITHER,
        }
        why = _why(written[id(node.function)], node.executor, options)
        return where.get(str(node.executor), _ON_LOOP), why
    if isinstance(node, transformations.Prefetch) and node.buffer_size == AUTOTUNE:
        return _ON_LOOP, "AUTOTUNE finds how many elements"
    if isinstance(node, sources.Generator):
        return ("as a coroutine on the stage loop" if is_async_generator(node.function) else "in a thread"), ""
    if isinstance(node, (*_FILES, files.ParquetRows)):
        work = _work_of_thread(node)
        return f"on the I/O loop and {f'in a thread per file, which {work}' if work else 'the stage loop'}", ""
    if isinstance(node, (sources.ListFiles, sources.ManifestFile)):
        return "on the I/O loop and the stage loop", ""
    if isinstance(node, Interleave) and node.reader is not None:
        return _ON_LOOP, f"its files: {_place(node.reader, written, options)[0]}"
    return _ON_LOOP, ""


def _work_of_thread(node: Node) -> str:
    """What a thread does for each file; empty if there is none."""
    if isinstance(node, files.ParquetRows):
        return "decodes"
    parses = isinstance(node, files.FramedFile) and getattr(node.framer, "in_thread", False) is True
    return " and ".join(["decompresses"] * bool(getattr(node, "compression", None)) + ["parses"] * parses)


def _why(node: Map, executor: str | None, options: Options) -> str:
    """Why the planner has chosen this executor for a step."""
    found = node.parallelism == AUTOTUNE
    if executor == "async":
        return "its function is async" + f"; AUTOTUNE begins with {CALLS.first} calls at a time" * found
    if executor == "thread" and options.num_workers == 0:
        return "num_workers=0: threads take the place of worker processes"
    if node.executor is not None:
        counted = found or (node.parallelism is None and node.executor in _WITHOUT_COUNT)
        return f"executor={node.executor!r} is given" + "; AUTOTUNE finds how many calls at a time" * counted
    if executor == "either":
        light = "on the loop, where a record costs least, and moves if the loop is the bottleneck"
        heavy = "in workers, because a record has many values, and moves if the loop has room for them"
        return f"AUTOTUNE begins {light if getattr(node.function, 'light', False) else heavy}"
    if executor == "process":
        return "num_parallel_calls is given" + "; AUTOTUNE begins with two tasks per worker" * found
    return "num_parallel_calls is not given"


def _order(plan: Node, options: Options) -> str:
    part = unordered_part(plan, deterministic=options.deterministic)
    if part.refused is not None:
        return f"Order: as elements are ready. No state can be taken: {part.refused}."
    if part.causes:
        return (
            f"Order: {', '.join(part.causes)} passes elements on as they are ready; a state says which were delivered."
        )
    return "Order: the same in every run with the same seed."


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):,.1f} MiB"
