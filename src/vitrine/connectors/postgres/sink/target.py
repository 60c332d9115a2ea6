"""The target table: its creation and extension, and rows merged into it."""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import psycopg
from psycopg import sql

from vitrine.connectors.postgres import PostgresSettings, PostgresSinkOptions
from vitrine.connectors.postgres.sink import catalog, findings
from vitrine.connectors.postgres.sink.catalog import TableFacts, UniqueFacts
from vitrine.connectors.postgres.sink.findings import TargetChecks, WrittenColumns
from vitrine.connectors.postgres.sink.session import TargetSession, TargetStatements, names
from vitrine.core.rows import Batch, BinaryRows, Column, Finding
from vitrine.definition.context import SinkJob
from vitrine.errors import ConfigError, DataError, TransientError
from vitrine.postgres import Connection, raw

log = logging.getLogger(__name__)


class TargetTable:
    """A mart, existing or to be created."""

    def __init__(self, session: TargetSession, job: SinkJob[PostgresSinkOptions, PostgresSettings]) -> None:
        self.name = str(job.target)
        self.schema, _, self.table = job.target.name.partition(".")
        self.identifier = sql.Identifier(self.schema, self.table)
        self.options = job.options
        self.log_fields = job.run.log_fields
        self.touch_column = job.options.touch_column
        self.columns_to_keep: dict[str, Any] | None = None  # with the checkpoint; None: no rows are known yet
        self._written = WrittenColumns(job.facts, job.definition)
        self._checks = TargetChecks(session, job, self._written)
        self._definition = job.definition
        self._lease = job.lease
        self._session = session
        self._show_keys = job.run.show_keys
        self._facts: catalog.TableFacts | None = None
        self._inspected = False
        self._prepared: tuple[Sequence[Column], catalog.TableFacts | None] | None = None

    # -- catalog --------------------------------------------------------------------------------------------------

    @property
    def facts(self) -> catalog.TableFacts | None:
        """The table as the catalog describes it; None if it does not exist. Read once."""
        if not self._inspected:
            self.inspect()
        return self._facts

    def inspect(self) -> None:
        """Read the catalog again."""
        with self._session.translated():
            self._facts = catalog.describe(self._session.connection, self.identifier)
        self._inspected = True

    def restore(self, facts: catalog.TableFacts | None) -> None:
        """Return to these facts after a rollback."""
        self._facts = facts

    @property
    def exists(self) -> bool:
        return self.facts is not None

    @property
    def key(self) -> tuple[str, ...]:
        """As configured, or the primary key; ConfigError if there is neither, or it is not unique."""
        if finding := self._checks.of_key(self.facts, self.known_key):
            raise ConfigError(finding.text, code=finding.code)
        return self.known_key

    @property
    def known_key(self) -> tuple[str, ...]:
        return self._definition.key_columns or (self.facts.primary_key if self.facts else ())

    @property
    def written_columns(self) -> tuple[str, ...]:
        """Columns of the table that the last run has written; if that is not known, all that a query may write."""
        stored = self.facts.types if self.facts else {}
        written = self._written.names
        return tuple(name for name in stored if (name in written if written else name != self.touch_column))

    @property
    def statements(self) -> TargetStatements:
        columns = self.facts.columns if self.facts else {}
        return TargetStatements(
            self.identifier,
            self.key,
            self.touch_column,
            {name: column.facts.equal for name, column in columns.items() if column.facts.equal is not None},
            frozenset(name for name in self.key if name in columns and not columns[name].identical),
        )

    def type_of(self, column: Column) -> str:
        """The type a column has in the target, or will have."""
        return self.facts.types.get(column.name, column.type) if self.facts else column.type

    def typed(self, columns: Sequence[Column]) -> list[tuple[str, str]]:
        """Columns as a table is created with them: with the collations of the target, which decide what is equal."""
        known = self.facts.columns if self.facts else {}
        collations = {name: f" COLLATE {found.collation}" for name, found in known.items() if found.collation}
        return [(column.name, self.type_of(column) + collations.get(column.name, "")) for column in columns]

    # -- findings -------------------------------------------------------------------------------------------------

    def findings(self, columns: Sequence[Column]) -> list[Finding]:
        """Reasons against writing these columns, and warnings."""
        return self._checks.all(self.facts, self.known_key, columns)

    # -- changes --------------------------------------------------------------------------------------------------

    def accept(self, batch: Batch) -> None:
        """Compare the columns of rows with those of the last run; ConfigError if they may not differ."""
        if not batch.count and not isinstance(batch.payload, BinaryRows):
            return  # the columns that a transform returns are not known without a row
        _refuse(self._checks.of_drift(self.facts, batch.columns))
        self.columns_to_keep = self._written.after(batch.columns)

    def prepare(self, columns: Sequence[Column]) -> None:
        """Ensure that the table, if it exists, has these columns; ConfigError if they may not be added."""
        if self._prepared == (columns, self.facts):
            return
        _refuse(self._checks.of_columns(self.facts, self.known_key, columns))
        if self.facts is not None:
            unknown = [column for column in columns if column.name not in self.facts.types]
            if unknown:
                self._add_columns(unknown)
        self._prepared = (columns, self.facts)

    def refuse_changed(self, columns: Iterable[str]) -> None:
        """TransientError unless the table is still as the run was planned with: an assignment would round silently.

        To be called in the transaction that has written the rows: its lock keeps the table as it is.
        """
        if self.facts is not None and not catalog.is_as(self._session.connection, self.identifier, self.facts, columns):
            raise TransientError(
                f"target {self.name} has changed since the run was planned; the next attempt plans it again",
                code="TARGET_SCHEMA",
            )

    def create(self, columns: Sequence[Column]) -> None:
        """Create the table with the columns of the query, the key as primary key, and the touch column last."""
        self._session.create(self.identifier, [(column.name, column.type) for column in columns])
        self.add_touch_column()
        self.add_key(self.identifier)
        self.inspect()

    def add_touch_column(self) -> None:
        if self.touch_column:
            statement = sql.SQL("ALTER TABLE {} ADD COLUMN {} timestamptz NOT NULL DEFAULT now()")
            added = statement.format(self.identifier, sql.Identifier(self.touch_column))
            self._session.connection.execute(added)

    def add_key(self, table: sql.Identifier) -> None:
        """Add the primary key to this table or its staging table; DataError with examples if keys repeat."""
        connection = self._session.connection
        try:
            with connection.transaction():
                statement = sql.SQL("ALTER TABLE {} ADD PRIMARY KEY ({})")
                connection.execute(statement.format(table, names(self.key)))
        except psycopg.IntegrityError:
            self.refuse_bad_keys(table)
            raise

    def refuse_bad_keys(self, table: sql.Composable) -> None:
        """DataError with examples if a key occurs twice or contains a NULL."""
        # guarantee: E6
        rows = self._session.connection.execute(self.statements.bad_keys(table)).fetchall()
        if any(row["incomplete"] for row in rows):
            raise self.null_key()
        if rows:
            examples = f", for example {', '.join(row['example'] for row in rows)}" if self._show_keys else ""
            raise DataError(
                f"the source returns the same key ({', '.join(self.key)}) more than once{examples}; a JOIN may repeat"
                " rows, or the key is not unique. To keep the last of them, set options.on_duplicate_key: last",
                code="DUPLICATE_KEY",
            )

    def null_key(self) -> DataError:
        return DataError(
            f"the source returns rows with NULL in the key ({', '.join(self.key)}); a key must be complete",
            code="NULL_KEY",
        )

    def _add_columns(self, columns: Sequence[Column]) -> None:
        """Add columns, in a transaction of their own: readers must not wait for the rest of the unit."""
        actions = [
            sql.SQL("ADD COLUMN IF NOT EXISTS {} {}").format(sql.Identifier(column.name), raw(column.type))
            for column in columns
        ]
        statement = sql.SQL("ALTER TABLE {} {}").format(self.identifier, sql.SQL(", ").join(actions))
        self._session.alter(statement, self._lease.wait)
        for column in columns:
            text = findings.added_column(self.name, column.name, self._definition)
            log.warning("%s", text, extra={"action": "column_added", **self.log_fields})
        self.inspect()


