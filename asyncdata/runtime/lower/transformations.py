"""Lowering of transformations that run on the stage loop."""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np

from asyncdata.memory.advance import SUB_INDEX, Rows, State
from asyncdata.options import AUTOTUNE, merged_storage
from asyncdata.plan import sequence, transformations
from asyncdata.plan.sources import Items, Range, TensorSlices
from asyncdata.planner.autotune import TIMES
from asyncdata.runtime.lower.buffers import buffer_picker, left_for_buffer
from asyncdata.runtime.lower.files import reads_whole_files, runs_of_files
from asyncdata.runtime.lower.registry import (
    around_inner,
    as_state_error,
    begin_track,
    draw_key,
    first_of,
    inside,
    keeps_below,
    lower,
    lower_inner,
    lower_into,
    lowers,
    made_inside,
    note_lying,
    sub_index_of,
)
from asyncdata.runtime.scope import Scope
from asyncdata.runtime.stage import Stage, StageContext
from asyncdata.runtime.stages.order.concatenate import ConcatenateStage
from asyncdata.runtime.stages.order.interleave import InterleaveStage
from asyncdata.runtime.stages.order.prefetch import Depth, PrefetchStage
from asyncdata.runtime.stages.order.shuffle import ShuffleStage
from asyncdata.runtime.stages.rows.numbering import (
    AssertCardinalityStage,
    EnumeratePickedStage,
    EnumerateStage,
    ShardStage,
)
from asyncdata.runtime.stages.rows.scan import RejectionStage, ScanStage, TakeWhileStage
from asyncdata.runtime.stages.rows.selection import FilterStage, SkipStage, TakeStage
from asyncdata.runtime.stages.rows.unique import UniqueStage
from asyncdata.runtime.stages.sources.arrays import CountedStage, RepeatedStage
from asyncdata.runtime.stages.sources.whole_files import WholeFilesStage
from asyncdata.runtime.state.restored import Kept
from asyncdata.runtime.state.resume import Resume, again, counted, drawn, in_turn, own, passed_on, selected
from asyncdata.runtime.state.tracks import Owner
from asyncdata.runtime.user_code import UserFunction
from asyncdata.types import Element

_PREFETCHED_BYTES: Final = 32 << 20
_PREFETCHED_PART: Final = 16
"""What an autotuned `prefetch` makes ahead, as long as it is more than 8 elements: so many bytes, and this part of the
limit at the most."""
_PREFETCHED_USUAL_PART: Final = 8
"""8 elements are made ahead where they are no more than this part of the limit."""
_MAX_PARALLEL_OPENS: Final = 64
_LEAST_OPENED_AHEAD: Final = 16
"""Files that an `interleave` opens ahead, however few it reads in turn, so that small ones fill a distant link."""

# --- which elements, in which order --------------------------------------------------------------------------------


@lowers(transformations.Filter, resumes=selected)
def _filter(node: transformations.Filter, scope: Scope, context: StageContext) -> Stage:
    return FilterStage(context, lower(node.input, scope.below()), node.predicate)


