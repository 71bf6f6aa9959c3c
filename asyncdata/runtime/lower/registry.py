"""Maps nodes to their stages, and contains what every lowering needs from its scope."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from asyncdata.errors import PipelineError, StateError
from asyncdata.memory.accounts import Account
from asyncdata.memory.advance import Rows, State
from asyncdata.options import merged_storage
from asyncdata.plan.combining import Zip
from asyncdata.plan.label import label_of
from asyncdata.plan.node import Node, drawing_seeds
from asyncdata.plan.sequence import Enumerate, Shard
from asyncdata.plan.transformations import Filter, Interleave, Map, Prefetch, Repeat, Shuffle, Skip, Take, WithOptions
from asyncdata.planner.alike import are_alike
from asyncdata.planner.picking import (
    JOINING,
    file_of,
    gives_again,
    has_step,
    is_pickable,
    keeps_bytes,
    maps_of,
    may_lose,
    picked,
    reads_bytes,
    reads_objects,
    source_of,
    tells_apart,
)
from asyncdata.planner.rules import rewrite
from asyncdata.planner.shards import drawn_anew
from asyncdata.planner.unordered import UnorderedPart, unordered_part
from asyncdata.runtime.randomness import stage_key
from asyncdata.runtime.reading.source_table import LyingFiles, SourceTable
from asyncdata.runtime.scope import Scope
from asyncdata.runtime.settings import idle_inside, storage_before
from asyncdata.runtime.stage import Stage, StageContext
from asyncdata.runtime.stages.order.inputs import HandingOver
from asyncdata.runtime.state.places import Places
from asyncdata.runtime.state.restored import DropStage, KeepStage, Pick, TrackedStage
from asyncdata.runtime.state.resume import BEGIN, Resume, Rule, check_counts, checked, in_turn, loose
from asyncdata.runtime.state.tracks import WHOLE, Owner, Track
from asyncdata.types import Element

N = TypeVar("N", bound=Node)

Make: TypeAlias = Callable[[N, Scope, StageContext], Stage]
"""Makes the stage of a node, with everything upstream of it."""

_STEPS_IN_PLACE: Final = (Filter, Repeat, Shard, Shuffle, Skip, Take, WithOptions)

_ROW_FOR_ROW: Final = (Map, Prefetch, WithOptions)
"""Steps that make each element of one, and count none."""

_AN_ELEMENT: Final = 2
"""Numbers by which a scope knows an element that a dataset was made of."""

_LOWERINGS: dict[type[Node], tuple[Make[Any], Callable[[Any], str], Rule]] = {}


def lowers(kind: type[N], label: Callable[[N], str] = label_of, *, resumes: Rule) -> Callable[[Make[N]], Make[N]]:
    """Says how nodes of one kind become stages, what these are called, and how they are brought back to a state."""

    def register(make: Make[N]) -> Make[N]:
        _LOWERINGS[kind] = make, label, resumes
        return make

    return register


def rule_of(node: Node) -> Rule:
    """How the stage of a node is brought back to a state."""
    return _LOWERINGS[type(node)][2]


def lower(node: Node, scope: Scope) -> Stage:
    """The stage that runs a node, with everything upstream of it."""
    found = _LOWERINGS.get(type(node))
    if found is None:
        raise PipelineError(f"there is no stage for {node.label}")
    if scope.within is not None and id(node) not in _part(scope).steps:
        stage = _tracked(node, scope._replace(kept=None), begin_track(node, scope))
        # The track counts those that are left out, too.
        return stage if scope.kept is None else KeepStage(stage.context, stage, scope.kept)
    if scope.sub_index:
        stage = lower(node, scope._replace(sub_index=0))
        stage.sub_index ^= scope.sub_index
        return stage
    kept = scope.kept
    if node.inputs or kept is not None:  # of files there may be very many
        scope = scope._replace(behind_inputs=scope.behind.before(node), kept=None)
    make, label, resumes = found
    # A step that opens many files is one step where failures are counted.
    step = node.written if hasattr(node, "url") else label(node)
    context = scope.context(label(node), step, getattr(node, "deterministic", None), node=node)
    if scope.state is not None:
        # Where elements may be left out; and tracks of datasets that are not made again would never end.
        is_loose = scope.errors is not None or (resumes is in_turn and scope.within is not None)
        rule = loose(resumes) if is_loose else resumes
        with as_state_error(context):
            check_counts(scope.state.mark)
            scope = scope._replace(resume=checked(rule(node, scope.state)))
    # Where tracks count, `zip` counts what is left out, too.
    if kept is not None and keeps_below(node) and not (scope.resume.drop or (scope.within and isinstance(node, Zip))):
        scope, kept = scope._replace(kept=kept), None
    stage = make(node, scope, context)
    if stage.meter is None:
        stage.meter = context.meter
        stage.meter.alive.begin()
    else:
        # The stage of its input, which does all there is to do.
        scope.services.meters[scope.place] = stage.meter
    if scope.resume.mark is not None:
        with as_state_error(context):
            stage.restore(scope.resume.mark)
    stage = DropStage(context, stage, scope.resume.drop) if scope.resume.drop else stage
    return stage if kept is None else KeepStage(context, stage, kept)


def keeps_below(node: Node) -> bool:
    """Whether rows of a step can be left out in front of functions, which are not called for them then."""
    return isinstance(node, _ROW_FOR_ROW) or (isinstance(node, Zip) and any(map(keeps_below, node.inputs)))


def _part(scope: Scope) -> UnorderedPart:
    assert scope.part is not None
    return scope.part


def _tracked(node: Node, scope: Scope, track: Track | None, *, is_dataset: bool = False) -> Stage:
    """The stage of an ordered input of the unordered part, which may be a whole inner dataset."""
    assert track is not None
    saved, in_order = track.saved, scope.services.tracks.in_order
    position, state = saved.first, saved.state
    if scope.state is not None:
        position, state = TrackedStage.begin(scope.state)
    inside = scope._replace(within=None, state=state)
    # What readers have together is divided by the marks that are in front of it.
    # An element that comes several times has one place and several positions.
    unknown = in_order or has_step(node, Enumerate, Shard) or gives_again(node)
    pick = None if unknown else picker(node, inside, lower)
    left = None
    if track.left is not None:
        if pick is None:
            raise StateError(
                "elements that are left are read from where they lie in files, which is not possible with "
                "on_change='restart', nor for what a function makes of them under an error policy",
                stage=label_of(node),
            )
        left = pick.read(track.left)
    # Where nothing is behind what was read there is no state of the input, either.
    stage = None if saved.first == saved.total else lower(node, inside)
    context = scope.context(node.written, node.written, node=node) if stage is None else stage.context
    bare = is_dataset and _is_bare(node)
    return TrackedStage(context, stage, track, position, in_order=in_order, pick=pick, left=left, bare=bare)


def picker(node: Node, scope: Scope, lower_rows: Callable[[Node, Scope], Stage]) -> Pick | None:
    """How elements of a dataset are read by themselves; None where they cannot be.

    They cannot where what `map` makes of a row may be left out because it fails, and where files that were replaced are
    read again.
    """
    loses = may_lose(node, errors=scope.errors is not None)
    # Elements that `enumerate` counts have tracks of their own, which would be told of them again.
    counted_twice = scope.within is not None and has_step(node, Enumerate)
    if loses or counted_twice or scope.services.options.on_change != "raise" or not is_pickable(node):
        return None
    # The rows have been given their positions and sub-indices before.
    anew = scope._replace(resume=BEGIN, state=None, within=None, sub_index=0)

    def read(places: Places) -> Stage:
        return lower_rows(picked(node, places), anew)

    return Pick(
        read,
        lying_files(node, scope),
        is_sized=not has_step(node, Map) and keeps_bytes(node),
        is_whole=reads_objects(node),
        is_numbered=has_step(node, Enumerate),
        is_told_apart=tells_apart(node),
    )


def lying_files(node: Node, scope: Scope) -> list[LyingFiles]:
    """The files whose elements can be read by themselves, of which there are more as files are opened."""
    source: Any = source_of(node)
    if isinstance(source, JOINING):
        parts = [lying_files(each, branch(scope, number)) for number, each in enumerate(source.datasets)]
        return list({id(files): files for part in parts for files in part}.values())
    note_lying(source, scope)
    # Files of datasets inside those that `interleave` reads are not found again by their names.
    depth = len(scope.element) + (_AN_ELEMENT if isinstance(source, Interleave) else 0)
    return [scope.services.sources.lying[depth]]


def note_lying(node: Node, scope: Scope) -> None:
    """Enters the file of a dataset, if its elements can be read by themselves, as those of the files around are.

    What functions make of them must be the same for all these files, and none of it may be left out.
    """
    file: Any = file_of(node)
    if file is None or has_step(node, Enumerate, WithOptions):
        return
    maps, lying = maps_of(node), scope.services.sources.lying[len(scope.element)]
    if may_lose(node, errors=scope.errors is not None) or any(each.rng for each in maps):
        return
    if are_alike(lying.maps.setdefault(scope.place, maps), maps):
        number = SourceTable.number(scope.element, file.url)
        lying.numbers.add(number)
        if gives_again(node):
            lying.again.add(number)


def _is_bare(node: Node) -> bool:
    """Whether the elements of a dataset are those of a file, each as it is."""
    return file_of(node) is not None and not has_step(node, Enumerate, Map, WithOptions)


def begin_track(node: Node, scope: Scope) -> Track | None:
    """The track of an input of the unordered part, or of a step of it that counts; None where there is none."""
    if scope.within is None:
        return None
    return scope.services.tracks.begin(scope.within, _part(scope).numbers[id(node)])


def inside(track: Track | None, position: int = WHOLE) -> Owner | None:
    """What the inputs of a step that counts belong to."""
    return None if track is None else Owner(track.number, position)


@contextlib.contextmanager
def as_state_error(context: StageContext) -> Generator[None]:
    """Makes errors of one kind, which name the step, of those that a changed or truncated state causes."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, StateError):
            raise
        raise StateError(
            f"the state is damaged: this step cannot begin at it ({type(error).__name__}: {error})", stage=context.label
        ) from error


