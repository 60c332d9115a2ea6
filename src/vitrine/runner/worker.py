"""The runner process: polls for schedules, expired leases and requests, and starts runs in its free slots."""

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import psycopg

from vitrine import metrics
from vitrine.core.status import Status
from vitrine.definition import connectors
from vitrine.definition.connectors import Connector
from vitrine.definition.context import Loads, SweepJob
from vitrine.definition.pipeline import Claim
from vitrine.errors import CONNECTION_LIMIT, TransientError, VitrineError
from vitrine.postgres import Connection, connect
from vitrine.runner.run import PipelineDispatcher, wait_for_connection
from vitrine.settings import Settings
from vitrine.store import history, queue, schedules, state
from vitrine.store.database import Spares

log = logging.getLogger(__name__)


def sweep_sinks(settings: Settings, installation: str, open_loads: Loads) -> Iterator[str]:
    """Remove the leftovers of every configured sink; yields their names. A sink that fails does not stop the others."""
    for connector in connectors.installed().values():
        try:
            yield from _sweep(connector, settings, installation, open_loads)
        except VitrineError as exc:
            log.warning(
                "could not remove leftovers of connector '%s': %s",
                connector.name,
                exc,
                extra={"action": "sweep_failed", "code": exc.code},
            )


def _sweep(connector: Connector, settings: Settings, installation: str, open_loads: Loads) -> list[str]:
    if connector.sink is None:
        return []
    section = settings.section(connector.name, connector.settings)
    if not getattr(section, "is_configured", True):
        return []
    sink = connectors.load_class(connector, connector.sink.factory)
    return list(sink.sweep(SweepJob(section, installation, settings.store_url, open_loads)))


LONGEST_BACKOFF = 30.0
READY_WITHIN = 15.0
SWEEP_SECONDS = 3600.0
RELEASE_SECONDS = 10.0
"""Grace period for the other runs of a process to release their pipelines when one run hangs."""
SHORTEST_WAIT = 0.02
PRUNED_AT_ONCE = 500


