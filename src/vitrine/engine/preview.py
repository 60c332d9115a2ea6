"""The first rows of a definition, as its target would receive them; nothing is written."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from vitrine.copytext import text_of, values
from vitrine.engine import plan
from vitrine.engine.plan import CheckedDefinition, Prepared
from vitrine.flow.rows import Batch, Column, Lane, Read, bare_type
from vitrine.flow.throttle import Limits, Throttle

MAX_BYTES = 1024 * 1024
"""Size of the rows of a preview, in bytes of their text; a row that would exceed it ends the preview."""

ROWS_FOR_TRANSFORMS = 1000
"""Rows that are read at most where transforms may drop most of them."""

Value = bool | int | str | None

_DECODERS: dict[str, Callable[[str], Value]] = {
    "boolean": lambda text: text == "t",
    "smallint": int,
    "integer": int,
}
"""Types that every JSON reader represents exactly; the values of all others are their text."""


@dataclass(frozen=True)
class Preview:
    """Rows with their columns, and what ended them."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    rows_read: int
    cut: Literal["rows", "size"] | None  # None: there are no more rows


def preview(checked: CheckedDefinition, limit: int) -> Preview:
    """At most `limit` rows after the transforms; reasons against a write do not matter."""
    built = plan.prepare(checked, writes=False)
    try:
        return _first_rows(built, limit)
    finally:
        built.close()


def _first_rows(built: Prepared, limit: int) -> Preview:
    columns: tuple[Column, ...] = () if built.plan.transforms else built.source.columns
    rows: list[tuple[Value, ...]] = []
    size = rows_read = 0
    # one more row than shown, to know whether there are more
    wanted = limit + 1
    for batch, transformed in _batches(built, wanted):
        columns = transformed.columns or columns
        for line in islice(_lines(transformed), wanted - len(rows)):
            size += len(line)
            if len(rows) < limit and size > MAX_BYTES:
                return Preview(columns, tuple(rows), rows_read + batch.count, "size")
            rows.append(_values(line, columns))
        rows_read += batch.count
        if len(rows) >= wanted:
            break
    return Preview(
        columns,
        tuple(rows[:limit]),
        min(rows_read, limit) if not built.plan.transforms else rows_read,
        _cut(rows, limit, rows_read),
    )


def _cut(rows: list[tuple[Value, ...]], limit: int, rows_read: int) -> Literal["rows"] | None:
    return "rows" if len(rows) > limit or rows_read >= ROWS_FOR_TRANSFORMS else None


def _batches(built: Prepared, wanted: int) -> Iterator[tuple[Batch, Batch]]:
    """Batches as they were read, and after the transforms."""
    made = built.plan
    # binary rows have no text
    lane = (
        next(one for one in (Lane.TEXT, *built.source.lanes) if one in built.source.lanes)
        if made.lane is Lane.COPY
        else made.lane
    )
    most = max(wanted, ROWS_FOR_TRANSFORMS) if made.transforms else wanted
    read = Read(lane, made.order, limit=most, skip_null=made.skip_null and made.incremental, complete=True)
    throttle = Throttle(Limits(batch_rows=wanted, batch_bytes=MAX_BYTES))
    for batch in made.source.batches(read, throttle):
        transformed = batch
        for transform in made.transforms:
            transformed = transform(transformed)
        yield batch, transformed


def _lines(batch: Batch) -> Iterator[str]:
    if batch.count:
        yield from bytes(text_of(batch)).decode().split("\n")[:-1]


def _values(line: str, columns: tuple[Column, ...]) -> tuple[Value, ...]:
    fields = line.split("\t")
    return tuple(_value(field, column) for field, column in zip(fields, columns, strict=True))


def _value(field: str, column: Column) -> Value:
    if field == values.NULL:
        return None
    text = values.unescape(field)
    decode = _DECODERS.get(bare_type(column.type)) if not column.inferred else None
    return text if decode is None else decode(text)
