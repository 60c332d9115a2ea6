"""The control of a run: lease, watchdog, throttle, progress, reload and stop behind one object."""

import logging
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Protocol, Self

from vitrine import metrics
from vitrine.core.protocols import Outcome, Phase, Stop, Throttle
from vitrine.core.rows import Counts, Lane, Saved, Watermark
from vitrine.core.status import Status
from vitrine.definition.model import format_duration, with_throttle_of
from vitrine.definition.pipeline import Claim, suspended_clock
from vitrine.errors import CONNECTION_LIMIT, DataError, LeaseLost, TransientError, VitrineError
from vitrine.failpoints import reach
from vitrine.plan import planner
from vitrine.plan.planner import CheckedDefinition, Prepared
from vitrine.postgres import Connection, connect
from vitrine.settings import Settings
from vitrine.store import history, pipelines, queue, state
from vitrine.store.database import Link

log = logging.getLogger(__name__)

STATUS_SECONDS = 1.0
"""How often the status is read between heartbeats, so that a pause is noticed; reading writes nothing."""


class HeartbeatLease:
    """Heartbeats of one claim. `check` raises LeaseLost as soon as another runner has, or may have, the lease."""

    def __init__(
        self,
        url: str,
        claim: Claim,
        *,
        ttl: timedelta,
        interval: timedelta,
        clock: Callable[[], float] = suspended_clock,
    ) -> None:
        self._url = url
        self._claim = claim
        self._ttl = ttl
        self._interval = interval.total_seconds()
        self._period = min(self._interval, STATUS_SECONDS)
        self._clock = clock
        self._next_beat = clock() + self._interval
        self._deadline = claim.taken_at + ttl.total_seconds()
        self._lost = False
        self._pause_requested = False
        self._starved: VitrineError | None = None  # why no heartbeat can be sent: there is no connection for it
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"heartbeat-{claim.token}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()

    @property
    def pause_requested(self) -> bool:
        return self._pause_requested

    def check(self) -> None:
        remaining = self.seconds_left()
        starved = self._starved
        if starved is not None and remaining < self._ttl.total_seconds() / 2:
            raise starved  # the run must release its connections before the lease is lost

    def seconds_left(self) -> float:
        """Until the local deadline; LeaseLost at zero."""
        remaining = self._deadline - self._clock()
        # guarantee: A9
        if self._lost or remaining <= 0:
            raise LeaseLost(f"the lease of '{self._claim.definition.name}' is lost; this run writes nothing more")
        return remaining

    def beat(self, connection: Connection) -> None:
        """Extend the lease now; records whether it is lost or a pause was requested."""
        before = self._clock()  # read before sending: the answer may be late
        status = queue.heartbeat(connection, self._claim, self._ttl)
        if status is not None:
            self._deadline = before + self._ttl.total_seconds()
            self._next_beat = before + self._interval
        self._learn(status)

    def _beat(self) -> None:
        """Extend the lease until stopped. A failed connection is replaced: only the deadline ends the lease."""
        while not self._stopping.wait(self._period) and not self._lost:
            # connect for the first heartbeat, not before: most runs have ended by then
            try:
                with connect(self._url, name=f"{self._claim.session}:heartbeat") as connection:
                    self._beat_through(connection)
            except VitrineError as exc:
                self._starved = exc if exc.code == CONNECTION_LIMIT else None
                log.warning(
                    "heartbeat failed: %s", exc, extra={"action": "heartbeat_failed", **self._claim.log_fields()}
                )

    def _beat_through(self, connection: Connection) -> None:
        self._starved = None
        while not self._lost:
            if self._clock() + self._period / 2 >= self._next_beat:
                reach("heartbeat")
                self.beat(connection)
            else:
                self._learn(queue.get_lease_status(connection, self._claim))
            if self._stopping.wait(self._period):
                return

    def _learn(self, status: Status | None) -> None:
        self._lost |= status is None
        # guarantee: D7
        self._pause_requested = status is Status.PAUSE_REQUESTED


CHECK_SECONDS = 0.2
GRACE = timedelta(seconds=5)
"""Grace period for a run to return after its calls were cancelled; user code may never return."""


class Watched(Protocol):
    """A run under the watchdog; the methods are called from the watchdog's thread."""

    def cancel_interrupted(self) -> None:
        """At every check: cancel the calls of a run that should end and cannot notice it."""
        ...

    def cancel_calls(self) -> None:
        """The batch is overdue: cancel its current calls."""
        ...

    def report_hang(self, error: VitrineError) -> None:
        """The run has not returned after the grace period."""
        ...


class Watchdog:
    """Times the batches of one run, in a separate thread, because a thread that hangs cannot report it."""

    def __init__(self, claim: Claim, watched: Watched, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = claim.definition.options.batch_timeout
        self._name = claim.definition.name
        self._watched = watched
        self._clock = clock
        self._since: float | None = None  # None: no batch is timed
        self._overdue = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"watchdog-{claim.token}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def start_batch(self) -> None:
        self._since = self._clock()

    def stop_timing(self) -> None:
        """Stop the timer: the following work is not a batch."""
        self._since = None

    @property
    def error(self) -> VitrineError | None:
        """The error with which the run must end; None while its batches are in time."""
        if not self._overdue:
            return None
        return DataError(
            f"a batch of '{self._name}' took longer than options.batch_timeout ({format_duration(self._limit)}); make"
            " its query or transform faster or its batches smaller, or allow more time",
            code="BATCH_TIMEOUT",
        )

    def check(self) -> None:
        if error := self.error:
            raise error

    def _watch(self) -> None:
        if not self._becomes_overdue():
            return
        self._overdue = True
        self._watched.cancel_calls()
        if not self._ended.wait(min(GRACE, self._limit).total_seconds()) and (error := self.error):
            self._watched.report_hang(error)

    def _becomes_overdue(self) -> bool:
        while not self._ended.wait(CHECK_SECONDS):
            self._watched.cancel_interrupted()
            since = self._since
            # guarantee: A16
            if since is not None and self._clock() - since > self._limit.total_seconds():
                return True
        return False


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
        self.throttle = Throttle(planner.limits_of(claim.definition, Lane.COPY))
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
        self.throttle.limits = planner.limits_of(self._definition, prepared.lane)
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
                    history.enter_user_code(connection, self._claim)
            case Phase.READ | Phase.CATCH_UP:
                self._start_batch()

    def observe(self, watermark: Watermark | None) -> None:
        lag, blocker = (watermark.lag, watermark.blocker) if watermark else (None, None)
        try:
            state.note_watermark(self._store.connection(), self._claim, lag, blocker)
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
            status, version = queue.poll_run(self._store.connection(), self._claim)
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
        self.throttle.limits = planner.limits_of(self._definition, self._prepared.lane)
        history.update_config(store, self._claim, self._definition)
        log.info("throttle reloaded", extra={"action": "config_reloaded", **self._claim.log_fields()})
