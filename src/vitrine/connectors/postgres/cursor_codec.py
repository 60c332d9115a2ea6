"""Cursor values between COPY's binary format, PostgreSQL's text format and numbers, without rounding."""

import struct
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from vitrine.core.copytext import values
from vitrine.core.rows import Bytes

HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack("!ii", 0, 0)
TRAILER = b"\xff\xff"

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_DAYS_1970_TO_2000 = values.days("2000-01-01")
_LENGTH = struct.Struct("!i")
_LONG = struct.Struct("!q")
_INT = struct.Struct("!i")
_SHORT = struct.Struct("!h")

INT2, INT4, INT8 = 21, 23, 20
TEXT, VARCHAR, BPCHAR, NAME = 25, 1043, 1042, 19
UUID_OID = 2950
DATE, TIMESTAMP, TIMESTAMPTZ = 1082, 1114, 1184

INTEGERS = frozenset({INT2, INT4, INT8})
TIMES = frozenset({DATE, TIMESTAMP, TIMESTAMPTZ})


def fields(data: Bytes, wanted: Sequence[int], start: int = 0) -> tuple[bytes | None, ...]:
    """The fields at these positions of the row that begins at `start`, None for NULL."""
    found: dict[int, bytes | None] = {}
    last = max(wanted)
    offset = start + 2
    for index in range(last + 1):
        (length,) = _LENGTH.unpack_from(data, offset)
        offset += 4
        if index in wanted:
            found[index] = None if length < 0 else bytes(data[offset : offset + length])
        offset += max(length, 0)
    return tuple(found[index] for index in wanted)


def starts(data: Bytes) -> Iterator[int]:
    """Where each row begins."""
    offset = 0
    while offset < len(data):
        yield offset
        (count,) = _SHORT.unpack_from(data, offset)
        offset += 2
        for _ in range(count):
            offset += 4 + max(_LENGTH.unpack_from(data, offset)[0], 0)


def number(type_oid: int, raw: bytes) -> int:
    """An integer as it is; a time as PostgreSQL stores it: days or microseconds since 2000, infinities are extremes."""
    if type_oid in (INT4, DATE):
        return _INT.unpack(raw)[0]
    return _SHORT.unpack(raw)[0] if type_oid == INT2 else _LONG.unpack(raw)[0]


def encoded(type_oid: int, text: str) -> bytes:
    """An integer or a time in text format, as the bytes that `number` reads."""
    if type_oid in INTEGERS:
        return int(text).to_bytes({INT2: 2, INT4: 4, INT8: 8}[type_oid], "big", signed=True)
    since = 0 if text.endswith("infinity") else _DAYS_1970_TO_2000
    if type_oid == DATE:
        return _INT.pack(values.days(text) - since)
    return _LONG.pack(values.microseconds(text) - since * values.MICROSECONDS_A_DAY)


def text_number(type_oid: int, text: str) -> int:
    """The number of a value in text format."""
    return number(type_oid, encoded(type_oid, text))


def length_number(type_oid: int, length: timedelta) -> int:
    """A duration in the units of `number`, rounded up."""
    return -(-length // (timedelta(days=1) if type_oid == DATE else timedelta(microseconds=1)))


def formatter(type_oid: int) -> Callable[[bytes], str | None] | None:
    """Formats binary values of a type as PostgreSQL does under UTC and ISO; None if only PostgreSQL can.

    The formatter returns None for a value it cannot format exactly (infinity, years that Python lacks).
    """
    if type_oid in INTEGERS:
        return lambda raw: str(number(type_oid, raw))
    if type_oid in (TEXT, VARCHAR, NAME):
        return lambda raw: raw.decode()
    if type_oid == UUID_OID:
        return lambda raw: str(UUID(bytes=raw))
    if type_oid in (TIMESTAMP, TIMESTAMPTZ):
        return lambda raw: _time_text(type_oid, raw)
    return None


def _time_text(type_oid: int, raw: bytes) -> str | None:
    try:
        moment = _EPOCH + timedelta(microseconds=_LONG.unpack(raw)[0])
    except OverflowError:
        return None
    return f"{_utc_text(moment)}+00" if type_oid == TIMESTAMPTZ else _utc_text(moment)


def moment_text(moment: datetime) -> str:
    """A moment as PostgreSQL formats it under UTC and ISO."""
    return f"{_utc_text(moment.astimezone(UTC))}+00"


def _utc_text(moment: datetime) -> str:
    text = moment.strftime("%Y-%m-%d %H:%M:%S").rjust(19, "0")
    fraction = f".{moment.microsecond:06d}".rstrip("0") if moment.microsecond else ""
    return f"{text}{fraction}"
