"""Moves single keys once more through a plan, and deletes others from its target; the checkpoint stays."""

from collections.abc import Sequence

from vitrine.errors import DataError
from vitrine.flow.backfill import open_beside_no_load
from vitrine.flow.keys import chunks
from vitrine.flow.loop import delete_keys, delete_marked, run_batches
from vitrine.flow.protocols import Checkpoint, Plan, RunControl
from vitrine.flow.rows import Key, Read, Step

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
