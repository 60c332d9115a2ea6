"""`delete_mode: reconcile_keys`: after a run, rows that vanished at the source are deleted from the mart."""

import logging
import time
from functools import partial

from vitrine.engine import reconciliation
from vitrine.engine.reconcile import compared_as_run
from vitrine.flow.protocols import Outcome
from vitrine.flow.repair import refuse_shrinking, run_repair
from vitrine.model import Claim
from vitrine.runner.control import RunnerControl
from vitrine.runner.planning import planned
from vitrine.settings import Settings
from vitrine.store import runs
from vitrine.store import state as states
from vitrine.store.checkpoints import StoreCheckpoint
from vitrine.store.database import Link

log = logging.getLogger(__name__)


def delete_vanished(
    claim: Claim, settings: Settings, store: Link, checkpoint: StoreCheckpoint, control: RunnerControl
) -> Outcome:
    """Compare the keys of both sides if that is due, and delete what the source has no more, under the shrink guard."""
    options = claim.definition.options
    if not states.are_deletes_due(store.connection(), claim.pipeline_id, options.delete_interval):
        return Outcome.FINISHED
    began = time.monotonic()
    context = runs.context(store.connection(), claim.pipeline_id)
    state = states.load(store.connection(), claim.pipeline_id)
    compare = partial(reconciliation.compare_keys, quarantined=context.open_rejects, state=state)
    found = compared_as_run(claim, settings, control, compare)
    if isinstance(found, Outcome):
        return found
    if found.vanished:
        with planned(claim, settings, store, control) as prepared:
            plan = prepared.plan
            refuse_shrinking(plan.target_name, found.target_rows, len(found.vanished), plan.max_delete_ratio)
            outcome = run_repair(plan, (), found.vanished, checkpoint, control)
        if outcome is not Outcome.FINISHED:
            return outcome
    states.note_deletes_checked(store.connection(), claim)
    figures = {"keys_compared": found.target_rows, "keys_deleted": len(found.vanished), "keys_missing": found.missing}
    seconds = round(time.monotonic() - began, 3)
    runs.record_result(store.connection(), claim, {**figures, "seconds": seconds})
    extra = {"action": "keys_compared", **figures, "seconds": seconds, **claim.log_fields()}
    log.info("keys of source and mart compared", extra=extra)
    return Outcome.FINISHED
