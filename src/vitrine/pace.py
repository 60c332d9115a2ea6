"""How fast a run may go: the size of its batches, and the rest between them."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class Limits:
    """What a pipeline says about its pace."""

    batch_size: int
    max_rows_per_second: int | None = None  # None: as fast as it can
    pause_between_batches: timedelta = timedelta(0)

    @property
    def rows_at_once(self) -> int:
        """No more than a second allows: a slow run is slow evenly, and not in bursts."""
        return min(self.batch_size, self.max_rows_per_second or self.batch_size)

    def seconds_after(self, rows: int) -> float:
        """How long the next batch waits after one of so many rows, at most."""
        by_rate = rows / self.max_rows_per_second if self.max_rows_per_second else 0.0
        return max(by_rate, self.pause_between_batches.total_seconds())


class Pace:
    """The limits a run keeps to. They may be changed on the way; the thread that reads ahead sees the new ones too."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._clock = clock
        self._rows = 0
        self._began = self._ended = float("-inf")  # of the latest batch

    def begin(self) -> None:
        """A batch begins."""
        self._began = self._clock()

    def end(self, rows: int) -> None:
        """It is written."""
        self._ended, self._rows = self._clock(), rows

    def delay(self) -> float:
        """Seconds until the next batch may begin. Time that was lost is not made up for by a burst."""
        limits = self.limits
        rate = limits.max_rows_per_second
        by_rate = self._began + self._rows / rate if rate else self._began
        return max(
            0.0, by_rate - self._clock(), self._ended + limits.pause_between_batches.total_seconds() - self._clock()
        )