def resumed(rule: Rule, node: Node, states: Sequence[State | None], make: Callable[[Resume], Stage]) -> Stage:
    """A stage that is not the last one of its node, and writes no marks, brought back to the first of these states."""
    resume = rule(node, states[0]) if states and states[0] is not None else BEGIN
    stage = make(resume)
    return DropStage(stage.context, stage, resume.drop) if resume.drop else stage


def lower_inner(node: Node, scope: Scope) -> Stage:
    """The stage of an inner dataset, a plan that a function made of an element, from the scope's state on."""
    services = scope.services
    # A file has an order of its own; `from_manifest`, which has a URL too, draws one.
    is_file = not node.inputs and hasattr(node, "url") and not node.draws
    if scope.within is None:
        if is_file or not (node.inputs or scope.behind.shard):
            return lower(node, scope)  # there may be very many, and there is nothing to rewrite
    elif is_file:
        return _tracked(node, scope, services.tracks.begin(scope.within, 0), is_dataset=True)
    services.runtime.idle_options.warn(idle_inside(node, services.settings))
    # Seeds that its steps drew follow from the seed of the pipeline.
    scope = scope._replace(behind=scope.behind._replace(redrawn=True))
    plan = rewrite(node, services.options, scope.behind)
    if scope.within is not None:
        part = unordered_part(plan, deterministic=scope.ordered, is_inner=True)
        if part.refused is not None:
            services.tracks.refuse(part.refused)
        if (drawn := drawn_anew(plan, services.options)) is not None:
            services.tracks.bind(
                f"{label_of(drawn)} of an inner dataset draws its order without a seed. Give it a seed, or set "
                "Options(seed=...)"
            )
        if not part.steps:
            return _tracked(plan, scope, services.tracks.begin(scope.within, part.numbers[id(plan)]), is_dataset=True)
        scope = scope._replace(part=part, within=scope.within if part.refused is None else None)
    return lower(plan, scope)


