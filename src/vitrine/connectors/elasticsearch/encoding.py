"""Values between PostgreSQL's text format and JSON whose numbers keep their digits."""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import partial
from json.encoder import encode_basestring
from typing import Any, NoReturn, cast

from vitrine.core.copytext import values
from vitrine.core.rows import Column, Kind, bare_type, kind_of


class NumberText(str):
    """A JSON number as it is written: no type of Python keeps the digits of each."""

    __slots__ = ()


class RepeatedName(Exception):
    """An object has two members of one name."""


_SURROGATE = re.compile("[\ud800-\udfff]")
_POSITIVE_ZERO = re.compile(r"-(0(?:\.0+)?)")


def loads(text: str | bytes) -> Any:
    """The value with every number as NumberText."""
    return json.loads(text, parse_float=NumberText, parse_int=NumberText)


def check_json(text: str) -> None:
    """RepeatedName, or ValueError for a text that is not JSON (NaN and Infinity are not)."""
    _CHECKING.decode(text)


def dumps(value: Any) -> str:
    """The value with the spacing of `jsonb`; members and digits stay as they are."""
    match value:
        case NumberText():
            return str(value)
        case str():
            return _string(value)
        case dict():
            members = cast(Mapping[str, Any], value).items()
            return "{" + ", ".join(f"{_string(name)}: {dumps(member)}" for name, member in members) + "}"
        case list():
            return "[" + ", ".join(map(dumps, cast(Iterable[Any], value))) + "]"
        case _:
            return json.dumps(value)


def canonical(value: Any) -> Any:
    """The value as `jsonb` stores it: members by length and bytes of their names, numbers without exponent."""
    match value:
        case NumberText():
            plain = format(Decimal(value), "f") if "e" in value or "E" in value else str(value)
            zero = _POSITIVE_ZERO.fullmatch(plain)
            return NumberText(zero[1] if zero else plain)
        case dict():
            members = [(name.encode(errors="surrogatepass"), name) for name in cast(Mapping[str, Any], value)]
            ordered = sorted(members, key=lambda pair: (len(pair[0]), pair[0]))
            return {name: canonical(value[name]) for _, name in ordered}
        case list():
            return list(map(canonical, cast(Iterable[Any], value)))
        case _:
            return value


def _string(text: str) -> str:
    # half of a surrogate pair has no UTF-8, but `json` accepts its escape
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", encode_basestring(text))


def _unique(members: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in members}) < len(members):
        raise RepeatedName


def _refuse(_: str) -> NoReturn:
    raise ValueError("not a number of JSON")


_CHECKING = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse, parse_float=str, parse_int=str)


class Refused(Exception):
    """A value that a document cannot hold without loss."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


ValueEncoder = Callable[[str], str]
"""JSON of a value that is not NULL, from its unescaped text; raises Refused."""

Fields = Sequence[bytes]
"""Fields of COPY's text format that are not NULL."""


@dataclass(frozen=True)
class Encoded:
    """JSON of some values; that of strings still lacks the quotes around it."""

    texts: Fields
    is_quoted: bool = False


ColumnEncoder = Callable[[Fields], Encoded | None]
"""JSON of many values at once; None: one of them is unusual, and each needs its ValueEncoder."""


def value_encoder(type_name: str) -> ValueEncoder:
    kind = kind_of(type_name)
    return _array_encoder(type_name) if kind is Kind.ARRAY else _ENCODERS.get(kind, encode_basestring)


def column_encoder(type_name: str, *, is_checked: bool) -> ColumnEncoder:
    """`is_checked`: PostgreSQL wrote the fields, so that JSON and arrays need no check."""
    bare = bare_type(type_name)
    kind = kind_of(bare)
    if kind is Kind.JSON:
        return _checked_json if is_checked and bare == "jsonb" else _one_by_one
    if kind is Kind.ARRAY:
        if not is_checked:
            return _one_by_one
        return _ARRAY_COLUMNS.get(kind_of(element_type(bare) or ""), _one_by_one)
    if kind is Kind.FLOAT and not is_checked:
        return _python_floats
    return _COLUMNS.get(kind, _texts)


