"""Keys of rows: their order, their text and row hashes; values in the form in which they are compared."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from typing import cast

from vitrine.core.rows import NUMBERS, Column, CommonForm, Key, KeyRange, Kind, bare_type, kind_of

NULL = "\0"
"""Stands for NULL in the key of a stored row; no text has this character. Such a row cannot be selected by its key."""

_SPECIAL = frozenset(',()"')

Number = tuple[bool, Decimal]
Rank = tuple[Number | bytes, ...]
"""Sort value of a key."""


def rank(key: Key, columns: Sequence[Column]) -> Rank:
    """Numbers by value, everything else by its text under "C"."""
    return tuple(
        _number(text) if column.kind in NUMBERS else text.encode() for text, column in zip(key, columns, strict=True)
    )


def _number(text: str) -> Number:
    """PostgreSQL orders NaN above all other numbers; Decimal orders it nowhere. So is what is no number at all."""
    try:
        value = Decimal(text)
    except InvalidOperation:  # stored by hand, in a system that does not check it
        return True, Decimal(0)
    return (True, Decimal(0)) if value.is_nan() else (False, value)


def next_key(key: Key, columns: Sequence[Column]) -> Key:
    """A key above the given one."""
    last, text = columns[-1], key[-1]
    if last.kind not in NUMBERS:
        return (*key[:-1], text + "\0")
    above, value = _number(text)
    return (*key[:-1], "NaN" if above else str(value + 1))


def is_within(key: Key, keys: KeyRange, columns: Sequence[Column]) -> bool:
    place = rank(key, columns)
    if keys.low is not None and place < rank(keys.low, columns):
        return False
    return keys.high is None or place < rank(keys.high, columns)


def chunks(keys: Sequence[Key], size: int) -> Iterator[Sequence[Key]]:
    """The keys, some at a time."""
    return (keys[first : first + size] for first in range(0, len(keys), size))


def row_hash(texts: Iterable[str | None]) -> int:
    """The first 64 bits of MD5 over the canonical texts of a row, as a signed number, so that sums ignore the order."""
    image = json.dumps(list(texts), ensure_ascii=False).encode()
    return int.from_bytes(hashlib.md5(image, usedforsecurity=False).digest()[:8], "big", signed=True)


def to_text(key: Key) -> str:
    """The key of a reject: a JSON array, so that no two keys are alike."""
    return json.dumps(list(key), ensure_ascii=False)


def from_text(text: str) -> Key:
    """The key of a reject; one that an earlier version stored is one text."""
    try:
        found = json.loads(text)
    except ValueError:
        return (text,)
    return tuple(map(str, cast(list[object], found))) if isinstance(found, list) else (text,)


def readable(text: str) -> str:
    """The key of a reject for a person: the value, or the values in brackets."""
    return shown_key(from_text(text))


def shown_key(key: Sequence[str]) -> str:
    """A key for a person. Of several columns no two are alike: a value with a comma, a bracket or a quote is quoted."""
    return key[0] if len(key) == 1 else f"({', '.join(map(_quoted, key))})"


def _quoted(value: str) -> str:
    is_plain = value and value == value.strip() and _SPECIAL.isdisjoint(value)
    return value if is_plain else '"' + value.replace('"', '""') + '"'


_MOMENTS = frozenset({Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ})

_PARSED = frozenset({"boolean", "inet", "cidr"})
"""Types whose cast to text differs from their text format, so that a text column may hold either: true and t."""

_PADDED = frozenset({"character", "bpchar"})


def common_form(source: str, target: str, *, exact: bool = True) -> CommonForm:
    """How a source value and a stored value are compared, by their types.

    Numbers that a transform returned have no type yet, only a value: they are not `exact`.
    """
    kinds = {kind_of(source), kind_of(target)}
    if kinds <= NUMBERS and not (exact and source == target):
        return CommonForm.FLOAT if kinds == {Kind.FLOAT} else CommonForm.NUMBER
    if source == target:
        return CommonForm.SAME
    if kinds == {Kind.TEXT}:
        return CommonForm.PADDED if bare_type(source) in _PADDED else CommonForm.TEXT
    if bare_type(source) == bare_type(target):
        return CommonForm.SAME
    if kinds <= _MOMENTS:
        return CommonForm.MOMENT
    if kinds == {Kind.TIME}:
        return CommonForm.TIME
    if kinds == {Kind.JSON}:
        return CommonForm.JSON
    if bare_type(source) in _PARSED and kind_of(target) is Kind.TEXT:
        return CommonForm.PARSED
    return CommonForm.OUTPUT


def lossless_type(produced: str, target: str) -> str:
    """A type that holds a produced value as it is, before the target's type rounds, cuts or shortens it."""
    kinds = (kind_of(produced), kind_of(target))
    match kinds:
        case Kind.FLOAT, _ if kinds[1] in NUMBERS:
            return produced
        case _ if set(kinds) <= NUMBERS:
            return "numeric"
        case _ if set(kinds) <= _MOMENTS or set(kinds) == {Kind.TIME}:
            return bare_type(produced)
        case Kind.TEXT, Kind.TEXT:
            return "text"
        case _:
            return target


def canonical(text: str | None, form: CommonForm) -> str | None:
    """A value's text in a common form, as far as a text alone allows it."""
    if text is None:
        return None
    try:
        return _in_form(text, form)
    except (ArithmeticError, ValueError):  # not a number: it equals only itself
        return text


def _in_form(text: str, form: CommonForm) -> str:
    match form:
        case CommonForm.NUMBER:
            return _trimmed(Decimal(text))
        case CommonForm.FLOAT:
            return repr(float(text))
        case CommonForm.PADDED:
            return text.rstrip(" ")
        case _:
            return text


def _trimmed(value: Decimal) -> str:
    if not value.is_finite():
        return str(value)
    plain = format(value, "f")
    return (plain.rstrip("0").rstrip(".") if "." in plain else plain) if value else "0"
