"""The one loop, with source, sink, checkpoint and control in memory."""

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from tests.helpers.memory import (
    Calls,
    MemoryCheckpoint,
    MemoryControl,
    MemorySink,
    MemorySource,
    MemoryStore,
    MemoryTransaction,
    MemoryUnit,
    rows_of,
)
from vitrine import failpoints
from vitrine.core.loop import commit_unit, run_batches, run_plan
from vitrine.core.protocols import Limits, Outcome, Phase, Plan, Stop, Throttle, Transformer
from vitrine.core.rows import (
    START,
    Batch,
    Counts,
    Entry,
    Generation,
    Lane,
    Position,
    PythonRows,
    Read,
    Row,
    State,
    Step,
    Watermark,
    Written,
)
from vitrine.errors import ConfigError, DataError, TransientError

ORDER = ("modified", "id")
TYPES = "modified integer, id integer"


def rows(*numbers: int) -> list[Row]:
    return [{"id": number, "modified": number} for number in numbers]


def cursor(number: int) -> tuple[str, str]:
    return str(number), str(number)


def mark(bound: int | None) -> Watermark:
    return Watermark(None if bound is None else str(bound), None, timedelta(0))


@dataclass
class Loop:
    """A plan, and everything around it."""

    calls: Calls = field(default_factory=Calls)
    source: MemorySource = field(init=False)
    sink: MemorySink = field(init=False)
    store: MemoryStore = field(default_factory=MemoryStore)
    checkpoint: MemoryCheckpoint = field(init=False)
    control: MemoryControl = field(init=False)
    plan: Plan = field(init=False)

    def __post_init__(self) -> None:
        self.source = MemorySource(rows(1, 2, 3, 4, 5), self.calls)
        self.sink = MemorySink(self.calls)
        self.checkpoint = MemoryCheckpoint(self.store, self.calls)
        self.control = MemoryControl(self.calls)
        self.plan = Plan(
            source=self.source,
            sink=self.sink,
            transforms=(),
            lane=Lane.ROWS,
            target=self.sink.describe(),
            incremental=True,
            order=ORDER,
            cursor_column="modified",
            cursor_types=TYPES,
            fingerprint="query",
            max_delete_ratio=None,
        )

    def change(self, **fields: Any) -> None:
        self.plan = replace(self.plan, **fields)

    def load_fully(self, *, cursor_column: str | None = None) -> None:
        """A pipeline of mode full."""
        self.change(incremental=False, order=("id",), cursor_column=cursor_column, cursor_types="id integer")

    def load_first(self) -> None:
        """An incremental pipeline whose target does not exist yet."""
        self.sink.exists = False
        self.change(target=self.sink.describe())

    def claim(self) -> None:
        """Another claim of the same pipeline; the target is described again."""
        self.checkpoint = MemoryCheckpoint(self.store, self.calls, token=self.checkpoint.token + 1)
        self.control = MemoryControl(self.calls)
        self.describe()

    def describe(self) -> None:
        """A new plan, as for every attempt."""
        self.change(target=self.sink.describe())

    def run(self) -> Outcome:
        """Runs the plan, and a new one if another pass must follow."""
        try:
            if self.run_once():
                self.describe()
                assert not self.run_once()
        except Stop as stop:
            return stop.outcome
        return Outcome.FINISHED

    def run_once(self) -> bool:
        return run_plan(self.plan, self.checkpoint, self.control)

    def move(self, after: Position = START, step: Step = Step.CHECKPOINT) -> int:
        read = Read(self.plan.lane, ORDER, after)
        return run_batches(self.plan, self.sink, read, step, self.checkpoint, self.control)

    @property
    def position(self) -> Position:
        return self.store.state.position

    @property
    def generation(self) -> Generation:
        assert self.store.state.generation is not None
        return self.store.state.generation

    def steps(self) -> list[Step]:
        return [entry.step for entry in self.checkpoint.entries]


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture(autouse=True)
def disarmed() -> Generator[None]:
    yield
    failpoints.install("")


BATCH = ["begin", "write 2", "join", "commit", "after batch"]
LAST = ["begin", "write 1", "join", "commit", "after batch"]
PUBLISH = ["publish", "join", "commit", "after batch"]


# -- batches ----------------------------------------------------------------------------------------------------------


