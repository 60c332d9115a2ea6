"""The order of keys and the hash of rows, as every connector computes them."""

import hashlib
import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vitrine.core.keys import is_within, rank, row_hash, shown_key
from vitrine.core.rows import ALL_KEYS, Column, Key, KeyRange

NUMBER, WORD = Column("n", "integer"), Column("word", "text")
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


def ordered(texts: list[str], type_name: str) -> list[str]:
    column = Column("key", type_name)
    return [key for (key,) in sorted([(text,) for text in texts], key=lambda key: rank(key, [column]))]


@pytest.mark.parametrize("type_name", ["integer", "bigint", "numeric", "numeric(12,2)", "double precision", "real"])
def test_numbers_are_ordered_by_value(type_name: str) -> None:
    assert ordered(["10", "9", "-1", "100"], type_name) == ["-1", "9", "10", "100"]


@pytest.mark.parametrize("type_name", ["numeric", "double precision", "real"])
def test_infinities_and_nan_are_ordered_as_postgresql_orders_them(type_name: str) -> None:
    texts = ["NaN", "Infinity", "1e+300", "-Infinity", "0.5"]
    assert ordered(texts, type_name) == ["-Infinity", "0.5", "1e+300", "Infinity", "NaN"]


@pytest.mark.parametrize("type_name", ["text", "uuid", "date", "timestamp with time zone", "content.mood"])
def test_everything_else_is_ordered_by_the_bytes_of_its_text(type_name: str) -> None:
    assert ordered(["é", "b", "B", "a", "10", "9", ""], type_name) == ["", "10", "9", "B", "a", "b", "é"]


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
@example(0.0, -0.0)
@example(math.inf, -math.inf)
def test_floats_compare_as_their_texts_do(left: float, right: float) -> None:
    columns = [Column("key", "double precision")]
    first, second = rank((repr(left),), columns), rank((repr(right),), columns)
    assert (first < second, first == second) == (left < right, left == right)


def test_a_key_is_compared_column_by_column() -> None:
    keys: list[Key] = [("2", "a"), ("10", ""), ("2", "B"), ("1", "z")]
    assert sorted(keys, key=lambda key: rank(key, [NUMBER, WORD])) == [("1", "z"), ("2", "B"), ("2", "a"), ("10", "")]


def test_a_key_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError):
        rank(("1", "a"), [NUMBER])


@pytest.mark.parametrize(
    ("low", "high", "inside"),
    [
        (None, None, ["1", "2", "9", "10"]),
        ("2", None, ["2", "9", "10"]),
        (None, "9", ["1", "2"]),
        ("2", "10", ["2", "9"]),
        ("9", "2", list[str]()),
        ("2", "2", list[str]()),
    ],
)
def test_a_range_includes_its_low_and_not_its_high_end(low: str | None, high: str | None, inside: list[str]) -> None:
    keys = KeyRange((low,) if low else None, (high,) if high else None)
    assert [text for text in ("1", "2", "9", "10") if is_within((text,), keys, [NUMBER])] == inside


@given(st.lists(st.tuples(st.integers(), TEXTS), min_size=1), st.lists(st.tuples(st.integers(), TEXTS)))
def test_ranges_that_meet_contain_every_key_exactly_once(
    found: list[tuple[int, str]], cuts: list[tuple[int, str]]
) -> None:
    columns = [NUMBER, WORD]
    borders = sorted({(str(number), text) for number, text in cuts}, key=lambda key: rank(key, columns))
    ranges = [KeyRange(low, high) for low, high in zip([None, *borders], [*borders, None], strict=True)]
    for number, text in found:
        key = str(number), text
        assert sum(is_within(key, one, columns) for one in ranges) == 1
        assert is_within(key, ALL_KEYS, columns)


@given(st.lists(st.none() | TEXTS, min_size=1))
def test_a_row_hash_is_the_first_half_of_md5_over_the_texts_as_json(texts: list[str | None]) -> None:
    digest = hashlib.md5(json.dumps(texts, ensure_ascii=False).encode()).hexdigest()
    unsigned = int(digest[:16], 16)
    assert row_hash(texts) == (unsigned if unsigned < 2**63 else unsigned - 2**64)
    assert -(2**63) <= row_hash(texts) < 2**63


@given(st.lists(st.none() | TEXTS), st.lists(st.none() | TEXTS))
@example(["a", "b"], ["ab"])
@example([None], [""])
@example([None], ["null"])
@example(['a","b'], ["a", "b"])
@example(["1", None], [None, "1"])
def test_rows_with_other_texts_have_another_hash(left: list[str | None], right: list[str | None]) -> None:
    assert (row_hash(left) == row_hash(right)) == (left == right)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["1", "Star Wars", None], -3701945642808603484),
        (['é\n\t"\\', ""], 1314704801035347683),
    ],
)
def test_the_hash_of_a_row_never_changes(texts: list[str | None], expected: int) -> None:
    """Digests of different versions are compared with one another."""
    assert row_hash(texts) == expected


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (("a, b",), "a, b"),
        (("17", "actor"), "(17, actor)"),
        (("a, b", "c"), '("a, b", c)'),
        (("a", "b, c"), '(a, "b, c")'),
        (('say "no"', ""), '("say ""no""", "")'),
    ],
)
def test_a_key_is_shown_with_quotes_where_it_would_be_ambiguous(key: Key, text: str) -> None:
    assert shown_key(key) == text


@given(st.tuples(*[st.text(',() "ab')] * 2), st.tuples(*[st.text(',() "ab')] * 2))
def test_no_two_keys_of_several_columns_are_shown_alike(one: Key, other: Key) -> None:
    assert (shown_key(one) == shown_key(other)) == (one == other)
