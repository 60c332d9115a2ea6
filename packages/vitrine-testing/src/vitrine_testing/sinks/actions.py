"""What the tests of a sink do with an open run, and with the faults of a case."""

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from vitrine.core.copytext import text_of, values
from vitrine.core.loop import commit_unit
from vitrine.core.protocols import Limits, Load, Outcome, Sink, Throttle
from vitrine.core.rows import Batch, Column, Entry, Generation, Key, LoadInfo, Read, Selection, Step, Written
from vitrine.errors import VitrineError
from vitrine.plan import planner
from vitrine.plan.planner import Prepared
from vitrine_testing.cases import Fault, NotSimulated, Texts
from vitrine_testing.control import ScriptedControl
from vitrine_testing.lists import ListTable
from vitrine_testing.workbench import StoredPipeline, StoredRun, Workbench

INCREMENTAL = {"mode": "incremental", "incremental_key": "modified", "incremental_id_key": "id"}
MODES = {"full": {}, "incremental": INCREMENTAL}
"""Fields of a definition by its mode."""

HIDDEN_VALUE = "a value that no message may show"
WAIT_SECONDS = 2.0
"""For a call that ends within a second, on a busy machine."""


@dataclass(frozen=True)
class OpenRun:
    """A claim whose checkpoint is open, with its source and its sink."""

    held: StoredRun
    prepared: Prepared

    @property
    def sink(self) -> Sink:
        return self.prepared.plan.sink

    def read(self) -> Iterator[Batch]:
        """The rows of the source in the lane of the sink."""
        planned = self.prepared.plan
        for batch in planned.source.batches(Read(planned.lane, planned.order), Throttle(Limits(100))):
            transformed = batch
            for transform in planned.transforms:
                transformed = transform(transformed)
            yield transformed

    def batches(self) -> Iterator[Batch]:
        """The same as the loop gives it to a unit."""
        return map(self.sink.encode, self.read())

    def write(self) -> None:
        """Everything the source has, in units of changes."""
        for batch in self.batches():
            self.commit(batch)

    def commit(self, batch: Batch) -> Written:
        checkpoint = self.held.checkpoint
        unit = self.sink.unit(checkpoint.stamp())
        return commit_unit(unit, lambda one: one.write(batch), checkpoint, Entry(Step.PROGRESS))[0]

    def delete(self, keys: Sequence[Key]) -> Written:
        checkpoint = self.held.checkpoint
        unit = self.sink.unit(checkpoint.stamp())
        return commit_unit(unit, lambda one: one.delete(keys), checkpoint, Entry(Step.PROGRESS))[0]

    def stage(self) -> Generation:
        """A new generation with everything the source has."""
        checkpoint = self.held.checkpoint
        generation = checkpoint.open_generation(self.prepared.plan.fingerprint, None)
        load = self.sink.load(generation)
        for batch in self.batches():
            unit, entry = load.unit(checkpoint.stamp()), Entry(Step.STAGED, batch.end, batch.position)
            commit_unit(unit, lambda one, batch=batch: one.write(batch), checkpoint, entry)
        return checkpoint.state.generation or generation

    def publish(self, generation: Generation) -> None:
        checkpoint = self.held.checkpoint
        info = LoadInfo(generation.rows, repeats=False, max_delete_ratio=None)
        opened = self.sink.load(generation).publish(checkpoint.stamp(), info)
        commit_unit(opened, lambda work: None, checkpoint, Entry(Step.PUBLISHED))

    def load(self) -> Load:
        """The load under construction."""
        generation = self.held.checkpoint.state.generation
        assert generation is not None
        return self.sink.load(generation)

    def fetch(self, only: Selection, columns: Sequence[Column] | None = None) -> list[Texts]:
        """Stored rows in canonical text."""
        wanted = self.prepared.source.columns if columns is None else columns
        return [row for batch in self.sink.fetch(only, wanted) for row in texts_of(batch)]


@contextmanager
def opened(held: StoredRun, control: ScriptedControl | None = None, *, leave: bool = True) -> Generator[OpenRun]:
    """The run of a claim, open; its claim ends with the block."""
    with held.prepared(control) as prepared:
        held.checkpoint.open(prepared.plan.cursor_types)
        try:
            yield OpenRun(held, prepared)
        finally:
            if leave:
                held.leave(Outcome.FINISHED)
            held.drop()


@contextmanager
def unstored(bench: Workbench, table: ListTable, **fields: Any) -> Generator[Sink]:
    """The sink of a definition that is not stored."""
    checked = planner.check(bench.define(table, **fields), bench.settings)
    try:
        yield checked.sink
    finally:
        checked.sink.close()


@contextmanager
def simulated(bench: Workbench, pipeline: StoredPipeline, fault: Fault) -> Generator[None]:
    """The fault lasts until the block ends; the test is skipped where the case has no such fault."""
    with ExitStack() as lasting:
        try:
            lasting.enter_context(bench.case.fault(pipeline.target, fault))
        except NotSimulated as exc:
            pytest.skip(f"{fault}: {exc}")
        yield


def texts_of(batch: Batch) -> list[Texts]:
    names = [column.name for column in batch.columns]
    lines = bytes(text_of(batch)).decode().split("\n")[:-1]
    return [dict(zip(names, map(_value, line.split("\t")), strict=True)) for line in lines]


def _value(field: str) -> str | None:
    return None if field == values.NULL else values.unescape(field)


def in_thread(work: Callable[[], object]) -> threading.Event:
    """Set once the work has ended, with or without an error."""
    ended = threading.Event()

    def run() -> None:
        with suppress(VitrineError):
            work()
        ended.set()

    threading.Thread(target=run, name="conformance", daemon=True).start()
    return ended


def open_files() -> int:
    """Open file descriptors of this process, sockets included."""
    return len(list(Path("/dev/fd").iterdir()))
