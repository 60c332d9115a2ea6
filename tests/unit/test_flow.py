"""The one loop, with lists in place of databases."""

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from vitrine.flow import (
    START,
    Batch,
    Column,
    Counts,
    Decoded,
    Outcome,
    Plan,
    Position,
    Reject,
    StateManager,
    Transformer,
    Unit,
    run_batches,
)
from vitrine.model import Row
from vitrine.pace import Limits, Pace

Calls = list[str]


@dataclass
class ListReader:
    rows: Sequence[Row]
    calls: Calls
    read: int = 0
    asked: list[tuple[Position, int]] = field(default_factory=list[tuple[Position, int]])

    def batches(self, after: Position, pace: Pace) -> Iterator[Batch]:
        size = pace.limits.rows_at_once
        self.asked.append((after, size))
        rest = [row for row in self.rows if after.cursor is None or str(row["id"]) > after.cursor[0]]
        for begin in range(0, max(len(rest), 1), size):
            chunk = rest[begin : begin + size]
            self.read += 1
            yield Batch(
                Decoded(chunk), (Column("id", "integer"),), Position((str(chunk[-1]["id"]),)) if chunk else after
            )

    def rows_expected(self) -> int | None:
        return len(self.rows)

    def cancel(self) -> None: ...

    def close(self) -> None:
        self.calls.append("close reader")


@dataclass
class ListUnit:
    """Rows and checkpoint of one unit: both are kept at its end, or neither."""

    calls: Calls
    connection: Any = None
    rows: list[Row] = field(default_factory=list[Row])
    rejects: list[Reject] = field(default_factory=list[Reject])
    healed: list[str] = field(default_factory=list[str])
    position: Position | None = None

    def write(self, batch: Batch) -> Counts:
        assert isinstance(batch.payload, Decoded)
        self.calls.append(f"write {batch.count}")
        if any(row.get("poison") for row in batch.payload.rows):
            raise ValueError("poison")
        self.rows = list(batch.payload.rows)
        return Counts(read=batch.count, written=batch.count)


@dataclass
class ListTarget:
    calls: Calls
    rows: list[Row] = field(default_factory=list[Row])
    position: Position = START

    def encode(self, batch: Batch) -> Batch:
        return batch

    @contextmanager
    def unit(self) -> Generator[ListUnit]:
        unit = ListUnit(self.calls)
        self.calls.append("begin")
        try:
            yield unit
        except BaseException:
            self.calls.append("roll back")
            raise
        self.calls.append("commit")
        self.rows += unit.rows
        self.position = unit.position or self.position

    def publish(self, state: StateManager) -> Counts:
        self.calls.append("publish")
        return Counts(deleted=7)

    def close(self) -> None:
        self.calls.append("close writer")


@dataclass
class ListState:
    target: ListTarget
    interrupt_after: int | None = None
    outcome: Outcome = Outcome.PAUSED
    interrupt_at_rest: int | None = None
    save_fails: bool = False
    waits: int | None = None  # so often a wait for the next batch may be looked at before it is interrupted
    rests: list[float] = field(default_factory=list[float])
    saved: list[tuple[Position, Counts]] = field(default_factory=list[tuple[Position, Counts]])
    told: Counts = field(default_factory=Counts)

    @property
    def position(self) -> Position:
        return self.target.position

    def save(self, unit: Unit, position: Position, counts: Counts) -> None:
        assert isinstance(unit, ListUnit)
        self.target.calls.append("save")
        if self.save_fails:
            raise ValueError("fenced")
        unit.position = position
        self.saved.append((position, counts))

    def publish(self, unit: Unit, staged: int, counts: Counts) -> None: ...

    def discard(self, unit: Unit) -> None: ...

    def rest(self, pace: Pace) -> Outcome | None:
        self.rests.append(pace.delay())
        pace.begin()
        return self.outcome if self.interrupt_at_rest == len(self.rests) else None

    def committed(self, counts: Counts) -> Outcome | None:
        self.target.calls.append("committed")
        self.told += counts
        return self.outcome if self.interrupt_after == len(self.saved) else None

    def interruption(self) -> Outcome | None:
        if self.waits is None:
            return None
        self.waits -= 1
        return self.outcome if self.waits <= 0 else None

    def all_read(self) -> None:
        self.target.calls.append("all read")


def rows(*numbers: int) -> list[Row]:
    return [{"id": number} for number in numbers]


@dataclass
class Loop:
    plan: Plan
    state: ListState
    target: ListTarget
    reader: ListReader
    calls: Calls

    def run(self) -> Outcome:
        return run_batches(self.plan, self.state)


@pytest.fixture
def loop() -> Loop:
    calls: Calls = []
    target, reader = ListTarget(calls), ListReader(rows(1, 2, 3, 4, 5), calls)
    return Loop(Plan(reader, target, Pace(Limits(batch_size=2))), ListState(target), target, reader, calls)


