"""The one loop that moves data: the order of reading, writing and saving, for every source and sink."""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import TypeVar

from vitrine.core.keys import chunks
from vitrine.core.prefetch import Prefetch
from vitrine.core.protocols import (
    Checkpoint,
    Load,
    LoadState,
    MarkedKeys,
    Phase,
    Plan,
    RunControl,
    Stop,
    Unit,
    Work,
    Writer,
)
from vitrine.core.rows import (
    Batch,
    Entry,
    Generation,
    Key,
    LoadInfo,
    Position,
    Read,
    Saved,
    State,
    Step,
    Watermark,
    Written,
)
from vitrine.errors import ConfigError, DataError, RelationMissing
from vitrine.failpoints import reach

KEYS_AT_ONCE = 1_000
"""Keys that one statement selects or deletes."""

Opened = TypeVar("Opened", bound=Work)


def commit_unit(
    opened: AbstractContextManager[Opened], do: Callable[[Opened], object], checkpoint: Checkpoint, entry: Entry
) -> tuple[Written, Saved]:
    """Write and save, in the only order that loses no rows; used for every batch, publish and delete.

    A unit on the store's database is saved in its own transaction: rows and checkpoint commit together. Any other unit
    is saved after the target has acknowledged it: a unit that is not saved is repeated, with a higher version.
    """
    published = entry.step in (Step.PUBLISHED, Step.RESTORED)
    saved: Saved | None = None
    with opened as unit:
        # guarantee: A3
        do(unit)
        entry = _with_result(entry, unit)
        # guarantee: A2
        if not published:
            reach("after_sink_write")
        # guarantee: A21
        if unit.transaction is not None:
            saved = checkpoint.save(entry, unit.transaction)
            reach("before_swap" if published else "before_commit")
    if saved is None:
        reach("before_checkpoint")
        # some targets finish a unit on exit, so the result is complete only now
        entry = _with_result(entry, unit)
        saved = checkpoint.save(entry, None)
    else:
        checkpoint.confirm()
    reach("after_swap" if published else "after_commit")
    return entry.written, saved


def _with_result(entry: Entry, unit: Work) -> Entry:
    result = unit.result
    counts = replace(result.counts, read=entry.read, rejected=result.counts.rejected + len(entry.refused))
    if entry.step is Step.PROGRESS:
        counts = replace(counts, rejected=0)  # the load has already counted them
    return replace(entry, written=replace(result, counts=counts, rejects=(*result.rejects, *entry.refused)))


def run_batches(
    plan: Plan,
    writer: Writer,
    read: Read,
    step: Step,
    checkpoint: Checkpoint,
    control: RunControl,
    marked: set[Key] | None = None,
) -> int:
    """Move every remaining batch; the number of source snapshots that were read.

    `marked` collects the keys of rows that are marked as deleted.
    """
    snapshots = 1
    with Prefetch(plan, read, control) as batches:
        for batch in batches:
            control.before_batch()
            reach("after_read")
            started = control.batch_started
            entry = Entry(step, batch.end, batch.position, batch.read, started, refused=batch.refused)
            opened = writer.unit(checkpoint.stamp())
            written, saved = commit_unit(
                opened, lambda unit, batch=batch: _apply(plan, unit, batch, step), checkpoint, entry
            )
            snapshots = batch.snapshot
            if marked is not None:
                marked.update(batch.deleted)
            control.after_batch(written.counts, saved)
    return snapshots


def _apply(plan: Plan, unit: Unit, batch: Batch, step: Step) -> None:
    # A load does not stage marked rows. Changes are read up to the newest row, so that of a marked and an unmarked row
    # with one key the later one counts. Any other read may lack the unmarked one: see delete_marked.
    deletes = step is Step.CHECKPOINT or (plan.marked_keys is None and step is not Step.STAGED)
    unit.write(batch if deletes or not batch.deleted else replace(batch, deleted=()))
    # guarantee: I10
    if batch.deleted and deletes:
        unit.delete(batch.deleted)


def collect_marked(plan: Plan, read: Read, control: RunControl, marked: set[Key]) -> None:
    """Read batches for the keys of their marked rows only."""
    with Prefetch(plan, read, control) as batches:
        for batch in batches:
            marked.update(batch.deleted)


def delete_marked(plan: Plan, marked: Collection[Key], checkpoint: Checkpoint, control: RunControl) -> None:
    """Delete the keys of marked rows, except those that the source also returns without a mark."""
    if plan.marked_keys is None:
        return  # the source cannot be asked, and each batch has deleted its own
    for keys in chunks(sorted(marked), KEYS_AT_ONCE):
        _delete_marked(plan, plan.marked_keys, keys, checkpoint, control)


