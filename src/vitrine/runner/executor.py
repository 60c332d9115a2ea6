"""One run: lease, flow, further tries, outcome."""

import gc
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from vitrine import metrics, plan
from vitrine.errors import CheckpointMoved, TransientError, VitrineError, is_final
from vitrine.failpoints import reach
from vitrine.flow import Batch, Counts, Outcome, Plan, run_batches
from vitrine.model import Claim, Mode
from vitrine.postgres import Connection, connect
from vitrine.runner.lease import Lease
from vitrine.runner.pacing import Pacing
from vitrine.runner.watchdog import Watchdog
from vitrine.settings import Settings
from vitrine.sources.python import PythonReader
from vitrine.store import checkpoints, pipelines, runs
from vitrine.store.database import Link
from vitrine.store.state import PostgresState

log = logging.getLogger(__name__)

WAITS = (1.0, 2.0, 4.0)
"""Seconds before each further try of a run that gets nowhere; then the dispatcher decides."""

TURN_SECONDS = 0.0005
"""How long one thread keeps the interpreter while others wait. The writer waits for the reader after every round trip;
Python's own 5 ms cost a full load a tenth of its time."""

COLLECTING = (50_000, 20, 100)
"""When Python looks for circles of references. A batch has thousands of rows and none in a circle; looking through them
after every 700 takes a third of the time."""

ATTENTION_SECONDS = 0.25
"""How soon a waiting run notices that it should pause or stop."""


@dataclass(frozen=True)
class Executed:
    """How a run ended: an outcome, or the error that ended it; and what it moved."""

    outcome: Outcome | None
    error: VitrineError | None
    counts: Counts
    batches: int
    seconds: float
    moved: bool = False  # the checkpoint or the mart is not where the run found it


Watch = Callable[[Counts, int | None], None]
"""Told after every batch: the counts so far, and how many rows are expected once that is known."""


def wait_before(failures: int, error: VitrineError, waits: Sequence[float] = WAITS) -> float | None:
    """Seconds before the next try after so many failures in a row; None when the run should end."""
    if is_final(error) or failures > len(waits):
        return None
    return 0.0 if isinstance(error, CheckpointMoved) else waits[failures - 1]


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

    def __init__(self, settings: Settings, stop: threading.Event, *, waits: Sequence[float] = WAITS) -> None:
        sys.setswitchinterval(TURN_SECONDS)
        gc.set_threshold(*COLLECTING)
        self._settings = settings
        self._stop = stop
        self._waits = waits

    def execute(
        self,
        claim: Claim,
        store: Link,
        watch: Watch | None = None,
        on_hang: Callable[[VitrineError], None] = lambda error: None,
    ) -> Executed:
        """Never raises for a failure of the run itself: the error is part of the result.

        A run that hangs does not come back from here; `on_hang` is told, from another thread.
        """
        settings = self._settings
        began = time.monotonic()
        progress = Progress(watch)
        with (
            Lease(settings.store_url, claim, ttl=settings.lease_ttl, interval=settings.heartbeat_interval) as lease,
            Watchdog(claim, on_overdue=lambda: self._cancel(claim), on_hang=on_hang) as watchdog,
        ):
            tries = _Tries(
                claim, settings, store, progress, watchdog, self._stop, lambda: self._interruption(lease, watchdog)
            )
            ended = self._persevere(claim, tries, lambda seconds: self._wait(seconds, lease, watchdog, store))
        # whatever it ran into: it was cancelled for being late
        outcome, error = (None, watchdog.error or ended) if isinstance(ended, VitrineError) else (ended, None)
        seconds = time.monotonic() - began
        return Executed(outcome, error, progress.counts, progress.batches, seconds, tries.moved)

    def _persevere(
        self, claim: Claim, tries: "_Tries", wait: Callable[[float], Outcome | None]
    ) -> Outcome | VitrineError:
        """Try again where that may help, each time from what is stored; getting somewhere starts the count anew."""
        failures = 0
        while isinstance(ended := _caught(tries.go_on, claim), VitrineError):
            failures = 1 if tries.moved_just_now else failures + 1
            seconds = wait_before(failures, ended, self._waits)
            if seconds is None:
                return ended
            log.warning(
                "trying again: %s",
                ended,
                extra={"action": "retry", "code": ended.code, "seconds": seconds, **claim.log_fields()},
            )
            metrics.retried(claim.definition.name)
            if (interrupted := _caught(partial(wait, seconds), claim)) is not None:
                return interrupted
        return ended

    def _wait(self, seconds: float, lease: Lease, watchdog: Watchdog, store: Link) -> Outcome | None:
        """Wait unless the run should end; a pause is asked of the store itself, as a heartbeat may be far away."""
        store.drop()
        watchdog.rest()
        until = time.monotonic() + seconds
        reach("in_backoff")
        while True:
            try:
                lease.beat(store.connection())
            except TransientError:
                store.drop()  # away still; the lease's own deadline is the judge
            if outcome := self._interruption(lease, watchdog):
                return outcome
            if (left := until - time.monotonic()) <= 0:
                return None
            self._stop.wait(min(left, ATTENTION_SECONDS))

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


