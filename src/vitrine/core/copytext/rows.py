"""Text-format rows to dictionaries and back, column by column: one call per value would be slower."""

import marshal
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import is_, itemgetter
from typing import Any, cast

from vitrine.core.copytext import values
from vitrine.core.copytext.values import Formatter
from vitrine.core.rows import Column, PythonRows, Row
from vitrine.errors import DataError

UNREADABLE = (ValueError, ArithmeticError, RecursionError)
"""Raised by decoders for values that Python cannot represent: infinity, months, JSON a thousand levels deep."""

# -- text to rows -----------------------------------------------------------------------------------------------------


def parse(data: bytes | bytearray, columns: tuple[Column, ...]) -> PythonRows:
    """Every line as a row; the result keeps the original text of each value."""
    text = data.decode()
    lines = text.split("\n")[:-1]
    by_column = list(zip(*[line.split("\t") for line in lines], strict=True)) or [()] * len(columns)
    may_be_escaped = "\\" in text
    originals = {
        kind.name: kind.original(fields, may_be_escaped=may_be_escaped)
        for kind, fields in zip(_kinds(columns), by_column, strict=True)
    }
    names = tuple(originals)
    by_row = zip(*[column.values for column in originals.values()], strict=True)
    rows = [dict(zip(names, row, strict=True)) for row in by_row]
    return PythonRows(rows, Origins(len(rows), originals))


@lru_cache(maxsize=64)
def _kinds(columns: tuple[Column, ...]) -> "list[_Kind]":
    return [_Kind(column.name, column.type) for column in columns]


class _Kind:
    """Decodes the fields of a column."""

    def __init__(self, name: str, type_name: str) -> None:
        self.name = name
        self.is_inexact = values.is_inexact(type_name)
        self.is_mutable = values.is_mutable(type_name)
        self._type_name = type_name
        self._decode = values.decoder(type_name)
        self._decode_all = values.plain_decoder(type_name)

    def original(self, fields: Sequence[str], *, may_be_escaped: bool) -> "_OriginalColumn":
        decoded = self._decode_fields(fields, may_be_escaped=may_be_escaped)
        return _OriginalColumn(self, fields, decoded, _fingerprint(decoded) if self.is_mutable else None)

    def decode(self, field: str) -> Any:
        """The value, or an Unreadable if Python cannot represent it."""
        if field == values.NULL:
            return None
        try:
            return self._decode(field)
        except UNREADABLE:
            return values.Unreadable(field, self.name, self._type_name)

    def _decode_fields(self, fields: Sequence[str], *, may_be_escaped: bool) -> Sequence[Any]:
        decode, null = self._decode, values.NULL
        try:
            if may_be_escaped and "\\" in "".join(fields):
                return [None if field == null else decode(field) for field in fields]
            return self._decode_all(fields)
        except UNREADABLE:
            return list(map(self.decode, fields))


class _OriginalColumn:
    """A column as it was read: its fields in text format, and the values decoded from them."""

    def __init__(self, kind: _Kind, fields: Sequence[str], values: Sequence[Any], fingerprint: bytes | None) -> None:
        self.kind = kind
        self.fields = fields
        self.values = values
        self._fingerprint = fingerprint  # None: the values are immutable, or cannot be serialized

    def are_unchanged(self, found: Sequence[Any]) -> bool:
        if self.kind.is_mutable:
            return self._fingerprint is not None and _fingerprint(found) == self._fingerprint
        return all(map(is_, found, self.values))

    def format(self, found: Sequence[Any], formatter: Formatter) -> list[str]:
        """The original text of each unchanged value; changed values are formatted."""
        if not self.kind.is_inexact:
            return [
                field if value is old else formatter(value)
                for value, old, field in zip(found, self.values, self.fields, strict=True)
            ]
        decode = self.kind.decode
        # repr, because True equals 1 and 1 equals 1.0
        return [
            field if repr(value) == repr(decode(field)) else formatter(value)
            for value, field in zip(found, self.fields, strict=True)
        ]


