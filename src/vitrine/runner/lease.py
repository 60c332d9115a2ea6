"""The right to run a pipeline: kept alive by a thread of its own, and given up in time."""

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Self

from vitrine.errors import LeaseLost, VitrineError
from vitrine.failpoints import reach
from vitrine.model import Claim
from vitrine.postgres import Connection, connect
from vitrine.status import Status
from vitrine.store import pipelines

log = logging.getLogger(__name__)


def suspended_clock() -> float:
    """Seconds of a clock that goes on while the machine sleeps, where the platform has one."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class Lease:
    """Heartbeats of one claim. `check` raises LeaseLost as soon as the lease is, or may be, somebody else's."""

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
        self._clock = clock
        self._deadline = clock() + ttl.total_seconds()
        self._lost = False
        self._pause_requested = False
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
        if self._lost or self._clock() >= self._deadline:
            raise LeaseLost(f"the lease of '{self._claim.definition.name}' is lost; this run writes nothing more")

    def beat(self, connection: Connection) -> None:
        """Prolong the lease now, and learn whether it is lost or a pause was asked for."""
        before = self._clock()  # taken before sending: the answer may be late
        self._learn(pipelines.heartbeat(connection, self._claim, self._ttl), before)

    def _beat(self) -> None:
        """Prolong the lease until told to stop. A connection that fails is made anew: the deadline is the judge."""
        while not self._stopping.wait(self._interval) and not self._lost:
            # connected for the first beat, not before: most runs are over by then
            try:
                with connect(self._url, name=f"vitrine:{self._claim.token}:heartbeat") as connection:
                    self._beat_through(connection)
            except VitrineError as exc:
                log.warning(
                    "heartbeat failed: %s", exc, extra={"action": "heartbeat_failed", **self._claim.log_fields()}
                )
                self._stopping.wait(min(self._interval, 1.0))

    def _beat_through(self, connection: Connection) -> None:
        while not self._lost:
            reach("heartbeat")
            self.beat(connection)
            if self._stopping.wait(self._interval):
                return

    def _learn(self, status: Status | None, before: float) -> None:
        self._lost = status is None
        self._pause_requested = status is Status.PAUSE_REQUESTED
        if status is not None:
            self._deadline = before + self._ttl.total_seconds()
