"""A row that is larger than a row may be: its key and its largest column, found without receiving it."""

from psycopg import sql

from vitrine.connectors.postgres.source.ordered import OrderedQuery
from vitrine.errors import DataError, VitrineError
from vitrine.model import Cursor
from vitrine.postgres import fetch_extended
from vitrine.settings import format_bytes

_TEXTS = ("text", "bytea", "character varying", "character")


def refusal(ordered: OrderedQuery, after: Cursor | None, skip: int, limit: int, *, show_keys: bool) -> DataError:
    """The error about the row that follows `skip` others after a cursor."""
    try:
        key, column = _describe(ordered, after, skip)
    except VitrineError:
        key, column = None, None  # the source did not answer: the error about the row matters more
    which = f"row {'/'.join(key)}" if key and show_keys else "a row"
    where = f", most of it in column '{column}'" if column else ""
    return DataError(
        f"source query: {which} has more than {format_bytes(limit)}{where}, and a row may not be larger"
        " (VITRINE_MAX_ROW_BYTES); leave the column out, shorten it in the query, or raise that limit",
        code="ROW_TOO_LARGE",
    )


def _describe(ordered: OrderedQuery, after: Cursor | None, skip: int) -> tuple[list[str] | None, str | None]:
    query = ordered.query
    widths = [
        sql.SQL("coalesce({}(q.{}), 0)").format(
            sql.SQL("octet_length" if column.type in _TEXTS else "pg_column_size"), sql.Identifier(column.name)
        )
        for column in query.columns
    ]
    key = [sql.SQL("CAST(q.{} AS text)").format(sql.Identifier(column.name)) for column in ordered.columns]
    statement = sql.SQL(
        "SELECT ARRAY[{}] AS key, ARRAY[{}] AS widths FROM (SELECT * FROM ({}) AS r LIMIT 1 OFFSET {}) AS q"
    ).format(sql.SQL(", ").join(key), sql.SQL(", ").join(widths), ordered.rows_statement(after), sql.Literal(skip))
    with query.reading(executes=True) as session:
        row = fetch_extended(session, statement)
    if row is None:
        return None, None
    widest = max(zip(row["widths"], query.columns, strict=True), key=lambda pair: pair[0])[1]
    return [text or "NULL" for text in row["key"]], widest.name