@lowers(transformations.Interleave, resumes=in_turn)
def _interleave(node: transformations.Interleave, scope: Scope, context: StageContext) -> Stage:
    function = UserFunction(node.function, context)
    around = around_inner(node, scope)
    io = scope.access.io
    any_order = scope.any_order or not context.ordered

    def make_inner(element: Element, origin: Rows, used: Rows, state: State | None = None) -> Stage:
        inner = made_inside(function, element, origin, scope)
        path = (*scope.element, int(origin[0]), int(origin[1]))
        shards = scope.shards * node.cycle_length
        # The last row that an element uses up is the one it is made of; none where no state can be taken.
        within = None if scope.within is None or not len(used) else Owner(int(used[-1, 0]), int(used[-1, 1]))
        changes: dict[str, Any] = {"shards": shards, "any_order": any_order, "state": state, "within": within}
        if again := int(origin[SUB_INDEX]):
            # The sub-index sets these datasets apart; the files inside stay the same ones.
            changes |= {"epoch": (*scope.epoch, again), "sub_index": sub_index_of(scope, again)}
        inside = around.below(1, element=path, **changes)
        if within is None or scope.services.tracks.in_order:
            note_lying(inner, inside)
        return lower_inner(inner, inside)

    upstream = lower(node.input, scope.below(tasks_verify=False))
    ahead = max(min(node.cycle_length, _MAX_PARALLEL_OPENS), _LEAST_OPENED_AHEAD)
    if reads_whole_files(node) and context.ordered and scope.within is None:
        runs = runs_of_files(node, around.below(1, shards=scope.shards * node.cycle_length, state=None))
        return WholeFilesStage(context, upstream, make_inner, ahead=node.cycle_length + ahead, runs=runs)
    return InterleaveStage(
        context,
        upstream,
        make_inner,
        cycle_length=node.cycle_length,
        block_length=node.block_length,
        ahead=ahead,
        spare=lambda: io.has_room,
        tracks=None if scope.within is None else scope.services.tracks,
        choices=scope.choices(node, context),
    )


@lowers(transformations.Shuffle, resumes=drawn)
def _shuffle(node: transformations.Shuffle, scope: Scope, context: StageContext) -> Stage:
    pick = buffer_picker(node.input, scope, context)
    left = None
    if scope.within is not None and not scope.services.tracks.in_order:
        # Nothing but what was delivered is known of elements without a fixed order.
        left = None if pick is None else left_for_buffer(node, scope)
        pick = None if left is None else pick
    with as_state_error(context):
        kept = _kept(node, scope)
    upstream = lower_into(node.input, scope._replace(kept=kept), context, context.kept)
    key = draw_key(node, scope, node.seed, fresh=node.reshuffle)
    return ShuffleStage(context, upstream, node.buffer_size, key, pick, left, kept)


def _kept(node: transformations.Shuffle, scope: Scope) -> Kept | None:
    """Which elements must be made again for the buffer, where functions make each of one; None: all, or none at all.

    Not where some may be left out that fail: only the functions say which.
    """
    mark = scope.resume.mark
    is_left_out = scope.errors is not None or not keeps_below(node.input)
    if is_left_out or not isinstance(mark, dict) or "buffer" not in mark:
        return None
    rows, until = np.sort(mark["buffer"]) - mark["row"], mark["next"] - mark["row"]
    is_sound = len(rows) and rows[0] >= 0 and rows[-1] < until and (np.diff(rows) > 0).all()
    return Kept(rows, until) if is_sound else None


@lowers(transformations.Repeat, resumes=own)
def _repeat(node: transformations.Repeat, scope: Scope, context: StageContext) -> Stage:
    track = begin_track(node, scope)
    # Without a fixed order repetitions are counted one by one.
    once = node.input.cardinality(lambda _: 0) if isinstance(node.input, Items | Range | TensorSlices) else 0
    if track is None and once:
        source = lower(node.input, scope.below(state=None))
        assert isinstance(source, CountedStage)
        return RepeatedStage(source, node.count, functools.partial(sub_index_of, scope))
    first, state = first_of(scope, context)

    def make(epoch: int) -> Stage:
        begin = state if epoch == first else None
        below = scope.below(epoch=(*scope.epoch, epoch), sub_index=sub_index_of(scope, epoch))
        return lower(node.input, below._replace(state=begin, within=inside(track, epoch)))

    return ConcatenateStage(context, make, node.count, first=first, track=track)


def _taken(node: transformations.Take, state: State) -> Resume:
    return (passed_on if node.count < 0 else counted())(node, state)


@lowers(transformations.Take, resumes=_taken)
def _take(node: transformations.Take, scope: Scope, context: StageContext) -> Stage:
    if node.count < 0:
        return lower(node.input, scope.below())
    track = begin_track(node, scope)
    return TakeStage(context, lower(node.input, scope.below(within=inside(track))), node.count, track)


