"""Whatever writers, runs, kills and changes of configuration do: they rest, one more run ends, the mart is right.

A machine drives a real Postgres: three writer sessions with transactions of their own, runs in this process that are
disturbed in their middle, and changes of the definition. After every run that succeeds, what was committed before it
began and has not changed since must be in the mart; when nothing was written meanwhile, mart and query must be equal.
"""

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Literal
from uuid import NAMESPACE_OID, UUID, uuid5
from zlib import crc32

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from psycopg import sql

from tests import journal
from tests.property.conftest import STEPS
from tests.running import create, differences
from vitrine import changes, registry
from vitrine.errors import TransitionRefused
from vitrine.flow import Outcome
from vitrine.model import Claim, Pipeline, Row
from vitrine.postgres import Connection, connect, raw
from vitrine.runner.dispatcher import PipelineDispatcher
from vitrine.runner.executor import Executed, PipelineExecutor
from vitrine.settings import Settings
from vitrine.sources import horizon
from vitrine.status import LEASED, Status
from vitrine.store import checkpoints, pipelines

STEPS_OF_AN_EXAMPLE = 30
DEFAULT_STEPS = 600  # of each machine; VITRINE_TEST_STEPS runs longer, at random, and shrinks what it finds
WRITERS = 3
TARGET = "analytics.subject"


# Queries of one group give the same rows: the checkpoint may be kept from one to the other
QUERIES: dict[str, tuple[str, str]] = {
    "plain": ("as it is", "SELECT id, part, payload, modified, rev FROM ugc.subject"),
    "reordered": ("as it is", "SELECT s.rev, s.modified, s.payload, s.id, s.part FROM ugc.subject s WHERE s.part >= 0"),
    "louder": ("louder", "SELECT id, part, payload || '!' AS payload, modified, rev FROM ugc.subject"),
}


@registry.transforms.register("leave_as_is")
def leave_as_is(rows: Sequence[Row]) -> Sequence[Row]:
    return [dict(row) for row in rows]


class Killed(BaseException):
    """The runner is gone: nothing of it may run any more, not even what handles errors."""


class MartIsWrong(AssertionError):
    """What this test looks for."""


class When(StrEnum):
    """What a writer sets `modified` to. Those below `now` are only right under a margin that covers them."""

    NOW = "now()"
    CLOCK = "clock_timestamp()"
    SAME_SECOND_AHEAD = "date_trunc('second', now()) + interval '1 second'"
    SOON = "now() + interval '300 milliseconds'"
    FUTURE = "'2099-01-01'::timestamptz"
    INFINITY = "'infinity'::timestamptz"
    SAME_SECOND_BEHIND = "date_trunc('second', now())"
    BEHIND = "now() - interval '1900 milliseconds'"

    @property
    def is_behind(self) -> bool:
        return self in (When.SAME_SECOND_BEHIND, When.BEHIND)


@dataclass(frozen=True)
class Write:
    """One statement of a writer; it joins the open transaction, or commits at once where none is open."""

    writer: int
    verb: Literal["begin", "insert", "update", "delete", "savepoint", "roll back to", "commit", "roll back", "leave"]
    when: When = When.NOW
    place: int = 0  # which row is updated or deleted
    count: int = 1
    size: int = 0  # of the payload
    begins: bool = False  # a transaction, where none is open


class End(StrEnum):
    """How a run is disturbed."""

    NONE = "none"
    STOP = "stop"  # the runner is asked to stop
    PAUSE = "pause"
    HESITATE = "hesitate"  # pause, and run again at once
    KILL = "kill"
    TERMINATE = "terminate"  # every session of the run is ended by the server
    TAKEOVER = "takeover"  # the lease expires, another runner takes over, this one wakes up again
    USURP = "usurp"  # the same, and the sessions of the old runner stay alive


@dataclass(frozen=True)
class Disturbance:
    """What happens in the middle of a run: at the horizon, before the nth commit, or after the nth."""

    point: Literal["horizon", "save", "batch"]
    number: int
    writes: tuple[Write, ...]
    end: End


