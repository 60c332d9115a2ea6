"""Rows in PostgreSQL's text format: parsed into dictionaries and frames, and formatted again."""

import copy
import json
import pickle
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from operator import attrgetter
from typing import Any
from uuid import UUID

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrine.core.copytext import frames, rows, text_of, values
from vitrine.core.copytext.values import Unreadable, UnreadableValue
from vitrine.core.rows import START, Batch, Column, FrameRows, PythonRows, Row
from vitrine.errors import DataError

COLUMNS = (Column("id", "integer"), Column("title", "text"), Column("doc", "jsonb"), Column("span", "interval"))
LINE = b'7\ta\\tb\t{"a": 1.00}\t26:00:00\n'


def parsed(line: bytes = LINE) -> PythonRows:
    return rows.parse(line, COLUMNS)


def formatted(result: Sequence[Row], origins: Any = None, columns: tuple[Column, ...] = COLUMNS) -> bytes:
    return bytes(text_of(Batch(PythonRows(result, origins), columns, None, START)))


def transformed(function: Callable[[Sequence[Row]], Sequence[Row]], data: bytes = LINE) -> bytes:
    """The text of the rows that a function returns for these."""
    given = parsed(data)
    result = function(given.rows)
    return formatted(result, given.origins.of(result, ("id",)))


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_name", "field", "value"),
    [
        ("boolean", "t", True),
        ("boolean", "f", False),
        ("smallint", "-5", -5),
        ("int8", "9223372036854775807", 2**63 - 1),
        ("numeric(12, 2)", "1.50", Decimal("1.50")),
        ("double precision", "-Infinity", float("-inf")),
        ("real", "0.1", 0.1),
        ("text", "a\\tb\\nc\\\\N", "a\tb\nc\\N"),
        ("character varying(20)", "", ""),
        ("bytea", "\\\\x00ff", b"\x00\xff"),
        ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")),
        ("date", "2026-02-28", date(2026, 2, 28)),
        ("timestamp(3) without time zone", "2026-02-28 12:34:56.7", datetime(2026, 2, 28, 12, 34, 56, 700000)),  # noqa: DTZ001
        ("timestamptz", "2026-02-28 12:34:56.000001+00", datetime(2026, 2, 28, 12, 34, 56, 1, UTC)),
        ("time without time zone", "12:34:56", time(12, 34, 56)),
        ("time with time zone", "12:34:56+05:30", time(12, 34, 56, tzinfo=timezone(timedelta(hours=5, minutes=30)))),
        ("interval", "-1 days +02:00:00.5", timedelta(days=-1, hours=2, milliseconds=500)),
        ("interval", "00:00:00", timedelta()),
        ("jsonb", '{"a": [1, null, "\\\\"]}', None),
        ("integer[]", "{1,NULL,3}", [1, None, 3]),
        ("integer[]", "[0:1]={1,2}", [1, 2]),
        ("integer[]", "{{1,2},{3,4}}", [[1, 2], [3, 4]]),
        (
            "text[]",
            '{"a b","",NULL,"NULL","q\\\\"uo\\\\\\\\te","{x,y}",plain}',
            ["a b", "", None, "NULL", 'q"uo\\te', "{x,y}", "plain"],
        ),
        ("timestamp with time zone[]", '{"2026-01-01 00:00:00+00"}', [datetime(2026, 1, 1, tzinfo=UTC)]),
        ("public.mood", "so so", "so so"),
        ("public.mood[]", '{sad,"so so"}', ["sad", "so so"]),
        ("inet", "10.0.0.1", "10.0.0.1"),
        ("box[]", "{(1,1),(0,0);(2,2),(1,1)}", "{(1,1),(0,0);(2,2),(1,1)}"),
    ],
)
def test_a_field_is_decoded_to_its_value(type_name: str, field: str, value: Any) -> None:
    if type_name == "jsonb":
        with pytest.raises(json.JSONDecodeError):
            values.decoder(type_name)(field)
        return
    decoded = values.decoder(type_name)(field)
    assert decoded == value
    assert type(decoded) is type(value) or isinstance(decoded, UUID)


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@given(TEXTS)
def test_any_text_survives_a_field(text: str) -> None:
    field = values.field_of(text)
    assert not {"\t", "\n", "\r"} & set(field)
    assert values.unescape(field) == text
    assert field != values.NULL


