"""The query of a pipeline: its columns, and the statements that read it in order."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from vitrine.connectors.postgres import ranges
from vitrine.connectors.postgres.source import copy_out
from vitrine.connectors.postgres.source import cursor_codec as codec
from vitrine.connectors.postgres.source.connections import SourceConnections
from vitrine.connectors.postgres.source.null_cursors import HiddenNulls
from vitrine.connectors.postgres.source.relations import Relations
from vitrine.errors import ConfigError, TransientError
from vitrine.flow.rows import Column, Finding, Lane, Read
from vitrine.model import Cursor
from vitrine.policy import ReadOnlySql
from vitrine.postgres import Connection, fetch_extended, raw, translated

# Type names for casts, and the base type of a domain, because COPY BINARY encodes values in the base type
_TYPES = """
    WITH RECURSIVE wanted AS (
        SELECT * FROM unnest(%(oids)s::oid[], %(modifiers)s::integer[]) WITH ORDINALITY AS a(oid, modifier, place)
    ), made_of AS (
        SELECT a.place, t.oid, t.typbasetype, t.typtype FROM wanted a JOIN pg_type t ON t.oid = a.oid
         UNION ALL
        SELECT m.place, t.oid, t.typbasetype, t.typtype FROM made_of m JOIN pg_type t ON t.oid = m.typbasetype
    )
    SELECT format_type(a.oid, a.modifier) AS name, m.oid AS base, m.typtype = 'e' AS is_enum
      FROM wanted a JOIN made_of m USING (place) WHERE m.typbasetype = 0 ORDER BY place
"""

# The lowest value a cursor of this type can have, for `$1` before there is a checkpoint
_MINIMUM = {
    codec.INT2: "-32768",
    codec.INT4: "-2147483648",
    codec.INT8: "-9223372036854775808",
    codec.DATE: "-infinity",
    codec.TIMESTAMP: "-infinity",
    codec.TIMESTAMPTZ: "-infinity",
}


@dataclass(frozen=True)
class SourceColumn:
    """A column of the query; `type_oid` is how COPY BINARY encodes it (a domain's base type)."""

    name: str
    type_oid: int
    type: str
    is_enum: bool


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
        self.relations = relations
        self._query = query
        self._connections = connections
        self._checkpoint_column = checkpoint_column  # `$1` is the checkpoint of this column
        self._hidden: HiddenNulls | None = None
        if query.uses_checkpoint and checkpoint_column is not None:
            self._hidden = HiddenNulls(query.text, checkpoint_column)
        self._columns: tuple[SourceColumn, ...] | None = None
        self._described: list[tuple[str, int, int]] = []  # name, type and modifier of each column
        self._nodes: dict[str, dict[str, Any]] = {}

    @property
    def columns(self) -> tuple[SourceColumn, ...]:
        """Names and types as PostgreSQL describes them; queried once."""
        if self._columns is None:
            self._columns = self._describe()
        return self._columns

    @contextmanager
    def reading(self) -> Generator[Connection]:
        """A transaction that may plan and execute the query: what it leads to is checked first."""
        with translated("source query"), self._connections.reading() as connection:
            self.relations.check(connection)
            yield connection

    def flow_columns(self) -> tuple[Column, ...]:
        return tuple(Column(column.name, column.type) for column in self.columns)

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
        return self._query.bind(value, column.type)

    def rows_expected(self) -> int | None:
        """The planner's estimate; None if it depends on the checkpoint."""
        return None if self._query.uses_checkpoint else int(self.plan(None)["Plan Rows"])

    def plan(self, checkpoint: Cursor | None) -> dict[str, Any]:
        """The topmost node of the planner's plan."""
        text = self.bound(checkpoint)
        if text not in self._nodes:
            statement = sql.SQL("EXPLAIN (FORMAT JSON) {}").format(raw(text))
            with self.reading() as connection:
                row = connection.execute(statement).fetchone()
            self._nodes[text] = row["QUERY PLAN"][0]["Plan"] if row else {}
        return self._nodes[text]

    def count_nulls(self, column: str) -> int:
        statement = sql.SQL("SELECT count(*) AS nulls FROM ({}) AS q WHERE {} IS NULL").format(
            raw(self.bound(None)), sql.Identifier("q", column)
        )
        with self.reading() as connection:
            row = fetch_extended(connection, statement)
        return row["nulls"] if row else 0

    def hidden_nulls(self) -> int | None:
        """Rows that are in no read because their cursor is NULL; None where the query does not show it."""
        if self._hidden is None:
            return 0
        bound = self.bound(None)
        with self.reading() as connection:
            return self._hidden.count(connection, bound)

    def hidden_null_findings(self) -> tuple[Finding, ...]:
        if self._hidden is None:
            return ()
        bound = self.bound(None)
        with self.reading() as connection:
            return self._hidden.finding(connection, bound)

    def refuse_hidden_nulls(self, connection: Connection) -> None:
        """DataError if rows of the snapshot were not read because their cursor is NULL."""
        if self._hidden is not None:
            self._hidden.refuse(connection, self.bound(None))

    def refuse_changed(self, connection: Connection) -> None:
        """TransientError unless the columns are still those that the run was planned with: it plans again then."""
        if copy_out.prepare(connection, self._query.text) != self._described:
            raise TransientError(
                "source query: its columns have changed since the run was planned; the next attempt plans it again",
                code="SCHEMA_CHANGED",
            )

    def _describe(self) -> tuple[SourceColumn, ...]:
        with self.reading() as connection:
            # the type of `$1` follows from its context
            self._described = described = copy_out.prepare(connection, self._query.text)
            types = connection.execute(
                _TYPES, {"oids": [oid for _, oid, _ in described], "modifiers": [mod for _, _, mod in described]}
            ).fetchall()
        names = [name for name, _, _ in described]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"source query: column '{repeated[0]}' appears twice; rename one with AS", code="COLUMNS")
        if len(types) < len(names):
            raise ConfigError("source query: a column has no usable type; cast it", code="COLUMNS")
        return tuple(
            SourceColumn(name, row["base"], row["name"], row["is_enum"]) for name, row in zip(names, types, strict=True)
        )