BATCH = ["begin", "write 2", "save", "commit", "committed"]


def test_batches_are_written_saved_and_committed_in_turn_and_published_at_the_end(loop: Loop) -> None:
    assert loop.run() is Outcome.FINISHED
    last = ["begin", "write 1", "save", "commit", "committed"]
    assert loop.calls == [*BATCH, *BATCH, *last, "all read", "publish", "committed"]
    assert loop.target.rows == rows(1, 2, 3, 4, 5)


def test_the_state_is_told_what_every_unit_did_and_the_publishing_too(loop: Loop) -> None:
    loop.run()
    assert loop.state.told == Counts(read=5, written=5, deleted=7)


def test_each_position_is_saved_with_the_counts_of_its_own_batch(loop: Loop) -> None:
    loop.run()
    assert loop.state.saved == [
        (Position(("2",)), Counts(2, 2)),
        (Position(("4",)), Counts(2, 2)),
        (Position(("5",)), Counts(1, 1)),
    ]


def test_reading_begins_after_the_saved_position_with_the_plans_batch_size(loop: Loop) -> None:
    loop.target.position = Position(("3",))
    loop.run()
    assert loop.reader.asked == [(Position(("3",)), 2)]
    assert loop.target.rows == rows(4, 5)


def test_an_empty_source_is_a_finished_run_with_one_empty_batch(loop: Loop) -> None:
    loop.reader.rows = []
    assert loop.run() is Outcome.FINISHED
    assert loop.calls == ["begin", "write 0", "save", "commit", "committed", "all read", "publish", "committed"]
    assert loop.target.position == START


@pytest.mark.parametrize("outcome", [Outcome.PAUSED, Outcome.RELEASED])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_an_interruption_stops_between_batches_and_before_publishing(loop: Loop, after: int, outcome: Outcome) -> None:
    loop.state.interrupt_after, loop.state.outcome = after, outcome
    assert loop.run() is outcome
    assert loop.calls.count("commit") == after
    assert loop.calls[-1] == "committed"
    assert "publish" not in loop.calls


@pytest.mark.parametrize("after", [1, 2, 3])
def test_an_interrupted_run_continues_where_it_stopped(loop: Loop, after: int) -> None:
    loop.state.interrupt_after = after
    loop.run()
    loop.state.interrupt_after = None
    assert loop.run() is Outcome.FINISHED
    assert loop.target.rows == rows(1, 2, 3, 4, 5)


def test_transforms_are_applied_in_order_and_leave_the_position_alone(loop: Loop) -> None:
    def doubled(batch: Batch) -> Batch:
        assert isinstance(batch.payload, Decoded)
        return replace(batch, payload=Decoded([row | {"n": row["id"] * 2} for row in batch.payload.rows]))

    def plus_one(batch: Batch) -> Batch:
        assert isinstance(batch.payload, Decoded)
        return replace(batch, payload=Decoded([row | {"n": row["n"] + 1} for row in batch.payload.rows]))

    run_batches(replace(loop.plan, transforms=[doubled, plus_one]), loop.state)
    assert [row["n"] for row in loop.target.rows] == [3, 5, 7, 9, 11]
    assert loop.target.position == Position(("5",))


def test_an_exception_in_write_saves_nothing_of_its_batch(loop: Loop) -> None:
    loop.reader.rows = [*rows(1, 2), {"id": 3, "poison": True}, *rows(4, 5)]
    with pytest.raises(ValueError, match="poison"):
        loop.run()
    assert loop.calls[-3:] == ["begin", "write 2", "roll back"]
    assert loop.target.rows == rows(1, 2)
    assert loop.target.position == Position(("2",))


def test_an_exception_in_save_takes_the_rows_back(loop: Loop) -> None:
    loop.state.save_fails = True
    with pytest.raises(ValueError, match="fenced"):
        loop.run()
    assert loop.calls[-3:] == ["write 2", "save", "roll back"]
    assert (loop.target.rows, loop.target.position) == ([], START)


def test_an_exception_in_a_transform_opens_no_unit(loop: Loop) -> None:
    def broken(batch: Batch) -> Batch:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        run_batches(replace(loop.plan, transforms=[broken]), loop.state)
    assert loop.calls == []


def test_an_exception_of_the_reader_comes_after_the_batches_before_it(loop: Loop) -> None:
    loop.reader.rows = [*rows(1, 2), {"unreadable": True}]
    with pytest.raises(KeyError):
        loop.run()
    assert loop.calls == BATCH
    assert loop.target.rows == rows(1, 2)


