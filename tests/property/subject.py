"""The pipeline over a source table of any shape, and its mart."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from tests.helpers.lanes import TASKS
from tests.helpers.oracle import Oracle
from tests.helpers.running import create, once_read, run
from tests.property.shapes import ROW_ID, Lane, Shape
from tests.property.source_table import SourceTable
from vitrine.compare import reconcile
from vitrine.core.rows import Counts
from vitrine.definition.pipeline import Pipeline
from vitrine.errors import VitrineError
from vitrine.operations import changes
from vitrine.postgres import Connection
from vitrine.runner.run import Executed
from vitrine.settings import Settings

TARGET = "analytics.subject"
_TARGET = sql.Identifier("analytics", "subject")
_NO_ROW = sql.SQL("SELECT * FROM {} LIMIT 0").format(_TARGET)
RETRIES = (0.1, 0.3, 0.6)
LOST = "server closed the connection"
"""A database may have a limit of half a second for idle sessions, which a busy machine can exceed before the session
has set its own; two runs that end so are a fault."""


@dataclass(frozen=True)
class Pace:
    """How a pipeline reads: nothing of it may change the result."""

    lane: Lane
    batch_size: int
    snapshot_max_age: str


@dataclass(frozen=True)
class Ended:
    """How a run ended: with an error, or with this many changes of the mart; and how many rows it read."""

    error: VitrineError | None
    changes: int
    read: int


class Subject:
    """One source table, its pipeline and its mart."""

    def __init__(self, control: Connection, settings: Settings, shape: Shape, pace: Pace) -> None:
        url = settings.store_url
        self.shape = shape
        self.source = SourceTable(url, control, shape)
        self._control = control
        self._settings = settings
        self._pace = pace
        self._pipeline: Pipeline | None = None
        self._oracle = Oracle(url, control, TARGET)
        self._named = tuple(self.source.columns)  # by a query without *

    @property
    def lane(self) -> Lane:
        return self._pace.lane

    @property
    def query(self) -> str:
        table = self.source.identifier.as_string(None)
        names = ", ".join(sql.Identifier(name).as_string(None) for name in self._named)
        # without the alias, a column that has vanished would be the whole row of a table with its name
        alias = " AS the_table" if self.shape.table in self._named else ""
        return f"SELECT {'*' if self.shape.star else names} FROM {table}{alias}"

    @property
    def lacks_columns(self) -> bool:
        """Whether the query names a column that is not there any more."""
        return not self.shape.star and not set(self._named) <= self.source.columns.keys()

    def close(self) -> None:
        self.stop()
        self.source.close()

    # -- the pipeline -------------------------------------------------------------------------------------------------

    def start(self) -> VitrineError | None:
        """Create the pipeline for the present columns, with a new mart; returns the error if it is refused."""
        self.stop()
        self._named = tuple(self.source.columns)
        cursor: dict[str, Any] = {}
        if self.shape.cursor is not None:
            cursor = {"mode": "incremental", "incremental_key": self.shape.cursor, "incremental_id_key": self.shape.tie}
        try:
            self._pipeline = create(
                self._control,
                self._settings,
                source_query=self.query,
                target_table=TARGET,
                key_columns=list(self.shape.key),
                python_task=TASKS[self._pace.lane],
                batch_size=self._pace.batch_size,
                options=self._options(),
                **cursor,
            )
        except VitrineError as exc:
            return exc
        return None

    def stop(self) -> None:
        self._pipeline = None
        self._control.execute("DELETE FROM etl.etl_pipelines")  # whatever its status
        self._control.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(_TARGET))

    def change(self, pace: Pace) -> None:
        assert self._pipeline is not None
        self._pace = pace
        fields = {
            "python_task": TASKS[pace.lane],
            "batch_size": pace.batch_size,
            "options": {"snapshot_max_age": pace.snapshot_max_age},
        }
        changes.change(self._control, self._settings, self._pipeline.id, fields, state="keep")

    def run(self, after: int = 0, action: Callable[[], object] | None = None, *, retry: bool = False) -> Ended:
        """Run once; the action happens when so many rows have been read."""
        watch = once_read(after, action) if action is not None else None
        executed = self._run(watch, retry=retry)
        if executed.error is not None and LOST in str(executed.error):
            executed = self._run(watch, retry=retry)
        counts = executed.counts
        return Ended(executed.error, counts.written + counts.deleted, counts.read)

    def _run(self, watch: Callable[[Counts, int | None], None] | None, *, retry: bool) -> Executed:
        assert self._pipeline is not None
        waits = RETRIES if retry else ()
        return run(self._control, self._settings, self._pipeline, watch=watch, waits=waits)

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"snapshot_max_age": self._pace.snapshot_max_age, "max_delete_ratio": 1}
        options["on_schema_change"] = "add_columns" if self.shape.adds_columns else "fail"
        if self.shape.monotonic:
            options["cursor_is_monotonic"] = True
        if self.shape.has_clock():
            options["horizon_margin"] = "0s"
        return options

    # -- the mart -----------------------------------------------------------------------------------------------------

    def differences(self, *, retyped: bool) -> list[str]:
        """Rows and values that differ; `retyped` marts keep their types when the source's types change."""
        if self.is_blind:
            return [f"row {key} is extra" for key in self.images()]
        present = self.source.columns
        self._oracle.expect(self.query, present if self.shape.star else {name: present[name] for name in self._named})
        return self._oracle.differences(ROW_ID, retyped=retyped)

    @property
    def is_blind(self) -> bool:
        """A transform defines the columns with its first row: without any, no mart is created and no change is seen."""
        return self.lane != "copy" and self.source.is_empty

    def reconciled(self) -> str:
        """What reconcile finds."""
        assert self._pipeline is not None
        if not self.exists:
            return "source = target"
        return reconcile.compare(self._pipeline.definition, self._settings).sentence()

    def images(self, columns: Sequence[str] = ()) -> dict[int, str]:
        """Every row of the mart as text, with these of its columns or all."""
        if not self.exists:
            return {}
        names = sql.SQL(", ").join(sql.Identifier("t", name) for name in columns or self.mart_columns())
        statement = sql.SQL("SELECT {} AS id, CAST(ROW({}) AS text) AS image FROM {} AS t")
        rows = self._control.execute(statement.format(sql.Identifier(ROW_ID), names, _TARGET)).fetchall()
        return {row["id"]: row["image"] for row in rows}

    def mart_columns(self) -> list[str]:
        return [column.name for column in self._control.execute(_NO_ROW).description or ()] if self.exists else []

    @property
    def exists(self) -> bool:
        """Whether there is a mart."""
        row = self._control.execute("SELECT to_regclass(%s) IS NOT NULL AS yes", [TARGET]).fetchone()
        return bool(row and row["yes"])