writers = st.integers(0, WRITERS - 1)
whens = st.sampled_from((*[When.NOW] * 5, *[When.CLOCK] * 3, *When))
counts = st.integers(1, 4)
places = st.integers(0, 9)
sizes = st.sampled_from((0, 1, 700))
margins = st.sampled_from(("0s", "2s"))
inserts = st.builds(Write, writers, st.just("insert"), whens, places, counts, sizes)
updates = st.builds(Write, writers, st.just("update"), whens, places, counts, sizes)
begins = st.builds(Write, writers, st.sampled_from(("begin", "insert", "update")), whens, places, begins=st.just(True))
deletes = st.builds(Write, writers, st.just("delete"), place=places, count=counts)
commits = st.builds(Write, writers, st.just("commit"))
doubts = st.builds(Write, writers, st.sampled_from(("savepoint", "roll back to", "roll back", "leave")))
several_writes = st.lists(st.one_of(inserts, updates, begins, commits, doubts), max_size=4).map(tuple)
disturbances = st.one_of(
    st.builds(Disturbance, st.just("batch"), st.integers(0, 6), several_writes, st.sampled_from(End)),
    st.builds(Disturbance, st.just("horizon"), st.just(0), several_writes, st.sampled_from(End)),
    st.builds(
        Disturbance,
        st.just("save"),  # holds the pipeline's row, so nobody can pause it or take it over at this point
        st.integers(0, 6),
        several_writes,
        st.sampled_from((End.NONE, End.KILL, End.TERMINATE)),
    ),
)


