"""Writes batches to a table by COPY."""

from collections.abc import Sequence
from dataclasses import replace

from psycopg import sql

from vitrine.connectors.postgres.sink.session import TargetSession
from vitrine.connectors.postgres.sink.statements import names
from vitrine.connectors.postgres.sink.target import TargetTable
from vitrine.copytext import text_of
from vitrine.failpoints import reach
from vitrine.flow.rows import Batch, BinaryRows, Bytes, FrameRows, Payload, PythonRows, TextRows

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"

UNCAST = sql.Identifier("pg_temp", "vitrine_uncast")


def encode(batch: Batch, target: TargetTable) -> Batch:
    """Python values and frames in a format of COPY; called in another thread, before the write."""
    if not batch.count or not isinstance(batch.payload, PythonRows | FrameRows):
        return batch
    if isinstance(batch.payload, FrameRows):
        from vitrine.copytext import encoding

        # the temporary table has the types of the target, and binary data must match them exactly
        types = {column.name: target.type_of(column) for column in batch.columns}
        if (binary := encoding.encode(batch.payload.frame, types)) is not None:
            return replace(batch, payload=replace(batch.payload, binary=binary))
    return replace(batch, payload=TextRows(text_of(batch, target.is_json), batch.count))


def copy_in(session: TargetSession, target: TargetTable, table: sql.Identifier, batch: Batch) -> None:
    """Copy rows into a table with the target's types. Binary data must match its type; PostgreSQL casts other types."""
    if target.has_types_of(batch.columns) or not isinstance(batch.payload, BinaryRows):
        copy_rows(session, target, table, batch)
        return
    session.create_temporary(UNCAST, [(column.name, column.type) for column in batch.columns])
    copy_rows(session, target, UNCAST, batch)
    columns = names(column.name for column in batch.columns)
    # INSERT casts like an assignment: a text too long for its column is an error and is not truncated
    insert = sql.SQL("INSERT INTO {table} ({columns}) SELECT {columns} FROM {uncast}")
    session.connection.execute(insert.format(table=table, columns=columns, uncast=UNCAST))


def copy_rows(
    session: TargetSession, target: TargetTable, table: sql.Identifier, batch: Batch, *, as_text: bool = False
) -> None:
    """Copy rows into a table whose types match the payload."""
    columns = names(column.name for column in batch.columns)
    parts: Sequence[Bytes]
    if not as_text and (binary := _binary_of(batch.payload)) is not None:
        options, parts = sql.SQL("(FORMAT binary)"), (HEADER, binary, TRAILER)
    else:
        options, parts = sql.SQL("(FORMAT text)"), (text_of(batch, target.is_json),)
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