@given(
    st.recursive(st.none() | TEXTS, lambda inner: st.lists(inner, min_size=1), max_leaves=5).filter(
        lambda v: isinstance(v, list)
    )
)
def test_any_array_of_texts_survives_a_field(value: Any) -> None:
    assert values.decoder("text[]")(values.field_of(value)) == value


@given(st.integers(-(2**62), 2**62))
def test_any_time_survives_as_a_number(number: int) -> None:
    assert values.microseconds(values.format_microseconds(number, zoned=True)) == number
    day = number // values.MICROSECONDS_A_DAY
    assert values.days(values.format_days(day)) == day


@given(st.datetimes())
def test_times_are_counted_as_python_counts_them(moment: datetime) -> None:
    since = moment - datetime(1970, 1, 1)  # noqa: DTZ001
    assert values.microseconds(str(moment)) == since // timedelta(microseconds=1)


@given(st.timedeltas(timedelta(days=-100_000), timedelta(days=100_000)))
def test_an_interval_is_formatted_as_days_and_seconds(value: timedelta) -> None:
    text = values.field_of(value)
    days, _, seconds, _ = text.split()
    assert timedelta(days=int(days), seconds=float(seconds)) - value < timedelta(microseconds=2)


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (None, "\\N"),
        (True, "t"),
        (1, "1"),
        (1e22, "1e+22"),
        (Decimal("1E-8"), "1E-8"),
        (b"\x00\xff", "\\\\x00ff"),
        (["a", None, "", 'q"\\', "NULL", [True]], '{"a",NULL,"","q\\\\"\\\\\\\\","NULL",{"t"}}'),
        ((1, 2), '{"1","2"}'),
        ({"a": "ё\n", "at": date(2026, 1, 1)}, '{"a": "ё\\\\n", "at": "2026-01-01"}'),
    ],
)
def test_a_value_is_formatted_as_postgres_reads_it(value: Any, field: str) -> None:
    assert values.field_of(value) == field


def test_in_a_json_column_everything_is_json() -> None:
    assert [values.json_field_of(value) for value in (None, "a", [1], True)] == ["\\N", '"a"', "[1]", "true"]


def test_a_uuid_that_keeps_its_text_is_a_uuid() -> None:
    text = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    lazy, real = values.decoder("uuid")(text), UUID(text)
    assert lazy == real
    assert real == lazy
    assert (str(lazy), hash(lazy), lazy.hex, lazy.version, repr(real) in repr(lazy).replace("TextUuid", "UUID")) == (
        text,
        hash(real),
        real.hex,
        4,
        True,
    )
    assert sorted([lazy, UUID(int=0)]) == [UUID(int=0), real]
    assert {real: 1}[lazy] == 1
    assert pickle.loads(pickle.dumps(lazy)) == copy.deepcopy(lazy) == real


# -- rows --------------------------------------------------------------------------------------------------------------


def test_a_row_is_the_dictionary_of_its_values() -> None:
    (row,) = parsed().rows
    assert type(row) is dict
    assert row == {"id": 7, "title": "a\tb", "doc": {"a": 1.0}, "span": timedelta(hours=26)}
    assert list(row) == ["id", "title", "doc", "span"]