class Writer:
    """A session of the application."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection = connect(url, name="cinema")
        self.open = False
        self.savepoints = 0
        self.is_behind = False  # wrote a time below the start of the transaction that is still open

    def begin(self) -> None:
        if not self.open:
            self._connection.execute("BEGIN")
            self.open = True

    def execute(self, statement: sql.Composed, arguments: dict[str, Any]) -> None:
        self._connection.execute(statement, arguments)

    def savepoint(self) -> None:
        if self.open:
            self._connection.execute("SAVEPOINT here")
            self.savepoints += 1

    def roll_back_to(self) -> None:
        if self.savepoints:
            self._connection.execute("ROLLBACK TO SAVEPOINT here; RELEASE SAVEPOINT here")
            self.savepoints -= 1

    def end(self, word: Literal["COMMIT", "ROLLBACK"]) -> None:
        if self.open:
            self._connection.execute(word)
        self.open, self.savepoints, self.is_behind = False, 0, False

    def leave(self) -> None:
        """The connection breaks, and with it the transaction; the application connects again."""
        self.close()
        self.__init__(self._url)

    def close(self) -> None:
        self._connection.close()


@dataclass
class World:
    """The database of one machine class, and the sessions that last longer than an example."""

    url: str
    settings: Settings
    control: Connection
    other: Connection  # of another account: it may take a pipeline over, and not end the sessions of the old holder
    writers: list[Writer]
    margins: bool = True  # False: no pipeline has one
    at: Callable[[str], None] = field(default=lambda point: None)  # told of every point a run passes

    def clear(self) -> None:
        for writer in self.writers:
            writer.end("ROLLBACK")
        self.control.execute(
            "DROP TABLE IF EXISTS analytics.subject; TRUNCATE ugc.subject, public.status_journal;"
            "UPDATE etl.etl_pipelines SET lease_expires_at = '2000-01-01' WHERE lease_token IS NOT NULL"
        )
        self.expire()
        for pipeline in pipelines.list_page(self.control, limit=10):
            pipelines.delete(self.control, pipeline.id)

    def expire(self, connection: Connection | None = None) -> None:
        """Time passes: a lease without heartbeats dies."""
        self.control.execute(
            "UPDATE etl.etl_pipelines SET lease_expires_at = clock_timestamp() - interval '1 second'"
            " WHERE lease_token IS NOT NULL"
        )
        pipelines.expire_leases(connection or self.control)

    def terminate(self) -> None:
        self.control.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE application_name LIKE 'vitrine:%' AND datname = current_database()"
        )


@pytest.fixture
def world(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with connect(database_url, name="tests") as control:
        control.execute(
            "CREATE TABLE ugc.subject (id uuid PRIMARY KEY, part int NOT NULL, payload text NOT NULL,"
            " modified timestamptz NOT NULL, rev bigint GENERATED BY DEFAULT AS IDENTITY);"
            "CREATE INDEX ON ugc.subject (modified, id); CREATE INDEX ON ugc.subject (rev, id);"
            "DROP ROLE IF EXISTS usurper; CREATE ROLE usurper LOGIN SUPERUSER"
        )
        journal.start(control)
        # the lease is long: it dies when a test says so
        settings = Settings.model_validate(
            {"database_url": database_url, "lease_ttl": "60s", "heartbeat_interval": "20s"}
        )
        with connect(database_url.replace("postgres@", "usurper@"), name="tests") as other:
            world = World(database_url, settings, control, other, [Writer(database_url) for _ in range(WRITERS)])
            _watch_points(world, monkeypatch)
            yield world
            for writer in world.writers:
                writer.close()
        control.execute("DROP ROLE usurper")


def _watch_points(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    read, save, publish = horizon.read, checkpoints.PostgresState.save, checkpoints.PostgresState.publish

    def reading(connection: Connection) -> horizon.Horizon:
        seen = read(connection)
        world.at("horizon")
        return seen

    def saving(self: checkpoints.PostgresState, *arguments: Any) -> None:
        save(self, *arguments)
        world.at("save")

    def publishing(self: checkpoints.PostgresState, *arguments: Any) -> None:
        publish(self, *arguments)
        world.at("save")

    monkeypatch.setattr(horizon, "read", reading)
    monkeypatch.setattr(checkpoints.PostgresState, "save", saving)
    monkeypatch.setattr(checkpoints.PostgresState, "publish", publishing)


def step(**arguments: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A rule that is counted."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @rule(**arguments)
        @functools.wraps(function)
        def counted(self: "MartMachine", **drawn: Any) -> None:
            STEPS[type(self).__name__] += 1
            function(self, **drawn)

        return counted

    return decorate


class MartMachine(RuleBasedStateMachine):
    """Rules of every machine; a subclass says mode, cursor and lane."""

    fields: ClassVar[dict[str, Any]]
    lane: ClassVar[Literal["copy", "rows"]]
    may_delete: ClassVar[bool] = False

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.query = "plain"
        self.margin = "0s"
        self.covered = False  # times behind are within the margin of every checkpoint so far
        self.number = 0
        self.written = 0  # statements that may have changed what a reader sees
        self.started = False
        self.pipeline: Pipeline
        world.clear()

    # -- the beginning --------------------------------------------------------------------------------------------

    @initialize(rows=st.integers(0, 12), margin=margins, batch_size=st.integers(1, 7), exists=st.booleans())
    def begin_world(self, rows: int, margin: str, batch_size: int, exists: bool) -> None:
        for _ in range(rows):
            self._write(Write(0, "insert"))
        self.margin = margin if self.world.margins else "0s"
        self.covered = self.margin == "2s"
        if exists:
            self.world.control.execute(
                "CREATE TABLE analytics.subject (rev bigint, payload text, part int, noted timestamptz DEFAULT now(),"
                f" id uuid, modified timestamptz, PRIMARY KEY ({', '.join(self.fields['key_columns'])}))"  # pyright: ignore[reportArgumentType]
            )
        self.pipeline = create(
            self.world.control,
            self.world.settings,
            **{
                "source_query": QUERIES[self.query][1],
                "python_task": "leave_as_is" if self.lane == "rows" else None,
                "target_table": TARGET,
                "batch_size": batch_size,
                "options": {"horizon_margin": self.margin, "max_delete_ratio": 1},
            }
            | self.fields,
        )
        self.started = True

    # -- writers --------------------------------------------------------------------------------------------------

    @step(write=inserts)
    def insert(self, write: Write) -> None:
        self._write(write)

    @step(write=updates)
    def update(self, write: Write) -> None:
        self._write(write)

    @step(write=begins)
    def begin(self, write: Write) -> None:
        self._write(write)

    @step(write=begins)
    def begin_another(self, write: Write) -> None:
        self._write(write)

    @step(write=commits)
    def commit(self, write: Write) -> None:
        self._write(write)

    @step(write=doubts)
    def doubt(self, write: Write) -> None:
        self._write(write)

    @precondition(lambda self: self.may_delete)
    @step(write=deletes)
    def delete(self, write: Write) -> None:
        self._write(write)

    def _write(self, write: Write) -> None:
        writer = self.world.writers[write.writer]
        self.written += 1
        if write.begins:
            writer.begin()
        match write.verb:
            case "begin":
                pass
            case "insert":
                self._insert(writer, write)
            case "update":
                self._change(writer, write, _UPDATE)
            case "delete":
                self._change(writer, write, _DELETE)
            case "savepoint":
                writer.savepoint()
            case "roll back to":
                writer.roll_back_to()
            case "commit":
                writer.end("COMMIT")
            case "roll back":
                writer.end("ROLLBACK")
            case "leave":
                writer.leave()

    def _insert(self, writer: Writer, write: Write) -> None:
        for _ in range(write.count):
            self._execute(writer, write, _INSERT, id=self._next_id(), part=self.number % 3)

    def _change(self, writer: Writer, write: Write, statement: sql.SQL) -> None:
        self._execute(writer, write, statement, place=write.place, count=write.count)

    def _execute(self, writer: Writer, write: Write, statement: sql.SQL, **arguments: Any) -> None:
        when = write.when if self.covered or not write.when.is_behind else When.NOW
        when = When.FUTURE if when is When.INFINITY else when
        writer.is_behind |= writer.open and when.is_behind
        payload = f"{self.written}" + "x" * write.size
        writer.execute(statement.format(when=raw(when)), {"payload": payload, **arguments})

    def _next_id(self) -> UUID:
        self.number += 1
        return uuid5(NAMESPACE_OID, str(self.number))

    # -- runs -----------------------------------------------------------------------------------------------------

    @step()
    def run(self) -> None:
        self._run()

    @step(disturbance=disturbances)
    def run_disturbed(self, disturbance: Disturbance) -> None:
        self._run(disturbance)

    def _run(self, disturbance: Disturbance | None = None) -> bool:
        """One run; whether it succeeded. Its mart is looked at if it did."""
        claim = self._claim()
        before, written = self._images(), self.written
        resumes = checkpoints.load(self.world.control, self.pipeline.id).generation_open
        stop = threading.Event()
        dispatcher = PipelineDispatcher(self.world.settings, PipelineExecutor(self.world.settings, stop))
        self.world.at = _Once(disturbance, lambda found: self._disturb(found, stop))
        try:
            executed, status = dispatcher.dispatch(claim, watch=lambda *_: self.world.at("batch"), retry=False)
        except Killed:
            return False
        finally:
            self.world.at = lambda point: None
        if executed.outcome is not Outcome.FINISHED or status is None:
            self._check_unfinished(executed, disturbance)
            return False
        if not resumes:  # a load that goes on is as fresh as its first snapshot
            self._check(before if self.written > written else None)
        return True

    def _claim(self) -> Claim:
        control, pipeline_id = self.world.control, self.pipeline.id
        pipelines.request_run(control, pipeline_id, trigger="cli")
        ttl = self.world.settings.lease_ttl
        claim = pipelines.claim_next(control, runner="tests", ttl=ttl, only=pipeline_id)
        if claim is None:  # a killed run still holds the lease
            self.world.expire()
            if pipelines.get(control, pipeline_id).status is not Status.RUN_REQUESTED:
                pipelines.request_run(control, pipeline_id, trigger="cli")  # PAUSED, or FAILED after three kills
            claim = pipelines.claim_next(control, runner="tests", ttl=ttl, only=pipeline_id)
        assert claim is not None
        return claim

    def _disturb(self, disturbance: Disturbance, stop: threading.Event) -> None:
        for write in disturbance.writes:
            self._write(write)
        control, pipeline_id = self.world.control, self.pipeline.id
        match disturbance.end:
            case End.NONE:
                pass
            case End.STOP:
                stop.set()
            case End.PAUSE:
                pipelines.request_pause(control, pipeline_id)
            case End.HESITATE:
                pipelines.request_pause(control, pipeline_id)
                pipelines.request_run(control, pipeline_id, trigger="cli")
            case End.KILL:
                raise Killed
            case End.TERMINATE:
                self.world.terminate()
            case End.TAKEOVER:
                self.world.expire()
                self._run()
            case End.USURP:
                self.world.expire(self.world.other)
                self._run()

    def _check_unfinished(self, executed: Executed, disturbance: Disturbance | None) -> None:
        end = disturbance.end if disturbance else End.NONE
        if end not in (End.TERMINATE, End.TAKEOVER, End.USURP):
            assert executed.error is None, executed.error
            assert end in (End.STOP, End.PAUSE, End.HESITATE), executed

    # -- the mart -------------------------------------------------------------------------------------------------

    def _check(self, before: dict[UUID, str] | None) -> None:
        """Equal to the query; or, with writers at work during the run, right in all that stood still."""
        if before is None:
            if found := self._differences():
                raise MartIsWrong(f"nothing was written during the run, and the mart differs in {found}")
            return
        now, there = self._images(), self._images_of_target()
        wrong = [key for key, image in before.items() if now.get(key) == image and there.get(key) != image]
        if wrong:
            raise MartIsWrong(f"rows {wrong} were committed before the run, and the mart does not have them")

    def _differences(self) -> list[dict[str, Any]]:
        if not self._exists():
            return [{"key": str(key), "missing": True} for key in self._images()]
        return differences(self.world.control, QUERIES[self.query][1], TARGET, "id")

    def _images(self) -> dict[UUID, str]:
        statement = sql.SQL("SELECT id, ROW(part, payload, modified, rev)::text AS image FROM ({}) AS q")
        rows = self.world.control.execute(statement.format(raw(QUERIES[self.query][1]))).fetchall()
        return {row["id"]: row["image"] for row in rows}

    def _images_of_target(self) -> dict[UUID, str]:
        if not self._exists():
            return {}
        statement = "SELECT id, ROW(part, payload, modified, rev)::text AS image FROM analytics.subject"
        return {row["id"]: row["image"] for row in self.world.control.execute(statement).fetchall()}

    def _exists(self) -> bool:
        """A transform that has seen no row yet has not said its columns, and there is no mart."""
        row = self.world.control.execute("SELECT to_regclass('analytics.subject') IS NOT NULL AS yes").fetchone()
        return bool(row and row["yes"])

    # -- configuration --------------------------------------------------------------------------------------------

    @step(
        batch_size=st.integers(1, 7),
        options=st.fixed_dictionaries(
            {"snapshot_max_age": st.sampled_from(("0s", "10m")), "max_batch_bytes": st.sampled_from((1024, 1_000_000))}
        ),
        then=st.sampled_from(("nothing", "margin", "query", "pause", "expire")),
        margin=margins,
        query=st.sampled_from(sorted(QUERIES)),
        turn=st.booleans(),
        reset=st.sampled_from((False, False, False, True)),
    )
    def reconfigure(
        self, batch_size: int, options: dict[str, Any], then: str, margin: str, query: str, turn: bool, reset: bool
    ) -> None:
        self._change_definition({"batch_size": batch_size, "options": options})
        match then:
            case "margin":
                self._change_margin(margin)
            case "query":
                self._change_query(query, turn, reset)
            case "pause":
                with suppress(TransitionRefused):  # FAILED
                    pipelines.request_pause(self.world.control, self.pipeline.id)
            case "expire":
                self.world.expire()
            case _:
                pass

    def _change_margin(self, margin: str) -> None:
        if not self.world.margins or (margin == "0s" and any(writer.is_behind for writer in self.world.writers)):
            return  # its rows would be below the checkpoint, as the smaller margin means
        self._change_definition({"options": {"horizon_margin": margin}})
        self.margin, self.covered = margin, self.covered and margin == "2s"

    def _change_query(self, query: str, turn: bool, reset: bool) -> None:
        """Another query, perhaps the other lane; refused while a lease is live."""
        known = pipelines.get(self.world.control, self.pipeline.id)
        if known.status in LEASED:
            with pytest.raises(TransitionRefused):
                self._change_definition({"source_query": "SELECT id FROM ugc.subject"})
            self.world.expire()
        task = known.definition.python_task
        if turn:
            task = None if task else "leave_as_is"
        reset = reset or QUERIES[query][0] != QUERIES[self.query][0]
        self._change_definition(
            {"source_query": QUERIES[query][1], "python_task": task}, state="reset" if reset else "keep"
        )
        self.query = query
        if reset:
            self.covered = self.margin == "2s"

    def _change_definition(self, fields: dict[str, Any], state: changes.StateChoice | None = None) -> None:
        changes.change(self.world.control, self.world.settings, self.pipeline.id, fields, state=state)

    # -- rest -----------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Every transaction ends, one more run finishes, the mart equals its query; another run has nothing to do."""
        if not self.started or sys.exc_info()[0] is not None:
            return
        for writer in self.world.writers:
            writer.end("COMMIT")
        if checkpoints.load(self.world.control, self.pipeline.id).generation_open:
            assert self._run()  # ends a load that was begun before the writers rested
        assert self._run()
        if found := self._differences():
            raise MartIsWrong(f"the writers rest, and the mart differs in {found}")
        self._check_rerun_writes_nothing()
        journal.assert_legal(self.world.control)

    def _check_rerun_writes_nothing(self) -> None:
        written = "SELECT coalesce(sum(rows_written + rows_deleted), 0) AS n FROM etl.etl_runs"
        before = self.world.control.execute(written).fetchone()
        assert self._run()
        assert self.world.control.execute(written).fetchone() == before


