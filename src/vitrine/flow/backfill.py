"""Moves a range of the cursor once more through a plan; the checkpoint stays."""

from dataclasses import replace

from vitrine.errors import RequestRefused
from vitrine.flow.loop import check_state, collect_marked, delete_marked, run_batches
from vitrine.flow.protocols import Checkpoint, Phase, Plan, RunControl
from vitrine.flow.rows import CursorRange, Key, Position, Read, Step

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
