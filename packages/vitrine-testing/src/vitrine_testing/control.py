"""A RunControl without threads and clocks: a test decides when the run ends and how long its lease lasts."""

import time

from vitrine.core.protocols import Limits, Outcome, Phase, Stop, Throttle
from vitrine.core.rows import Counts, Saved, Watermark
from vitrine.errors import LeaseLost

LONGEST_WAIT = 0.01
"""Seconds of any wait that a connector asks for."""


class ScriptedControl:
    """Ends the run after some batches, if it should; the lease is valid until a test ends it."""

    def __init__(
        self, batch_rows: int = 2, *, stop_after: int | None = None, outcome: Outcome = Outcome.RELEASED
    ) -> None:
        self.throttle = Throttle(Limits(batch_rows))
        self.batch_started = time.monotonic()
        self.phases: list[Phase] = []
        self.counts = Counts()
        self.batches = 0
        self.watermark: Watermark | None = None
        self.stopped: Outcome | None = None  # the run is interrupted with this outcome; None: it continues
        self.deadline: float | None = None  # of the lease, by time.monotonic; None: it does not end
        self._stop_after = stop_after
        self._outcome = outcome

    def enter(self, phase: Phase, totals: Counts | None = None) -> None:
        self.phases.append(phase)

    def observe(self, watermark: Watermark | None) -> None:
        self.watermark = watermark

    def before_batch(self) -> None:
        self.seconds_left()
        self.batch_started = time.monotonic()

    def after_batch(self, counts: Counts, saved: Saved) -> None:
        self.counts += counts
        self.batches += 1 if counts.read else 0
        if saved.pause_requested:
            raise Stop(Outcome.PAUSED)
        if self._stop_after is not None and self.batches >= self._stop_after:
            raise Stop(self._outcome)
        if self.stopped is not None:
            raise Stop(self.stopped)

    def check(self) -> None:
        self.seconds_left()
        if self.stopped is not None:
            raise Stop(self.stopped)

    def seconds_left(self) -> float:
        if self.deadline is None:
            return 30.0
        if (left := self.deadline - time.monotonic()) <= 0:
            raise LeaseLost("the lease has ended")
        return left

    def wait(self, seconds: float) -> None:
        self.check()
        time.sleep(min(seconds, LONGEST_WAIT))