def _refuse(found: Sequence[Finding]) -> None:
    for finding in found:
        if finding.fatal:
            raise ConfigError(finding.text, code=finding.code)


TAKEN = sql.Identifier("pg_temp", "vitrine_taken")

_REFUSED = (psycopg.DataError, psycopg.IntegrityError)

Way = Callable[[], int]
"""Merges the rows in one way; returns how many were written."""


class Merger:
    """Merges the rows of one table, which has the types of the target."""

    def __init__(
        self, session: TargetSession, target: TargetTable, table: sql.Composable, columns: Sequence[str]
    ) -> None:
        if target.facts is None:
            raise ValueError("rows are merged into an existing target")
        self._session = session
        self._target = target
        self._facts: TableFacts = target.facts
        self._statements = target.statements
        self._table = table
        self._columns = list(columns)

    @property
    def _connection(self) -> Connection:
        return self._session.connection

    def merge(self, *, sort: bool = False, complete: bool = False) -> int:
        """Update rows that differ and insert new ones; returns how many were written.

        `sort`: look up the rows in the order of the key. `complete`: the target must have no other row afterwards.
        Raises psycopg's error if a row does not fit.
        """
        source = self._statements.ordered(self._table) if sort else self._table
        written = self._merged(lambda: self._merge(source))
        self._check_stored(complete)
        return written

    def _merged(self, plain: Way) -> int:
        if not self._may_conflict():
            return plain()
        try:
            return self._attempt(plain)
        except psycopg.errors.UniqueViolation as violation:
            return self._exchange(violation)

    def _may_conflict(self) -> bool:
        return len(self._facts.uniques) > 1

    def _attempt(self, way: Way) -> int:
        with self._connection.transaction():
            return way()

    def _merge(self, source: sql.Composable) -> int:
        """Deferrable constraints are checked after all rows are written, and before anything is saved."""
        if not self._facts.deferrable:
            return self._connection.execute(self._statements.merge(source, self._columns)).rowcount
        self._connection.execute("SET CONSTRAINTS ALL DEFERRED")
        written = self._connection.execute(self._statements.merge(source, self._columns)).rowcount
        check_deferred(self._connection)
        return written

    # -- rows that exchange a unique value ------------------------------------------------------------------------

    def _exchange(self, violation: psycopg.errors.UniqueViolation) -> int:
        """Rows that take over unique values of one another, without the deletion of a row that others refer to."""
        unique = self._violated(violation)
        for way in self._ways(unique):
            try:
                return self._attempt(way)
            except psycopg.errors.UniqueViolation:
                continue
        if unique is not None and self._is_exchange(unique):
            raise self._refused(unique)
        raise violation

    def _violated(self, violation: psycopg.errors.UniqueViolation) -> UniqueFacts | None:
        """The constraint, if it consists of columns that the rows have."""
        named = [one for one in self._facts.uniques if one.name == violation.diag.constraint_name]
        return next((one for one in named if one.columns and set(one.columns) <= set(self._columns)), None)

    def _ways(self, unique: UniqueFacts | None) -> list[Way]:
        # guarantee: J10
        if not self._facts.references and not self._facts.triggers:
            return [self._replace]
        if unique is None:
            return []
        ways: list[Way] = [lambda: self._merge_by(unique, descending=True), lambda: self._merge_by(unique)]
        if (column := self._releasable(unique)) is not None:
            ways.append(lambda: self._release(unique, column))
        return ways

    def _replace(self) -> int:
        """Remove all rows that differ, then insert them again: no other table and no trigger notices."""
        foreign = [name for name in self._facts.types if name not in self._columns]
        empty_copy = sql.SQL("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT * FROM {} WHERE false")
        self._connection.execute(empty_copy.format(TAKEN, self._target.identifier))
        self._connection.execute(self._statements.take_out(self._table, self._columns, TAKEN))
        put_in = self._statements.put_in(self._table, self._columns, TAKEN, foreign)
        replaced = self._connection.execute(put_in).rowcount
        self._connection.execute(sql.SQL("DROP TABLE {}").format(TAKEN))
        return replaced + self._merge(self._table)

    def _merge_by(self, unique: UniqueFacts, *, descending: bool = False) -> int:
        """In the order of the unique values: rows that shift in one direction then find the next value free."""
        self._connection.execute("SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off")
        return self._merge(self._statements.ordered(self._table, unique.columns, descending=descending))

    def _releasable(self, unique: UniqueFacts) -> str | None:
        """A column of the constraint that can be NULL for a moment without an effect on other tables."""
        referred = {name for one in self._facts.references for name in one.columns}
        if not unique.nulls_distinct or any(trigger.on_update for trigger in self._facts.triggers):
            return None
        candidates = (name for name in unique.columns if name not in self._target.key and name not in referred)
        return next((name for name in candidates if self._facts.columns[name].nullable), None)

    def _release(self, unique: UniqueFacts, column: str) -> int:
        """Set the values that change to NULL first, so that every new value is free."""
        try:
            with self._connection.transaction():
                self._connection.execute(self._statements.release(self._table, unique.columns, column))
        except _REFUSED as refused:  # by a CHECK, for example
            raise psycopg.errors.UniqueViolation from refused
        return self._merge(self._table)

    def _is_exchange(self, unique: UniqueFacts) -> bool:
        """Whether the rows would fit if they were all written at once."""
        row = self._connection.execute(self._statements.has_conflict(self._table, unique.columns)).fetchone()
        return row is not None and not row["conflict"]

    def _refused(self, unique: UniqueFacts) -> DataError:
        others = [f"{one.table} refers to it" for one in self._facts.references[:1]]
        others += [f"trigger {one.name} would fire" for one in self._facts.triggers[:1]]
        name = self._target.name
        return DataError(
            f"rows of target {name} exchange values of its unique constraint {unique.name}, and they cannot be deleted"
            f" and inserted again, because {' and '.join(others)}; make the constraint deferrable: ALTER TABLE {name}"
            f" ADD CONSTRAINT … UNIQUE ({', '.join(unique.columns)}) DEFERRABLE, and drop {unique.name}",
            code="UNIQUE_SWAP",
        )

    # -- what is stored -------------------------------------------------------------------------------------------

    def _check_stored(self, complete: bool) -> None:
        """Compare the rows with what triggers of the target have stored."""
        # guarantee: J20
        if not self._facts.triggers:
            return
        check_deferred(self._connection)
        altered = self._count(self._statements.count_altered(self._table, self._columns))
        kept = self._count(self._statements.count_unknown(self._table)) if complete else 0
        counts = [f"{altered} of the rows differently or not at all"] if altered else []
        counts += [f"{kept} rows that the source lacks"] if kept else []
        if counts:
            report_triggers(self._target, self._facts, " and ".join(counts))

    def _count(self, statement: sql.Composed) -> int:
        row = self._connection.execute(statement).fetchone()
        return row["rows"] if row else 0


def report_triggers(target: TargetTable, facts: TableFacts, stored: str) -> None:
    """DataError, or a warning by option: triggers of the target have stored something else than was written."""
    triggers = ", ".join(trigger.name for trigger in facts.triggers)
    text = f"target {target.name} stores {stored}; the cause is one of its triggers: {triggers}"
    if target.options.on_target_trigger == "fail":
        remedy = "change the trigger, or set options.on_target_trigger: warn"
        raise DataError(f"{text}; {remedy}", code="TARGET_CHANGED_ROWS")
    log.warning("%s", text, extra={"action": "target_changed_rows", **target.log_fields})


def check_deferred(connection: Connection) -> None:
    """Check deferred constraints now, while the error still names a row and can be rolled back to a savepoint."""
    # guarantee: J22
    connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
