"""Polars frames out of printed rows, and back: what polars cannot hold exactly travels as the text it is."""

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from vitrine.errors import DataError
from vitrine.flow import Column
from vitrine.printed import values

# Imported inside, for polars is an extra and slow to import
if TYPE_CHECKING:
    import polars as pl

_NUMBERS = {
    "smallint": "Int16",
    "integer": "Int32",
    "bigint": "Int64",
    "oid": "UInt32",
    "real": "Float32",
    "double precision": "Float64",
}
_TIMES = ("timestamp with time zone", "timestamp without time zone")

# Of columns that a function adds; lists and structs are looked into
_TYPE_NAMES = {
    "Boolean": "boolean",
    "Int8": "smallint",
    "Int16": "smallint",
    "Int32": "integer",
    "Int64": "bigint",
    "Int128": "numeric",
    "UInt8": "smallint",
    "UInt16": "integer",
    "UInt32": "bigint",
    "UInt64": "numeric",
    "Float32": "real",
    "Float64": "double precision",
    "Decimal": "numeric",
    "String": "text",
    "Categorical": "text",
    "Enum": "text",
    "Null": "text",
    "Binary": "bytea",
    "Date": "date",
    "Time": "time without time zone",
    "Duration": "interval",
    "Struct": "jsonb",
}

# The years that polars prints as Postgres reads them; what lies outside is printed one by one
_FIRST_DAY, _LAST_DAY = values.days("0001-01-01"), values.days("9999-12-31")


# -- text becomes a frame ---------------------------------------------------------------------------------------------


def parse(data: bytes | bytearray, columns: Sequence[Column]) -> "pl.DataFrame":
    """The rows as a frame. Infinite times are the ends of 64 (dates: 32) bits, as in Postgres, and compare rightly."""
    import polars as pl

    kinds = {column.name: values.bare_type(column.readable_type) for column in columns}
    frame = pl.read_csv(
        bytes(data),
        separator="\t",
        has_header=False,
        quote_char=None,
        null_values=values.NULL,
        empty_string_is_null=False,
        schema={name: getattr(pl, _NUMBERS.get(kind, "String")) for name, kind in kinds.items()},
    )
    return frame.with_columns(
        decoded for name, kind in kinds.items() if (decoded := _decoded(frame[name], kind)) is not None
    )


def _decoded(series: "pl.Series", kind: str) -> "pl.Series | None":
    """What the text of a column stands for; None where the text, or the number, is it."""
    if kind in _NUMBERS or kind == "uuid":
        return None
    if kind == "boolean":
        return series == "t"
    if kind in _TIMES:
        return _times(series, zoned=kind == "timestamp with time zone")
    if kind == "date":
        return _dates(series)
    if kind == "bytea":
        return series.str.strip_prefix("\\\\x").str.decode("hex")
    return _unescaped(series) if series.str.contains("\\", literal=True).any() else None


def _times(series: "pl.Series", *, zoned: bool) -> "pl.Series":
    import polars as pl

    texts = series.str.strip_suffix("+00") if zoned else series
    # fixed widths and no cache: three times as fast as a pattern with an open fraction
    found = texts.str.pad_end(26, "0").str.to_datetime(
        "%Y-%m-%d %H:%M:%S.%6f", time_unit="us", strict=False, cache=False
    )
    if found.null_count() > series.null_count():
        whole_seconds = texts.str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="us", strict=False, cache=False)
        found = pl.select(pl.coalesce(found, whole_seconds)).to_series().alias(series.name)
    numbers = _filled(found.to_physical(), series, values.microseconds)
    return numbers.cast(pl.Datetime("us", "UTC" if zoned else None))


def _dates(series: "pl.Series") -> "pl.Series":
    import polars as pl

    found = series.str.to_date("%Y-%m-%d", strict=False, cache=False)
    return _filled(found.to_physical(), series, values.days).cast(pl.Date)


def _filled(numbers: "pl.Series", texts: "pl.Series", number_of: Callable[[str], int]) -> "pl.Series":
    """The numbers, with those that polars could not read: infinities, years before Christ and beyond 9999."""
    missing = (numbers.is_null() & texts.is_not_null()).arg_true().to_list()
    try:
        return numbers.scatter(missing, [number_of(texts[at]) for at in missing]) if missing else numbers
    except OverflowError as exc:
        raise DataError(
            f"column '{texts.name}' has a time that a frame cannot hold; cast it in the query, for example to text",
            code="TRANSFORM_ERROR",
        ) from exc


