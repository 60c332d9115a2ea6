"""Rows by their keys or by a range of keys, as SQL: the order is that of `flow.keys`."""

from collections.abc import Mapping, Sequence

from psycopg import sql

from vitrine.connectors.postgres.types import Operator, output_text
from vitrine.flow.rows import NUMBERS, Column, Key, KeyRange, Kind, Selection, bare_type, kind_of
from vitrine.postgres import raw

_CAST_KINDS = frozenset(
    {Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.INTERVAL, Kind.UUID, Kind.BYTES, Kind.JSON} | NUMBERS
)
"""Kinds whose cast to text calls the output function; the catalog may define another cast for any other type."""

_NUMERIC_CASTS = frozenset({"smallint", "integer", "bigint", "numeric"})
"""Types whose cast to numeric loses nothing: that of a float keeps 15 digits."""


def text(value: sql.Composable, type_name: str) -> sql.Composable:
    """The value in PostgreSQL's text format, as COPY sends it."""
    if kind_of(type_name) in _CAST_KINDS or bare_type(type_name) in ("text", "character varying"):
        return sql.SQL("CAST({} AS text)").format(value)
    return output_text(value)


def number(value: sql.Composable, type_name: str) -> sql.Composable:
    """The value of a number, or of its text, as numeric."""
    exact = value if bare_type(type_name) in _NUMERIC_CASTS else text(value, type_name)
    return sql.SQL("CAST({} AS numeric)").format(exact)


def utf8(value: sql.Composable) -> sql.Composed:
    """The characters of a text as bytes: equal and ordered alike in databases of every encoding and collation."""
    return sql.SQL("convert_to({}, 'UTF8')").format(value)


def place(value: sql.Composable, type_name: str) -> sql.Composable:
    """What a value is ordered by: a number by its value, everything else by the characters of its text."""
    return number(value, type_name) if kind_of(type_name) in NUMBERS else utf8(text(value, type_name))


def order_by(table: str, key: Sequence[Column]) -> list[sql.Composable]:
    """Expressions that order keys."""
    return [place(sql.Identifier(table, column.name), column.type) for column in key]


def condition(
    table: str, key: Sequence[Column], only: Selection, operators: Mapping[str, Operator | None] | None = None
) -> sql.Composable:
    """True for the selected rows of a relation.

    `operators` are those that decide whether two keys are equal, by column. None: the type has none, its text decides.
    """
    if isinstance(only, KeyRange):
        return within(order_by(table, key), key, only)
    wanted = sql.SQL(", ").join(sql.Literal([one[at] for one in only]) + sql.SQL("::text[]") for at in range(len(key)))
    aliases = sql.SQL(", ").join(sql.Identifier(f"k{at}") for at in range(len(key)))
    if operators is None:
        names = sql.SQL(", ").join(sql.Identifier(table, column.name) for column in key)
        values = sql.SQL(", ").join(_wanted(at, column) for at, column in enumerate(key))
        return sql.SQL("({}) IN (SELECT {} FROM unnest({}) AS wanted({}))").format(names, values, wanted, aliases)
    matches = sql.SQL(" AND ").join(_match(table, at, column, operators) for at, column in enumerate(key))
    return sql.SQL("EXISTS (SELECT FROM unnest({}) AS wanted({}) WHERE {})").format(wanted, aliases, matches)


def _wanted(at: int, column: Column) -> sql.Composed:
    return sql.SQL("CAST({} AS {})").format(sql.Identifier("wanted", f"k{at}"), raw(column.type))


def _match(table: str, at: int, column: Column, operators: Mapping[str, Operator | None]) -> sql.Composed:
    stored = sql.Identifier(table, column.name)
    operator = operators[column.name]
    if operator is not None:
        return operator.between(stored, _wanted(at, column))
    return sql.SQL('{} = {} COLLATE "C"').format(text(stored, column.type), sql.Identifier("wanted", f"k{at}"))


def within(places: Sequence[sql.Composable], key: Sequence[Column], keys: KeyRange) -> sql.Composable:
    """True for keys of the range; `places` are what the key is ordered by."""
    bounds = [
        _compared(places, key, limit, operator)
        for limit, operator in ((keys.low, sql.SQL(">=")), (keys.high, sql.SQL("<")))
        if limit is not None
    ]
    return sql.SQL(" AND ").join(bounds) if bounds else sql.SQL("true")


def _compared(places: Sequence[sql.Composable], key: Sequence[Column], limit: Key, operator: sql.SQL) -> sql.Composed:
    values = [_limit(value, column) for value, column in zip(limit, key, strict=True)]
    return sql.SQL("ROW({}) {} ROW({})").format(sql.SQL(", ").join(places), operator, sql.SQL(", ").join(values))


def _limit(value: str, column: Column) -> sql.Composable:
    # the bytes of a text: the database's encoding may lack one of its characters
    return number(sql.Literal(value), "text") if column.kind in NUMBERS else sql.Literal(value.encode())
