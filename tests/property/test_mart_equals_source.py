"""After any sequence of writes, runs, crashes and configuration changes, one more run makes the mart equal its query.

A state machine works on a real PostgreSQL: three writer sessions with their own transactions, runs in this process that
are interrupted at chosen points, and changes of the definition. After every successful run, the mart must contain all
rows that were committed before the run began and have not changed since. If nothing was written during the run, the
mart must equal its query.

`make property STEPS=10000` takes other steps every time, and shrinks a failure.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from uuid import NAMESPACE_OID, UUID, uuid5

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from psycopg import sql

from tests.helpers import journal
from tests.helpers.running import create, differences
from tests.property.conftest import STEPS
from tests.property.driving import drive
from tests.property.world import WRITERS, Point, When, World, Writer, nothing, opened
from vitrine.connectors.postgres.source import watermark
from vitrine.core.protocols import Outcome
from vitrine.core.rows import Counts, Row
from vitrine.core.status import LEASED, PipelineId, Status
from vitrine.definition import model, registry
from vitrine.definition.pipeline import Claim, Pipeline
from vitrine.errors import TransitionRefused
from vitrine.operations import changes
from vitrine.postgres import Connection, raw
from vitrine.runner.run import Executed, PipelineDispatcher, PipelineExecutor
from vitrine.store import pipelines, queue, state

if TYPE_CHECKING:
    import polars as pl

STEPS_OF_A_MACHINE = 110
STEPS_WITHOUT_PROTECTION = 270
TARGET = "analytics.subject"

# Queries of one group return the same rows, so the checkpoint can be kept when one replaces another
QUERIES: dict[str, tuple[str, str]] = {
    "plain": ("as it is", "SELECT id, part, payload, modified, rev FROM ugc.subject"),
    "reordered": ("as it is", "SELECT s.rev, s.modified, s.payload, s.id, s.part FROM ugc.subject s WHERE s.part >= 0"),
    "louder": ("louder", "SELECT id, part, payload || '!' AS payload, modified, rev FROM ugc.subject"),
}


@registry.transforms.register("rows_as_they_are")
def rows_as_they_are(rows: Sequence[Row]) -> Sequence[Row]:
    return [dict(row) for row in rows]


@registry.transforms.register_frame("frame_as_it_is")
def frame_as_it_is(frame: "pl.DataFrame") -> "pl.DataFrame":
    return frame.clone()


Lane = Literal["copy", "rows", "frames"]
TASKS: dict[Lane, str | None] = {"copy": None, "rows": "rows_as_they_are", "frames": "frame_as_it_is"}


class Killed(BaseException):
    """Stands for SIGKILL: a BaseException, so that no error handler of the runner runs."""


class MartIsWrong(AssertionError):
    """The mart lacks rows or differs from its query."""


# -- actions ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Write:
    """A statement of a writer; it is part of the open transaction, or commits at once if none is open."""

    writer: int
    verb: Literal[
        "nothing", "insert", "update", "delete", "savepoint", "roll back to", "commit", "roll back", "reconnect"
    ]
    when: When = When.NOW
    place: int = 0  # which row is updated or deleted
    count: int = 1
    size: int = 0  # of the payload
    begins: bool = False  # opens a transaction first, if none is open


class Interruption(StrEnum):
    """What happens to a run."""

    NONE = "none"
    STOP = "stop"  # the runner receives SIGTERM
    PAUSE = "pause"
    PAUSE_AND_RUN = "pause and run"  # the pause is withdrawn at once
    KILL = "kill"
    TERMINATE = "terminate"  # the server terminates every session of the run
    TAKEOVER = "takeover"  # the lease expires, another runner takes over, then this one wakes up
    TAKEOVER_BESIDE = "takeover beside"  # the same, but the sessions of the old runner stay alive


@dataclass(frozen=True)
class Run:
    """A run; when it reaches the point for the nth time, rows are written and it is interrupted."""

    point: Point = "batch"
    number: int = 0
    writes: tuple[Write, ...] = ()
    interruption: Interruption = Interruption.NONE


@dataclass(frozen=True)
class Change:
    """A change of the configuration; None leaves a field as it is."""

    batch_size: int
    snapshot_max_age: Literal["0s", "10m"]
    max_batch_bytes: int
    margin: Literal["0s", "2s"] | None
    query: str | None
    lane: Lane | None
    reset: bool


Incident = Literal["pause", "time passes"]
Action = Write | Run | Change | Incident

_writers = st.integers(0, WRITERS - 1)
_whens = st.sampled_from((*[When.NOW] * 5, *[When.CLOCK] * 3, *When))
_counts = st.integers(1, 4)
_places = st.integers(0, 9)
_sizes = st.sampled_from((0, 1, 700))
_writes: dict[str, st.SearchStrategy[Write]] = {
    "insert": st.builds(Write, _writers, st.just("insert"), _whens, _places, _counts, _sizes),
    "update": st.builds(Write, _writers, st.just("update"), _whens, _places, _counts, _sizes),
    "begin": st.builds(
        Write, _writers, st.sampled_from(("nothing", "insert", "update")), _whens, _places, begins=st.just(True)
    ),
    "commit": st.builds(Write, _writers, st.just("commit")),
    "delete": st.builds(Write, _writers, st.just("delete"), place=_places, count=_counts),
    "undo": st.builds(Write, _writers, st.sampled_from(("savepoint", "roll back to", "roll back", "reconnect"))),
}
_several = st.lists(st.one_of(*_writes.values()), max_size=4).map(tuple)
_numbers = st.integers(0, 6)
_actions: dict[str, st.SearchStrategy[Action]] = {
    **_writes,
    "run": st.builds(Run),
    "interrupted run": st.builds(
        Run, st.sampled_from(("batch", "horizon")), _numbers, _several, st.sampled_from(Interruption)
    ),
    # A save holds the row lock of the pipeline: it cannot be paused or taken over then
    "interrupted save": st.builds(
        Run,
        st.just("save"),
        _numbers,
        _several,
        st.sampled_from((Interruption.NONE, Interruption.KILL, Interruption.TERMINATE)),
    ),
    "change": st.builds(
        Change,
        batch_size=st.integers(1, 7),
        snapshot_max_age=st.sampled_from(("10m", "10m", "0s")),
        max_batch_bytes=st.sampled_from((1_000_000, 1_000_000, 1024)),
        margin=st.sampled_from((None, "0s", "2s")),
        query=st.sampled_from((None, None, *QUERIES)),
        lane=st.sampled_from((None, *TASKS)),
        reset=st.sampled_from((False, False, False, True)),
    ),
    "incident": st.sampled_from(("pause", "time passes")),
}
_weights = {
    "insert": 4,
    "update": 5,
    "begin": 6,
    "commit": 4,
    "delete": 1,
    "undo": 2,
    "run": 3,
    "interrupted run": 3,
    "interrupted save": 1,
    "change": 2,
    "incident": 1,
}
actions = st.sampled_from([name for name, weight in _weights.items() for _ in range(weight)]).flatmap(
    _actions.__getitem__
)


# -- the machine ------------------------------------------------------------------------------------------------------


class MartMachine(RuleBasedStateMachine):
    """One rule takes any action; a subclass sets mode, cursor and lane."""

    fields: ClassVar[dict[str, Any]]
    lane: ClassVar[Lane]
    may_delete: ClassVar[bool] = False
    catches_up: ClassVar[bool] = False

    def __init__(self, world: World, margins: bool = True) -> None:
        super().__init__()
        self.world = world
        self.margins = margins  # False: the margin is always zero
        self.query = "plain"
        self.margin = "0s"
        self.covered = False  # every checkpoint so far had a margin that covers times before now()
        self.rows = 0
        self.written = 0  # statements of writers
        self.after_takeover: tuple[state.StoredState, dict[UUID, str]] | None = None
        self.pipeline: Pipeline | None = None
        world.clear()

    @initialize(
        rows=st.integers(0, 12),
        margin=st.sampled_from(("0s", "2s")),
        batch_size=st.integers(1, 7),
        exists=st.booleans(),
    )
    def begin(self, rows: int, margin: str, batch_size: int, exists: bool) -> None:
        self._write(Write(0, "insert", count=rows))
        self.margin = margin if self.margins else "0s"
        self.covered = self.margin == "2s"
        if exists:
            statement = sql.SQL(
                "CREATE TABLE analytics.subject (rev bigint, payload text, part int, noted timestamptz DEFAULT now(),"
                " id uuid, modified timestamptz, PRIMARY KEY ({}))"
            )
            key = sql.SQL(", ").join(map(sql.Identifier, self.fields["key_columns"]))
            self.world.control.execute(statement.format(key))
        self.pipeline = create(
            self.world.control,
            self.world.settings,
            source_query=QUERIES[self.query][1],
            python_task=TASKS[self.lane],
            target_table=TARGET,
            batch_size=batch_size,
            options={"horizon_margin": self.margin, "max_delete_ratio": 1},
            **self.fields,
        )

    @rule(action=actions)
    def act(self, action: Action) -> None:
        STEPS[type(self).__name__] += 1
        match action:
            case Write():
                self._write(action)
            case Run():
                self._run(action)
            case Change():
                self._change(action)
            case "pause":
                with suppress(TransitionRefused):  # FAILED
                    pipelines.request_pause(self.world.control, self._id)
            case "time passes":
                self.world.expire()

    def teardown(self) -> None:
        """Commit every transaction and run: the mart equals its query, and a further run writes nothing."""
        if self.pipeline is None or sys.exc_info()[0] is not None:
            return
        for writer in self.world.writers:
            writer.end("COMMIT")
        if self._is_old():
            assert self._run()  # finishes a load that began before the writers ended
        assert self._run()
        if found := self._differences():
            raise MartIsWrong(f"the writers have ended, and the mart differs in {found}")
        self._check_that_another_run_writes_nothing()
        journal.assert_legal(self.world.control)

    @property
    def _id(self) -> PipelineId:
        assert self.pipeline is not None
        return self.pipeline.id

    # -- writers ------------------------------------------------------------------------------------------------------

    def _write(self, write: Write) -> None:
        writer = self.world.writers[write.writer]
        self.written += 1
        if write.begins:
            writer.begin()
        match write.verb:
            case "nothing":
                pass
            case "insert":
                for _ in range(write.count):
                    self.rows += 1
                    key = uuid5(NAMESPACE_OID, str(self.rows))
                    self._execute(writer, _INSERT, write.when, write.size, id=key, part=self.rows % 3)
            case "delete" if self.may_delete:
                writer.execute(_DELETE.format(), {"place": write.place, "count": write.count})
            case "update" | "delete":
                self._execute(writer, _UPDATE, write.when, write.size, place=write.place, count=write.count)
            case "savepoint":
                writer.savepoint()
            case "roll back to":
                writer.roll_back_to()
            case "commit":
                writer.end("COMMIT")
            case "roll back":
                writer.end("ROLLBACK")
            case "reconnect":
                writer.reconnect()

    def _execute(self, writer: Writer, statement: sql.SQL, when: When, size: int, **arguments: Any) -> None:
        if when.is_behind and not self.covered:
            when = When.NOW
        writer.is_behind |= writer.open and when.is_behind
        payload = str(self.written) + "x" * size
        writer.execute(statement.format(when=raw(when)), {"payload": payload, **arguments})

    # -- runs ---------------------------------------------------------------------------------------------------------

    def _run(self, plan: Run = Run()) -> bool:  # noqa: B008
        """Run once and check the mart after a success; returns whether the run succeeded."""
        claim = self._claim()
        before, written = self._images(), self.written
        is_old = self._is_old()
        stop = threading.Event()
        dispatcher = PipelineDispatcher(self.world.settings, PipelineExecutor(self.world.settings, stop, waits=()))
        self.world.at = _once(plan, lambda: self._interrupt(plan, stop))
        try:
            executed, status = dispatcher.dispatch(claim, watch=self._watch, retry=False)
        except Killed:
            return False
        finally:
            self.world.at = nothing
        if self.after_takeover is not None:
            if status is not None or self.after_takeover != self._state_and_rows():
                raise MartIsWrong("a run wrote after it was taken over")
            self.after_takeover = None
        if executed.outcome is not Outcome.FINISHED or status is None:
            _check_unfinished(executed, plan.interruption)
            return False
        if not is_old:
            self._check(before if self.written > written else None)
        return True

    def _watch(self, counts: Counts, expected: int | None) -> None:
        self.world.at("batch")

    def _claim(self) -> Claim:
        control, ttl = self.world.control, self.world.settings.lease_ttl
        pipelines.request_run(control, self._id, trigger="cli")
        claim = queue.claim_next(control, runner="tests", ttl=ttl)
        if claim is None:  # a killed run still holds the lease
            self.world.expire()
            if pipelines.get(control, self._id).status is not Status.RUN_REQUESTED:
                pipelines.request_run(control, self._id, trigger="cli")  # PAUSED, or FAILED after three kills
            claim = queue.claim_next(control, runner="tests", ttl=ttl)
        assert claim is not None
        return claim

    def _interrupt(self, plan: Run, stop: threading.Event) -> None:
        for write in plan.writes:
            self._write(write)
        match plan.interruption:
            case Interruption.NONE:
                pass
            case Interruption.STOP:
                stop.set()
            case Interruption.PAUSE:
                pipelines.request_pause(self.world.control, self._id)
            case Interruption.PAUSE_AND_RUN:
                pipelines.request_pause(self.world.control, self._id)
                pipelines.request_run(self.world.control, self._id, trigger="cli")
            case Interruption.KILL:
                raise Killed
            case Interruption.TERMINATE:
                self.world.terminate()
            case Interruption.TAKEOVER:
                self.world.expire()
                self._take_over()
            case Interruption.TAKEOVER_BESIDE:
                self.world.expire(self.world.other)
                self._take_over()

    def _take_over(self) -> None:
        self._run()
        self.after_takeover = self._state_and_rows()

    def _state_and_rows(self) -> tuple[state.StoredState, dict[UUID, str]]:
        return state.load_state(self.world.control, self._id), self._images_of_mart()

    def _is_old(self) -> bool:
        """Whether the next run continues a full load, which is only as fresh as its first snapshot."""
        return not self.catches_up and state.load_state(self.world.control, self._id).generation_open

    # -- the mart -----------------------------------------------------------------------------------------------------

    def _check(self, before: dict[UUID, str] | None) -> None:
        """The mart equals the query; or, if rows were written during the run, contains all rows that did not change."""
        if before is None:
            if found := self._differences():
                raise MartIsWrong(f"nothing was written during the run, and the mart differs in {found}")
            return
        now, there = self._images(), self._images_of_mart()
        if wrong := [key for key, image in before.items() if now.get(key) == image and there.get(key) != image]:
            raise MartIsWrong(f"rows {wrong} were committed before the run, and the mart does not have them")

    def _check_that_another_run_writes_nothing(self) -> None:
        written = "SELECT coalesce(sum(rows_written + rows_deleted), 0) AS n FROM etl.etl_runs"
        before = self.world.control.execute(written).fetchone()
        assert self._run()
        assert self.world.control.execute(written).fetchone() == before

    def _differences(self) -> list[dict[str, Any]]:
        if not self._exists():
            return [{"key": str(key), "missing": True} for key in self._images()]
        return differences(self.world.control, QUERIES[self.query][1], TARGET, "id")

    def _images(self) -> dict[UUID, str]:
        return self._rows_of(sql.SQL("({}) AS q").format(raw(QUERIES[self.query][1])))

    def _images_of_mart(self) -> dict[UUID, str]:
        return self._rows_of(sql.SQL("analytics.subject").format()) if self._exists() else {}

    def _rows_of(self, relation: sql.Composed) -> dict[UUID, str]:
        statement = sql.SQL("SELECT id, ROW(part, payload, modified, rev)::text AS image FROM {}").format(relation)
        return {row["id"]: row["image"] for row in self.world.control.execute(statement)}

    def _exists(self) -> bool:
        """A transform defines its columns with its first row; without any, no mart is created."""
        row = self.world.control.execute("SELECT to_regclass('analytics.subject') IS NOT NULL AS yes").fetchone()
        return bool(row and row["yes"])

    # -- configuration ------------------------------------------------------------------------------------------------

    def _change(self, change: Change) -> None:
        options = {"snapshot_max_age": change.snapshot_max_age, "max_batch_bytes": change.max_batch_bytes}
        self._change_definition({"batch_size": change.batch_size, "options": options})
        if change.margin is not None:
            self._change_margin(change.margin)
        if change.query is not None:
            self._change_query(change.query, change.lane, change.reset)

    def _change_margin(self, margin: str) -> None:
        if not self.margins or (margin == "0s" and any(writer.is_behind for writer in self.world.writers)):
            return  # with the smaller margin its rows would be below the checkpoint
        self._change_definition({"options": {"horizon_margin": margin}})
        self.margin, self.covered = margin, self.covered and margin == "2s"

    def _change_query(self, query: str, lane: Lane | None, reset: bool) -> None:
        """Change the query, and the lane if one is given; refused while a lease is valid."""
        known = pipelines.get(self.world.control, self._id)
        if known.status in LEASED:
            with pytest.raises(TransitionRefused):
                self._change_definition({"source_query": "SELECT id FROM ugc.subject"}, state="keep")
            self.world.expire()
        task = TASKS[lane] if lane else known.definition.python_task
        reset = reset or QUERIES[query][0] != QUERIES[self.query][0]
        fields = {"source_query": QUERIES[query][1], "python_task": task}
        self._change_definition(fields, state="reset" if reset else "keep")
        self.query = query
        if reset:
            self.covered = self.margin == "2s"

    def _change_definition(self, fields: dict[str, Any], state: model.StateChoice | None = None) -> None:
        changes.change(self.world.control, self.world.settings, self._id, fields, state=state)


_INSERT = sql.SQL(
    "INSERT INTO ugc.subject (id, part, payload, modified) VALUES (%(id)s, %(part)s, %(payload)s, {when})"
)
# SKIP LOCKED: a writer must not wait for another, because all run in one thread
_UPDATE = sql.SQL(
    "UPDATE ugc.subject SET payload = %(payload)s, modified = {when}, rev = nextval('ugc.subject_rev_seq'),"
    " part = (part + %(place)s) %% 3 WHERE id IN"
    " (SELECT id FROM ugc.subject ORDER BY id OFFSET %(place)s LIMIT %(count)s FOR UPDATE SKIP LOCKED)"
)
_DELETE = sql.SQL(
    "DELETE FROM ugc.subject WHERE id IN"
    " (SELECT id FROM ugc.subject ORDER BY id OFFSET %(place)s LIMIT %(count)s FOR UPDATE SKIP LOCKED)"
)


def _once(plan: Run, react: Callable[[], None]) -> Callable[[Point], None]:
    """Calls react when a run reaches the point for the nth time, and only then."""
    left = plan.number + 1

    def reached(point: Point) -> None:
        nonlocal left
        left -= point == plan.point
        if point == plan.point and left == 0:
            react()

    return reached


def _check_unfinished(executed: Executed, interruption: Interruption) -> None:
    """Only an interrupted run may be unfinished, and only a lost session or lease may be its error."""
    if interruption not in (Interruption.TERMINATE, Interruption.TAKEOVER, Interruption.TAKEOVER_BESIDE):
        assert executed.error is None, executed.error
        assert interruption in (Interruption.STOP, Interruption.PAUSE, Interruption.PAUSE_AND_RUN), executed


FULL: dict[str, Any] = {"mode": "full", "key_columns": ["part", "id"]}
BY_TIME: dict[str, Any] = {
    "mode": "incremental",
    "incremental_key": "modified",
    "incremental_id_key": "id",
    "key_columns": ["id"],
}
BY_NUMBER: dict[str, Any] = BY_TIME | {"incremental_key": "rev"}


class FullCopy(MartMachine):
    fields, lane, may_delete = FULL, "copy", True


class FullRows(MartMachine):
    fields, lane, may_delete = FULL, "rows", True


class FullFrames(MartMachine):
    fields, lane, may_delete = FULL, "frames", True


class FullCatchingUp(MartMachine):
    """With a cursor column a continued full load is as fresh as any run, except for deletes."""

    fields, lane, catches_up = BY_TIME | {"mode": "full"}, "copy", True


class TimeCopy(MartMachine):
    fields, lane = BY_TIME, "copy"


class TimeRows(MartMachine):
    fields, lane = BY_TIME, "rows"


class TimeFrames(MartMachine):
    fields, lane = BY_TIME, "frames"


class NumberCopy(MartMachine):
    fields, lane = BY_NUMBER, "copy"


class NumberRows(MartMachine):
    fields, lane = BY_NUMBER, "rows"


class NumberFrames(MartMachine):
    fields, lane = BY_NUMBER, "frames"


MACHINES = (
    *(FullCopy, FullRows, FullFrames, FullCatchingUp),
    *(TimeCopy, TimeRows, TimeFrames),
    *(NumberCopy, NumberRows, NumberFrames),
)


@pytest.fixture
def world(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with opened(database_url, monkeypatch) as world:
        yield world


@pytest.mark.parametrize("machine", MACHINES)
def test_the_mart_equals_its_source_when_the_writers_have_ended(machine: type[MartMachine], world: World) -> None:
    drive(machine.__name__, lambda: machine(world), steps=STEPS_OF_A_MACHINE)


@pytest.mark.parametrize("machine", [TimeCopy, NumberRows])
def test_without_the_horizon_rows_are_lost(
    machine: type[MartMachine], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine can detect a loss: a checkpoint that does not wait for open transactions loses their rows."""

    def read(connection: Connection, *_: object) -> watermark.Horizon:
        row = connection.execute("SELECT clock_timestamp() AS now").fetchone()
        assert row is not None
        world.at("horizon")
        return watermark.Horizon(row["now"], row["now"], None)

    monkeypatch.setattr(watermark, "read_horizon", read)
    with pytest.raises(MartIsWrong):
        drive(
            f"{machine.__name__} without the horizon",
            lambda: machine(world, margins=False),
            steps=STEPS_WITHOUT_PROTECTION,
            always_the_same=True,
        )
