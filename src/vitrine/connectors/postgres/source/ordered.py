"""A query in the order of one read: the statement that continues it after a cursor."""

from collections.abc import Sequence
from typing import NamedTuple

from psycopg import sql

from vitrine.connectors.postgres import formats, ranges
from vitrine.connectors.postgres.source.query import SourceColumn, SourceQuery
from vitrine.connectors.postgres.types import Operator
from vitrine.errors import ConfigError
from vitrine.flow.rows import Column, Finding, Lane, Read
from vitrine.ids import Cursor
from vitrine.postgres import Connection, raw

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
            rows = sql.SQL("{} SELECT q.* FROM q WHERE {}").format(formats.computed(rows), formats.APPLIED)
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
        return [ranges.condition("q", key, self.read.only, operators)]

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
