"""Runs a claim: lease, loop, attempts, outcome, and the pipeline's next status."""

import json
import logging
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

from vitrine import logs, metrics
from vitrine.core.checks import CheckFailed, Results, combined
from vitrine.core.protocols import Outcome, Stop
from vitrine.core.rows import Counts
from vitrine.core.status import RETURNING, RETURNS, Event, RequestKind, RunId, RunStatus, Status
from vitrine.definition import connectors
from vitrine.definition.pipeline import Claim
from vitrine.errors import (
    CONNECTION_LIMIT,
    CheckpointMoved,
    LeaseLost,
    NotFound,
    RelationMissing,
    RequestRefused,
    TransientError,
    VitrineError,
    heals,
    is_failure,
    is_final,
)
from vitrine.failpoints import reach
from vitrine.logs import Redactor
from vitrine.postgres import Connection
from vitrine.runner.control import HangHandler, RunnerControl, Watch
from vitrine.runner.jobs import JOBS, RunContext
from vitrine.settings import Settings
from vitrine.store import history, pipelines, queue
from vitrine.store.checkpoint import StoreCheckpoint, record_checks
from vitrine.store.database import Link, Spares
from vitrine.store.history import RunLog

log = logging.getLogger(__name__)

OUTCOME_LOG = f"{__name__}.outcomes"
"""The logger of how runs start and end: a command that runs a pipeline says this in its own words, and silences it."""

outcomes = logging.getLogger(OUTCOME_LOG)

MAX_LINES = 200
MAX_BYTES = 64 * 1024
MAX_LINE_BYTES = 4 * 1024
SAVE_SECONDS = 10.0
"""How often the lines of a long run are stored; a short one stores them once, at its end."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_OF_THE_RUN = frozenset({"action", "pipeline", "pipeline_id", "run_id", "attempt"})


class RunLogKeeper(logging.Handler):
    """The last lines about one run, from any thread: at most 200, and 64 KB of JSON. They have no row values."""

    def __init__(self, run_id: RunId, redact: Redactor) -> None:
        super().__init__(logging.INFO)
        self._run_id = run_id
        self._redact = redact
        self._lines: deque[tuple[dict[str, Any], int]] = deque()  # each with its size
        self._size = 0
        self._dropped = 0
        self._saved = 0  # lines that were there at the last save, dropped ones included
        self._saved_at = time.monotonic()

    def __enter__(self) -> Self:
        logging.getLogger(logs.OURS).addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        logging.getLogger(logs.OURS).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "run_id", None) != self._run_id:
            return
        try:
            self._keep(self._line(record))
        except Exception:  # noqa: BLE001  best effort: a line that cannot be kept is still written to the log
            self._dropped += 1

    def watching(self, store: Link, watch: Watch | None) -> Watch:
        """An observer of the run's batches that stores the lines from time to time, and passes the counts on."""

        def observe(counts: Counts, expected: int | None) -> None:
            if time.monotonic() - self._saved_at >= SAVE_SECONDS:
                self.save(store)
            if watch is not None:
                watch(counts, expected)

        return observe

    def save(self, store: Link) -> None:
        """Store the lines. Best effort: never fails a run."""
        self._saved_at = time.monotonic()
        self.acquire()
        try:
            lines, dropped = [line for line, _ in self._lines], self._dropped
        finally:
            self.release()
        if len(lines) + dropped == self._saved:
            return
        try:
            history.save_log(store.connection(), self._run_id, RunLog(lines, dropped))
            self._saved = len(lines) + dropped
        except VitrineError as exc:
            store.drop()
            log.debug("the log of a run was not stored: %s", exc, extra={"action": "run_log_failed"})

    def _keep(self, line: dict[str, Any]) -> None:
        """Called with the handler's lock."""
        size = len(json.dumps(line, ensure_ascii=False).encode())
        self._lines.append((line, size))
        self._size += size
        while len(self._lines) > MAX_LINES or self._size > MAX_BYTES:
            _, removed = self._lines.popleft()
            self._size -= removed
            self._dropped += 1

    def _line(self, record: logging.LogRecord) -> dict[str, Any]:
        fields = {
            name: self._safe(value)
            for name, value in vars(record).items()
            if name not in _STANDARD and name not in _OF_THE_RUN
        }
        if record.exc_info and record.exc_info[1] is not None:
            fields["exception"] = self._safe("\n".join(logs.describe(record.exc_info[1])))
        return {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "action": getattr(record, "action", None),
            "text": self._safe(record.getMessage()),
            "fields": fields,
        }

    def _safe(self, value: object) -> Any:
        """A value that JSON in the store can hold, without secrets."""
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        text = self._redact(str(value)).replace("\0", "").encode("utf-8", "replace").decode()
        return text if len(text) <= MAX_LINE_BYTES else f"{text[:MAX_LINE_BYTES]}…"


