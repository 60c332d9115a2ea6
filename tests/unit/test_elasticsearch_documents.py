"""Rows as documents: keys, NULL, refused rows, and payloads of transforms."""

import json
import tracemalloc
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as some

from vitrine.connectors.elasticsearch import documents
from vitrine.connectors.elasticsearch.documents import DocumentEncoder, Documents
from vitrine.connectors.elasticsearch.sink import ElasticsearchSink
from vitrine.core.checks import NotNull
from vitrine.core.copytext import values
from vitrine.core.rows import START, Batch, Column, FrameRows, Lane, Payload, PythonRows, TextRows
from vitrine.errors import ConfigError, DataError
from vitrine_testing.data import SAMPLES, sample_rows

ID, TITLE, MODIFIED = Column("id", "integer"), Column("title", "text"), Column("modified", "timestamp with time zone")
COLUMNS = (TITLE, ID, MODIFIED)
NOON = "2024-02-29 12:00:00+00"
NOT_NULL = NotNull(type="not_null", columns=("title",), severity="warn")

Row = tuple[str | None, ...]


def text_rows(*rows: Row) -> TextRows:
    lines = ("\t".join(values.NULL if text is None else values.escape(text) for text in row) for row in rows)
    return TextRows("".join(f"{line}\n" for line in lines).encode(), len(rows))


def encode(
    payload: Payload, columns: tuple[Column, ...] = COLUMNS, key: tuple[str, ...] = ("id",), **given: Any
) -> Any:
    options: dict[str, Any] = {"nulls": "omit", "cursor": None, "last_wins": False} | given
    return DocumentEncoder(key, **options).encode(Batch(payload, columns, None, START))


def refused_value(type_name: str, value: str) -> Any:
    found: Documents = encode(text_rows(("1", value), ("2", None)), (ID, Column("value", type_name)))
    assert list(found.ids) == ["2"]
    assert found.count == 2
    (reject,) = found.refused
    assert reject.key == '["1"]'
    assert reject.column == "value"
    assert json.loads(reject.row) == {"id": "1", "value": value}
    return reject


def test_a_row_becomes_a_document_with_its_key_first() -> None:
    found = encode(text_rows(('Zoë\'s "5%"\n', "7", NOON)))
    assert found == Documents(
        ["7"], ['{"id":7,"title":"Zoë\'s \\"5%\\"\\n","modified":"2024-02-29T12:00:00Z"}'.encode()], (), 0
    )


@pytest.mark.parametrize("payload", [TextRows(b"", 0), TextRows(bytearray(b""), 0)])
def test_an_empty_batch_has_no_documents(payload: TextRows) -> None:
    assert encode(payload) == Documents([], [], (), 0)


def test_a_payload_of_mutable_bytes_is_encoded() -> None:
    assert encode(TextRows(bytearray(b"1\tt\n"), 1), (ID, Column("b", "boolean"))).sources == [b'{"id":1,"b":true}']


@pytest.mark.parametrize(
    ("nulls", "first", "second"),
    [
        ("omit", {"id": 1, "modified": "2024-02-29T12:00:00Z"}, {"id": 2, "title": "a"}),
        (
            "write",
            {"id": 1, "title": None, "modified": "2024-02-29T12:00:00Z"},
            {"id": 2, "title": "a", "modified": None},
        ),
    ],
)
def test_null_is_left_out_or_written(nulls: str, first: Any, second: Any) -> None:
    found = encode(text_rows((None, "1", NOON), ("a", "2", None)), nulls=nulls)
    assert [json.loads(source) for source in found.sources] == [first, second]


def test_columns_of_nulls_only() -> None:
    found = encode(text_rows((None, "1", None), (None, "2", None)))
    assert found.sources == [b'{"id":1}', b'{"id":2}']


def test_a_text_that_looks_like_null_is_a_text() -> None:
    found = encode(text_rows(("\\N", "1", None), ("\\\\N", "2", None)))
    assert [json.loads(source)["title"] for source in found.sources] == ["\\N", "\\\\N"]


def test_field_names_are_escaped() -> None:
    names = ['a"b', "100%s", "ünï", "back\\slash"]
    found = encode(text_rows(("1", "v", "v", "v", None)), (ID, *(Column(name, "text") for name in names)))
    assert json.loads(found.sources[0]) == {"id": 1, **dict.fromkeys(names[:3], "v")}