_INSERT = sql.SQL(
    "INSERT INTO ugc.subject (id, part, payload, modified) VALUES (%(id)s, %(part)s, %(payload)s, {when})"
)
# a row that another writer has locked is left alone: nobody here waits for anybody
_UPDATE = sql.SQL(
    "UPDATE ugc.subject SET payload = %(payload)s, modified = {when}, rev = nextval('ugc.subject_rev_seq'),"
    " part = (part + %(place)s) %% 3 WHERE id IN"
    " (SELECT id FROM ugc.subject ORDER BY id OFFSET %(place)s LIMIT %(count)s FOR UPDATE SKIP LOCKED)"
)
_DELETE = sql.SQL(
    "DELETE FROM ugc.subject WHERE %(payload)s::text IS NOT NULL AND {when} IS NOT NULL AND id IN"
    " (SELECT id FROM ugc.subject ORDER BY id OFFSET %(place)s LIMIT %(count)s FOR UPDATE SKIP LOCKED)"
)


class _Once:
    """Calls back when a run comes to the disturbance's point, once."""

    def __init__(self, disturbance: Disturbance | None, react: Callable[[Disturbance], None]) -> None:
        self._disturbance = disturbance
        self._react = react
        self._seen = 0

    def __call__(self, point: str) -> None:
        disturbance = self._disturbance
        if disturbance is None or point != disturbance.point:
            return
        self._seen += 1
        if self._seen > disturbance.number:
            self._disturbance = None
            self._react(disturbance)


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


