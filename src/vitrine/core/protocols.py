"""Interfaces between the loop, sources, sinks, the checkpoint and the control of a run."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from vitrine.core.checks import BaseCheck
from vitrine.core.rows import (
    Batch,
    Column,
    Compare,
    Counts,
    Digest,
    Entry,
    Generation,
    Key,
    Lane,
    LoadInfo,
    Read,
    Saved,
    Selection,
    SourceInfo,
    Stamp,
    State,
    TargetInfo,
    Watermark,
    Written,
)


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


# Calls go down, values come back: neither source nor sink calls the checkpoint, the run control or the engine.
Transformer = Callable[[Batch], Batch]


class Outcome(StrEnum):
    """How a run ended without an error."""

    FINISHED = "finished"
    PAUSED = "paused"
    RELEASED = "released"


class Phase(StrEnum):
    """What a run is doing."""

    READ = "read"
    USER_CODE = "user_code"
    PUBLISH = "publish"  # not timed, because it is not a batch
    CATCH_UP = "catch_up"
    COMPARE = "compare"  # not timed either


class LoadState(StrEnum):
    """The state of a load in the target."""

    ABSENT = "absent"
    STAGED = "staged"
    PUBLISHED = "published"


class Stop(Exception):
    """Ends a run early, PAUSED or RELEASED. A unit that is open is not saved."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class Transaction(Protocol):
    """An open transaction; psycopg's connection conforms."""

    def execute(self, query: Any, params: Any = None, /) -> Any: ...


class Source(Protocol):
    """Reads rows in order. The constructor checks the configuration and opens nothing."""

    def describe(self) -> SourceInfo:
        """Columns, lanes, estimate and findings, as the system sees them now."""
        ...

    def watermark(self, column: str) -> Watermark | None:
        """How far the column is settled; None: nothing is held back. ConfigError: it cannot be known."""
        ...

    def batches(self, read: Read, throttle: Throttle) -> Iterator[Batch]:
        """Every batch, in order; at least one, which may be empty. The throttle decides the size of each."""
        ...

    def digest(self, compare: Compare) -> Sequence[Digest] | None:
        """Digests computed inside the system; None: the caller streams the rows instead.

        Called in another thread while the sink computes its own.
        """
        ...

    def cancel(self) -> None:
        """From any thread: the current call ends within a second."""
        ...

    def close(self) -> None:
        """Releases everything; may be called twice."""
        ...


class Work(Protocol):
    """Work that becomes visible in the target atomically."""

    @property
    def transaction(self) -> Transaction | None:
        """Open on the store's database, so that the checkpoint joins it; None: the target acknowledges by itself."""
        ...

    @property
    def result(self) -> Written:
        """What has been written so far."""
        ...


class Unit(Work, Protocol):
    """One atomic write to a target, or to a load."""

    def write(self, batch: Batch) -> None:
        """Upsert by key. Rows that do not fit go to the job's reject policy, which may raise.

        The loop deletes `batch.deleted` afterwards, in the same unit.

        Outside a load, the definition's checks are carried out on the rows; CheckFailed before any of them is visible.

        The loop saves `batch.refused`. A load that removes what was not staged keeps what the target has of these keys.
        """
        ...

    def delete(self, keys: Sequence[Key]) -> None:
        """Delete by key; a missing key is not an error."""
        ...


class Writer(Protocol):
    """What the loop writes to: a sink, or a load."""

    def unit(self, stamp: Stamp) -> AbstractContextManager[Unit]:
        """A unit that ends without an exception is acknowledged by the target."""
        ...


class Load(Writer, Protocol):
    """Staged rows, invisible to readers until they are published."""

    @property
    def state(self) -> LoadState: ...

    def publish(self, stamp: Stamp, info: LoadInfo) -> AbstractContextManager[Work]:
        """Make the rows visible atomically; can be repeated. After a DataError nothing has changed.

        The checks of the info are carried out first.
        """
        ...

    def discard(self) -> None:
        """Remove the staged rows, never rows that readers see."""
        ...