def test_null_in_the_key_is_refused() -> None:
    with pytest.raises(DataError, match=r"NULL in the key \(id\)") as refused:
        encode(text_rows(("a", None, NOON)))
    assert refused.value.code == "NULL_KEY"


def test_a_missing_key_column_is_named() -> None:
    with pytest.raises(ConfigError, match="the rows lack the key column 'code'"):
        encode(text_rows(("a", "1", NOON)), key=("id", "code"))


def test_several_key_columns_are_joined_unescaped() -> None:
    columns = (Column("a", "text"), Column("b", "text"))
    found = encode(text_rows(("tab\t", "x|y"), ("back\\", "z")), columns, ("b", "a"))
    assert found.ids == ["x\\|y|tab\t", "z|back\\\\"]


@given(
    rows=some.lists(
        some.tuples(
            some.sampled_from([None, "a", "b\t\n"]),
            some.integers(1, 9).map(str),
            some.sampled_from([None, NOON, "2024-03-01 12:00:00+00", "infinity"]),
        ),
        max_size=12,
    ),
    size=some.integers(1, 60),
    nulls=some.sampled_from(["omit", "write"]),
)
def test_a_batch_has_the_same_documents_however_it_is_divided(rows: list[Row], size: int, nulls: str) -> None:
    """Repeated keys in other parts, refused values, checks and NULLs included."""
    options: dict[str, Any] = {"cursor": "modified", "last_wins": True, "nulls": nulls, "checks": [NOT_NULL]}
    whole = encode(text_rows(*rows), **options)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(documents, "PART_BYTES", size)
        assert encode(text_rows(*rows), **options) == whole
        assert whole.count + whole.repeated == len(rows)


def test_the_fields_of_a_large_batch_are_never_in_memory_at_once() -> None:
    columns = (ID, *(Column(f"c{at}", "text") for at in range(10)))
    payload = text_rows(*((str(row), *["value"] * 10) for row in range(60_000)))
    tracemalloc.start()
    try:
        found = encode(payload, columns)
        ends, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found.ids) == 60_000
    assert peak - ends < 15_000_000  # the fields of all rows take 45 MB


def test_a_repeated_key_is_refused() -> None:
    with pytest.raises(DataError, match=r"the same key \(7\) more than once") as refused:
        encode(text_rows(("a", "7", NOON), ("b", "7", NOON)))
    assert refused.value.code == "DUPLICATE_KEY"


def test_the_last_of_a_repeated_key_counts() -> None:
    found = encode(text_rows(("a", "7", NOON), ("x", "8", NOON), ("b", "7", NOON)), last_wins=True)
    assert {one: json.loads(source)["title"] for one, source in zip(found.ids, found.sources, strict=True)} == {
        "7": "b",
        "8": "x",
    }
    assert (found.repeated, found.count) == (1, 2)


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        ("2024-02-29 12:00:00.5+00", NOON, "a"),
        (NOON, "2024-02-29 12:00:00.5+00", "b"),
        (NOON, None, "b"),
        (None, NOON, "b"),
        (NOON, NOON, "b"),
    ],
)
def test_an_earlier_row_that_is_newer_by_the_cursor_counts(first: str | None, second: str | None, kept: str) -> None:
    found = encode(text_rows(("a", "7", first), ("b", "7", second)), last_wins=True, cursor="modified")
    assert [json.loads(source)["title"] for source in found.sources] == [kept]


def test_an_older_row_does_not_replace_a_refused_one() -> None:
    columns = (ID, Column("value", "numeric"))
    found = encode(text_rows(("7", "1"), ("7", "NaN")), columns, last_wins=True)
    assert (list(found.ids), len(found.refused), found.repeated) == ([], 1, 1)


