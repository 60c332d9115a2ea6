"""The query of a pipeline: its columns, and the statements that read it in order."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from psycopg import sql

from vitrine import policy
from vitrine.connectors.postgres import types
from vitrine.connectors.postgres.source import cursor_codec as codec
from vitrine.connectors.postgres.source.connections import SourceConnections
from vitrine.connectors.postgres.source.copy_out import Described
from vitrine.connectors.postgres.source.error_places import place_of_missing, prepare
from vitrine.connectors.postgres.source.null_cursors import HiddenNulls, is_required
from vitrine.connectors.postgres.source.relations import Relations
from vitrine.connectors.postgres.source.session import SourceSession
from vitrine.connectors.postgres.types import TypeFacts
from vitrine.errors import ConfigError, DataError, TransientError
from vitrine.flow.rows import Column, Finding
from vitrine.ids import Cursor
from vitrine.policy import ReadOnlySql
from vitrine.postgres import Connection, fetch_extended, raw, translated

# The lowest value a cursor of this type can have, for `$1` before there is a checkpoint
_MINIMUM = {
    codec.INT2: "-32768",
    codec.INT4: "-2147483648",
    codec.INT8: "-9223372036854775808",
    codec.DATE: "-infinity",
    codec.TIMESTAMP: "-infinity",
    codec.TIMESTAMPTZ: "-infinity",
}


class SourceColumn(NamedTuple):
    """A column of the query."""

    name: str
    facts: TypeFacts

    @property
    def type_oid(self) -> int:
        """How COPY BINARY encodes its values."""
        return self.facts.carrier_oid

    @property
    def type(self) -> str:
        return self.facts.carrier

    def selected(self, table: str) -> sql.Composed:
        """The value in the type that carries it, under the column's name."""
        name = sql.Identifier(self.name)
        return sql.SQL("{} AS {}").format(self.facts.carried(sql.Identifier(table, self.name)), name)


