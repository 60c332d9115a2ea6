"""Rows as Postgres prints them, the form in which transforms get and give them: every type, exactly."""

from collections.abc import Callable

from vitrine.flow import Batch, Column, Copied, Decoded, Framed, Printed
from vitrine.printed import frames, rows, values


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
