"""Runs a claim and decides the pipeline's next status from the outcome."""

import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import NamedTuple

from vitrine import metrics, plugins
from vitrine.errors import (
    CONNECTION_LIMIT,
    CheckpointMoved,
    LeaseLost,
    NotFound,
    RequestRefused,
    TransientError,
    VitrineError,
    heals,
    is_final,
)
from vitrine.failpoints import reach
from vitrine.flow.protocols import Outcome
from vitrine.logs import Redactor
from vitrine.pipeline import Claim
from vitrine.postgres import Connection
from vitrine.requests import RETURNING, RequestKind
from vitrine.runner.control import Watch
from vitrine.runner.executor import Executed, PipelineExecutor
from vitrine.runner.jobs import JOBS
from vitrine.runner.run_log import RunLogKeeper
from vitrine.settings import Settings
from vitrine.status import RETURNS, Event, RunStatus, Status
from vitrine.store import leases, pipelines, runs
from vitrine.store.database import Link, Spares

log = logging.getLogger(__name__)

DELAYS = (timedelta(seconds=15), timedelta(minutes=2))
"""Before the second and the third attempt; then the pipeline is postponed, or the user must act."""

POSTPONEMENTS = tuple(timedelta(seconds=seconds) for seconds in (15, 30, 60, 120, 240, 480, 900, 1800, 3600))
"""From the end of a postponed run to its next due time; the last one repeats until a run succeeds."""


class Verdict(NamedTuple):
    """The event that ends a run, the run's own status, and when the next attempt starts."""

    event: Event
    run_status: RunStatus
    attempt: int = 0
    delay: timedelta = timedelta(0)
    batch_seq: int | None = None  # the state must have it, or batches of the run are lost; None: not checked

    @property
    def returns(self) -> bool:
        """Whether the pipeline has the status from before the request again."""
        return self.event in RETURNS


CONNECTION_WAITS = (1.0, 8.0)
"""Seconds until a run that lacked a connection may start again, at least and at most."""

END_WAITS = (0.0, 1.0, 2.0, 4.0)
"""Seconds before each further attempt to end a run in the store."""

LOST = ("LEASE_EXPIRED", "CRASH_LOOP")
"""Error codes of a run that another runner has ended."""

OUTCOMES = {
    Event.FINISH: "success",
    Event.FINISH_PAUSED: "success",
    Event.RETURN_IDLE: "success",
    Event.FAIL: "failed",
    Event.POSTPONE: "postponed",
    Event.RETRY: "retried",
    Event.PAUSED: "paused",
    Event.RELEASE: "released",
}
"""Outcomes as metrics count them; `lost` is added where another runner took over."""

RELEASED = Verdict(Event.RELEASE, RunStatus.ABANDONED)
FAILED = Verdict(Event.FAIL, RunStatus.FAILED)
RETURNED = Verdict(Event.RETURN_IDLE, RunStatus.FAILED)
"""The request could do nothing, or leaves the checkpoint alone: the run has failed, and the pipeline has not."""


def delay_before(attempt: int, error: VitrineError, delays: Sequence[timedelta] = DELAYS) -> timedelta | None:
    """How long to wait before the next attempt; None if another one is useless."""
    return None if is_final(error) or attempt > len(delays) else delays[attempt - 1]


def judge(
    executed: Executed,
    attempt: int,
    *,
    retry: bool = True,
    delays: Sequence[timedelta] = DELAYS,
    kind: RequestKind = RequestKind.RUN,
) -> Verdict | None:
    """How the pipeline continues after this run; None if another runner has it.

    The run has already made several attempts. A failure after progress does not count as an attempt without progress.
    """
    match executed.outcome:
        case Outcome.FINISHED:
            return Verdict(JOBS[kind].finishes, RunStatus.SUCCESS, batch_seq=executed.batch_seq)
        case Outcome.PAUSED:
            return Verdict(Event.PAUSED, RunStatus.PAUSED)
        case Outcome.RELEASED:
            return RELEASED
        case None:
            pass
    error = executed.error
    if error is None or isinstance(error, LeaseLost):
        return None
    # guarantee: D21
    if isinstance(error, RequestRefused):
        return RETURNED
    if error.code == CONNECTION_LIMIT and retry:
        return wait_for_connection(attempt)
    counted = 1 if executed.moved else attempt
    delay = delay_before(counted, error, delays) if retry else None
    if delay is None:
        return _failed(kind)
    return Verdict(Event.RETRY, RunStatus.FAILED, attempt=counted, delay=delay)