WAITS = (1.0, 2.0, 4.0)
"""Seconds before each further attempt of a run without progress; then the dispatcher decides."""


@dataclass(frozen=True)
class Executed:
    """How a run ended: an outcome, or the error that ended it; and what it moved."""

    outcome: Outcome | None
    error: VitrineError | None
    counts: Counts
    batches: int
    seconds: float
    moved: bool = False  # the run has changed the checkpoint or the mart
    batch_seq: int | None = None  # of the last batch that the run saved; None: it did not finish
    checks: Results = ()  # what the checks have found in its rows


def wait_before(
    failures: int, error: VitrineError, waits: Sequence[float] = WAITS, *, can_queue: bool = True
) -> float | None:
    """Seconds before the next attempt after so many failures in a row; None when the run should end.

    A run that lacks a connection ends at once if it `can_queue`: it must not hold others while it waits.
    """
    if error.code == CONNECTION_LIMIT and can_queue:
        return None
    if failures > len(waits) or (is_final(error) and not isinstance(error, RelationMissing)):
        return None
    return 0.0 if isinstance(error, CheckpointMoved) else waits[failures - 1]


class PipelineExecutor:
    """Executes a claimed run in this process, under its lease. The dispatcher moves statuses."""

    def __init__(self, settings: Settings, stop: threading.Event, *, waits: Sequence[float] = WAITS) -> None:
        self._settings = settings
        self._stop = stop
        self._waits = waits

    def execute(
        self, claim: Claim, store: Link, hangs: HangHandler, watch: Watch | None = None, *, can_queue: bool = True
    ) -> Executed:
        """Never raises for a failure of the run itself: the error is part of the result.

        `can_queue`: a run that lacks a connection can be started again later. A run that hangs does not return from
        here; `hangs` is called, from another thread.
        """
        started = time.monotonic()
        checkpoint = StoreCheckpoint(claim, store)
        with RunnerControl(claim, self._settings, store, self._stop, hangs, watch) as control:
            context = RunContext(claim, self._settings, store, checkpoint, control)
            outcome: Outcome | None = None
            error: VitrineError | None = None
            try:
                error = self._run(context, can_queue=can_queue)
                outcome = Outcome.FINISHED if error is None else None
            except Stop as stop:
                outcome = stop.outcome
            # the timeout is the reason, whatever the cancelled call raised
            error = (control.overdue or error) if error is not None else None
            checks = _settle_checks(claim, store, checkpoint, error)
        progress = control.progress
        seconds = time.monotonic() - started
        batch_seq = checkpoint.sequence if outcome is Outcome.FINISHED else None
        moved = checkpoint.moved > 0
        return Executed(outcome, error, progress.counts, progress.batches, seconds, moved, batch_seq, checks)

    def _run(self, context: RunContext, *, can_queue: bool) -> VitrineError | None:
        """Repeat attempts, each from the stored state, while another one may help; progress resets their count.

        Returns the error that ends the run, None if its work is done.
        """
        claim, checkpoint, failures = context.claim, context.checkpoint, 0
        while True:
            before = checkpoint.moved
            error = _capture_errors(partial(_attempt, context), claim)
            if error is None:
                return None
            failures = 1 if checkpoint.moved > before else failures + 1
            seconds = wait_before(failures, error, self._waits, can_queue=can_queue)
            if seconds is None:
                return error
            log.warning(
                "attempt failed, retrying: %s",
                error,
                extra={"action": "retry", "code": error.code, "seconds": seconds, **claim.log_fields()},
            )
            metrics.retried(claim.definition.name)
            error = _capture_errors(partial(context.control.wait_for_retry, seconds), claim)
            if error is not None:
                return error


def _attempt(context: RunContext) -> None:
    context.control.check()  # much time may have passed since the claim
    JOBS[context.claim.kind].run(context)