def test_nulls_and_escapes_of_one_row_do_not_reach_the_next() -> None:
    data = b'1\t\\N\t\\N\t\\N\n2\ta\\tb\t{"a": "\\\\n"}\t00:00:01\n3\t\\\\N\t1\t1 mon\n'
    given = parsed(data)
    assert [row["title"] for row in given.rows] == [None, "a\tb", "\\N"]
    assert [row["doc"] for row in given.rows] == [None, {"a": "\n"}, 1]
    assert [row["span"] for row in given.rows[:2]] == [None, timedelta(seconds=1)]
    assert isinstance(given.rows[2]["span"], Unreadable)
    assert formatted(given.rows, given.origins) == data
    assert parsed(b"").rows == []
    assert formatted([]) == b""


WAYS: list[Callable[[Row], Row]] = [lambda row: row, lambda row: {**row}, lambda row: row | {}, copy.deepcopy]


@pytest.mark.parametrize("way", WAYS)
def test_unchanged_rows_keep_their_text(way: Callable[[Row], Row]) -> None:
    assert transformed(lambda rows: [way(row) for row in rows]) == LINE
    three = LINE + LINE.replace(b"7", b"8", 1) + LINE.replace(b"7", b"9", 1).replace(b"26:00:00", b"1 day 02:00:00")
    lines = three.splitlines(keepends=True)
    assert transformed(lambda rows: [way(row) for row in reversed(rows)], three) == b"".join(reversed(lines))
    assert transformed(lambda rows: [way(row) for row in rows if row["id"] > 7], three) == b"".join(lines[1:])
    assert transformed(lambda rows: [way(row) | {"id": row["id"] * 10} for row in rows], LINE).startswith(
        b"70\ta\\tb\t"
    )


def test_values_changed_in_place_are_formatted_anew() -> None:
    def changed(rows: Sequence[Row], value: Any) -> Sequence[Row]:
        rows[0]["doc"]["a"] = value
        return [{**row} for row in rows]

    two = LINE + LINE.replace(b"7", b"8", 1)
    # True equals 1.0, but is another value
    assert transformed(lambda rows: changed(rows, True), two) == two.replace(b'{"a": 1.00}', b'{"a": true}', 1)
    assert transformed(lambda rows: changed(rows, 1), two) == two.replace(b'{"a": 1.00}', b'{"a": 1}', 1)
    assert transformed(lambda rows: changed(rows, UUID(int=0)), two) == two.replace(
        b'{"a": 1.00}', f'{{"a": "{UUID(int=0)}"}}'.encode(), 1
    )

    def counted(rows: Sequence[Row]) -> Sequence[Row]:
        rows[0]["id"] += 1
        return rows

    assert transformed(counted).startswith(b"8\ta\\tb")


def test_a_row_with_another_place_or_key_does_not_get_the_text_of_an_original() -> None:
    two = b'1\ta\t{"a": 1.00}\t26:00:00\n2\tb\t{"a": 2.00}\t50:00:00\n'
    new = b'3\ta\t{"a": 1.0}\t1 days 7200.000000 seconds\n'
    assert transformed(lambda rows: [rows[1], {**rows[0], "id": 3}], two) == two.splitlines(keepends=True)[1] + new


def test_columns_are_formatted_in_the_order_and_number_requested() -> None:
    some = (COLUMNS[1], COLUMNS[0], Column("n", "bigint"))
    given = parsed()
    assert formatted([{**row, "n": 1} for row in given.rows], given.origins, some) == b"a\\tb\t7\t1\n"
    assert formatted([{"n": 1, "id": 7, "title": "a\tb"}], None, some) == b"a\\tb\t7\t1\n"


@given(st.lists(TEXTS | st.none() | st.integers() | st.booleans(), min_size=1))
def test_a_column_of_mixed_values_is_formatted_value_by_value(found: list[Any]) -> None:
    lines = "".join(f"{values.field_of(value)}\n" for value in found)
    assert formatted([{"x": value} for value in found], None, (Column("x", "text"),)) == lines.encode()


