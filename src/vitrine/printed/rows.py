"""Rows as dictionaries that decode a column when it is touched, and print what nobody touched as it came."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, cast

from vitrine.errors import DataError
from vitrine.flow import Column, Decoded
from vitrine.model import Row
from vitrine.printed import values

_PLAIN: type[Row] = dict  # the dictionary below a row


class Layout:
    """The columns of printed rows, and how to decode each."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.names = tuple(column.name for column in columns)
        self.name_set = frozenset(self.names)
        self.places = {name: place for place, name in enumerate(self.names)}
        self.types = tuple(column.readable_type for column in columns)
        self.decoders = tuple(values.decoder(kind) for kind in self.types)
        self.inexact = frozenset(
            name for name, kind in zip(self.names, self.types, strict=True) if values.is_inexact(kind)
        )

    def decode_all(self, fields: list[str]) -> list[Any]:
        null = values.NULL
        try:
            return [
                None if field == null else decode(field) for decode, field in zip(self.decoders, fields, strict=True)
            ]
        except (ValueError, ArithmeticError):
            return list(map(self.decode, range(len(fields)), fields))

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

    __slots__ = ("decoded", "fields", "is_lazy", "layout")

    fields: list[str]
    decoded: list[Any] | None  # as they came, once the whole row was looked at
    is_lazy: bool
    layout: Layout

    def __missing__(self, name: str) -> Any:
        place = self.layout.places.get(name) if self.is_lazy else None
        if place is None:
            raise KeyError(name)
        value = self[name] = self.layout.decode(place, self.fields[place])
        return value

    def whole(self) -> "PrintedRow":
        """The same row, with every column decoded, in the order of the columns."""
        if self.is_lazy:
            layout, known = self.layout, dict(_PLAIN.items(self)) if _PLAIN.__len__(self) else None
            self.is_lazy = False
            self.decoded = layout.decode_all(self.fields)
            if known is not None:
                _PLAIN.clear(self)  # for the order of the columns
            _PLAIN.update(self, zip(layout.names, self.decoded, strict=True))
            if known is not None:
                _PLAIN.update(self, known)
        return self

    def names(self) -> tuple[str, ...]:
        """The names of the columns; nothing is decoded for them."""
        if not self.is_lazy:
            return tuple(_PLAIN.keys(self))
        return (*self.layout.names, *(name for name in _PLAIN.keys(self) if name not in self.layout.places))

    def has_other_names(self, names: frozenset[str]) -> bool:
        own = _PLAIN.keys(self)
        if not self.is_lazy:
            return own != names
        all_of_them = self.layout.name_set
        return (all_of_them if own <= all_of_them else all_of_them | own) != names

    def __contains__(self, name: object) -> bool:
        return _PLAIN.__contains__(self, name) or (self.is_lazy and name in self.layout.places)

    def __len__(self) -> int:
        return len(self.names())

    def __iter__(self) -> Iterator[str]:
        return _PLAIN.__iter__(self.whole())

    def __reversed__(self) -> Iterator[str]:
        return _PLAIN.__reversed__(self.whole())

    def keys(self) -> Any:
        return _PLAIN.keys(self.whole())

    def values(self) -> Any:
        return _PLAIN.values(self.whole())

    def items(self) -> Any:
        return _PLAIN.items(self.whole())

    def get(self, name: str, default: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self[name] if name in self else default  # noqa: SIM401  get is what is defined here

    def pop(self, *arguments: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _PLAIN.pop(self.whole(), *arguments)

    def popitem(self) -> tuple[str, Any]:
        return _PLAIN.popitem(self.whole())

    def setdefault(self, name: str, default: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _PLAIN.setdefault(self.whole(), name, default)

    def __delitem__(self, name: str) -> None:
        _PLAIN.__delitem__(self.whole(), name)

    def clear(self) -> None:
        _PLAIN.clear(self.whole())

    def copy(self) -> "PrintedRow":
        twin = PrintedRow(_PLAIN.items(self))
        twin.layout, twin.fields, twin.decoded, twin.is_lazy = self.layout, self.fields, self.decoded, self.is_lazy
        return twin

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
        return _PLAIN.__eq__(self.whole(), theirs)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return _PLAIN.__repr__(self.whole())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (dict(self),)


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
        row.decoded = None
        row.is_lazy = True
        rows.append(row)
    return rows


def print_rows(payload: Decoded, columns: Sequence[Column], is_json: Callable[[Column], bool]) -> bytes:
    """Rows in COPY's text format; DataError for a value that Postgres does not know."""
    press = _Press(columns, is_json)
    origins = cast(Sequence[PrintedRow | None], payload.origins) or [None] * payload.count
    try:
        return "".join(map(press.line, payload.rows, origins)).encode()
    except UnicodeEncodeError as exc:
        raise DataError("a text has half a character (a lone surrogate) in it", code="TRANSFORM_ERROR") from exc


class _Press:
    """Prints rows of the same columns, each value as it came wherever it is still the one that came."""

    def __init__(self, columns: Sequence[Column], is_json: Callable[[Column], bool]) -> None:
        self._names = [column.name for column in columns]
        self._printers = [values.json_field_of if is_json(column) else values.field_of for column in columns]
        self._positions = {name: position for position, name in enumerate(self._names)}
        self._layout: Layout | None = None  # of the last origin, what follows belongs to it
        self._places: list[int | None] = []
        self._inexact: list[tuple[int, int]] = []
        self._is_extended = False

    def line(self, row: Row, origin: PrintedRow | None) -> str:
        try:
            if isinstance(row, PrintedRow):
                origin = row
            if origin is None:
                fields = [printer(row[name]) for name, printer in zip(self._names, self._printers, strict=True)]
            else:
                self._know(origin.layout)
                fields = self._untouched(origin) if origin.is_lazy and origin is row else self._unchanged(row, origin)
        except (TypeError, ValueError) as exc:
            raise DataError(self._complaint(row), code="TRANSFORM_ERROR") from exc
        return "\t".join(fields) + "\n"

    def _know(self, layout: Layout) -> None:
        if layout is self._layout:
            return
        self._layout = layout
        self._places = [None if name in layout.inexact else layout.places.get(name) for name in self._names]
        self._inexact = [
            (position, layout.places[name]) for position, name in enumerate(self._names) if name in layout.inexact
        ]
        self._is_extended = tuple(self._names[: len(layout.names)]) == layout.names

    def _untouched(self, row: PrintedRow) -> list[str]:
        """Of a row that was never looked at as a whole: its own fields, and what was decoded or set."""
        if self._is_extended:
            fields = row.fields + [values.NULL] * (len(self._names) - len(row.fields))
        else:
            fields = [values.NULL if place is None else row.fields[place] for place in self._own_places(row)]
        for name, value in _PLAIN.items(row):
            position = self._positions[name]
            fields[position] = self._printers[position](value)
        self._restore(fields, row, row, [position for position in self._inexact if self._names[position[0]] in row])
        return fields

    def _own_places(self, row: PrintedRow) -> list[int | None]:
        return [row.layout.places.get(name) for name in self._names]

    def _unchanged(self, row: Row, origin: PrintedRow) -> list[str]:
        """Of a dictionary: a value that is the very one that was decoded prints as it came."""
        decoded, own = origin.decoded, origin.fields
        if decoded is None:
            return [printer(row[name]) for name, printer in zip(self._names, self._printers, strict=True)]
        fields = [
            own[place] if place is not None and value is decoded[place] else printer(value)
            for value, place, printer in zip(
                [row[name] for name in self._names], self._places, self._printers, strict=True
            )
        ]
        self._restore(fields, row, origin, self._inexact)
        return fields

    def _restore(self, fields: list[str], row: Row, origin: PrintedRow, positions: Sequence[tuple[int, int]]) -> None:
        """Values that may have been changed in place, or print in several ways: as they came, if they still are."""
        for position, place in positions:
            came = origin.fields[place]
            # repr, because True equals 1 and 1 equals 1.0
            if repr(origin.layout.decode(place, came)) == repr(row[self._names[position]]):
                fields[position] = came

    def _complaint(self, row: Row) -> str:
        for name, printer in zip(self._names, self._printers, strict=True):
            try:
                printer(row[name])
            except (TypeError, ValueError):
                kind = type(row[name]).__name__
                return f"column '{name}' has a value of type {kind} that Postgres does not know; make a text of it"
        return "a row has a value that Postgres does not know"
