"""The throttle of a run: the size of its batches, and the wait between them."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple


class Limits(NamedTuple):
    """The throttle settings of a pipeline in its lane."""

    batch_rows: int
    batch_bytes: int = 32 * 1024 * 1024
    max_rows_per_second: int | None = None  # None: as fast as possible
    pause_between_batches: timedelta = timedelta(0)


class Throttle:
    """The limits of a run. They may change while it runs; the thread that reads ahead uses the new ones as well."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._clock = clock
        self._rows = 0
        self._started = self._ended = float("-inf")  # of the latest batch

    @property
    def rows(self) -> int:
        """Rows of the next batch: at most those of one second, so that the load is even."""
        return min(self.limits.batch_rows, self.limits.max_rows_per_second or self.limits.batch_rows)

    @property
    def bytes(self) -> int:
        """Maximum size of the next batch in bytes."""
        return self.limits.batch_bytes

    def seconds_after(self, rows: int) -> float:
        """The longest wait after a batch of this many rows."""
        rate = self.limits.max_rows_per_second
        by_rate = rows / rate if rate else 0.0
        return max(by_rate, self.limits.pause_between_batches.total_seconds())

    def batch_started(self) -> None:
        self._started = self._clock()

    def batch_ended(self, rows: int) -> None:
        self._ended, self._rows = self._clock(), rows

    def delay(self) -> float:
        """Seconds until the next batch may start. Time lost earlier does not allow a burst."""
        rate = self.limits.max_rows_per_second
        by_rate = self._started + self._rows / rate if rate else self._started
        by_pause = self._ended + self.limits.pause_between_batches.total_seconds()
        return max(0.0, by_rate - self._clock(), by_pause - self._clock())
