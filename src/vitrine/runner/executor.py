"""One run: lease, flow, outcome."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from vitrine import plan
from vitrine.errors import VitrineError
from vitrine.flow import Batch, Counts, Outcome, Plan, run_batches
from vitrine.model import Claim, Mode
from vitrine.postgres import Connection, connect
from vitrine.runner.lease import Lease
from vitrine.runner.pacing import Pacing
from vitrine.runner.watchdog import Watchdog
from vitrine.settings import Settings
from vitrine.sources.python import PythonReader
from vitrine.store import checkpoints, pipelines, runs

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Executed:
    """How a run ended: an outcome, or the error that ended it; and what it moved."""

    outcome: Outcome | None
    error: VitrineError | None
    counts: Counts
    batches: int
    seconds: float


Watch = Callable[[Counts, int | None], None]
"""Told after every batch: the counts so far, and how many rows are expected once that is known."""


class Progress:
    """What a run has moved so far; a listener may watch."""

    def __init__(self, watch: Watch | None) -> None:
        self.counts = Counts()
        self.batches = 0
        self._watch = watch

    def add(self, counts: Counts) -> None:
        self.counts += counts
        self.batches += 1 if counts.read else 0
        if self._watch is not None:
            self._watch(self.counts, None)

    def expect(self, rows: int) -> None:
        if self._watch is not None:
            self._watch(self.counts, rows)


class PipelineExecutor:
    """Executes a claimed run in this process, under its lease. Statuses are the dispatcher's business."""

    def __init__(self, settings: Settings, stop: threading.Event) -> None:
        self._settings = settings
        self._stop = stop

    def execute(
        self,
        claim: Claim,
        store: Connection,
        watch: Watch | None = None,
        on_hang: Callable[[VitrineError], None] = lambda error: None,
    ) -> Executed:
        """Never raises for a failure of the run itself: the error is part of the result.

        A run that hangs does not come back from here; `on_hang` is told, from another thread.
        """
        began = time.monotonic()
        progress = Progress(watch)
        outcome, error = None, None
        with Watchdog(claim, on_overdue=lambda: self._cancel(claim), on_hang=on_hang) as watchdog:
            try:
                outcome = self._move(claim, store, progress, watchdog)
            except VitrineError as exc:
                error = watchdog.error or exc
            except Exception as exc:  # user code and drivers may raise anything; the run must be closed
                log.exception("unexpected error", extra={"action": "unexpected_error", **claim.log_fields()})
                error = watchdog.error or VitrineError(
                    f"unexpected {type(exc).__name__}; the runner's log has the details", code="UNEXPECTED"
                )
        return Executed(outcome, error, progress.counts, progress.batches, time.monotonic() - began)

    def _move(self, claim: Claim, store: Connection, progress: Progress, watchdog: Watchdog) -> Outcome:
        settings = self._settings
        with Lease(settings.store_url, claim, ttl=settings.lease_ttl, interval=settings.heartbeat_interval) as lease:
            pacing = Pacing(claim, store, self._stop, lambda: self._interruption(lease, watchdog))
            prepared = plan.build(
                claim,
                settings,
                store,
                interruption=lambda: self._interruption(lease, watchdog),
                on_progress=lambda counts: self._moved(counts, progress, watchdog),
                on_all_read=watchdog.rest,
                on_reload=pacing.take,
                rest=lambda seconds: self._rest(seconds, pacing, watchdog),
            )
            pacing.drive(prepared.plan)
            try:
                runs.describe(store, claim, lane=prepared.plan.lane, rows=prepared.rows_expected)
                if prepared.rows_expected is not None:
                    progress.expect(prepared.rows_expected)
                lease.check()  # much may have gone by since the claim
                watchdog.batch_begins()
                outcome = run_batches(_announced(prepared.plan, claim, store), prepared.state)
                self._note_horizon(claim, store, prepared.plan)
            finally:
                prepared.plan.close()
            return self._catch_up(claim, store, prepared) if outcome is Outcome.FINISHED else outcome

    def _note_horizon(self, claim: Claim, store: Connection, done: plan.PostgresPlan) -> None:
        if claim.definition.mode is Mode.INCREMENTAL:
            seen = done.reader.horizon
            checkpoints.note_horizon(store, claim, seen and seen.lag, seen and seen.blocker)

    def _catch_up(self, claim: Claim, store: Connection, done: plan.Prepared) -> Outcome:
        """Bring what changed while a full load was read; its mart is right already, so a pause ends here too."""
        follows = plan.build_catch_up(claim, self._settings, store, done)
        if follows is None:
            return Outcome.FINISHED
        try:
            run_batches(follows.plan, follows.state)
        finally:
            follows.plan.close()
        return Outcome.FINISHED

    def _moved(self, counts: Counts, progress: Progress, watchdog: Watchdog) -> None:
        progress.add(counts)
        watchdog.batch_begins()

    def _rest(self, seconds: float, pacing: Pacing, watchdog: Watchdog) -> Outcome | None:
        """A piece of the rest between two batches, which is no time of either."""
        outcome = pacing.rest(seconds)
        watchdog.batch_begins()
        return outcome

    def _interruption(self, lease: Lease, watchdog: Watchdog) -> Outcome | None:
        lease.check()
        watchdog.check()
        if lease.pause_requested:
            return Outcome.PAUSED
        return Outcome.RELEASED if self._stop.is_set() else None

    def _cancel(self, claim: Claim) -> None:
        """A batch takes too long: what it waits for in the database is cancelled."""
        try:
            with connect(self._settings.store_url, name=f"vitrine:{claim.token}:watchdog") as store:
                pipelines.cancel_queries(store, claim)
        except VitrineError as exc:
            log.warning(
                "a query that takes too long could not be cancelled: %s",
                exc,
                extra={"action": "cancel_failed", **claim.log_fields()},
            )


def _announced(planned: plan.PostgresPlan, claim: Claim, store: Connection) -> Plan:
    """The plan, which notes when user code is entered for the first time; one without user code notes nothing."""
    if isinstance(planned.reader, PythonReader):
        runs.enter_user_code(store, claim)
        return planned
    if not planned.transforms:
        return planned
    entered = False

    def enter(batch: Batch) -> Batch:
        nonlocal entered
        if not entered:
            runs.enter_user_code(store, claim)
            entered = True
        return batch

    return replace(planned, transforms=(enter, *planned.transforms))