def test_a_value_unknown_to_postgres_is_reported_with_its_column() -> None:
    with pytest.raises(DataError, match="column 'title' has a value of type object, which PostgreSQL does not have"):
        transformed(lambda rows: [row | {"title": object()} for row in rows])
    with pytest.raises(DataError, match="column 'doc' has a value of type dict"):
        transformed(lambda rows: [row | {"doc": {"a": Decimal(1)}} for row in rows])
    with pytest.raises(DataError, match="lone surrogate"):
        transformed(lambda rows: [row | {"title": "\ud800"} for row in rows])


@pytest.mark.parametrize("span", ["1 mon", "infinity", "1 year 2 days"])
def test_a_value_that_python_cannot_represent_may_be_passed_on_but_not_used(span: str) -> None:
    line = f"7\tx\t{{}}\t{span}\n".encode()
    (row,) = parsed(line).rows
    assert transformed(lambda rows: [{**row} for row in rows], line) == formatted([row]) == line
    uses: list[Callable[[Any], Any]] = [str, len, bool, list, lambda v: v + v, lambda v: v == 1, lambda v: v < v]
    for use in (*uses, format, attrgetter("days")):
        with pytest.raises(UnreadableValue, match=r"column 'span' \(interval\) has a value that Python cannot hold"):
            use(row["span"])


@pytest.mark.parametrize("depth", [900, 100_000])
def test_a_document_of_any_depth_is_passed_on(depth: int) -> None:
    line = b"7\tx\t" + b"[" * depth + b"]" * depth + b"\t00:00:01\n"
    assert transformed(lambda rows: [{**row} for row in rows], line) == line
    assert transformed(lambda rows: [{**row, "title": "y"} for row in reversed(rows)], line) == line.replace(b"x", b"y")


# -- frames ------------------------------------------------------------------------------------------------------------

FRAME_COLUMNS = (
    Column("id", "integer"),
    Column("words", "text"),
    Column("at", "timestamp with time zone"),
    Column("day", "date"),
    Column("flag", "boolean"),
    Column("amount", "numeric"),
    Column("key", "uuid"),
)
KEY = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
FRAME_TEXT = (
    f"1\ta\\tb\\\\\\n\t2026-01-01 00:00:00.100000+00\t2026-01-01\tt\t1.50\t{KEY}\n"
    f"2\t\tinfinity\t-infinity\tf\tNaN\t{KEY}\n"
    f"\\N\t\\N\t0044-03-15 01:02:03.500000+00 BC\t0044-03-15 BC\t\\N\t\\N\t\\N\n"
    f"4\t\\\\N\t12345-01-01 00:00:00.000000+00\t12345-01-01\tt\t0\t{KEY}\n"
)


def framed(frame: Any, columns: tuple[Column, ...] = FRAME_COLUMNS) -> Batch:
    return Batch(FrameRows(frame), columns, None, START)


def test_a_frame_has_the_values_that_polars_can_represent() -> None:
    frame = frames.parse(FRAME_TEXT.encode(), FRAME_COLUMNS)
    assert frame.schema == pl.Schema(
        {
            "id": pl.Int32(),
            "words": pl.String(),
            "at": pl.Datetime("us", "UTC"),
            "day": pl.Date(),
            "flag": pl.Boolean(),
            "amount": pl.String(),
            "key": pl.String(),
        }
    )
    assert frame["words"].to_list() == ["a\tb\\\n", "", None, "\\N"]
    assert frame["at"][0] == datetime(2026, 1, 1, 0, 0, 0, 100000, UTC)
    assert (frame["at"] > datetime(2026, 1, 1, tzinfo=UTC)).to_list() == [True, True, False, True]
    assert (frame["day"] > date(2026, 1, 1)).to_list() == [False, False, False, True]


def test_an_unchanged_frame_keeps_its_text() -> None:
    frame = frames.parse(FRAME_TEXT.encode(), FRAME_COLUMNS)
    expected = FRAME_TEXT.replace("\tt\t", "\ttrue\t").replace("\tf\t", "\tfalse\t").encode()
    assert text_of(framed(frame)) == expected
    assert text_of(framed(frame.reverse().filter(pl.col("id").is_in([2])))) == expected.splitlines(keepends=True)[1]