@lowers(transformations.Skip, resumes=counted())
def _skip(node: transformations.Skip, scope: Scope, context: StageContext) -> Stage:
    upstream = lower(node.input, scope.below())
    # All of them: nothing need be read.
    if node.count < 0:
        return TakeStage(context, upstream, 0)
    return SkipStage(context, upstream, node.count, begin_track(node, scope))


@lowers(sequence.Shard, resumes=counted(lambda node, _mark, skip: skip * node.num_shards))
def _shard(node: sequence.Shard, scope: Scope, context: StageContext) -> Stage:
    return ShardStage(context, lower(node.input, scope.below()), node.num_shards, node.index)


@lowers(sequence.Unique, resumes=again)
def _unique(node: sequence.Unique, scope: Scope, context: StageContext) -> Stage:
    upstream = lower(node.input, scope.below())
    return UniqueStage(context, upstream, begin_track(node, scope))


@lowers(transformations.Prefetch, resumes=passed_on)
def _prefetch(node: transformations.Prefetch, scope: Scope, context: StageContext) -> Stage:
    upstream = lower(node.input, scope.below())
    if node.buffer_size == 0:
        return upstream
    limit = scope.services.budget.limit
    if node.buffer_size != AUTOTUNE:
        return PrefetchStage(context, upstream, node.buffer_size)
    times = scope.knob(context, "times", TIMES, context.meter.full)
    depth = Depth(min(_PREFETCHED_BYTES, limit // _PREFETCHED_PART), limit // _PREFETCHED_USUAL_PART, times)
    return PrefetchStage(context, upstream, depth)


# --- one element after the other -----------------------------------------------------------------------------------


@lowers(sequence.Enumerate, resumes=counted())
def _enumerate(node: sequence.Enumerate, scope: Scope, context: StageContext) -> Stage:
    return EnumerateStage(context, lower(node.input, scope.below()), node.start, begin_track(node, scope))


@lowers(sequence.EnumeratePicked, resumes=again)
def _enumerate_picked(node: sequence.EnumeratePicked, scope: Scope, context: StageContext) -> Stage:
    return EnumeratePickedStage(context, lower(node.input, scope.below()), node.start, node.places)


@lowers(sequence.TakeWhile, resumes=selected)
def _take_while(node: sequence.TakeWhile, scope: Scope, context: StageContext) -> Stage:
    return TakeWhileStage(context, lower(node.input, scope.below()), node.predicate)


@lowers(sequence.Scan, resumes=own)
def _scan(node: sequence.Scan, scope: Scope, context: StageContext) -> Stage:
    upstream = lower(node.input, scope.below())
    return ScanStage(context, upstream, node.initial_state, node.function, begin_track(node, scope))


@lowers(sequence.AssertCardinality, resumes=counted())
def _assert_cardinality(node: sequence.AssertCardinality, scope: Scope, context: StageContext) -> Stage:
    return AssertCardinalityStage(context, lower(node.input, scope.below()), node.count)


@lowers(sequence.RejectionResample, resumes=own)
def _rejection_resample(node: sequence.RejectionResample, scope: Scope, context: StageContext) -> Stage:
    key = draw_key(node, scope, node.seed, fresh=True)
    upstream = lower(node.input, scope.below())
    return RejectionStage(context, upstream, node.function, node.target, node.initial, key, every=node.every)


# --- what holds for the steps before -------------------------------------------------------------------------------


@lowers(transformations.IgnoreErrors, resumes=passed_on)
def _ignore_errors(node: transformations.IgnoreErrors, scope: Scope, context: StageContext) -> Stage:
    del context
    return lower(node.input, scope.below(errors=scope.services.skips(scope.place, log_warning=node.log_warning)))


@lowers(transformations.WithOptions, resumes=passed_on)
def _with_options(node: transformations.WithOptions, scope: Scope, context: StageContext) -> Stage:
    del context
    return lower(node.input, scope.below(storage=merged_storage(scope.storage, node.options.storage)))
