"""Single values: as Postgres prints them under UTC and ISO, and as Python holds them."""

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import repeat
from typing import Any, NoReturn, cast
from uuid import UUID

from vitrine.errors import DataError

NULL = "\\N"

Decoder = Callable[[str], Any]
Printer = Callable[[Any], str]

# A declared type may use the short names; Postgres itself prints the long ones
_SYNONYMS = {
    "bool": "boolean",
    "int": "integer",
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "float4": "real",
    "float8": "double precision",
    "decimal": "numeric",
    "varchar": "character varying",
    "char": "character",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
    "time": "time without time zone",
    "timetz": "time with time zone",
}


def bare_type(type_name: str) -> str:
    """The type without length, scale and precision, under the name that Postgres prints."""
    bare = re.sub(r"\s*\([^)]*\)", "", type_name).strip()
    return _SYNONYMS.get(bare, bare)


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


# -- text becomes a value ---------------------------------------------------------------------------------------------


class PrintedUuid(UUID):
    """A UUID that keeps its text, and makes a number of it only when somebody asks for one."""

    __slots__ = ("text",)
    text: str

    def __getattr__(self, name: str) -> Any:
        # the slots of UUID are empty until the first question
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


def _uuid(text: str, new: Any = object.__new__, set_text: Any = PrintedUuid.text.__set__) -> PrintedUuid:  # pyright: ignore
    value = new(PrintedUuid)
    set_text(value, text)
    return value


def _uuids(texts: Sequence[str]) -> list[PrintedUuid]:
    """Nothing is called for each of them that is written in Python."""
    found: list[PrintedUuid] = list(map(object.__new__, repeat(PrintedUuid, len(texts))))
    deque(map(PrintedUuid.text.__set__, found, texts), maxlen=0)  # pyright: ignore
    return found


_INTERVAL = re.compile(r"(?:(-?\d+) days? ?)?(?:([+-]?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?")


def _interval(text: str) -> timedelta:
    """ValueError for months and years, which are no fixed time."""
    found = _INTERVAL.fullmatch(text)
    if found is None or not text:
        raise ValueError("not a fixed time")
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
    """The elements, nested as they are printed; lower bounds are not kept."""
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


# Their texts hold no backslash, so that a field is the value's text
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

# A value of these may print in another way than it came: 1.00 in JSON, 26 hours, bounds of an array
_INEXACT = frozenset({"json", "jsonb", "interval"})


def decoder(type_name: str) -> Decoder:
    """Makes a value of a field that is not NULL; types without a counterpart in Python stay as they are printed.

    It raises ValueError, OverflowError or RecursionError for what Python cannot hold: infinity, the year 10000,
    24:00:00, months, a JSON text a thousand levels deep.
    """
    bare = bare_type(type_name)
    if (plain := _PLAIN_DECODERS.get(bare)) is not None:
        return plain
    decode = _text_decoder(bare)
    return unescape if decode is str else lambda field: decode(unescape(field))


def plain_decoder(type_name: str) -> Callable[[Sequence[str]], Sequence[Any]]:
    """Makes the values of a whole column, in whose fields there is no backslash and so no NULL."""
    bare = bare_type(type_name)
    if bare == "uuid":
        return _uuids
    decode = _text_decoder(bare)
    return (lambda fields: fields) if decode is str else lambda fields: list(map(decode, fields))


def _text_decoder(bare: str) -> Decoder:
    if bare.endswith("[]") and bare != "box[]":  # the one type whose elements are not separated by commas
        element = _text_decoder(bare_type(bare.removesuffix("[]")))
        return lambda text: _array(text, element)
    return _PLAIN_DECODERS.get(bare) or _ESCAPED_DECODERS.get(bare, str)


def is_inexact(type_name: str) -> bool:
    """Whether a value that was decoded may print in another way than it came."""
    return is_array(type_name) or bare_type(type_name) in _INEXACT


def is_mutable(type_name: str) -> bool:
    """Whether a value of it can be changed in place."""
    return is_array(type_name) or is_json(type_name)


def is_array(type_name: str) -> bool:
    return type_name.endswith("[]")


def is_json(type_name: str) -> bool:
    return bare_type(type_name) in ("json", "jsonb")


class Unreadable:
    """Stands for a value that Python cannot hold: it can be passed on, and whoever looks at it is told why."""

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
    """Somebody looked at a value that Python cannot hold."""

    default_code = "TRANSFORM_ERROR"


# -- a value becomes text ---------------------------------------------------------------------------------------------


def _print_interval(value: timedelta) -> str:
    return f"{value.days} days {value.seconds}.{value.microseconds:06d} seconds"


def _print_bytes(value: bytes | bytearray | memoryview) -> str:
    return f"\\x{value.hex()}"


def _print_json(value: Any) -> str:
    return json.dumps(value, default=_inside_json, ensure_ascii=False)


def _inside_json(value: Any) -> str:
    if isinstance(value, date | time | UUID):
        return str(value)
    raise TypeError(f"JSON has no {type(value).__name__}")


