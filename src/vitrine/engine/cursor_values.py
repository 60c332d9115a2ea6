"""Values of a cursor as a person writes them, in the text format of the cursor's type."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from vitrine.flow.rows import Column, Kind, bare_type

_INTEGERS = {
    "smallint": (-(2**15), 2**15),
    "integer": (-(2**31), 2**31),
    "bigint": (-(2**63), 2**63),
    "oid": (0, 2**32),
}
_SHOWN = 60  # characters of a wrong value that a message repeats
_INFINITE = {"-infinity": -1, "infinity": 1}


@dataclass(frozen=True)
class CursorValue:
    """One value: its text, a lower one, and its place in the order."""

    text: str
    below: str  # equal to `text` if there is none
    place: Any = None  # None: only the source knows the order of the type

    def is_before(self, other: "CursorValue") -> bool:
        if self.place is None or other.place is None:
            return self.text != other.text
        return bool(self.place < other.place)


def parse(column: Column, text: str) -> CursorValue:
    """The value in the type of the column; ValueError with a sentence if it is not of that type."""
    given = text.strip()
    parser = _PARSERS.get(column.kind, _any)
    try:
        return parser(column, given)
    except (ValueError, OverflowError, InvalidOperation) as exc:
        reason = str(exc) if isinstance(exc, _Refused) else _EXPECTED.get(column.kind, "give another value")
        shown = given if len(given) <= _SHOWN else f"{given[:_SHOWN]}…"
        raise ValueError(
            f"'{shown}' is not a value of '{column.name}', which is of type {column.type}: {reason}"
        ) from None


class _Refused(ValueError):
    """A reason that the user may read."""


def _integer(column: Column, text: str) -> CursorValue:
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text):
        raise ValueError(text)
    value = int(text)
    lowest, beyond = _INTEGERS.get(bare_type(column.type), _INTEGERS["bigint"])
    if not lowest <= value < beyond:
        raise _Refused(f"give an integer from {lowest} to {beyond - 1}")
    return CursorValue(str(value), str(max(value - 1, lowest)), value)


def _decimal(column: Column, text: str) -> CursorValue:
    value = Decimal(text)
    if not value.is_finite() or len(text) > 1000:
        raise ValueError(text)
    return CursorValue(f"{value:f}", f"{value - 1:f}", value)


def _float(column: Column, text: str) -> CursorValue:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    # the neighbour of a double may be the same real: one below any rounding
    lower = value - max(1.0, abs(value) * 1e-6)
    return CursorValue(repr(value), repr(lower), value)


def _date(column: Column, text: str) -> CursorValue:
    if text in _INFINITE:
        return CursorValue(text, text, (_INFINITE[text],))
    value = date.fromisoformat(text)
    before = value - timedelta(days=1) if value > date.min else value
    return CursorValue(value.isoformat(), before.isoformat(), (0, value))


def _moment(column: Column, text: str) -> CursorValue:
    """A time with a zone; without one it is UTC."""
    if text in _INFINITE:
        return CursorValue(text, text, (_INFINITE[text],))
    value = _time(text)
    value = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    return CursorValue(_formatted(value), _formatted(_just_before(value)), (0, value))


def _local_time(column: Column, text: str) -> CursorValue:
    if text in _INFINITE:
        return CursorValue(text, text, (_INFINITE[text],))
    value = _time(text)
    if value.tzinfo is not None:
        raise _Refused("it has no time zone; give the time without one, such as 2025-01-31T12:00:00")
    return CursorValue(_formatted(value), _formatted(_just_before(value)), (0, value))


def _time(text: str) -> datetime:
    if re.search(r"[.,][0-9]{7,}", text):
        raise _Refused("give at most six digits of a second")
    return datetime.fromisoformat(text)


def _just_before(value: datetime) -> datetime:
    try:
        return value - timedelta(microseconds=1)
    except OverflowError:
        return value


def _formatted(value: datetime) -> str:
    """As PostgreSQL writes it; isoformat leaves zeros out as well."""
    text = value.replace(tzinfo=None).isoformat(sep=" ")
    return f"{text}+00" if value.tzinfo is not None else text


def _uuid(column: Column, text: str) -> CursorValue:
    value = UUID(text)
    return CursorValue(str(value), str(UUID(int=max(value.int - 1, 0))), value.int)


def _any(column: Column, text: str) -> CursorValue:
    if not text or "\0" in text:
        raise _Refused("give a text without NUL characters")
    return CursorValue(text, text)


_PARSERS: dict[Kind, Callable[[Column, str], CursorValue]] = {
    Kind.INTEGER: _integer,
    Kind.DECIMAL: _decimal,
    Kind.FLOAT: _float,
    Kind.DATE: _date,
    Kind.TIMESTAMP: _local_time,
    Kind.TIMESTAMPTZ: _moment,
    Kind.UUID: _uuid,
}
_EXPECTED = {
    Kind.INTEGER: "give an integer such as 1000",
    Kind.DECIMAL: "give a number such as 10.5",
    Kind.FLOAT: "give a number such as 10.5",
    Kind.DATE: "give a date such as 2025-01-31",
    Kind.TIMESTAMP: "give a time such as 2025-01-31T12:00:00",
    Kind.TIMESTAMPTZ: "give a time such as 2025-01-31T12:00:00Z",
    Kind.UUID: "give a UUID",
}
