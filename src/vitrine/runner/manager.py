"""One tick after another: schedules, dead leases, claims up to the free slots."""

import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import psycopg

from vitrine.errors import TransientError, VitrineError
from vitrine.model import Claim
from vitrine.postgres import Connection, connect
from vitrine.runner.dispatcher import PipelineDispatcher
from vitrine.settings import Settings
from vitrine.store import checkpoints, pipelines, runs

log = logging.getLogger(__name__)

LONGEST_BACKOFF = 30.0
SWEEP_SECONDS = 3600.0


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
        self._has_ticked = False  # through the connection of now
        self._running: set[Future[None]] = set()
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="run")

    def request_stop(self) -> None:
        """Claim nothing more; runs release their pipelines after the current batch."""
        self._stop.set()
        self._wake.set()

    def run(self) -> None:
        """Work until asked to stop. A database that is away is waited for, longer and longer."""
        listener = threading.Thread(target=self._listen, name="listen", daemon=True)
        listener.start()
        backoff = 0.5
        while not self._stop.is_set():
            try:
                with connect(self._settings.store_url, name="vitrine:runner") as store:
                    self._work(store)
            except TransientError as exc:
                if self._has_ticked:
                    # a connection that was cut while nobody used it is replaced at once, and nobody need know
                    self._has_ticked, backoff = False, 0.5
                    continue
                log.warning("waiting for the database: %s", exc, extra={"action": "database_away", "seconds": backoff})
                self._stop.wait(backoff)
                backoff = min(backoff * 2, LONGEST_BACKOFF)
        self._threads.shutdown(wait=True)
        self._say_goodbye()

    def _work(self, store: Connection) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            self.tick(store)
            self._has_ticked = True
            self._wake.wait(self._settings.poll_interval.total_seconds())

    def _sweep(self, store: Connection) -> None:
        """Once in a while: staging that nobody will use any more."""
        if time.monotonic() < self._next_sweep:
            return
        self._next_sweep = time.monotonic() + SWEEP_SECONDS
        for name in checkpoints.drop_orphan_staging(store):
            log.info("leftover staging removed", extra={"action": "staging_removed", "table": name})

    def tick(self, store: Connection) -> None:
        """Everything that is due now."""
        self._sweep(store)
        runs.runner_alive(store, self._name)
        pipelines.fire_schedules(store)
        for row in pipelines.expire_leases(store):
            log.warning(
                "lease expired, pipeline %s",
                row["status"],
                extra={"action": "lease_expired", "pipeline": row["name"], "token": row["lease_token"]},
            )
        self._running = {future for future in self._running if not future.done()}
        while len(self._running) < self._concurrency and not self._stop.is_set():
            claim = pipelines.claim_next(store, runner=self._name, ttl=self._settings.lease_ttl)
            if claim is None:
                return
            self._running.add(self._threads.submit(self._dispatch, claim))

    def _dispatch(self, claim: Claim) -> None:
        try:
            self._dispatcher.dispatch(claim)
        except VitrineError as exc:
            # the lease runs out by itself and the next runner continues
            log.error("run left behind: %s", exc, extra={"action": "run_left", **claim.log_fields()})
        finally:
            self._wake.set()

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
                runs.runner_gone(store, self._name)
        except TransientError:
            log.info("the database is away; this runner will be forgotten", extra={"action": "goodbye_unheard"})