@pytest.mark.parametrize(
    ("type_name", "value", "code"),
    [
        ("numeric", "NaN", "NOT_FINITE"),
        ("numeric", "-Infinity", "NOT_FINITE"),
        ("real", "Infinity", "NOT_FINITE"),
        ("double precision", "nan", "NOT_FINITE"),
        ("double precision", "inf", "NOT_FINITE"),
        ("integer", '1,"x":2', "INVALID_VALUE"),
        ("boolean", "yes", "INVALID_VALUE"),
        ("date", "infinity", "DATE_RANGE"),
        ("date", "0044-03-15 BC", "DATE_RANGE"),
        ("date", "10000-01-01", "DATE_RANGE"),
        ("timestamp without time zone", "-infinity", "DATE_RANGE"),
        ("timestamp with time zone", "infinity", "DATE_RANGE"),
        ("timestamp with time zone", "0044-03-15 12:00:00+00 BC", "DATE_RANGE"),
        ("timestamp with time zone", "10000-01-01 00:00:00+00", "DATE_RANGE"),
        ("timestamp with time zone", "9999-12-31 23:30:00-01", "DATE_RANGE"),
        ("integer[]", "[0:1]={5,6}", "ARRAY_BOUNDS"),
        ("jsonb[]", "{{1,2},{3,4}}", "ARRAY_BOUNDS"),
        ("numeric[]", "{1,NaN}", "NOT_FINITE"),
        ("date[]", "{infinity}", "DATE_RANGE"),
        ("json", "{", "INVALID_VALUE"),
        ("bytea", "\\xzz", "INVALID_VALUE"),
    ],
)
def test_a_value_without_a_json_form_refuses_its_row_only(type_name: str, value: str, code: str) -> None:
    reject = refused_value(type_name, value)
    assert reject.code == code


def test_the_first_reason_of_a_row_is_kept() -> None:
    columns = (ID, Column("a", "numeric"), Column("b", "date"))
    (reject,) = encode(text_rows(("1", "NaN", "infinity")), columns).refused
    assert (reject.column, reject.code) == ("a", "NOT_FINITE")


@pytest.mark.promise("F14")
@pytest.mark.parametrize("key", ["", "é" * 257], ids=["empty", "long"])
def test_a_key_that_is_no_id_refuses_its_row(key: str) -> None:
    found = encode(text_rows((key,), ("fine",)), (Column("code", "text"),), ("code",))
    (reject,) = found.refused
    assert list(found.ids) == ["fine"]
    assert (reject.code, reject.column, json.loads(reject.key)) == ("DOCUMENT_ID", "code", [key])


def test_repeated_names_in_json_text_become_one() -> None:
    found = encode(text_rows(("1", '{"a":1.0,\n "a": {"b": 2.00, "b": 3.00}}')), (ID, Column("value", "json")))
    assert found.sources == [b'{"id":1,"value":{"a": {"b": 3.00}}}']


def test_json_too_deep_for_python_is_left_to_the_server() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    found = encode(text_rows(("1", deep)), (ID, Column("value", "json")))
    assert found.sources[0] == f'{{"id":1,"value":{deep}}}'.encode()


def test_every_kind_of_value_in_one_row_is_one_json_line() -> None:
    columns, rows = sample_rows(SAMPLES)
    found = encode(text_rows(*(tuple(row[column.name] for column in columns) for row in rows)), columns)
    assert found.count == len(rows)
    assert all(set(json.loads(source)) <= {column.name for column in columns} for source in found.sources)


@given(
    some.lists(some.tuples(some.text(some.characters(exclude_categories=["Cs"], exclude_characters="\0"))), max_size=6)
)
def test_any_batch_of_texts_is_valid_json(rows: list[tuple[str]]) -> None:
    numbered = [(str(number), *row) for number, row in enumerate(rows)]
    found = encode(text_rows(*numbered), (ID, TITLE))
    assert [json.loads(source)["title"] for source in found.sources] == [text for (text,) in rows]
    assert all(source.count(b"\n") == 0 for source in found.sources)


Array = list[Any]
ELEMENTS = some.none() | some.text(some.sampled_from('ab é,{}"\\[]= \t\n\r\v\f\b\x01'), max_size=5) | some.just("NULL")


def array_text(array: Array) -> str:
    """As PostgreSQL writes it."""
    return "{" + ",".join(map(_element_text, array)) + "}"


def _element_text(element: Array | str | None) -> str:
    if isinstance(element, list):
        return array_text(element)
    if element is None:
        return "NULL"
    if element and element.upper() != "NULL" and not set(element) & set('"\\{}, \t\n\r\v\f'):
        return element
    return '"' + element.replace("\\", "\\\\").replace('"', '\\"') + '"'


