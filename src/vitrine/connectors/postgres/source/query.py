"""The query of a pipeline: its columns, and the statements that read it in order."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from vitrine.connectors.postgres import compare_sql, cursor_codec, types
from vitrine.connectors.postgres.source import copy_out
from vitrine.connectors.postgres.source.copy_out import Described
from vitrine.connectors.postgres.source.relations import Relations
from vitrine.connectors.postgres.source.session import SourceConnections, SourceSession
from vitrine.connectors.postgres.types import Operator, TypeFacts
from vitrine.core.rows import Column, Cursor, Finding, Lane, Read
from vitrine.errors import ConfigError, DataError, Place, TransientError
from vitrine.postgres import Connection, fetch_extended, raw, translated
from vitrine.sql import checkpoint
from vitrine.sql.checkpoint import Unfiltered
from vitrine.sql.policy import ReadOnlySql

_UNDEFINED_TABLE, _UNDEFINED_SCHEMA = "42P01", "3F000"


def prepare(session: SourceSession, query: ReadOnlySql, then: Sequence[str] = ()) -> list[Described]:
    """The columns of the query; an error has the place that PostgreSQL reports."""

    def place_of(exc: psycopg.Error) -> Place | None:
        position = exc.diag.statement_position
        return query.place_of_position(int(position)) if position else None

    with translated("source query", place_of=place_of, known=None):
        # the type of `$1` follows from its context
        return copy_out.prepare(session, query.text, then)


def place_of_missing(query: ReadOnlySql, exc: psycopg.Error) -> Place | None:
    """Where the query names a relation that is missing: the statement that locks it reports no position."""
    message = exc.diag.message_primary or ""
    for schema, name in sorted(query.relations):
        if exc.sqlstate == _UNDEFINED_TABLE and f'"{schema}.{name}"' in message:
            return query.place_of_relation(schema, name)
        if exc.sqlstate == _UNDEFINED_SCHEMA and f'"{schema}"' in message:
            return query.place_of_relation(schema)
    return None


# A child may drop NOT NULL before PostgreSQL 18; from 18 on, a constraint may be NOT VALID.
_IS_NOT_NULL = """
    SELECT a.attnotnull AND NOT (c.relkind = 'r' AND c.relhassubclass)
           AND NOT EXISTS (SELECT FROM pg_constraint n
                            WHERE n.conrelid = c.oid AND n.contype = 'n' AND NOT n.convalidated) AS is_not_null
      FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
     WHERE a.attrelid = %(table)s AND a.attnum = %(number)s
"""


class HiddenNulls:
    """Rows that the filter by the checkpoint hides because their cursor is NULL."""

    def __init__(self, text: str, column: str) -> None:
        self.column = column
        self._query: Unfiltered = checkpoint.without_checkpoint_filter(text, column)

    def count(self, connection: Connection) -> int | None:
        """In the transaction's snapshot; None where it is unknown."""
        if self._query.text is None:
            return None
        statement = sql.SQL("SELECT count(*) AS nulls FROM ({}) AS q WHERE {} IS NULL").format(
            raw(self._query.text), sql.Identifier("q", self.column)
        )
        row = fetch_extended(connection, statement)
        return row["nulls"] if row else 0

    def refuse(self, connection: Connection) -> None:
        """DataError if there are any."""
        if found := self.count(connection):
            raise DataError(
                f"{found} row(s) of the source have NULL in '{self.column}' and the query's condition on $1 hides"
                " them; give them a value, or set options.on_null_cursor: ignore",
                code="NULL_CURSOR",
            )

    def finding(self, connection: Connection) -> tuple[Finding, ...]:
        """What `validate` and `reconcile` report."""
        found = self.count(connection)
        if found is None:
            text = (
                f"rows of the source with NULL in '{self.column}' would not be noticed, because the query uses $1 in"
                f" another way than `WHERE {self.column} >= $1`; make the column NOT NULL, or use that form"
            )
            return (Finding("NULL_CURSOR_UNKNOWN", text, self.column),)
        if not found:
            return ()
        text = f"{found} row(s) of the source have NULL in '{self.column}' and are not in the mart"
        return (Finding("NULL_CURSOR", text, self.column),)


def is_required(connection: Connection, table: int, number: int) -> bool:
    """Whether the catalog proves that a column of a table holds no NULL."""
    row = connection.execute(_IS_NOT_NULL, {"table": table, "number": number}).fetchone()
    return bool(row and row["is_not_null"])


