"""Whatever a table consists of and whatever happens to it, its mart equals the query, or the run is refused.

A state machine draws a source table from every type, key, cursor and name, in a database with settings of its own. It
writes rows, changes the table between runs and between batches, changes lane and batch size, and runs the pipeline. A
run has two legitimate ends: the mart equals what the query returns to a session with the same settings, or an error of
a code that follows from what was drawn. Any other end is a failure.

`make property STEPS=10000` takes other steps every time, and shrinks a failure.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import psycopg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from psycopg import sql

from tests.helpers import kinds as every
from tests.helpers.kinds import Kind
from tests.helpers.types import create_reversed
from tests.property import shapes
from tests.property.conftest import OUTCOMES, STEPS
from tests.property.driving import drive
from tests.property.shapes import LANES, NAMES, Pools
from tests.property.source_table import SourceTable
from tests.property.subject import Pace, Subject
from vitrine.errors import VitrineError
from vitrine.postgres import Connection, connect, raw
from vitrine.settings import Settings

STEPS_OF_THE_MACHINE = 110

# Refusals after a change of the table: of the run that finds it, before it writes
DRIFT_CODES = frozenset({"SCHEMA_CHANGED", "TARGET_SCHEMA", "COLUMNS"})
# A value that the mart's column cannot hold, after the type in the source has changed
REJECT_CODE = "DATA_ERROR"
# Refusals of a type as key or cursor
TYPE_CODES = frozenset({"KEY_TYPE", "CURSOR_TYPE"})


class Wrong(AssertionError):
    """A run ended in a way that is neither exact nor a legitimate refusal."""


@dataclass(frozen=True)
class World:
    """A database with every type that its server has."""

    settings: Settings
    control: Connection
    kinds: tuple[Kind, ...]
    ordered: tuple[Kind, ...]  # can be a key
    pools: Pools

    def clear(self, database: dict[str, str]) -> None:
        """No pipeline, no mart, and these settings for every new session of the database."""
        self.control.execute("DELETE FROM etl.etl_pipelines; DROP TABLE IF EXISTS analytics.subject")
        name = sql.Identifier(self.control.info.dbname)
        self.control.execute(sql.SQL("ALTER DATABASE {} RESET ALL").format(name))
        for setting, value in database.items():
            # a list is not one value
            literals = sql.SQL(", ").join(sql.Literal(part) for part in value.split(", "))
            self.control.execute(sql.SQL("ALTER DATABASE {} SET {} = {}").format(name, raw(setting), literals))


_paces = st.builds(
    Pace, st.sampled_from(LANES), st.sampled_from((1, 1, 2, 3, 50)), st.sampled_from(("0s", "0s", "10m"))
)
_places = st.integers(0, 12)


Numbers = tuple[int, ...]
"""The values of a row, by their numbers in the pools."""

_rows = st.tuples(*[st.integers(0, 99)] * 9)


@dataclass(frozen=True)
class Alteration:
    """A change of the table; the numbers choose columns, a new name and a type."""

    verb: Literal["add", "drop", "rename", "swap", "retype"]
    one: int
    other: int


_alterations = st.builds(
    Alteration, st.sampled_from(("add", "drop", "rename", "swap", "retype")), st.integers(0, 99), st.integers(0, 999)
)


def _alter(source: SourceTable, alteration: Alteration, kinds: Sequence[Kind]) -> bool:
    """Whether the table was changed: a reader may hold it, or its data may not allow it."""
    unused = [name for name in NAMES if name not in source.columns]
    new, kind = unused[alteration.one % len(unused)], kinds[alteration.other % len(kinds)]
    if alteration.verb == "add":
        return source.add(new, kind)
    if not (plain := source.plain):
        return False
    one, other = plain[alteration.one % len(plain)], plain[alteration.other % len(plain)]
    match alteration.verb:
        case "drop":
            return source.drop(one)
        case "rename":
            return source.rename({one: new})
        case "swap":
            return one != other and source.rename({one: other, other: one})
        case "retype":
            return source.retype(one)


class AnyTable(RuleBasedStateMachine):
    """One table, its pipeline and its mart."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.subject: Subject | None = None
        self.drifted = False  # the table has changed since the pipeline was created
        self.vanished = False  # so that a column of SELECT * is not there any more
        self.retyped = False  # so that a column of the query has another type
        self.replanned = False  # other steps since the last write: they may leave a column out deliberately

    @initialize(data=st.data(), pace=_paces, database=shapes.settings_of_database, rows=st.lists(_rows, max_size=6))
    def begin(self, data: st.DataObject, pace: Pace, database: dict[str, str], rows: list[Numbers]) -> None:
        shape = data.draw(shapes.shapes(self.world.kinds, self.world.ordered), "shape")
        self.world.clear(database)
        self.subject = Subject(self.world.control, self.world.settings, shape, pace)
        self._insert(rows)
        self._start()

    # -- the application ----------------------------------------------------------------------------------------------

    @rule(rows=st.lists(_rows, min_size=1, max_size=3))
    def insert(self, rows: list[Numbers]) -> None:
        if self._step():
            self._insert(rows)

    @rule(place=_places, row=_rows, count=st.integers(1, 3))
    def update(self, place: int, row: Numbers, count: int) -> None:
        if self._step():
            self._subject.source.update(place, self._texts(self._subject.source.plain[:count], row))

    @rule(place=_places)
    def respell(self, place: int) -> None:
        if self._step():
            self._subject.source.respell(place)

    @precondition(lambda self: self.is_full)
    @rule(place=_places)
    def delete(self, place: int) -> None:
        if self._step():
            self._subject.source.delete(place)

    @rule(alteration=_alterations)
    def alter(self, alteration: Alteration) -> None:
        if self._step():
            self._alter(alteration)

    # -- the pipeline -------------------------------------------------------------------------------------------------

    @rule(pace=_paces)
    def change(self, pace: Pace) -> None:
        if self._step():
            self.replanned |= pace.lane != self._subject.lane
            self._subject.change(pace)

    @rule()
    def run(self) -> None:
        if self._step():
            self._run()

    @rule(rows=st.lists(_rows, min_size=1, max_size=3), after=st.integers(0, 4))
    def run_while_rows_are_written(self, rows: list[Numbers], after: int) -> None:
        if self._step():
            self._run_beside(after, lambda: self._insert(rows), frozenset())
            self._run()

    @rule(alteration=_alterations, after=st.integers(0, 4))
    def run_while_the_table_changes(self, alteration: Alteration, after: int) -> None:
        if self._step():
            self._run_beside(after, lambda: self._alter(alteration), DRIFT_CODES)
            self._run()

    @rule()
    def run_while_the_table_is_absent(self) -> None:
        if self._step() and not self.drifted:
            timer = self._subject.source.disappear(0.2)
            ended = self._subject.run(retry=True)
            timer.join()
            if ended.error is not None:
                raise Wrong(f"the table was absent for 0.2 seconds: {_shown(ended.error)}")
            self._check()

    def teardown(self) -> None:
        """Run once more: the mart equals its query, reconcile finds that too, and a further run writes nothing."""
        try:
            if self.is_ready and sys.exc_info()[0] is None:
                self._run()
                if not self.drifted:
                    self._check_the_end()
        finally:
            if self.subject is not None:
                self.subject.close()

    # -- steps --------------------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        return self.subject is not None

    @property
    def is_full(self) -> bool:
        return self.subject is not None and self.subject.shape.cursor is None

    @property
    def _subject(self) -> Subject:
        assert self.subject is not None
        return self.subject

    def _step(self) -> bool:
        """Whether there is a pipeline to work with; one that was refused takes no steps."""
        STEPS[type(self).__name__] += self.subject is not None
        return self.subject is not None

    def _texts(self, names: Sequence[str], numbers: Numbers) -> dict[str, str | None]:
        columns, key = self._subject.source.columns, self._subject.shape.key
        return {
            name: self.world.pools.text(columns[name], numbers[place % len(numbers)], required=name in key)
            for place, name in enumerate(names)
        }

    def _insert(self, rows: list[Numbers]) -> None:
        source, cursor = self._subject.source, self._subject.shape.cursor
        names = [name for name in source.columns if name not in (shapes.ROW_ID, cursor)]
        for numbers in rows:
            source.insert(self._texts(names, numbers))

    def _alter(self, alteration: Alteration) -> None:
        source = self._subject.source
        before = dict(source.columns)
        if _alter(source, alteration, self.world.kinds):
            source.touch()
            self.drifted = True
            is_seen = self._subject.shape.star and self._subject.exists
            gone = before.keys() - source.columns.keys()  # no run has read one that was added since
            self.vanished |= is_seen and not gone.isdisjoint(self._subject.mart_columns())
            self.retyped |= any(source.columns.get(name, kind) != kind for name, kind in before.items())

    # -- ends of runs -------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Create the pipeline and run it; if it is refused, that is the end of the example."""
        self.drifted = self.vanished = self.retyped = self.replanned = False
        error = self._subject.start() or self._subject.run().error
        if error is None:
            if self._must_refuse():
                raise Wrong("a key or a cursor without order was accepted")
            self._check()
            return
        OUTCOMES[error.code] += 1
        if error.code not in self._type_refusals():
            raise Wrong(f"refused at the start: {_shown(error)}")
        if self._subject.images():
            raise Wrong(f"the run wrote before it was refused: {_shown(error)}")
        self._subject.close()
        self.subject = None

    def _must_refuse(self) -> bool:
        shape = self._subject.shape
        is_native = shape.cursor is None or shape.columns[shape.cursor].name in (*shapes.CLOCKS, *shapes.COUNTERS)
        unordered = [name for name in shape.key if shape.columns[name] not in self.world.ordered]
        return bool(unordered) or not (is_native or shape.monotonic)

    def _type_refusals(self) -> frozenset[str]:
        """Codes with which a pipeline over this table may be refused."""
        shape = self._subject.shape
        named = [shape.columns[name] for name in (*shape.key, shape.cursor) if name is not None]
        unusual = [kind for kind in named if not kind.is_same or kind.collation or kind.needs]
        return TYPE_CODES if unusual or self._must_refuse() else frozenset()

    def _run(self) -> None:
        """Run to an end that was to be expected; after a refused change of the table, start again."""
        columns, before = self._subject.mart_columns(), self._subject.images()
        ended = self._subject.run()
        error = ended.error
        if error is None:
            if self.vanished and not (self._subject.is_blind or self.replanned):
                raise Wrong("a column of the query has vanished, and the run succeeded")
            self.vanished = False
            self.replanned &= not ended.read
            self._check()
            return
        OUTCOMES[error.code] += 1
        self._check_refusal(error)
        # a column may have been added: what a transform makes of the later rows was not known then
        if self._subject.images(columns) != before and error.code != REJECT_CODE:
            raise Wrong(f"the run wrote before it was refused: {_shown(error)}")
        self._start()

    def _run_beside(self, after: int, action: Callable[[], Any], codes: frozenset[str]) -> None:
        """Run; the action happens meanwhile. How far it is in the mart is not known before the next run."""
        vanished = self.vanished
        self.vanished &= not self.replanned  # what vanishes during the run is found by the next one
        ended = self._subject.run(after, action)
        error = ended.error
        if error is None:
            self.replanned &= not ended.read
            return
        self.vanished |= vanished
        OUTCOMES[error.code] += 1
        if error.code not in codes:
            self._check_refusal(error)

    def _check_refusal(self, error: VitrineError) -> None:
        # a column that a query names: the server's own message is clear
        is_named = self._subject.lacks_columns and "(42703)" in str(error)
        # jsonpath and tsquery report a value that they cannot read as an error of syntax
        does_not_fit = "does not fit" in str(error) or "(42601)" in str(error)
        is_reject = self.retyped and does_not_fit
        if not self.drifted or not (error.code in DRIFT_CODES or is_named or is_reject):
            raise Wrong(f"{'after a change of the table' if self.drifted else 'without a reason'}: {_shown(error)}")

    def _check(self) -> None:
        if found := self._subject.differences(retyped=self.drifted):
            raise Wrong("\n".join(["the run succeeded, and the mart differs", *found[:20]]))
        OUTCOMES[f"exact {self._subject.lane.partition(' ')[0]}"] += 1

    def _check_the_end(self) -> None:
        if (found := self._subject.reconciled()) != "source = target":
            raise Wrong(f"the mart is right, and reconcile reports: {found}")
        if changes := self._subject.run().changes:
            raise Wrong(f"nothing has changed, and the run changed {changes} rows")


