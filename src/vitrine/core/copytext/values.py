"""Single values, in PostgreSQL's text format (UTC and ISO) and as Python objects."""

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import repeat
from typing import Any, NoReturn, cast
from uuid import UUID

from vitrine.core.rows import bare_type
from vitrine.errors import DataError

NULL = "\\N"

Decoder = Callable[[str], Any]
Formatter = Callable[[Any], str]

# -- the fields of COPY's text format ---------------------------------------------------------------------------------

_ESCAPES = {"\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}
_UNESCAPES = {escaped[1]: plain for plain, escaped in _ESCAPES.items()}
_SPECIAL = re.compile(r"[\\\n\r\t]")
_TRANSLATION = str.maketrans(_ESCAPES)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def escape(text: str) -> str:
    return text.translate(_TRANSLATION) if _SPECIAL.search(text) else text


def unescape(field: str) -> str:
    return _ESCAPED.sub(lambda found: _UNESCAPES.get(found[1], found[1]), field) if "\\" in field else field


# -- text to value ----------------------------------------------------------------------------------------------------


class TextUuid(UUID):
    """A UUID that keeps its text and computes its number on first access."""

    __slots__ = ("text",)
    text: str

    def __getattr__(self, name: str) -> Any:
        # the slots of UUID are empty until the first access
        if name not in ("int", "is_safe"):
            raise AttributeError(name)
        whole = UUID(self.text)
        object.__setattr__(self, "int", whole.int)
        object.__setattr__(self, "is_safe", whole.is_safe)
        return getattr(whole, name)

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[type[UUID], tuple[str]]:
        return UUID, (self.text,)


def _uuid(text: str, new: Any = object.__new__, set_text: Any = TextUuid.text.__set__) -> TextUuid:  # pyright: ignore
    value = new(TextUuid)
    set_text(value, text)
    return value


def _uuids(texts: Sequence[str]) -> list[TextUuid]:
    """Calls no Python function per value."""
    found: list[TextUuid] = list(map(object.__new__, repeat(TextUuid, len(texts))))
    deque(map(TextUuid.text.__set__, found, texts), maxlen=0)  # pyright: ignore
    return found


_INTERVAL = re.compile(r"(?:(-?\d+) days? ?)?(?:([+-]?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?")


def _interval(text: str) -> timedelta:
    """ValueError for months and years, whose length varies."""
    found = _INTERVAL.fullmatch(text)
    if found is None or not text:
        raise ValueError("not an interval of fixed length")
    days, sign, hours, minutes, seconds, fraction = found.groups("")
    within = timedelta(
        hours=int(hours or 0),
        minutes=int(minutes or 0),
        seconds=int(seconds or 0),
        microseconds=int(fraction.ljust(6, "0")),
    )
    return timedelta(days=int(days or 0)) + (-within if sign == "-" else within)


_ARRAY_PART = re.compile(r'[{}]|"((?:[^"\\]|\\.)*)"|[^{},"]+', re.DOTALL)


def _array(text: str, element: Decoder) -> list[Any]:
    """The elements, nested as in the text; lower bounds are dropped."""
    if text.startswith("["):
        text = text.partition("=")[2]
    if '"' not in text and "{" not in text[1:]:
        inner = text[1:-1]
        return [None if part == "NULL" else element(part) for part in inner.split(",")] if inner else []
    open_lists: list[list[Any]] = [[]]
    for part in _ARRAY_PART.finditer(text):
        if part[0] == "{":
            open_lists.append([])
        elif part[0] == "}":
            done = open_lists.pop()
            open_lists[-1].append(done)
        elif part[1] is not None:
            open_lists[-1].append(element(_ESCAPED.sub(r"\1", part[1])))
        else:
            open_lists[-1].append(None if part[0] == "NULL" else element(part[0]))
    return open_lists[0][0]


# Their text contains no backslash, so a field needs no unescaping
_PLAIN_DECODERS: dict[str, Decoder] = {
    "boolean": "t".__eq__,
    "smallint": int,
    "integer": int,
    "bigint": int,
    "oid": int,
    "real": float,
    "double precision": float,
    "numeric": Decimal,
    "uuid": _uuid,
    "date": date.fromisoformat,
    "timestamp without time zone": datetime.fromisoformat,
    "timestamp with time zone": datetime.fromisoformat,
    "time without time zone": time.fromisoformat,
    "time with time zone": time.fromisoformat,
    "interval": _interval,
}
_ESCAPED_DECODERS: dict[str, Decoder] = {
    "bytea": lambda text: bytes.fromhex(text[2:]),
    "json": json.loads,
    "jsonb": json.loads,
}

# The text of a decoded value may differ from the text that was read: 1.00 in JSON, 26 hours, bounds of an array
_INEXACT = frozenset({"json", "jsonb", "interval"})


def decoder(type_name: str) -> Decoder:
    """Decodes a field that is not NULL; a value whose type has no Python counterpart stays text.

    Raises ValueError, OverflowError or RecursionError for values that Python cannot represent: infinity, the year
    10000, 24:00:00, months, JSON a thousand levels deep.
    """
    bare = bare_type(type_name)
    if (plain := _PLAIN_DECODERS.get(bare)) is not None:
        return plain
    decode = _text_decoder(bare)
    return unescape if decode is str else lambda field: decode(unescape(field))


def plain_decoder(type_name: str) -> Callable[[Sequence[str]], Sequence[Any]]:
    """Decodes a whole column whose fields contain no backslash, and therefore no NULL."""
    bare = bare_type(type_name)
    if bare == "uuid":
        return _uuids
    decode = _text_decoder(bare)
    return (lambda fields: fields) if decode is str else lambda fields: list(map(decode, fields))


def _text_decoder(bare: str) -> Decoder:
    if bare.endswith("[]") and bare != "box[]":  # the only type whose elements are not separated by commas
        element = _text_decoder(bare_type(bare.removesuffix("[]")))
        return lambda text: _array(text, element)
    return _PLAIN_DECODERS.get(bare) or _ESCAPED_DECODERS.get(bare, str)


def is_inexact(type_name: str) -> bool:
    """Whether the text of a decoded value may differ from the text that was read."""
    return is_array(type_name) or bare_type(type_name) in _INEXACT


def is_mutable(type_name: str) -> bool:
    """Whether its values can be changed in place."""
    return is_array(type_name) or is_json(type_name)


def is_array(type_name: str) -> bool:
    return type_name.endswith("[]")


def is_json(type_name: str) -> bool:
    return bare_type(type_name) in ("json", "jsonb")


class Unreadable:
    """Placeholder for a value that Python cannot hold: it can be passed on; any other use raises UnreadableValue."""

    __slots__ = ("column", "field", "type_name")
    __hash__ = object.__hash__

    def __init__(self, field: str, column: str, type_name: str) -> None:
        self.field = field
        self.column = column
        self.type_name = type_name

    def __repr__(self) -> str:
        return f"<a {self.type_name} that Python cannot hold>"

    def _refuse(self, *_: object) -> NoReturn:
        raise UnreadableValue(
            f"column '{self.column}' ({self.type_name}) has a value that Python cannot hold; cast it in the query, for"
            " example to text"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()


for _operation in [
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "add",
    "radd",
    "sub",
    "rsub",
    "mul",
    "rmul",
    "truediv",
    "rtruediv",
    "floordiv",
    "rfloordiv",
    "mod",
    "rmod",
    "neg",
    "abs",
    "bool",
    "len",
    "iter",
    "contains",
    "getitem",
    "str",
    "format",
    "int",
    "float",
    "index",
]:
    setattr(Unreadable, f"__{_operation}__", Unreadable._refuse)  # pyright: ignore[reportPrivateUsage]


class UnreadableValue(DataError):
    """A transform used a value that Python cannot hold."""

    default_code = "TRANSFORM_ERROR"


# -- value to text ----------------------------------------------------------------------------------------------------


def _format_interval(value: timedelta) -> str:
    return f"{value.days} days {value.seconds}.{value.microseconds:06d} seconds"


def _format_bytes(value: bytes | bytearray | memoryview) -> str:
    return f"\\x{value.hex()}"


def _format_json(value: Any) -> str:
    return json.dumps(value, default=_inside_json, ensure_ascii=False)


def _inside_json(value: Any) -> str:
    if isinstance(value, date | time | UUID):
        return str(value)
    raise TypeError(f"JSON has no type for {type(value).__name__}")


def _format_array(elements: Iterable[Any]) -> str:
    return "{" + ",".join(map(_format_element, elements)) + "}"


def _format_element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list | tuple):
        return _format_array(cast(Sequence[Any], value))
    text = to_text(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


# Their text contains no character that is special in COPY
_PLAIN_FORMATTERS: dict[type, Formatter] = {
    bool: lambda value: "t" if value else "f",
    int: int.__repr__,
    float: float.__repr__,
    Decimal: str,
    UUID: str,
    TextUuid: str,
    datetime: str,
    date: str,
    time: str,
    timedelta: _format_interval,
}
_ESCAPED_FORMATTERS: dict[type, Formatter] = {
    str: str.__str__,
    bytes: _format_bytes,
    bytearray: _format_bytes,
    memoryview: _format_bytes,
    dict: _format_json,
    list: _format_array,
    tuple: _format_array,
}


def to_text(value: Any) -> str:
    """The text of a value that is not None, as PostgreSQL reads it; TypeError for a type it does not have."""
    for kind in type(value).__mro__:
        if (formatter := _PLAIN_FORMATTERS.get(kind) or _ESCAPED_FORMATTERS.get(kind)) is not None:
            return formatter(value)
    raise TypeError(f"PostgreSQL has no type for {type(value).__name__}")


def field_of(value: Any) -> str:
    """A value as a field of COPY's text format; TypeError for a type that PostgreSQL does not have."""
    if value is None:
        return NULL
    if (formatter := _PLAIN_FORMATTERS.get(value.__class__)) is not None:
        return formatter(value)
    return value.field if isinstance(value, Unreadable) else escape(to_text(value))


def fields_of(found: Sequence[Any]) -> Sequence[str] | None:
    """The fields of a whole column whose values are all of one simple type; None for any other column."""
    kinds = set(map(type, found))
    if len(kinds) != 1:
        return None
    if kinds == {str}:
        return None if _SPECIAL.search("".join(found)) else found
    formatter = _PLAIN_FORMATTERS.get(kinds.pop())
    return None if formatter is None else list(map(formatter, found))


def json_field_of(value: Any) -> str:
    """A value as a field of a JSON column, where a list is a JSON array and text is quoted."""
    if isinstance(value, Unreadable):
        return value.field
    return NULL if value is None else escape(_format_json(value))


# -- times as numbers -------------------------------------------------------------------------------------------------

MICROSECONDS_A_DAY = 86_400_000_000
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097  # the calendar repeats after this period
_EPOCH = date(1970, 1, 1).toordinal()
_MOMENT = re.compile(r"(\d{4,})-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:\+00)?)?( BC)?")


def microseconds(text: str) -> int:
    """Since 1970, of a timestamp in text format under UTC; infinities are the extremes of 64 bits, as in PostgreSQL."""
    if text in ("infinity", "-infinity"):
        return -(2**63) if text[0] == "-" else 2**63 - 1
    _, hours, minutes, seconds, fraction = _moment(text)
    time_of_day = (int(hours) * 60 + int(minutes)) * 60 + int(seconds)
    return days(text) * MICROSECONDS_A_DAY + time_of_day * 1_000_000 + int(fraction.ljust(6, "0"))


def days(text: str) -> int:
    """Since 1970, of a date or of a timestamp; infinities are the extremes of 32 bits."""
    if text in ("infinity", "-infinity"):
        return -(2**31) if text[0] == "-" else 2**31 - 1
    return _moment(text)[0]


def _moment(text: str) -> tuple[int, str, str, str, str]:
    found = _MOMENT.fullmatch(text)
    if found is None:
        raise ValueError("not a time in PostgreSQL's text format")
    year, month, day, hours, minutes, seconds, fraction, before_christ = found.groups("0")
    cycles, rest = divmod((1 - int(year) if before_christ != "0" else int(year)) - 1, _CYCLE_YEARS)
    ordinal = date(rest + 1, int(month), int(day)).toordinal() + cycles * _CYCLE_DAYS
    return ordinal - _EPOCH, hours, minutes, seconds, fraction


def format_microseconds(value: int, *, zoned: bool) -> str:
    """The timestamp in text format, for any year."""
    if value in (-(2**63), 2**63 - 1):
        return "-infinity" if value < 0 else "infinity"
    day, within = divmod(value, MICROSECONDS_A_DAY)
    seconds, fraction = divmod(within, 1_000_000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:06d}"
    text, _, suffix = format_days(day).partition(" ")
    return f"{text} {clock}{'+00' if zoned else ''}{' ' + suffix if suffix else ''}"


def format_days(value: int) -> str:
    """The date in text format, for any year."""
    if value in (-(2**31), 2**31 - 1):
        return "-infinity" if value < 0 else "infinity"
    cycles, rest = divmod(value + _EPOCH - 1, _CYCLE_DAYS)
    day = date.fromordinal(rest + 1)
    year = day.year + cycles * _CYCLE_YEARS
    shown = f"{year:04d}" if year > 0 else f"{1 - year:04d}"
    return f"{shown}-{day.month:02d}-{day.day:02d}{'' if year > 0 else ' BC'}"
