"""Takes rows that a column marks as deleted out of a batch; their keys are deleted from the target instead."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from vitrine.copytext import text_of, values
from vitrine.errors import ConfigError
from vitrine.flow.marks import is_mark, is_marked
from vitrine.flow.protocols import Transformer
from vitrine.flow.rows import Batch, Column, FrameRows, Key, Payload, PythonRows, TextRows

if TYPE_CHECKING:
    from vitrine.copytext.rows import Origins

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
