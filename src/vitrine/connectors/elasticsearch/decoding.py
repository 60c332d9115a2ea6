"""Values of stored documents in PostgreSQL's canonical text."""

import re
from base64 import b64decode
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, cast

from vitrine.connectors.elasticsearch import exact_json
from vitrine.connectors.elasticsearch.encoding import element_type
from vitrine.connectors.elasticsearch.exact_json import NumberText
from vitrine.flow.rows import Column, Kind, bare_type, kind_of

__all__ = ["MISSING", "Missing", "NumberText", "text_of_value"]


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
        return exact_json.dumps(exact_json.canonical(value) if bare == "jsonb" else value)
    if kind is Kind.ARRAY and isinstance(value, list) and (element := element_type(bare)) is not None:
        return _array(cast(Iterable[Any], value), element)
    if isinstance(value, bool):
        return _BOOLEANS[value] if kind is Kind.BOOLEAN else exact_json.dumps(value)
    if isinstance(value, str | int):
        return _DECODERS.get(kind, str)(str(value))
    return exact_json.dumps(value)


def _array(elements: Iterable[Any], element: str) -> str:
    return "{" + ",".join(_element(one, element) for one in elements) + "}"


def _element(value: Any, element: str) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list) and kind_of(element) is not Kind.JSON:
        return _array(cast(Iterable[Any], value), element)
    text = _text(value, element)
    if text and text.upper() != "NULL" and not _NEEDS_QUOTES.search(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _bytes(text: str) -> str:
    try:
        return f"\\x{b64decode(text, validate=True).hex()}"
    except ValueError:
        return text


def _moment(text: str) -> str:
    if (found := _MOMENT.fullmatch(text)) is None:
        return text
    day, clock, fraction, zone = found.groups("")
    return f"{day} {clock}{fraction if fraction != '.' else ''}{'+00' if zone else ''}"


_BOOLEANS = {True: "t", False: "f"}
_DECODERS: dict[Kind, Callable[[str], str]] = {
    Kind.BYTES: _bytes,
    Kind.TIMESTAMP: _moment,
    Kind.TIMESTAMPTZ: _moment,
}