def element_type(type_name: str) -> str | None:
    """The type of an array's elements; None for a type whose values stay text."""
    bare = bare_type(type_name)
    # the elements of box[] are separated by semicolons
    return bare_type(bare.removesuffix("[]")) if bare.endswith("[]") and bare != "box[]" else None


def _one_by_one(_: Fields) -> None:
    return None


# -- text -------------------------------------------------------------------------------------------------------------

_NOT_CONTROL = bytes(range(0x20, 0x100))
_UUID = b"0123456789abcdef-"


def _texts(fields: Fields) -> Encoded | None:
    """COPY escapes like JSON, apart from quotes and the vertical tab; `encode_basestring` per value would be slower."""
    joined = b"".join(fields)
    if b"\\v" in joined or joined.translate(None, _NOT_CONTROL):
        return None
    if b'"' not in joined:
        return Encoded(fields, is_quoted=True)
    return Encoded(b"\n".join(fields).replace(b'"', b'\\"').split(b"\n"), is_quoted=True)


def _uuids(fields: Fields) -> Encoded | None:
    return None if b"".join(fields).translate(None, _UUID) else Encoded(fields, is_quoted=True)


def _bytes(text: str) -> str:
    try:
        data = bytes.fromhex(text.removeprefix("\\x"))
    except ValueError:
        raise Refused("INVALID_VALUE", "the value is not binary data in hexadecimal digits") from None
    return f'"{b64encode(data).decode()}"'


# -- numbers and booleans ---------------------------------------------------------------------------------------------

_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_A_NUMBER = re.compile(_NUMBER)
_NUMBER_FIELD = re.compile(_NUMBER.encode())
_BOOLEANS = {"t": "true", "f": "false", "true": "true", "false": "false"}
_BOOLEAN_FIELDS = {field.encode(): literal.encode() for field, literal in _BOOLEANS.items()}


def _number(text: str) -> str:
    if _A_NUMBER.fullmatch(text):
        return text
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise Refused("INVALID_VALUE", "the value is not a number") from None
    if not value.is_finite():
        raise Refused("NOT_FINITE", "the number is NaN or infinite, which JSON does not have")
    return str(value)


def _numbers(fields: Fields) -> Encoded | None:
    return Encoded(fields) if all(map(_NUMBER_FIELD.fullmatch, fields)) else None


def _python_floats(fields: Fields) -> Encoded | None:
    """Python writes 5.0 and -0.0 where PostgreSQL writes 5 and -0."""
    return _numbers([field.removesuffix(b".0") for field in fields])


def _boolean(text: str) -> str:
    if (found := _BOOLEANS.get(text)) is None:
        raise Refused("INVALID_VALUE", "the value is neither true nor false")
    return found


def _booleans(fields: Fields) -> Encoded | None:
    is_known = _BOOLEAN_FIELDS.keys() >= set(fields)
    return Encoded(list(map(_BOOLEAN_FIELDS.__getitem__, fields))) if is_known else None


# -- times ------------------------------------------------------------------------------------------------------------

_TO_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_DATE = b"0000-00-00"
_MOMENTS = [_DATE + b" 00:00:00", *(_DATE + b" 00:00:00." + b"0" * digits for digits in range(1, 7))]
_DATES = frozenset([_DATE])
_UNZONED = frozenset(_MOMENTS)
_ZONED = frozenset(moment + b"Z" for moment in _MOMENTS)


def _have_form(joined: bytes, forms: frozenset[bytes]) -> bool:
    """Whether each line is one of the forms, with any digits."""
    return forms.issuperset(joined.translate(_TO_ZEROS).split(b"\n"))


def _dates(fields: Fields) -> Encoded | None:
    return Encoded(fields, is_quoted=True) if _have_form(b"\n".join(fields), _DATES) else None


def _date(text: str) -> str:
    if not _have_form(text.encode(), _DATES):
        raise Refused("DATE_RANGE", "the date is infinite, or not in the years 1 to 9999")
    return f'"{text}"'


def _timestamps(fields: Fields) -> Encoded | None:
    joined = b"\n".join(fields)
    if not _have_form(joined, _UNZONED):
        return None
    return Encoded(joined.replace(b" ", b"T").split(b"\n"), is_quoted=True)


