"""What each kind of request does, one class per kind. What only some of them need is imported by them."""

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Protocol

from vitrine.errors import RequestRefused
from vitrine.flow.loop import run_plan
from vitrine.pipeline import Claim
from vitrine.requests import RequestKind
from vitrine.runner.context import RunContext
from vitrine.status import Event
from vitrine.store import state as states

if TYPE_CHECKING:
    from vitrine.engine.reconciliation import Reconciliation
    from vitrine.engine.tracing import Traced

log = logging.getLogger(__name__)


class Job(Protocol):
    """Carries out the requests of a kind."""

    finishes: ClassVar[Event]
    """The event that ends a successful request."""

    def run(self, context: RunContext) -> None:
        """Do all remaining work. Called again after a transient failure: it continues from what is stored."""
        ...


class Load:
    """An ordinary or a full run."""

    finishes: ClassVar[Event] = Event.FINISH

    def run(self, context: RunContext) -> None:
        claim = context.claim
        while self._pass(context):
            fields = claim.log_fields()
            log.info("one more pass: the load began before the request", extra={"action": "again", **fields})
            context.control.check()
        # a full run has deleted what vanished
        if claim.kind is not RequestKind.FULL and claim.definition.options.delete_mode == "reconcile_keys":
            _delete_vanished(context)

    def _pass(self, context: RunContext) -> bool:
        with context.plan(estimate=True) as prepared:
            return run_plan(prepared.plan, context.checkpoint, context.control)


def _delete_vanished(context: RunContext) -> None:
    """Compare the keys of both sides if that is due, and delete what the source has no more, under the shrink guard."""
    claim = context.claim
    if not states.are_deletes_due(context.connection(), claim.pipeline_id, claim.definition.options.delete_interval):
        return
    from vitrine.engine import reconciliation
    from vitrine.flow.repair import refuse_shrinking, run_repair

    began = time.monotonic()
    quarantined, state = context.stored().open_rejects, context.stored_state()
    found = context.compare(partial(reconciliation.compare_keys, quarantined=quarantined, state=state))
    if found.vanished:
        with context.plan(estimate=True) as prepared:
            plan = prepared.plan
            refuse_shrinking(plan.target_name, found.target_rows, len(found.vanished), plan.max_delete_ratio)
            run_repair(plan, (), found.vanished, context.checkpoint, context.control)
    states.note_deletes_checked(context.connection(), claim)
    figures = {"keys_compared": found.target_rows, "keys_deleted": len(found.vanished), "keys_missing": found.missing}
    seconds = round(time.monotonic() - began, 3)
    context.record({**figures, "seconds": seconds})
    extra = {"action": "keys_compared", **figures, "seconds": seconds, **claim.log_fields()}
    log.info("keys of source and mart compared", extra=extra)


class Backfill:
    """Reads a range of the cursor again and writes it."""

    finishes: ClassVar[Event] = Event.RETURN_IDLE

    def run(self, context: RunContext) -> None:
        from vitrine.engine.backfill import range_of
        from vitrine.flow.backfill import run_backfill

        definition, options = context.claim.definition, context.claim.options
        with context.plan() as prepared:
            wanted = range_of(prepared, definition, options.backfill_from, options.backfill_to)
            run_backfill(prepared.plan, wanted, context.checkpoint, context.control)


class Reconcile:
    """Compares the mart with its source: figures or, if it is deep, keys, which it may correct."""

    finishes: ClassVar[Event] = Event.RETURN_IDLE

    def run(self, context: RunContext) -> None:
        if context.claim.options.deep or context.claim.options.repair:
            self._compare_keys(context)
        else:
            self._compare_figures(context)

    def _compare_figures(self, context: RunContext) -> None:
        from vitrine.engine.reconcile import compare_checked

        quarantined = context.stored().open_rejects
        compared = context.compare(lambda checked: compare_checked(checked, quarantined))
        context.record(compared.figures())
        # not the sentence: it has values of the control column
        fields = {"source_rows": compared.source.rows, "target_rows": compared.target.rows}
        _log_comparison(context.claim, equal=compared.equal, **fields)

    def _compare_keys(self, context: RunContext) -> None:
        from vitrine.engine import reconciliation
        from vitrine.store import reconciliations

        claim = context.claim
        quarantined, state = context.stored().open_rejects, context.stored_state()
        found = context.compare(partial(reconciliation.search, quarantined=quarantined, state=state))
        if claim.options.repair:
            found = self._repair(context, found)
        figures = found.figures()
        reconciliations.record(context.connection(), claim, figures)
        context.record(figures)
        counts = {name: figures[name]["count"] for name in ("missing", "extra", "different")}
        repaired_count = {"repaired": found.repaired.count} if found.repaired else {}
        rows = {"source_rows": found.source_rows, "target_rows": found.target_rows}
        _log_comparison(claim, equal=found.equal, **rows, **counts, waiting=found.waiting, **repaired_count)

    def _repair(self, context: RunContext, found: "Reconciliation") -> "Reconciliation":
        """Correct what was found, then compare the same keys once more."""
        from vitrine.engine import reconciliation

        with context.plan() as prepared:
            reconciliation.repair(prepared, found, context.checkpoint, context.control)
        quarantined, state = context.stored().open_rejects, context.stored_state()
        return context.compare(partial(reconciliation.verify, found=found, quarantined=quarantined, state=state))


