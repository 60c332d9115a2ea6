"""Carries out the resend of one key."""

import logging
from dataclasses import replace

from vitrine.engine import tracing
from vitrine.engine.reconcile import compared_as_run
from vitrine.engine.standing import judge
from vitrine.engine.tracing import Traced
from vitrine.errors import RequestRefused
from vitrine.flow import keys
from vitrine.flow.protocols import Outcome
from vitrine.flow.repair import run_repair
from vitrine.flow.rows import Key
from vitrine.model import Claim
from vitrine.runner.control import RunnerControl
from vitrine.runner.planning import planned
from vitrine.settings import Settings
from vitrine.store import rejects, runs
from vitrine.store import state as states
from vitrine.store.checkpoints import StoreCheckpoint
from vitrine.store.database import Link

log = logging.getLogger(__name__)


def resend(
    claim: Claim, settings: Settings, store: Link, checkpoint: StoreCheckpoint, control: RunnerControl
) -> Outcome:
    """Read the key again and write it; delete it if that was asked for and the source does not have it."""
    before = _look_up(claim, settings, store, control)
    if isinstance(before, Outcome):
        return before
    if not before.facts.target_exists:
        raise RequestRefused(
            f"target {before.facts.target} does not exist; run the pipeline first", code="TARGET_MISSING"
        )
    # guarantee: R10
    extra = before.target_keys if claim.options.delete and _is_extra(before) else ()
    with planned(claim, settings, store, control) as prepared:
        outcome = run_repair(prepared.plan, before.source_keys, extra, checkpoint, control)
    if outcome is not Outcome.FINISHED:
        return outcome
    after = _look_up(claim, settings, store, control)
    if isinstance(after, Outcome):
        return after
    reject = rejects.find(store.connection(), claim.pipeline_id, tracing.texts_of_reject(after))
    verdict = judge(replace(after.facts, quarantine=reject.reason if reject else after.facts.quarantine))
    done = {"resent": before.facts.produced_rows, "deleted": len(extra)}
    runs.record_result(store.connection(), claim, {**done, "standing": verdict.standing, "sentence": verdict.sentence})
    extra_fields = {"action": "resent", **done, "standing": verdict.standing, **claim.log_fields()}
    log.info("key resent", extra=extra_fields)
    return Outcome.FINISHED


def _is_extra(found: Traced) -> bool:
    """Whether the pipeline makes no row of this key; a failure of a transform does not count."""
    return not found.facts.produced_rows and found.facts.failure is None


def _look_up(claim: Claim, settings: Settings, store: Link, control: RunnerControl) -> Traced | Outcome:
    key: Key = keys.from_text(claim.options.key or "")
    position = states.load(store.connection(), claim.pipeline_id).position
    return compared_as_run(claim, settings, control, lambda checked: tracing.look_up(checked, key, position))
