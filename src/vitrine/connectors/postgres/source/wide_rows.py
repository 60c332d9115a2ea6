"""A row that is larger than a row may be: its key, its size and its largest column, found without receiving it."""

from collections.abc import Sequence
from typing import NamedTuple

from psycopg import sql

from vitrine.connectors.postgres import formats
from vitrine.connectors.postgres.source import cursor_codec as codec
from vitrine.connectors.postgres.source.ordered import OrderedQuery
from vitrine.connectors.postgres.source.query import SourceColumn
from vitrine.errors import DataError, TransientError, VitrineError
from vitrine.flow import keys
from vitrine.flow.jobs import RejectPolicy
from vitrine.flow.rows import Finding, Lane, Reject
from vitrine.ids import Cursor
from vitrine.model import Definition, Mode
from vitrine.postgres import fetch_extended
from vitrine.settings import format_bytes

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
        is_number = ordered.type_oid in codec.INTEGERS | codec.TIMES
        raw = [codec.encoded(ordered.type_oid, found.cursor[0])] if is_number else [found.cursor[0].encode()]
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
            formats.computed(first),
            sql.SQL(", ").join(_text_or_null(column.name) for column in ordered.columns),
            sql.SQL(", ").join(map(_text, names)),
            sql.SQL(", ").join(map(_width, query.columns)),
            _SIZES[ordered.read.lane is Lane.COPY](query.columns),
            formats.APPLIED,
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