Result = TypeVar("Result")


def _caught(step: Callable[[], Result], claim: Claim) -> Result | VitrineError:
    """What a step of the run comes to; whatever it raises is a result too, as the run must be closed."""
    try:
        return step()
    except VitrineError as exc:
        return exc
    except Exception as exc:  # user code and drivers may raise anything
        log.exception("unexpected error", extra={"action": "unexpected_error", **claim.log_fields()})
        return VitrineError(f"unexpected {type(exc).__name__}; the runner's log has the details", code="UNEXPECTED")


class _Tries:
    """The tries of one run; each goes on from what those before it have left in the store."""

    def __init__(
        self,
        claim: Claim,
        settings: Settings,
        store: Link,
        progress: Progress,
        watchdog: Watchdog,
        stop: threading.Event,
        interruption: Callable[[], Outcome | None],
    ) -> None:
        self._claim = claim
        self._settings = settings
        self._store = store
        self._progress = progress
        self._watchdog = watchdog
        self._stop = stop
        self._interruption = interruption
        self._load: plan.Prepared | None = None
        self._last: PostgresState | None = None
        self.moved = False
        self.moved_just_now = False  # in the latest try

    def go_on(self) -> Outcome:
        """Everything that is left to do, or up to the next interruption."""
        self.moved_just_now = False
        store = self._store.connection()
        if self._last is not None:
            self._last.settle(store)
            self.moved |= self._last.moved
        if self._load is None or not self._load.state.published:
            self._load = self._prepare(store)
            outcome = self._run(self._load)
            if outcome is not Outcome.FINISHED:
                return outcome
        else:
            self._load.state.reread(store)  # an earlier try of what follows has moved it
        # a full load: what changed while it was read. Its mart is right already, so a pause ends here too
        follows = plan.build_catch_up(self._claim, self._settings, store, self._load)
        if follows is not None:
            self._run(follows)
        return Outcome.FINISHED

    def _prepare(self, store: Connection) -> plan.Prepared:
        pacing = Pacing(self._claim, self._store, self._stop, self._interruption)
        prepared = plan.build(
            self._claim,
            self._settings,
            store,
            interruption=self._interruption,
            on_progress=self._batch_done,
            on_all_read=self._watchdog.rest,
            on_reload=pacing.take,
            rest=lambda seconds: self._rest(pacing, seconds),
        )
        pacing.drive(prepared.plan)
        try:
            runs.describe(store, self._claim, lane=prepared.plan.lane, rows=prepared.rows_expected)
            if prepared.rows_expected is not None:
                self._progress.expect(prepared.rows_expected)
        except BaseException:
            prepared.plan.close()
            raise
        return prepared

    def _run(self, prepared: plan.Prepared) -> Outcome:
        self._last = prepared.state
        try:
            if outcome := self._interruption():  # much may have gone by since the claim
                return outcome
            self._watchdog.batch_begins()
            outcome = run_batches(self._announced(prepared.plan), prepared.state)
            self._note_horizon(prepared.plan)
            return outcome
        finally:
            prepared.plan.close()
            self.moved_just_now |= prepared.state.moved
            self.moved |= prepared.state.moved

    def _note_horizon(self, done: plan.PostgresPlan) -> None:
        """For whoever watches; a run that is done does not fail for it."""
        if self._claim.definition.mode is not Mode.INCREMENTAL:
            return
        seen = done.reader.horizon
        try:
            checkpoints.note_horizon(self._store.connection(), self._claim, seen and seen.lag, seen and seen.blocker)
        except TransientError:
            self._store.drop()

    def _rest(self, pacing: Pacing, seconds: float) -> Outcome | None:
        """A piece of the rest between two batches, which is no time of either."""
        outcome = pacing.rest(seconds)
        self._watchdog.batch_begins()
        return outcome

    def _batch_done(self, counts: Counts) -> None:
        self._progress.add(counts)
        self._watchdog.batch_begins()

    def _announced(self, planned: plan.PostgresPlan) -> Plan:
        """The plan, which notes when user code is first entered: should the process die, this run is a suspect."""
        if isinstance(planned.reader, PythonReader):
            runs.enter_user_code(self._store.connection(), self._claim)
            return planned
        if not planned.transforms:
            return planned
        entered = False

        def enter(batch: Batch) -> Batch:
            nonlocal entered
            if not entered:
                # transforms work beside the thread that writes, which has the other connection for itself
                with self._store.another() as connection:
                    runs.enter_user_code(connection, self._claim)
                entered = True
            return batch

        return replace(planned, transforms=(enter, *planned.transforms))