def _zoned_timestamps(fields: Fields) -> Encoded | None:
    joined = b"\n".join(fields).replace(b"+00:00", b"Z").replace(b"+00", b"Z")
    if not _have_form(joined, _ZONED):
        return None
    return Encoded(joined.replace(b" ", b"T").split(b"\n"), is_quoted=True)


def _timestamp(text: str, *, is_zoned: bool) -> str:
    """A transform may return any zone; without one, PostgreSQL reads it as UTC, and for a type without one drops it."""
    try:
        given = datetime.fromisoformat(text)
        moment = given.astimezone(UTC) if is_zoned and given.tzinfo else given
    except (ValueError, OverflowError):
        raise Refused("DATE_RANGE", "the time is infinite, or not in the years 1 to 9999") from None
    return f'"{moment.replace(tzinfo=None).isoformat()}{"Z" if is_zoned else ""}"'


# -- JSON and arrays --------------------------------------------------------------------------------------------------


def _json(text: str) -> str:
    """The text on one line. Elasticsearch refuses repeated names; of these the last counts, as in `jsonb`."""
    try:
        check_json(text)
    except RepeatedName:
        return dumps(loads(text))
    except RecursionError:
        pass  # too deep for Python; the server has a limit of its own
    except ValueError:
        raise Refused("INVALID_VALUE", "the value is not JSON; NaN and infinite numbers are not") from None
    return text.replace("\n", " ").replace("\r", " ")


def _checked_json(fields: Fields) -> Encoded:
    """The text of `jsonb` has no tabs and line breaks: COPY has escaped nothing but backslashes."""
    joined = b"\n".join(fields)
    return Encoded(joined.replace(b"\\\\", b"\\").split(b"\n") if b"\\" in joined else fields)


_PARSE_ARRAYS = values.plain_decoder("text[]")
_NUMBER_ARRAY_FIELD = re.compile(rf"\{{(?:{_NUMBER}(?:,{_NUMBER})*)?\}}".encode())
_TO_BRACKETS = bytes.maketrans(b"{}", b"[]")


def _number_arrays(fields: Fields) -> Encoded | None:
    if not all(map(_NUMBER_ARRAY_FIELD.fullmatch, fields)):
        return None
    return Encoded([field.translate(_TO_BRACKETS) for field in fields])


_BACKSLASH, _QUOTE, _BETWEEN = b"\x01", b"\x02", b"\x03"
_BEFORE_BARE = re.compile(rb"(?<=[{,])(?=[^{},\n\x03])")
_AFTER_BARE = re.compile(rb"(?<=[^{},\n\x03])(?=[,}])")


def _text_arrays(fields: Fields) -> Encoded | None:
    """All arrays at once. Every second part between quotes is an element that JSON writes in the same way; around them
    are braces, commas, and elements that PostgreSQL writes without quotes."""
    joined = b"\n".join(fields)
    if b"".join(fields).translate(None, _NOT_CONTROL) or joined.startswith(b"[") or b"\n[" in joined:
        return None  # a control character, or lower bounds
    if b"\\" in joined:
        # the array has escaped backslashes and quotes, and COPY has escaped the backslashes of both
        joined = joined.replace(b"\\\\\\\\", _BACKSLASH).replace(b'\\\\"', _QUOTE)
        if b"\\v" in joined:
            return None  # JSON has no such escape
    parts = joined.split(b'"')
    around = _BETWEEN.join(parts[::2])
    around = _AFTER_BARE.sub(b'"', _BEFORE_BARE.sub(b'"', around)).replace(b'"NULL"', b"null")
    parts[::2] = around.translate(_TO_BRACKETS).split(_BETWEEN)
    written = b'"'.join(parts).replace(_BACKSLASH, b"\\\\").replace(_QUOTE, b'\\"')
    return Encoded(written.split(b"\n"))


def _array_encoder(type_name: str) -> ValueEncoder:
    element = element_type(type_name)
    if element is None:
        return encode_basestring
    return partial(_array, encode=value_encoder(element), is_json=kind_of(element) is Kind.JSON)


