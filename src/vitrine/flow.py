"""The one loop that moves data, and the vocabulary of the parts it needs."""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import TracebackType
from typing import Any, Protocol, Self

from vitrine.failpoints import reach
from vitrine.model import Cursor, Row
from vitrine.pace import Pace


class Outcome(StrEnum):
    FINISHED = "finished"
    PAUSED = "paused"
    RELEASED = "released"


@dataclass(frozen=True)
class Column:
    """A column of a batch; `type_name` is spelled as the database spells it, so that it can be created again."""

    name: str
    type_name: str
    base_type: str | None = None  # what a domain is made of

    @property
    def readable_type(self) -> str:
        """The type whose values these are."""
        return self.base_type or self.type_name


@dataclass(frozen=True)
class Position:
    """What the state remembers of a read.

    A cursor of one element is inclusive (everything from that value on); a full one is exclusive. The pending pair
    belongs to cursors that carry no time: `pending_cursor` becomes the cursor once every transaction that was open at
    `pending_since` has ended.
    """

    cursor: Cursor | None = None
    pending_cursor: Cursor | None = None
    pending_since: datetime | None = None


START = Position()


Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Copied:
    """Rows exactly as COPY BINARY sent them, one behind the other: nobody has looked inside."""

    data: Bytes
    count: int


@dataclass(frozen=True)
class Printed:
    """Rows as COPY's text format has them, a line each: every type of Postgres, exactly, as Postgres prints it."""

    data: bytes | bytearray
    count: int


@dataclass(frozen=True)
class Framed:
    """Rows as one polars frame, between transforms that work on frames; `binary` is what COPY BINARY reads of them."""

    frame: Any
    binary: Bytes | None = field(default=None, compare=False, repr=False)

    @property
    def count(self) -> int:
        return len(self.frame)


@dataclass(frozen=True)
class Decoded:
    """Rows as Python values, for transforms and for sinks that do not speak COPY."""

    rows: Sequence[Row]
    # how they were printed when they came, where that is known: what is unchanged is written as it came
    origins: Any = field(default=None, compare=False, repr=False)

    @property
    def count(self) -> int:
        return len(self.rows)


Payload = Copied | Printed | Framed | Decoded


@dataclass(frozen=True)
class Batch:
    """Some rows, and the position to remember once they are written."""

    payload: Payload
    columns: tuple[Column, ...]
    position: Position

    @property
    def count(self) -> int:
        return self.payload.count


@dataclass(frozen=True)
class Counts:
    read: int = 0
    written: int = 0
    deleted: int = 0
    rejected: int = 0
    repeated: int = 0  # left out, as their key came again

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.read + other.read,
            self.written + other.written,
            self.deleted + other.deleted,
            self.rejected + other.rejected,
            self.repeated + other.repeated,
        )


@dataclass(frozen=True)
class Reject:
    """A row that did not fit the target; `row` is its JSON text, for the quarantine only."""

    key: str
    column: str | None  # None: the row as a whole breaks a rule
    sqlstate: str
    reason: str
    row: str


class SourceReader(Protocol):
    """Reads a query once, in cursor order, cut into batches."""

    def batches(self, after: Position, pace: Pace) -> Iterator[Batch]:
        """Every remaining batch; at least one, empty if need be, so that columns and position are always told.

        Each is cut as the pace says at that moment.
        """
        ...

    def rows_expected(self) -> int | None:
        """An estimate, for progress; None where there is none."""
        ...

    def cancel(self) -> None:
        """Give up the read under way; may be called from another thread than the one that reads."""
        ...

    def close(self) -> None: ...


Transformer = Callable[[Batch], Batch]


class Unit(Protocol):
    """One piece of work that becomes visible at once. `connection` lets the checkpoint join a database transaction."""

    @property
    def connection(self) -> Any: ...

    @property
    def rejects(self) -> Sequence[Reject]:
        """Rows put aside in this unit, to be stored with it."""
        ...

    @property
    def healed(self) -> Sequence[str]:
        """Keys of earlier rejects that were written in this unit."""
        ...

    def write(self, batch: Batch) -> Counts: ...


class StateManager(Protocol):
    """Keeps the position of a run, and tells when the run should stop."""

    @property
    def position(self) -> Position: ...

    def save(self, unit: Unit, position: Position, counts: Counts) -> None:
        """Remember the position together with the unit's rows; LeaseLost if somebody else owns the pipeline."""
        ...

    def publish(self, unit: Unit, staged: int, counts: Counts) -> None:
        """Close the generation of a full load of `staged` rows, together with the unit's change of the target."""
        ...

    def discard(self, unit: Unit) -> None:
        """Forget the generation of a full load: what was staged cannot be applied."""
        ...

    def rest(self, pace: Pace) -> Outcome | None:
        """Let the time pass until the next batch may begin; PAUSED or RELEASED when the run should end here."""
        ...

    def committed(self, counts: Counts) -> Outcome | None:
        """Told once a unit is visible to everybody; PAUSED or RELEASED when the run should end here."""
        ...

    def interruption(self) -> Outcome | None:
        """Asked again and again while the next batch is awaited; an outcome when the run should end here."""
        ...

    def all_read(self) -> None:
        """Told once the last batch is visible: what follows is no batch any more."""
        ...


