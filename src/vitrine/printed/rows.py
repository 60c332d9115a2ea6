"""Rows as dictionaries out of printed lines, and back. Both work by columns: a call for each value would cost more."""

import marshal
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import is_, itemgetter
from typing import Any, cast

from vitrine.errors import DataError
from vitrine.flow import Column, Decoded
from vitrine.model import Row
from vitrine.printed import values
from vitrine.printed.values import Printer

UNREADABLE = (ValueError, ArithmeticError, RecursionError)
"""What a decoder raises for a value that Python cannot hold: infinity, months, JSON a thousand levels deep."""

# -- text becomes rows ------------------------------------------------------------------------------------------------


def parse(data: bytes | bytearray, columns: tuple[Column, ...]) -> Decoded:
    """Every line as a row, which remembers how it was printed."""
    text = data.decode()
    lines = text.split("\n")[:-1]
    by_column = list(zip(*[line.split("\t") for line in lines], strict=True)) or [()] * len(columns)
    may_be_escaped = "\\" in text
    came = {
        kind.name: kind.came(fields, may_be_escaped=may_be_escaped)
        for kind, fields in zip(_kinds(columns), by_column, strict=True)
    }
    names = tuple(came)
    rows = [
        dict(zip(names, row, strict=True)) for row in zip(*[column.values for column in came.values()], strict=True)
    ]
    return Decoded(rows, Origins(len(rows), came))


@lru_cache(maxsize=64)
def _kinds(columns: tuple[Column, ...]) -> "list[_Kind]":
    return [_Kind(column.name, column.readable_type) for column in columns]


class _Kind:
    """How the fields of a column become values."""

    def __init__(self, name: str, type_name: str) -> None:
        self.name = name
        self.is_inexact = values.is_inexact(type_name)
        self.is_mutable = values.is_mutable(type_name)
        self._type_name = type_name
        self._decode = values.decoder(type_name)
        self._decode_all = values.plain_decoder(type_name)

    def came(self, fields: Sequence[str], *, may_be_escaped: bool) -> "_Came":
        decoded = self._decoded(fields, may_be_escaped=may_be_escaped)
        return _Came(self, fields, decoded, _trace(decoded) if self.is_mutable else None)

    def decode(self, field: str) -> Any:
        """The value, or something that stands for it where Python cannot hold it."""
        if field == values.NULL:
            return None
        try:
            return self._decode(field)
        except UNREADABLE:
            return values.Unreadable(field, self.name, self._type_name)

    def _decoded(self, fields: Sequence[str], *, may_be_escaped: bool) -> Sequence[Any]:
        decode, null = self._decode, values.NULL
        try:
            if may_be_escaped and "\\" in "".join(fields):
                return [None if field == null else decode(field) for field in fields]
            return self._decode_all(fields)
        except UNREADABLE:
            return list(map(self.decode, fields))


class _Came:
    """A column as it came: what was printed, and the values that were made of it."""

    def __init__(self, kind: _Kind, fields: Sequence[str], values: Sequence[Any], trace: bytes | None) -> None:
        self.kind = kind
        self.fields = fields
        self.values = values
        self._trace = trace  # of values that can be changed in place

    def are_unchanged(self, found: Sequence[Any]) -> bool:
        if self.kind.is_mutable:
            return self._trace is not None and _trace(found) == self._trace
        return all(map(is_, found, self.values))

    def printed(self, found: Sequence[Any], printer: Printer) -> list[str]:
        """Each value as it came, wherever it is still the one that came."""
        if not self.kind.is_inexact:
            return [
                field if value is old else printer(value)
                for value, old, field in zip(found, self.values, self.fields, strict=True)
            ]
        decode = self.kind.decode
        # repr, because True equals 1 and 1 equals 1.0
        return [
            field if repr(value) == repr(decode(field)) else printer(value)
            for value, field in zip(found, self.fields, strict=True)
        ]


def _trace(found: Any) -> bytes | None:
    """Equal for values that are equal in every part and its type; None where there is none."""
    try:
        return marshal.dumps(found, 2)  # later versions of the format depend on who else refers to a value
    except ValueError:
        return None


class Origins:
    """How the rows of a batch were printed when they came: what is unchanged is written as it came."""

    def __init__(self, count: int, columns: Mapping[str, _Came]) -> None:
        self.columns = columns
        self._count = count
        self._is_inexact = any(column.kind.is_inexact for column in columns.values())

    def of(self, rows: Sequence[Row], key: Sequence[str]) -> "Origins | None":
        """The same for rows that were made of these: by their place, or where that is doubtful by their key."""
        is_same_length = len(rows) == self._count
        if not self._is_inexact:
            # a value that is the very object that came prints as it came, and any other one exactly as well
            return self if is_same_length else None
        if any(name not in self.columns or name not in rows[0] for name in key):
            return None
        found = [list(map(itemgetter(name), rows)) for name in key]
        came = [self.columns[name].values for name in key]
        if is_same_length and all(all(map(is_, new, old)) for new, old in zip(found, came, strict=True)):
            return self
        places = {place_key: place for place, place_key in enumerate(_printed_keys(came))}
        return self._rearranged([places.get(row_key) for row_key in _printed_keys(found)])

    def _rearranged(self, places: Sequence[int | None]) -> "Origins":
        unknown = values.NULL, object()  # which is no value of any row
        columns: dict[str, _Came] = {}
        for name, came in self.columns.items():
            pairs = list(zip(came.fields, came.values, strict=True))
            ordered = [unknown if place is None else pairs[place] for place in places]
            columns[name] = _Came(came.kind, [field for field, _ in ordered], [value for _, value in ordered], None)
        return Origins(len(places), columns)


def _printed_keys(columns: Sequence[Sequence[Any]]) -> Iterable[tuple[str, ...]]:
    return zip(*[map(values.field_of, column) for column in columns], strict=True)


# -- rows become text -------------------------------------------------------------------------------------------------


def print_rows(payload: Decoded, columns: Sequence[Column], is_json: Callable[[Column], bool]) -> bytes:
    """Rows in COPY's text format; DataError for a value that Postgres does not know."""
    if not payload.count:
        return b""
    origins = cast(Origins | None, payload.origins)
    printed = [
        _print_column(
            column.name,
            list(map(itemgetter(column.name), payload.rows)),
            origins and origins.columns.get(column.name),
            values.json_field_of if is_json(column) else values.field_of,
        )
        for column in columns
    ]
    try:
        return ("\n".join(map("\t".join, zip(*printed, strict=True))) + "\n").encode()
    except UnicodeEncodeError as exc:
        raise DataError("a text has half a character (a lone surrogate) in it", code="TRANSFORM_ERROR") from exc


def _print_column(name: str, found: Sequence[Any], came: _Came | None, printer: Printer) -> Sequence[str]:
    if came is not None and came.are_unchanged(found):
        return came.fields
    try:
        is_exact = printer is values.field_of and (came is None or not came.kind.is_inexact)
        if is_exact and (fields := values.fields_of(found)) is not None:
            return fields
        return list(map(printer, found)) if came is None else came.printed(found, printer)
    except (TypeError, ValueError) as exc:
        raise DataError(_complaint(name, found, printer), code="TRANSFORM_ERROR") from exc


def _complaint(name: str, found: Sequence[Any], printer: Printer) -> str:
    for value in found:
        try:
            printer(value)
        except (TypeError, ValueError):
            kind = type(value).__name__
            return f"column '{name}' has a value of type {kind} that Postgres does not know; make a text of it"
    return f"column '{name}' has a value that Postgres does not know"