def test_reading_runs_ahead_of_writing_by_no_more_than_two_batches(loop: Loop) -> None:
    loop.reader.rows = rows(*range(100, 160))
    ahead: list[int] = []

    def look(batch: Batch) -> Batch:
        ahead.append(loop.reader.read - len(ahead))
        return batch

    run_batches(replace(loop.plan, transforms=[look]), loop.state)
    assert len(ahead) == 30
    assert max(ahead) <= 3  # the one in hand, one ready, one waiting to be


def test_a_reader_that_is_interrupted_is_cancelled_and_joined(loop: Loop) -> None:
    loop.reader.rows = rows(*range(100, 200))
    loop.state.interrupt_after = 1
    loop.run()
    assert loop.reader.read < 50
    assert not [thread for thread in threading.enumerate() if thread.name == "reader"]


@dataclass
class SlowReader(ListReader):
    """Gives one batch; the next one takes until it is cancelled."""

    cancelled: threading.Event = field(default_factory=threading.Event)

    def batches(self, after: Position, pace: Pace) -> Iterator[Batch]:
        yield next(super().batches(after, pace))
        self.cancelled.wait(5)
        raise ValueError("cancelled")

    def cancel(self) -> None:
        self.cancelled.set()


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name in ("reader", "transformer")]


def unchanged(batch: Batch) -> Batch:
    return batch


@pytest.mark.parametrize("transforms", [[], [unchanged]])
@pytest.mark.parametrize("outcome", [Outcome.PAUSED, Outcome.RELEASED])
def test_an_interruption_does_not_wait_for_a_batch_that_takes_long(
    loop: Loop, outcome: Outcome, transforms: list[Transformer]
) -> None:
    slow = SlowReader(rows(1, 2, 3), loop.calls)
    loop.state.waits, loop.state.outcome = 2, outcome
    assert run_batches(replace(loop.plan, reader=slow, transforms=transforms), loop.state) is outcome
    assert loop.calls == BATCH
    assert threads() == []


def test_the_next_batch_is_transformed_while_one_is_written(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    transformed = {number: threading.Event() for number in (1, 3, 5)}
    write = ListUnit.write

    def watched(batch: Batch) -> Batch:
        assert isinstance(batch.payload, Decoded)
        transformed[batch.payload.rows[0]["id"]].set()
        return batch

    def patient(unit: ListUnit, batch: Batch) -> Counts:
        assert isinstance(batch.payload, Decoded)
        following = transformed.get(batch.payload.rows[0]["id"] + 2)
        assert following is None or following.wait(10)
        return write(unit, batch)

    monkeypatch.setattr(ListUnit, "write", patient)
    assert run_batches(replace(loop.plan, transforms=[watched]), loop.state) is Outcome.FINISHED
    assert loop.target.rows == rows(1, 2, 3, 4, 5)


def test_an_exception_in_a_transform_leaves_the_batches_before_it_and_no_thread(loop: Loop) -> None:
    def broken(batch: Batch) -> Batch:
        assert isinstance(batch.payload, Decoded)
        if batch.payload.rows[0]["id"] == 3:
            raise ValueError("broken")
        return batch

    with pytest.raises(ValueError, match="broken"):
        run_batches(replace(loop.plan, transforms=[broken]), loop.state)
    assert loop.target.rows == rows(1, 2)
    assert loop.target.position == Position(("2",))
    assert threads() == []


def test_what_the_state_raises_while_a_batch_is_awaited_ends_the_run(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost() -> Outcome | None:
        raise ValueError("lost")

    monkeypatch.setattr(loop.state, "interruption", lost)
    slow = SlowReader(rows(1, 2, 3), loop.calls)
    with pytest.raises(ValueError, match="lost"):
        run_batches(replace(loop.plan, reader=slow), loop.state)
    assert slow.cancelled.is_set()


def test_closing_a_plan_closes_the_writer_even_if_the_reader_fails(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError("cannot close")

    monkeypatch.setattr(loop.reader, "close", fail)
    with pytest.raises(ValueError, match="cannot close"):
        loop.plan.close()
    assert loop.calls == ["close writer"]


def test_counts_add_up() -> None:
    assert Counts(1, 2, 3) + Counts(10, 20, 30) == Counts(11, 22, 33)


def test_a_run_rests_before_every_batch_but_the_first_and_not_before_the_publish(loop: Loop) -> None:
    loop.plan.pace.limits = Limits(batch_size=2, pause_between_batches=timedelta(seconds=9))
    assert loop.run() is Outcome.FINISHED
    first, *others = loop.state.rests
    assert (first, len(others)) == (0, 2)
    assert all(8 < seconds <= 9 for seconds in others)


def test_a_run_that_should_end_while_it_rests_writes_no_further_batch(loop: Loop) -> None:
    loop.state.interrupt_at_rest = 2
    assert loop.run() is Outcome.PAUSED
    assert loop.target.rows == rows(1, 2)
    assert "publish" not in loop.calls
