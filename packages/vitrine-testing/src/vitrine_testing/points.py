"""Points of a run at which a test can act: around every write, save, publish and discard."""

import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from vitrine.core.protocols import Checkpoint, Load, LoadState, Plan, Sink, Source, Throttle, Transaction, Unit, Work
from vitrine.core.rows import (
    Batch,
    Column,
    Compare,
    Digest,
    Entry,
    Generation,
    Key,
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


class Points:
    """Records the points that a run reaches, each with its number, and acts once at one of them."""

    def __init__(self, at: str | None = None, act: Callable[[], None] | None = None) -> None:
        self.reached: list[str] = []
        self._at = at
        self._act = act
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()  # a source is read in a thread of its own

    def reach(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1
            point = f"{name} {self._counts[name]}"
            self.reached.append(point)
            act = self._act if point == self._at else None
            self._act = None if act else self._act
        if act is not None:
            act()

    def watch(self, plan: Plan) -> Plan:
        """The same plan, whose source and sink report their points here."""
        return replace(plan, source=_Source(plan.source, self), sink=self.watch_sink(plan.sink))

    def watch_sink(self, sink: Sink) -> Sink:
        return _Sink(sink, self)

    def watch_checkpoint(self, checkpoint: Checkpoint) -> Checkpoint:
        return _Checkpoint(checkpoint, self)


class _Checkpoint:
    """Reports when the state was opened, a generation was opened, and an entry was saved."""

    def __init__(self, checkpoint: Checkpoint, points: Points) -> None:
        self._checkpoint = checkpoint
        self._points = points

    @property
    def state(self) -> State:
        return self._checkpoint.state

    def open(self, cursor_types: str) -> State:
        state = self._checkpoint.open(cursor_types)
        self._points.reach("opened")
        return state

    def open_generation(self, fingerprint: str, bound: str | None) -> Generation:
        generation = self._checkpoint.open_generation(fingerprint, bound)
        self._points.reach("generation opened")
        return generation

    def stamp(self) -> Stamp:
        return self._checkpoint.stamp()

    def save(self, entry: Entry, transaction: Transaction | None) -> Saved:
        saved = self._checkpoint.save(entry, transaction)
        self._points.reach(f"{entry.step} saved")
        return saved

    def confirm(self) -> None:
        self._checkpoint.confirm()


class _Source:
    """Reports before each batch that is read."""

    def __init__(self, source: Source, points: Points) -> None:
        self._source = source
        self._points = points

    def describe(self) -> SourceInfo:
        return self._source.describe()

    def watermark(self, column: str) -> Watermark | None:
        return self._source.watermark(column)

    def batches(self, read: Read, throttle: Throttle) -> Iterator[Batch]:
        for batch in self._source.batches(read, throttle):
            self._points.reach("batch read")
            yield batch

    def digest(self, compare: Compare) -> Sequence[Digest] | None:
        return self._source.digest(compare)

    def cancel(self) -> None:
        self._source.cancel()

    def close(self) -> None:
        self._source.close()


class _Sink:
    """Reports around each unit of changes."""

    def __init__(self, sink: Sink, points: Points) -> None:
        self._sink = sink
        self._points = points

    def describe(self, columns: Sequence[Column] = ()) -> TargetInfo:
        return self._sink.describe(columns)

    def encode(self, batch: Batch) -> Batch:
        return self._sink.encode(batch)

    def unit(self, stamp: Stamp) -> AbstractContextManager[Unit]:
        return _unit(self._sink.unit(stamp), self._points)

    def load(self, generation: Generation) -> Load:
        return _Load(self._sink.load(generation), self._points)

    def digest(self, compare: Compare, rows: Iterator[Batch] | None = None) -> Sequence[Digest] | None:
        return self._sink.digest(compare, rows)

    def fetch(self, only: Selection, columns: Sequence[Column]) -> Iterator[Batch]:
        return self._sink.fetch(only, columns)

    def cancel(self) -> None:
        self._sink.cancel()

    def close(self) -> None:
        self._sink.close()

    @classmethod
    def sweep(cls, job: Any) -> Sequence[str]:
        return ()


class _Load:
    """Reports around each staged unit, the publish and the discard."""

    def __init__(self, load: Load, points: Points) -> None:
        self._load = load
        self._points = points

    @property
    def state(self) -> LoadState:
        return self._load.state

    def unit(self, stamp: Stamp) -> AbstractContextManager[Unit]:
        return _unit(self._load.unit(stamp), self._points)

    @contextmanager
    def publish(self, stamp: Stamp, info: LoadInfo) -> Generator[Work]:
        self._points.reach("before publish")
        with self._load.publish(stamp, info) as work:
            self._points.reach("in publish")
            yield work
        self._points.reach("published")

    def discard(self) -> None:
        self._points.reach("before discard")
        self._load.discard()
        self._points.reach("discarded")


@contextmanager
def _unit(opened: AbstractContextManager[Unit], points: Points) -> Generator[Unit]:
    with opened as unit:
        yield _Unit(unit, points)
    # acknowledged: with a transaction it has committed, without one nothing is saved yet
    points.reach("unit acknowledged")


class _Unit:
    def __init__(self, unit: Unit, points: Points) -> None:
        self._unit = unit
        self._points = points

    @property
    def transaction(self) -> Transaction | None:
        return self._unit.transaction

    @property
    def result(self) -> Written:
        return self._unit.result

    def write(self, batch: Batch) -> None:
        self._points.reach("before write")
        self._unit.write(batch)
        self._points.reach("written")

    def delete(self, keys: Sequence[Key]) -> None:
        self._points.reach("before write")
        self._unit.delete(keys)
        self._points.reach("written")
