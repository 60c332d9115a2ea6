"""The lease of a run: extended by heartbeats in a separate thread; the run stops before it expires."""

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Self

from vitrine.errors import CONNECTION_LIMIT, LeaseLost, VitrineError
from vitrine.failpoints import reach
from vitrine.pipeline import Claim, suspended_clock
from vitrine.postgres import Connection, connect
from vitrine.status import Status
from vitrine.store import leases

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
        status = leases.heartbeat(connection, self._claim, self._ttl)
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
                self._learn(leases.get_lease_status(connection, self._claim))
            if self._stopping.wait(self._period):
                return

    def _learn(self, status: Status | None) -> None:
        self._lost |= status is None
        # guarantee: D7
        self._pause_requested = status is Status.PAUSE_REQUESTED