def _array(text: str, encode: ValueEncoder, *, is_json: bool) -> str:
    if text.startswith("["):
        raise Refused("ARRAY_BOUNDS", "the array has lower bounds other than 1, which JSON does not have")
    if is_json and text.startswith("{{"):
        raise Refused("ARRAY_BOUNDS", "the array of JSON values has several dimensions; write it as one JSON value")

    def write(elements: list[Any]) -> str:
        parts = (
            "null" if one is None else write(one) if isinstance(one, list) else encode(one)  # pyright: ignore
            for one in elements
        )
        return f"[{','.join(parts)}]"

    try:
        (elements,) = _PARSE_ARRAYS([text])
        if text[:1] == "{" and text[-1:] == "}":
            return write(elements)
    except IndexError:
        pass
    raise Refused("INVALID_VALUE", "the value is not an array")


_ENCODERS: dict[Kind, ValueEncoder] = {
    Kind.BOOLEAN: _boolean,
    Kind.INTEGER: _number,
    Kind.FLOAT: _number,
    Kind.DECIMAL: _number,
    Kind.BYTES: _bytes,
    Kind.DATE: _date,
    Kind.TIMESTAMP: partial(_timestamp, is_zoned=False),
    Kind.TIMESTAMPTZ: partial(_timestamp, is_zoned=True),
    Kind.JSON: _json,
}
_COLUMNS: dict[Kind, ColumnEncoder] = {
    Kind.BOOLEAN: _booleans,
    Kind.INTEGER: _numbers,
    Kind.FLOAT: _numbers,
    Kind.DECIMAL: _numbers,
    Kind.BYTES: _one_by_one,
    Kind.UUID: _uuids,
    Kind.DATE: _dates,
    Kind.TIMESTAMP: _timestamps,
    Kind.TIMESTAMPTZ: _zoned_timestamps,
}
_ARRAY_COLUMNS: dict[Kind, ColumnEncoder] = {
    Kind.INTEGER: _number_arrays,
    Kind.FLOAT: _number_arrays,
    Kind.DECIMAL: _number_arrays,
    Kind.TEXT: _text_arrays,
    Kind.UUID: _text_arrays,
}


class Missing(Enum):
    """The document has no such field."""

    MISSING = "missing"


MISSING = Missing.MISSING

_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:(\.\d*?)0*)?(Z?)")
_NEEDS_QUOTES = re.compile(r'[\s"\\{},]', re.ASCII)


def text_of_value(value: Any, column: Column) -> str | None:
    """The text of a value from `exact_json.loads`; None is NULL, and a null of a JSON column is the JSON value.

    A value of another type than the column's, which another program wrote, is its JSON text: it differs from any row's.
    """
    if value is MISSING or (value is None and column.kind is not Kind.JSON):
        return None
    return _text(value, bare_type(column.type))


def _text(value: Any, bare: str) -> str:
    kind = kind_of(bare)
    if kind is Kind.JSON:
        return dumps(canonical(value) if bare == "jsonb" else value)
    if kind is Kind.ARRAY and isinstance(value, list) and (element := element_type(bare)) is not None:
        return _decoded_array(cast(Iterable[Any], value), element)
    if isinstance(value, bool):
        return _BOOLEAN_TEXTS[value] if kind is Kind.BOOLEAN else dumps(value)
    if isinstance(value, str | int):
        return _DECODERS.get(kind, str)(str(value))
    return dumps(value)


def _decoded_array(elements: Iterable[Any], element: str) -> str:
    return "{" + ",".join(_element(one, element) for one in elements) + "}"


def _element(value: Any, element: str) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list) and kind_of(element) is not Kind.JSON:
        return _decoded_array(cast(Iterable[Any], value), element)
    text = _text(value, element)
    if text and text.upper() != "NULL" and not _NEEDS_QUOTES.search(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _decoded_bytes(text: str) -> str:
    try:
        return f"\\x{b64decode(text, validate=True).hex()}"
    except ValueError:
        return text


def _moment(text: str) -> str:
    if (found := _MOMENT.fullmatch(text)) is None:
        return text
    day, clock, fraction, zone = found.groups("")
    return f"{day} {clock}{fraction if fraction != '.' else ''}{'+00' if zone else ''}"


_BOOLEAN_TEXTS = {True: "t", False: "f"}
_DECODERS: dict[Kind, Callable[[str], str]] = {
    Kind.BYTES: _decoded_bytes,
    Kind.TIMESTAMP: _moment,
    Kind.TIMESTAMPTZ: _moment,
}