def _failed(kind: RequestKind) -> Verdict:
    return RETURNED if kind in RETURNING else FAILED


def postpone(
    verdict: Verdict, error: VitrineError | None, claim: Claim, postponements: Sequence[timedelta] = POSTPONEMENTS
) -> Verdict:
    """The verdict, but a failure of a scheduled run whose reason may pass is a postponement."""
    # guarantee: D22
    if verdict.event is not Event.FAIL or error is None or not claim.scheduled or not heals(error):
        return verdict
    delay = postponements[min(claim.postponed, len(postponements) - 1)]
    return Verdict(Event.POSTPONE, RunStatus.FAILED, delay=delay)


def wait_for_connection(attempt: int) -> Verdict:
    """The run waits in the queue, where it holds no connection; that costs no attempt.

    The delay is random: runs that collided must not collide again.
    """
    delay = timedelta(seconds=random.uniform(*CONNECTION_WAITS))  # noqa: S311  no secret
    return Verdict(Event.RETRY, RunStatus.ABANDONED, attempt=max(attempt - 1, 0), delay=delay)


class PipelineDispatcher:
    """Runs a claim and moves its pipeline to the next status."""

    def __init__(
        self,
        settings: Settings,
        executor: PipelineExecutor,
        *,
        delays: Sequence[timedelta] = DELAYS,
        postponements: Sequence[timedelta] = POSTPONEMENTS,
    ) -> None:
        self._settings = settings
        self._executor = executor
        self._delays = delays
        self._postponements = postponements
        self._redact = Redactor(plugins.secrets_in(settings))

    def dispatch(
        self,
        claim: Claim,
        *,
        watch: Watch | None = None,
        retry: bool = True,
        on_hang: Callable[[VitrineError], None] = lambda error: None,
        spares: Spares | None = None,
    ) -> tuple[Executed, Status | None]:
        """Run the claim; the pipeline's new status, or None if the lease was lost during the run.

        `spares`: connections to the store that are used again. A run that hangs does not return from here. It is FAILED
        then, and `on_hang` is called, from another thread.
        """
        with (
            RunLogKeeper(claim.run_id, self._redact) as kept,
            Link(self._settings.store_url, name=f"{claim.session}:run", spares=spares) as store,
        ):
            log.info("run started", extra={"action": "run_started", "status": Status.RUNNING, **claim.log_fields()})
            metrics.run_started(claim.definition.name)
            reach("after_claim")
            hangs, watching = _Hangs(self, kept, on_hang), kept.watching(store, watch)
            executed = self._executor.execute(claim, store, hangs, watching, can_queue=retry)
            verdict = judge(
                executed,
                claim.attempt,
                retry=retry,
                delays=self._delays,
                kind=claim.kind,
            )
            if verdict is not None and retry:
                verdict = postpone(verdict, executed.error, claim, self._postponements)
            reach("before_finish")
            try:
                status = self._end(store, claim, verdict, executed.error) if verdict else None
            except CheckpointMoved as lost:
                executed = replace(executed, outcome=None, error=lost)
                verdict = RELEASED if retry else _failed(claim.kind)
                status = self._end(store, claim, verdict, lost)
            reach("after_finish")
            self._log_end(claim, executed, verdict, status)
            kept.save(store)
            if status is not None:
                store.leave()
        self._count(claim, executed, verdict if status else None, status)
        return executed, status

    def fail_hung(self, claim: Claim, kept: RunLogKeeper, error: VitrineError) -> None:
        """Close a run that does not return, through a connection of its own."""
        log.error("run hangs: %s", error, extra={"action": "run_hangs", "code": error.code, **claim.log_fields()})
        try:
            with Link(self._settings.store_url, name=f"{claim.session}:leave") as link:
                leases.end_sessions(link.connection(), claim.token)  # they may lock the row that must change
                self._end_run(link.connection(), claim, _failed(claim.kind), error)
                kept.save(link)
        except VitrineError as exc:
            # the lease expires once this process has ended
            log.error("run not closed: %s", exc, extra={"action": "run_left", **claim.log_fields()})

    def _end(self, store: Link, claim: Claim, verdict: Verdict, error: VitrineError | None) -> Status | None:
        """End the run in the store. Waits for an unavailable store, so that the run's work is not repeated."""
        for seconds in END_WAITS:
            try:
                return self._end_or_release(store.connection(), claim, verdict, error)
            except TransientError as exc:
                if exc.code == CONNECTION_LIMIT:
                    raise  # the manager ends the run through its own connection
                log.warning("cannot end the run yet: %s", exc, extra={"action": "leave_failed", **claim.log_fields()})
                store.drop()
                time.sleep(seconds)
        return self._end_or_release(store.connection(), claim, verdict, error)

    def _end_or_release(
        self, store: Connection, claim: Claim, verdict: Verdict, error: VitrineError | None
    ) -> Status | None:
        status = self._end_run(store, claim, verdict, error)
        if status is None and verdict.event is Event.PAUSED:
            # the pause was cancelled after the run had noticed it: the run has ended, its request has not
            status = self._end_run(store, claim, RELEASED, None)
        return status or self._status_if_ended(store, claim)

    def _status_if_ended(self, store: Connection, claim: Claim) -> Status | None:
        """The status if an earlier attempt to end the run was applied and only the reply was lost."""
        try:
            run = runs.get(store, claim.run_id)
            mine = run.status is not RunStatus.RUNNING and run.error_code not in LOST
            return pipelines.get(store, claim.pipeline_id).status if mine else None
        except NotFound:
            return None

    def _end_run(self, store: Connection, claim: Claim, verdict: Verdict, error: VitrineError | None) -> Status | None:
        released = verdict.event is Event.RELEASE
        return leases.end_run(
            store,
            claim,
            verdict.event,
            verdict.run_status,
            error_code=error.code if error else "RELEASED" if released else None,
            error_message=str(error)
            if error
            else "the runner was stopped; the next one continues"
            if released
            else None,
            attempt=verdict.attempt,
            delay=verdict.delay,
            batch_seq=verdict.batch_seq,
        )

    def _log_end(self, claim: Claim, executed: Executed, verdict: Verdict | None, status: Status | None) -> None:
        extra = {
            "rows_read": executed.counts.read,
            "rows_written": executed.counts.written,
            "rows_deleted": executed.counts.deleted,
            "run_seconds": round(executed.seconds, 3),
            "status": status,
            **claim.log_fields(),
        }
        if status is None:
            log.warning("lease lost, run stopped", extra={"action": "lease_lost", **extra})
        elif isinstance(executed.error, RequestRefused):
            log.warning(
                "request refused, pipeline %s: %s",
                status,
                executed.error,
                extra={"action": "request_refused", "code": executed.error.code, **extra},
            )
        elif executed.error is not None and verdict is not None and verdict.returns:
            log.error(
                "%s failed, pipeline %s as before: %s",
                claim.kind,
                status,
                executed.error,
                extra={"action": f"{claim.kind}_failed", "code": executed.error.code, **extra},
            )
        elif executed.error is not None and status is Status.IDLE:
            log.warning(
                "run postponed, pipeline %s: %s",
                status,
                executed.error,
                extra={"action": "run_postponed", "code": executed.error.code, **extra},
            )
        elif executed.error is not None and status is not Status.FAILED:
            log.warning(
                "attempt failed, pipeline %s: %s",
                status,
                executed.error,
                extra={"action": "run_retried", "code": executed.error.code, **extra},
            )
        elif executed.error is not None:
            log.error(
                "run failed: %s", executed.error, extra={"action": "run_failed", "code": executed.error.code, **extra}
            )
        else:
            log.info("run ended, pipeline %s", status, extra={"action": "run_ended", **extra})

    def _count(self, claim: Claim, executed: Executed, verdict: Verdict | None, status: Status | None) -> None:
        """None: the lease was lost."""
        name = claim.definition.name
        outcome = OUTCOMES[verdict.event] if verdict else "lost"
        # without a schedule nothing can be postponed
        if verdict is not None and (
            verdict.run_status is RunStatus.FAILED and (status is Status.FAILED or verdict.returns)
        ):
            outcome = "failed"
        metrics.run_ended(name, outcome, executed.seconds)
        if verdict is not None and verdict.event is Event.RETRY:
            metrics.retried(name)


class _Hangs:
    """Closes a hung run in the store, then calls the process's own handler."""

    def __init__(
        self, dispatcher: PipelineDispatcher, kept: RunLogKeeper, on_hang: Callable[[VitrineError], None]
    ) -> None:
        self._dispatcher = dispatcher
        self._kept = kept
        self._on_hang = on_hang

    def run_hangs(self, claim: Claim, error: VitrineError) -> None:
        self._dispatcher.fail_hung(claim, self._kept, error)
        self._on_hang(error)