# The lowest value a cursor of this type can have, for `$1` before there is a checkpoint
_MINIMUM = {
    cursor_codec.INT2: "-32768",
    cursor_codec.INT4: "-2147483648",
    cursor_codec.INT8: "-9223372036854775808",
    cursor_codec.DATE: "-infinity",
    cursor_codec.TIMESTAMP: "-infinity",
    cursor_codec.TIMESTAMPTZ: "-infinity",
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
        if not described.table_oid or checkpoint.without_checkpoint_filter(self.text, column).adds_nulls:
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


_EQUAL = Operator("pg_catalog", "=")
_GREATER = Operator("pg_catalog", ">")
_AT_LEAST = Operator("pg_catalog", ">=")


class Term(NamedTuple):
    """One expression of the order, with the operators of its type's default order."""

    column: SourceColumn
    by_image: bool = False  # ordered by the bytes of the value: it decides between equal values that differ

    @property
    def greater(self) -> Operator:
        # guarantee: J3
        return _GREATER if self.by_image else self.column.facts.greater or _GREATER

    @property
    def equal(self) -> Operator:
        return _EQUAL if self.by_image else self.column.facts.equal or _EQUAL

    @property
    def at_least(self) -> Operator:
        return _AT_LEAST if self.by_image else self.column.facts.at_least or _AT_LEAST

    @property
    def expression(self) -> sql.Composable:
        value: sql.Composable = sql.Identifier("q", self.column.name)
        if self.column.facts.polymorphic:
            value = sql.SQL("CAST({} AS {})").format(value, raw(self.column.facts.bare))
        return self._of(value)

    def literal(self, text: str) -> sql.Composable:
        return self._of(sql.SQL("CAST({} AS {})").format(sql.Literal(text), raw(self.column.facts.bare)))

    def _of(self, value: sql.Composable) -> sql.Composable:
        send = self.column.facts.send
        return sql.SQL("{}({})").format(send, value) if self.by_image and send is not None else value


class OrderedQuery:
    """The query in the order of one read."""

    def __init__(self, query: SourceQuery, read: Read, *, formatted: bool = False) -> None:
        self.query = query
        self.read = read
        self.indexes = tuple(query.index(name) for name in read.order)
        self.columns = tuple(query.columns[index] for index in self.indexes)
        # the query runs under settings that change the text of times, but its rows are to be formatted without them
        self._formatted = formatted
        for column in self.columns:
            refuse_unordered(column)
        self._terms = [[Term(column), *self._ties(column)] for column in self.columns]

    @property
    def type_oid(self) -> int:
        """Type of the first column of the order."""
        return self.columns[0].type_oid

    def sorts_everything(self, cursor: Cursor | None) -> bool:
        return self.read.complete or cursor is None

    def refuse_hidden_nulls(self, connection: Connection) -> None:
        """Call it once the rows are exhausted, as rows with NULL in the cursor are reported after all others."""
        read = self.read
        if not (read.skip_null or read.complete or read.limit or read.only or read.until is not None):
            self.query.refuse_hidden_nulls(connection)

    def rows_statement(self, cursor: Cursor | None) -> sql.Composed:
        """The rows after a cursor, in order."""
        source = sql.SQL("({}) AS q").format(raw(self.query.bound(self._checkpoint)))
        if self.sorts_everything(cursor) and self.read.limit is None and self.read.only is None:
            # a whole-table read through an index is slow; the fence makes the planner sort instead
            source = sql.SQL("(SELECT * FROM {} OFFSET 0) AS q").format(source)
        limit = sql.SQL("") if self.read.limit is None else sql.SQL("LIMIT {}").format(sql.Literal(self.read.limit))
        return sql.SQL("SELECT {columns} FROM {source} {where} ORDER BY {order} {limit}").format(
            columns=self.query.selected("q"),
            source=source,
            where=self._where(cursor),
            order=sql.SQL(", ").join(term.expression for terms in self._terms for term in terms),
            limit=limit,
        )

    def copy_statement(self, cursor: Cursor | None) -> sql.Composed:
        rows = self.rows_statement(cursor)
        is_binary = self.read.lane is Lane.COPY
        if self._formatted and not is_binary:
            rows = sql.SQL("{} SELECT q.* FROM q WHERE {}").format(
                compare_sql.computed_under_formats(rows), compare_sql.FORMATS_APPLIED
            )
        return sql.SQL("COPY ({}) TO STDOUT (FORMAT {})").format(rows, sql.SQL("binary" if is_binary else "text"))

    def count_nulls(self, column: str) -> int:
        """Rows of this read with NULL in a column."""
        after, first = self.read.after.cursor, self._terms[0][0]
        conditions = [first.at_least.between(first.expression, first.literal(after[0]))] if after else []
        where = sql.SQL(" AND ").join([*conditions, *self._below()])
        return self.query.count_nulls(column, after=self._checkpoint, where=where if where.as_string() else None)

    @property
    def _checkpoint(self) -> Cursor | None:
        """The value of `$1`."""
        if self.read.filter_at is not None:
            return (self.read.filter_at,)
        return None if self.read.unfiltered else self.read.after.cursor

    def _ties(self, column: SourceColumn) -> list[Term]:
        """Orders values that are equal but differ, for example 1.0 and 1.00; without it a resumed read skips one."""
        facts = column.facts
        is_exact = facts.identical and (not facts.collatable or self.query.has_deterministic_collation(column))
        # guarantee: J4
        return [] if is_exact or facts.send is None else [Term(column, by_image=True)]

    def _where(self, cursor: Cursor | None) -> sql.Composable:
        conditions = [*self._after(cursor), *self._below(), *self._selected()]
        if not conditions:
            return sql.SQL("")
        return sql.SQL("WHERE {}").format(sql.SQL(" AND ").join(conditions))

    def _after(self, cursor: Cursor | None) -> Sequence[sql.Composable]:
        names = [terms[0].expression for terms in self._terms]
        # guarantee: C9
        if self.read.skip_null:
            present = [sql.SQL("{} IS NOT NULL").format(name) for name in names]
            return [self._beyond(cursor), *present[1:]] if cursor else present
        if cursor is None:
            return []
        if self.read.complete:
            # IS NOT FALSE keeps keys with a NULL in them: they are a data error to report, not rows to lose
            return [sql.SQL("({}) IS NOT FALSE").format(self._beyond(cursor))]
        hidden = [sql.SQL("{} IS NULL").format(names[0])]
        # a NULL in a later column hides a row from the comparison only if it has the first value of the cursor
        first = self._terms[0][0]
        same = first.equal.between(first.expression, first.literal(cursor[0]))
        hidden += [sql.SQL("({} AND {} IS NULL)").format(same, name) for name in names[1:]]
        return [sql.SQL("(({}) OR {})").format(self._beyond(cursor), sql.SQL(" OR ").join(hidden))]

    def _below(self) -> Sequence[sql.Composable]:
        """The upper end of a range: no other row is read, one with NULL neither."""
        if self.read.until is None:
            return []
        first = self._terms[0][0]
        # the value is on the left: `greater` is the operator that sorts the rows
        return [first.greater.between(first.literal(self.read.until), first.expression)]

    def _selected(self) -> Sequence[sql.Composable]:
        if self.read.only is None:
            return []
        key = [Column(column.name, column.facts.bare) for column in self.columns]
        operators = {column.name: column.facts.equal for column in self.columns}
        return [compare_sql.condition("q", key, self.read.only, operators)]

    def _beyond(self, cursor: Cursor) -> sql.Composed:
        if len(cursor) < len(self.columns):
            first = self._terms[0][0]
            return first.at_least.between(first.expression, first.literal(cursor[0]))
        pairs = [(term, term.literal(text)) for terms, text in zip(self._terms, cursor, strict=True) for term in terms]
        if all(term.greater == _GREATER for term, _ in pairs):
            expressions = sql.SQL(", ").join(term.expression for term, _ in pairs)
            return sql.SQL("ROW({}) > ROW({})").format(expressions, sql.SQL(", ").join(value for _, value in pairs))
        first, value = pairs[0]
        # the first condition alone can be a range of an index
        return sql.SQL("{} AND ({})").format(first.at_least.between(first.expression, value), _later(pairs))


def _later(pairs: Sequence[tuple[Term, sql.Composable]]) -> sql.Composed:
    """A row comparison in full: its operators belong to different schemas."""
    (term, value), following = pairs[0], pairs[1:]
    later = term.greater.between(term.expression, value)
    if not following:
        return later
    equal = term.equal.between(term.expression, value)
    return sql.SQL("{} OR ({} AND ({}))").format(later, equal, _later(following))


def refuse_unordered(column: SourceColumn) -> None:
    """ConfigError for a column whose values have no order."""
    if finding := unordered(column):
        raise ConfigError(finding.text, code=finding.code)


def unordered(column: SourceColumn) -> Finding | None:
    if column.facts.greater is not None:
        return None
    text = (
        f"column '{column.name}' is of type {column.facts.declared}, which has no order, so it cannot be a key or"
        " cursor; choose another column, or cast it to text in the query"
    )
    return Finding("KEY_TYPE", text, column.name, fatal=True)
