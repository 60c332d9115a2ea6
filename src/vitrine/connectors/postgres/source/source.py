"""The PostgreSQL source: streams one query in order by COPY, from one snapshot at a time."""

import time
from collections.abc import Generator, Iterator, Sequence
from datetime import timedelta

from psycopg import sql

from vitrine import metrics
from vitrine.connectors.postgres import PostgresSettings, PostgresSourceOptions, cursor_codec
from vitrine.connectors.postgres.compare_sql import Relation, digest
from vitrine.connectors.postgres.source.query import OrderedQuery, SourceQuery, unordered
from vitrine.connectors.postgres.source.relations import Relations
from vitrine.connectors.postgres.source.session import SourceConnections
from vitrine.connectors.postgres.source.snapshot import Chunk, Snapshot, TextSnapshot, WideRows
from vitrine.connectors.postgres.source.watermark import Tracker, Watermarks
from vitrine.core.protocols import Throttle
from vitrine.core.rows import Batch, Compare, Digest, Finding, Lane, Position, Read, SourceInfo, Watermark
from vitrine.definition.context import SourceJob
from vitrine.definition.model import Mode
from vitrine.errors import ConfigError, DataError
from vitrine.postgres import raw
from vitrine.settings import format_bytes
from vitrine.sql import checkpoint, functions, policy

# The connection is idle while earlier batches are written, plus this reserve
_IDLE_RESERVE = timedelta(minutes=1)

_SLOW_START = 1.0
"""A query that takes less than these seconds until its first row may be executed again for every snapshot."""


class PostgresSource:
    """A Source over one read-only query."""

    lanes = (Lane.COPY, Lane.TEXT)

    def __init__(self, job: SourceJob[PostgresSourceOptions, PostgresSettings]) -> None:
        definition = job.definition
        if definition.query is None or job.url is None:
            raise ConfigError("source_query is missing: give the query to read", code="PLAN")
        listed = functions.parse_calls(job.settings.allowed_functions)
        checked = policy.read_only(definition.query, job.settings.allowed_source_schemas, listed)
        if checked.uses_checkpoint and definition.mode is Mode.FULL:
            raise ConfigError("$1 is the checkpoint of an incremental pipeline; a full one has none", code="PARAM")
        self._definition = definition
        self._options = job.options
        self._settings = job.settings
        self._show_keys = job.run.show_keys
        self._log_fields = job.run.log_fields
        self._bytes = 0  # read so far
        self._is_run = job.run.pipeline_id is not None
        self._connections = SourceConnections(job.url, job.run.session, job.settings)
        relations = Relations(checked, job.settings, job.options)
        self._query = SourceQuery(checked, relations, self._connections, definition.incremental_key)
        self._watermarks = Watermarks(
            self._query, checked.relations, self._connections, job.options, job.run.log_fields
        )
        self._wide_rows = WideRows(definition, job.settings.max_row_bytes, job.rejects, show_keys=job.run.show_keys)
        self._checked = checked

    def describe(self) -> SourceInfo:
        definition = self._definition
        return SourceInfo(
            columns=self._query.flow_columns(),
            lanes=self.lanes,
            fingerprint=self._query.text,
            rows_expected=self._query.rows_expected(),
            findings=self._findings(),
            filtered=_why_filtered(definition.query or ""),
        )

    def close(self) -> None:
        self._connections.close()

    def cancel(self) -> None:
        self._connections.cancel()

    def digest(self, compare: Compare) -> Sequence[Digest]:
        """Digests of the whole query, independent of the checkpoint."""
        skipped = sql.SQL("")
        if self._definition.mode is Mode.INCREMENTAL and self._definition.options.on_null_cursor == "ignore":
            cursor = [name for name in (self._definition.incremental_key, self._definition.tie_breaker) if name]
            present = [sql.SQL("{} IS NOT NULL").format(sql.Identifier("q", name)) for name in cursor]
            skipped = sql.SQL("WHERE {}").format(sql.SQL(" AND ").join(present))
        rows = sql.SQL("(SELECT {} FROM ({}) AS q {})").format(
            self._query.selected("q"), raw(self._query.bound(None)), skipped
        )
        relation = Relation(rows, own_settings=self._connections.has_own_times)
        with self._query.reading(executes=True) as connection:
            return digest(connection, relation, compare)

    # -- reading --------------------------------------------------------------------------------------------------

    def batches(self, read: Read, throttle: Throttle) -> Iterator[Batch]:
        formatted = read.lane is Lane.TEXT and self._connections.has_own_times
        ordered = OrderedQuery(self._query, read, formatted=formatted)
        self._refuse_hidden_nulls(read, ordered)
        tracker = self._watermarks.tracker(read, ordered)
        latest = self._watermarks.latest(read, ordered)
        cursor, snapshots, yielded, finished = read.after.cursor, 0, False, False
        while not finished:
            snapshots += 1
            snapshot = self._open(ordered, cursor, throttle)
            for batch in (cut := _Cut(self._chunks(snapshot, latest), snapshot, tracker, throttle, self._options)):
                yielded = True
                yield self._batch(batch, snapshot, snapshots)
            finished, cursor = cut.exhausted, snapshot.end
            if snapshot.is_too_large:
                wide = self._wide_rows.reject_next(ordered, cursor)
                cursor, yielded = wide.cursor, True
                position = tracker.after(wide.raw, cursor)
                columns = self._query.flow_columns()
                yield Batch(snapshot.chunk(b"", 0), columns, cursor, position, snapshots, refused=(wide.reject,))
            if finished:
                final = tracker.finished()
                if not yielded or final is not None:
                    last = snapshot.chunk(b"", 0), final or tracker.start
                    yield self._batch(last, snapshot, snapshots)

    def _refuse_hidden_nulls(self, read: Read, ordered: OrderedQuery) -> None:
        """DataError for NULL in a later column of a cursor: such a row need not be the last of its batch."""
        if read.complete or read.skip_null or read.only is not None:
            return
        for column in read.order[1:]:
            # the sink refuses NULL in a key
            if column in self._definition.key_columns or not self._query.may_be_null(column):
                continue
            if count := ordered.count_nulls(column):
                raise self._query.null_cursor(column, count)

    def _open(self, ordered: OrderedQuery, cursor: tuple[str, ...] | None, throttle: Throttle) -> Snapshot:
        kind = Snapshot if ordered.read.lane is Lane.COPY else TextSnapshot
        options = self._definition.options
        return kind(
            ordered,
            self._connections,
            throttle,
            cursor=cursor,
            max_idle=options.batch_timeout + self._options.snapshot_max_age + _IDLE_RESERVE,
            # of the rows with one key, those that are marked as deleted do not count
            may_repeat=options.on_duplicate_key == "last" or options.drops_marked_rows,
            max_row=self._settings.max_row_bytes,
            show_keys=self._show_keys,
        )

    def _batch(self, cut: tuple[Chunk, Position], snapshot: Snapshot, number: int) -> Batch:
        chunk, position = cut
        return Batch(chunk, self._query.flow_columns(), snapshot.end, position, number)

    def _chunks(self, snapshot: Snapshot, latest: int | None) -> Iterator[Chunk]:
        for chunk in snapshot.chunks():
            self._count_bytes(len(chunk.data))
            # rows are sorted, so the last one shows whether the batch has any in the future
            if latest is not None and cursor_codec.number(snapshot.type_oid, snapshot.raw_end[0]) > latest:
                beyond = snapshot.count_beyond(latest, chunk.data)
                metrics.future_rows(str(self._log_fields.get("pipeline")), beyond)
            yield chunk

    def _count_bytes(self, count: int) -> None:
        self._bytes += count
        if self._bytes > self._settings.max_result_bytes:
            raise DataError(
                f"source query: the run has read more than {format_bytes(self._settings.max_result_bytes)}"
                " (VITRINE_MAX_RESULT_BYTES); select fewer rows or columns, or raise that limit",
                code="RESULT_TOO_LARGE",
            )

    # -- how far the checkpoint may advance -----------------------------------------------------------------------

    def watermark(self, column: str) -> Watermark | None:
        return self._watermarks.read(column)

    # -- what validate reports ------------------------------------------------------------------------------------

    def _findings(self) -> tuple[Finding, ...]:
        definition, cursor = self._definition, self._definition.incremental_key
        found = self._query.relations.findings() + self._unordered(*definition.key_columns)
        found += self._wide_rows.findings()
        if definition.mode is Mode.INCREMENTAL:
            found += self._unordered(cursor, definition.tie_breaker)
        if self._is_run:
            return found  # the others are warnings, and a run counts hidden NULLs in its own snapshot
        from vitrine.connectors.postgres.source import findings

        found += findings.of_settings(self._connections)
        if self._query.rows_expected() is not None:
            found += findings.of_cost(self._query.plan(None), self._settings.max_result_bytes)
        if definition.mode is not Mode.INCREMENTAL or cursor is None:
            return found
        if definition.options.on_null_cursor == "fail":
            found += self._query.hidden_null_findings()
        if any(finding.fatal for finding in found):
            return found  # the statement of a run cannot be planned
        skip_null = definition.options.on_null_cursor == "ignore"
        cursors = findings.CursorFindings(self._query, self._checked, self._connections, self._options)
        return found + cursors.of(cursor, definition.tie_breaker, skip_null=skip_null)

    def _unordered(self, *names: str | None) -> tuple[Finding, ...]:
        found = (unordered(column) for column in self._query.columns if column.name in names)
        return tuple(finding for finding in found if finding)