def _log_comparison(claim: Claim, *, equal: bool, **figures: int) -> None:
    result = "equals" if equal else "differs from"
    extra = {"action": "compared", **figures, **claim.log_fields()}
    log.info("the mart %s its source", result, extra=extra)


class Replay:
    """Reads the keys in quarantine again and writes them; a reject whose row fits now is closed by that."""

    finishes: ClassVar[Event] = Event.RETURN_IDLE

    def run(self, context: RunContext) -> None:
        from vitrine.engine import reconciliation
        from vitrine.engine.sides import quarantined_keys
        from vitrine.flow.repair import run_repair
        from vitrine.store import rejects

        claim = context.claim
        before = context.stored().open_rejects
        with context.plan() as prepared:
            keys = tuple(quarantined_keys(before, len(prepared.plan.target.key)))
            reconciliation.refuse_made_keys(prepared)
            run_repair(prepared.plan, keys, (), context.checkpoint, context.control)
        left = rejects.count_open(context.connection(), claim.pipeline_id)
        context.record({"replayed": len(keys), "closed": len(before) - left, "open": left})
        fields = {"replayed": len(keys), "open": left, **claim.log_fields()}
        log.info("rejects replayed", extra={"action": "rejects_replayed", **fields})


class Resend:
    """Reads one key again and writes it; deletes it if that was asked for and the source does not have it."""

    finishes: ClassVar[Event] = Event.RETURN_IDLE

    def run(self, context: RunContext) -> None:
        from vitrine.engine import tracing
        from vitrine.engine.standing import judge
        from vitrine.flow.repair import run_repair
        from vitrine.store import rejects

        claim = context.claim
        before = self._look_up(context)
        if not before.facts.target_exists:
            raise RequestRefused(
                f"target {before.facts.target} does not exist; run the pipeline first", code="TARGET_MISSING"
            )
        # guarantee: R10
        extra = before.target_keys if claim.options.delete and self._is_extra(before) else ()
        with context.plan() as prepared:
            run_repair(prepared.plan, before.source_keys, extra, context.checkpoint, context.control)
        after = self._look_up(context)
        reject = rejects.find(context.connection(), claim.pipeline_id, tracing.texts_of_reject(after))
        verdict = judge(replace(after.facts, quarantine=reject.reason if reject else after.facts.quarantine))
        done = {"resent": before.facts.produced_rows, "deleted": len(extra)}
        context.record({**done, "standing": verdict.standing, "sentence": verdict.sentence})
        extra_fields = {"action": "resent", **done, "standing": verdict.standing, **claim.log_fields()}
        log.info("key resent", extra=extra_fields)

    def _is_extra(self, found: "Traced") -> bool:
        """Whether the pipeline makes no row of this key; a failure of a transform does not count."""
        return not found.facts.produced_rows and found.facts.failure is None

    def _look_up(self, context: RunContext) -> "Traced":
        from vitrine.engine import tracing
        from vitrine.flow import keys

        key = keys.from_text(context.claim.options.key or "")
        position = context.stored_state().position
        return context.compare(lambda checked: tracing.look_up(checked, key, position))


class Rollback:
    """Makes the generation that was live before visible again."""

    finishes: ClassVar[Event] = Event.FINISH_PAUSED  # no schedule may replace what was restored

    def run(self, context: RunContext) -> None:
        from vitrine.engine.rollback import roll_back

        roll_back(context.claim, context.settings, context.connection(), context.checkpoint, context.control)


JOBS: Mapping[RequestKind, Job] = MappingProxyType(
    {
        RequestKind.RUN: Load(),
        RequestKind.FULL: Load(),
        RequestKind.BACKFILL: Backfill(),
        RequestKind.RECONCILE: Reconcile(),
        RequestKind.REPLAY: Replay(),
        RequestKind.RESEND: Resend(),
        RequestKind.ROLLBACK: Rollback(),
    }
)
