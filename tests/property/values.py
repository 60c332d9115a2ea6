"""Strategies for values of every type, as text that PostgreSQL parses; many of them are edge cases."""

from collections.abc import Sequence
from typing import Any, Literal

from hypothesis import strategies as st

Texts = st.SearchStrategy[str]


def phrase(template: str, *parts: st.SearchStrategy[Any]) -> Texts:
    return st.tuples(*parts).map(lambda drawn: template.format(*drawn))


# -- texts ------------------------------------------------------------------------------------------------------------

_PIECES = (
    *("\\", "\\N", "\\.", "\n", "\r", "\r\n", "\t", "\b", "\v", "\f", "\x01", "\x7f", "\ufeff", "\u2028"),
    *('"', "'", "''", "{", "}", "(", ")", "[1:1]", "=", ",", ";", "%", "%s", "$1", "NULL", "null", " ", "  "),
    *("x", "é", "Я", "😀"),
)
texts: Texts = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8),
    st.lists(st.sampled_from(_PIECES), max_size=5).map("".join),
)
octets: Texts = st.one_of(st.binary(max_size=6), st.sampled_from((b"", b"\0", b"\\", b"\\x", b"\n\t\\."))).map(
    lambda value: f"\\x{value.hex()}"
)
uuids: Texts = st.uuids().map(str)
booleans: Texts = st.sampled_from(("true", "false"))


def short_texts(length: int) -> Texts:
    return texts.map(lambda text: text[:length])


# -- numbers ----------------------------------------------------------------------------------------------------------


def integers(bits: int) -> Texts:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return st.one_of(st.sampled_from((low, high, 0, -1)), st.integers(low, high)).map(str)


_digits = st.text("0123456789", max_size=25)
numerics: Texts = st.one_of(
    st.sampled_from(("NaN", "Infinity", "-Infinity", "0", "0.0", "0.000", "1.0", "1.00", "-1.00", "1e-300", "1e300")),
    phrase("{}{}.{}0", st.sampled_from(("", "-")), _digits, _digits),
)
scaled: Texts = st.integers(-(10**9), 10**9).map(lambda number: f"{number / 10_000:.4f}")


def floats(width: Literal[32, 64]) -> Texts:
    special = st.sampled_from(("NaN", "Infinity", "-Infinity", "-0", "0"))
    return st.one_of(special, st.floats(width=width, allow_nan=False, allow_infinity=False).map(repr))


# -- times ------------------------------------------------------------------------------------------------------------

usual_moments: Texts = st.datetimes().map(lambda moment: moment.isoformat(" "))
moments: Texts = st.one_of(
    usual_moments,
    st.sampled_from(("infinity", "-infinity", "4713-01-01 00:00:00 BC", "0044-03-15 12:00:00.000001 BC")),
    st.sampled_from(("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "10000-01-01 00:00:00.1", "200000-02-29")),
    st.sampled_from(("1969-12-31 23:59:59.999999", "1999-12-31 23:59:59.999999", "2000-02-29 00:00:00.000001")),
)
dates: Texts = st.one_of(
    st.dates().map(str),
    st.sampled_from(("infinity", "-infinity", "4713-01-01 BC", "0044-03-15 BC", "10000-01-01", "5874897-12-31")),
)
times: Texts = st.one_of(st.times().map(str), st.just("24:00:00"))
zoned_times = phrase("{}{}", st.times(), st.sampled_from(("+00", "-03:30", "+14", "+05:45")))
_few = st.integers(-400, 400)
intervals: Texts = st.one_of(
    st.sampled_from(("0", "1 mon", "-1 mons +1 day -00:00:01", "26:00:00", "-1 days +02:03:04.000001")),
    st.just("178000000 years"),
    phrase("{} mons {} days {}.{:06d} seconds", _few, _few, st.integers(-(10**9), 10**9), st.integers(0, 999_999)),
    phrase("{} days {} seconds", _few, _few),
)


# -- documents --------------------------------------------------------------------------------------------------------

_leaves = st.one_of(
    st.sampled_from(("null", "true", "false", "[]", "{}", "[ ]", " 1", "0", "-0", "1.0", "1.00", "1e2", "-1.5")),
    st.sampled_from(("1E+400", "0.1234567890123456789012345", "12345678901234567890")),
    st.sampled_from(('""', '"a\\nb"', '"\\u00e9"', '"\\\\N"', '"\\""', '"\\t"', '"é"', '"😀"', '"{1,2}"', '"\\/"')),
)
jsons: Texts = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda parts: f"[{', '.join(parts)}]"),
        phrase('{{"k" : {}, "l":{}}}', inner, inner),
        phrase('{{"same": {}, "same": {}}}', inner, inner),
    ),
    max_leaves=4,
)


# -- arrays and rows --------------------------------------------------------------------------------------------------


def _quoted(text: str | None) -> str:
    return "NULL" if text is None else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _braced(parts: Sequence[str | None]) -> str:
    return "{" + ",".join(map(_quoted, parts)) + "}"


def arrays(of: Texts) -> Texts:
    """Arrays with NULLs, empty ones and two-dimensional ones."""
    flat = st.lists(st.one_of(st.none(), of), max_size=4).map(_braced)
    line = st.tuples(of, of).map(_braced)
    return st.one_of(flat, phrase("{{{},{}}}", line, line))


bounded: Texts = st.sampled_from(("[0:2]={1,2,3}", "[-5:-4]={NULL,7}", "[2:2][3:4]={{1,2}}", "{}", "{{1},{2}}"))


def pairs(first: Texts, second: Texts) -> Texts:
    """Composite values with two fields."""
    return phrase("({},{})", first.map(_quoted), second.map(_quoted))
