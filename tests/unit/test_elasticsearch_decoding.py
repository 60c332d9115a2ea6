"""Values of stored documents: the inverse of their encoding."""

import json
from datetime import UTC, date, datetime, time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from vitrine.connectors.elasticsearch import encoding
from vitrine.connectors.elasticsearch.documents import DocumentEncoder, Documents
from vitrine.connectors.elasticsearch.encoding import MISSING, NumberText, text_of_value
from vitrine.core.copytext import values
from vitrine.core.rows import START, Batch, Column, TextRows
from vitrine_testing.data import SAMPLES

REFUSED = {"NaN", "Infinity", "0044-03-15 BC", "infinity", "-infinity", "[0:1]={5,6}"}
TEXTS = some.text(
    some.sampled_from("|\\/ab\n\t\v\r\b\x01\x7f \"'{},;éñ🎬%") | some.characters(exclude_categories=["Cs"])
)
PLAIN_TEXTS = TEXTS.map(lambda text: text.replace("\0", ""))


def encoded(type_name: str, texts: list[str | None], *, nulls: Any = "omit") -> Documents:
    fields = (values.NULL if text is None else values.escape(text) for text in texts)
    data = "".join(f"{number}\t{field}\n" for number, field in enumerate(fields))
    columns = (Column("id", "integer"), Column("value", type_name))
    batch = Batch(TextRows(data.encode(), len(texts)), columns, None, START)
    return DocumentEncoder(["id"], nulls=nulls, cursor=None, last_wins=False).encode(batch)


def decoded(type_name: str, documents: Documents) -> list[str | None]:
    sources = map(encoding.loads, documents.sources)
    return [text_of_value(source.get("value", MISSING), Column("value", type_name)) for source in sources]


def round_trip(type_name: str, texts: list[str | None], *, nulls: Any = "omit") -> list[str | None]:
    found = encoded(type_name, texts, nulls=nulls)
    assert not found.refused
    for source in found.sources:
        assert b"\n" not in source
        encoding.check_json(source.decode())
    return decoded(type_name, found)


@pytest.mark.parametrize("nulls", ["omit", "write"])
@pytest.mark.parametrize("type_name", sorted(set(SAMPLES) - {"json"}))
def test_every_sample_is_read_back_exactly(type_name: str, nulls: str) -> None:
    texts = [text for text in SAMPLES[type_name] if text not in REFUSED]
    assert round_trip(type_name, [*texts]) == texts
    # NULL beside it changes how a column is converted
    given: list[str | None] = [*texts] if nulls == "write" and type_name == "jsonb" else [None, *texts, None]
    assert round_trip(type_name, given, nulls=nulls) == given


@pytest.mark.parametrize("type_name", sorted(SAMPLES))
def test_samples_without_a_json_form_are_refused(type_name: str) -> None:
    texts = [text for text in SAMPLES[type_name] if text in REFUSED]
    assert len(encoded(type_name, [*texts]).refused) == len(texts)


def test_json_text_is_read_back_as_an_equal_value() -> None:
    assert round_trip("json", [*SAMPLES["json"], '{ "b" :\n1e5,\r\n"a": -0 }']) == [
        '{"a": 2}',
        "null",
        '"é"',
        '{"b": 1e5, "a": -0}',
    ]


@given(some.lists(PLAIN_TEXTS))
def test_any_text_is_read_back(texts: list[str]) -> None:
    for type_name in ("text", "character varying(20)", "inet", "interval", "uuid", "xml"):
        assert round_trip(type_name, [*texts]) == texts


@given(some.lists(some.decimals(allow_nan=False, allow_infinity=False).map(lambda number: f"{number:f}")))
def test_any_number_keeps_its_digits(texts: list[str]) -> None:
    assert round_trip("numeric", [*texts]) == texts


def test_a_number_may_have_more_digits_than_python_converts() -> None:
    text = f"-{'123456789' * 1000}.50"
    assert round_trip("numeric", [text, "9" * 9000]) == [text, "9" * 9000]
    assert round_trip("jsonb", [f'{{"a": {text}}}']) == [f'{{"a": {text}}}']


@given(some.lists(some.floats(allow_nan=False, allow_infinity=False).map(repr)))
def test_any_float_keeps_its_text(texts: list[str]) -> None:
    assert round_trip("double precision", [*texts]) == texts


@given(some.lists(some.binary().map(lambda data: f"\\x{data.hex()}")))
def test_any_bytes_are_read_back(texts: list[str]) -> None:
    assert round_trip("bytea", [*texts]) == texts


@given(some.lists(some.datetimes()))
def test_any_time_of_four_digit_years_is_read_back(moments: list[datetime]) -> None:
    texts = [canonical(moment) for moment in moments]
    assert round_trip("timestamp without time zone", [*texts]) == texts
    zoned = [f"{text}+00" for text in texts]
    assert round_trip("timestamp with time zone", [*zoned]) == zoned
    # as Python writes them
    python = [str(moment.replace(tzinfo=UTC)) for moment in moments]
    assert round_trip("timestamp with time zone", [*python]) == zoned