class OrderedQuery:
    """The query in the order of one read."""

    def __init__(self, query: SourceQuery, read: Read) -> None:
        self.query = query
        self.read = read
        self.indexes = tuple(query.index(name) for name in read.order)
        self.columns = tuple(query.columns[index] for index in self.indexes)

    @property
    def type_oid(self) -> int:
        """Type of the first column of the order."""
        return self.columns[0].type_oid

    def sorts_everything(self, cursor: Cursor | None) -> bool:
        return self.read.complete or cursor is None

    def refuse_hidden_nulls(self, connection: Connection) -> None:
        """Call it once the rows are exhausted, as rows with NULL in the cursor are reported after all others."""
        if not (self.read.skip_null or self.read.complete or self.read.limit or self.read.only):
            self.query.refuse_hidden_nulls(connection)

    def copy_statement(self, cursor: Cursor | None) -> sql.Composed:
        source = sql.SQL("({}) AS q").format(raw(self.query.bound(self.read.after.cursor)))
        if self.sorts_everything(cursor) and self.read.limit is None and self.read.only is None:
            # a whole-table read through an index is slow; the fence makes the planner sort instead
            source = sql.SQL("(SELECT * FROM {} OFFSET 0) AS q").format(source)
        limit = sql.SQL("") if self.read.limit is None else sql.SQL("LIMIT {}").format(sql.Literal(self.read.limit))
        return sql.SQL(
            "COPY (SELECT q.* FROM {source} {where} ORDER BY {order} {limit}) TO STDOUT (FORMAT {format})"
        ).format(
            source=source,
            where=self._where(cursor),
            order=sql.SQL(", ").join(self._names()),
            limit=limit,
            format=sql.SQL("binary" if self.read.lane is Lane.COPY else "text"),
        )

    def _names(self) -> list[sql.Composable]:
        return [sql.Identifier("q", column.name) for column in self.columns]

    def _where(self, cursor: Cursor | None) -> sql.Composable:
        conditions = [*self._after(cursor), *self._selected()]
        if not conditions:
            return sql.SQL("")
        return sql.SQL("WHERE {}").format(sql.SQL(" AND ").join(conditions))

    def _after(self, cursor: Cursor | None) -> Sequence[sql.Composable]:
        first = self._names()[0]
        if self.read.skip_null:
            return [self._beyond(cursor) if cursor else sql.SQL("{} IS NOT NULL").format(first)]
        if cursor is None:
            return []
        if self.read.complete:
            # IS NOT FALSE keeps keys with a NULL in them: they are a data error to report, not rows to lose
            return [sql.SQL("({}) IS NOT FALSE").format(self._beyond(cursor))]
        return [sql.SQL("(({}) OR {} IS NULL)").format(self._beyond(cursor), first)]

    def _selected(self) -> Sequence[sql.Composable]:
        if self.read.only is None:
            return []
        key = [Column(column.name, column.type) for column in self.columns]
        return [ranges.condition("q", key, self.read.only)]

    def _beyond(self, cursor: Cursor) -> sql.Composed:
        values = [
            sql.SQL("CAST({} AS {})").format(sql.Literal(value), raw(column.type))
            for value, column in zip(cursor, self.columns, strict=False)
        ]
        if len(cursor) < len(self.columns):
            return sql.SQL("{} >= {}").format(self._names()[0], values[0])
        return sql.SQL("ROW({}) > ROW({})").format(sql.SQL(", ").join(self._names()), sql.SQL(", ").join(values))
