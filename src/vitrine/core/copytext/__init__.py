"""Rows in PostgreSQL's text format: exact for every type, and the common format of all conversions.

A module is imported by the first batch that needs it: most runs move binary rows and need none.
"""

from collections.abc import Callable

from vitrine.core.copytext import values
from vitrine.core.rows import Batch, Column, FrameRows, PythonRows, TextRows


def is_json(column: Column) -> bool:
    return values.is_json(column.type)


def text_of(batch: Batch, is_json: Callable[[Column], bool] = is_json) -> bytes | bytearray:
    """The batch in COPY's text format; `is_json` decides where a list is JSON and not an array."""
    match batch.payload:
        case TextRows(data=data):
            return data
        case FrameRows(frame=frame):
            from vitrine.core.copytext import frames

            return frames.format_frame(frame, batch.columns, is_json)
        case PythonRows() as decoded:
            from vitrine.core.copytext import rows

            return rows.format_rows(decoded, batch.columns, is_json)
        case _:
            raise TypeError(f"{type(batch.payload).__name__} cannot be converted to text")


def rows_of(batch: Batch) -> PythonRows:
    """The batch as Python values."""
    from vitrine.core.copytext import rows

    return batch.payload if isinstance(batch.payload, PythonRows) else rows.parse(text_of(batch), batch.columns)


def frame_of(batch: Batch) -> FrameRows:
    """The batch as a polars frame."""
    if isinstance(batch.payload, FrameRows):
        return batch.payload
    from vitrine.core.copytext import frames

    return FrameRows(frames.parse(text_of(batch), batch.columns))
