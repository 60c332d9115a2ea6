"""The steps of a run between source and sink: registered transforms, and rows that are marked as deleted."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import UUID

from vitrine.core.copytext import frame_of, frames, rows_of, text_of, values
from vitrine.core.protocols import Transformer
from vitrine.core.rows import (
    Batch,
    Column,
    FrameRows,
    Key,
    Lane,
    Payload,
    PythonRows,
    Row,
    TextRows,
    is_mark,
    is_marked,
)
from vitrine.definition.registry import BoundTask, FieldError, Kind
from vitrine.errors import ConfigError, DataError, is_failure

if TYPE_CHECKING:
    from vitrine.core.copytext.rows import Origins

Texts = tuple[str | None, ...]


def drop_marked(column: str, key: Sequence[str]) -> Transformer:
    """A step after all others; the rows stay in the form that the last of these returned."""

    def drop(batch: Batch) -> Batch:
        if not batch.columns:
            return batch  # a transform has returned no row yet
        columns = {one.name: one for one in batch.columns}
        if column not in columns:
            raise ConfigError(
                f"options.delete_column '{column}' is not a column of the rows; they have: {', '.join(columns)}",
                code="DELETE_COLUMN",
            )
        marks = list(_marks(batch, columns[column]))
        if not any(marks):
            return batch
        deleted = _deleted(marks, _texts(batch, [columns[name] for name in key]))
        return replace(batch, payload=_without(batch.payload, marks, key), deleted=deleted)

    return drop


class KeysOfRows(NamedTuple):
    """The keys of the rows that remain in a batch."""

    key: tuple[str, ...]

    def of_unmarked(self, batch: Batch) -> Iterator[Key]:
        columns = {one.name: one for one in batch.columns}
        if not columns:
            return  # a transform has returned no row
        for texts in _texts(batch, [columns[name] for name in self.key]):
            if None not in texts:
                yield cast(Key, texts)


def _deleted(marks: Sequence[bool], keys: Iterator[Texts]) -> tuple[Key, ...]:
    """The keys of marked rows, without those that a later row of the batch has without a mark.

    Such a row is a newer version: in a batch of its own it would be written after the deletion.
    """
    deleted: dict[Texts, None] = {}
    for marked, key in zip(marks, keys, strict=True):
        if not marked:
            deleted.pop(key, None)
        elif None not in key:  # no row of a target has such a key
            deleted[key] = None
    return tuple(cast(Key, key) for key in deleted)


def _marks(batch: Batch, column: Column) -> Iterator[bool]:
    """For each row, whether it is marked; a value that a transform has changed counts as what it is now."""
    match batch.payload:
        case PythonRows(rows=rows):
            return (is_mark(row[column.name]) for row in rows)
        case FrameRows(frame=frame) if not _is_text(frame, column.name):
            return map(is_mark, frame[column.name].to_list())
        case _:
            return (is_marked(text, column) for (text,) in _texts(batch, [column]))


def _is_text(frame: Any, name: str) -> bool:
    """A frame has numbers with a scale as text."""
    return str(frame.schema[name]) == "String"


def _texts(batch: Batch, columns: Sequence[Column]) -> Iterator[Texts]:
    """The texts of these columns, row by row."""
    wanted = batch if isinstance(batch.payload, TextRows) else replace(batch, columns=tuple(columns))
    places = [wanted.columns.index(column) for column in columns]
    for line in bytes(text_of(wanted)).split(b"\n")[:-1]:
        fields = line.split(b"\t")
        yield tuple(_text(fields[place]) for place in places)


def _text(field: bytes) -> str | None:
    text = field.decode()
    return None if text == values.NULL else values.unescape(text)


def _without(payload: Payload, marks: Sequence[bool], key: Sequence[str]) -> Payload:
    """The rows that are not marked."""
    kept = [not marked for marked in marks]
    match payload:
        case PythonRows(rows=rows, origins=origins):
            remaining = list(compress(rows, kept))
            known = cast("Origins | None", origins)
            return PythonRows(remaining, known and known.of(remaining, key) if remaining else None)
        case FrameRows(frame=frame):
            return FrameRows(frame.filter(kept))
        case _:
            lines = list(compress(bytes(cast(TextRows, payload).data).split(b"\n"), kept))
            return TextRows(b"".join(line + b"\n" for line in lines), len(lines))


# Types of columns that a transform adds, used when the target is created
_TYPE_NAMES: dict[type, str] = {
    bool: "boolean",
    int: "bigint",
    float: "double precision",
    Decimal: "numeric",
    str: "text",
    bytes: "bytea",
    UUID: "uuid",
    datetime: "timestamp with time zone",
    date: "date",
    time: "time without time zone",
    timedelta: "interval",
    dict: "jsonb",
}


def step_of(task: BoundTask, key: tuple[str, ...], *, show_keys: bool = True) -> Transformer:
    """A Transformer that calls a registered function and checks its result."""
    kind = FrameStep if task.task.kind is Kind.FRAME else RowStep
    return kind(task, key, show_keys=show_keys)


class _Step:
    """Common to both kinds: every batch must have the same columns, including the key; errors name a key."""

    def __init__(self, task: BoundTask, key: tuple[str, ...], *, show_keys: bool) -> None:
        self._task = task
        self._key = key
        self._show_keys = show_keys
        self._columns: tuple[Column, ...] | None = None  # None: no batch has been transformed yet

    def _refusal(self, text: str) -> DataError:
        return DataError(
            f"transform '{self._task.name}' {text}; nothing of the batch was written", code="TRANSFORM_ERROR"
        )

    def _output(self, payload: Payload, columns: tuple[Column, ...], batch: Batch, first_key: str) -> Batch:
        """The transformed batch; DataError if it lacks the key, or has other columns than the batches before."""
        names = [column.name for column in columns]
        if missing := [name for name in self._key if name not in names]:
            raise self._refusal(f"dropped the key column '{missing[0]}' in the batch from key {first_key}")
        before = self._columns or columns
        if odd := {column.name for column in before}.symmetric_difference(names):
            raise self._refusal(
                f"changed the shape in the batch from key {first_key}: column(s) {', '.join(sorted(odd))} are not in"
                " every batch"
            )
        self._columns = before
        types = {column.name: column for column in before}  # the type of a column with only NULLs is unknown
        return replace(batch, payload=payload, columns=tuple(types[name] for name in names))

    def _nothing(self, batch: Batch) -> Batch:
        """A batch without rows: it has the columns of earlier batches, or none, because they are not known."""
        return replace(batch, payload=PythonRows([]), columns=self._columns or ())

    def _call(self, given: Any, again: Callable[[], Any]) -> Any:
        """What the function returns; DataError with the key of the first row on which it fails.

        `again` returns the same rows again, because the function may have changed its argument.
        """
        try:
            return self._run(given)
        except BaseException as exc:
            if not is_failure(exc):
                raise
            key = self._shown_key(self._first_failing(again()))
            if isinstance(exc, values.UnreadableValue | FieldError):
                raise self._refusal(f"failed at key {key}: {exc}") from exc
            # the exception's own text may quote row values
            place = self._task.task.place_of(exc)
            where = f" in {place}" if place else ""
            raise self._refusal(
                f"raised {type(exc).__name__}{where} at key {key} of a batch of {len(given)} row(s)"
            ) from exc

    def _first_failing(self, given: Any) -> Any:
        """The first row that fails on its own, found by bisection: at most twice the work of the batch."""
        while len(given) > 1:
            half = len(given) // 2
            if self._fails(given[:half]):
                given = given[:half]
            elif self._fails(given[half:]):
                given = given[half:]
            else:
                break  # only all of these rows together fail
        return given

    def _fails(self, given: Any) -> bool:
        try:
            self._run(given)
        except BaseException as exc:
            if not is_failure(exc):
                raise
            return True
        return False

    def _run(self, given: Any) -> Any:
        raise NotImplementedError

    def _shown_key(self, given: Any) -> str:
        """The key of the first row, for an error."""
        return self._key_at(given) if self._show_keys else "…"

    def _key_at(self, given: Any) -> str:
        """The key of the first row."""
        raise NotImplementedError


class RowStep(_Step):
    """A step with a function of rows."""

    def __call__(self, batch: Batch) -> Batch:
        if not batch.count:
            return self._nothing(batch)
        given = rows_of(batch)
        first_key = self._shown_key(given.rows)
        kinds = {column.name: _python_type(given.rows, column.name) for column in batch.columns}
        result = self._call(given.rows, lambda: rows_of(batch).rows)
        if not isinstance(result, list):
            raise self._refusal(f"returned {result.__name__}, not rows, for the batch from key {first_key}")
        result = cast(list[Row], result)
        if not result:
            return self._nothing(batch)
        columns = _columns(self._shape_of(result, first_key), result, batch.columns, kinds)
        payload = PythonRows(result, given.origins and given.origins.of(result, self._key))
        return self._output(payload, columns, batch, first_key)

    def _run(self, given: Any) -> list[Any] | type:
        """The rows, or the type of a result that is not rows."""
        result = self._task(given)
        if isinstance(result, Iterable) and not isinstance(result, Mapping | str | bytes):
            return list(cast(Iterable[Any], result))
        return cast(type, type(cast(object, result)))

    def _shape_of(self, result: Sequence[Row], first_key: str) -> tuple[str, ...]:
        """The names of the columns, in order; DataError where a row has others than the first."""
        for row in result:
            if not isinstance(row, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise self._refusal(f"returned a {type(row).__name__} among the rows of the batch from key {first_key}")
        expected = result[0].keys()
        for row in result:
            if row.keys() != expected:
                odd_names = ", ".join(sorted(expected ^ row.keys()))
                raise self._refusal(
                    f"returned rows of different shape: column(s) {odd_names} are not in every row, see key"
                    f" {self._shown_key([row])}"
                )
        return tuple(expected)

    def _key_at(self, given: Any) -> str:
        row = given[0]
        return "/".join(values.field_of(row[name]) if name in row else "?" for name in self._key)


class FrameStep(_Step):
    """A step with a function of a frame."""

    def __call__(self, batch: Batch) -> Batch:
        if not batch.count:
            return self._nothing(batch)
        given = frame_of(batch).frame
        first_key = self._shown_key(given)
        result = self._call(given, lambda: given)
        if type(result) is not type(given):
            raise self._refusal(f"returned {type(result).__name__}, not a frame, for the batch from key {first_key}")
        try:
            columns = frames.columns_of(result, batch.columns, given)
        except TypeError as exc:
            raise self._refusal(f"returned a column that cannot be stored: {exc}") from exc
        return self._output(FrameRows(result), columns, batch, first_key)

    def _run(self, given: Any) -> Any:
        return self._task(given)

    def _key_at(self, given: Any) -> str:
        return "/".join(_field_at(given, name) if name in given.columns else "?" for name in self._key)


def _field_at(frame: Any, name: str) -> str:
    """The first value of a column; a frame may hold times that Python cannot."""
    try:
        return values.field_of(frame[name][0])
    except BaseException as exc:
        if not is_failure(exc):
            raise
        return "?"


def conversion(lane: Lane) -> Transformer:
    """Converts batches to another lane through PostgreSQL's text format; binary rows are never converted."""
    if lane is Lane.ROWS:
        return lambda batch: replace(batch, payload=rows_of(batch))
    if lane is Lane.FRAMES:
        return lambda batch: replace(batch, payload=frame_of(batch))
    if lane is Lane.TEXT:
        return lambda batch: replace(batch, payload=TextRows(text_of(batch), batch.count))
    raise ConfigError(f"rows cannot be converted to lane {lane}", code="NO_LANE")


def _columns(
    names: Iterable[str], result: Sequence[Row], known: Sequence[Column], given: Mapping[str, type | None]
) -> tuple[Column, ...]:
    """The columns: known ones keep their types, unless their values have become another Python type."""
    types = {column.name: column for column in known}

    def column(name: str) -> Column:
        if name not in types:
            return Column(name, _type_name(row[name] for row in result), inferred=True)
        is_same = _python_type(result, name) in (given[name], None)
        return types[name] if is_same else replace(types[name], inferred=True)

    return tuple(column(name) for name in names)


def _python_type(rows: Sequence[Row], name: str) -> type | None:
    """Of the first value that is not None."""
    first: object = next((row[name] for row in rows if row.get(name) is not None), None)
    return None if first is None else type(first)


def _type_name(found: Iterable[Any]) -> str:
    """The type of the first value that is not None; for lists, of the first element in any of them."""
    there = (value for value in found if value is not None)
    first = next(there, None)
    if isinstance(first, list):
        lists = [cast(list[Any], first), *cast(Iterable[list[Any]], there)]
        return f"{_type_name(element for value in lists for element in value).removesuffix('[]')}[]"
    return next((name for kind, name in _TYPE_NAMES.items() if isinstance(first, kind)), "text")