def _print_array(elements: Iterable[Any]) -> str:
    return "{" + ",".join(map(_print_element, elements)) + "}"


def _print_element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list | tuple):
        return _print_array(cast(Sequence[Any], value))
    text = plain_text(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


# Their texts hold nothing that COPY would take for something else
_PLAIN_PRINTERS: dict[type, Printer] = {
    bool: lambda value: "t" if value else "f",
    int: int.__repr__,
    float: float.__repr__,
    Decimal: str,
    UUID: str,
    PrintedUuid: str,
    datetime: str,
    date: str,
    time: str,
    timedelta: _print_interval,
}
_ESCAPED_PRINTERS: dict[type, Printer] = {
    str: str.__str__,
    bytes: _print_bytes,
    bytearray: _print_bytes,
    memoryview: _print_bytes,
    dict: _print_json,
    list: _print_array,
    tuple: _print_array,
}


def plain_text(value: Any) -> str:
    """The text of a value that is not None, as Postgres reads it; TypeError for a type it does not know."""
    for kind in type(value).__mro__:
        if (printer := _PLAIN_PRINTERS.get(kind) or _ESCAPED_PRINTERS.get(kind)) is not None:
            return printer(value)
    raise TypeError(f"Postgres has no {type(value).__name__}")


def field_of(value: Any) -> str:
    """A value as a field of COPY's text format; TypeError for a type that Postgres does not know."""
    if value is None:
        return NULL
    if (printer := _PLAIN_PRINTERS.get(value.__class__)) is not None:
        return printer(value)
    return value.field if isinstance(value, Unreadable) else escape(plain_text(value))


def fields_of(found: Sequence[Any]) -> Sequence[str] | None:
    """The same for a whole column whose values are all of one simple type; None for any other."""
    kinds = set(map(type, found))
    if len(kinds) != 1:
        return None
    if kinds == {str}:
        return None if _SPECIAL.search("".join(found)) else found
    printer = _PLAIN_PRINTERS.get(kinds.pop())
    return None if printer is None else list(map(printer, found))


def json_field_of(value: Any) -> str:
    """The same for a column of JSON, where a list is a list and a text is quoted."""
    if isinstance(value, Unreadable):
        return value.field
    return NULL if value is None else escape(_print_json(value))


# -- times as numbers -------------------------------------------------------------------------------------------------

MICROSECONDS_A_DAY = 86_400_000_000
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097  # the calendar repeats itself
_EPOCH = date(1970, 1, 1).toordinal()
_MOMENT = re.compile(r"(\d{4,})-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:\+00)?)?( BC)?")


def microseconds(text: str) -> int:
    """Since 1970, of a timestamp printed under UTC; infinities are the ends of 64 bits, as in Postgres."""
    if text in ("infinity", "-infinity"):
        return -(2**63) if text[0] == "-" else 2**63 - 1
    _, hours, minutes, seconds, fraction = _moment(text)
    time_of_day = (int(hours) * 60 + int(minutes)) * 60 + int(seconds)
    return days(text) * MICROSECONDS_A_DAY + time_of_day * 1_000_000 + int(fraction.ljust(6, "0"))


def days(text: str) -> int:
    """Since 1970, of a date or of a timestamp; infinities are the ends of 32 bits."""
    if text in ("infinity", "-infinity"):
        return -(2**31) if text[0] == "-" else 2**31 - 1
    return _moment(text)[0]


def _moment(text: str) -> tuple[int, str, str, str, str]:
    found = _MOMENT.fullmatch(text)
    if found is None:
        raise ValueError("not a time as Postgres prints it")
    year, month, day, hours, minutes, seconds, fraction, before_christ = found.groups("0")
    cycles, rest = divmod((1 - int(year) if before_christ != "0" else int(year)) - 1, _CYCLE_YEARS)
    ordinal = date(rest + 1, int(month), int(day)).toordinal() + cycles * _CYCLE_DAYS
    return ordinal - _EPOCH, hours, minutes, seconds, fraction


def print_microseconds(value: int, *, zoned: bool) -> str:
    """The timestamp as Postgres reads it, whatever its year."""
    if value in (-(2**63), 2**63 - 1):
        return "-infinity" if value < 0 else "infinity"
    day, within = divmod(value, MICROSECONDS_A_DAY)
    seconds, fraction = divmod(within, 1_000_000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:06d}"
    text, _, suffix = print_days(day).partition(" ")
    return f"{text} {clock}{'+00' if zoned else ''}{' ' + suffix if suffix else ''}"


def print_days(value: int) -> str:
    """The date as Postgres reads it, whatever its year."""
    if value in (-(2**31), 2**31 - 1):
        return "-infinity" if value < 0 else "infinity"
    cycles, rest = divmod(value + _EPOCH - 1, _CYCLE_DAYS)
    day = date.fromordinal(rest + 1)
    year = day.year + cycles * _CYCLE_YEARS
    shown = f"{year:04d}" if year > 0 else f"{1 - year:04d}"
    return f"{shown}-{day.month:02d}-{day.day:02d}{'' if year > 0 else ' BC'}"