def test_batches_are_written_saved_and_committed_in_turn_and_published_at_the_end(loop: Loop) -> None:
    loop.load_fully()
    assert loop.run() is Outcome.FINISHED
    assert loop.calls == ["open generation", *BATCH, *BATCH, *LAST, *PUBLISH]
    assert loop.sink.rows == rows(1, 2, 3, 4, 5)


def test_the_control_gets_the_counts_of_every_unit_and_of_the_publish(loop: Loop) -> None:
    loop.load_fully()
    loop.sink.target = {number: {"id": number} for number in range(2, 12)}
    loop.run()
    assert loop.control.totals == Counts(read=5, written=5, deleted=6)
    assert loop.control.totals.staged == 5


def test_each_position_is_saved_with_the_counts_of_its_own_batch(loop: Loop) -> None:
    loop.move()
    assert [(entry.step, entry.end, entry.position, entry.written.counts) for entry in loop.checkpoint.entries] == [
        (Step.CHECKPOINT, cursor(2), Position(cursor(2)), Counts(2, 2)),
        (Step.CHECKPOINT, cursor(4), Position(cursor(4)), Counts(2, 2)),
        (Step.CHECKPOINT, cursor(5), Position(cursor(5)), Counts(1, 1)),
    ]


def test_reading_starts_after_the_stored_position_with_the_batch_size_of_the_throttle(loop: Loop) -> None:
    loop.store.state = State(Position(cursor(3)))
    loop.run()
    assert [(read.after, size) for read, size in loop.source.reads] == [(Position(cursor(3)), 2)]
    assert loop.sink.rows == rows(4, 5)


def test_an_empty_source_is_a_finished_run_with_one_empty_batch(loop: Loop) -> None:
    loop.load_fully()
    loop.source.rows = []
    assert loop.run() is Outcome.FINISHED
    empty = ["begin", "write 0", "join", "commit", "after batch"]
    assert loop.calls == ["open generation", *empty, *PUBLISH]
    assert loop.position == START


@pytest.mark.parametrize("outcome", [Outcome.PAUSED, Outcome.RELEASED])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_an_interruption_stops_between_batches_and_before_the_publish(loop: Loop, after: int, outcome: Outcome) -> None:
    loop.load_fully()
    loop.control.interrupt_after, loop.control.outcome = after, outcome
    assert loop.run() is outcome
    assert loop.calls.count("commit") == after
    assert loop.calls[-1] == "after batch"
    assert "publish" not in loop.calls


@pytest.mark.parametrize("after", [1, 2, 3])
def test_an_interrupted_run_continues_where_it_stopped(loop: Loop, after: int) -> None:
    loop.control.interrupt_after = after
    loop.run()
    loop.claim()
    assert loop.run() is Outcome.FINISHED
    assert loop.sink.rows == rows(1, 2, 3, 4, 5)
    assert loop.calls.count("write 2") + loop.calls.count("write 1") == 3


def test_transforms_are_applied_in_order_and_do_not_change_the_position(loop: Loop) -> None:
    def doubled(batch: Batch) -> Batch:
        return replace(batch, payload=PythonRows([row | {"n": row["id"] * 2} for row in rows_of(batch)]))

    def plus_one(batch: Batch) -> Batch:
        return replace(batch, payload=PythonRows([row | {"n": row["n"] + 1} for row in rows_of(batch)]))

    loop.change(transforms=[doubled, plus_one])
    loop.run()
    assert [row["n"] for row in loop.sink.rows] == [3, 5, 7, 9, 11]
    assert loop.position == Position(cursor(5))


def test_rows_of_the_source_are_counted_even_if_a_transform_drops_them(loop: Loop) -> None:
    def first_row(batch: Batch) -> Batch:
        return replace(batch, payload=PythonRows(rows_of(batch)[:1]))

    loop.change(transforms=[first_row])
    loop.run()
    assert loop.control.totals == Counts(read=5, written=3)


def test_an_exception_in_write_saves_nothing_of_its_batch(loop: Loop) -> None:
    loop.source.rows = [*rows(1, 2), {"id": 3, "modified": 3, "poison": True}, *rows(4, 5)]
    with pytest.raises(ValueError, match="poison"):
        loop.run()
    assert loop.calls[-3:] == ["begin", "write 2", "roll back"]
    assert loop.sink.rows == rows(1, 2)
    assert loop.position == Position(cursor(2))


