"""One tick after another: schedules, dead leases, claims up to the free slots."""

import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait

import psycopg

from vitrine import metrics
from vitrine.errors import TransientError, VitrineError
from vitrine.model import Claim
from vitrine.postgres import Connection, connect
from vitrine.runner.dispatcher import PipelineDispatcher
from vitrine.settings import Settings
from vitrine.status import Status
from vitrine.store import pipelines, runs, staging

log = logging.getLogger(__name__)

LONGEST_BACKOFF = 30.0
READY_WITHIN = 15.0
SWEEP_SECONDS = 3600.0
LAST_SECONDS = 10.0
"""For the other runs of a process to let go of their pipelines, once one of them hangs."""
SHORTEST_REST = 0.02
PRUNED_AT_ONCE = 500


class PipelineManager:
    """A runner process: polls the store, which is the truth; a NOTIFY only shortens the wait."""

    def __init__(
        self,
        settings: Settings,
        dispatcher: PipelineDispatcher,
        *,
        name: str,
        concurrency: int,
        stop: threading.Event,
    ) -> None:
        self._settings = settings
        self._dispatcher = dispatcher
        self._name = name
        self._concurrency = concurrency
        self._stop = stop
        self._wake = threading.Event()
        self._next_sweep = 0.0
        self._reached_at: float | None = None  # when a tick last reached the database; None: it is away
        self._next_sign = 0.0
        self._running: set[Future[None]] = set()
        self._hanging = 0
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="run")

    def request_stop(self) -> None:
        """Claim nothing more; runs release their pipelines after the current batch."""
        self._stop.set()
        self._wake.set()

    def is_ready(self) -> bool:
        """Whether a request would be picked up soon: the database was reached lately, and nobody asked to stop."""
        reached = self._reached_at
        within = max(READY_WITHIN, 3 * self._settings.poll_interval.total_seconds())
        return reached is not None and time.monotonic() - reached < within and not self._stop.is_set()

    def run(self) -> bool:
        """Work until asked to stop. A database that is away is waited for, longer and longer.

        False when a run hangs: its thread cannot be ended but with the process, which must not go on.
        """
        listener = threading.Thread(target=self._listen, name="listen", daemon=True)
        listener.start()
        backoff = 0.5
        while not self._stop.is_set():
            try:
                with connect(self._settings.store_url, name="vitrine:runner") as store:
                    self._work(store)
            except TransientError as exc:
                if self._reached_at is not None:
                    # a connection that was cut while nobody used it is replaced at once, and nobody need know
                    self._reached_at, backoff = None, 0.5
                    continue
                log.warning("waiting for the database: %s", exc, extra={"action": "database_away", "seconds": backoff})
                self._stop.wait(backoff)
                backoff = min(backoff * 2, LONGEST_BACKOFF)
        self._wait_for_runs()
        self._say_goodbye()
        return not self._hanging

    def _wait_for_runs(self) -> None:
        """They let go after their batches; for one that hangs nobody waits, and for the others not long then."""
        deadline = None
        while len(left := [future for future in self._running if not future.done()]) > self._hanging:
            if self._hanging and deadline is None:
                deadline = time.monotonic() + LAST_SECONDS
            if deadline is not None and time.monotonic() > deadline:
                return
            wait(left, timeout=0.1)

    def _work(self, store: Connection) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            self.tick(store)
            self._reached_at = time.monotonic()
            metrics.slots(used=len(self._running), of=self._concurrency)
            self._wake.wait(self._rest(store))

    def _rest(self, store: Connection) -> float:
        """Until the next due time, at most a poll interval: then a due time is never passed over for want of a look."""
        longest = self._settings.poll_interval.total_seconds()
        due = pipelines.seconds_until_due(store)
        return longest if due is None else min(max(due, SHORTEST_REST), longest)

    def _sweep(self, store: Connection) -> None:
        """Once in a while: staging that nobody will use any more, and history that is too old or too much."""
        if time.monotonic() < self._next_sweep:
            return
        settings = self._settings
        pruned = runs.prune(
            store, max_age=settings.history_max_age, max_runs=settings.history_max_runs, limit=PRUNED_AT_ONCE
        )
        if pruned:
            log.info("history pruned", extra={"action": "history_pruned", "runs": pruned})
        if pruned >= PRUNED_AT_ONCE:
            return  # the rest in the next ticks: claims must not wait for it
        self._next_sweep = time.monotonic() + SWEEP_SECONDS
        for name in staging.drop_orphans(store):
            log.info("leftover staging removed", extra={"action": "staging_removed", "table": name})

    def tick(self, store: Connection) -> None:
        """Everything that is due now."""
        self._sweep(store)
        self._say_alive(store)
        for name in pipelines.fire_schedules(store, self._settings.zone):
            log.info("run due", extra={"action": "run_due", "pipeline": name, "status": Status.RUN_REQUESTED})
        for row in pipelines.expire_leases(store):
            metrics.lease_expired(row["name"], crash_loop=row["crash_loop"])
            log.warning(
                "lease expired, pipeline %s",
                row["status"],
                extra={
                    "action": "crash_loop" if row["crash_loop"] else "lease_expired",
                    "pipeline": row["name"],
                    "pipeline_id": str(row["id"]),
                    "status": row["status"],
                    "token": row["lease_token"],
                },
            )
        self._running = {future for future in self._running if not future.done()}
        while len(self._running) < self._concurrency and not self._stop.is_set():
            claim = pipelines.claim_next(
                store,
                runner=self._name,
                ttl=self._settings.lease_ttl,
                runs_per_source=self._settings.runs_per_source(),
            )
            if claim is None:
                return
            self._running.add(self._threads.submit(self._dispatch, claim))

    def _say_alive(self, store: Connection) -> None:
        """Once in a poll interval, however often runs that end wake us."""
        if time.monotonic() >= self._next_sign:
            runs.register_runner(store, self._name)
            self._next_sign = time.monotonic() + self._settings.poll_interval.total_seconds()

    def _dispatch(self, claim: Claim) -> None:
        try:
            self._dispatcher.dispatch(claim, on_hang=lambda error: self._give_up())
        except VitrineError as exc:
            # the lease runs out by itself and the next runner continues
            log.error("run left behind: %s", exc, extra={"action": "run_left", **claim.log_fields()})
        finally:
            self._wake.set()

    def _give_up(self) -> None:
        self._hanging += 1
        self.request_stop()

    def _listen(self) -> None:
        """Wake up when somebody asks for a run; on its own direct connection, which may fail at will."""
        while not self._stop.is_set():
            try:
                with connect(self._settings.store_url, name="vitrine:listen") as connection:
                    connection.execute("LISTEN vitrine")
                    while not self._stop.is_set():
                        for _ in connection.notifies(timeout=1.0, stop_after=1):
                            self._wake.set()
            except (VitrineError, psycopg.Error):
                self._stop.wait(5.0)

    def _say_goodbye(self) -> None:
        try:
            with connect(self._settings.store_url, name="vitrine:runner") as store:
                runs.deregister_runner(store, self._name)
        except TransientError:
            log.info("the database is away; this runner will be forgotten", extra={"action": "goodbye_unheard"})