def _unescaped(series: "pl.Series") -> "pl.Series":
    # no text of Postgres has a NUL in it, so that it can stand for the backslash meanwhile
    plain = series.str.replace_all("\\\\", "\0", literal=True)
    for escaped, character in (
        ("\\b", "\b"),
        ("\\f", "\f"),
        ("\\n", "\n"),
        ("\\r", "\r"),
        ("\\t", "\t"),
        ("\\v", "\v"),
    ):
        plain = plain.str.replace_all(escaped, character, literal=True)
    return plain.str.replace_all("\0", "\\", literal=True)


# -- a frame becomes text ---------------------------------------------------------------------------------------------


def print_frame(frame: "pl.DataFrame", columns: Sequence[Column], is_json: Callable[[Column], bool]) -> bytes:
    """The frame in COPY's text format."""
    printed = frame.select(_printed(frame[column.name], is_json=is_json(column)) for column in columns)
    target = io.BytesIO()
    printed.write_csv(target, separator="\t", include_header=False, quote_style="never", null_value=values.NULL)
    return target.getvalue()


def _printed(series: "pl.Series", *, is_json: bool) -> "pl.Series":
    """Something that polars prints as a field: a number, or a text without a tab or a newline in it."""
    import polars as pl

    kind = series.dtype
    if kind == pl.Datetime:
        return _print_times(series)
    if kind == pl.Date:
        return _print_dates(series)
    if kind.is_nested() or (is_json and kind != pl.String):
        printer = values.json_field_of if is_json or kind == pl.Struct else values.field_of
        return pl.Series(series.name, [None if v is None else printer(v) for v in series.to_list()], dtype=pl.String)
    if kind in (pl.Duration, pl.Time):
        fields = [None if v is None else values.field_of(v) for v in series.to_list()]
        return pl.Series(series.name, fields, dtype=pl.String)
    if kind == pl.Binary:
        return pl.select(pl.lit("\\\\x") + series.bin.encode("hex")).to_series().alias(series.name)
    if kind in (pl.String, pl.Categorical, pl.Enum):
        return _escaped(series.cast(pl.String))
    return series


def _print_times(series: "pl.Series") -> "pl.Series":
    import polars as pl

    zoned = getattr(series.dtype, "time_zone", None) is not None
    moments = (series.dt.convert_time_zone("UTC").dt.replace_time_zone(None) if zoned else series).dt.cast_time_unit(
        "us"
    )
    numbers = moments.to_physical()
    a_day = values.MICROSECONDS_A_DAY
    odd = ((numbers < _FIRST_DAY * a_day) | (numbers >= (_LAST_DAY + 1) * a_day)).arg_true().to_list()
    if odd:
        moments = numbers.scatter(odd, [None] * len(odd)).cast(pl.Datetime("us"))
    texts = moments.dt.to_string("%Y-%m-%d %H:%M:%S%.6f" + ("+00" if zoned else ""))
    return texts.scatter(odd, [values.print_microseconds(numbers[at], zoned=zoned) for at in odd]) if odd else texts


def _print_dates(series: "pl.Series") -> "pl.Series":
    import polars as pl

    numbers = series.to_physical()
    odd = ((numbers < _FIRST_DAY) | (numbers > _LAST_DAY)).arg_true().to_list()
    if not odd:
        return series.dt.to_string("%Y-%m-%d")
    texts = numbers.scatter(odd, [None] * len(odd)).cast(pl.Date).dt.to_string("%Y-%m-%d")
    return texts.scatter(odd, [values.print_days(numbers[at]) for at in odd])


def _escaped(series: "pl.Series") -> "pl.Series":
    if not series.str.contains(r"[\\\t\n\r]").any():
        return series
    plain = series.str.replace_all("\\", "\\\\", literal=True)
    for character, escaped in (("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        plain = plain.str.replace_all(character, escaped, literal=True)
    return plain


def columns_of(frame: "pl.DataFrame", known: Sequence[Column]) -> tuple[Column, ...]:
    """The frame's columns: those that are known keep their types, the others get those of their values."""
    types = {column.name: column for column in known}
    return tuple(types.get(name) or Column(name, type_name_of(kind)) for name, kind in frame.schema.items())


def type_name_of(kind: Any) -> str:
    """The type of Postgres for a type of polars; TypeError where there is none."""
    import polars as pl

    if isinstance(kind, pl.List | pl.Array):
        return f"{type_name_of(kind.inner).removesuffix('[]')}[]"
    if kind == pl.Datetime:
        return _TIMES[0] if getattr(kind, "time_zone", None) else _TIMES[1]
    name = str(kind.base_type())
    if name not in _TYPE_NAMES:
        raise TypeError(f"Postgres has no {name}")
    return _TYPE_NAMES[name]