def test_an_exception_in_save_rolls_the_rows_back(loop: Loop) -> None:
    loop.checkpoint.error = ValueError("fenced")
    with pytest.raises(ValueError, match="fenced"):
        loop.run()
    assert loop.calls[-3:] == ["write 2", "join", "roll back"]
    assert (loop.sink.rows, loop.position) == ([], START)


def test_an_exception_in_a_transform_opens_no_unit(loop: Loop) -> None:
    def broken(batch: Batch) -> Batch:
        raise ValueError("broken")

    loop.change(transforms=[broken])
    with pytest.raises(ValueError, match="broken"):
        loop.run()
    assert loop.calls == []


@dataclass
class BrokenSource(MemorySource):
    """Yields one batch, and fails on the next."""

    def batches(self, read: Read, throttle: Throttle) -> Iterator[Batch]:
        yield next(super().batches(read, throttle))
        raise KeyError("unreadable")


def test_an_exception_of_the_source_is_raised_after_the_batches_before_it(loop: Loop) -> None:
    loop.change(source=BrokenSource(rows(1, 2, 3)))
    with pytest.raises(KeyError):
        loop.run()
    assert loop.calls == BATCH
    assert loop.sink.rows == rows(1, 2)


# -- batches ahead ----------------------------------------------------------------------------------------------------


def test_reading_runs_ahead_of_writing_by_no_more_than_two_batches(loop: Loop) -> None:
    loop.source.rows = rows(*range(100, 160))
    ahead: list[int] = []

    def measured(batch: Batch) -> Batch:
        ahead.append(loop.source.count - len(ahead))
        return batch

    loop.change(transforms=[measured])
    loop.move()
    assert len(ahead) == 30
    assert max(ahead) <= 3  # the one in hand, one ready, one waiting to be ready


def test_an_interrupted_source_is_cancelled_and_its_thread_joined(loop: Loop) -> None:
    loop.source.rows = rows(*range(100, 200))
    loop.control.interrupt_after = 1
    with pytest.raises(Stop):
        loop.move()
    assert loop.source.count < 50
    assert threads() == []


@dataclass
class SlowSource(MemorySource):
    """Yields one batch; the next one is ready once it is cancelled."""

    cancelled: threading.Event = field(default_factory=threading.Event)

    def batches(self, read: Read, throttle: Throttle) -> Iterator[Batch]:
        yield next(super().batches(read, throttle))
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
    # without transforms the lane decides whether there is a second thread
    loop.change(source=SlowSource(rows(1, 2, 3)), transforms=transforms, lane=Lane.ROWS if transforms else Lane.COPY)
    loop.control.polls, loop.control.outcome = 2, outcome
    with pytest.raises(Stop) as stopped:
        loop.move()
    assert stopped.value.outcome is outcome
    assert loop.calls == BATCH
    assert threads() == []


@pytest.mark.parametrize(
    ("lane", "transforms", "names"),
    [
        (Lane.COPY, [], ["reader"]),
        (Lane.COPY, [unchanged], ["reader", "transformer"]),
        (Lane.TEXT, [], ["reader", "transformer"]),
    ],
)
def test_a_second_thread_prepares_what_is_not_sent_as_it_was_read(
    loop: Loop, lane: Lane, transforms: list[Transformer], names: list[str]
) -> None:
    slow = SlowSource(rows(1, 2, 3))
    loop.change(source=slow, lane=lane, transforms=transforms)
    seen: list[str] = []

    def noted() -> None:
        seen.extend(sorted(threads()))
        raise Stop(Outcome.PAUSED)

    loop.control.check = noted
    with pytest.raises(Stop):
        loop.move()
    assert seen == names


