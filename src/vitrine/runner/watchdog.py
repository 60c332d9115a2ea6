"""A batch that takes too long: what it waits for is cancelled, and if it is still there then, it hangs."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Self

from vitrine.errors import DataError, VitrineError
from vitrine.model import Claim, print_duration

LOOK_SECONDS = 0.5
GRACE = timedelta(seconds=5)
"""For a run whose query was cancelled to come back; user code that loops never does."""


class Watchdog:
    """Times the batches of one run, in a thread of its own: a thread that hangs cannot tell so itself.

    `on_overdue` is called once a batch takes longer than the pipeline's batch_timeout, `on_hang` if the run has not
    ended some seconds later. What is no batch is not timed.
    """

    def __init__(
        self,
        claim: Claim,
        *,
        on_overdue: Callable[[], None],
        on_hang: Callable[[VitrineError], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = claim.definition.options.batch_timeout
        self._name = claim.definition.name
        self._on_overdue = on_overdue
        self._on_hang = on_hang
        self._clock = clock
        self._since: float | None = None  # None: no batch is under way
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

    def batch_begins(self) -> None:
        self._since = self._clock()

    def rest(self) -> None:
        """There is no batch for a while."""
        self._since = None

    @property
    def error(self) -> VitrineError | None:
        """Why the run cannot go on; None while its batches are in time."""
        if not self._overdue:
            return None
        return DataError(
            f"a batch of '{self._name}' took longer than options.batch_timeout ({print_duration(self._limit)}); make"
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
        self._on_overdue()
        if not self._ended.wait(min(GRACE, self._limit).total_seconds()) and (error := self.error):
            self._on_hang(error)

    def _becomes_overdue(self) -> bool:
        while not self._ended.wait(LOOK_SECONDS):
            since = self._since
            if since is not None and self._clock() - since > self._limit.total_seconds():
                return True
        return False
