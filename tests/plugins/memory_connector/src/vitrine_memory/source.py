"""The source: rows of a JSON file, in order."""

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from vitrine.core.copytext import rows_of, values
from vitrine.core.keys import is_within, rank
from vitrine.core.protocols import Throttle
from vitrine.core.rows import (
    Batch,
    Column,
    Compare,
    Cursor,
    Digest,
    KeyRange,
    Lane,
    Position,
    Read,
    SourceInfo,
    TextRows,
    Watermark,
)
from vitrine.definition.connectors import NoOptions
from vitrine.definition.context import SourceJob
from vitrine.errors import ConfigError, DataError, TransientError
from vitrine_memory import MemorySettings

Texts = dict[str, str | None]
Place = tuple[tuple[bool, Any], ...]


@dataclass(frozen=True)
class Content:
    """A file as it is now: columns, rows in canonical text, and how far they are settled."""

    columns: tuple[Column, ...]
    rows: list[Texts]
    settled: str | None  # rows below it can no longer appear; None: nothing is held back


class MemorySource:
    """A Source over `<name>.json`, which the definition names as its source_query."""

    lanes = (Lane.ROWS,)

    def __init__(self, job: SourceJob[NoOptions, MemorySettings]) -> None:
        if job.settings.path is None:
            raise ConfigError("VITRINE_MEMORY_PATH is not set; give the folder of the documents", code="SETTINGS")
        if not job.definition.query:
            raise ConfigError("source_query is missing: give the name of a file", code="PLAN")
        self._file = job.settings.path / f"{job.definition.query}.json"
        self._lease = job.lease
        self._cancelled = threading.Event()
        self._columns: tuple[Column, ...] | None = None  # as described to the plan

    def describe(self) -> SourceInfo:
        content = _content(self._file)
        self._columns = content.columns
        return SourceInfo(content.columns, self.lanes, self._file.name, len(content.rows))

    def watermark(self, column: str) -> Watermark | None:
        settled = _content(self._file).settled
        return None if settled is None else Watermark(settled, datetime.now(UTC), timedelta(0))

    def batches(self, read: Read, throttle: Throttle) -> Iterator[Batch]:
        self._cancelled.clear()
        content = _content(self._file)
        if content.columns != (self._columns or content.columns):
            raise TransientError(
                f"the columns of {self._file.name} have changed; the next attempt plans the run again",
                code="SCHEMA_CHANGED",
            )
        waiting = _selected(content, read)
        end, yielded = read.after.cursor, False
        while (waiting or not yielded) and not self._cancelled.is_set():
            chunk, waiting = waiting[: throttle.rows], waiting[throttle.rows :]
            end = _cursor(chunk[-1], read) if chunk else end
            yielded = True
            yield _batch(content, chunk, read, end)

    def digest(self, compare: Compare) -> Sequence[Digest] | None:
        return None

    def cancel(self) -> None:
        self._cancelled.set()

    def close(self) -> None:
        """Nothing is kept open."""


def _content(file: Path) -> Content:
    if not file.parent.is_dir():
        raise TransientError(f"source {file.name}: the folder of the documents is missing")
    try:
        given: Any = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no file {file.name} in the folder of the documents", code="NO_FILE") from None
    columns = tuple(Column(name, type_name) for name, type_name in given["columns"])
    return Content(columns, given["rows"], given.get("settled"))


def _selected(content: Content, read: Read) -> list[Texts]:
    """The rows to read, in order."""
    types = {column.name: column for column in content.columns}
    if missing := [name for name in read.order if name not in types]:
        raise ConfigError(f"the file has no column '{missing[0]}'", code="SCHEMA_CHANGED")
    columns = [types[name] for name in read.order]
    placed = [(_place([row[name] for name in read.order], columns), row) for row in content.rows]
    if read.skip_null:
        placed = [(place, row) for place, row in placed if not place[0][0]]
    elif nulls := sum(any(is_null for is_null, _ in place) for place, _ in placed):
        raise DataError(f"{nulls} row(s) have NULL in {', '.join(read.order)}", code="NULL_CURSOR")
    if read.after.cursor is not None:
        after = _place(read.after.cursor, columns[: len(read.after.cursor)])
        # a cursor of one element is inclusive, a whole one exclusive
        whole = len(after) == len(columns)
        placed = [
            (place, row)
            for place, row in placed
            if place[: len(after)] > after or (not whole and place[: len(after)] == after)
        ]
    if read.until is not None:
        end = _place([read.until], columns[:1])
        placed = [(place, row) for place, row in placed if place[:1] < end]
    placed.sort(key=lambda pair: pair[0])
    rows = [row for _, row in placed if _is_wanted(row, read, columns)]
    return rows[: read.limit]


def _is_wanted(row: Texts, read: Read, columns: Sequence[Column]) -> bool:
    if read.only is None:
        return True
    key = _cursor(row, read)
    return is_within(key, read.only, columns) if isinstance(read.only, KeyRange) else key in read.only


def _place(texts: Sequence[str | None], columns: Sequence[Column]) -> Place:
    """What a row is ordered by; NULL comes last."""
    pairs = zip(texts, columns, strict=True)
    return tuple((True, b"") if text is None else (False, rank((text,), (column,))[0]) for text, column in pairs)


def _cursor(row: Texts, read: Read) -> Cursor:
    return tuple(row[name] or "" for name in read.order)


def _batch(content: Content, rows: Sequence[Texts], read: Read, end: Cursor | None) -> Batch:
    names = [column.name for column in content.columns]
    fields = (["\\N" if (text := row[name]) is None else values.escape(text) for name in names] for row in rows)
    data = "".join("\t".join(line) + "\n" for line in fields).encode()
    batch = Batch(TextRows(data, len(rows)), content.columns, end, _position(content, read, end))
    return Batch(rows_of(batch), batch.columns, batch.end, batch.position)


def _position(content: Content, read: Read, end: Cursor | None) -> Position:
    """The end of what was read, held back by the watermark."""
    if end is None or end == read.after.cursor or (read.watermark and read.watermark.bound is None):
        return read.start
    if read.watermark is None or read.watermark.bound is None:
        return Position(end)
    first = [column for column in content.columns if column.name == read.order[0]]
    bound, start = (read.watermark.bound,), read.start.cursor
    if rank(end[:1], first) < rank(bound, first):
        return Position(end)
    return read.start if start and rank(start[:1], first) >= rank(bound, first) else Position(bound)
