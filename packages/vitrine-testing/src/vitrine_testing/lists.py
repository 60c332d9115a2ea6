"""A source over a list of rows: the suite's own, so that a sink is tested with any lane, watermark and snapshot."""

import operator
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

from vitrine.core.copytext import frame_of, rows_of, values
from vitrine.core.keys import rank
from vitrine.core.protocols import Throttle
from vitrine.core.rows import (
    Batch,
    BinaryRows,
    Column,
    Compare,
    Cursor,
    Digest,
    KeyRange,
    Lane,
    Payload,
    Position,
    Read,
    SourceInfo,
    TextRows,
    Watermark,
)
from vitrine.definition import connectors
from vitrine.definition.connectors import Connector, NoOptions, SourceSpec
from vitrine.definition.context import SourceJob
from vitrine.errors import ConfigError
from vitrine.postgres import Connection, connect
from vitrine_testing.binary import to_binary
from vitrine_testing.cases import Texts

CONNECTOR = "list"

Place = tuple[tuple[bool, Any], ...]
"""What a row is ordered by: NULL comes last."""


@dataclass
class ListTable:
    """The rows that list sources read. A test changes them between runs, and while a run waits at a point."""

    columns: tuple[Column, ...]
    rows: list[Texts] = field(default_factory=list[Texts])
    bound: str | None = None  # of the watermark; None: nothing is held back
    lanes: tuple[Lane, ...] = (Lane.TEXT, Lane.ROWS)
    version: int = 1  # another one is another query
    snapshot_rows: int | None = None  # a new snapshot after this many rows; None: one snapshot per read
    reads: list[Read] = field(default_factory=list[Read])  # what sources were asked for

    def put(self, **row: str | None) -> None:
        """Insert the row, or replace the one with the same first column."""
        key = self.columns[0].name
        self.remove(row[key])
        self.rows.append({column.name: row.get(column.name) for column in self.columns})

    def remove(self, key: str | None) -> None:
        self.rows = [row for row in self.rows if row[self.columns[0].name] != key]

    def by_key(self, key: Sequence[str] = ("id",)) -> dict[tuple[str, ...], Texts]:
        """As `SinkCase.rows` returns the target's rows."""
        return {tuple(row[name] or "" for name in key): dict(row) for row in self.rows}


_tables: dict[str, ListTable] = {}
"""By the source_query that names them."""


@contextmanager
def list_connector() -> Generator[dict[str, ListTable]]:
    """Inside, the connector `list` is installed; a definition names one of these tables as its source_query."""
    found = {**connectors.installed(), CONNECTOR: connector}
    with patch.object(connectors, "installed", lambda: found):
        try:
            yield _tables
        finally:
            _tables.clear()