class PipelineManager:
    """A runner process. Polling the store is authoritative; a NOTIFY only shortens the wait."""

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
        self._reached_at: float | None = None  # when a tick last reached the database; None: it is unavailable
        self._next_registration = 0.0
        self._running: set[Future[None]] = set()
        self._allowed = concurrency  # runs at once; fewer while connections are scarce
        self._unended: list[tuple[Claim, VitrineError]] = []  # runs without a connection to end themselves
        self._hanging = 0
        self._spares = Spares()
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="run")

    def request_stop(self) -> None:
        """Claim nothing more; runs release their pipelines after the current batch."""
        self._stop.set()
        self._wake.set()

    def is_ready(self) -> bool:
        """Whether a request would be claimed soon: the database was reached recently, and no stop was requested."""
        reached = self._reached_at
        within = max(READY_WITHIN, 3 * self._settings.poll_interval.total_seconds())
        return reached is not None and time.monotonic() - reached < within and not self._stop.is_set()

    def run(self) -> bool:
        """Work until a stop is requested. An unavailable database is waited for with growing backoff.

        False when a run hangs: its thread can only be ended with the process, which must not continue.
        """
        listener = threading.Thread(target=self._listen, name="listen", daemon=True)
        listener.start()
        if self._settings.webhook_url is not None:
            from vitrine.runner import webhook  # its library takes long to import, and is needed for this only

            webhook.start_notifier(self._settings, self._settings.webhook_url.get_secret_value(), self._stop)
        backoff = 0.5
        while not self._stop.is_set():
            try:
                with connect(self._settings.store_url, name="vitrine:runner") as store:
                    self._work(store)
            except TransientError as exc:
                if self._reached_at is not None:
                    # a connection that was cut while idle is replaced at once, without a warning
                    self._reached_at, backoff = None, 0.5
                    continue
                log.warning("waiting for the database: %s", exc, extra={"action": "database_away", "seconds": backoff})
                self._stop.wait(backoff)
                backoff = min(backoff * 2, LONGEST_BACKOFF)
        self._wait_for_runs()
        self._spares.close()
        self._deregister()
        return not self._hanging

    def _wait_for_runs(self) -> None:
        """Wait for active runs to release; do not wait for hung ones, and then only for a grace period."""
        deadline = None
        while len(active := [future for future in self._running if not future.done()]) > self._hanging:
            if self._hanging and deadline is None:
                deadline = time.monotonic() + RELEASE_SECONDS
            if deadline is not None and time.monotonic() > deadline:
                return
            wait(active, timeout=0.1)

    def _work(self, store: Connection) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            self.tick(store)
            self._reached_at = time.monotonic()
            metrics.slots(used=len(self._running), of=self._concurrency)
            self._wake.wait(self._wait_seconds(store))

    def _wait_seconds(self, store: Connection) -> float:
        """Until the next due time, at most a poll interval."""
        longest = self._settings.poll_interval.total_seconds()
        due = schedules.seconds_until_due(store)
        return longest if due is None else min(max(due, SHORTEST_WAIT), longest)

    def _maintain(self, store: Connection) -> None:
        """At intervals: remove staged leftovers, and history and messages that are too old or too many."""
        if time.monotonic() < self._next_sweep:
            return
        settings = self._settings
        pruned = history.prune_runs(
            store, max_age=settings.history_max_age, max_runs=settings.history_max_runs, limit=PRUNED_AT_ONCE
        )
        if pruned:
            log.info("history pruned", extra={"action": "history_pruned", "runs": pruned})
        messages = history.prune_notifications(store, limit=PRUNED_AT_ONCE)
        if max(pruned, messages) >= PRUNED_AT_ONCE:
            return  # the next ticks delete more: claims must not wait for it
        self._next_sweep = time.monotonic() + SWEEP_SECONDS
        for name in sweep_sinks(settings, history.installation_id(store), lambda: state.known_generations(store)):
            log.info("staged leftover removed", extra={"action": "staging_removed", "table": name})

    def tick(self, store: Connection) -> None:
        """Do everything that is due now."""
        self._maintain(store)
        self._register(store)
        self._spares.close_old()
        self._start_due(store)
        self._end_unended(store)
        self._running = {future for future in self._running if not future.done()}
        while len(self._running) < self._allowed and not self._stop.is_set():
            claim = queue.claim_next(
                store,
                runner=self._name,
                ttl=self._settings.lease_ttl,
                runs_per_source=self._settings.runs_per_source(),
            )
            if claim is None:
                return
            self._running.add(self._threads.submit(self._dispatch, claim))

    def _start_due(self, store: Connection) -> None:
        """Fire schedules and expire leases. Every run that ends causes a poll, and most polls find nothing."""
        due = schedules.get_due(store)
        for name in schedules.fire_schedules(store, self._settings.zone) if due.schedules else ():
            log.info("run due", extra={"action": "run_due", "pipeline": name, "status": Status.RUN_REQUESTED})
        for name in schedules.fire_reconciles(store) if due.reconciles else ():
            log.info("reconcile due", extra={"action": "reconcile_due", "pipeline": name})
        for row in queue.expire_leases(store) if due.leases else ():
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

    def _register(self, store: Connection) -> None:
        """At most once per poll interval, even if ending runs wake the manager more often.

        Also start what the end of a run could not: a pipeline that was locked, busy, paused or disabled then.
        """
        if time.monotonic() >= self._next_registration:
            history.register_runner(store, self._name)
            schedules.fire_chains(store)
            self._next_registration = time.monotonic() + self._settings.poll_interval.total_seconds()

    def _dispatch(self, claim: Claim) -> None:
        try:
            executed, _ = self._dispatcher.dispatch(claim, on_hang=lambda error: self._stop_hung(), spares=self._spares)
            self._adapt(executed.error)
        except VitrineError as exc:
            self._adapt(exc)
            if exc.code == CONNECTION_LIMIT:
                self._unended.append((claim, exc))
            else:
                # the lease expires, and the next runner continues
                log.error("run not closed: %s", exc, extra={"action": "run_left", **claim.log_fields()})
        finally:
            self._wake.set()

    def _adapt(self, error: VitrineError | None) -> None:
        """Fewer runs at once while connections are scarce, down to one, which holds no other back; then more again."""
        if error is None or error.code != CONNECTION_LIMIT:
            self._allowed = min(self._allowed + 1, self._concurrency)
            return
        self._spares.close()
        self._allowed = max(1, min(self._allowed, len(self._running)) - 1)
        extra = {"action": "connections_scarce", "allowed": self._allowed}
        log.warning("a run waits for connections; %d at once are allowed now: %s", self._allowed, error, extra=extra)

    def _end_unended(self, store: Connection) -> None:
        while self._unended:
            claim, error = self._unended[-1]
            verdict = wait_for_connection(claim.attempt)
            queue.end_run(
                store,
                claim,
                verdict.event,
                verdict.run_status,
                error_code=error.code,
                error_message=str(error),
                attempt=verdict.attempt,
                delay=verdict.delay,
            )
            self._unended.pop()

    def _stop_hung(self) -> None:
        self._hanging += 1
        self.request_stop()

    def _listen(self) -> None:
        """Wake up when a run is requested; on a separate connection, whose failure only causes delay."""
        while not self._stop.is_set():
            try:
                with connect(self._settings.store_url, name="vitrine:listen") as connection:
                    connection.execute("LISTEN vitrine")
                    while not self._stop.is_set():
                        for _ in connection.notifies(timeout=1.0, stop_after=1):
                            self._wake.set()
            except (VitrineError, psycopg.Error):
                self._stop.wait(5.0)

    def _deregister(self) -> None:
        try:
            with connect(self._settings.store_url, name="vitrine:runner") as store:
                history.deregister_runner(store, self._name)
        except TransientError:
            log.info("could not deregister this runner: database unavailable", extra={"action": "goodbye_unheard"})