class SourceQuery:
    """One read-only query over one source."""

    def __init__(
        self,
        query: ReadOnlySql,
        relations: Relations,
        connections: SourceConnections,
        checkpoint_column: str | None,
    ) -> None:
        self.text = query.text
        self.functions = query.functions
        self.relations = relations
        self._query = query
        self._connections = connections
        self._checkpoint_column = checkpoint_column  # `$1` is the checkpoint of this column
        self._hidden: HiddenNulls | None = None
        if query.uses_checkpoint and checkpoint_column is not None:
            self._hidden = HiddenNulls(query.text, checkpoint_column)
        self._columns: tuple[SourceColumn, ...] | None = None
        self._described: list[Described] = []
        self._nodes: dict[str, dict[str, Any]] = {}

    @property
    def columns(self) -> tuple[SourceColumn, ...]:
        """Names and types as PostgreSQL describes them; queried once."""
        if self._columns is None:
            self._columns = self._describe()
        return self._columns

    @contextmanager
    def reading(self, *, executes: bool = False) -> Generator[SourceSession]:
        """A transaction that plans the query, or executes it as well: what it leads to is checked first."""
        with (
            translated(
                "source query",
                place_of=partial(place_of_missing, self._query),
                known=self._query.typed if executes else None,
            ),
            self._connections.reading(executes=executes) as connection,
        ):
            self.relations.check(connection)
            yield connection

    def flow_columns(self) -> tuple[Column, ...]:
        return tuple(
            Column(
                column.name,
                column.type,
                identical=column.facts.identical,
                declared=column.facts.declared if column.facts.is_flattened else None,
            )
            for column in self.columns
        )

    def column(self, name: str) -> SourceColumn:
        return self.columns[self.index(name)]

    def index(self, name: str) -> int:
        names = [column.name for column in self.columns]
        if name not in names:
            raise ConfigError(
                f"the source query has no column '{name}', which the pipeline names as key or cursor; it has:"
                f" {', '.join(names)}",
                code="SCHEMA_CHANGED",
            )
        return names.index(name)

    def bound(self, checkpoint: Cursor | None) -> str:
        """The text to execute: `$1` is replaced by the checkpoint, or by the lowest value of its type."""
        if not self._query.uses_checkpoint:
            return self._query.text
        column = self.column(self._checkpoint_column or self.columns[0].name)
        value = checkpoint[0] if checkpoint else _MINIMUM.get(column.type_oid, "")
        return self._query.bind(value, column.facts.bare)

    def rows_expected(self) -> int | None:
        """The planner's estimate; None if it depends on the checkpoint."""
        return None if self._query.uses_checkpoint else int(self.plan(None)["Plan Rows"])

    def plan(self, checkpoint: Cursor | None) -> dict[str, Any]:
        """The topmost node of the planner's plan."""
        text = self.bound(checkpoint)
        if text not in self._nodes:
            with self.reading() as connection:
                self._explain(connection, text)
        return self._nodes[text]

    def _explain(self, connection: Connection, text: str) -> None:
        row = connection.execute(sql.SQL("EXPLAIN (FORMAT JSON) {}").format(raw(text))).fetchone()
        self._nodes[text] = row["QUERY PLAN"][0]["Plan"] if row else {}

    def null_cursor(self, column: str, count: int, *, complete: bool = False) -> DataError:
        remedy = "" if complete else "; give them a value, or set options.on_null_cursor: ignore"
        return DataError(f"{count} row(s) of the source have NULL in '{column}'{remedy}", code="NULL_CURSOR")

    def count_nulls(self, column: str, *, after: Cursor | None = None, where: sql.Composable | None = None) -> int:
        statement = sql.SQL("SELECT count(*) AS nulls FROM ({}) AS q WHERE {} IS NULL AND {}").format(
            raw(self.bound(after)), sql.Identifier("q", column), where or sql.SQL("true")
        )
        with self.reading(executes=True) as connection:
            row = fetch_extended(connection, statement)
        return row["nulls"] if row else 0

    def may_be_null(self, column: str) -> bool:
        """Whether the query may return NULL in a column; False only if the catalog proves it."""
        with translated("source"), self._connections.formatting() as connection:
            return self._may_be_null(connection, column)

    def _may_be_null(self, connection: Connection, column: str) -> bool:
        described = self._described[self.index(column)]
        if not described.table_oid or policy.without_checkpoint_filter(self.text, column).adds_nulls:
            return True
        return not is_required(connection, described.table_oid, described.number)

    def hidden_null_findings(self) -> tuple[Finding, ...]:
        hidden = self._hidden
        if hidden is None or not self.may_be_null(hidden.column):
            return ()
        with self.reading(executes=True) as connection:
            return hidden.finding(connection)

    def refuse_hidden_nulls(self, connection: Connection) -> None:
        """DataError if rows of the snapshot were not read because their cursor is NULL."""
        hidden = self._hidden
        if hidden is not None and self._may_be_null(connection, hidden.column):
            hidden.refuse(connection)

    def badly_encoded(self) -> str | None:
        """The first column with text that UTF-8 cannot hold."""
        for column in self.columns:
            statement = sql.SQL("SELECT count(convert_to(concat({}), 'UTF8')) FROM ({}) AS q").format(
                sql.Identifier("q", column.name), raw(self.bound(None))
            )
            try:
                with self.reading(executes=True) as connection:
                    fetch_extended(connection, statement)
            except DataError:
                return column.name
        return None

    def refuse_changed(self, session: SourceSession, then: Sequence[str]) -> None:
        """TransientError unless the columns are still those that the run was planned with: it plans again then.

        `then`: statements to execute in the same round trip.
        """
        # guarantee: J2
        if prepare(session, self._query, then) != self._described:
            raise TransientError(
                "source query: its columns have changed since the run was planned; the next attempt plans it again",
                code="SCHEMA_CHANGED",
            )

    def selected(self, table: str) -> sql.Composed:
        """Every column, in the type that carries it."""
        return sql.SQL(", ").join(column.selected(table) for column in self.columns)

    def has_deterministic_collation(self, column: SourceColumn) -> bool:
        """Whether equal texts of a column are identical; False as well if the query leaves its collation undecided."""
        statement = sql.SQL(
            "SELECT c.collisdeterministic AS yes FROM pg_collation c"
            " WHERE c.oid = pg_collation_for((SELECT {} FROM ({}) AS q LIMIT 0))::regcollation"
        ).format(sql.Identifier("q", column.name), raw(self.bound(None)))
        with self.reading() as connection:
            row = fetch_extended(connection, statement)
        return bool(row and row["yes"])

    def _describe(self) -> tuple[SourceColumn, ...]:
        with self.reading() as connection:
            self._described = described = prepare(connection, self._query)
            facts = types.describe(connection, [(column.type_oid, column.modifier) for column in described])
            if not self._query.uses_checkpoint:
                self._explain(connection, self._query.text)  # in the same transaction, which was checked already
        names = [column.name for column in described]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"source query: column '{repeated[0]}' appears twice; rename one with AS", code="COLUMNS")
        return tuple(SourceColumn(name, found) for name, found in zip(names, facts, strict=True))