def test_a_frame_may_have_no_rows() -> None:
    frame = frames.parse(b"", FRAME_COLUMNS)
    assert (len(frame), frame.columns) == (0, [column.name for column in FRAME_COLUMNS])
    assert text_of(framed(frame)) == b""


def test_a_single_column_keeps_its_empty_texts() -> None:
    column = (Column("words", "text"),)
    frame = frames.parse(b"a\n\n\\N\n", column)
    assert frame["words"].to_list() == ["a", "", None]
    assert text_of(framed(frame, column)) == b"a\n\n\\N\n"


@pytest.mark.parametrize(
    ("series", "lines"),
    [
        (pl.Series([[1, None], []]), [b'{"1",NULL}', b"{}"]),
        (pl.Series([{"a": 1, "b": "x\n"}, None]), [b'{"a": 1, "b": "x\\\\n"}', b"\\N"]),
        (pl.Series([timedelta(days=1, seconds=1), None]), [b"1 days 1.000000 seconds", b"\\N"]),
        (pl.Series([time(1, 2, 3), None]), [b"01:02:03", b"\\N"]),
        (pl.Series([b"\x00\xff", None]), [b"\\\\x00ff", b"\\N"]),
        (pl.Series([Decimal("1.50"), None]), [b"1.50", b"\\N"]),
        (pl.Series(["a\t", "b"], dtype=pl.Categorical), [b"a\\t", b"b"]),
        (pl.Series([float("inf"), float("nan")]), [b"inf", b"NaN"]),
        (
            pl.Series([datetime(2026, 1, 1, tzinfo=UTC)] * 2).dt.replace_time_zone("Europe/Berlin"),
            [b"2025-12-31 23:00:00.000000+00"] * 2,
        ),
    ],
)
def test_columns_added_by_a_function_are_formatted_as_postgres_reads_them(
    series: pl.Series, lines: list[bytes]
) -> None:
    frame = pl.DataFrame({"x": series})
    assert bytes(text_of(framed(frame, frames.columns_of(frame, ())))).splitlines() == lines


def test_a_time_outside_the_range_of_a_frame_is_reported() -> None:
    with pytest.raises(DataError, match="column 'at' has a time that a frame cannot hold"):
        frames.parse(b"294276-12-31 23:59:59.999999+00\n", (Column("at", "timestamp with time zone"),))


def test_binary_encoding_is_refused_for_a_value_of_another_form() -> None:
    for texts in (
        [KEY, KEY[:-1]],
        [KEY[:-1], "1" + KEY],  # joined, they have the length of two
        [KEY.replace("a", "g")],
        [KEY.replace("a", "-")],
        [KEY.replace("a", "\n")],
        [KEY.replace("-", "\n")],
        ["ё" + KEY[2:]],
    ):
        assert frames.encode(pl.DataFrame({"key": texts}), {"key": "uuid"}) is None
    encoded = b"\0\1\0\0\0\x10" + UUID(KEY).bytes
    assert frames.encode(pl.DataFrame({"key": [KEY, KEY.upper()]}), {"key": "uuid"}) == encoded * 2
    assert frames.encode(pl.DataFrame({"key": [5]}), {"key": "numeric"}) is None


def test_binary_encoding_has_nulls_and_texts_of_any_length() -> None:
    frame = pl.DataFrame({"n": [1, None, None], "t": ["ё", None, ""], "j": ["{}", None, "[1]"]})
    assert frames.encode(frame, {"n": "integer", "t": "text", "j": "jsonb"}) == b"".join(
        [
            *(b"\0\3", b"\0\0\0\4\0\0\0\1", b"\0\0\0\2\xd1\x91", b"\0\0\0\3\1{}"),
            *(b"\0\3", b"\xff\xff\xff\xff", b"\xff\xff\xff\xff", b"\xff\xff\xff\xff"),
            *(b"\0\3", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\4\1[1]"),
        ]
    )
