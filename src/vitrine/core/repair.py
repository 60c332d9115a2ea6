"""Work without a checkpoint of its own: a range of the cursor, single keys, or an earlier generation."""

from collections.abc import Sequence
from dataclasses import replace

from vitrine.core.keys import chunks
from vitrine.core.loop import (
    check_state,
    collect_marked,
    commit_unit,
    delete_keys,
    delete_marked,
    run_batches,
    write_nothing,
)
from vitrine.core.protocols import Checkpoint, Load, LoadState, Phase, Plan, RunControl, Sink
from vitrine.core.rows import CursorRange, Entry, KeptGeneration, Key, LoadInfo, Position, Read, Step
from vitrine.errors import DataError, RequestRefused

LOAD_OPEN = "LOAD_OPEN"
"""The code of a request beside a load that is not published."""


def run_backfill(plan: Plan, wanted: CursorRange, checkpoint: Checkpoint, control: RunControl) -> None:
    """Upsert the rows of the range, in batches; continues after the last one that an earlier attempt has written."""
    open_beside_no_load(plan, checkpoint, control, "backfill")
    start, continued = (wanted.start,), checkpoint.state.backfill
    # guarantee: D24
    after = Position(continued or start)
    # if a key may occur again, its newest row may be above the range, and must be the last one that is written
    until = None if plan.last_wins else wanted.end
    # `$1` does not follow the batches: a query with `> $1` would skip rows that have the cursor of the last one
    read = Read(plan.lane, plan.order, after, skip_null=plan.skip_null, until=until, filter_at=wanted.below)
    marked: set[Key] = set()
    run_batches(plan, plan.sink, read, Step.BACKFILL, checkpoint, control, marked)
    if continued and plan.marked_keys is not None:
        # an earlier attempt has written a part of the range, and may have ended before the deletions
        collect_marked(plan, replace(read, after=Position(start)), control, marked)
    delete_marked(plan, marked, checkpoint, control)


def open_beside_no_load(plan: Plan, checkpoint: Checkpoint, control: RunControl, work: str) -> None:
    """Open the state for work on the visible target; RequestRefused if a load would replace its rows by older ones."""
    state = checkpoint.open(plan.cursor_types)
    control.enter(Phase.READ, state.totals)
    control.check()  # much time may have passed since the claim
    check_state(plan, state)
    if state.generation is not None:
        raise RequestRefused(
            f"{plan.target_name} has a load that is not published yet: it would replace the rows of a {work} by older"
            " ones; run the pipeline first",
            code=LOAD_OPEN,
        )


KEYS_PER_READ = 1_000
KEYS_PER_DELETE = 1_000


def run_repair(
    plan: Plan, wanted: Sequence[Key], extra: Sequence[Key], checkpoint: Checkpoint, control: RunControl
) -> None:
    """Read the wanted keys and write them, then delete the extra ones, in batches. Can be repeated after a failure."""
    open_beside_no_load(plan, checkpoint, control, "repair")
    for keys in chunks(wanted, KEYS_PER_READ):
        read, marked = Read(plan.lane, plan.target.key, only=keys), set[Key]()
        run_batches(plan, plan.sink, read, Step.PROGRESS, checkpoint, control, marked)
        delete_marked(plan, marked, checkpoint, control)
    for keys in chunks(extra, KEYS_PER_DELETE):
        delete_keys(plan, keys, checkpoint, control)


def refuse_shrinking(target: str, rows: int, extra: int, max_delete_ratio: float | None) -> None:
    """DataError if more of the target would be deleted than the ratio allows; None allows everything."""
    if max_delete_ratio is not None and extra > rows * max_delete_ratio:
        raise DataError(
            f"the source lacks {extra} of the {rows} rows of {target}, more than max_delete_ratio {max_delete_ratio:g}"
            " allows; nothing was changed. If that is right, repeat it once with allow_shrink",
            code="SHRINK_GUARD",
        )


NOTHING_TO_ROLL_BACK = "NOTHING_TO_ROLL_BACK"


def kept_load(sink: Sink, kept: KeptGeneration | None, target: str) -> Load:
    """The generation in the target; RequestRefused if it is not there any more."""
    if kept is None:
        raise RequestRefused(
            f"{target} has no earlier generation to go back to: only a full load that was published leaves one",
            code=NOTHING_TO_ROLL_BACK,
        )
    load = sink.load(kept.as_load())
    if load.state is LoadState.ABSENT:
        raise RequestRefused(
            f"{target} does not keep generation {kept.number}, which was live before: there is nothing to go back to;"
            " correct the pipeline and run it again",
            code=NOTHING_TO_ROLL_BACK,
        )
    return load


def restore(sink: Sink, kept: KeptGeneration | None, target: str, checkpoint: Checkpoint, control: RunControl) -> None:
    """Publish the generation once more, and store its checkpoint; a load under construction is discarded.

    Can be repeated after a failure at any point: a second publish of the same generation changes nothing.
    """
    abandoned = checkpoint.state.generation
    control.check()  # much time may have passed since the claim
    load = kept_load(sink, kept, target)
    control.enter(Phase.PUBLISH, checkpoint.state.totals)
    # it was counted and compared when it was published first, and it may have grown since
    opened = load.publish(checkpoint.stamp(), LoadInfo(rows=0, repeats=True, max_delete_ratio=None))
    commit_unit(opened, write_nothing, checkpoint, Entry(Step.RESTORED, restored=kept))
    if abandoned is not None:  # removed after the save, which proves that this run owns it
        sink.load(abandoned).discard()


def generation_to_restore(
    sink: Sink, live: KeptGeneration | None, previous: KeptGeneration | None, checkpoint: Checkpoint
) -> KeptGeneration | None:
    """The generation that was visible before the one that is visible now.

    A load that was published, but not saved, is visible although another one is live in the store: that one was
    visible before it, and the stored state is still its own.
    """
    state = checkpoint.state
    if live is None or state.generation is None or sink.load(state.generation).state is not LoadState.PUBLISHED:
        return previous
    return live.with_state_of(state)