def _why_filtered(query: str) -> str | None:
    place = checkpoint.other_use_of_checkpoint(query) if "$1" in query else None
    if place is None:
        return None
    return (
        f"$1 in {place} of the query has another use than that of a lower"
        " bound; use it only in conditions such as `modified >= $1` of a WHERE, ON or HAVING, without LIMIT"
    )


class _Cut:
    """Chunks of one snapshot with their positions, until the query is exhausted or the snapshot is too old."""

    def __init__(
        self,
        chunks: Iterator[Chunk],
        snapshot: Snapshot,
        tracker: Tracker,
        throttle: Throttle,
        options: PostgresSourceOptions,
    ) -> None:
        self.exhausted = False
        self._chunks = chunks
        self._snapshot = snapshot
        self._tracker = tracker
        self._throttle = throttle
        self._max_age = options.snapshot_max_age.total_seconds()

    def __iter__(self) -> Generator[tuple[Chunk, Position]]:
        started = time.monotonic()
        best_before: float | None = None
        for chunk in self._chunks:
            if best_before is None:
                # a query that takes longer than that until its first row keeps its snapshot, or it would be repeated
                is_slow = time.monotonic() - started > max(self._max_age, _SLOW_START)
                # guarantee: J27
                best_before = float("inf") if is_slow else started + self._max_age
            cut = chunk, self._tracker.after(self._snapshot.raw_end, self._snapshot.end)
            # closed before a throttle wait that would exceed its maximum age: a waiting run must not block vacuum
            ends = time.monotonic() + self._throttle.seconds_after(chunk.count) > best_before
            if ends:
                self._snapshot.close()
            yield cut
            if ends or time.monotonic() > best_before:
                self._snapshot.close()
                return
        self.exhausted = not self._snapshot.is_too_large
