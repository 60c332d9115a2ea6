"""Reads one query from one snapshot of the source, in chunks of rows."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import cast

import psycopg
from psycopg.pq import Format

from vitrine.connectors.postgres.source import copy_out
from vitrine.connectors.postgres.source import cursor_codec as codec
from vitrine.connectors.postgres.source.connections import SourceConnections
from vitrine.connectors.postgres.source.copy_out import CopyOut
from vitrine.connectors.postgres.source.ordered import OrderedQuery
from vitrine.connectors.postgres.source.query import SourceColumn
from vitrine.copytext import values
from vitrine.errors import DataError
from vitrine.flow.rows import BinaryRows, Bytes, TextRows
from vitrine.flow.throttle import Throttle
from vitrine.ids import Cursor
from vitrine.postgres import translated

SORT_MEMORY = "16MB"
"""work_mem for sorting a whole table: a fifth faster than with the server's default."""

_SORT_MEMORY = f"""
    SELECT set_config('work_mem', '{SORT_MEMORY}', true)
     WHERE pg_size_bytes(current_setting('work_mem')) < pg_size_bytes('{SORT_MEMORY}')
"""

_ENCODING = (psycopg.errors.CharacterNotInRepertoire, psycopg.errors.UntranslatableCharacter)

Chunk = BinaryRows | TextRows


