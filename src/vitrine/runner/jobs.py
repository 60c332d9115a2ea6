"""What each kind of request does, one class per kind, and what a claimed run works with."""

import logging
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

from vitrine.core.loop import run_plan
from vitrine.core.repair import refuse_shrinking, run_backfill, run_repair
from vitrine.core.status import Event, RequestKind
from vitrine.definition.pipeline import Claim
from vitrine.errors import RequestRefused
from vitrine.plan import planner
from vitrine.plan.planner import CheckedDefinition, Known, Prepared
from vitrine.postgres import Connection
from vitrine.runner.control import RunnerControl
from vitrine.settings import Settings
from vitrine.store import checkpoint, history
from vitrine.store.checkpoint import StoreCheckpoint
from vitrine.store.database import Link
from vitrine.store.state import StoredState, are_deletes_due, load_state, note_deletes_checked

if TYPE_CHECKING:
    from vitrine.compare.reconcile import Reconciliation
    from vitrine.compare.trace import Traced

log = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclass(frozen=True)
class RunContext:
    """One claim, over all attempts of its run."""

    claim: Claim
    settings: Settings
    store: Link
    checkpoint: StoreCheckpoint
    control: RunnerControl

    def connection(self) -> Connection:
        """To the store; another one after the last was lost."""
        return self.store.connection()

    def stored_state(self) -> StoredState:
        return load_state(self.connection(), self.claim.pipeline_id)

    def stored(self) -> history.SinkFacts:
        """What the store knows beside the state: open rejects, facts of the target, the installation."""
        return history.sink_facts(self.connection(), self.claim.pipeline_id)

    def record(self, figures: dict[str, object]) -> None:
        """Store the result of the run."""
        history.record_result(self.connection(), self.claim, figures)

    @contextmanager
    def plan(self, *, estimate: bool = False) -> Generator[Prepared]:
        """The plan of the run, which its control uses; Stop if the run should end before it is made.

        `estimate`: the run reads the whole query, or what its estimate is about, so that its progress has an end.
        """
        connection = self.connection()
        context = self.stored()
        known = Known(context.installation, context.open_rejects, context.facts)
        prepared = planner.build(self.claim, self.settings, self.control, known, preparing=self.control.preparing)
        try:
            rows = prepared.source.rows_expected if estimate else None
            history.describe_run(connection, self.claim, lane=prepared.lane, rows=rows)
            self.control.use_plan(prepared, rows)
            yield prepared
        finally:
            prepared.close()

    def compare(self, compare: Callable[[CheckedDefinition], Result]) -> Result:
        """What `compare` returns for the claimed definition; Stop if the run should end before."""
        from vitrine.compare.reconcile import compared_as_run  # most runs compare nothing

        return compared_as_run(self.claim, self.settings, self.control, compare)


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
    if not are_deletes_due(context.connection(), claim.pipeline_id, claim.definition.options.delete_interval):
        return
    from vitrine.compare import reconcile

    began = time.monotonic()
    quarantined, state = context.stored().open_rejects, context.stored_state()
    found = context.compare(partial(reconcile.compare_keys, quarantined=quarantined, state=state))
    if found.vanished:
        with context.plan(estimate=True) as prepared:
            plan = prepared.plan
            refuse_shrinking(plan.target_name, found.target_rows, len(found.vanished), plan.max_delete_ratio)
            run_repair(plan, (), found.vanished, context.checkpoint, context.control)
    note_deletes_checked(context.connection(), claim)
    figures = {"keys_compared": found.target_rows, "keys_deleted": len(found.vanished), "keys_missing": found.missing}
    seconds = round(time.monotonic() - began, 3)
    context.record({**figures, "seconds": seconds})
    extra = {"action": "keys_compared", **figures, "seconds": seconds, **claim.log_fields()}
    log.info("keys of source and mart compared", extra=extra)


