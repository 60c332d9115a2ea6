"""Rows by their keys or by a range of keys, as SQL: the order is that of `flow.keys`."""

from collections.abc import Sequence

from psycopg import sql

from vitrine.flow.rows import NUMBERS, Column, Key, KeyRange, Selection, bare_type
from vitrine.postgres import raw

_OWN_CASTS = frozenset({"boolean", "character", '"char"', "inet", "cidr"})
"""Types whose cast to text differs from their text format: true and t, 10.0.0.1/32 and 10.0.0.1, spaces at the end."""


def text(value: sql.Composable, type_name: str) -> sql.Composable:
    """The value in PostgreSQL's text format, as COPY sends it."""
    if bare_type(type_name) in _OWN_CASTS:
        return sql.SQL("CASE WHEN {0} IS NOT NULL THEN concat({0}) END").format(value)
    return sql.SQL("CAST({} AS text)").format(value)


def order_by(table: str, key: Sequence[Column]) -> list[sql.Composable]:
    """Expressions that order keys: numbers by value, everything else by text under "C"."""
    return [_place(sql.Identifier(table, column.name), column.type, column) for column in key]


def condition(table: str, key: Sequence[Column], only: Selection) -> sql.Composable:
    """True for the selected rows of a relation."""
    if isinstance(only, KeyRange):
        return _within(table, key, only)
    names = sql.SQL(", ").join(sql.Identifier(table, column.name) for column in key)
    wanted = sql.SQL(", ").join(
        sql.SQL("CAST({} AS {})").format(sql.Identifier("wanted", f"k{at}"), raw(column.type))
        for at, column in enumerate(key)
    )
    columns = sql.SQL(", ").join(sql.Literal([one[at] for one in only]) + sql.SQL("::text[]") for at in range(len(key)))
    aliases = sql.SQL(", ").join(sql.Identifier(f"k{at}") for at in range(len(key)))
    return sql.SQL("({}) IN (SELECT {} FROM unnest({}) AS wanted({}))").format(names, wanted, columns, aliases)


def _within(table: str, key: Sequence[Column], keys: KeyRange) -> sql.Composable:
    bounds = [
        _compared(table, key, limit, operator)
        for limit, operator in ((keys.low, sql.SQL(">=")), (keys.high, sql.SQL("<")))
        if limit is not None
    ]
    return sql.SQL(" AND ").join(bounds) if bounds else sql.SQL("true")


def _compared(table: str, key: Sequence[Column], limit: Key, operator: sql.SQL) -> sql.Composed:
    values = [_place(sql.Literal(value), "text", column) for value, column in zip(limit, key, strict=True)]
    return sql.SQL("ROW({}) {} ROW({})").format(
        sql.SQL(", ").join(order_by(table, key)), operator, sql.SQL(", ").join(values)
    )


def _place(value: sql.Composable, type_name: str, column: Column) -> sql.Composable:
    """What a value of this type is ordered by as a key of the column."""
    if column.kind in NUMBERS:
        return sql.SQL("CAST({} AS numeric)").format(value)
    return sql.SQL('{} COLLATE "C"').format(text(value, type_name))
