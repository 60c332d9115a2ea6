"""A registered function as a step of the loop."""

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import polars as pl
import pytest
from pydantic import BaseModel, Field

from vitrine.core.copytext import text_of
from vitrine.core.protocols import Transformer
from vitrine.core.rows import Batch, Column, FrameRows, Lane, Payload, Position, PythonRows, Row, TextRows
from vitrine.definition.registry import Kind, RowTransform, Task
from vitrine.errors import ConfigError, DataError
from vitrine.plan.transforms import conversion, step_of

if TYPE_CHECKING:
    from vitrine.definition.registry import FrameTransform

END = ("2", "b")
POSITION = Position(("1", "a"))  # behind the end: a watermark holds it back
COLUMNS = (Column("id", "integer"), Column("title", "character varying(20)"))
ROWS: list[Row] = [{"id": 1, "title": "Star Wars"}, {"id": 2, "title": "S3CR3T"}]
TEXT = TextRows(b"1\tStar Wars\n2\tS3CR3T\n", 2)


def batch_of(payload: Payload, columns: tuple[Column, ...] = COLUMNS) -> Batch:
    return Batch(payload, columns, END, POSITION, snapshot=3, read=7)


def is_same_place(batch: Batch) -> bool:
    """Whether the batch still has what the source said about its rows."""
    return (batch.end, batch.position, batch.snapshot, batch.read) == (END, POSITION, 3, 7)


def step(function: Callable[[Any], Any], kind: Kind = Kind.ROW) -> Transformer:
    return step_of(Task("under_test", kind, function, None).validate({}), ("id",))


def apply(function: RowTransform, payload: Payload = TEXT) -> Batch:
    return step(function)(batch_of(payload))


def apply_frame(function: "FrameTransform", payload: Payload = TEXT) -> Batch:
    return step(function, Kind.FRAME)(batch_of(payload))


def refusal(work: Callable[[], Batch]) -> str:
    with pytest.raises(DataError) as refused:
        work()
    assert refused.value.code == "TRANSFORM_ERROR"
    assert "S3CR3T" not in str(refused.value)
    assert "'under_test'" in str(refused.value)
    return str(refused.value)


def upper(rows: Sequence[Row]) -> Sequence[Row]:
    return [row | {"title": row["title"].upper()} for row in rows]


def test_rows_are_transformed_and_keep_end_and_position() -> None:
    batch = apply(upper)
    assert batch.payload == PythonRows([{"id": 1, "title": "STAR WARS"}, {"id": 2, "title": "S3CR3T"}])
    assert batch.columns == COLUMNS
    assert is_same_place(batch)
    assert text_of(batch) == b"1\tSTAR WARS\n2\tS3CR3T\n"


def test_a_frame_is_transformed_and_keeps_end_and_position() -> None:
    batch = apply_frame(lambda frame: frame.with_columns(pl.col("title").str.to_uppercase()))
    assert isinstance(batch.payload, FrameRows)
    assert batch.columns == COLUMNS
    assert is_same_place(batch)
    assert text_of(batch) == b"1\tSTAR WARS\n2\tS3CR3T\n"


def test_rows_may_arrive_as_dictionaries() -> None:
    assert text_of(apply(upper, PythonRows(ROWS))) == b"1\tSTAR WARS\n2\tS3CR3T\n"
    assert text_of(apply_frame(lambda frame: frame.head(1), PythonRows(ROWS))) == b"1\tStar Wars\n"


def test_steps_of_rows_and_frames_may_follow_one_another() -> None:
    doubled = step(lambda frame: frame.with_columns(double=pl.col("id") * 2), Kind.FRAME)
    plus_one = step(lambda rows: [{**row, "double": row["double"] + 1} for row in rows])
    batch = batch_of(TEXT)
    for one in (doubled, plus_one, doubled, doubled, plus_one):
        batch = one(batch)
    assert text_of(batch) == b"1\tStar Wars\t3\n2\tS3CR3T\t5\n"
    assert batch.columns == (*COLUMNS, Column("double", "integer"))


