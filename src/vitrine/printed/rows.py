"""Rows as dictionaries that decode a column when it is touched, and print what nobody touched as it came."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

from vitrine.errors import DataError
from vitrine.flow import Column
from vitrine.model import Row
from vitrine.printed import values

_NEW = object()


class Layout:
    """The columns of printed rows, and how to decode each."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.names = tuple(column.name for column in columns)
        self.places = {name: place for place, name in enumerate(self.names)}
        self.types = tuple(column.readable_type for column in columns)
        self.decoders = tuple(values.decoder(kind) for kind in self.types)
        self.inexact = frozenset(
            name for name, kind in zip(self.names, self.types, strict=True) if values.is_inexact(kind)
        )

    def decode(self, place: int, field: str) -> Any:
        if field == values.NULL:
            return None
        try:
            return self.decoders[place](field)
        except (ValueError, ArithmeticError):
            return values.Unreadable(field, self.names[place], self.types[place])


@lru_cache(maxsize=64)
def layout_of(columns: tuple[Column, ...]) -> Layout:
    return Layout(columns)


class PrintedRow(dict[str, Any]):
    """A row that looks like the dictionary of its values.

    The dictionary below holds what was decoded or set; a column that is missing there is decoded from its field. Any
    question about the whole row decodes all of it first, and from then on it is a dictionary like others.
    """

    __slots__ = ("fields", "is_lazy", "layout")

    fields: list[str]
    is_lazy: bool
    layout: Layout

    def __missing__(self, name: str) -> Any:
        place = self.layout.places.get(name) if self.is_lazy else None
        if place is None:
            raise KeyError(name)
        value = self[name] = self.layout.decode(place, self.fields[place])
        return value

    def set_values(self) -> Row:
        """What was decoded or set, and nothing else."""
        return dict(dict.items(self))

    def whole(self) -> "PrintedRow":
        """The same row, with every column decoded, in the order of the columns."""
        if self.is_lazy:
            known = dict(dict.items(self))
            decoded = list(map(self.layout.decode, range(len(self.fields)), self.fields))
            self.is_lazy = False
            dict.clear(self)
            dict.update(self, zip(self.layout.names, decoded, strict=True))
            dict.update(self, known)
        return self

    def shape(self) -> frozenset[str]:
        names = dict.keys(self)
        if not self.is_lazy:
            return frozenset(names)
        return frozenset(self.layout.places) | names

    def __contains__(self, name: object) -> bool:
        return dict.__contains__(self, name) or (self.is_lazy and name in self.layout.places)

    def __len__(self) -> int:
        return len(self.shape())

    def __iter__(self) -> Iterator[str]:
        return dict.__iter__(self.whole())

    def __reversed__(self) -> Iterator[str]:
        return dict.__reversed__(self.whole())

    def keys(self) -> Any:
        return dict.keys(self.whole())

    def values(self) -> Any:
        return dict.values(self.whole())

    def items(self) -> Any:
        return dict.items(self.whole())

    def get(self, name: str, default: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self[name] if name in self else default

    def pop(self, *arguments: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return dict.pop(self.whole(), *arguments)

    def popitem(self) -> tuple[str, Any]:
        return dict.popitem(self.whole())

    def setdefault(self, name: str, default: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return dict.setdefault(self.whole(), name, default)

    def __delitem__(self, name: str) -> None:
        dict.__delitem__(self.whole(), name)

    def clear(self) -> None:
        dict.clear(self.whole())

    def copy(self) -> "PrintedRow":
        return printed_row(self.layout, self.fields, dict.items(self), is_lazy=self.is_lazy)

    __copy__ = copy

    def __or__(self, other: Any) -> Any:
        if not isinstance(other, dict):
            return NotImplemented
        joined = self.copy()
        joined.update(cast(Row, other))
        return joined

    def __ror__(self, other: Any) -> Any:
        return cast(Row, other) | dict(self) if isinstance(other, dict) else NotImplemented

    def __eq__(self, other: object) -> bool:
        theirs = other.whole() if isinstance(other, PrintedRow) else other
        return dict.__eq__(self.whole(), theirs)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return dict.__repr__(self.whole())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (dict(self),)


def printed_row(layout: Layout, fields: list[str], known: Any = (), *, is_lazy: bool) -> PrintedRow:
    row = PrintedRow(known)
    row.layout, row.fields, row.is_lazy = layout, fields, is_lazy
    return row


# -- from text and back -----------------------------------------------------------------------------------------------


def parse(data: bytes | bytearray, columns: tuple[Column, ...]) -> list[PrintedRow]:
    """Every line as a row; nothing is decoded yet."""
    layout = layout_of(columns)
    new = PrintedRow.__new__
    rows: list[PrintedRow] = []
    for line in data.decode().split("\n")[:-1]:
        row = new(PrintedRow)
        row.layout = layout
        row.fields = line.split("\t")
        row.is_lazy = True
        rows.append(row)
    return rows


def with_origin(row: Mapping[str, Any], origin: PrintedRow) -> PrintedRow:
    """The same values, together with the fields that they came from: what is unchanged prints as it came."""
    return printed_row(origin.layout, origin.fields, row.items(), is_lazy=False)


def print_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], is_json: Callable[[Column], bool]) -> bytes:
    """Rows in COPY's text format; DataError for a value that Postgres does not know."""
    printers = {c.name: values.json_field_of if is_json(c) else values.field_of for c in columns}
    try:
        return "".join([_line(row, printers) for row in rows]).encode()
    except UnicodeEncodeError as exc:
        raise DataError("a text has half a character (a lone surrogate) in it", code="TRANSFORM_ERROR") from exc


def _line(row: Mapping[str, Any], printers: Mapping[str, values.Printer]) -> str:
    try:
        if not isinstance(row, PrintedRow):
            return "\t".join([printer(row[name]) for name, printer in printers.items()]) + "\n"
        return "\t".join(_fields(row, printers)) + "\n"
    except (TypeError, ValueError) as exc:
        raise DataError(_unprintable(row, printers), code="TRANSFORM_ERROR") from exc


def _fields(row: PrintedRow, printers: Mapping[str, values.Printer]) -> Sequence[str]:
    layout, known = row.layout, row.set_values()
    fields = dict(zip(layout.names, row.fields, strict=True)) if row.is_lazy else {}
    for name, value in known.items():
        fields[name] = _field(row, name, value, printers[name])
    return [fields[name] for name in printers]


def _field(row: PrintedRow, name: str, value: Any, printer: values.Printer) -> str:
    if name in row.layout.inexact:
        field = row.fields[place := row.layout.places[name]]
        # repr, because True equals 1 and 1 equals 1.0
        if repr(row.layout.decode(place, field)) == repr(value):
            return field
    return printer(value)


def _unprintable(row: Mapping[str, Any], printers: Mapping[str, values.Printer]) -> str:
    for name, printer in printers.items():
        try:
            printer(row[name])
        except (TypeError, ValueError):
            kind = type(row[name]).__name__
            return f"column '{name}' has a value of type {kind} that Postgres does not know; make a text of it"
    return "a row has a value that Postgres does not know"