class Sink(Writer, Protocol):
    """Writes rows by key. The constructor checks the configuration and opens nothing."""

    def describe(self, columns: Sequence[Column] = ()) -> TargetInfo:
        """The target, and every finding about writing these columns to it."""
        ...

    def encode(self, batch: Batch) -> Batch:
        """The batch in a format that is faster to send; called in another thread, before the write.

        Not called for rows in lane copy without transforms: they are sent as they were read.
        """
        ...

    def load(self, generation: Generation) -> Load:
        """The generation, in its present state in the target."""
        ...

    def digest(self, compare: Compare, rows: Iterator[Batch] | None = None) -> Sequence[Digest] | None:
        """Digests of the target or, given rows, of these rows as they are; nothing is stored.

        None: the caller fetches the rows instead.
        """
        ...

    def fetch(self, only: Selection, columns: Sequence[Column]) -> Iterator[Batch]:
        """Stored rows by keys or range, in the order of the key, values in these types."""
        ...

    def cancel(self) -> None:
        """From any thread: the current call ends within a second."""
        ...

    def close(self) -> None:
        """Releases everything; may be called twice."""
        ...

    @classmethod
    def sweep(cls, job: Any) -> Sequence[str]:
        """Remove the leftovers of this installation's loads that the SweepJob describes; returns their names."""
        ...


class Checkpoint(Protocol):
    """The stored state of one claim, over all attempts inside the run."""

    @property
    def state(self) -> State:
        """As of the last open or save."""
        ...

    def open(self, cursor_types: str) -> State:
        """Read the state under the fence; finds out whether a commit without a reply was applied."""
        ...

    def open_generation(self, fingerprint: str, bound: str | None) -> Generation:
        """Start a load, under the fence; generation numbers are never reused."""
        ...

    def stamp(self) -> Stamp:
        """The stamp of the next unit."""
        ...

    def save(self, entry: Entry, transaction: Transaction | None) -> Saved:
        """Fence, compare-and-set, counts, rejects and facts in one transaction: the one given, or its own."""
        ...

    def confirm(self) -> None:
        """The transaction given to the last save has committed."""
        ...


class Lease(Protocol):
    """The part of the run control that connectors use."""

    def seconds_left(self) -> float:
        """Until the local deadline; LeaseLost at zero."""
        ...

    def wait(self, seconds: float) -> None:
        """Sleep; a pause or a stop raises Stop."""
        ...


class RunControl(Lease, Protocol):
    """Lease, watchdog, throttle, progress, reload and stop of one run."""

    @property
    def throttle(self) -> Throttle: ...

    @property
    def batch_started(self) -> float:
        """When the current batch started, by time.monotonic; throttle waits are not included."""
        ...

    def enter(self, phase: Phase, totals: Counts | None = None) -> None:
        """Start a phase; `totals` is what the run has moved so far."""
        ...

    def observe(self, watermark: Watermark | None) -> None:
        """Record how far the source is settled. Best effort: never fails a run."""
        ...

    def before_batch(self) -> None:
        """Wait for the throttle, check the lease, start the batch timer; Stop when the run should end here."""
        ...

    def after_batch(self, counts: Counts, saved: Saved) -> None:
        """Count what was saved; Stop when the run should end here."""
        ...

    def check(self) -> None:
        """Stop when the run should end, LeaseLost if the lease is lost; polled while the loop waits for a batch."""
        ...


class MarkedKeys(Protocol):
    """Returns the keys of rows, beside which the source may have rows that are marked as deleted."""

    def of_unmarked(self, batch: Batch) -> Iterable[Key]:
        """The keys of the rows that the transforms returned."""
        ...


@dataclass(frozen=True)
class Plan:
    """Everything the loop needs to move one pipeline's rows."""

    source: Source
    sink: Sink
    transforms: Sequence[Transformer]
    lane: Lane  # in which the source delivers rows
    target: TargetInfo
    incremental: bool
    order: tuple[str, ...]  # of a read: the key, or the cursor and its tie-breaker
    cursor_column: str | None  # its watermark bounds checkpoint and catch-up; None: the pipeline has no cursor
    cursor_types: str  # a checkpoint is valid for these types
    fingerprint: str  # staged rows are valid for this fingerprint
    target_name: str = ""  # for messages
    user_code: bool = False  # the transforms are user code, which may kill the process
    reads_user_code: bool = False  # the source is user code as well
    skip_null: bool = False
    last_wins: bool = False  # of several rows with one key, the last is kept
    full_run: bool = False  # an incremental pipeline loads everything once, and what vanished at the source is removed
    max_staging_age: timedelta = timedelta(hours=1)
    max_delete_ratio: float | None = 0.5  # None: any number of rows may be deleted
    checks: tuple[BaseCheck, ...] = ()
    # if rows may be marked as deleted, and the source can select rows by their key
    marked_keys: MarkedKeys | None = None

    @property
    def loads_everything(self) -> bool:
        """Whether the rows of an existing target are replaced by those of a load."""
        return self.full_run or not self.incremental

    def cancel(self) -> None:
        self.source.cancel()
        self.sink.cancel()

    def close(self) -> None:
        try:
            self.source.close()
        finally:
            self.sink.close()
