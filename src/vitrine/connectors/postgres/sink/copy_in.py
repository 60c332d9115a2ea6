"""Writes batches to a table by COPY."""

from collections.abc import Sequence
from dataclasses import replace

import psycopg
from psycopg import sql

from vitrine.connectors.postgres.sink.casts import Casts, Conversion
from vitrine.connectors.postgres.sink.session import TargetSession
from vitrine.connectors.postgres.sink.statements import names
from vitrine.copytext import text_of
from vitrine.failpoints import reach
from vitrine.flow.rows import Batch, BinaryRows, Bytes, FrameRows, Payload, PythonRows, TextRows
from vitrine.postgres import raw

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"

UNCAST = sql.Identifier("pg_temp", "vitrine_uncast")


class ValueChanged(psycopg.DataError):
    """A cast to the target's type would change a value; a refusal like those that PostgreSQL raises."""


def encode(batch: Batch, casts: Casts) -> Batch:
    """Python values and frames in a format of COPY; called in another thread, before the write."""
    if not batch.count or not isinstance(batch.payload, PythonRows | FrameRows):
        return batch
    if isinstance(batch.payload, FrameRows):
        from vitrine.copytext import encoding

        # binary data must match the types of the table exactly
        types = {column.name: casts.sent_as(column) for column in batch.columns}
        if (binary := encoding.encode(batch.payload.frame, types)) is not None:
            return replace(batch, payload=replace(batch.payload, binary=binary))
    return replace(batch, payload=TextRows(text_of(batch, casts.is_json), batch.count))


def copy_in(session: TargetSession, casts: Casts, table: sql.Identifier, batch: Batch, *, checked: bool = True) -> None:
    """Copy rows into a table with the target's types; ValueChanged if a cast would change a value."""
    conversions = casts.of(session.connection, batch.columns)
    if not any(one.is_needed for one in conversions):
        copy_rows(session, casts, table, batch)
        return
    session.create_temporary(UNCAST, [(one.name, one.source) for one in conversions])
    copy_rows(session, casts, UNCAST, batch)
    _refuse_changes(session, conversions)
    # INSERT casts like an assignment: a text too long for its column is an error and is not truncated
    insert = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {}").format(
        table,
        names(one.name for one in conversions),
        sql.SQL(", ").join(one.assigned(sql.Identifier(one.name)) for one in conversions),
        UNCAST,
    )
    session.connection.execute(insert)


def _refuse_changes(session: TargetSession, conversions: Sequence[Conversion]) -> None:
    kept = [
        one.keeps(value, sql.SQL("CAST({} AS {})").format(value, raw(one.facts.declared)))
        for one in conversions
        if one.is_checked
        for value in [sql.Identifier(one.name)]
    ]
    if not kept:
        return
    statement = sql.SQL("SELECT FROM {} WHERE NOT ({}) LIMIT 1").format(UNCAST, sql.SQL(" AND ").join(kept))
    if session.connection.execute(statement).rowcount:
        raise ValueChanged


def copy_rows(
    session: TargetSession, casts: Casts, table: sql.Identifier, batch: Batch, *, as_text: bool = False
) -> None:
    """Copy rows into a table whose types match the payload."""
    columns = names(column.name for column in batch.columns)
    parts: Sequence[Bytes]
    if not as_text and (binary := _binary_of(batch.payload)) is not None:
        options, parts = sql.SQL("(FORMAT binary)"), (HEADER, binary, TRAILER)
    else:
        options, parts = sql.SQL("(FORMAT text)"), (text_of(batch, casts.is_json),)
    statement = sql.SQL("COPY {} ({}) FROM STDIN {}").format(table, columns, options)
    with session.connection.cursor() as cursor, cursor.copy(statement) as copy:
        for part in parts:
            copy.write(part)
            reach("in_copy")


def _binary_of(payload: Payload) -> Bytes | None:
    match payload:
        case BinaryRows(data=data):
            return data
        case FrameRows(binary=binary):
            return binary
        case _:
            return None