def test_some_or_all_rows_may_be_dropped() -> None:
    assert apply(lambda rows: rows[:1]).count == 1
    nothing = apply(lambda rows: [])
    assert (nothing.count, nothing.columns) == (0, ())  # those of the source say nothing about the function's
    assert is_same_place(nothing)
    nothing = apply_frame(lambda frame: frame.with_columns(n=1).clear())
    assert (nothing.count, nothing.columns[-1]) == (0, Column("n", "integer"))


def test_the_function_is_not_called_for_an_empty_batch() -> None:
    def broken(given: Any) -> Any:
        raise AssertionError("called")

    assert apply(broken, TextRows(b"", 0)).count == 0
    assert apply_frame(broken, TextRows(b"", 0)).count == 0


def test_an_empty_batch_has_no_columns_that_the_function_may_drop() -> None:
    only_key = step(lambda rows: [{"id": row["id"]} for row in rows])
    assert only_key(batch_of(TextRows(b"", 0))).columns == ()
    added = step(lambda rows: [row | {"n": 1} for row in rows])
    expected = added(batch_of(TEXT)).columns
    assert added(batch_of(TextRows(b"", 0))).columns == expected


def test_a_function_may_be_a_generator() -> None:
    def generated(rows: Sequence[Row]) -> Any:
        yield from rows

    assert apply(generated).payload == PythonRows(ROWS)


def place_after(function: Any, lines: int) -> str:
    """File and line, this many lines after the first one of the function."""
    return f"{__name__.replace('.', '/')}.py:{function.__code__.co_firstlineno + lines}"


def test_an_exception_is_reported_with_task_type_and_key_but_without_its_text() -> None:
    def broken(rows: Sequence[Row]) -> Sequence[Row]:
        for row in rows:
            if row["id"] == 700:
                raise ValueError(f"cannot understand {row['title']}")
        return rows

    many = TextRows(b"".join(b"%d\tS3CR3T\n" % number for number in range(1, 1001)), 1000)
    place = place_after(broken, 3)
    expected = f"raised ValueError in {place} at key 700 of a batch of 1000 row(s)"
    assert expected in refusal(lambda: apply(broken, many))

    def broken_frame(frame: pl.DataFrame) -> pl.DataFrame:
        broken(frame.to_dicts())
        return frame

    frame = refusal(lambda: apply_frame(broken_frame, many))
    assert expected in frame  # the line that raises, not the one that calls it


def test_an_exception_in_a_generator_is_reported_in_the_same_way() -> None:
    def broken(rows: Sequence[Row]) -> Any:
        for row in rows:
            yield {**row, "title": row["title"].index("W")}

    expected = f"raised ValueError in {place_after(broken, 2)} at key 2 of a batch of 2 row(s)"
    assert expected in refusal(lambda: apply(broken))


def test_rows_that_fail_only_together_are_reported_with_the_first_key() -> None:
    def broken(rows: Sequence[Row]) -> Sequence[Row]:
        if len(rows) > 1:
            raise ValueError
        return rows

    expected = f"raised ValueError in {place_after(broken, 2)} at key 1 of a batch of 2 row(s)"
    assert expected in refusal(lambda: apply(broken))


def test_a_panic_of_polars_is_a_failure_of_the_function() -> None:
    def broken(frame: pl.DataFrame) -> pl.DataFrame:
        raise pl.exceptions.PanicException("S3CR3T")

    assert f"raised PanicException in {place_after(broken, 1)} at key 1" in refusal(lambda: apply_frame(broken))


def test_an_exception_that_stops_the_process_is_no_failure_of_the_function() -> None:
    def stopped(rows: Sequence[Row]) -> Sequence[Row]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        apply(stopped)