def _fingerprint(found: Any) -> bytes | None:
    """Equal for values that are equal in every part and type; None if a value cannot be serialized."""
    try:
        return marshal.dumps(found, 2)  # later versions of the format depend on reference counts
    except ValueError:
        return None


class Origins:
    """The original text of a batch's rows: an unchanged value is written with the text it was read with."""

    def __init__(self, count: int, columns: Mapping[str, _OriginalColumn]) -> None:
        self.columns = columns
        self._count = count
        self._is_inexact = any(column.kind.is_inexact for column in columns.values())

    def of(self, rows: Sequence[Row], key: Sequence[str]) -> "Origins | None":
        """The origins of rows derived from these: matched by position, or by key if the positions may have changed."""
        is_same_length = len(rows) == self._count
        if not self._is_inexact:
            # every value of these types, changed or not, has exactly one text
            return self if is_same_length else None
        if any(name not in self.columns or name not in rows[0] for name in key):
            return None
        found = [list(map(itemgetter(name), rows)) for name in key]
        read = [self.columns[name].values for name in key]
        if is_same_length and all(all(map(is_, new, old)) for new, old in zip(found, read, strict=True)):
            return self
        places = {place_key: place for place, place_key in enumerate(_key_fields(read))}
        return self._reordered_by([places.get(row_key) for row_key in _key_fields(found)])

    def _reordered_by(self, places: Sequence[int | None]) -> "Origins":
        unknown = values.NULL, object()  # equal to no value of any row
        columns: dict[str, _OriginalColumn] = {}
        for name, original in self.columns.items():
            pairs = list(zip(original.fields, original.values, strict=True))
            ordered = [unknown if place is None else pairs[place] for place in places]
            fields, decoded = [field for field, _ in ordered], [value for _, value in ordered]
            columns[name] = _OriginalColumn(original.kind, fields, decoded, None)
        return Origins(len(places), columns)


def _key_fields(columns: Sequence[Sequence[Any]]) -> Iterable[tuple[str, ...]]:
    return zip(*[map(values.field_of, column) for column in columns], strict=True)


# -- rows to text -----------------------------------------------------------------------------------------------------


def format_rows(payload: PythonRows, columns: Sequence[Column], is_json: Callable[[Column], bool]) -> bytes:
    """Rows in COPY's text format; DataError for a value of a type that PostgreSQL does not have."""
    if not payload.count:
        return b""
    origins = cast(Origins | None, payload.origins)
    fields = [
        _format_column(
            column.name,
            list(map(itemgetter(column.name), payload.rows)),
            origins and origins.columns.get(column.name),
            values.json_field_of if is_json(column) else values.field_of,
        )
        for column in columns
    ]
    try:
        return ("\n".join(map("\t".join, zip(*fields, strict=True))) + "\n").encode()
    except UnicodeEncodeError as exc:
        raise DataError(
            "a text contains a lone surrogate, which is not a valid character; remove it", code="TRANSFORM_ERROR"
        ) from exc


def _format_column(
    name: str, found: Sequence[Any], original: _OriginalColumn | None, formatter: Formatter
) -> Sequence[str]:
    if original is not None and original.are_unchanged(found):
        return original.fields
    try:
        is_exact = formatter is values.field_of and (original is None or not original.kind.is_inexact)
        if is_exact and (fields := values.fields_of(found)) is not None:
            return fields
        return list(map(formatter, found)) if original is None else original.format(found, formatter)
    except (TypeError, ValueError) as exc:
        raise DataError(_unsupported_value(name, found, formatter), code="TRANSFORM_ERROR") from exc


def _unsupported_value(name: str, found: Sequence[Any], formatter: Formatter) -> str:
    for value in found:
        try:
            formatter(value)
        except (TypeError, ValueError):
            kind = type(value).__name__
            return f"column '{name}' has a value of type {kind}, which PostgreSQL does not have; convert it to text"
    return f"column '{name}' has a value that PostgreSQL cannot store; convert it to text"
