"""JSON whose numbers keep their digits."""

import json
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any, NoReturn, cast


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


def check(text: str) -> None:
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