class TargetWriter(Protocol):
    """Writes batches, each as one unit, and makes a full load visible at its end."""

    def encode(self, batch: Batch) -> Batch:
        """The batch closer to what the target takes; called from another thread, while the one before is written."""
        ...

    def unit(self) -> AbstractContextManager[Unit]: ...

    def publish(self, state: StateManager) -> Counts:
        """Make a full load visible at once; nothing to do for an incremental one."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Plan:
    reader: SourceReader
    writer: TargetWriter
    pace: Pace
    transforms: Sequence[Transformer] = field(default_factory=tuple)

    def close(self) -> None:
        try:
            self.reader.close()
        finally:
            self.writer.close()


def run_batches(plan: Plan, state: StateManager) -> Outcome:
    """Move every remaining batch. Rows and checkpoint land together, or not at all."""
    with ReadAhead(plan, after=state.position, interruption=state.interruption) as ahead:
        for read, batch in ahead.batches():
            if outcome := state.rest(plan.pace):
                return outcome
            reach("after_read")
            reach("after_transform")
            with plan.writer.unit() as unit:
                counts = unit.write(batch)
                reach("after_sink_write")
                state.save(unit, batch.position, counts)
                reach("before_commit")
            reach("after_commit")
            plan.pace.end(read)
            if outcome := state.committed(counts):
                return outcome
    if ahead.interrupted:
        return ahead.interrupted
    state.all_read()
    state.committed(plan.writer.publish(state))
    return Outcome.FINISHED


LOOK_SECONDS = 0.1
"""While a batch is awaited, so often is asked whether to go on: a slow query does not delay a pause or a stop."""

Ready = tuple[int, Batch]
"""A batch, and the number of rows it was made of."""

Waiting = queue.Queue[Ready | BaseException | None]
"""What is done and not taken yet: a batch, why there are no more, or None at the end."""


class ReadAhead:
    """A plan's batches: while one is written, the next is transformed and the one after it read, in two threads."""

    def __init__(self, plan: Plan, *, after: Position, interruption: Callable[[], Outcome | None]) -> None:
        self.interrupted: Outcome | None = None  # why there are no more batches, if not for the end of the rows
        self._plan = plan
        self._after = after
        self._interruption = interruption
        self._given_up = threading.Event()
        self._queues: list[Waiting] = []
        self._threads: list[threading.Thread] = []
        self._ready = self._stage("reader", self._read())
        if plan.transforms:
            self._ready = self._stage("transformer", self._transform(self._ready))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._given_up.set()
        while any(thread.is_alive() for thread in self._threads):
            self._plan.reader.cancel()
            for waiting, thread in zip(self._queues, self._threads, strict=True):
                with contextlib.suppress(queue.Empty):
                    waiting.get_nowait()
                thread.join(0.05)

    def batches(self) -> Iterator[Ready]:
        """Until the rows or the patience of somebody end; raises what the reader or a transform raised."""
        return self._taken(self._ready, self._is_interrupted)

    def _is_interrupted(self) -> bool:
        self.interrupted = self._interruption()
        return self.interrupted is not None

    # -- in threads of their own ------------------------------------------------------------------------------------

    def _stage(self, name: str, work: Iterator[Ready]) -> Waiting:
        waiting: Waiting = queue.Queue(maxsize=1)
        self._queues.append(waiting)
        self._threads.append(threading.Thread(target=self._produce, args=(work, waiting), name=name, daemon=True))
        return waiting

    def _produce(self, work: Iterator[Ready], waiting: Waiting) -> None:
        try:
            for item in work:
                waiting.put(item)
                if self._given_up.is_set():
                    return
            waiting.put(None)
        except BaseException as exc:  # noqa: BLE001  raised again in the thread that writes
            waiting.put(exc)

    def _read(self) -> Iterator[Ready]:
        for batch in self._plan.reader.batches(self._after, self._plan.pace):
            yield batch.count, batch

    def _transform(self, waiting: Waiting) -> Iterator[Ready]:
        for read, incoming in self._taken(waiting, self._given_up.is_set):
            batch = incoming
            for transform in self._plan.transforms:
                batch = transform(batch)
            yield read, self._plan.writer.encode(batch)

    def _taken(self, waiting: Waiting, is_over: Callable[[], bool]) -> Iterator[Ready]:
        while True:
            try:
                item = waiting.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                if is_over():
                    return
                continue
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item