def _settle_checks(claim: Claim, store: Link, checkpoint: StoreCheckpoint, error: VitrineError | None) -> Results:
    """What the checks of the run have found. Those that ended it are stored here: their rows were rolled back."""
    results = checkpoint.state.checks
    if isinstance(error, CheckFailed):
        results = combined(results, error.results)
        failure = _capture_errors(lambda: record_checks(store.connection(), claim, results), claim)
        if failure is not None:  # best effort: the error of the run names them as well
            log.warning(
                "results of checks not stored: %s", failure, extra={"action": "checks_left", **claim.log_fields()}
            )
    for result in results:
        if not result.passed:
            metrics.check_failed(claim.definition.name, result.severity)
            if result.severity == "warn":  # the others are the error of the run
                fields = {"check": result.name, "rows": result.rows, **claim.log_fields()}
                text = "check '%s': %s"
                log.warning(text, result.name, result.sentence, extra={"action": "check_warned", **fields})
    return results


def _capture_errors(step: Callable[[], None], claim: Claim) -> VitrineError | None:
    """Runs a step; returns an exception as a VitrineError, because the run must be closed in any case."""
    try:
        step()
    except Stop:
        raise  # not a failure
    except VitrineError as exc:
        return exc
    except BaseException as exc:  # user code and drivers may raise anything
        if not is_failure(exc):
            raise
        log.exception("unexpected error", extra={"action": "unexpected_error", **claim.log_fields()})
        return VitrineError(f"unexpected {type(exc).__name__}; the runner's log has the details", code="UNEXPECTED")
    return None


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
        self._redact = Redactor(connectors.secrets_in(settings))

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
            outcomes.info(
                "run started", extra={"action": "run_started", "status": Status.RUNNING, **claim.log_fields()}
            )
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
        outcomes.error("run hangs: %s", error, extra={"action": "run_hangs", "code": error.code, **claim.log_fields()})
        try:
            with Link(self._settings.store_url, name=f"{claim.session}:leave") as link:
                queue.end_sessions(link.connection(), claim.token)  # they may lock the row that must change
                self._end_run(link.connection(), claim, _failed(claim.kind), error)
                kept.save(link)
        except VitrineError as exc:
            # the lease expires once this process has ended
            outcomes.error("run not closed: %s", exc, extra={"action": "run_left", **claim.log_fields()})

    def _end(self, store: Link, claim: Claim, verdict: Verdict, error: VitrineError | None) -> Status | None:
        """End the run in the store. Waits for an unavailable store, so that the run's work is not repeated."""
        for seconds in END_WAITS:
            try:
                return self._end_or_release(store.connection(), claim, verdict, error)
            except TransientError as exc:
                if exc.code == CONNECTION_LIMIT:
                    raise  # the manager ends the run through its own connection
                outcomes.warning(
                    "cannot end the run yet: %s", exc, extra={"action": "leave_failed", **claim.log_fields()}
                )
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
            run = history.get_run(store, claim.run_id)
            mine = run.status is not RunStatus.RUNNING and run.error_code not in LOST
            return pipelines.get(store, claim.pipeline_id).status if mine else None
        except NotFound:
            return None

    def _end_run(self, store: Connection, claim: Claim, verdict: Verdict, error: VitrineError | None) -> Status | None:
        released = verdict.event is Event.RELEASE
        return queue.end_run(
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
            outcomes.warning("lease lost, run stopped", extra={"action": "lease_lost", **extra})
        elif isinstance(executed.error, RequestRefused):
            outcomes.warning(
                "request refused, pipeline %s: %s",
                status,
                executed.error,
                extra={"action": "request_refused", "code": executed.error.code, **extra},
            )
        elif executed.error is not None and verdict is not None and verdict.returns:
            outcomes.error(
                "%s failed, pipeline %s as before: %s",
                claim.kind,
                status,
                executed.error,
                extra={"action": f"{claim.kind}_failed", "code": executed.error.code, **extra},
            )
        elif executed.error is not None and status is Status.IDLE:
            outcomes.warning(
                "run postponed, pipeline %s: %s",
                status,
                executed.error,
                extra={"action": "run_postponed", "code": executed.error.code, **extra},
            )
        elif executed.error is not None and status is not Status.FAILED:
            outcomes.warning(
                "attempt failed, pipeline %s: %s",
                status,
                executed.error,
                extra={"action": "run_retried", "code": executed.error.code, **extra},
            )
        elif executed.error is not None:
            outcomes.error(
                "run failed: %s", executed.error, extra={"action": "run_failed", "code": executed.error.code, **extra}
            )
        else:
            outcomes.info("run ended, pipeline %s", status, extra={"action": "run_ended", **extra})

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
