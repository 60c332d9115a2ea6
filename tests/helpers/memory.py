"""Source, sink, checkpoint and control of a run in memory, for tests of the loop."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from vitrine.core.protocols import Limits, LoadState, Outcome, Phase, Stop, Throttle, Transaction
from vitrine.core.rows import (
    Batch,
    Column,
    Compare,
    Counts,
    Cursor,
    Digest,
    Entry,
    Generation,
    Key,
    Lane,
    LoadInfo,
    Position,
    PythonRows,
    Read,
    Row,
    Saved,
    Selection,
    SourceInfo,
    Stamp,
    State,
    TargetInfo,
    Watermark,
    Written,
)
from vitrine.errors import DataError
from vitrine.store.checkpoint import advance

Calls = list[str]
"""What was called on any of the parts, in order."""

COLUMNS = (Column("id", "integer"), Column("modified", "integer"))


def rows_of(batch: Batch) -> Sequence[Row]:
    assert isinstance(batch.payload, PythonRows)
    return batch.payload.rows


@dataclass
class MemorySource:
    """Reads a list of rows; every column is a whole number."""

    rows: Sequence[Row]
    calls: Calls = field(default_factory=Calls)
    mark: Watermark | None = None
    batches_per_snapshot: int | None = None  # None: one snapshot for the whole read
    count: int = 0  # batches read
    reads: list[tuple[Read, int]] = field(default_factory=list[tuple[Read, int]])  # with the rows of a batch

    def describe(self) -> SourceInfo:
        return SourceInfo(COLUMNS, (Lane.ROWS,))

    def watermark(self, column: str) -> Watermark | None:
        return self.mark

    def batches(self, read: Read, throttle: Throttle) -> Iterator[Batch]:
        self.reads.append((read, throttle.rows))
        selected = sorted(filter(_is_selected(read), self.rows), key=lambda row: _rank(row, read))
        position, number = read.start, 0
        while selected or not number:
            chunk, selected = selected[: throttle.rows], selected[throttle.rows :]
            end = tuple(str(chunk[-1][name]) for name in read.order) if chunk else read.after.cursor
            position = _held_back(end, read.watermark, position) if chunk else position
            snapshot = 1 + number // (self.batches_per_snapshot or len(self.rows) + 1)
            number += 1
            self.count += 1
            yield Batch(PythonRows(chunk), COLUMNS, end, position, snapshot)

    def digest(self, compare: Compare) -> Sequence[Digest] | None:
        return None

    def cancel(self) -> None: ...

    def close(self) -> None:
        self.calls.append("close source")


def _rank(row: Row, read: Read) -> tuple[int, ...]:
    return tuple(row[name] for name in read.order)


def _is_selected(read: Read) -> Callable[[Row], bool]:
    def is_selected(row: Row) -> bool:
        if read.skip_null and row[read.order[0]] is None:
            return False
        if read.until is not None and row[read.order[0]] >= int(read.until):
            return False
        if read.after.cursor is None:
            return True
        after, here = tuple(map(int, read.after.cursor)), _rank(row, read)
        # a cursor with fewer elements than the order is inclusive
        return here > after if len(after) == len(here) else here[: len(after)] >= after

    return is_selected


def _held_back(end: Cursor | None, mark: Watermark | None, before: Position) -> Position:
    if mark is None or end is None:
        return Position(end)
    if mark.bound is None:
        return before
    return Position(end) if int(end[0]) < int(mark.bound) else Position((mark.bound,))


@dataclass
class MemoryTransaction:
    """A transaction of the store: what joins it takes effect when it commits."""

    joined: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])

    def execute(self, query: Any, params: Any = None, /) -> Any:
        raise NotImplementedError

    def commit(self) -> None:
        for action in self.joined:
            action()


@dataclass
class MemoryUnit:
    """Rows of one unit: written at its end, or not at all."""

    calls: Calls
    transaction: MemoryTransaction | None
    apply: Callable[[list[Row]], None]
    count: Callable[[int], Written]
    rows: list[Row] = field(default_factory=list[Row])

    @property
    def result(self) -> Written:
        return self.count(len(self.rows))

    def write(self, batch: Batch) -> None:
        self.calls.append(f"write {batch.count}")
        if any(row.get("poison") for row in rows_of(batch)):
            raise ValueError("poison")
        self.rows += rows_of(batch)

    def delete(self, keys: Sequence[Key]) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        self.calls.append("commit")
        self.apply(self.rows)
        if self.transaction is not None:
            self.transaction.commit()


@dataclass
class MemorySink:
    """Writes to a dictionary by the column `id`."""

    calls: Calls = field(default_factory=Calls)
    joins: bool = True  # units are transactions of the store; False: the target acknowledges by itself
    exists: bool = True
    identity: str | None = "first"
    target: dict[int, Row] = field(default_factory=dict[int, Row])
    # by generation and sequence: a repeated unit replaces what it has staged before
    staged: dict[int, dict[int, list[Row]]] = field(default_factory=dict[int, dict[int, list[Row]]])
    published: int | None = None  # the generation that is visible
    kept: dict[int, dict[int, Row]] = field(default_factory=dict[int, dict[int, Row]])  # the one before it
    infos: list[LoadInfo] = field(default_factory=list[LoadInfo])
    stamps: list[Stamp] = field(default_factory=list[Stamp])
    rejected: int = 0  # rows that each unit of changes counts as rejected

    @property
    def rows(self) -> list[Row]:
        return [self.target[key] for key in sorted(self.target)]

    def describe(self, columns: Sequence[Column] = ()) -> TargetInfo:
        return TargetInfo(self.exists, ("id",), (Lane.ROWS,), COLUMNS if self.exists else (), self.identity)

    def encode(self, batch: Batch) -> Batch:
        return batch

    @contextmanager
    def unit(self, stamp: Stamp) -> Generator[MemoryUnit]:
        def upsert(rows: list[Row]) -> None:
            self.target |= {row["id"]: row for row in rows}

        def count(rows: int) -> Written:
            return Written(Counts(written=rows, rejected=self.rejected), identity=self.identity)

        with self.opened("begin", stamp, upsert, count) as unit:
            yield unit

    @contextmanager
    def opened(
        self, call: str, stamp: Stamp, apply: Callable[[list[Row]], None], count: Callable[[int], Written]
    ) -> Generator[MemoryUnit]:
        unit = MemoryUnit(self.calls, MemoryTransaction() if self.joins else None, apply, count)
        self.stamps.append(stamp)
        self.calls.append(call)
        try:
            yield unit
        except BaseException:
            self.calls.append("roll back")
            raise
        unit.finish()

    def load(self, generation: Generation) -> "MemoryLoad":
        return MemoryLoad(self, generation.number)

    def digest(self, compare: Compare, rows: Iterator[Batch] | None = None) -> Sequence[Digest] | None:
        return None

    def fetch(self, only: Selection, columns: Sequence[Column]) -> Iterator[Batch]:
        raise NotImplementedError

    def cancel(self) -> None: ...

    def close(self) -> None:
        self.calls.append("close sink")

    @classmethod
    def sweep(cls, job: Any) -> Sequence[str]:
        return ()


@dataclass
class MemoryLoad:
    sink: MemorySink
    number: int

    @property
    def state(self) -> LoadState:
        if self.sink.published == self.number:
            return LoadState.PUBLISHED
        there = self.number in self.sink.staged or self.number in self.sink.kept
        return LoadState.STAGED if there else LoadState.ABSENT

    @contextmanager
    def unit(self, stamp: Stamp) -> Generator[MemoryUnit]:
        def stage(rows: list[Row]) -> None:
            self.sink.staged.setdefault(self.number, {})[stamp.sequence] = rows

        with self.sink.opened("begin", stamp, stage, lambda rows: Written(Counts(staged=rows))) as unit:
            yield unit

    @contextmanager
    def publish(self, stamp: Stamp, info: LoadInfo) -> Generator[MemoryUnit]:
        self.sink.infos.append(info)
        fresh, gone = self._checked(info)

        def show(rows: list[Row]) -> None:
            if self.sink.published not in (None, self.number):
                self.sink.kept = {self.sink.published: self.sink.target}
            self.sink.target, self.sink.exists, self.sink.published = fresh, True, self.number
            self.sink.staged.pop(self.number, None)

        result = Written(Counts(written=len(fresh), deleted=gone), identity=self.sink.identity)
        with self.sink.opened("publish", stamp, show, lambda rows: result) as unit:
            yield unit

    def _checked(self, info: LoadInfo) -> tuple[dict[int, Row], int]:
        """The rows to show, and how many vanish; DataError where they must not be shown."""
        if self.state is LoadState.PUBLISHED:
            return self.sink.target, 0
        if self.number in self.sink.kept:
            return self.sink.kept[self.number], 0
        staged = [row for rows in self.sink.staged.get(self.number, {}).values() for row in rows]
        fresh = {row["id"]: row for row in staged}
        if len(staged) != info.rows:
            raise DataError(f"{len(staged)} rows are staged, not {info.rows}")
        if len(fresh) != len(staged) and not info.repeats:
            raise DataError("a key was read twice")
        gone = len(self.sink.target.keys() - fresh.keys())
        if info.max_delete_ratio is not None and gone > info.max_delete_ratio * len(self.sink.target):
            raise DataError("too many rows would vanish", code="SHRINK_GUARD")
        return fresh, gone

    def discard(self) -> None:
        self.sink.calls.append(f"discard {self.number}")
        self.sink.staged.pop(self.number, None)
        self.sink.kept.pop(self.number, None)


@dataclass
class MemoryStore:
    """What outlives a claim."""

    state: State = field(default_factory=State)
    sequence: int = 0
    generations: int = 0  # numbers given so far

    def put(self, state: State) -> None:
        self.state = replace(state, published=None, totals=Counts())
        self.sequence += 1


@dataclass
class MemoryCheckpoint:
    """The checkpoint of one claim; the rules are those of the store."""

    store: MemoryStore = field(default_factory=MemoryStore)
    calls: Calls = field(default_factory=Calls)
    token: int = 1
    state: State = field(default_factory=State)
    entries: list[Entry] = field(default_factory=list[Entry])
    error: Exception | None = None  # that a save raises
    units: int = 0
    units_allowed: int | None = None  # None: as many as the run needs
    _sequence: int = 0
    _cursor_types: str = ""
    _unconfirmed: State | None = None

    def open(self, cursor_types: str) -> State:
        self._cursor_types = cursor_types
        if self._unconfirmed is not None and self.store.sequence == self._sequence + 1:
            self.confirm()  # the commit took place, only its answer was lost
        self._unconfirmed = None
        claim = self.state
        self.state = replace(self.store.state, published=claim.published, totals=claim.totals)
        self._sequence = self.store.sequence
        return self.state

    def open_generation(self, fingerprint: str, bound: str | None) -> Generation:
        self.calls.append("open generation")
        self.store.generations += 1
        generation = Generation(self.store.generations, fingerprint=fingerprint, bound=bound)
        self.store.put(replace(self.state, generation=generation))
        self.open(self._cursor_types)
        return generation

    def stamp(self) -> Stamp:
        self.units += 1
        if self.units_allowed is not None and self.units > self.units_allowed:
            raise Stop(Outcome.RELEASED)
        return Stamp(self.token, self._sequence + 1, self.token * 1000 + self.units)

    def save(self, entry: Entry, transaction: Transaction | None) -> Saved:
        if self._unconfirmed is not None:
            self.open(self._cursor_types)
        self.calls.append("save" if transaction is None else "join")
        if self.error is not None:
            raise self.error
        after = advance(self.state, entry, self._cursor_types)
        self._unconfirmed = after
        self.entries.append(entry)
        if transaction is None:
            self.store.put(after)
            self.confirm()
        else:
            assert isinstance(transaction, MemoryTransaction)
            transaction.joined.append(lambda: self.store.put(after))
        return Saved()

    def confirm(self) -> None:
        if self._unconfirmed is not None:
            self.state, self._unconfirmed = self._unconfirmed, None
            self._sequence += 1


@dataclass
class MemoryControl:
    """The control of a run, interrupted where a test says so."""

    calls: Calls = field(default_factory=Calls)
    throttle: Throttle = field(default_factory=lambda: Throttle(Limits(batch_rows=2)))
    outcome: Outcome = Outcome.PAUSED  # of every interruption
    interrupt_before: int | None = None  # the batch of this number, from 1
    interrupt_after: int | None = None
    polls: int | None = None  # the poll of this number is interrupted, and those after it; None: no poll is
    batch_started: float = 0.0
    delays: list[float] = field(default_factory=list[float])  # before each batch
    saves: int = 0
    totals: Counts = field(default_factory=Counts)
    phases: list[Phase] = field(default_factory=list[Phase])
    observed: list[Watermark | None] = field(default_factory=list[Watermark | None])

    def seconds_left(self) -> float:
        return float("inf")

    def wait(self, seconds: float) -> None: ...

    def enter(self, phase: Phase, totals: Counts | None = None) -> None:
        self.phases.append(phase)
        self.totals = totals if totals is not None else self.totals

    def observe(self, watermark: Watermark | None) -> None:
        self.observed.append(watermark)

    def before_batch(self) -> None:
        self.delays.append(self.throttle.delay())
        self.throttle.batch_started()
        if self.interrupt_before == len(self.delays):
            raise Stop(self.outcome)

    def after_batch(self, counts: Counts, saved: Saved) -> None:
        self.calls.append("after batch")
        self.throttle.batch_ended(counts.read)
        self.totals += counts
        self.saves += 1
        if self.interrupt_after == self.saves:
            raise Stop(self.outcome)

    def check(self) -> None:
        if self.polls is None:
            return
        self.polls -= 1
        if self.polls <= 0:
            raise Stop(self.outcome)