def _shown(error: VitrineError) -> str:
    return f"{type(error).__name__} {error.code}: {error}"


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    settings = Settings.model_validate({"database_url": database_url, "lease_ttl": "60s", "heartbeat_interval": "20s"})
    with connect(database_url, name="tests") as control:
        create_reversed(control)
        kinds = (*every.define(control), shapes.REVERSED)
        ordered = tuple(kind for kind in kinds if _is_ordered(control, kind))
        yield World(settings, control, kinds, ordered, Pools(kinds, shapes.POOL))


def _is_ordered(control: Connection, kind: Kind) -> bool:
    """Whether a primary key takes its values; that of an array is created in any case, and then refuses values."""
    try:
        with control.transaction():
            created = sql.SQL("CREATE TEMPORARY TABLE as_key (it {} PRIMARY KEY) ON COMMIT DROP")
            control.execute(created.format(raw(kind.definition)))
            for text in kind.samples:
                statement = sql.SQL("INSERT INTO as_key VALUES (CAST(CAST({} AS text) AS {}))")
                control.execute(statement.format(sql.Literal(text), raw(kind.type)))
    except (psycopg.errors.UndefinedObject, psycopg.errors.UndefinedFunction):
        return False
    return True


@pytest.mark.promise("J1", "J2", "J13", "J14", "J15", "J23", "J25")
def test_the_mart_equals_the_query_of_any_table_or_the_run_is_refused(world: World) -> None:
    before = OUTCOMES.copy()
    drive("any table", lambda: AnyTable(world), steps=STEPS_OF_THE_MACHINE)
    ended = OUTCOMES - before
    exact = sum(count for name, count in ended.items() if name.startswith("exact"))
    assert exact > 0.6 * ended.total(), f"too many refusals prove nothing: {ended}"