class ListSource:
    """A Source over one ListTable."""

    def __init__(self, table: ListTable, name: str = CONNECTOR, store_url: str = "") -> None:
        self._table = table
        self._name = name
        self._store_url = store_url  # of the PostgreSQL that converts rows to the lane `copy`
        self._cancelled = threading.Event()
        self._connection: Connection | None = None

    def describe(self) -> SourceInfo:
        table = self._table
        return SourceInfo(table.columns, table.lanes, f"{self._name} {table.version}", len(table.rows))

    def watermark(self, column: str) -> Watermark | None:
        if self._table.bound is None:
            return None
        return Watermark(self._table.bound, datetime.now(UTC), timedelta(0))

    def digest(self, compare: Compare) -> Sequence[Digest] | None:
        return None

    def cancel(self) -> None:
        self._cancelled.set()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def batches(self, read: Read, throttle: Throttle) -> Iterator[Batch]:
        self._cancelled.clear()
        self._table.reads.append(read)
        end, snapshot, count, yielded = read.after.cursor, 1, 0, False
        waiting = self._rows_after(read, end)
        while waiting and not self._cancelled.is_set():
            chunk, waiting = waiting[: throttle.rows], waiting[throttle.rows :]
            end, count, yielded = self._cursor(chunk[-1], read), count + len(chunk), True
            yield self._batch(chunk, read, end, snapshot)
            if self._table.snapshot_rows is not None and waiting and count >= self._table.snapshot_rows:
                waiting, snapshot, count = self._rows_after(read, end), snapshot + 1, 0
        if not yielded:
            yield self._batch([], read, end, snapshot)

    def _rows_after(self, read: Read, cursor: Cursor | None) -> list[Texts]:
        columns = [self._column(name) for name in read.order]
        rows = [dict(row) for row in self._table.rows]
        if read.skip_null:
            rows = [row for row in rows if row[read.order[0]] is not None]
        if cursor is not None:
            # a cursor of one element is inclusive, a whole one exclusive
            width, after = len(cursor), _place(cursor, columns[: len(cursor)])
            is_after = operator.gt if width == len(columns) else operator.ge
            rows = [row for row in rows if is_after(self._place(row, read)[:width], after)]
        if read.until is not None:
            end = _place((read.until,), columns[:1])
            rows = [row for row in rows if row[read.order[0]] is not None and self._place(row, read)[:1] < end]
        rows.sort(key=lambda row: self._place(row, read))
        selected = [row for row in rows if self._is_selected(row, read)]
        return selected[: read.limit]

    def _is_selected(self, row: Texts, read: Read) -> bool:
        if read.only is None:
            return True
        key = tuple(row[name] or "" for name in read.order)
        if not isinstance(read.only, KeyRange):
            return key in read.only
        columns = [self._column(name) for name in read.order]
        low, high = read.only.low, read.only.high
        place = rank(key, columns)
        return (low is None or place >= rank(low, columns)) and (high is None or place < rank(high, columns))

    def _batch(self, rows: list[Texts], read: Read, end: Cursor | None, snapshot: int) -> Batch:
        batch = Batch(self._text(rows), self._table.columns, end, self._position(read, end), snapshot)
        return replace(batch, payload=self._payload(batch, read.lane))

    def _position(self, read: Read, end: Cursor | None) -> Position:
        """`end`, held back by the bound of the watermark."""
        if end is None or end == read.after.cursor:
            return read.start
        if read.watermark is None:
            return Position(end)
        if read.watermark.bound is None:
            return read.start
        first = [self._column(read.order[0])]
        bound = _place((read.watermark.bound,), first)
        if _place(end[:1], first) < bound:
            return Position(end)
        start = read.start.cursor
        return read.start if start and _place(start[:1], first) >= bound else Position((read.watermark.bound,))

    def _text(self, rows: list[Texts]) -> TextRows:
        names = [column.name for column in self._table.columns]
        fields = ([_field(row[name]) for name in names] for row in rows)
        return TextRows("".join("\t".join(one) + "\n" for one in fields).encode(), len(rows))

    def _payload(self, batch: Batch, lane: Lane) -> Payload:
        match lane:
            case Lane.ROWS:
                return rows_of(batch)
            case Lane.FRAMES:
                return frame_of(batch)
            case Lane.COPY:
                return self._binary(batch)
            case Lane.TEXT:
                return batch.payload

    def _binary(self, batch: Batch) -> BinaryRows:
        if self._connection is None:
            self._connection = connect(self._store_url, name="vitrine:testing")
        return to_binary(self._connection, batch)

    def _column(self, name: str) -> Column:
        return next(column for column in self._table.columns if column.name == name)

    def _place(self, row: Texts, read: Read) -> Place:
        return _place([row[name] for name in read.order], [self._column(name) for name in read.order])

    def _cursor(self, row: Texts, read: Read) -> Cursor:
        return tuple(row[name] or "" for name in read.order)


def _place(texts: Sequence[str | None], columns: Sequence[Column]) -> Place:
    pairs = zip(texts, columns, strict=True)
    return tuple((True, b"") if text is None else (False, rank((text,), (column,))[0]) for text, column in pairs)


def _field(text: str | None) -> str:
    return values.NULL if text is None else values.escape(text)


def list_source(job: SourceJob[NoOptions, NoOptions]) -> ListSource:
    """The source of a definition."""
    name = job.definition.query or ""
    if name not in _tables:
        raise ConfigError(f"there is no list '{name}'", code="PLAN")
    return ListSource(_tables[name], name, job.url or "")


connector = Connector(CONNECTOR, source=SourceSpec("vitrine_testing.lists:list_source"))