class Backfill:
    """Reads a range of the cursor again and writes it."""

    finishes: ClassVar[Event] = Event.RETURN_IDLE

    def run(self, context: RunContext) -> None:
        from vitrine.plan.backfill import range_of

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
        from vitrine.compare.reconcile import compare_checked

        quarantined = context.stored().open_rejects
        compared = context.compare(lambda checked: compare_checked(checked, quarantined))
        context.record(compared.figures())
        # not the sentence: it has values of the control column
        fields = {"source_rows": compared.source.rows, "target_rows": compared.target.rows}
        _log_comparison(context.claim, equal=compared.equal, **fields)

    def _compare_keys(self, context: RunContext) -> None:
        from vitrine.compare import reconcile

        claim = context.claim
        quarantined, state = context.stored().open_rejects, context.stored_state()
        found = context.compare(partial(reconcile.search, quarantined=quarantined, state=state))
        if claim.options.repair:
            found = self._repair(context, found)
        figures = found.figures()
        history.record_reconciliation(context.connection(), claim, figures)
        context.record(figures)
        counts = {name: figures[name]["count"] for name in ("missing", "extra", "different")}
        repaired_count = {"repaired": found.repaired.count} if found.repaired else {}
        rows = {"source_rows": found.source_rows, "target_rows": found.target_rows}
        _log_comparison(claim, equal=found.equal, **rows, **counts, waiting=found.waiting, **repaired_count)

    def _repair(self, context: RunContext, found: "Reconciliation") -> "Reconciliation":
        """Correct what was found, then compare the same keys once more."""
        from vitrine.compare import reconcile

        with context.plan() as prepared:
            reconcile.repair(prepared, found, context.checkpoint, context.control)
        quarantined, state = context.stored().open_rejects, context.stored_state()
        return context.compare(partial(reconcile.verify, found=found, quarantined=quarantined, state=state))


def _log_comparison(claim: Claim, *, equal: bool, **figures: int) -> None:
    result = "equals" if equal else "differs from"
    extra = {"action": "compared", **figures, **claim.log_fields()}
    log.info("the mart %s its source", result, extra=extra)


class Replay:
    """Reads the keys in quarantine again and writes them; a reject whose row fits now is closed by that."""

    finishes: ClassVar[Event] = Event.RETURN_IDLE

    def run(self, context: RunContext) -> None:
        from vitrine.compare import reconcile
        from vitrine.compare.comparison import quarantined_keys

        claim = context.claim
        before = context.stored().open_rejects
        with context.plan() as prepared:
            keys = tuple(quarantined_keys(before, len(prepared.plan.target.key)))
            reconcile.refuse_made_keys(prepared)
            run_repair(prepared.plan, keys, (), context.checkpoint, context.control)
        left = checkpoint.count_open(context.connection(), claim.pipeline_id)
        context.record({"replayed": len(keys), "closed": len(before) - left, "open": left})
        fields = {"replayed": len(keys), "open": left, **claim.log_fields()}
        log.info("rejects replayed", extra={"action": "rejects_replayed", **fields})


class Resend:
    """Reads one key again and writes it; deletes it if that was asked for and the source does not have it."""

    finishes: ClassVar[Event] = Event.RETURN_IDLE

    def run(self, context: RunContext) -> None:
        from vitrine.compare import trace
        from vitrine.compare.trace import judge

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
        reject = checkpoint.find(context.connection(), claim.pipeline_id, trace.texts_of_reject(after))
        verdict = judge(replace(after.facts, quarantine=reject.reason if reject else after.facts.quarantine))
        done = {"resent": before.facts.produced_rows, "deleted": len(extra)}
        context.record({**done, "standing": verdict.standing, "sentence": verdict.sentence})
        extra_fields = {"action": "resent", **done, "standing": verdict.standing, **claim.log_fields()}
        log.info("key resent", extra=extra_fields)

    def _is_extra(self, found: "Traced") -> bool:
        """Whether the pipeline makes no row of this key; a failure of a transform does not count."""
        return not found.facts.produced_rows and found.facts.failure is None

    def _look_up(self, context: RunContext) -> "Traced":
        from vitrine.compare import trace
        from vitrine.core import keys

        key = keys.from_text(context.claim.options.key or "")
        position = context.stored_state().position
        return context.compare(lambda checked: trace.look_up(checked, key, position))


class Rollback:
    """Makes the generation that was live before visible again."""

    finishes: ClassVar[Event] = Event.FINISH_PAUSED  # no schedule may replace what was restored

    def run(self, context: RunContext) -> None:
        from vitrine.plan.backfill import roll_back

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