class TimeCopy(MartMachine):
    fields, lane = BY_TIME, "copy"


class TimeRows(MartMachine):
    fields, lane = BY_TIME, "rows"


class NumberCopy(MartMachine):
    fields, lane = BY_NUMBER, "copy"


class NumberRows(MartMachine):
    fields, lane = BY_NUMBER, "rows"


def drive(machine: type[MartMachine], world: World, steps: int) -> None:
    """Drive a machine at least so many steps: the same ones every time, or others when asked for more."""
    longer = os.environ.get("VITRINE_TEST_STEPS")
    factory: Any = lambda: machine(world)  # noqa: E731
    run_state_machine_as_test(
        factory if longer else seed(crc32(machine.__name__.encode()))(factory),
        settings=settings(
            max_examples=max(1, int(longer or steps) // STEPS_OF_AN_EXAMPLE),
            stateful_step_count=STEPS_OF_AN_EXAMPLE,
            deadline=None,
            derandomize=not longer,
            database=None,
            print_blob=True,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink) if longer else (Phase.generate,),  # to shrink takes minutes
        ),
    )


@pytest.mark.parametrize("machine", [FullCopy, FullRows, TimeCopy, TimeRows, NumberCopy, NumberRows])
def test_the_mart_equals_its_source_once_the_writers_rest(machine: type[MartMachine], world: World) -> None:
    drive(machine, world, DEFAULT_STEPS)


@pytest.mark.parametrize("machine", [TimeCopy, NumberRows])
def test_without_the_horizon_rows_are_lost(
    machine: type[MartMachine], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine is able to fail: a checkpoint that does not wait for open transactions loses their rows."""

    def read(connection: Connection) -> horizon.Horizon:
        row = connection.execute("SELECT clock_timestamp() AS now").fetchone()
        assert row is not None
        world.at("horizon")
        return horizon.Horizon(row["now"], row["now"], None)

    monkeypatch.setattr(horizon, "read", read)
    world.margins = False
    with pytest.raises(MartIsWrong):
        drive(machine, world, 4000)
