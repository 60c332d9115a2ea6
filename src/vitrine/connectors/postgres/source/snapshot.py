"""Reads one query from one snapshot of the source, in chunks of rows, and names rows that are too large."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple, cast

import psycopg
from psycopg import sql
from psycopg.pq import Format

from vitrine.connectors.postgres import compare_sql, cursor_codec
from vitrine.connectors.postgres.source import copy_out
from vitrine.connectors.postgres.source.copy_out import CopyOut
from vitrine.connectors.postgres.source.query import OrderedQuery, SourceColumn
from vitrine.connectors.postgres.source.session import SourceConnections
from vitrine.core import keys
from vitrine.core.copytext import values
from vitrine.core.protocols import Throttle
from vitrine.core.rows import BinaryRows, Bytes, Cursor, Finding, Lane, Reject, TextRows
from vitrine.definition.context import RejectPolicy
from vitrine.definition.model import Definition, Mode
from vitrine.errors import DataError, TransientError, VitrineError
from vitrine.postgres import fetch_extended, translated
from vitrine.settings import format_bytes

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

    header, trailer = len(cursor_codec.HEADER), len(cursor_codec.TRAILER)

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
        return sum(cursor_codec.number(self.type_oid, self._encoded(fields)[0]) > number for fields in firsts)

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
        formatted = cursor_codec.formatter(column.type_oid)
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
        return cursor_codec.fields(data, self._ordered.indexes, start)

    def _all_fields(self, data: Bytes) -> Iterator[tuple[bytes | None, ...]]:
        return (self._fields(data, start) for start in cursor_codec.starts(data))

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
        is_number = self.type_oid in cursor_codec.INTEGERS | cursor_codec.TIMES
        return [cursor_codec.encoded(self.type_oid, fields[0].decode())] if is_number else fields

    def _all_fields(self, data: Bytes) -> Iterator[tuple[bytes | None, ...]]:
        return (self._fields(line, 0) for line in bytes(data).split(b"\n") if line)


CODE = "ROW_TOO_LARGE"

TOLERANCE = 1024
"""Bytes around the values of a row that the stream has and the size of the values has not."""


class WideRow(NamedTuple):
    """A row that was skipped."""

    cursor: Cursor
    raw: Sequence[bytes]  # the cursor in binary format, as far as positions need it
    reject: Reject


class _Found(NamedTuple):
    cursor: Cursor
    key: tuple[str, ...]
    column: str
    size: int
    null: str | None  # the first column of the cursor that is NULL


class WideRows:
    """What happens to rows that are too large for a run to receive."""

    def __init__(self, definition: Definition, limit: int, policy: RejectPolicy | None, *, show_keys: bool) -> None:
        self._definition = definition
        self._limit = limit
        self._policy = policy
        self._show_keys = show_keys

    def findings(self) -> tuple[Finding, ...]:
        """A note for a pipeline that has a quarantine which cannot take such rows."""
        reason = self._why_never()
        if self._definition.options.on_reject == "fail" or reason is None:
            return ()
        text = (
            f"a row over {format_bytes(self._limit)} (VITRINE_MAX_ROW_BYTES) fails the run and is not quarantined:"
            f" {reason}"
        )
        return (Finding(CODE, text, note=True),)

    def reject_next(self, ordered: OrderedQuery, after: Cursor | None) -> WideRow:
        """The row after this cursor, which is too large, as a reject; DataError if it may not be quarantined."""
        try:
            found = self._find(ordered, after)
        except VitrineError:
            found = None  # the source did not answer: the error about the row matters more
        is_partial = ordered.read.only is not None or ordered.read.limit is not None
        if self._policy is None or self._definition.options.on_reject == "fail" or is_partial or self._why_never():
            raise self._refusal(found)
        if found is None or found.size + TOLERANCE <= self._limit:
            # it changed since, or several rows have one cursor
            raise TransientError(
                f"source query: a row had more than {format_bytes(self._limit)} (VITRINE_MAX_ROW_BYTES), but it was not"
                " found again to be quarantined; if this repeats, several rows have the same key or cursor",
                code=CODE,
            )
        if found.null is not None:
            count = ordered.query.count_nulls(found.null)
            raise ordered.query.null_cursor(found.null, count, complete=ordered.read.complete)
        reason = f"the row has {_megabytes(found.size)}, more than {self._describe(found)}"
        reject = Reject(keys.to_text(found.key), found.column, CODE, reason, "{}")
        self._policy.judge(reject)
        is_number = ordered.type_oid in cursor_codec.INTEGERS | cursor_codec.TIMES
        raw = [cursor_codec.encoded(ordered.type_oid, found.cursor[0])] if is_number else [found.cursor[0].encode()]
        return WideRow(found.cursor, raw, reject)

    def _why_never(self) -> str | None:
        """Why such a row cannot be quarantined; None if it can."""
        if self._definition.transform_steps:
            return "only the transforms know the key of its row in the target"
        if self._definition.mode is Mode.INCREMENTAL and not self._definition.key_columns:
            return "key_columns are not given"
        if self._definition.options.on_duplicate_key == "last":
            return "with on_duplicate_key: last, it may be one of several rows with its key"
        return None

    def _refusal(self, found: _Found | None) -> DataError:
        which = f"row {'/'.join(found.key)}" if found and self._show_keys else "a row"
        others = (
            "or raise that limit" if self._why_never() else "raise that limit, or set options.on_reject: quarantine"
        )
        return DataError(
            f"source query: {which} has more than {self._describe(found)}; leave the column out, shorten it in the"
            f" query, {others}",
            code=CODE,
        )

    def _describe(self, found: _Found | None) -> str:
        where = f", most of it in column '{found.column}'" if found else ""
        return f"{format_bytes(self._limit)} (VITRINE_MAX_ROW_BYTES){where}"

    def _find(self, ordered: OrderedQuery, after: Cursor | None) -> _Found | None:
        """The first row after the cursor, as text under our settings; none of its other values is received."""
        query = ordered.query
        names = self._definition.key_columns or ordered.read.order
        first = sql.SQL("SELECT * FROM ({}) AS r LIMIT 1").format(ordered.rows_statement(after))
        statement = sql.SQL(
            "{} SELECT ARRAY[{}] AS cursor, ARRAY[{}] AS key, ARRAY[{}]::bigint[] AS widths, {} AS size FROM q WHERE {}"
        ).format(
            compare_sql.computed_under_formats(first),
            sql.SQL(", ").join(_text_or_null(column.name) for column in ordered.columns),
            sql.SQL(", ").join(map(_text, names)),
            sql.SQL(", ").join(map(_width, query.columns)),
            _SIZES[ordered.read.lane is Lane.COPY](query.columns),
            compare_sql.FORMATS_APPLIED,
        )
        with query.reading(executes=True) as session:
            row = fetch_extended(session, statement)
        if row is None:
            return None
        widest = max(zip(row["widths"], query.columns, strict=True), key=lambda pair: pair[0])[1]
        missing = [one.name for one, text in zip(ordered.columns, row["cursor"], strict=True) if text is None]
        return _Found(tuple(row["cursor"]), tuple(row["key"]), widest.name, row["size"], next(iter(missing), None))


def _text(name: str) -> sql.Composed:
    return sql.SQL("concat({})").format(sql.Identifier("q", name))


def _text_or_null(name: str) -> sql.Composed:
    return sql.SQL("CASE WHEN {} IS NOT NULL THEN {} END").format(sql.Identifier("q", name), _text(name))


def _width(column: SourceColumn) -> sql.Composed:
    name = sql.Identifier("q", column.name)
    if column.facts.bare == "bytea":
        return sql.SQL("coalesce(octet_length({}), 0)").format(name)
    return sql.SQL("octet_length(concat({}))").format(name)


def _binary_size(columns: Sequence[SourceColumn]) -> sql.Composable:
    return sql.SQL("octet_length(record_send(q.*))::bigint")  # a column may be named q


def _text_size(columns: Sequence[SourceColumn]) -> sql.Composable:
    """With the backslashes before characters that COPY escapes."""
    escaped = sql.SQL(r"octet_length({0})::bigint + length({0}) - length(translate({0}, E'\\\b\f\n\r\t\v', ''))")
    return sql.SQL(" + ").join(escaped.format(_text(column.name)) for column in columns)


_SIZES = {True: _binary_size, False: _text_size}


def _megabytes(size: int) -> str:
    return f"{size / 1024**2:.1f}MB"
