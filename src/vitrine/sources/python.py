"""Rows out of a registered Python function, cut into batches; the position is the end of what was read."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from vitrine.errors import ConfigError, DataError, TransientError, VitrineError
from vitrine.flow import Batch, Column, Decoded, Position
from vitrine.model import Cursor, Row
from vitrine.pace import Pace
from vitrine.printed import values
from vitrine.registry import BoundTask


class PythonReader:
    """A SourceReader over a function that yields rows in the order of its cursor.

    The function may begin after the cursor it is given, or ignore it: what is not after the cursor is skipped.
    """

    def __init__(self, task: BoundTask, cursor_columns: Sequence[str]) -> None:
        self._task = task
        self.columns = tuple(Column(name, type_name) for name, type_name in task.task.columns)
        types = {column.name: column.type_name for column in self.columns}
        if missing := [name for name in cursor_columns if name not in types]:
            raise ConfigError(
                f"reader '{task.name}' has no column '{missing[0]}', which the pipeline names as key or cursor; it has:"
                f" {', '.join(types)}",
                code="SCHEMA_CHANGED",
            )
        self._names = frozenset(types)
        self._cursor = tuple(cursor_columns)
        self._cursor_types = tuple(types[name] for name in cursor_columns)
        self._given_up = False
        self.horizon: None = None  # nothing holds the position back: it is the end of what was read

    def close(self) -> None: ...

    def cancel(self) -> None:
        """Between two rows; the function itself cannot be interrupted."""
        self._given_up = True

    def rows_expected(self) -> int | None:
        return None

    snapshots = 1

    def begin_load(self) -> None:
        """A position is where reading has come to anyway."""

    def lower(self, cursor: Cursor, bound: str) -> Cursor:
        return cursor

    def time_bound(self, name: str) -> str | None:
        """Nobody can tell what a function has yet to yield."""
        return None

    def horizon_blocker(self) -> str | None:
        """Nothing holds the position back: it is the end of what was read."""
        return None

    def cursor_types(self) -> str:
        """Names and types of the cursor, which a checkpoint is only valid for."""
        return ", ".join(map(" ".join, zip(self._cursor, self._cursor_types, strict=True)))

    def batches(self, after: Position, pace: Pace) -> Iterator[Batch]:
        self._given_up = False
        chunk: list[Row] = []
        end, told = after, False
        for row in self._rows(after.cursor):
            chunk.append(row)
            if len(chunk) >= pace.limits.rows_at_once:
                end, told = self._position(row), True
                yield Batch(Decoded(chunk), self.columns, end)
                chunk = []
        if chunk or not told:
            yield Batch(Decoded(chunk), self.columns, self._position(chunk[-1]) if chunk else end)

    def _rows(self, cursor: Cursor | None) -> Iterator[Row]:
        """The function's rows after the cursor; DataError for those out of order or shape."""
        last = self._values(cursor) if cursor else None
        begun = False
        for row in self._called(cursor):
            here = self._checked(row)
            if last is not None and not self._is_after(here, last):
                if begun:
                    raise self._refusal(f"does not yield its rows in the order of {', '.join(self._cursor)}", here)
                continue
            last, begun = here, True
            yield row
            if self._given_up:
                return

    def _called(self, cursor: Cursor | None) -> Iterator[Row]:
        last: Row | None = None  # that passed the checks
        try:
            result: Iterable[Row] = self._task(cursor)
            for row in result:
                yield row
                last = row
        except (VitrineError, GeneratorExit):
            raise
        except OSError as exc:
            raise TransientError(f"reader '{self._task.name}' raised {type(exc).__name__}") from exc
        except Exception as exc:
            # the exception's own text may quote row values
            where = f" after key {self._print(last)}" if last is not None else ""
            raise self._refusal(f"raised {type(exc).__name__}{where}") from exc

    def _checked(self, row: Any) -> tuple[Any, ...]:
        """The cursor's values of a row that has all columns, and no other."""
        if not isinstance(row, dict):
            raise self._refusal(f"yielded a {type(row).__name__}, not a row")
        given = cast(Row, row)
        if odd := given.keys() ^ self._names:
            raise self._refusal(f"yielded a row whose columns are not the declared ones: {', '.join(sorted(odd))}")
        here = tuple(given[name] for name in self._cursor)
        if any(value is None for value in here):
            raise self._refusal(f"yielded a row with NULL in {', '.join(self._cursor)}")
        return here

    def _is_after(self, here: tuple[Any, ...], last: tuple[Any, ...]) -> bool:
        try:
            return here > last
        except TypeError as exc:
            raise self._refusal("yields values that cannot be compared with those before", here) from exc

    def _values(self, cursor: Cursor) -> tuple[Any, ...]:
        return tuple(
            values.decoder(type_name)(values.escape(text))
            for text, type_name in zip(cursor, self._cursor_types, strict=False)
        )

    def _position(self, row: Row) -> Position:
        return Position(tuple(values.plain_text(row[name]) for name in self._cursor))

    def _print(self, row: Row) -> str:
        return "/".join(values.plain_text(row[name]) for name in self._cursor)

    def _refusal(self, text: str, here: tuple[Any, ...] | None = None) -> DataError:
        where = f", see key {'/'.join(map(values.plain_text, here))}" if here else ""
        return DataError(f"reader '{self._task.name}' {text}{where}", code="READER_ERROR")
