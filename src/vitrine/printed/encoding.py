"""Frames in COPY's binary format, which Postgres reads much faster, for types whose values are laid out easily."""

import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitrine.printed import values

# Imported inside, for both belong to an extra
if TYPE_CHECKING:
    import numpy as np
    import polars as pl

_INTEGERS = {"smallint": ("Int16", ">i2"), "integer": ("Int32", ">i4"), "bigint": ("Int64", ">i8")}
_FLOATS = {"real": ("Float32", ">f4"), "double precision": ("Float64", ">f8")}
_TIMES = ("timestamp with time zone", "timestamp without time zone")
# What stands between the texts of a column when they are joined: a UUID's length must be seen
_SEPARATORS = {"uuid": "\n", "text": "", "character varying": "", "character": "", "json": "", "jsonb": ""}
_NIL = "00000000-0000-0000-0000-000000000000"

_DAYS_1970_TO_2000 = values.days("2000-01-01")
# of a UUID and the newline behind it
_PUNCTUATION = {8: "-", 13: "-", 18: "-", 23: "-", 36: "\n"}
_DIGITS = (slice(0, 8), slice(9, 13), slice(14, 18), slice(19, 23), slice(24, 36))


@dataclass(frozen=True)
class _Fields:
    """The values of one column: of one width, or one behind the other with their lengths."""

    data: "np.ndarray[Any, Any]"  # bytes: rows × width, or all of them in a row
    width: int | None
    lengths: "np.ndarray[Any, Any] | int"  # one for all, where none is NULL
    nulls: "np.ndarray[Any, Any] | None"  # None: there are none


def encode(frame: "pl.DataFrame", types: Mapping[str, str]) -> bytes | None:
    """The rows for columns of exactly these types; None where a column has no such form, and goes as text."""
    kinds = {name: values.bare_type(type_name) for name, type_name in types.items()}
    texts = _joined(frame, kinds)
    columns: list[_Fields] = []
    for name, kind in kinds.items():
        fields = _text_fields(frame[name], kind, texts[name]) if name in texts else _number_fields(frame[name], kind)
        if fields is None:
            return None
        columns.append(fields)
    is_even = all(column.width is not None and column.nulls is None for column in columns)
    return (_even_rows if is_even else _rows)(columns, len(frame))


def _joined(frame: "pl.DataFrame", kinds: Mapping[str, str]) -> dict[str, str]:
    """All texts of a column in one, for each column; at once, for a call of polars costs as much as many values."""
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
        return _uuids(series, text)
    nulls = _nulls(series)
    lengths = series.str.len_bytes().fill_null(0).to_numpy().astype(np.int64)
    data = np.frombuffer(text.encode(), np.uint8)
    if kind == "jsonb":  # each begins with the version of its format
        there = np.ones(len(series), bool) if nulls is None else ~nulls
        data, lengths = np.insert(data, (np.cumsum(lengths) - lengths)[there], 1), lengths + there
    return _Fields(data, None, lengths, nulls)


def _number_fields(series: "pl.Series", kind: str) -> _Fields | None:
    import polars as pl

    dtype = series.dtype
    if kind in _INTEGERS and dtype.is_integer():
        return _numbers(series, *_INTEGERS[kind])
    if kind in _FLOATS and dtype.is_numeric() and not dtype.is_decimal():
        return _numbers(series, *_FLOATS[kind])
    if kind == "boolean" and dtype == pl.Boolean:
        return _numbers(series, "UInt8", ">u1")
    if kind in _TIMES and dtype in (pl.Datetime("us"), pl.Datetime("us", "UTC")):
        return _since_2000(series, ">i8", _DAYS_1970_TO_2000 * values.MICROSECONDS_A_DAY)
    if kind == "date" and dtype == pl.Date:
        return _since_2000(series, ">i4", _DAYS_1970_TO_2000)
    return None


def _numbers(series: "pl.Series", dtype: str, layout: str) -> _Fields | None:
    import polars as pl

    try:
        plain = (series.fill_null(0) if series.null_count() else series).cast(getattr(pl, dtype))
    except pl.exceptions.InvalidOperationError:
        return None  # a number too large: Postgres says so best itself
    return _fixed(_bytes_of(plain.to_numpy(), layout), series)


def _since_2000(series: "pl.Series", layout: str, shift: int) -> _Fields:
    """Times as Postgres counts them, since 2000 and not since 1970; infinities stay at the ends."""
    import numpy as np

    numbers, ends = series.to_numpy().view(np.int64), np.iinfo(np.dtype(layout))
    is_infinite = (numbers == ends.min) | (numbers == ends.max)
    return _fixed(_bytes_of(np.where(is_infinite, numbers, numbers - shift), layout), series)


def _uuids(series: "pl.Series", text: str) -> _Fields | None:
    """None for texts that are a UUID in another spelling, or none at all."""
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
    return _fixed(np.frombuffer(data, np.uint8).reshape(count, 16), series)


def _bytes_of(numbers: "np.ndarray[Any, Any]", layout: str) -> "np.ndarray[Any, Any]":
    import numpy as np

    data = np.ascontiguousarray(numbers.astype(layout))
    return data.view(np.uint8).reshape(len(numbers), data.dtype.itemsize)


def _fixed(data: "np.ndarray[Any, Any]", series: "pl.Series") -> _Fields:
    import numpy as np

    nulls, width = _nulls(series), data.shape[1]
    return _Fields(data, width, width if nulls is None else np.where(nulls, 0, width), nulls)


def _nulls(series: "pl.Series") -> "np.ndarray[Any, Any] | None":
    return series.is_null().to_numpy() if series.null_count() else None


def _even_rows(columns: Sequence[_Fields], count: int) -> bytes:
    """Every row has the same length: a table of bytes, written column by column."""
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
        told = np.broadcast_to(column.lengths, count)
        told = told if column.nulls is None else np.where(column.nulls, -1, told)
        _put(rows, place, _bytes_of(told, ">i4"))
        place += 4
        if column.width is None:
            before = np.cumsum(column.lengths) - column.lengths
            rows[np.repeat(place - before, column.lengths) + np.arange(len(column.data))] = column.data
        else:
            there = slice(None) if column.nulls is None else ~column.nulls
            _put(rows, place[there], column.data[there])
        place += column.lengths
    return rows.tobytes()


def _put(rows: "np.ndarray[Any, Any]", places: "np.ndarray[Any, Any]", data: "np.ndarray[Any, Any]") -> None:
    import numpy as np

    rows[places[:, None] + np.arange(data.shape[1])] = data
