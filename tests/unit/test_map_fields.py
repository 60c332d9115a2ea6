"""The built-in transform that maps columns: drop, rename, trim, cast, default."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from vitrine.core.rows import Row
from vitrine.definition import registry
from vitrine.definition.registry import FieldError
from vitrine.errors import ConfigError
from vitrine.plan.builtin.map_fields import FieldMapping, map_fields


def mapped(row: Row, **options: Any) -> Row:
    (result,) = map_fields([row], FieldMapping.model_validate(options))
    return result


def test_columns_are_dropped_renamed_trimmed_cast_and_filled_in_this_order() -> None:
    row = {"id": 1, "name": " 7 ", "note": None, "path": "x"}
    options = {"drop": ["path"], "rename": {"name": "size", "note": "label"}, "trim": ["size"]}
    result = mapped(row, **options, cast={"size": "bigint"}, default={"label": "none"})
    assert list(result.items()) == [("id", 1), ("size", 7), ("label", "none")]
    assert row["name"] == " 7 "


def test_two_columns_may_exchange_their_names() -> None:
    assert mapped({"id": 1, "a": "x", "b": "y"}, rename={"a": "b", "b": "a"}) == {"id": 1, "b": "x", "a": "y"}


@pytest.mark.parametrize(
    ("value", "type_name", "expected"),
    [
        (None, "bigint", None),
        ("-12", "integer", -12),
        (Decimal("3.00"), "bigint", 3),
        (True, "bigint", 1),
        ("1.50", "numeric", Decimal("1.50")),
        (0.1, "numeric", Decimal("0.1")),
        ("1e3", "double precision", 1000.0),
        ("Yes", "boolean", True),
        (0, "boolean", False),
        (True, "text", "true"),
        (Decimal("1.50"), "text", "1.50"),
        ({"a": 1}, "text", '{"a": 1}'),
        ("2024-02-29", "date", date(2024, 2, 29)),
        (datetime(2024, 2, 29, 12, tzinfo=UTC), "date", date(2024, 2, 29)),
        ("2024-02-29T12:00:00Z", "timestamptz", datetime(2024, 2, 29, 12, tzinfo=UTC)),
        ("00000000-0000-0000-0000-000000000007", "uuid", UUID(int=7)),
    ],
)
def test_a_value_is_cast(value: Any, type_name: str, expected: Any) -> None:
    result = mapped({"id": 1, "value": value}, cast={"value": type_name})["value"]
    assert (result, type(result)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("value", "type_name"),
    [
        ("secret", "bigint"),
        ("1_000", "bigint"),
        ("٣", "bigint"),
        (1.5, "bigint"),
        (float("inf"), "bigint"),
        (date(2024, 1, 1), "bigint"),
        ("secret", "numeric"),
        ("1_0.5", "double precision"),
        ("secret", "boolean"),
        (2, "boolean"),
        ("secret", "date"),
        (7, "date"),
        (datetime(2024, 1, 1), "timestamptz"),  # noqa: DTZ001  without a zone it is no moment
        ("2024-01-01", "timestamptz"),
        ("secret", "uuid"),
        ([1], "text"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_without_showing_it(value: Any, type_name: str) -> None:
    with pytest.raises(FieldError) as refused:
        mapped({"id": 1, "value": value}, cast={"value": type_name})
    assert str(refused.value) == f"cast: a value of column 'value' is no {type_name}; correct it in the query"
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    "options",
    [{"drop": ["x"]}, {"rename": {"x": "y"}}, {"trim": ["x"]}, {"cast": {"x": "text"}}, {"default": {"x": 1}}],
)
def test_an_unknown_column_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(FieldError, match=r"there is no column 'x'; there are: id, a"):
        mapped({"id": 1, "a": "secret"}, **options)


def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(FieldError, match="there is a column 'b' already"):
        mapped({"id": 1, "a": "x", "b": "y"}, rename={"a": "b"})


def test_only_text_is_trimmed() -> None:
    with pytest.raises(FieldError, match="column 'id' is not text"):
        mapped({"id": 1}, trim=["id"])
    assert mapped({"id": None}, trim=["id"]) == {"id": None}


@pytest.mark.parametrize(
    "options",
    [
        {"rename": {"a": "c", "b": "c"}},
        {"drop": ["a"], "rename": {"a": "b"}},
        {"cast": {"a": "point"}},
        {"renames": {"a": "b"}},
    ],
)
def test_options_that_contradict_each_other_or_are_unknown_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        registry.transforms.get("map_fields").validate(options)