def _delete_marked(
    plan: Plan, marked_keys: MarkedKeys, keys: Sequence[Key], checkpoint: Checkpoint, control: RunControl
) -> None:
    returned: set[Key] = set()

    def collect(batch: Batch) -> Batch:
        returned.update(marked_keys.of_unmarked(batch))
        return batch

    asking = replace(plan, transforms=[*plan.transforms, collect])
    with Prefetch(asking, Read(plan.lane, plan.target.key, only=keys), control) as batches:
        for _ in batches:
            continue
    if not returned.issubset(keys):  # some keys are equal without the same text, for example 1.0 and 1.00
        if len(keys) > 1:
            for part in chunks(keys, (len(keys) + 1) // 2):
                _delete_marked(plan, marked_keys, part, checkpoint, control)
        return
    if gone := [key for key in keys if key not in returned]:
        delete_keys(plan, gone, checkpoint, control)


def delete_keys(plan: Plan, keys: Sequence[Key], checkpoint: Checkpoint, control: RunControl) -> None:
    """Delete rows of the target."""
    control.before_batch()
    opened = plan.sink.unit(checkpoint.stamp())
    entry = Entry(Step.PROGRESS, started=control.batch_started)
    written, saved = commit_unit(opened, lambda unit: unit.delete(keys), checkpoint, entry)
    control.after_batch(written.counts, saved)


def run_plan(plan: Plan, checkpoint: Checkpoint, control: RunControl) -> bool:
    """Do all remaining work; whether one more pass must follow, with a new plan.

    It must if the work began before the run was requested. Called again after a transient failure and for that pass,
    with the same checkpoint: it continues from what is stored.
    """
    state = checkpoint.open(plan.cursor_types)
    control.enter(Phase.READ, state.totals)
    if state.published is not None and not state.published.outdated:
        if not plan.incremental:
            _catch_up(plan, state.published.bound, checkpoint, control)
            return False
        plan = replace(plan, full_run=False)  # its load is published: only changes remain
    control.check()  # much time may have passed since the claim
    # Read once, before the first snapshot: a later snapshot of the same run must not move it, or a row that
    # committed between the two below the cursor would be skipped.
    mark = _watermark(plan)
    control.observe(mark if plan.incremental else None)
    reach("after_horizon")
    load = _resumable(plan, state)
    if load is None and not plan.loads_everything and (plan.target.exists or mark is None or mark.bound is None):
        _run_changes(plan, state, mark, checkpoint, control)
        return False
    return _run_load(plan, state, load, mark, checkpoint, control)


def _watermark(plan: Plan) -> Watermark | None:
    if plan.cursor_column is None:
        return None
    try:
        return plan.source.watermark(plan.cursor_column)
    except ConfigError:
        if plan.incremental:
            raise
        return None  # a full load works without it, but cannot catch up


def _resumable(plan: Plan, state: State) -> Load | None:
    """The load to continue: of the same query, not too old, and still in the target."""
    generation = state.generation
    # guarantee: I1
    if generation is None or generation.fingerprint != plan.fingerprint:
        return None
    is_old = generation.age > plan.max_staging_age
    if (is_old and not plan.incremental) or (generation.outdated and generation.cursor is None):
        return None  # of an outdated load nothing is staged yet: a new one makes a second one unnecessary
    load = plan.sink.load(generation)
    if plan.incremental and load.state is LoadState.PUBLISHED:
        return load  # readers see it, whatever its age, and its checkpoint belongs to it
    # guarantee: I16
    if is_old or (plan.target.exists and not plan.loads_everything):
        return None  # only a full run replaces rows of an existing target
    if load.state is LoadState.ABSENT and generation.cursor is not None:
        return None
    return load


# -- changes ----------------------------------------------------------------------------------------------------------


def _run_changes(plan: Plan, state: State, mark: Watermark | None, checkpoint: Checkpoint, control: RunControl) -> None:
    if not plan.target.exists and state.identity is None:
        # transforms have dropped every row so far: reading all of them again is safe whatever the checkpoint was
        state = replace(state, position=Position())
    check_state(plan, state)
    if state.generation is not None:
        _discard(plan, state.generation, checkpoint)
    read = Read(plan.lane, plan.order, state.position, mark, skip_null=plan.skip_null)
    run_batches(plan, plan.sink, read, Step.CHECKPOINT, checkpoint, control)


def check_state(plan: Plan, state: State) -> None:
    """The checkpoint must belong to this cursor and to this target."""
    # guarantee: E4
    if not state.position.is_start and not plan.target.exists:
        raise RelationMissing(
            f"target {plan.target_name} is missing, and rows before the checkpoint are not read again; ask for a full"
            " run, or reset the state, to build it from the start",
            code="TARGET_SCHEMA",
        )
    # guarantee: E14
    if not state.position.is_start and state.identity not in (None, plan.target.identity):
        raise ConfigError(
            f"target {plan.target_name} is not the one that the checkpoint belongs to: it was recreated or restored, so"
            " rows before the checkpoint may be missing; ask for a full run, or reset the state, to read everything"
            " again",
            code="TARGET_REPLACED",
        )
    # guarantee: C18
    if state.cursor_types not in (None, plan.cursor_types):
        raise DataError(
            f"the checkpoint belongs to the cursor and key ({state.cursor_types}), but the query now has"
            f" ({plan.cursor_types}); ask for a full run, or reset the state, to read everything again",
            code="STATE_MISMATCH",
        )


# -- a load -----------------------------------------------------------------------------------------------------------


def _run_load(
    plan: Plan, state: State, load: Load | None, mark: Watermark | None, checkpoint: Checkpoint, control: RunControl
) -> bool:
    is_published = load is not None and load.state is LoadState.PUBLISHED
    if not (plan.loads_everything or is_published or state.position.is_start):
        check_state(plan, state)
    generation, resumed = state.generation, load is not None
    if load is None or generation is None:
        load, generation = _open_load(plan, generation, mark, checkpoint)
    if load.state is not LoadState.PUBLISHED:
        snapshots = _stage(plan, load, generation, mark, checkpoint, control)
        repeats = plan.last_wins or (plan.incremental and (generation.cursor is not None or snapshots > 1))
        generation = checkpoint.state.generation or generation
    else:
        repeats = True
    written, saved = _publish(plan, load, generation, repeats, checkpoint, control)
    # A resumed load of an incremental pipeline may lack rows that committed late, below its cursor; they are above the
    # new checkpoint. Rows that changed or were deleted after they were staged are only found by another load.
    # guarantee: J38
    again = resumed if plan.incremental else generation.outdated
    try:
        control.after_batch(written.counts, saved)
    except Stop:
        if again:
            raise
        # the mart is complete: a pause or a stop that arrives with the publication ends a finished run
    if not again and not plan.incremental:
        _catch_up(plan, generation.bound, checkpoint, control)
    return again


def _open_load(
    plan: Plan, abandoned: Generation | None, mark: Watermark | None, checkpoint: Checkpoint
) -> tuple[Load, Generation]:
    generation = checkpoint.open_generation(plan.fingerprint, mark.bound if mark else None)
    if abandoned is not None:  # removed after the fence, which proves that this run owns it
        plan.sink.load(abandoned).discard()
    return plan.sink.load(generation), generation


def _stage(
    plan: Plan,
    load: Load,
    generation: Generation,
    mark: Watermark | None,
    checkpoint: Checkpoint,
    control: RunControl,
) -> int:
    """Collect the rows; the number of source snapshots that were read.

    Positions stay behind the watermark of the load's first snapshot, even after a resume.
    """
    held = replace(mark, bound=generation.bound) if mark is not None and plan.incremental else None
    read = Read(
        plan.lane,
        plan.order,
        Position(generation.cursor),
        held,
        skip_null=plan.skip_null and plan.incremental,
        complete=not plan.incremental,
        unfiltered=True,
        # guarantee: C24
        held_at=generation.position if held is not None and generation.cursor is not None else None,
    )
    return run_batches(plan, load, read, Step.STAGED, checkpoint, control)


def _publish(
    plan: Plan, load: Load, generation: Generation, repeats: bool, checkpoint: Checkpoint, control: RunControl
) -> tuple[Written, Saved]:
    """Make the load visible."""
    control.enter(Phase.PUBLISH)
    info = LoadInfo(generation.rows, repeats, plan.max_delete_ratio, plan.checks)
    position = generation.position if plan.incremental else Position()
    try:
        opened = load.publish(checkpoint.stamp(), info)
        return commit_unit(opened, write_nothing, checkpoint, Entry(Step.PUBLISHED, position=position))
    except DataError:
        # the staged rows would fail again: the next run reads from the start
        checkpoint.save(Entry(Step.DISCARDED), None)
        load.discard()
        raise


def write_nothing(work: Work) -> None:
    """A publication does all of its work when it opens."""


def _discard(plan: Plan, generation: Generation, checkpoint: Checkpoint) -> None:
    checkpoint.save(Entry(Step.DISCARDED), None)
    plan.sink.load(generation).discard()


def _catch_up(plan: Plan, bound: str | None, checkpoint: Checkpoint, control: RunControl) -> None:
    """Read what changed during the full load, from the watermark of its first snapshot."""
    # guarantee: I7
    if plan.cursor_column is None or bound is None:
        return
    control.enter(Phase.CATCH_UP)
    # the load contains the rows with NULL in the cursor; the whole key breaks ties, because this sets no checkpoint
    order = (plan.cursor_column, *plan.target.key)
    read = Read(plan.lane, order, Position((bound,)), skip_null=True)
    # the mart is complete as of the first snapshot, so a pause or a stop that arrives here ends a finished run
    marked: set[Key] = set()
    with suppress(Stop):
        run_batches(plan, plan.sink, read, Step.PROGRESS, checkpoint, control, marked)
        delete_marked(plan, marked, checkpoint, control)
