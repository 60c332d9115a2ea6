"""The target table: its catalog entry, creation and extension."""

from collections.abc import Sequence

import psycopg
from psycopg import sql

from vitrine.connectors.postgres import PostgresSettings, PostgresSinkOptions
from vitrine.connectors.postgres.sink import catalog
from vitrine.connectors.postgres.sink.session import TargetSession
from vitrine.connectors.postgres.sink.statements import TargetStatements, names
from vitrine.errors import ConfigError, DataError
from vitrine.flow.jobs import SinkJob
from vitrine.flow.rows import Column, Finding
from vitrine.postgres import raw


class TargetTable:
    """A mart, existing or to be created."""

    def __init__(self, session: TargetSession, job: SinkJob[PostgresSinkOptions, PostgresSettings]) -> None:
        self.name = str(job.target)
        self.schema, _, self.table = job.target.name.partition(".")
        self.identifier = sql.Identifier(self.schema, self.table)
        self.touch_column = job.options.touch_column
        self._configured_key = job.definition.key_columns
        self._options = job.definition.options
        self._session = session
        self._facts: catalog.TableFacts | None = None
        self._inspected = False

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
        if finding := self.key_finding():
            raise ConfigError(finding.text, code=finding.code)
        return self.known_key

    @property
    def known_key(self) -> tuple[str, ...]:
        return self._configured_key or (self.facts.primary_key if self.facts else ())

    @property
    def statements(self) -> TargetStatements:
        return TargetStatements(self.identifier, self.key, self.touch_column)

    def type_of(self, column: Column) -> str:
        """The type a column has in the target, or will have."""
        return self.facts.types.get(column.name, column.type) if self.facts else column.type

    def typed(self, columns: Sequence[Column]) -> list[tuple[str, str]]:
        return [(column.name, self.type_of(column)) for column in columns]

    # -- findings -------------------------------------------------------------------------------------------------

    def findings(self, columns: Sequence[Column]) -> list[Finding]:
        """Reasons against writing these columns, and warnings."""
        found = [finding for finding in (self.key_finding(), *self._column_findings(columns)) if finding]
        for table in self.facts.cascades if self.facts else ():
            text = (
                f"{table} refers to the target with ON DELETE CASCADE: when a row disappears from the"
                " source, its rows there are deleted as well"
            )
            found.append(Finding("CASCADE", text))
        return found

    def key_finding(self) -> Finding | None:
        facts, key = self.facts, self.known_key
        if facts is None:
            text = f"target {self.name} does not exist yet; name key_columns, and it is created with them"
            return None if key else Finding("KEY_MISSING", text, fatal=True)
        if not key:
            text = f"target {self.name} has no primary key; add one, or name key_columns"
            return Finding("KEY_MISSING", text, fatal=True)
        if frozenset(key) not in facts.unique:
            text = (
                f"key_columns ({', '.join(key)}) of target {self.name} are not covered by a unique index of exactly"
                " these columns; add one, or correct key_columns"
            )
            return Finding("KEY_NOT_UNIQUE", text, fatal=True)
        return None

    def _column_findings(self, columns: Sequence[Column]) -> list[Finding]:
        given = [column.name for column in columns]
        missing = [name for name in self.known_key if given and name not in given]
        found = [
            Finding("SCHEMA_CHANGED", f"the rows lack the key column '{name}'", name, fatal=True) for name in missing
        ]
        if self.facts is None:
            return found
        if self._options.on_schema_change == "fail":
            found += [_unknown_column(self.name, name) for name in given if name not in self.facts.types]
        if self.touch_column and self.touch_column not in self.facts.types:
            text = f"target {self.name} has no column '{self.touch_column}' (touch_column); add it, or drop the option"
            found.append(Finding("TARGET_SCHEMA", text, self.touch_column, fatal=True))
        return found

    # -- changes --------------------------------------------------------------------------------------------------

    def prepare(self, columns: Sequence[Column]) -> None:
        """Ensure that the table, if it exists, has these columns; ConfigError if they may not be added."""
        for finding in self._column_findings(columns):
            raise ConfigError(finding.text, code=finding.code)
        if self.facts is not None:
            unknown = [column for column in columns if column.name not in self.facts.types]
            if unknown:
                self._add_columns(unknown)

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
        rows = self._session.connection.execute(self.statements.bad_keys(table)).fetchall()
        if any(row["incomplete"] for row in rows):
            raise self.null_key()
        if rows:
            raise DataError(
                f"the source returns the same key ({', '.join(self.key)}) more than once, for example"
                f" {', '.join(row['example'] for row in rows)}; a JOIN may repeat rows, or the key is not unique. To"
                " keep the last of them, set options.on_duplicate_key: last",
                code="DUPLICATE_KEY",
            )

    def null_key(self) -> DataError:
        return DataError(
            f"the source returns rows with NULL in the key ({', '.join(self.key)}); a key must be complete",
            code="NULL_KEY",
        )

    def _add_columns(self, columns: Sequence[Column]) -> None:
        for column in columns:
            statement = sql.SQL("ALTER TABLE {} ADD COLUMN {} {}")
            added = statement.format(self.identifier, sql.Identifier(column.name), raw(column.type))
            self._session.connection.execute(added)
        self.inspect()


def _unknown_column(target: str, column: str) -> Finding:
    text = (
        f"target {target} has no column '{column}'; add it to the table, drop it from the query, or set"
        " options.on_schema_change: add_columns"
    )
    return Finding("TARGET_SCHEMA", text, column, fatal=True)
