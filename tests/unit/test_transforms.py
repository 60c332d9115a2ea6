"""How a registered function becomes a step of the loop."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from vitrine.errors import ConfigError, DataError
from vitrine.flow import Batch, Column, Copied, Decoded, Position
from vitrine.model import Row
from vitrine.registry import Registry, RowTransform
from vitrine.transforms import TransformStep

POSITION = Position(("2", "b"))
COLUMNS = (Column("id", "integer"), Column("title", "character varying(20)"))
ROWS: list[Row] = [{"id": 1, "title": "Star Wars"}, {"id": 2, "title": "S3CR3T"}]


def apply(function: RowTransform, rows: Sequence[Row] = ROWS) -> Batch:
    return TransformStep("under_test", function, ("id",))(Batch(Decoded(rows), COLUMNS, POSITION))


def refusal(function: RowTransform, rows: Sequence[Row] = ROWS) -> str:
    with pytest.raises(DataError) as refused:
        apply(function, rows)
    assert refused.value.code == "TRANSFORM_ERROR"
    assert "S3CR3T" not in str(refused.value)
    assert "'under_test'" in str(refused.value)
    return str(refused.value)


def test_rows_are_transformed_and_the_position_stays() -> None:
    batch = apply(lambda rows: [row | {"title": row["title"].upper()} for row in rows])
    assert batch.payload == Decoded([{"id": 1, "title": "STAR WARS"}, {"id": 2, "title": "S3CR3T"}])
    assert (batch.columns, batch.position) == (COLUMNS, POSITION)


def test_rows_may_be_dropped_all_of_them_too() -> None:
    assert apply(lambda rows: rows[:1]).count == 1
    nothing = apply(lambda rows: [])
    assert (nothing.count, nothing.columns, nothing.position) == (0, COLUMNS, POSITION)


def test_an_empty_batch_is_not_shown_to_the_function() -> None:
    def broken(rows: Sequence[Row]) -> Sequence[Row]:
        raise AssertionError("called")

    assert apply(broken, []).count == 0


def test_a_generator_is_as_good_as_a_list() -> None:
    def generated(rows: Sequence[Row]) -> Any:
        yield from rows

    assert apply(generated).payload == Decoded(ROWS)


def test_an_exception_is_told_by_task_kind_and_key_but_not_by_its_text() -> None:
    def broken(rows: Sequence[Row]) -> Sequence[Row]:
        raise ValueError(f"cannot understand {rows[1]['title']}")

    assert "raised ValueError on a batch of 2 row(s) from key 1" in refusal(broken)


def test_a_result_that_is_no_list_of_rows_is_told() -> None:
    assert "raised TypeError" in refusal(lambda rows: None)  # pyright: ignore[reportArgumentType]


def test_a_dropped_key_is_told() -> None:
    assert "dropped the key column 'id'" in refusal(lambda rows: [{"title": row["title"]} for row in rows])


def test_rows_of_different_shape_are_told_by_column_and_key() -> None:
    text = refusal(lambda rows: [rows[0], rows[1] | {"extra": 1}])
    assert "column(s) extra are not in every row, see key 2" in text
    assert "column(s) title are not in every row" in refusal(lambda rows: [rows[0], {"id": 2}])


def test_the_order_of_a_rows_fields_does_not_matter() -> None:
    batch = apply(lambda rows: [rows[0], dict(reversed(rows[1].items()))])
    assert batch.columns == COLUMNS


def test_known_columns_keep_their_types_and_gone_ones_go() -> None:
    batch = apply(lambda rows: [{"title": row["title"], "id": str(row["id"])} for row in rows])
    assert batch.columns == tuple(reversed(COLUMNS))
    assert apply(lambda rows: [{"id": row["id"]} for row in rows]).columns == COLUMNS[:1]


@pytest.mark.parametrize(
    ("value", "type_name"),
    [
        (True, "boolean"),
        (1, "bigint"),
        (1.5, "double precision"),
        (Decimal("1.50"), "numeric"),
        ("text", "text"),
        (b"bytes", "bytea"),
        (UUID(int=1), "uuid"),
        (datetime(2026, 1, 1, tzinfo=UTC), "timestamp with time zone"),
        (date(2026, 1, 1), "date"),
        (time(12), "time without time zone"),
        (timedelta(1), "interval"),
        ({"a": 1}, "jsonb"),
        ([1, 2], "bigint[]"),
        (["a"], "text[]"),
        ([None, True], "boolean[]"),
        ([], "text[]"),
        (None, "text"),
        (object(), "text"),
    ],
)
def test_an_added_column_gets_the_type_of_its_values(value: Any, type_name: str) -> None:
    batch = apply(lambda rows: [row | {"added": value} for row in rows])
    assert batch.columns == (*COLUMNS, Column("added", type_name))


def test_the_first_value_that_is_there_decides_the_type() -> None:
    batch = apply(lambda rows: [rows[0] | {"added": None}, rows[1] | {"added": 7}])
    assert batch.columns[-1] == Column("added", "bigint")


def test_an_empty_list_says_nothing_about_its_elements() -> None:
    batch = apply(lambda rows: [rows[0] | {"added": []}, rows[1] | {"added": [7]}])
    assert batch.columns[-1] == Column("added", "bigint[]")


def test_rows_that_nobody_decoded_are_a_mistake_of_the_plan() -> None:
    with pytest.raises(TypeError):
        TransformStep("under_test", list, ("id",))(Batch(Copied(b"row", 1), COLUMNS, POSITION))


def test_two_parts_of_one_name_are_refused() -> None:
    parts: Registry[RowTransform] = Registry("transform", "vitrine.transforms", "vitrine.none")
    parts.register("twice")(list)
    parts.register("twice")(list)  # the same one again is harmless
    with pytest.raises(ConfigError, match="two transforms are named 'twice'"):
        parts.register("twice")(tuple)
