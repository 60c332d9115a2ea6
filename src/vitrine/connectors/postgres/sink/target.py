"""The target table: its catalog entry, creation and extension."""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import psycopg
from psycopg import sql

from vitrine.connectors.postgres import PostgresSettings, PostgresSinkOptions
from vitrine.connectors.postgres.sink import catalog, findings
from vitrine.connectors.postgres.sink.checks import TargetChecks
from vitrine.connectors.postgres.sink.drift import WrittenColumns
from vitrine.connectors.postgres.sink.session import TargetSession
from vitrine.connectors.postgres.sink.statements import TargetStatements, names
from vitrine.errors import ConfigError, DataError, TransientError
from vitrine.flow.jobs import SinkJob
from vitrine.flow.rows import Batch, BinaryRows, Column, Finding
from vitrine.postgres import raw

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