def made_inside(function: Callable[[Element, Rows], Node], element: Element, origin: Rows, scope: Scope) -> Node:
    """The plan that a function makes of an element; orders that it draws follow from the pipeline's seed.

    So they are the same when the pipeline is brought back to a state in front of the element.
    """
    place = (*scope.epoch, *scope.element, *origin.tolist())
    numbers = itertools.count()
    with drawing_seeds(lambda: stage_key(scope.seed, f"inner {next(numbers)}", place)[0] >> 1):
        return function(element, origin)


def around_inner(node: Node, scope: Scope) -> Scope:
    """The scope for inner datasets of this node: what the steps before it say about storage counts there, too."""
    storage = merged_storage(storage_before(node), scope.storage_else)
    # The step passes on what they deliver, whatever it does with its input.
    return scope._replace(storage_else=storage, behind_inputs=scope.behind)


def draw_key(node: Any, scope: Scope, seed: int | None, *, fresh: bool, order: bool = True) -> tuple[int, int]:
    """The key of a step's random draws.

    Steps are set apart by how many before them draw, counted from the source, which nothing downstream changes. So two
    shuffles with one seed, each the first of its branch, make the same moves: what is zipped stays paired. Without a
    seed of their own branches differ. An order that stays is the same wherever its dataset is iterated, also in a
    branch or in an inner dataset, so that its splits are disjoint.

    Args:
        node: The step.
        scope: Where it is.
        seed: The user's; None for the pipeline's.
        fresh: Whether epochs differ.
        order: Whether an order is drawn, not elements.
    """
    services = scope.services
    if seed is None and services.options.seed is None and not fresh:
        return stage_key(node.drawn, "drawn", ())
    element = scope.element if seed is None else tuple(number for number in scope.element if number >= 0)
    if order and not fresh:
        element = ()
    epoch = scope.epoch if fresh else (0,)
    chosen = scope.seed if seed is None else seed
    return stage_key(chosen, f"draw {node.draws_before}", (*epoch, *element))