def test_the_next_batch_is_transformed_while_one_is_written(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    transformed = {number: threading.Event() for number in (1, 3, 5)}
    write = MemoryUnit.write

    def noted(batch: Batch) -> Batch:
        transformed[rows_of(batch)[0]["id"]].set()
        return batch

    def write_after_the_next_transform(unit: MemoryUnit, batch: Batch) -> None:
        following = transformed.get(rows_of(batch)[0]["id"] + 2)
        assert following is None or following.wait(10)
        write(unit, batch)

    monkeypatch.setattr(MemoryUnit, "write", write_after_the_next_transform)
    loop.change(transforms=[noted])
    assert loop.run() is Outcome.FINISHED
    assert loop.sink.rows == rows(1, 2, 3, 4, 5)


def test_an_exception_in_a_transform_keeps_the_batches_before_it_and_leaves_no_thread(loop: Loop) -> None:
    def broken(batch: Batch) -> Batch:
        if rows_of(batch)[0]["id"] == 3:
            raise ValueError("broken")
        return batch

    loop.change(transforms=[broken])
    with pytest.raises(ValueError, match="broken"):
        loop.run()
    assert loop.sink.rows == rows(1, 2)
    assert loop.position == Position(cursor(2))
    assert threads() == []


def test_an_exception_of_the_control_while_a_batch_is_awaited_ends_the_run(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost() -> None:
        raise ValueError("lost")

    monkeypatch.setattr(loop.control, "check", lost)
    slow = SlowSource(rows(1, 2, 3))
    loop.change(source=slow)
    with pytest.raises(ValueError, match="lost"):
        loop.move()
    assert slow.cancelled.is_set()


@pytest.mark.parametrize(
    ("user_code", "reads_user_code", "phases"),
    [
        (False, False, [Phase.READ]),
        (True, False, [Phase.READ, Phase.USER_CODE]),
        (False, True, [Phase.READ, Phase.USER_CODE]),
        (True, True, [Phase.READ, Phase.USER_CODE, Phase.USER_CODE]),
    ],
)
def test_the_control_knows_when_code_of_the_user_begins(
    loop: Loop, user_code: bool, reads_user_code: bool, phases: list[Phase]
) -> None:
    loop.change(transforms=[unchanged], user_code=user_code, reads_user_code=reads_user_code)
    loop.run()
    assert loop.control.phases == phases


def test_closing_a_plan_closes_the_sink_even_if_the_source_fails(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError("cannot close")

    monkeypatch.setattr(loop.source, "close", fail)
    with pytest.raises(ValueError, match="cannot close"):
        loop.plan.close()
    assert loop.calls == ["close sink"]


def test_counts_add_up() -> None:
    assert Counts(1, 2, 3) + Counts(10, 20, 30) == Counts(11, 22, 33)
    assert (Counts(staged=1) + Counts(staged=2)).staged == 3
    assert Counts(11, 22, 33, 44, 55) - Counts(1, 2, 3, 4, 5) == Counts(10, 20, 30, 40, 50)


def test_a_run_waits_before_every_batch_but_the_first_and_not_before_the_publish(loop: Loop) -> None:
    loop.load_fully()
    loop.control.throttle.limits = Limits(batch_rows=2, pause_between_batches=timedelta(seconds=9))
    assert loop.run() is Outcome.FINISHED
    first, *others = loop.control.delays
    assert (first, len(others)) == (0, 2)
    assert all(8 < seconds <= 9 for seconds in others)


def test_a_run_that_should_end_during_a_wait_writes_no_further_batch(loop: Loop) -> None:
    loop.load_fully()
    loop.control.interrupt_before = 2
    assert loop.run() is Outcome.PAUSED
    assert loop.calls == ["open generation", *BATCH]


# -- the order of writing and saving ----------------------------------------------------------------------------------


@pytest.mark.promise("A21")
def test_a_unit_that_the_target_acknowledges_by_itself_is_saved_afterwards(loop: Loop) -> None:
    loop.sink.joins = False
    loop.run()
    assert loop.calls[:5] == ["begin", "write 2", "commit", "save", "after batch"]
    assert (loop.sink.rows, loop.position) == (rows(1, 2, 3, 4, 5), Position(cursor(5)))


@pytest.mark.promise("A21")
def test_an_acknowledged_unit_that_is_not_saved_is_repeated_with_a_higher_version(loop: Loop) -> None:
    loop.sink.joins = False
    loop.checkpoint.error = TransientError("the store is unavailable")
    with pytest.raises(TransientError):
        loop.run()
    assert (loop.sink.rows, loop.position) == (rows(1, 2), START)
    loop.checkpoint.error = None
    assert loop.run() is Outcome.FINISHED
    first, again, *_ = loop.sink.stamps
    assert (first.sequence, first.token) == (again.sequence, again.token)
    assert first.version < again.version
    assert loop.sink.rows == rows(1, 2, 3, 4, 5)


def test_the_state_changes_only_once_the_transaction_has_committed(loop: Loop) -> None:
    seen: list[tuple[Position, Position]] = []

    class Watched(MemoryTransaction):
        def commit(self) -> None:
            seen.append((loop.checkpoint.state.position, loop.position))
            super().commit()
            seen.append((loop.checkpoint.state.position, loop.position))

    unit = MemoryUnit(loop.calls, Watched(), lambda rows: None, lambda rows: Written())
    entry = Entry(Step.CHECKPOINT, position=Position(cursor(7)))
    loop.checkpoint.open(TYPES)
    commit_unit(_finishing(unit), lambda unit: None, loop.checkpoint, entry)
    assert seen == [(START, START), (START, Position(cursor(7)))]
    assert loop.checkpoint.state.position == Position(cursor(7))


@contextmanager
def _finishing(unit: MemoryUnit) -> Generator[MemoryUnit]:
    yield unit
    unit.finish()


def test_a_target_that_finishes_on_exit_is_saved_with_what_it_knows_then(loop: Loop) -> None:
    known = [Written(Counts(written=1)), Written(Counts(written=3), identity="new")]
    unit = MemoryUnit(loop.calls, None, lambda rows: known.reverse(), lambda rows: known[0])
    entry = Entry(Step.CHECKPOINT, read=4)
    written, _ = commit_unit(_finishing(unit), lambda unit: None, loop.checkpoint, entry)
    assert written == Written(Counts(read=4, written=3), identity="new")
    assert [entry.written for entry in loop.checkpoint.entries] == [written]


@pytest.mark.parametrize(("step", "rejected"), [(Step.CHECKPOINT, 9), (Step.STAGED, 9), (Step.PROGRESS, 0)])
def test_a_catch_up_does_not_count_rejected_rows_again(loop: Loop, step: Step, rejected: int) -> None:
    loop.sink.rejected = 3
    loop.move(step=step)
    assert loop.control.totals == Counts(read=5, written=5, rejected=rejected)


# -- changes ----------------------------------------------------------------------------------------------------------


def test_changes_are_read_from_the_checkpoint_which_the_watermark_holds_back(loop: Loop) -> None:
    loop.source.mark = mark(4)
    assert loop.run() is Outcome.FINISHED
    assert loop.sink.rows == rows(1, 2, 3, 4, 5)
    assert loop.position == Position(("4",))
    assert loop.control.observed == [mark(4)]
    loop.source.rows = [*rows(1, 2, 3, 4, 5), {"id": 6, "modified": 4}]  # committed late
    loop.source.mark = mark(9)
    loop.claim()
    loop.run()
    assert loop.source.reads[-1][0].after == Position(("4",))
    assert len(loop.sink.rows) == 6
    assert loop.position == Position(cursor(5))


def test_without_a_bound_the_checkpoint_stays_where_it_is(loop: Loop) -> None:
    loop.store.state = State(Position(cursor(1)))
    loop.source.mark = mark(None)
    loop.run()
    assert (loop.sink.rows, loop.position) == (rows(2, 3, 4, 5), Position(cursor(1)))


def test_rows_without_a_cursor_are_left_out_if_the_plan_says_so(loop: Loop) -> None:
    loop.change(skip_null=True)
    loop.source.rows = [{"id": 9, "modified": None}, *rows(1, 2)]
    loop.run()
    assert loop.sink.rows == rows(1, 2)


def test_a_watermark_that_cannot_be_known_ends_an_incremental_run(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop.source, "watermark", _unknowable)
    with pytest.raises(ConfigError, match="cannot be known"):
        loop.run()
    assert loop.calls == []


def _unknowable(column: str) -> Watermark | None:
    raise ConfigError("the watermark cannot be known")


def test_a_run_that_is_interrupted_before_it_starts_reads_nothing(loop: Loop) -> None:
    loop.control.polls = 1
    assert loop.run() is Outcome.PAUSED
    assert (loop.calls, loop.source.reads) == ([], [])


def test_a_token_without_further_versions_releases_the_run(loop: Loop) -> None:
    loop.checkpoint.units_allowed = 2
    assert loop.run() is Outcome.RELEASED
    assert loop.position == Position(cursor(4))
    loop.claim()
    assert loop.run() is Outcome.FINISHED
    assert loop.sink.rows == rows(1, 2, 3, 4, 5)


def test_a_checkpoint_without_its_target_is_refused(loop: Loop) -> None:
    loop.store.state = State(Position(cursor(3)), TYPES, identity="first")
    loop.load_first()
    for bound in (None, 9):
        loop.source.mark = mark(bound)
        with pytest.raises(ConfigError, match=r"is missing.*reset the state") as refused:
            loop.run()
        assert refused.value.code == "TARGET_SCHEMA"
    assert loop.calls == []


def test_a_checkpoint_of_a_target_that_was_recreated_is_refused(loop: Loop) -> None:
    loop.store.state = State(Position(cursor(3)), TYPES, identity="another")
    with pytest.raises(ConfigError, match="recreated or restored") as refused:
        loop.run()
    assert (refused.value.code, loop.calls) == ("TARGET_REPLACED", [])


def test_a_checkpoint_of_other_types_is_refused(loop: Loop) -> None:
    loop.store.state = State(Position(cursor(3)), "modified date, id integer", identity="first")
    with pytest.raises(DataError, match="modified date, id integer") as refused:
        loop.run()
    assert (refused.value.code, loop.calls) == ("STATE_MISMATCH", [])


# -- loads ------------------------------------------------------------------------------------------------------------


def test_the_first_run_of_an_incremental_pipeline_is_a_load_that_leaves_a_checkpoint(loop: Loop) -> None:
    loop.load_first()
    loop.source.mark = mark(4)
    assert loop.run() is Outcome.FINISHED
    assert loop.calls == ["open generation", *BATCH, *BATCH, *LAST, *PUBLISH]
    assert loop.steps() == [Step.STAGED, Step.STAGED, Step.STAGED, Step.PUBLISHED]
    assert (loop.sink.rows, loop.position) == (rows(1, 2, 3, 4, 5), Position(("4",)))
    assert (loop.store.state.cursor_types, loop.store.state.generation) == (TYPES, None)


@pytest.mark.parametrize("bound", [None, mark(None)])
def test_without_a_bound_the_first_run_reads_changes(loop: Loop, bound: Watermark | None) -> None:
    loop.load_first()
    loop.source.mark = bound
    assert loop.run() is Outcome.FINISHED
    assert loop.steps() == [Step.CHECKPOINT] * 3


def test_a_resumed_first_load_keeps_the_watermark_of_its_first_snapshot(loop: Loop) -> None:
    loop.load_first()
    loop.source.mark = mark(2)
    loop.control.interrupt_after = 1
    loop.run()
    loop.source.mark = mark(9)
    loop.claim()
    assert loop.run_once()
    read = loop.source.reads[-1][0]
    assert (read.after, read.start, read.watermark) == (Position(cursor(2)), Position(("2",)), mark(2))
    assert loop.position == Position(("2",))
    assert loop.sink.rows == rows(1, 2, 3, 4, 5)


def test_a_full_load_replaces_the_rows_of_the_target(loop: Loop) -> None:
    loop.load_fully()
    loop.sink.target = {1: {"id": 1}, 8: {"id": 8}}
    loop.run()
    assert loop.sink.rows == rows(1, 2, 3, 4, 5)
    assert loop.control.phases == [Phase.READ, Phase.PUBLISH]
    assert loop.control.observed == [None]
    assert loop.position == START


def test_a_full_load_with_a_cursor_catches_up_from_its_first_watermark(loop: Loop) -> None:
    loop.load_fully(cursor_column="modified")
    loop.source.mark = mark(3)
    loop.source.rows = [*rows(1, 2, 3, 4), {"id": 9, "modified": None}]
    loop.run()
    catch_up = loop.source.reads[-1][0]
    assert catch_up == Read(Lane.ROWS, ORDER, Position(("3",)), skip_null=True)
    assert loop.steps() == [*[Step.STAGED] * 3, Step.PUBLISHED, Step.PROGRESS]
    assert loop.control.phases == [Phase.READ, Phase.PUBLISH, Phase.CATCH_UP]
    assert len(loop.sink.rows) == 5


@pytest.mark.parametrize("bound", [None, mark(None)])
def test_without_a_bound_a_full_load_does_not_catch_up(loop: Loop, bound: Watermark | None) -> None:
    loop.load_fully(cursor_column="modified")
    loop.source.mark = bound
    assert loop.run() is Outcome.FINISHED
    assert len(loop.source.reads) == 1


def test_a_full_load_does_without_a_watermark_that_cannot_be_known(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    loop.load_fully(cursor_column="modified")
    monkeypatch.setattr(loop.source, "watermark", _unknowable)
    assert loop.run() is Outcome.FINISHED
    assert (len(loop.source.reads), loop.sink.rows) == (1, rows(1, 2, 3, 4, 5))


def test_an_interruption_of_the_catch_up_ends_a_finished_run(loop: Loop) -> None:
    loop.load_fully(cursor_column="modified")
    loop.source.mark = mark(1)
    loop.control.interrupt_after = 5  # three batches, the publish, and the first batch of the catch-up
    assert loop.run() is Outcome.FINISHED
    assert loop.steps()[-2:] == [Step.PUBLISHED, Step.PROGRESS]
    loop.claim()
    loop.checkpoint.units_allowed = 4
    assert loop.run() is Outcome.FINISHED


def test_a_catch_up_that_fails_is_repeated_without_the_load(loop: Loop) -> None:
    loop.load_fully(cursor_column="modified")
    loop.source.mark = mark(4)
    failpoints.install("before_commit=raise@4")
    with pytest.raises(TransientError):
        loop.run()
    loop.source.reads.clear()
    assert loop.run() is Outcome.FINISHED
    assert [read.after for read, _ in loop.source.reads] == [Position(("4",))]


def test_the_load_of_another_query_is_abandoned_once_the_new_one_is_fenced(loop: Loop) -> None:
    loop.load_fully()
    loop.control.interrupt_after = 1
    loop.run()
    loop.calls.clear()
    loop.change(fingerprint="another query")
    loop.claim()
    assert loop.run() is Outcome.FINISHED
    assert loop.calls[:3] == ["open generation", "discard 1", "begin"]
    assert loop.sink.published == 2
    assert loop.sink.rows == rows(1, 2, 3, 4, 5)


def test_a_load_that_is_too_old_starts_from_the_beginning(loop: Loop) -> None:
    loop.load_fully()
    loop.control.interrupt_after = 1
    loop.run()
    loop.store.state = replace(loop.store.state, generation=replace(loop.generation, age=timedelta(hours=2)))
    loop.claim()
    loop.run()
    assert (loop.sink.published, loop.source.reads[-1][0].after) == (2, START)


def test_a_load_whose_staged_rows_vanished_starts_from_the_beginning(loop: Loop) -> None:
    loop.load_fully()
    loop.control.interrupt_after = 1
    loop.run()
    loop.sink.staged.clear()
    loop.claim()
    loop.run()
    assert (loop.sink.published, loop.sink.rows) == (2, rows(1, 2, 3, 4, 5))


def test_a_load_that_has_staged_nothing_yet_is_continued(loop: Loop) -> None:
    loop.load_fully()
    failpoints.install("before_commit=raise@1")
    with pytest.raises(TransientError):
        loop.run()
    assert loop.generation.cursor is None
    assert loop.run() is Outcome.FINISHED
    assert loop.sink.published == 1


def test_a_first_load_is_discarded_if_the_target_was_created_meanwhile(loop: Loop) -> None:
    loop.load_first()
    loop.source.mark = mark(9)
    loop.control.interrupt_after = 1
    loop.run()
    loop.sink.exists, loop.sink.target = True, {7: {"id": 7}}
    loop.claim()
    assert loop.run() is Outcome.FINISHED
    assert loop.steps() == [Step.DISCARDED, *[Step.CHECKPOINT] * 3]
    assert "discard 1" in loop.calls
    assert loop.sink.rows == [*rows(1, 2, 3, 4, 5), {"id": 7}]


def test_a_published_load_that_was_not_saved_is_published_again_and_not_read_again(loop: Loop) -> None:
    loop.load_fully()
    loop.sink.joins = False
    failpoints.install("before_checkpoint=raise@4")
    with pytest.raises(TransientError):
        loop.run()
    assert (loop.sink.published, loop.generation.number) == (1, 1)
    loop.source.reads.clear()
    loop.claim()
    assert loop.run() is Outcome.FINISHED
    assert (loop.source.reads, loop.store.state.generation) == ([], None)
    assert loop.sink.infos[-1].repeats
    assert loop.sink.rows == rows(1, 2, 3, 4, 5)


def test_a_load_that_cannot_be_published_is_discarded_and_leaves_the_target_alone(loop: Loop) -> None:
    loop.load_fully()
    loop.change(max_delete_ratio=0.5)
    loop.sink.target = {number: {"id": number} for number in range(10, 20)}
    before = dict(loop.sink.target)
    with pytest.raises(DataError) as refused:
        loop.run()
    assert refused.value.code == "SHRINK_GUARD"
    assert loop.steps()[-1] is Step.DISCARDED
    assert loop.calls[-2:] == ["save", "discard 1"]
    assert (loop.sink.target, loop.sink.staged, loop.store.state.generation) == (before, {}, None)


@pytest.mark.parametrize(
    ("incremental", "last_wins", "batches_per_snapshot", "resumed", "repeats"),
    [
        (False, False, None, False, False),
        (False, False, 1, False, False),  # the key orders the read: no key comes twice
        (False, False, None, True, False),
        (False, True, None, False, True),
        (True, False, None, False, False),
        (True, False, 1, False, True),  # a row may change between two snapshots, and come again
        (True, False, None, True, True),
    ],
)
def test_the_sink_knows_whether_a_key_may_have_been_staged_twice(
    loop: Loop,
    incremental: bool,
    last_wins: bool,
    batches_per_snapshot: int | None,
    resumed: bool,
    repeats: bool,
) -> None:
    loop.source.mark = mark(9)
    loop.source.batches_per_snapshot = batches_per_snapshot
    loop.load_first()
    if not incremental:
        loop.load_fully()
    loop.change(last_wins=last_wins)
    if resumed:
        loop.control.interrupt_after = 1
        loop.run()
        loop.claim()
    loop.run()
    (info,) = loop.sink.infos
    assert (info.rows, info.repeats) == (5, repeats)


# -- failures at every point ------------------------------------------------------------------------------------------

JOINED = (
    "after_read",
    "after_sink_write",
    "before_commit",
    "after_commit",
    "before_swap",
    "after_swap",
)
FOLLOWING = ("after_read", "after_sink_write", "before_checkpoint", "after_commit", "after_swap")
POINTS = [*((True, point) for point in JOINED), *((False, point) for point in FOLLOWING)]
KINDS: dict[str, Callable[[Loop], None]] = {
    "changes": lambda loop: None,
    "first load": lambda loop: loop.load_first(),
    "full load": lambda loop: loop.load_fully(),
    "full load with catch-up": lambda loop: loop.load_fully(cursor_column="modified"),
}


@pytest.mark.parametrize("same_claim", [True, False], ids=["same claim", "another claim"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("joins", "point"), POINTS)
def test_a_failure_at_any_point_of_any_unit_loses_no_row(joins: bool, point: str, kind: str, same_claim: bool) -> None:
    for number in range(1, 8):
        loop = Loop()
        loop.sink.joins = joins
        KINDS[kind](loop)
        loop.source.mark = mark(4)
        failpoints.install(f"{point}=raise@{number}")
        try:
            assert loop.run() is Outcome.FINISHED
        except TransientError:
            if same_claim:
                loop.describe()
            else:
                loop.claim()
            assert loop.run() is Outcome.FINISHED
        assert loop.sink.rows == rows(1, 2, 3, 4, 5)
        assert loop.position == (START if kind.startswith("full") else Position(("4",)))
        assert (loop.store.state.generation, loop.sink.staged) == (None, {})
        assert threads() == []


@dataclass
class LostAnswer:
    """Commits, and loses the answer of one commit."""

    number: int

    def __call__(self, commit: Callable[[MemoryUnit], None]) -> Callable[[MemoryUnit], None]:
        def finish(unit: MemoryUnit) -> None:
            commit(unit)
            self.number -= 1
            if self.number == 0:
                raise TransientError("the connection was lost")

        return finish


@pytest.mark.parametrize("number", range(1, 6))
@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_without_an_answer_is_settled_by_the_store(
    kind: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop()
    KINDS[kind](loop)
    loop.source.mark = mark(4)
    monkeypatch.setattr(MemoryUnit, "finish", LostAnswer(number)(MemoryUnit.finish))
    try:
        assert loop.run() is Outcome.FINISHED
    except TransientError:
        loop.describe()
        assert loop.run() is Outcome.FINISHED
    assert loop.sink.rows == rows(1, 2, 3, 4, 5)
    assert loop.position == (START if kind.startswith("full") else Position(("4",)))
    # every commit counts once
    committed = sum((entry.written.counts for entry in loop.checkpoint.entries), Counts())
    assert loop.checkpoint.state.totals == loop.control.totals == committed


def test_an_interruption_raised_by_the_sink_is_the_outcome(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(unit: MemoryUnit, batch: Batch) -> None:
        raise Stop(Outcome.RELEASED)

    monkeypatch.setattr(MemoryUnit, "write", write)
    assert loop.run() is Outcome.RELEASED
    assert (loop.calls, loop.checkpoint.entries) == (["begin", "roll back"], [])
