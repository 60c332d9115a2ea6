"""Frames in COPY's binary format, which PostgreSQL reads faster than text; for types with a simple binary layout."""

import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitrine.copytext import values
from vitrine.flow.rows import bare_type

# Imported inside functions, because both belong to an extra
if TYPE_CHECKING:
    import numpy as np
    import polars as pl

_INTEGERS = {"smallint": ("Int16", ">i2"), "integer": ("Int32", ">i4"), "bigint": ("Int64", ">i8")}
_FLOATS = {"real": ("Float32", ">f4"), "double precision": ("Float64", ">f8")}
_TIMES = ("timestamp with time zone", "timestamp without time zone")
# Separator between the joined texts of a column; only UUIDs need one, because their length is checked
_SEPARATORS = {"uuid": "\n", "text": "", "character varying": "", "character": "", "json": "", "jsonb": ""}
_NIL = "00000000-0000-0000-0000-000000000000"

_DAYS_1970_TO_2000 = values.days("2000-01-01")
# of a UUID and the newline that follows it
_PUNCTUATION = {8: "-", 13: "-", 18: "-", 23: "-", 36: "\n"}
_DIGITS = (slice(0, 8), slice(9, 13), slice(14, 18), slice(19, 23), slice(24, 36))


@dataclass(frozen=True)
class _Fields:
    """The values of one column: all of one width, or concatenated with their lengths."""

    data: "np.ndarray[Any, Any]"  # bytes: rows × width, or all values concatenated
    width: int | None
    lengths: "np.ndarray[Any, Any] | int"  # one number for all values if none is NULL
    nulls: "np.ndarray[Any, Any] | None"  # None: no value is NULL


def encode(frame: "pl.DataFrame", types: Mapping[str, str]) -> bytes | None:
    """The rows for columns of exactly these types; None if a column has no binary encoding and must be sent as text."""
    kinds = {name: bare_type(type_name) for name, type_name in types.items()}
    texts = _join_texts(frame, kinds)
    columns: list[_Fields] = []
    for name, kind in kinds.items():
        fields = _text_fields(frame[name], kind, texts[name]) if name in texts else _number_fields(frame[name], kind)
        if fields is None:
            return None
        columns.append(fields)
    is_even = all(column.width is not None and column.nulls is None for column in columns)
    return (_even_rows if is_even else _rows)(columns, len(frame))


def _join_texts(frame: "pl.DataFrame", kinds: Mapping[str, str]) -> dict[str, str]:
    """The texts of each column, joined; in one call, because a call of polars costs as much as many values."""
    import polars as pl

    wanted = [name for name, dtype in frame.schema.items() if dtype == pl.String and kinds.get(name) in _SEPARATORS]
    joined = frame.select(
        pl.col(name).fill_null(_NIL if kinds[name] == "uuid" else "").str.join(_SEPARATORS[kinds[name]])
        for name in wanted
    )
    return {name: joined[name][0] for name in wanted}


def _text_fields(series: "pl.Series", kind: str, text: str) -> _Fields | None:
    import numpy as np

    if kind == "uuid":
        return _uuid_fields(series, text)
    nulls = _nulls(series)
    lengths = series.str.len_bytes().fill_null(0).to_numpy().astype(np.int64)
    data = np.frombuffer(text.encode(), np.uint8)
    if kind == "jsonb":  # each begins with the version of its format
        present = np.ones(len(series), bool) if nulls is None else ~nulls
        data, lengths = np.insert(data, (np.cumsum(lengths) - lengths)[present], 1), lengths + present
    return _Fields(data, None, lengths, nulls)


def _number_fields(series: "pl.Series", kind: str) -> _Fields | None:
    import polars as pl

    dtype = series.dtype
    if kind in _INTEGERS and dtype.is_integer():
        return _fixed_numbers(series, *_INTEGERS[kind])
    if kind in _FLOATS and dtype.is_numeric() and not dtype.is_decimal():
        return _fixed_numbers(series, *_FLOATS[kind])
    if kind == "boolean" and dtype == pl.Boolean:
        return _fixed_numbers(series, "UInt8", ">u1")
    if kind in _TIMES and dtype in (pl.Datetime("us"), pl.Datetime("us", "UTC")):
        return _since_2000(series, ">i8", _DAYS_1970_TO_2000 * values.MICROSECONDS_A_DAY)
    if kind == "date" and dtype == pl.Date:
        return _since_2000(series, ">i4", _DAYS_1970_TO_2000)
    return None


