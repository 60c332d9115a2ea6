"""One query out of one snapshot of the source, as chunks of rows."""

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import cast

from psycopg import sql

from vitrine.errors import DataError
from vitrine.flow import Bytes, Copied, Printed
from vitrine.model import Cursor
from vitrine.pace import Pace
from vitrine.postgres import PRINTING, Connection, translated
from vitrine.printed import values
from vitrine.sources import binary
from vitrine.sources.protocol import CopyOut

# Constants, the one thing sent by the simple protocol; the query itself goes by the extended one
_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY;" + PRINTING
_PATIENCE = """
    ; SET LOCAL lock_timeout = '10s'; SET LOCAL statement_timeout = 0;
    SET LOCAL idle_in_transaction_session_timeout = '10min'
"""
# A stream rests while the batches before are written, each as long as it may take
_BEGIN_STREAM = sql.SQL(_BEGIN + _PATIENCE + "; SET LOCAL idle_in_transaction_session_timeout = {}")
_SORT_MEMORY = """
    SELECT set_config('work_mem', %(size)s, true)
     WHERE pg_size_bytes(current_setting('work_mem')) < pg_size_bytes(%(size)s)
"""


class ReadOnly:
    """A short read-only transaction on a connection of the reader."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __enter__(self) -> Connection:
        self._connection.execute(_BEGIN + _PATIENCE)
        return self._connection

    def __exit__(self, *exc: object) -> None:
        if not self._connection.closed:
            self._connection.execute("ROLLBACK")


class Stream:
    """One COPY out of one snapshot, as chunks of rows; `end` is where the last chunk ended."""

    def __init__(
        self,
        connection: Connection,
        statement: str,
        *,
        cursor: Cursor | None,
        cursor_columns: Sequence[int],
        print_cursor: Callable[[Sequence[bytes | None]], Cursor],
        type_oid: int,
        pace: Pace,
        max_bytes: int,
        may_repeat: bool,
        sort_memory: str | None,
        longest_rest: timedelta,
    ) -> None:
        self.end = cursor
        self.raw_end: Sequence[bytes] = ()
        self._connection = connection
        self._statement = statement
        self._cursor_columns = cursor_columns
        self._print_cursor = print_cursor
        self.type_oid = type_oid
        self._pace = pace
        self._max_bytes = max_bytes
        self._may_repeat = may_repeat  # rows of one key are kept together: a resume between them would skip the rest
        self._sort_memory = sort_memory  # None: as the server has it
        self._longest_rest = longest_rest

    header, trailer = len(binary.HEADER), len(binary.TRAILER)

    def chunk(self, data: Bytes, count: int) -> Copied | Printed:
        return Copied(data, count)

    def chunks(self) -> Iterator[Copied | Printed]:
        with translated("source query"):
            self._connection.execute(_BEGIN_STREAM.format(int(self._longest_rest.total_seconds() * 1000)))
            if self._sort_memory:
                self._connection.execute(_SORT_MEMORY, {"size": self._sort_memory})
            rows = CopyOut(self._connection, self._statement, skip=self.header, shortest=self.trailer)
            while (row := rows.peek()) is not None:
                if len(row) >= self._max_bytes:
                    data, count, last = rows.take(), 1, 0  # alone in its batch, and not copied once more
                else:
                    data, count, last = rows.take_some(self._pace.limits.rows_at_once, self._max_bytes)
                while self._may_repeat and (row := rows.peek()) is not None and self._is_repeated(data, last, row):
                    data, count, last = bytearray(data) + rows.take(), count + 1, len(data)
                self._end_at(data, last, following=rows.peek())
                yield self.chunk(data, count)
            self._connection.execute("COMMIT")

    def count_beyond(self, number: int, data: Bytes) -> int:
        """Rows whose first cursor column, a time, is above this number."""
        firsts = (cast(Sequence[bytes], fields) for fields in self._all_fields(data))
        return sum(binary.number(self.type_oid, self._encoded(fields)[0]) > number for fields in firsts)

    def close(self) -> None:
        """Give up the rest of the query; the connection ends with it, as an unread COPY cannot be left."""
        self._connection.close()

    def _end_at(self, data: Bytes, last: int, following: memoryview | None) -> None:
        """Note the cursor of the row at `last`; the following row must have another, or a resume would skip it."""
        fields = self._fields(data, last)
        self.end = self._print_cursor(fields)
        self.raw_end = self._encoded(cast(Sequence[bytes], fields))
        if following is not None and self._is_repeated(data, last, following):
            raise DataError(
                f"two rows of the source have the same key or cursor ({', '.join(self.end)}); a JOIN may repeat rows,"
                " or the key is not unique. If the last of them is meant, set options.on_duplicate_key: last",
                code="DUPLICATE_KEY",
            )

    def _is_repeated(self, data: Bytes, last: int, following: memoryview) -> bool:
        return self._fields(following, 0) == self._fields(data, last)

    def _fields(self, data: Bytes, start: int) -> tuple[bytes | None, ...]:
        """The cursor of the row that begins at `start`."""
        return binary.fields(data, self._cursor_columns, start)

    def _all_fields(self, data: Bytes) -> Iterator[tuple[bytes | None, ...]]:
        return (self._fields(data, start) for start in binary.starts(data))

    def _encoded(self, fields: Sequence[bytes]) -> Sequence[bytes]:
        return fields


class TextStream(Stream):
    """The same in COPY's text format, a line each."""

    header, trailer = 0, 0

    def chunk(self, data: Bytes, count: int) -> Copied | Printed:
        return Printed(bytes(data) if isinstance(data, memoryview) else data, count)

    def _fields(self, data: Bytes, start: int) -> tuple[bytes | None, ...]:
        fields = bytes(data[start:]).decode().removesuffix("\n").split("\t")
        found = (fields[index] for index in self._cursor_columns)
        return tuple(None if field == values.NULL else values.unescape(field).encode() for field in found)

    def _encoded(self, fields: Sequence[bytes]) -> Sequence[bytes]:
        is_number = self.type_oid in binary.INTEGERS | binary.TIMES
        return [binary.encoded(self.type_oid, fields[0].decode())] if is_number else fields

    def _all_fields(self, data: Bytes) -> Iterator[tuple[bytes | None, ...]]:
        return (self._fields(line, 0) for line in bytes(data).split(b"\n") if line)
