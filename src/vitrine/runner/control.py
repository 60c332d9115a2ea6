"""The control of a run: lease, watchdog, throttle, progress, reload and stop behind one object."""

import logging
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol, Self

from vitrine import metrics
from vitrine.engine import plan
from vitrine.engine.plan import CheckedDefinition, Prepared
from vitrine.errors import TransientError, VitrineError
from vitrine.failpoints import reach
from vitrine.flow.protocols import Outcome, Phase, Stop
from vitrine.flow.rows import Counts, Lane, Saved, Watermark
from vitrine.flow.throttle import Throttle
from vitrine.model import with_throttle_of
from vitrine.pipeline import Claim
from vitrine.runner.lease import HeartbeatLease
from vitrine.runner.watchdog import Watchdog
from vitrine.settings import Settings
from vitrine.status import Status
from vitrine.store import leases, pipelines, runs
from vitrine.store import state as states
from vitrine.store.database import Link

log = logging.getLogger(__name__)

LOG_SECONDS = 10.0
"""After the first batches, a run logs one in this many seconds at level info; every batch is logged at debug."""

POLL_SECONDS = 0.5
"""How often the store is polled during a throttle wait."""

BACKOFF_POLL_SECONDS = 0.25
"""How often a wait between attempts checks for a pause or a stop."""

Watch = Callable[[Counts, int | None], None]
"""Called after every batch with the counts so far, and the number of expected rows if known."""


class HangHandler(Protocol):
    """Handles a run that hangs; called from the watchdog's thread."""

    def run_hangs(self, claim: Claim, error: VitrineError) -> None: ...


class Progress:
    """Progress of a run, for its observer, metrics and log."""

    def __init__(self, claim: Claim, watch: Watch | None, log_batches: int) -> None:
        self.counts = Counts()
        self.batches = 0
        self._claim = claim
        self._watch = watch
        self._log_batches = log_batches
        self._begun = False  # the start of the current batch was logged, so its end is as well
        self._started = self._logged = time.monotonic()

    def expect(self, rows: int | None) -> None:
        if self._watch is not None and rows is not None:
            self._watch(self.counts, rows)

    def begin(self) -> None:
        """A batch starts: its rows are read and transformed, and are to be written."""
        self._begun = self.batches < self._log_batches
        if self._begun:
            fields = {"action": "batch_started", **self._claim.log_fields(), "batch": self.batches + 1}
            log.info("batch started", extra=fields)

    def settle(self, totals: Counts) -> None:
        """Add the counts of a unit whose commit was confirmed later."""
        missed = totals - self.counts
        if missed != Counts():
            self.add(missed, 0.0)

    def add(self, counts: Counts, seconds: float) -> None:
        self.counts += counts
        self.batches += 1 if counts.read else 0
        metrics.batch_written(
            self._claim.definition.name,
            read=counts.read,
            written=counts.written,
            deleted=counts.deleted,
            rejected=counts.rejected,
            seconds=seconds,
        )
        if counts.read or self._begun:
            self._log(counts, seconds)
        self._begun = False
        if self._watch is not None:
            self._watch(self.counts, None)

    def _log(self, counts: Counts, seconds: float) -> None:
        now = time.monotonic()
        level = logging.INFO if self._begun or now - self._logged >= LOG_SECONDS else logging.DEBUG
        if log.isEnabledFor(level):
            self._logged = now if level == logging.INFO else self._logged
            extra: dict[str, object] = {
                "action": "batch_written",
                **self._claim.log_fields(),
                "batch": self.batches,
                "rows_read": counts.read,
                "rows_written": counts.written,
                "batch_seconds": round(seconds, 3),
                "run_seconds": round(now - self._started, 3),
            }
            log.log(level, "batch written", extra=extra)


