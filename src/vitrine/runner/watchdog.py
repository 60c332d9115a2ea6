"""A timer for batches: an overdue batch is cancelled, and a run that still does not return is reported as hung."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Protocol, Self

from vitrine.errors import DataError, VitrineError
from vitrine.model import format_duration
from vitrine.pipeline import Claim

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
