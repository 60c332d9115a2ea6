"""Rows of a registered Python function in batches; the position is the last row read."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

from vitrine.core.copytext import values
from vitrine.core.keys import is_within
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
    PythonRows,
    Read,
    Row,
    SourceInfo,
    Watermark,
)
from vitrine.definition import registry
from vitrine.definition.connectors import NoOptions
from vitrine.definition.context import SourceJob
from vitrine.errors import ConfigError, DataError, TransientError, VitrineError


class PythonReaderSource:
    """A Source over a function that yields rows in the order of its cursor.

    The function may begin after the cursor it is given, or ignore it: rows that are not after the cursor are skipped.
    """

    lanes = (Lane.ROWS,)

    def __init__(self, job: SourceJob[NoOptions, NoOptions]) -> None:
        step = job.definition.reader
        if step is None:
            raise ConfigError("no reader is named: the first step must name a registered reader", code="PLAN")
        self._task = registry.readers.get((step.body or "").strip()).validate(step.options)
        self._columns = tuple(Column(name, type_name) for name, type_name in self._task.task.columns)
        self._types = {column.name: column.type for column in self._columns}
        self._order: tuple[str, ...] = ()
        self._cancelled = False

    def describe(self) -> SourceInfo:
        return SourceInfo(self._columns, lanes=self.lanes, fingerprint=self._task.fingerprint(), user_code=True)

    def watermark(self, column: str) -> Watermark | None:
        """None: nothing holds the position back."""
        return None

    def digest(self, compare: Compare) -> Sequence[Digest] | None:
        return None

    def close(self) -> None: ...

    def cancel(self) -> None:
        """Takes effect between two rows: the function itself cannot be interrupted."""
        self._cancelled = True

    def batches(self, read: Read, throttle: Throttle) -> Iterator[Batch]:
        self._cancelled, self._order = False, read.order
        chunk: list[Row] = []
        end, yielded = read.after.cursor, False
        for row in self._select_rows(read):
            chunk.append(row)
            if len(chunk) >= throttle.rows:
                end, yielded = self._cursor_of(row), True
                yield Batch(PythonRows(chunk), self._columns, end, Position(end))
                chunk = []
        if chunk or not yielded:
            end = self._cursor_of(chunk[-1]) if chunk else end
            yield Batch(PythonRows(chunk), self._columns, end, Position(end))

    def _select_rows(self, read: Read) -> Iterator[Row]:
        count = 0
        keys = None if read.only is None or isinstance(read.only, KeyRange) else _Wanted(read.only, self._key_values)
        end = None if read.until is None else self._values((read.until,))
        # rows that are selected by their key need not come in the order of the key
        is_ordered = read.only is None or read.after.cursor is not None
        for row in self._rows(read.after.cursor, skip_null=read.skip_null, is_ordered=is_ordered):
            if end is not None and self._is_after((row[read.order[0]],), end, inclusive=True):
                return
            if read.limit is not None and count >= read.limit:
                return
            key = self._cursor_of(row)
            if keys is not None and key not in keys:
                continue
            if isinstance(read.only, KeyRange) and not self._is_within(key, read.only):
                continue
            count += 1
            yield row

    def _rows(self, cursor: Cursor | None, *, skip_null: bool, is_ordered: bool) -> Iterator[Row]:
        """The function's rows after the cursor; DataError for a row out of order or with wrong columns."""
        last = self._values(cursor) if cursor else None
        started = False
        # a function is promised the cursor of a row, not the beginning of a range
        for row in self._call_reader(cursor if cursor is None or len(cursor) == len(self._order) else None):
            here = self._check_row(row)
            if skip_null and here[0] is None:
                continue
            if any(value is None for value in here):
                raise self._refusal(f"yielded a row with NULL in {', '.join(self._order)}")
            # a cursor of one element is inclusive
            if is_ordered and last is not None and not self._is_after(here, last, inclusive=len(last) < len(here)):
                if started:
                    raise self._refusal(f"does not yield its rows in the order of {', '.join(self._order)}", here)
                continue
            last, started = here, True
            yield row
            if self._cancelled:
                return

    def _call_reader(self, cursor: Cursor | None) -> Iterator[Row]:
        last: Row | None = None  # the last row that passed the checks
        try:
            result: Iterable[Row] = self._task(cursor)
            for row in result:
                yield row
                last = row
        except (VitrineError, GeneratorExit):
            raise
        except OSError as exc:
            raise TransientError(f"reader '{self._task.name}' raised {self._named(exc)}") from exc
        except Exception as exc:
            # the exception's own text may quote row values
            where = f" after key {'/'.join(self._cursor_of(last))}" if last is not None else ""
            raise self._refusal(f"raised {self._named(exc)}{where}") from exc

    def _named(self, exc: Exception) -> str:
        place = self._task.task.place_of(exc)
        return f"{type(exc).__name__} in {place}" if place else type(exc).__name__

    def _check_row(self, row: Any) -> tuple[Any, ...]:
        """The cursor of a row; DataError unless the row has exactly the declared columns."""
        if not isinstance(row, dict):
            raise self._refusal(f"yielded a {type(row).__name__}, not a row")
        given = cast(Row, row)
        if odd := given.keys() ^ self._types.keys():
            raise self._refusal(f"yielded a row whose columns are not the declared ones: {', '.join(sorted(odd))}")
        return tuple(given[name] for name in self._order)

    def _is_after(self, here: tuple[Any, ...], last: tuple[Any, ...], *, inclusive: bool) -> bool:
        try:
            return here[: len(last)] >= last if inclusive else here > last
        except TypeError as exc:
            raise self._refusal("yields values that cannot be compared with those before", here) from exc

    def _values(self, cursor: Cursor) -> tuple[Any, ...]:
        types = (self._types[name] for name in self._order)
        return tuple(
            values.decoder(type_name)(values.escape(text)) for text, type_name in zip(cursor, types, strict=False)
        )

    def _key_values(self, key: Cursor) -> tuple[Any, ...] | None:
        """None: the texts are no values of their types, or such values have no equality."""
        try:
            found = self._values(key)
            hash(found)
        except (ValueError, ArithmeticError, TypeError, RecursionError, values.UnreadableValue):
            return None
        return found

    def _cursor_of(self, row: Row) -> Cursor:
        return tuple(values.to_text(row[name]) for name in self._order)

    def _is_within(self, key: Cursor, keys: KeyRange) -> bool:
        return is_within(key, keys, [Column(name, self._types[name]) for name in self._order])

    def _refusal(self, text: str, here: tuple[Any, ...] | None = None) -> DataError:
        where = f", see key {'/'.join(map(values.to_text, here))}" if here else ""
        return DataError(f"reader '{self._task.name}' {text}{where}", code="READER_ERROR")


class _Wanted:
    """Keys that are selected: equal values may have several texts, as 1.5 and 1.50."""

    def __init__(self, keys: Iterable[Cursor], value_of: Callable[[Cursor], tuple[Any, ...] | None]) -> None:
        self._texts = frozenset(keys)
        self._value_of = value_of
        self._values = frozenset(map(value_of, self._texts)) - {None}

    def __contains__(self, key: Cursor) -> bool:
        return key in self._texts or self._value_of(key) in self._values
