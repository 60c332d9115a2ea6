"""Executes one run: lease, loop, attempts, outcome."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from vitrine import metrics
from vitrine.errors import CONNECTION_LIMIT, CheckpointMoved, RelationMissing, VitrineError, is_failure, is_final
from vitrine.flow.check_results import CheckFailed, Results, combined
from vitrine.flow.protocols import Outcome, Stop
from vitrine.flow.rows import Counts
from vitrine.pipeline import Claim
from vitrine.runner.context import RunContext
from vitrine.runner.control import HangHandler, RunnerControl, Watch
from vitrine.runner.jobs import JOBS
from vitrine.settings import Settings
from vitrine.store.checkpoints import StoreCheckpoint, record_checks
from vitrine.store.database import Link

log = logging.getLogger(__name__)

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