def first_of(scope: Scope, context: StageContext) -> tuple[int, State | None]:
    """The input that a step of several, read one after the other, begins with, and the state that it begins at."""
    mark = scope.resume.mark
    with as_state_error(context):
        return (0, None) if mark is None else (int(mark["number"]), scope.resume.inputs[0])


def branch(scope: Scope, number: int, shards: int | None = None, **changes: Any) -> Scope:
    """The scope of one of several inputs; `shards` are those read in turn, when not as many as around the node.

    Its place is part of the provenance, so that sources of different branches are told apart, as a negative number,
    which no source and no record has.
    """
    element = (*scope.element, ~number)
    shards = scope.shards if shards is None else shards
    if scope.within is not None:
        changes["within"] = scope.within.branch(number)
    return scope.below(number, element=element, shards=shards, any_order=False, **changes)


def lower_into(node: Node, scope: Scope, context: StageContext, rows: Account) -> Stage:
    """The input of a stage that collects its rows, which are charged to this account of the stage."""
    stage = lower(node, scope.below(rows_account=rows))
    if _are_in_place(node):
        return stage
    return HandingOver(context, stage, rows)


def _are_in_place(node: Node) -> bool:
    """Whether rows are bytes of files where these were received, which the files' readers are charged with."""
    while isinstance(node, _STEPS_IN_PLACE):
        (node,) = node.inputs
    return reads_bytes(node)


def sub_index_of(scope: Scope, again: int) -> int:
    """Tells apart elements that come again, see `Stage.sub_index`.

    Args:
        scope: Of the step that gives them again.
        again: Which repetition, or the sub-index of the element that they are made of; 0 moves none.
    """
    return SourceTable.number((*scope.epoch[1:], *scope.element, again), "again") if again else 0


def keys(scope: Scope) -> tuple[int, int]:
    """The key of the random numbers that functions with ``rng=True`` are given."""
    return stage_key(scope.seed, "map", scope.epoch)