class Snapshot:
    """One COPY in binary format; `end` is the cursor of the last row of the last chunk."""

    header, trailer = len(codec.HEADER), len(codec.TRAILER)

    def __init__(
        self,
        ordered: OrderedQuery,
        connections: SourceConnections,
        throttle: Throttle,
        *,
        cursor: Cursor | None,
        max_idle: timedelta,
        may_repeat: bool,
        max_row: int,
        show_keys: bool,
    ) -> None:
        self.end = cursor
        self.raw_end: Sequence[bytes] = ()
        self.type_oid = ordered.type_oid
        self._ordered = ordered
        self._connections = connections
        # only for a plain table sort: for any other query, another work_mem may lead to a slower plan
        sorts = ordered.sorts_everything(cursor)
        self._sorts_table = sorts and ordered.query.plan(ordered.read.after.cursor).get("Node Type") == "Seq Scan"
        self._connection = connections.streaming()
        self._statement = ordered.copy_statement(cursor).as_string(self._connection)
        self._throttle = throttle
        self._max_idle = max_idle  # while earlier batches are written, each of which may take up to batch_timeout
        self._max_row = max_row
        self._show_keys = show_keys
        self.is_too_large = False  # the row after `end`, where the chunks then end
        self._may_repeat = may_repeat  # rows of one key stay in one chunk: a resume between them would skip rows

    def chunk(self, data: Bytes, count: int) -> Chunk:
        return BinaryRows(data, count)

    def chunks(self) -> Iterator[Chunk]:
        with translated("source query", known=self._statement), self._encoding_named(), self._limits_named():
            rows = self._start()
            while (row := rows.peek()) is not None:
                if len(row) >= self._throttle.bytes:
                    data, count, last = rows.take(), 1, 0  # alone in its batch, to avoid another copy
                else:
                    data, count, last = rows.take_some(self._throttle.rows, self._throttle.bytes)
                while self._may_repeat and (row := rows.peek()) is not None and self._is_repeated(data, last, row):
                    data, count, last = bytearray(data) + rows.take(), count + 1, len(data)
                self._end_at(data, last, following=rows.peek())
                yield self.chunk(data, count)
            # guarantee: K14
            if rows.is_too_large:
                self.is_too_large = True
                self.close()
                return
            with self._connection.under(self._connections.executing):
                # guarantee: J33
                self._ordered.refuse_hidden_nulls(self._connection)
            self._connection.execute("COMMIT")

    def _start(self) -> CopyOut:
        """Execute the query, up to its first row."""
        session, planning = self._connection, self._connections.planning
        session.execute(self._connections.opening(session, planning, idle=self._max_idle))
        with session.under(planning):
            # guarantee: K2
            self._ordered.query.relations.check(session)
            self._ordered.query.refuse_changed(session, self._settings())
        with session.under(self._connections.executing):
            return CopyOut(session, self._statement, skip=self.header, shortest=self.trailer, max_row=self._max_row)

    def _settings(self) -> Sequence[str]:
        """Before the rows: only the role itself may limit a stream, which may be consumed slowly."""
        limit = f"SET LOCAL statement_timeout = {self._connection.role.milliseconds['statement_timeout']}"
        raises_memory = self._sorts_table and not self._connection.role.chose("work_mem")
        return (limit, _SORT_MEMORY) if raises_memory else (limit,)

    @contextmanager
    def _limits_named(self) -> Generator[None]:
        try:
            yield
        except psycopg.Error as exc:
            if refusal := self._connection.refusal_of(exc):
                raise refusal from exc
            raise

    @contextmanager
    def _encoding_named(self) -> Generator[None]:
        """Name the column of a text that is not valid in the encoding of its database, or that UTF-8 lacks."""
        try:
            yield
        except _ENCODING as exc:
            self._connection.close()
            column = self._ordered.query.badly_encoded()
            named = f"column '{column}'" if column else "a column"
            raise DataError(
                f"{named} of the source query holds text that cannot be converted to UTF-8 ({exc.sqlstate}); correct it"
                " at the source, or convert the column in the query",
                code="ENCODING",
            ) from exc

    def count_beyond(self, number: int, data: Bytes) -> int:
        """Rows whose first cursor column, a time, is above this number."""
        firsts = (cast(Sequence[bytes], fields) for fields in self._all_fields(data))
        return sum(codec.number(self.type_oid, self._encoded(fields)[0]) > number for fields in firsts)

    def close(self) -> None:
        """Abort the query and close the connection, because a COPY cannot end before all rows are read."""
        self._connection.close()

    def _end_at(self, data: Bytes, last: int, following: memoryview | None) -> None:
        """Record the cursor of the row at `last`; the following row must have another, or a resume would skip it."""
        fields = self._fields(data, last)
        self.end = self._cursor_text(fields)
        self.raw_end = self._encoded(cast(Sequence[bytes], fields))
        if following is not None and self._is_repeated(data, last, following):
            which = f" ({', '.join(self.end)})" if self._show_keys else ""
            raise DataError(
                f"two rows of the source have the same key or cursor{which}; a JOIN may repeat rows,"
                " or the key is not unique. To keep the last of them, set options.on_duplicate_key: last",
                code="DUPLICATE_KEY",
            )

    def _cursor_text(self, fields: Sequence[bytes | None]) -> Cursor:
        columns = self._ordered.columns
        if None in fields:
            column, query = columns[list(fields).index(None)].name, self._ordered.query
            raise query.null_cursor(column, query.count_nulls(column), complete=self._ordered.read.complete)
        present = cast(Sequence[bytes], fields)
        return tuple(self._text(column, field) for column, field in zip(columns, present, strict=True))

    def _text(self, column: SourceColumn, field: bytes) -> str:
        formatted = codec.formatter(column.type_oid)
        text = formatted(field) if formatted else None
        return text if text is not None else self._text_by_server(column, field)

    def _text_by_server(self, column: SourceColumn, field: bytes) -> str:
        with translated("source"), self._connections.formatting() as connection:
            connection.pgconn.send_query_params(b"SELECT $1", [field], [column.type_oid], [Format.BINARY])
            result = copy_out.answer(connection)
            copy_out.raise_failed(result)
            return (result.get_value(0, 0) or b"").decode()

    def _is_repeated(self, data: Bytes, last: int, following: memoryview) -> bool:
        return self._fields(following, 0) == self._fields(data, last)

    def _fields(self, data: Bytes, start: int) -> tuple[bytes | None, ...]:
        """The cursor of the row at `start`."""
        return codec.fields(data, self._ordered.indexes, start)

    def _all_fields(self, data: Bytes) -> Iterator[tuple[bytes | None, ...]]:
        return (self._fields(data, start) for start in codec.starts(data))

    def _encoded(self, fields: Sequence[bytes]) -> Sequence[bytes]:
        return fields


class TextSnapshot(Snapshot):
    """A Snapshot in COPY's text format, one line per row."""

    header, trailer = 0, 0

    def chunk(self, data: Bytes, count: int) -> Chunk:
        return TextRows(bytes(data) if isinstance(data, memoryview) else data, count)

    def _text(self, column: SourceColumn, field: bytes) -> str:
        return field.decode()

    def _fields(self, data: Bytes, start: int) -> tuple[bytes | None, ...]:
        fields = bytes(data[start:]).decode().removesuffix("\n").split("\t")
        found = (fields[index] for index in self._ordered.indexes)
        return tuple(None if field == values.NULL else values.unescape(field).encode() for field in found)

    def _encoded(self, fields: Sequence[bytes]) -> Sequence[bytes]:
        is_number = self.type_oid in codec.INTEGERS | codec.TIMES
        return [codec.encoded(self.type_oid, fields[0].decode())] if is_number else fields

    def _all_fields(self, data: Bytes) -> Iterator[tuple[bytes | None, ...]]:
        return (self._fields(line, 0) for line in bytes(data).split(b"\n") if line)
