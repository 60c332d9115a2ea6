"""What a claimed pipeline asks for, and what the end of its run means for its status."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from vitrine import metrics
from vitrine.errors import LeaseLost, NotFound, TransientError, VitrineError, is_final
from vitrine.failpoints import reach
from vitrine.flow import Outcome
from vitrine.model import Claim
from vitrine.postgres import Connection
from vitrine.runner.executor import Executed, PipelineExecutor, Watch
from vitrine.settings import Settings
from vitrine.status import Event, RunStatus, Status
from vitrine.store import pipelines, runs
from vitrine.store.database import Link

log = logging.getLogger(__name__)

DELAYS = (timedelta(seconds=15), timedelta(minutes=2))
"""Before the second and the third attempt, each of which has its own tries; after that a person must look."""


@dataclass(frozen=True)
class Verdict:
    """The event that ends a run, the run's own status, and when to try again."""

    event: Event
    run_status: RunStatus
    attempt: int = 0
    delay: timedelta = timedelta(0)


LEAVING = (0.0, 1.0, 2.0, 4.0)
"""Seconds before each further try to end a run."""

LOST = ("LEASE_EXPIRED", "CRASH_LOOP")
"""How a run reads that somebody else has ended."""

OUTCOMES = {
    Event.FINISH: "success",
    Event.FAIL: "failed",
    Event.RETRY: "retried",
    Event.PAUSED: "paused",
    Event.RELEASE: "released",
}
"""The ends of runs as they are counted; `lost` is the one that is not ours to decide."""

RELEASED = Verdict(Event.RELEASE, RunStatus.ABANDONED)
FAILED = Verdict(Event.FAIL, RunStatus.FAILED)


def delay_before(attempt: int, error: VitrineError, delays: Sequence[timedelta] = DELAYS) -> timedelta | None:
    """How long to wait before the next attempt; None when another one makes no sense."""
    return None if is_final(error) or attempt > len(delays) else delays[attempt - 1]


def judge(
    executed: Executed, attempt: int, *, retry: bool = True, delays: Sequence[timedelta] = DELAYS
) -> Verdict | None:
    """What happens to a pipeline whose run ended like this; None when it is not ours any more.

    The run has tried more than once already. A failure after progress does not use up the attempts of one without.
    """
    match executed.outcome:
        case Outcome.FINISHED:
            return Verdict(Event.FINISH, RunStatus.SUCCESS)
        case Outcome.PAUSED:
            return Verdict(Event.PAUSED, RunStatus.PAUSED)
        case Outcome.RELEASED:
            return RELEASED
        case None:
            pass
    error = executed.error
    if error is None or isinstance(error, LeaseLost):
        return None
    counted = 1 if executed.moved else attempt
    delay = delay_before(counted, error, delays) if retry else None
    if delay is None:
        return FAILED
    return Verdict(Event.RETRY, RunStatus.FAILED, attempt=counted, delay=delay)


class PipelineDispatcher:
    """Carries a claim through its run to the next status."""

    def __init__(self, settings: Settings, executor: PipelineExecutor, *, delays: Sequence[timedelta] = DELAYS) -> None:
        self._settings = settings
        self._executor = executor
        self._delays = delays

    def dispatch(
        self,
        claim: Claim,
        *,
        watch: Watch | None = None,
        retry: bool = True,
        on_hang: Callable[[VitrineError], None] = lambda error: None,
    ) -> tuple[Executed, Status | None]:
        """Run the claim; the pipeline's new status, or None if the lease was lost on the way.

        A run that hangs does not come back from here. It is FAILED then, and `on_hang` is told, from another thread.
        """
        log.info("run started", extra={"action": "run_started", "status": Status.RUNNING, **claim.log_fields()})
        metrics.run_started(claim.definition.name)
        reach("after_claim")
        with Link(self._settings.store_url, name=f"vitrine:{claim.token}:run") as store:
            executed = self._executor.execute(
                claim, store, watch, on_hang=lambda error: self._give_up(claim, error, on_hang)
            )
            verdict = judge(executed, claim.attempt, retry=retry, delays=self._delays)
            reach("before_finish")
            status = self._leave(store, claim, verdict, executed.error) if verdict else None
        self._tell(claim, executed, status)
        self._count(claim, executed, verdict if status else None)
        return executed, status

    def _give_up(self, claim: Claim, error: VitrineError, on_hang: Callable[[VitrineError], None]) -> None:
        """Close a run that does not come back, through a connection of its own."""
        log.error("run hangs: %s", error, extra={"action": "run_hangs", "code": error.code, **claim.log_fields()})
        try:
            with Link(self._settings.store_url, name=f"vitrine:{claim.token}:leave") as link:
                pipelines.end_sessions(link.connection(), claim.token)  # they may hold the very row that is to change
                self._leave_through(link.connection(), claim, FAILED, error)
        except VitrineError as exc:
            # nobody prolongs the lease once this process has ended
            log.error("run left behind: %s", exc, extra={"action": "run_left", **claim.log_fields()})
        on_hang(error)

    def _leave(self, store: Link, claim: Claim, verdict: Verdict, error: VitrineError | None) -> Status | None:
        """Let go. A store that is away is waited for: what the run has done must not be done again."""
        for seconds in LEAVING:
            try:
                return self._leave_or_release(store.connection(), claim, verdict, error)
            except TransientError as exc:
                log.warning("cannot end the run yet: %s", exc, extra={"action": "leave_failed", **claim.log_fields()})
                store.drop()
                time.sleep(seconds)
        return self._leave_or_release(store.connection(), claim, verdict, error)

    def _leave_or_release(
        self, store: Connection, claim: Claim, verdict: Verdict, error: VitrineError | None
    ) -> Status | None:
        status = self._leave_through(store, claim, verdict, error)
        if status is None and verdict.event is Event.PAUSED:
            # the pause was withdrawn after the run had seen it: the run is over, its request is not
            status = self._leave_through(store, claim, RELEASED, None)
        return status or self._left_before(store, claim)

    def _left_before(self, store: Connection, claim: Claim) -> Status | None:
        """The status where an earlier try of leaving was carried out, and only its answer was lost."""
        try:
            run = runs.get(store, claim.run_id)
            mine = run.status is not RunStatus.RUNNING and run.error_code not in LOST
            return pipelines.get(store, claim.pipeline_id).status if mine else None
        except NotFound:
            return None

    def _leave_through(
        self, store: Connection, claim: Claim, verdict: Verdict, error: VitrineError | None
    ) -> Status | None:
        released = verdict.event is Event.RELEASE
        return pipelines.end_run(
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
        )

    def _tell(self, claim: Claim, executed: Executed, status: Status | None) -> None:
        extra = {
            "rows_read": executed.counts.read,
            "rows_written": executed.counts.written,
            "rows_deleted": executed.counts.deleted,
            "run_seconds": round(executed.seconds, 3),
            "status": status,
            **claim.log_fields(),
        }
        if status is None:
            log.warning("lease lost, run dropped", extra={"action": "lease_lost", **extra})
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

    def _count(self, claim: Claim, executed: Executed, verdict: Verdict | None) -> None:
        """None: the lease was lost."""
        name = claim.definition.name
        metrics.run_ended(name, OUTCOMES[verdict.event] if verdict else "lost", executed.seconds)
        if verdict is not None and verdict.event is Event.RETRY:
            metrics.retried(name)