class RunnerControl:
    """The RunControl of one claim. The loop calls it between batches; heartbeat and watchdog have threads."""

    def __init__(
        self,
        claim: Claim,
        settings: Settings,
        store: Link,
        stop: threading.Event,
        hangs: HangHandler,
        watch: Watch | None = None,
    ) -> None:
        self.progress = Progress(claim, watch, settings.log_batches)
        self.throttle = Throttle(plan.limits_of(claim.definition, Lane.COPY))
        self.batch_started = time.monotonic()
        self._claim = claim
        self._definition = claim.definition  # with the throttle of the last reload
        self._store = store
        self._stop = stop
        self._hangs = hangs
        self._prepared: Prepared | None = None
        self._preparing: CheckedDefinition | None = None  # source and target, while they are asked for the plan
        self._was_cancelled = False
        self._reloaded: int | None = None  # version of the throttle in use; None: as claimed
        self._lease = HeartbeatLease(
            settings.store_url, claim, ttl=settings.lease_ttl, interval=settings.heartbeat_interval
        )
        self._watchdog = Watchdog(claim, self)

    def __enter__(self) -> Self:
        self._lease.__enter__()
        self._watchdog.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._watchdog.__exit__(kind, exc, trace)
        finally:
            self._lease.__exit__(kind, exc, trace)

    @property
    def overdue(self) -> VitrineError | None:
        """The error with which the run must end if a batch took too long."""
        return self._watchdog.error

    @contextmanager
    def preparing(self, checked: CheckedDefinition) -> Generator[None]:
        """Source and target are asked: the watchdog cancels their calls if the run should end."""
        self._was_cancelled, self._preparing = False, checked
        try:
            yield
        except VitrineError:
            # whatever the cancelled call raised, the interruption is the reason
            if self._was_cancelled and (outcome := self._interruption()):
                raise Stop(outcome) from None
            raise
        finally:
            self._preparing = None

    def use_plan(self, prepared: Prepared, rows_expected: int | None) -> None:
        """Use this plan: its lane decides the throttle, and the watchdog cancels its calls."""
        self._prepared = prepared
        self.throttle.limits = plan.limits_of(self._definition, prepared.lane)
        self.progress.expect(rows_expected)

    # -- called by the loop ---------------------------------------------------------------------------------------

    def enter(self, phase: Phase, totals: Counts | None = None) -> None:
        if totals is not None:
            self.progress.settle(totals)
        match phase:
            case Phase.PUBLISH | Phase.COMPARE:
                self._watchdog.stop_timing()
            case Phase.USER_CODE:
                # called in another thread, while the loop uses the other connection
                with self._store.another() as connection:
                    runs.enter_user_code(connection, self._claim)
            case Phase.READ | Phase.CATCH_UP:
                self._start_batch()

    def observe(self, watermark: Watermark | None) -> None:
        lag, blocker = (watermark.lag, watermark.blocker) if watermark else (None, None)
        try:
            states.note_watermark(self._store.connection(), self._claim, lag, blocker)
        except TransientError:
            self._store.drop()

    def before_batch(self) -> None:
        """Waits in short intervals, so that a pause, a stop, a lost lease or a reload is noticed within a second."""
        while (seconds := self.throttle.delay()) > 0:
            self._wait_for_throttle(min(seconds, POLL_SECONDS))
            self._start_batch()  # the wait does not count as batch time
        self._lease.check()
        self.throttle.batch_started()
        self.progress.begin()

    def after_batch(self, counts: Counts, saved: Saved) -> None:
        self.throttle.batch_ended(counts.read)
        self.progress.add(counts, time.monotonic() - self.batch_started)
        self._start_batch()
        self._reload(saved.reload_version)
        if saved.pause_requested:
            raise Stop(Outcome.PAUSED)
        self.check()

    def check(self) -> None:
        if outcome := self._interruption():
            raise Stop(outcome)

    def _interruption(self) -> Outcome | None:
        self._lease.check()
        self._watchdog.check()
        if self._lease.pause_requested:
            return Outcome.PAUSED
        return Outcome.RELEASED if self._stop.is_set() else None

    # -- called by connectors -------------------------------------------------------------------------------------

    def seconds_left(self) -> float:
        return self._lease.seconds_left()

    def wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while True:
            self.check()
            if (remaining := until - time.monotonic()) <= 0:
                return
            self._stop.wait(min(remaining, POLL_SECONDS))

    # -- called by the executor and the watchdog ------------------------------------------------------------------

    def wait_for_retry(self, seconds: float) -> None:
        """Wait unless the run should end (Stop); polls the store for a pause, because heartbeats may be rare."""
        self._store.drop()
        self._watchdog.stop_timing()
        until = time.monotonic() + seconds
        reach("in_backoff")
        while True:
            try:
                self._lease.beat(self._store.connection())
            except TransientError:
                self._store.drop()  # still unavailable; the lease's own deadline decides
            self.check()
            if (remaining := until - time.monotonic()) <= 0:
                return
            self._stop.wait(min(remaining, BACKOFF_POLL_SECONDS))

    def cancel_interrupted(self) -> None:
        checked = self._preparing
        if checked is None:
            return  # batches are interrupted by the loop
        try:
            ends = self._interruption() is not None
        except VitrineError:
            ends = True  # the lease is lost
        if ends:
            self._was_cancelled = True
            checked.cancel()

    def cancel_calls(self) -> None:
        if self._prepared is None:
            return
        try:
            self._prepared.plan.cancel()
        except Exception as exc:  # noqa: BLE001  a connector may raise anything; the hang is reported next
            log.warning(
                "could not cancel an overdue batch: %s",
                type(exc).__name__,
                extra={"action": "cancel_failed", **self._claim.log_fields()},
            )

    def report_hang(self, error: VitrineError) -> None:
        self._hangs.run_hangs(self._claim, error)

    def _start_batch(self) -> None:
        self.batch_started = time.monotonic()
        self._watchdog.start_batch()

    def _wait_for_throttle(self, seconds: float) -> None:
        """Wait outside any transaction, then poll the store: Stop or LeaseLost when the run should end."""
        self._stop.wait(seconds)
        try:
            status, version = leases.poll_run(self._store.connection(), self._claim)
        except TransientError:
            self._store.drop()
            self.check()  # the store is unavailable: the lease's own deadline decides
            return
        self._reload(version)
        if status is Status.PAUSE_REQUESTED:
            raise Stop(Outcome.PAUSED)
        self.check()

    def _reload(self, version: int | None) -> None:
        """Use the stored throttle, if that was requested; everything else stays as it was claimed."""
        if self._prepared is None or version in (None, self._reloaded):
            return
        self._reloaded = version
        store = self._store.connection()
        stored = pipelines.get(store, self._claim.pipeline_id).definition
        self._definition = with_throttle_of(stored, self._claim.definition)
        self.throttle.limits = plan.limits_of(self._definition, self._prepared.lane)
        runs.update_config(store, self._claim, self._definition)
        log.info("throttle reloaded", extra={"action": "config_reloaded", **self._claim.log_fields()})