def canonical(moment: datetime) -> str:
    whole = str(moment.replace(microsecond=0))
    return f"{whole}.{moment.microsecond:06d}".rstrip("0") if moment.microsecond else whole


@given(some.lists(some.dates().map(date.isoformat)), some.lists(some.times().map(time.isoformat)))
def test_any_date_and_clock_time_is_read_back(dates: list[str], times: list[str]) -> None:
    assert round_trip("date", [*dates]) == dates
    assert round_trip("time without time zone", [*times]) == times


JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False, allow_infinity=False) | PLAIN_TEXTS,
    lambda inner: some.lists(inner) | some.dictionaries(PLAIN_TEXTS, inner),
    max_leaves=8,
)


@given(some.lists(JSON))
def test_any_jsonb_is_read_back(found: list[Any]) -> None:
    texts = [encoding.dumps(encoding.canonical(encoding.loads(json.dumps(one)))) for one in found]
    assert round_trip("jsonb", [*texts]) == texts
    given_again = json.loads(json.dumps(found), parse_int=float)
    assert [json.loads(text, parse_int=float) for text in texts] == given_again


def array_text(elements: list[Any]) -> str:
    """As PostgreSQL writes arrays, by another way than the code under test."""

    def one(value: Any) -> str:
        if value is None:
            return "NULL"
        if isinstance(value, list):
            return array_text(value)  # pyright: ignore[reportUnknownArgumentType]
        is_plain = value and value.lower() != "null" and not set(value) & set('"\\{}, \t\n\v\f\r')
        return value if is_plain else f'"{escaped(value)}"'

    def escaped(value: str) -> str:
        return "".join(f"\\{letter}" if letter in '"\\' else letter for letter in value)

    return "{" + ",".join(map(one, elements)) + "}"


@given(some.lists(some.lists(some.none() | PLAIN_TEXTS | some.just("null"), max_size=4), max_size=4))
def test_any_array_of_texts_is_read_back(arrays: list[list[str | None]]) -> None:
    texts = [array_text(array) for array in arrays]
    assert round_trip("text[]", [*texts]) == texts


@pytest.mark.parametrize(
    ("type_name", "text"),
    [
        ("integer[]", "{{1,NULL},{3,4}}"),
        ("integer[]", "{-1}"),
        ("numeric(8,2)[]", "{1.00,2.50}"),
        ("boolean[]", "{t,f,NULL}"),
        ("uuid[]", "{f47ac10b-58cc-4372-a567-0e02b2c3d479}"),
        ("date[]", "{2024-02-29}"),
        ("timestamp with time zone[]", '{"2024-02-29 12:00:00.5+00",NULL}'),
        ("bytea[]", '{"\\\\x00ff"}'),
        ("jsonb[]", '{"{\\"a\\": [1, 2.00]}","[1, 2]",7,"\\"x\\""}'),
        ("text[]", "{{a,b},{c,d}}"),
        ("text[]", "{[a,b]}"),
        ("text[]", "{a=b}"),
        ("box[]", "{(1,1),(0,0);(2,2),(1,1)}"),
        ("inet[]", "{192.168.0.1/24,::1}"),
        ("interval[]", '{"1 mon",26:00:00}'),
    ],
)
def test_arrays_keep_elements_and_dimensions(type_name: str, text: str) -> None:
    assert round_trip(type_name, [text, "{}"] if type_name != "box[]" else [text])[0] == text


def test_null_and_missing_fields() -> None:
    assert text_of_value(MISSING, Column("a", "jsonb")) is None
    assert text_of_value(None, Column("a", "jsonb")) == "null"
    assert text_of_value(None, Column("a", "text")) is None
    assert text_of_value(MISSING, Column("a", "text")) is None


def test_jsonb_orders_members_and_writes_numbers_without_exponent() -> None:
    value = encoding.loads('{"bb":1e2,"a":-0,"ab":-0.0,"c":1.50E-3}')
    assert text_of_value(value, Column("a", "jsonb")) == '{"a": 0, "c": 0.00150, "ab": 0.0, "bb": 100}'


@pytest.mark.parametrize(
    ("value", "type_name", "text"),
    [
        (NumberText("1.50"), "text", "1.50"),
        (7, "integer", "7"),
        (True, "text", "true"),
        ("yes", "boolean", "yes"),
        ({"a": NumberText("1")}, "text", '{"a": 1}'),
        ("no base64!", "bytea", "no base64!"),
        ("soon", "timestamp with time zone", "soon"),
        ("a", "text[]", "a"),
        ([NumberText("1")], "integer", "[1]"),
        (0.5, "double precision", "0.5"),
    ],
)
def test_a_value_that_another_program_wrote_does_not_stop_the_comparison(value: Any, type_name: str, text: str) -> None:
    assert text_of_value(value, Column("a", type_name)) == text
