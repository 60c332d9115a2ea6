"""Rows that are marked as deleted are taken out of a batch, in every form of rows."""

from decimal import Decimal
from typing import Any

import polars as pl
import pytest

from vitrine.core.copytext import frame_of, rows_of, text_of
from vitrine.core.rows import Batch, Column, FrameRows, Payload, Position, PythonRows, TextRows
from vitrine.plan.transforms import drop_marked

COLUMNS = (Column("id", "integer"), Column("gone", "integer"), Column("tags", "text[]"))


def batch_of(payload: Payload, *columns: Column) -> Batch:
    return Batch(payload, columns or COLUMNS, None, Position())


TEXT = batch_of(TextRows(b"1\t0\t{a}\n2\t1\t{b}\n3\t\\N\t{}\n", 3))


def drop(batch: Batch) -> Batch:
    return drop_marked("gone", ["id"])(batch)


@pytest.mark.parametrize(
    "batch",
    [TEXT, batch_of(rows_of(TEXT)), batch_of(frame_of(TEXT))],
    ids=["text", "rows", "frame"],
)
def test_the_others_stay_in_their_form(batch: Batch) -> None:
    dropped = drop(batch)
    assert type(dropped.payload) is type(batch.payload)
    assert (dropped.deleted, dropped.count) == ((("2",),), 2)
    assert bytes(text_of(dropped)) == b"1\t0\t{a}\n3\t\\N\t{}\n"


@pytest.mark.promise("I10")
@pytest.mark.parametrize("type_name", ["integer", "boolean", "text", "timestamp with time zone"])
@pytest.mark.parametrize(
    ("value", "marked"),
    [(False, False), (True, True), (0, False), (2, True), (Decimal("0.00"), False), (0.0, False), ("x", True)],
)
def test_a_value_that_a_transform_returned_counts_as_what_it_is(value: Any, marked: bool, type_name: str) -> None:
    columns = Column("id", "integer"), Column("gone", type_name)
    rows = batch_of(PythonRows([{"id": 1, "gone": None}, {"id": 2, "gone": value}]), *columns)
    assert drop(rows).deleted == ((("2",),) if marked else ())
    if not isinstance(value, Decimal):
        frame = batch_of(FrameRows(pl.DataFrame({"id": [1, 2], "gone": [None, value]})), *columns)
        if not isinstance(value, str):
            assert drop(frame).deleted == ((("2",),) if marked else ())


@pytest.mark.promise("I10")
def test_a_list_for_a_json_column_stays_a_list() -> None:
    """As text it would be an array of PostgreSQL: `{}` instead of `[]`."""
    rows = [{"id": 1, "gone": 1, "tags": ["a"]}, {"id": 2, "gone": 0, "tags": list[str]()}]
    dropped = drop(batch_of(PythonRows(rows)))
    assert dropped.payload == PythonRows(rows[1:])


def test_a_later_row_without_a_mark_cancels_the_deletion_of_its_key() -> None:
    lines = b"1\t1\t{}\n2\t1\t{}\n1\t0\t{}\n2\t1\t{}\n\\N\t1\t{}\n"
    assert drop(batch_of(TextRows(lines, 5))).deleted == (("2",),)