@pytest.mark.parametrize("result", [None, 7, "rows", {"id": 1}])
def test_a_result_that_is_not_rows_is_reported(result: Any) -> None:
    expected = f"returned {type(result).__name__}, not rows, for the batch from key 1"
    assert expected in refusal(lambda: apply(lambda rows: result))
    assert f"returned {type(result).__name__}, not a frame" in refusal(lambda: apply_frame(lambda frame: result))


def test_a_result_with_something_other_than_rows_is_reported() -> None:
    assert "returned a tuple among the rows" in refusal(lambda: apply(lambda rows: [(1, "S3CR3T")]))  # pyright: ignore[reportArgumentType]


def test_a_dropped_key_is_reported() -> None:
    expected = "dropped the key column 'id' in the batch from key 1"
    assert expected in refusal(lambda: apply(lambda rows: [{"title": row["title"]} for row in rows]))
    assert expected in refusal(lambda: apply_frame(lambda frame: frame.drop("id")))


def test_rows_of_different_shape_are_reported_with_column_and_key() -> None:
    text = refusal(lambda: apply(lambda rows: [rows[0], rows[1] | {"extra": 1}]))
    assert "column(s) extra are not in every row, see key 2" in text
    text = refusal(lambda: apply(lambda rows: [rows[0], {"id": 2}]))
    assert "column(s) title are not in every row" in text
    text = refusal(lambda: apply(lambda rows: [{"id": 1, "name": "x"}, rows[1]]))
    assert "column(s) name, title are not in every row" in text


def test_batches_of_different_shape_are_reported() -> None:
    sometimes = step(lambda rows: [row | {"extra": 1} if row["id"] == 1 else row for row in rows])
    sometimes(batch_of(TextRows(b"1\tone\n", 1)))
    text = refusal(lambda: sometimes(batch_of(TextRows(b"2\ttwo\n", 1))))
    assert "changed the shape in the batch from key 2: column(s) extra are not in every batch" in text


def test_the_first_batch_decides_the_type_of_an_added_column() -> None:
    some = step(lambda frame: frame.with_columns(n=None if frame["id"][0] == 1 else 5), Kind.FRAME)
    first = some(batch_of(TextRows(b"1\tone\n", 1)))
    assert some(batch_of(TextRows(b"2\ttwo\n", 1))).columns == first.columns


def test_the_order_of_a_rows_fields_does_not_matter() -> None:
    batch = apply(lambda rows: [rows[0], dict(reversed(rows[1].items()))])
    assert batch.columns == COLUMNS
    assert text_of(batch) == TEXT.data


def test_known_columns_keep_their_types_and_dropped_ones_are_removed() -> None:
    batch = apply(lambda rows: [{"title": row["title"], "id": str(row["id"])} for row in rows])
    assert batch.columns == tuple(reversed(COLUMNS))
    assert apply(lambda rows: [{"id": row["id"]} for row in rows]).columns == COLUMNS[:1]
    assert apply_frame(lambda frame: frame.select("title", "id")).columns == tuple(reversed(COLUMNS))


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
        ([[1], [2]], "bigint[]"),
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


@pytest.mark.parametrize(
    ("values", "type_name"),
    [
        (pl.Series([True, None]), "boolean"),
        (pl.Series([1, 2], dtype=pl.Int8), "smallint"),
        (pl.Series([1, 2], dtype=pl.UInt32), "bigint"),
        (pl.Series([1, 2]), "bigint"),
        (pl.Series([1.5, 2]), "double precision"),
        (pl.Series([Decimal("1.50"), None]), "numeric"),
        (pl.Series(["a", "b"]), "text"),
        (pl.Series(["a", "b"], dtype=pl.Categorical), "text"),
        (pl.Series([b"a", b"b"]), "bytea"),
        (pl.Series([datetime(2026, 1, 1)] * 2), "timestamp without time zone"),  # noqa: DTZ001
        (pl.Series([datetime(2026, 1, 1, tzinfo=UTC)] * 2), "timestamp with time zone"),
        (pl.Series([date(2026, 1, 1)] * 2), "date"),
        (pl.Series([time(12)] * 2), "time without time zone"),
        (pl.Series([timedelta(1)] * 2), "interval"),
        (pl.Series([{"a": 1}] * 2), "jsonb"),
        (pl.Series([[1, 2], []]), "bigint[]"),
        (pl.Series([None, None]), "text"),
    ],
)
def test_an_added_column_of_a_frame_gets_the_type_of_its_values(values: pl.Series, type_name: str) -> None:
    batch = apply_frame(lambda frame: frame.with_columns(added=values))
    assert batch.columns == (*COLUMNS, Column("added", type_name))