def _fixed_numbers(series: "pl.Series", dtype: str, layout: str) -> _Fields | None:
    import polars as pl

    try:
        plain = (series.fill_null(0) if series.null_count() else series).cast(getattr(pl, dtype))
    except pl.exceptions.InvalidOperationError:
        return None  # a number is out of range: as text, PostgreSQL refuses its row
    # guarantee: J16
    if dtype == "Float32" and _has_left_range(series, plain):
        return None
    return _fixed_width_fields(_bytes_of(plain.to_numpy(), layout), series)


def _has_left_range(series: "pl.Series", narrowed: "pl.Series") -> bool:
    """Whether a number has become infinite or zero, which polars does without an error."""
    if series.dtype.is_float():
        infinite = narrowed.is_infinite() & series.is_finite().fill_null(value=False)
        return bool((infinite | ((narrowed == 0) & (series.fill_null(0) != 0))).any())
    return False


def _since_2000(series: "pl.Series", layout: str, shift: int) -> _Fields | None:
    """Times since 2000, as PostgreSQL stores them, not since 1970; infinities stay the smallest and largest numbers."""
    import numpy as np

    numbers, ends = series.to_numpy().view(np.int64), np.iinfo(np.dtype(layout))
    is_infinite = (numbers == ends.min) | (numbers == ends.max)
    if ((numbers < ends.min + shift) & ~is_infinite & ~series.is_null().to_numpy()).any():
        return None  # the difference would be a time after 2000
    return _fixed_width_fields(_bytes_of(np.where(is_infinite, numbers, numbers - shift), layout), series)


def _uuid_fields(series: "pl.Series", text: str) -> _Fields | None:
    """None if a text is not a UUID in canonical form."""
    import numpy as np

    count = len(series)
    letters = np.frombuffer(f"{text}\n".encode(), np.uint8)
    if len(letters) != 37 * count:
        return None
    table = letters.reshape(count, 37)
    if any((table[:, at] != ord(letter)).any() for at, letter in _PUNCTUATION.items()):
        return None
    try:
        data = binascii.unhexlify(np.concatenate([table[:, digits] for digits in _DIGITS], axis=1).tobytes())
    except binascii.Error:
        return None
    return _fixed_width_fields(np.frombuffer(data, np.uint8).reshape(count, 16), series)


def _bytes_of(numbers: "np.ndarray[Any, Any]", layout: str) -> "np.ndarray[Any, Any]":
    import numpy as np

    data = np.ascontiguousarray(numbers.astype(layout))
    return data.view(np.uint8).reshape(len(numbers), data.dtype.itemsize)


def _fixed_width_fields(data: "np.ndarray[Any, Any]", series: "pl.Series") -> _Fields:
    import numpy as np

    nulls, width = _nulls(series), data.shape[1]
    return _Fields(data, width, width if nulls is None else np.where(nulls, 0, width), nulls)


def _nulls(series: "pl.Series") -> "np.ndarray[Any, Any] | None":
    return series.is_null().to_numpy() if series.null_count() else None


def _even_rows(columns: Sequence[_Fields], count: int) -> bytes:
    """For rows of equal length: a table of bytes, written column by column."""
    import numpy as np

    fields = [part for at, c in enumerate(columns) for part in ((f"n{at}", ">i4"), (f"v{at}", "u1", (c.width or 0,)))]
    rows = np.empty(count, np.dtype([("width", ">i2"), *fields]))
    rows["width"] = len(columns)
    for at, column in enumerate(columns):
        rows[f"n{at}"] = column.width
        rows[f"v{at}"] = column.data
    return rows.tobytes()


def _rows(columns: Sequence[_Fields], count: int) -> bytes:
    import numpy as np

    lengths = np.full(count, 2, np.int64)
    for column in columns:
        lengths += 4 + column.lengths
    ends = np.cumsum(lengths)
    rows = np.empty(int(ends[-1]) if count else 0, np.uint8)
    place = ends - lengths
    _put(rows, place, _bytes_of(np.full(count, len(columns)), ">i2"))
    place += 2
    for column in columns:
        prefixes = np.broadcast_to(column.lengths, count)
        prefixes = prefixes if column.nulls is None else np.where(column.nulls, -1, prefixes)
        _put(rows, place, _bytes_of(prefixes, ">i4"))
        place += 4
        if column.width is None:
            before = np.cumsum(column.lengths) - column.lengths
            rows[np.repeat(place - before, column.lengths) + np.arange(len(column.data))] = column.data
        else:
            present = slice(None) if column.nulls is None else ~column.nulls
            _put(rows, place[present], column.data[present])
        place += column.lengths
    return rows.tobytes()


def _put(rows: "np.ndarray[Any, Any]", places: "np.ndarray[Any, Any]", data: "np.ndarray[Any, Any]") -> None:
    import numpy as np

    rows[places[:, None] + np.arange(data.shape[1])] = data
