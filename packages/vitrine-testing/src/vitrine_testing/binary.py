"""Rows between COPY's text format and its binary one, converted by PostgreSQL itself."""

from collections.abc import Sequence

from psycopg import sql

from vitrine.core.copytext import text_of
from vitrine.core.rows import Batch, BinaryRows, Column, TextRows
from vitrine.postgres import TEXT_FORMAT, Connection, raw

_HEADER = 19
_TRAILER = b"\xff\xff"
_SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TABLE = sql.Identifier("pg_temp", "vitrine_converted")


def to_binary(connection: Connection, batch: Batch) -> BinaryRows:
    data = _convert(connection, batch.columns, bytes(text_of(batch)), "text", "binary")
    return BinaryRows(data[_HEADER : -len(_TRAILER)], batch.count)


def to_canonical_text(connection: Connection, batch: Batch) -> TextRows:
    """Rows of any lane as PostgreSQL prints them: two spellings of one value become the same."""
    if isinstance(batch.payload, BinaryRows):
        data, given = _SIGNATURE + bytes(batch.payload.data) + _TRAILER, "binary"
    else:
        data, given = bytes(text_of(batch)), "text"
    return TextRows(_convert(connection, batch.columns, data, given, "text"), batch.count)


def _convert(connection: Connection, columns: Sequence[Column], data: bytes, given: str, wanted: str) -> bytes:
    definitions = [sql.SQL("{} {}").format(sql.Identifier(column.name), raw(column.type)) for column in columns]
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute(TEXT_FORMAT)
        create = sql.SQL("CREATE TEMP TABLE {} ({}) ON COMMIT DROP")
        cursor.execute(create.format(_TABLE, sql.SQL(", ").join(definitions)))
        with cursor.copy(sql.SQL("COPY {} FROM STDIN (FORMAT {})").format(_TABLE, raw(given))) as incoming:
            incoming.write(data)
        with cursor.copy(sql.SQL("COPY {} TO STDOUT (FORMAT {})").format(_TABLE, raw(wanted))) as outgoing:
            return b"".join(bytes(part) for part in outgoing)