def test_a_column_that_no_mart_can_hold_is_reported() -> None:
    objects = pl.Series([object(), object()], dtype=pl.Object)
    text = refusal(lambda: apply_frame(lambda frame: frame.with_columns(added=objects)))
    assert "returned a column that cannot be stored" in text


def test_the_first_value_that_is_not_null_decides_the_type() -> None:
    batch = apply(lambda rows: [rows[0] | {"added": None}, rows[1] | {"added": 7}])
    assert batch.columns[-1] == Column("added", "bigint")


def test_an_empty_list_does_not_decide_the_type_of_its_elements() -> None:
    batch = apply(lambda rows: [rows[0] | {"added": []}, rows[1] | {"added": [7]}])
    assert batch.columns[-1] == Column("added", "bigint[]")


class Suffix(BaseModel):
    suffix: str
    times: int = Field(default=1, ge=1)


def test_options_are_the_second_argument() -> None:
    def appended(rows: Sequence[Row], options: Suffix) -> Sequence[Row]:
        return [row | {"title": row["title"] + options.suffix * options.times} for row in rows]

    task = Task("under_test", Kind.ROW, appended, Suffix).validate({"suffix": "!", "times": 2})
    batch = step_of(task, ("id",))(batch_of(TEXT))
    assert text_of(batch) == b"1\tStar Wars!!\n2\tS3CR3T!!\n"


def test_a_value_that_python_cannot_represent_is_reported_when_it_is_used() -> None:
    columns = (COLUMNS[0], Column("until", "timestamp with time zone"))
    payload = TextRows(b"1\t2026-01-01 00:00:00+00\n2\tinfinity\n", 2)
    dated = step(lambda rows: [row | {"year": row["until"].year} for row in rows])
    text = refusal(lambda: dated(batch_of(payload, columns)))
    assert "failed at key 2: column 'until' (timestamp with time zone) has a value that Python cannot hold" in text
    passed_on = step(lambda rows: [{**row, "n": 1} for row in rows])(batch_of(payload, columns))
    assert text_of(passed_on) == b"1\t2026-01-01 00:00:00+00\t1\n2\tinfinity\t1\n"


@pytest.mark.parametrize("lane", [Lane.ROWS, Lane.FRAMES, Lane.TEXT])
@pytest.mark.parametrize("payload", [TEXT, PythonRows(ROWS), FrameRows(pl.DataFrame(ROWS))])
def test_rows_are_converted_to_any_lane_but_the_binary_one(lane: Lane, payload: Payload) -> None:
    batch = conversion(lane)(batch_of(payload))
    kinds = {Lane.ROWS: PythonRows, Lane.FRAMES: FrameRows, Lane.TEXT: TextRows}
    assert type(batch.payload) is kinds[lane]
    assert (batch.count, text_of(batch)) == (2, TEXT.data)
    assert is_same_place(batch)


def test_no_rows_are_converted_to_binary() -> None:
    with pytest.raises(ConfigError, match="rows cannot be converted to lane copy") as refused:
        conversion(Lane.COPY)
    assert refused.value.code == "NO_LANE"