@given(
    some.lists(some.lists(ELEMENTS, max_size=4) | some.lists(some.lists(ELEMENTS, min_size=2, max_size=2)), max_size=6)
)
def test_any_batch_of_text_arrays_is_valid_json(arrays: list[Array]) -> None:
    rows = [(str(number), array_text(array)) for number, array in enumerate(arrays)]
    found = encode(text_rows(*rows), (ID, Column("tags", "text[]")))
    assert [json.loads(source)["tags"] for source in found.sources] == arrays
    assert all(source.count(b"\n") == 0 for source in found.sources)


@pytest.mark.parametrize("other", ["[0:1]={a,b}", '{"a b"}', '{"a\\\\b"}'], ids=["bounds", "quotes", "escapes"])
def test_arrays_are_the_same_whatever_the_other_rows_have(other: str) -> None:
    found = encode(text_rows(("1", '{a,"b c",NULL}'), ("2", other)), (ID, Column("tags", "text[]")))
    assert json.loads(found.sources[0])["tags"] == ["a", "b c", None]
    assert [reject.code for reject in found.refused] == (["ARRAY_BOUNDS"] if other.startswith("[") else [])


# -- payloads of transforms -------------------------------------------------------------------------------------------


def test_values_of_a_python_transform() -> None:
    moment = datetime(2024, 2, 29, 12, 0, 0, 500_000, UTC)
    columns = (
        ID,
        MODIFIED,
        Column("local", "timestamp without time zone"),
        Column("tags", "text[]"),
        Column("genres", "jsonb"),
        Column("rating", "numeric"),
    )
    rows: list[dict[str, Any]] = [
        {
            "id": 1,
            "modified": moment,
            "local": moment.replace(tzinfo=None),
            "tags": ["a", None, 'b"'],
            "genres": [{"name": "Drama"}],
            "rating": Decimal("1E+2"),
        },
        {
            "id": 2,
            "modified": moment.astimezone(timezone(timedelta(hours=3))),
            "local": None,
            "tags": [],
            "genres": None,
            "rating": Decimal("1.50"),
        },
    ]
    found = encode(PythonRows(rows), columns)
    first, second = (json.loads(source) for source in found.sources)
    assert first == {
        "id": 1,
        "modified": "2024-02-29T12:00:00.500000Z",
        "local": "2024-02-29T12:00:00.500000",
        "tags": ["a", None, 'b"'],
        "genres": [{"name": "Drama"}],
        "rating": 100.0,
    }
    assert second == {"id": 2, "modified": "2024-02-29T12:00:00.500000Z", "tags": [], "rating": 1.5}


@pytest.mark.parametrize("value", [float("nan"), {"a": [float("inf")]}])
def test_json_of_a_python_transform_with_nan_is_refused(value: Any) -> None:
    found = encode(PythonRows([{"id": 1, "value": value}]), (ID, Column("value", "jsonb")))
    assert [reject.code for reject in found.refused] == ["INVALID_VALUE"]


@pytest.mark.parametrize("text", ['1,"x":2', "{", "NaN", ""])
def test_text_of_a_frame_that_is_not_json_is_refused(text: str) -> None:
    frame = pl.DataFrame({"id": [1], "value": [text]})
    found = encode(FrameRows(frame), (ID, Column("value", "jsonb")))
    assert [reject.code for reject in found.refused] == ["INVALID_VALUE"]


@pytest.mark.parametrize(
    ("type_name", "text"), [("text[]", "abc"), ("integer[]", "{1"), ("text[]", "}{"), ("text[]", "")]
)
def test_text_of_a_frame_that_is_not_an_array_is_refused(type_name: str, text: str) -> None:
    found = encode(FrameRows(pl.DataFrame({"id": [1], "value": [text]})), (ID, Column("value", type_name)))
    assert [reject.code for reject in found.refused] == ["INVALID_VALUE"]


@pytest.mark.parametrize("type_name", ["uuid", "date", "timestamp with time zone", "numeric", "boolean"])
def test_text_of_a_frame_never_breaks_the_document(type_name: str) -> None:
    found = encode(FrameRows(pl.DataFrame({"id": [1], "value": ['",\n"x":"1']})), (ID, Column("value", type_name)))
    assert all(set(json.loads(source)) == {"id", "value"} for source in found.sources)
    assert found.count == 1


def test_rows_of_a_transform_reach_the_sink_as_such() -> None:
    """As text they would pass for rows of PostgreSQL, whose JSON is not checked."""
    assert {Lane.ROWS, Lane.FRAMES} <= set(ElasticsearchSink.lanes)
