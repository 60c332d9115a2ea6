"""Rows as Postgres prints them, the form in which transforms get and give them: every type, exactly."""

from collections.abc import Callable, Mapping

from vitrine.flow import Batch, Bytes, Column, Copied, Decoded, Framed, Printed
from vitrine.printed import encoding, frames, rows, values


def by_type(column: Column) -> bool:
    return values.is_json(column.type_name)


def text_of(batch: Batch, is_json: Callable[[Column], bool] = by_type) -> bytes | bytearray:
    """The batch in COPY's text format; `is_json` tells where a list is JSON and not an array."""
    match batch.payload:
        case Printed(data=data):
            return data
        case Framed(frame=frame):
            return frames.print_frame(frame, batch.columns, is_json)
        case Decoded() as decoded:
            return rows.print_rows(decoded, batch.columns, is_json)
        case Copied():
            raise TypeError("rows that were copied in binary have no text")


def binary_of(batch: Batch, types: Mapping[str, str]) -> Bytes | None:
    """The batch in COPY's binary format, without header and trailer, for columns of exactly these types.

    None where it has none, and must go as text.
    """
    match batch.payload:
        case Copied(data=data):
            return data
        case Framed(frame=frame):
            return encoding.encode(frame, {column.name: types[column.name] for column in batch.columns})
        case _:
            return None
