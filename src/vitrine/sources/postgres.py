"""Rows out of Postgres: one query, one snapshot, streamed by COPY in cursor order and cut into batches."""

import logging
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

from psycopg import sql
from psycopg.pq import Format, TransactionStatus

from vitrine import metrics
from vitrine.errors import ConfigError, DataError
from vitrine.failpoints import reach
from vitrine.flow import Batch, Column, Copied, Position, Printed
from vitrine.model import Cursor, Measure, Options
from vitrine.pace import Pace
from vitrine.policy import ReadOnlySql
from vitrine.postgres import Connection, connect, fetch_extended, measure, translated
from vitrine.postgres import raw as raw_sql
from vitrine.sources import binary, horizon, protocol
from vitrine.sources.horizon import Horizon
from vitrine.sources.stream import ReadOnly, Stream, TextStream
from vitrine.sources.tracking import EndTracker, PendingTracker, TimeTracker, Tracker

log = logging.getLogger(__name__)

PATIENCE = timedelta(seconds=1)
"""Nobody is warned of transactions shorter than this, however small the margin."""

SORT_MEMORY = "16MB"
"""For the sort of a whole table, which takes a fifth less time than with the server's cautious default."""

# A stream rests while the batches before are written, each as long as it may take
_REST = timedelta(minutes=1)

# Names of types as they can be written again, and what domains are made of in the end
_TYPES = """
    WITH RECURSIVE asked AS (
        SELECT * FROM unnest(%(oids)s::oid[], %(modifiers)s::integer[]) WITH ORDINALITY AS a(oid, modifier, place)
    ), made_of AS (
        SELECT a.place, t.oid, t.typbasetype, t.typtype FROM asked a JOIN pg_type t ON t.oid = a.oid
         UNION ALL
        SELECT m.place, t.oid, t.typbasetype, t.typtype FROM made_of m JOIN pg_type t ON t.oid = m.typbasetype
    )
    SELECT format_type(a.oid, a.modifier) AS name, m.oid AS base, format_type(m.oid, NULL) AS base_name,
           m.typtype = 'e' AS is_enum
      FROM asked a JOIN made_of m USING (place) WHERE m.typbasetype = 0 ORDER BY place
"""

# The first value a cursor of this type can have, for `$1` before there is a checkpoint
_MINIMUM = {
    binary.INT2: "-32768",
    binary.INT4: "-2147483648",
    binary.INT8: "-9223372036854775808",
    binary.DATE: "-infinity",
    binary.TIMESTAMP: "-infinity",
    binary.TIMESTAMPTZ: "-infinity",
}


@dataclass(frozen=True)
class SourceColumn:
    """A column of the query: `type_oid` is how COPY BINARY encodes it (a domain's base type)."""

    name: str
    type_oid: int
    type_name: str
    base_type: str
    is_enum: bool


