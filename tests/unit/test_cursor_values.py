"""Values of a cursor as a person writes them."""

import pytest

from vitrine.core.rows import Column
from vitrine.plan.backfill import parse_cursor_value


@pytest.mark.parametrize(
    ("type_name", "given", "text", "below"),
    [
        ("integer", " 17 ", "17", "16"),
        ("smallint", "-32768", "-32768", "-32768"),
        ("bigint", "+9223372036854775807", "9223372036854775807", "9223372036854775806"),
        ("numeric(10,2)", "1.50", "1.50", "0.50"),
        ("double precision", "2.5", "2.5", "1.5"),
        ("date", "2025-03-01", "2025-03-01", "2025-02-28"),
        ("date", "-infinity", "-infinity", "-infinity"),
        (
            "timestamp with time zone",
            "2025-01-01T03:00:00+03:00",
            "2025-01-01 00:00:00+00",
            "2024-12-31 23:59:59.999999+00",
        ),
        ("timestamptz", "2025-01-01", "2025-01-01 00:00:00+00", "2024-12-31 23:59:59.999999+00"),
        (
            "timestamp with time zone",
            "2025-01-01T00:00:00.5Z",
            "2025-01-01 00:00:00.500000+00",
            "2025-01-01 00:00:00.499999+00",
        ),
        ("timestamp without time zone", "2025-01-01 12:00", "2025-01-01 12:00:00", "2025-01-01 11:59:59.999999"),
        (
            "uuid",
            "5F0C6A52-3A55-4F0E-9A44-0D3F4F5F3C1E",
            "5f0c6a52-3a55-4f0e-9a44-0d3f4f5f3c1e",
            "5f0c6a52-3a55-4f0e-9a44-0d3f4f5f3c1d",
        ),
        ("text", "b", "b", "b"),
    ],
)
def test_a_value_is_in_the_text_format_of_its_type(type_name: str, given: str, text: str, below: str) -> None:
    value = parse_cursor_value(Column("at", type_name), given)
    assert (value.text, value.below) == (text, below)


@pytest.mark.parametrize(
    ("type_name", "given", "reason"),
    [
        ("integer", "2147483648", "from -2147483648 to 2147483647"),
        ("integer", "1.5", "give an integer"),
        ("integer", "٣٣", "give an integer"),
        ("bigint", "9" * 5000, "give an integer"),
        ("numeric", "NaN", "give a number"),
        ("double precision", "inf", "give a number"),
        ("date", "2025-02-30", "give a date"),
        ("timestamp without time zone", "2025-01-01T00:00:00Z", "has no time zone"),
        ("timestamp with time zone", "2025-01-01T00:00:00.1234567Z", "at most six digits"),
        ("timestamp with time zone", "0001-01-01T00:00:00+10:00", "give a time"),
        ("uuid", "17", "give a UUID"),
        ("text", "a\0b", "NUL"),
        ("text", "", "NUL"),
    ],
)
def test_a_value_of_another_type_is_refused_with_what_to_give(type_name: str, given: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"is of type {type_name.split('(')[0]}.*{reason}") as refused:
        parse_cursor_value(Column("at", type_name), given)
    assert len(str(refused.value)) < 300


def test_values_are_ordered_by_their_type_and_not_by_their_text() -> None:
    number, moment = Column("n", "integer"), Column("at", "timestamp with time zone")
    assert parse_cursor_value(number, "9").is_before(parse_cursor_value(number, "10"))
    assert parse_cursor_value(moment, "-infinity").is_before(parse_cursor_value(moment, "2025-01-01"))
    assert not parse_cursor_value(moment, "infinity").is_before(parse_cursor_value(moment, "2025-01-01"))
    assert not parse_cursor_value(moment, "2025-01-01T01:00:00+01:00").is_before(
        parse_cursor_value(moment, "2025-01-01")
    )
