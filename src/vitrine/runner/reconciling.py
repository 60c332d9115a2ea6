"""Carries out requests about keys: reconcile, quick or deep, repair, and the replay of rejects."""

import logging
from functools import partial

from vitrine.engine import reconciliation
from vitrine.engine.reconcile import compare_claimed, compared_as_run
from vitrine.engine.reconciliation import Reconciliation
from vitrine.engine.sides import quarantined_keys
from vitrine.flow.protocols import Outcome
from vitrine.flow.repair import run_repair
from vitrine.model import Claim
from vitrine.runner.control import RunnerControl
from vitrine.runner.planning import planned
from vitrine.settings import Settings
from vitrine.store import reconciliations, rejects, runs
from vitrine.store import state as states
from vitrine.store.checkpoints import StoreCheckpoint
from vitrine.store.database import Link

log = logging.getLogger(__name__)


def reconcile(
    claim: Claim, settings: Settings, store: Link, checkpoint: StoreCheckpoint, control: RunnerControl
) -> Outcome:
    if claim.options.deep or claim.options.repair:
        return _reconcile_deep(claim, settings, store, checkpoint, control)
    quarantined = runs.context(store.connection(), claim.pipeline_id).open_rejects
    compared = compare_claimed(claim, settings, quarantined, control)
    if isinstance(compared, Outcome):
        return compared
    runs.record_result(store.connection(), claim, compared.figures())
    # not the sentence: it has values of the control column
    fields = {"source_rows": compared.source.rows, "target_rows": compared.target.rows}
    _log_result(claim, equal=compared.equal, **fields)
    return Outcome.FINISHED


def _reconcile_deep(
    claim: Claim, settings: Settings, store: Link, checkpoint: StoreCheckpoint, control: RunnerControl
) -> Outcome:
    context = runs.context(store.connection(), claim.pipeline_id)
    state = states.load(store.connection(), claim.pipeline_id)
    search = partial(reconciliation.search, quarantined=context.open_rejects, state=state)
    found = compared_as_run(claim, settings, control, search)
    if isinstance(found, Outcome):
        return found
    if claim.options.repair:
        repaired = _repair(claim, settings, store, found, checkpoint, control)
        if isinstance(repaired, Outcome):
            return repaired
        found = repaired
    figures = found.figures()
    reconciliations.record(store.connection(), claim, figures)
    runs.record_result(store.connection(), claim, figures)
    counts = {name: figures[name]["count"] for name in ("missing", "extra", "different")}
    repaired_count = {"repaired": found.repaired.count} if found.repaired else {}
    rows = {"source_rows": found.source_rows, "target_rows": found.target_rows}
    _log_result(claim, equal=found.equal, **rows, **counts, waiting=found.waiting, **repaired_count)
    return Outcome.FINISHED


def _repair(
    claim: Claim,
    settings: Settings,
    store: Link,
    found: Reconciliation,
    checkpoint: StoreCheckpoint,
    control: RunnerControl,
) -> Reconciliation | Outcome:
    """Correct what was found, then compare the same keys once more."""
    with planned(claim, settings, store, control) as prepared:
        outcome = reconciliation.repair(prepared, found, checkpoint, control)
    if outcome is not Outcome.FINISHED:
        return outcome
    context = runs.context(store.connection(), claim.pipeline_id)
    state = states.load(store.connection(), claim.pipeline_id)
    verify = partial(reconciliation.verify, found=found, quarantined=context.open_rejects, state=state)
    return compared_as_run(claim, settings, control, verify)


def replay(
    claim: Claim, settings: Settings, store: Link, checkpoint: StoreCheckpoint, control: RunnerControl
) -> Outcome:
    """Read the keys in quarantine again and write them; a reject whose row fits now is closed by that."""
    before = runs.context(store.connection(), claim.pipeline_id).open_rejects
    with planned(claim, settings, store, control) as prepared:
        keys = tuple(quarantined_keys(before, len(prepared.plan.target.key)))
        reconciliation.refuse_made_keys(prepared)
        outcome = run_repair(prepared.plan, keys, (), checkpoint, control)
    if outcome is not Outcome.FINISHED:
        return outcome
    left = rejects.count_open(store.connection(), claim.pipeline_id)
    runs.record_result(store.connection(), claim, {"replayed": len(keys), "closed": len(before) - left, "open": left})
    fields = {"replayed": len(keys), "open": left, **claim.log_fields()}
    log.info("rejects replayed", extra={"action": "rejects_replayed", **fields})
    return Outcome.FINISHED


def _log_result(claim: Claim, *, equal: bool, **figures: int) -> None:
    result = "equals" if equal else "differs from"
    extra = {"action": "compared", **figures, **claim.log_fields()}
    log.info("the mart %s its source", result, extra=extra)