class PostgresReader:
    """A SourceReader over one read-only query.

    `cursor_columns` give the order: the key columns of a full load, (incremental_key, incremental_id_key) otherwise.
    `as_text` has rows printed, for transforms; otherwise they are copied in binary, and nobody looks inside.
    """

    def __init__(
        self,
        url: str,
        query: ReadOnlySql,
        cursor_columns: Sequence[str],
        *,
        incremental: bool,
        options: Options,
        name: str,
        as_text: bool = False,
        log_fields: Mapping[str, object] | None = None,
    ) -> None:
        self._url = url
        self._name = name
        self._query = query
        self._incremental = incremental
        self._options = options
        self._as_text = as_text
        self._loading = False
        self.snapshots = 0  # that were read from
        self._log_fields = log_fields or {}
        self._future = timedelta(0)  # from the time that is settled to the one where the future begins
        self._latest: int | None = None  # a cursor above it lies in the future; None where there is no telling
        self.horizon: Horizon | None = None  # as this run saw it; None where the checkpoint does not wait for it
        self._asking = connect(url, name=name, side="source")
        self._streaming: Connection | None = None
        try:
            self.columns = self._describe()
            self._cursor = tuple(self._index(column) for column in cursor_columns)
        except BaseException:
            self._asking.close()
            raise

    def close(self) -> None:
        self._asking.close()
        if self._streaming is not None:
            self._streaming.close()

    def cancel(self) -> None:
        for connection in (self._asking, self._streaming):
            if connection is not None and connection.info.transaction_status is TransactionStatus.ACTIVE:
                connection.cancel_safe(timeout=1.0)

    def begin_load(self) -> None:
        """From now on a position is where reading has come to: the rows are collected, and nothing is a checkpoint."""
        self._loading = True

    def lower(self, cursor: Cursor, bound: str) -> Cursor:
        """The checkpoint of a load that came to `cursor`: there, or at the bound where that is lower."""
        type_oid = self.columns[self._cursor[0]].type_oid
        end, limit = (binary.number(type_oid, binary.encoded(type_oid, text)) for text in (cursor[0], bound))
        return cursor if end < limit else (bound,)

    def cursor_types(self) -> str:
        """Names and types of the cursor, which a checkpoint is only valid for."""
        return ", ".join(f"{self.columns[index].name} {self.columns[index].type_name}" for index in self._cursor)

    def rows_expected(self) -> int | None:
        """The planner's estimate."""
        if self._query.uses_checkpoint:
            return None  # the estimate depends on a checkpoint that is not known here
        return int(self._explained(None)["Plan Rows"])

    def time_bound(self, name: str) -> str | None:
        """How far everything in this column is settled, as its type prints it; None where that cannot be told."""
        column = self.columns[self._index(name)]
        if column.type_oid not in binary.TIMES:
            return None
        try:
            bound, margin = self._settled()
        except ConfigError:
            return None
        return None if bound is None else self._time_bound(bound, margin, column, Position())[1]

    def horizon_blocker(self) -> str | None:
        """Who holds the checkpoint back right now; ConfigError where the source cannot tell."""
        return horizon.read(self._idle()).blocker

    def measure(self, types: Mapping[str, str], control: str) -> Measure:
        """The figures of the whole query, whatever the checkpoint."""
        relation = sql.SQL("(SELECT q.* FROM ({}) AS q {})").format(raw_sql(self._bound_query(None)), self._where(None))
        with translated("source query"), self._reading() as connection:
            return measure(connection, relation, types, control)

    def batches(self, after: Position, pace: Pace) -> Iterator[Batch]:
        # The horizon is read once, before the first snapshot: a later snapshot of the same run must not move it,
        # or a row that committed between the two below the cursor would be skipped.
        tracker = self._tracker(after)
        reach("after_horizon")
        cursor, finished, told = after.cursor, False, False
        while not finished:
            self.snapshots += 1
            stream = self._stream(cursor, checkpoint=after.cursor, pace=pace)
            finished = yield from self._cut(stream, tracker, pace, told=told)
            cursor, told = stream.end, True

    def _cut(self, stream: Stream, tracker: Tracker, pace: Pace, *, told: bool) -> Generator[Batch, None, bool]:
        """Batches of one snapshot; returns whether the query is exhausted, or the snapshot merely too old."""
        best_before = time.monotonic() + self._options.snapshot_max_age.total_seconds()
        for chunk in stream.chunks():
            told = True
            self._count_future(stream, chunk)
            batch = self._batch(chunk, tracker.after(stream.raw_end, stream.end))
            # left before a rest in which it would grow too old: what rests must not hold vacuum back
            ends = time.monotonic() + pace.limits.seconds_after(chunk.count) > best_before
            if ends:
                stream.close()
            yield batch
            if ends or time.monotonic() > best_before:
                stream.close()
                return False
        final = tracker.finished()
        if not told or final is not None:
            yield self._batch(stream.chunk(b"", 0), final or tracker.start)
        return True

    def _batch(self, chunk: Copied | Printed, position: Position) -> Batch:
        columns = tuple(Column(column.name, column.type_name, column.base_type) for column in self.columns)
        return Batch(chunk, columns, position)

    # -- the query ------------------------------------------------------------------------------------------------

    def _describe(self) -> tuple[SourceColumn, ...]:
        """Names and types of the query's columns, as Postgres itself sees them."""
        with translated("source query"), self._reading() as connection:
            described = protocol.prepare(connection, self._query.text)  # a $1 in it takes its type from where it stands
            types = connection.execute(
                _TYPES, {"oids": [oid for _, oid, _ in described], "modifiers": [mod for _, _, mod in described]}
            ).fetchall()
        names = [name for name, _, _ in described]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"source query: column '{repeated[0]}' appears twice; rename one with AS", code="COLUMNS")
        if len(types) < len(names):
            raise ConfigError("source query: a column has no usable type; cast it", code="COLUMNS")
        return tuple(
            SourceColumn(name, row["base"], row["name"], row["base_name"], row["is_enum"])
            for name, row in zip(names, types, strict=True)
        )

    def _explained(self, checkpoint: Cursor | None) -> dict[str, Any]:
        """The topmost node of the planner's plan."""
        statement = sql.SQL("EXPLAIN (FORMAT JSON) {}").format(raw_sql(self._bound_query(checkpoint)))
        with translated("source query"), self._reading() as connection:
            row = connection.execute(statement).fetchone()
        return row["QUERY PLAN"][0]["Plan"] if row else {}

    def _index(self, column: str) -> int:
        names = [found.name for found in self.columns]
        if column not in names:
            raise ConfigError(
                f"the source query has no column '{column}', which the pipeline names as key or cursor;"
                f" it has: {', '.join(names)}",
                code="SCHEMA_CHANGED",
            )
        return names.index(column)

    def _bound_query(self, checkpoint: Cursor | None) -> str:
        if not self._query.uses_checkpoint:
            return self._query.text
        column = self.columns[self._cursor[0]]
        value = checkpoint[0] if checkpoint else _MINIMUM.get(column.type_oid, "")
        return self._query.bind(value, column.type_name)

    def _copy_statement(self, cursor: Cursor | None, checkpoint: Cursor | None) -> sql.Composed:
        source = sql.SQL("({}) AS q").format(raw_sql(self._bound_query(checkpoint)))
        if self._sorts_all(cursor):
            # a whole-table read through an index is slow; the fence makes the planner sort instead
            source = sql.SQL("(SELECT * FROM {} OFFSET 0) AS q").format(source)
        return sql.SQL("COPY (SELECT q.* FROM {source} {where} ORDER BY {order}) TO STDOUT (FORMAT {format})").format(
            source=source,
            where=self._where(cursor),
            order=sql.SQL(", ").join(self._names()),
            format=sql.SQL("text" if self._as_text else "binary"),
        )

    def _sorts_all(self, cursor: Cursor | None) -> bool:
        return not self._incremental or cursor is None

    def _names(self) -> list[sql.Composable]:
        return [sql.Identifier("q", self.columns[index].name) for index in self._cursor]

    def _where(self, cursor: Cursor | None) -> sql.Composable:
        first = self._names()[0]
        if not self._incremental:
            # IS NOT FALSE keeps keys with a NULL in them, which are a data error to be told, not rows to be lost
            return sql.SQL("WHERE ({}) IS NOT FALSE").format(self._beyond(cursor)) if cursor else sql.SQL("")
        if self._options.on_null_cursor == "ignore":
            return sql.SQL("WHERE {}").format(
                self._beyond(cursor) if cursor else sql.SQL("{} IS NOT NULL").format(first)
            )
        return sql.SQL("WHERE ({}) OR {} IS NULL").format(self._beyond(cursor), first) if cursor else sql.SQL("")

    def _beyond(self, cursor: Cursor) -> sql.Composed:
        values = [
            sql.SQL("CAST({} AS {})").format(sql.Literal(value), raw_sql(self.columns[index].type_name))
            for value, index in zip(cursor, self._cursor, strict=False)
        ]
        if len(cursor) < len(self._cursor):
            return sql.SQL("{} >= {}").format(self._names()[0], values[0])
        return sql.SQL("ROW({}) > ROW({})").format(sql.SQL(", ").join(self._names()), sql.SQL(", ").join(values))

    # -- reading --------------------------------------------------------------------------------------------------

    def _stream(self, cursor: Cursor | None, *, checkpoint: Cursor | None, pace: Pace) -> Stream:
        # of any other query the plan may depend on the server's own setting, and become a slower one
        sorts_a_table = self._sorts_all(cursor) and self._explained(checkpoint).get("Node Type") == "Seq Scan"
        self._streaming = self._idle()
        statement = self._copy_statement(cursor, checkpoint)
        return (TextStream if self._as_text else Stream)(
            self._streaming,
            statement.as_string(self._streaming),
            cursor=cursor,
            cursor_columns=self._cursor,
            print_cursor=self._print_cursor,
            type_oid=self.columns[self._cursor[0]].type_oid,
            pace=pace,
            max_bytes=self._options.max_batch_bytes,
            may_repeat=self._options.on_duplicate_key == "last",
            sort_memory=SORT_MEMORY if sorts_a_table else None,
            longest_rest=self._options.batch_timeout + self._options.snapshot_max_age + _REST,
        )

    def _print_cursor(self, raw: Sequence[bytes | None]) -> Cursor:
        names = [self.columns[index].name for index in self._cursor]
        if None in raw:
            column = names[list(raw).index(None)]
            hint = "; give them a value, or set options.on_null_cursor: ignore" if self._incremental else ""
            count = self._count_nulls(column)
            raise DataError(f"{count} row(s) of the source have NULL in '{column}'{hint}", code="NULL_CURSOR")
        present = cast(Sequence[bytes], raw)
        return tuple(self._print(self.columns[index], one) for index, one in zip(self._cursor, present, strict=True))

    def _print(self, column: SourceColumn, raw: bytes) -> str:
        if self._as_text:
            return raw.decode()
        printer = binary.printer(column.type_oid)
        text = raw.decode() if column.is_enum else printer(raw) if printer else None
        return text if text is not None else self._ask_print(column, raw)

    def _ask_print(self, column: SourceColumn, raw: bytes) -> str:
        with translated("source"), self._reading() as connection:
            connection.pgconn.send_query_params(b"SELECT $1::text", [raw], [column.type_oid], [Format.BINARY])
            result = protocol.answer(connection)
            protocol.raise_failed(result)
            return (result.get_value(0, 0) or b"").decode()

    def _count_nulls(self, column: str) -> int:
        query = raw_sql(self._bound_query(None))
        statement = sql.SQL("SELECT count(*) AS nulls FROM ({}) AS q WHERE {} IS NULL").format(
            query, sql.Identifier("q", column)
        )
        with translated("source query"), self._reading() as connection:
            row = fetch_extended(connection, statement)
        return row["nulls"] if row else 0

    def _reading(self) -> ReadOnly:
        return ReadOnly(self._idle())

    def _idle(self) -> Connection:
        """A connection to ask: the one there is, or another if rows are streaming through that."""
        busy = self._asking is self._streaming and self._asking.info.transaction_status is not TransactionStatus.IDLE
        if busy or self._asking.closed:
            self._asking = connect(self._url, name=self._name, side="source")
        return self._asking

    # -- how far the checkpoint may go ----------------------------------------------------------------------------

    def _tracker(self, after: Position) -> Tracker:
        column = self.columns[self._cursor[0]]
        monotonic = self._options.cursor_is_monotonic and column.type_oid not in binary.TIMES
        if not self._incremental or self._loading or monotonic:
            return EndTracker(after)
        if column.type_oid in binary.TIMES:
            return self._time_tracker(after, column)
        if column.type_oid not in binary.INTEGERS:
            raise ConfigError(
                f"incremental_key '{column.name}' is of type {column.type_name}, which does not grow with time; use a"
                " time or an integer, or promise it with options.cursor_is_monotonic: true",
                code="CURSOR_TYPE",
            )
        if self._options.lookback is not None:
            raise ConfigError("options.lookback needs a time as incremental_key, not an integer", code="CURSOR_TYPE")
        seen = self._look_at_horizon()
        return PendingTracker(after, seen, self._options.horizon_margin, column.type_oid, self._clock)

    def _time_tracker(self, after: Position, column: SourceColumn) -> TimeTracker:
        bound, margin = self._settled()
        if bound is None:
            return TimeTracker(after, column.type_oid, None, after)
        number, text, behind = self._time_bound(bound, margin, column, after)
        return TimeTracker(after, column.type_oid, number, after if behind else Position((text,)))

    def _settled(self) -> tuple[datetime | None, timedelta]:
        """A time before which nothing commits any more, None where there is none yet, and how far to stay behind it."""
        allowed = self._options.horizon_margin
        if self._options.lookback is not None:
            self._future = self._options.lookback + allowed
            return self._clock(), self._options.lookback
        seen = self._look_at_horizon()
        self._future = seen.lag + allowed + allowed
        return seen.at, allowed

    def _look_at_horizon(self) -> Horizon:
        """The horizon, with a warning where it holds the checkpoint back for longer than the margin does anyway."""
        seen, before = horizon.read(self._idle()), self.horizon
        self.horizon = seen
        if before is None and seen.lag > max(self._options.horizon_margin, PATIENCE):
            log.warning(
                "the checkpoint waits for a transaction that has been open for %d s (%s); rows arrive all the same, but"
                " are read again in every run until it ends",
                seen.lag.total_seconds(),
                seen.blocker,
                extra={"action": "horizon_stalled", "blocker": seen.blocker, **self._log_fields},
            )
        return seen

    def _count_future(self, stream: Stream, chunk: Copied | Printed) -> None:
        # rows come in order, so the last one tells whether the batch has to be looked through at all
        if self._latest is not None and binary.number(stream.type_oid, stream.raw_end[0]) > self._latest:
            metrics.future_rows(str(self._log_fields.get("pipeline")), stream.count_beyond(self._latest, chunk.data))

    def _clock(self) -> datetime:
        """The source's clock."""
        with translated("source"), self._reading() as connection:
            row = connection.execute("SELECT clock_timestamp() AS now").fetchone()
        if row is None:
            raise ConfigError("the source did not tell the time", code="HORIZON_UNAVAILABLE")
        return row["now"]

    def _time_bound(
        self, bound: datetime, margin: timedelta, column: SourceColumn, after: Position
    ) -> tuple[int, str, bool]:
        """The bound as a number and as text of the cursor's type, and whether the checkpoint is already beyond it."""
        zoned = column.type_oid == binary.TIMESTAMPTZ
        moment = sql.SQL("(%(bound)s::timestamptz - %(margin)s::interval)")
        local = moment if zoned else sql.SQL("({} AT TIME ZONE %(zone)s)").format(moment)
        statement = sql.SQL(
            "SELECT bound::text AS text, bound <= {checkpoint} AS behind,"
            "       CASE WHEN %(is_date)s THEN bound::date - '2000-01-01'::date"
            "            ELSE (extract(epoch FROM bound) * 1000000)::bigint - 946684800000000 END AS number"
            "  FROM (SELECT CAST({local} AS {type}) AS bound) AS b"
        ).format(
            checkpoint=sql.SQL("CAST(%(checkpoint)s AS {})").format(raw_sql(column.type_name)),
            local=local,
            type=raw_sql(column.type_name),
        )
        arguments = {
            "bound": bound,
            "margin": margin,
            "zone": self._options.cursor_timezone,
            "checkpoint": after.cursor[0] if after.cursor else "-infinity",
            "is_date": column.type_oid == binary.DATE,
        }
        with translated("source"), self._reading() as connection:
            row = connection.execute(statement, arguments).fetchone()
        if row is None:
            raise ConfigError("the source did not tell the time", code="HORIZON_UNAVAILABLE")
        if column is self.columns[self._cursor[0]]:
            self._latest = row["number"] + _as_number(column.type_oid, self._future)
        return row["number"], row["text"], row["behind"]


def _as_number(type_oid: int, length: timedelta) -> int:
    """A length of time in what `binary.number` counts, rounded up."""
    return -(-length // (timedelta(days=1) if type_oid == binary.DATE else timedelta(microseconds=1)))
