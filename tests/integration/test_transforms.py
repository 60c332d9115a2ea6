"""Transforms and readers on a real PostgreSQL: both kinds, options, errors, and exact values of every type."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, LiteralString

import polars as pl
import pytest
from psycopg import sql
from pydantic import BaseModel

from tests.helpers.running import create, run, succeed
from vitrine.compare import reconcile
from vitrine.core.protocols import Outcome
from vitrine.core.rows import Cursor, Row
from vitrine.definition import registry
from vitrine.definition.registry import Kind, Task
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import history, pipelines

SQL_STEP = {"order_index": 10, "task_type": "SQL", "body": "SELECT id, title, rating FROM content.film_work"}


class Adding(BaseModel):
    amount: int = 1


def add_rows(rows: Sequence[Row], options: Adding) -> Sequence[Row]:
    return [row | {"extra": options.amount} for row in rows]


def copy_rows(rows: Sequence[Row]) -> Sequence[Row]:
    return [{**row, "extra": 1} for row in rows]


def some_rows(rows: Sequence[Row]) -> Sequence[Row]:
    """Every other row, as copies, the last first."""
    return [{**row, "extra": 1} for row in rows[::2]][::-1]


def read_rows(rows: Sequence[Row]) -> Sequence[Row]:
    """Changes a row in place after reading all of its values."""
    for row in rows:
        assert len(list(row.values())) == len(row)
        row["extra"] = 1
    return rows


def add_frame(frame: pl.DataFrame, options: Adding) -> pl.DataFrame:
    return frame.with_columns(extra=pl.lit(options.amount))


def sort_frame(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.reverse().with_columns(extra=pl.lit(1))


def break_at_five(rows: Sequence[Row]) -> Sequence[Row]:
    return [row | {"title": row["title"][: 10 // (row["id"] - 5)]} for row in rows]


def numbers(after: Cursor | None, options: Adding) -> Iterator[Row]:
    for number in range(int(after[0]) + 1 if after else 1, options.amount + 1):
        yield {"n": number, "word": f"number {number}", "half": number / 2}


def all_numbers(after: Cursor | None) -> Iterator[Row]:
    for number in range(1, 8):
        yield {"n": number, "word": None if number % 2 else "\t\\N\n", "half": 0.1}


def backwards(after: Cursor | None) -> Iterator[Row]:
    yield {"n": 2, "word": "", "half": 0}
    yield {"n": 1, "word": "", "half": 0}


def raising(after: Cursor | None) -> Iterator[Row]:
    yield {"n": 1, "word": "S3CR3T", "half": 0}
    raise ValueError("S3CR3T")


COLUMNS = (("n", "integer"), ("word", "text"), ("half", "double precision"))


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.load()
    transforms: dict[str, Any] = vars(registry.transforms)["_tasks"]
    readers: dict[str, Any] = vars(registry.readers)["_tasks"]
    for function in (copy_rows, some_rows, read_rows, break_at_five):
        monkeypatch.setitem(transforms, function.__name__, Task(function.__name__, Kind.ROW, function, None))
    monkeypatch.setitem(transforms, "add_rows", Task("add_rows", Kind.ROW, add_rows, Adding))
    monkeypatch.setitem(transforms, "add_frame", Task("add_frame", Kind.FRAME, add_frame, Adding))
    monkeypatch.setitem(transforms, "sort_frame", Task("sort_frame", Kind.FRAME, sort_frame, None))
    for function in (all_numbers, backwards, raising):
        task = Task(function.__name__, Kind.READER, function, None, COLUMNS)
        monkeypatch.setitem(readers, function.__name__, task)
    monkeypatch.setitem(readers, "numbers", Task("numbers", Kind.READER, numbers, Adding, COLUMNS))


# -- every type --------------------------------------------------------------------------------------------------------

EVERYTHING = "SELECT * FROM ugc.everything"


@pytest.fixture
def _every_type(connection: Connection) -> None:
    """One table with the values that conversions lose most easily."""
    connection.execute(Path(__file__).with_name("every_type.sql").read_bytes())
    if connection.info.server_version >= 170000:
        connection.execute("UPDATE ugc.everything SET span = 'infinity' WHERE id = 6")


# Types that a frame passes in binary, if it has only these columns
ENCODABLE = (
    "SELECT id, small, big, short, long, flag, words, code, padded, day, at, local_at, rough_at, key, doc, docb"
    " FROM ugc.everything"
)


def _carried(name: str) -> sql.Composable:
    value = sql.Identifier("s", name)
    return sql.SQL("to_jsonb({})").format(value) if name == "place" else value


def changed(connection: Connection, target: str, query: LiteralString = EVERYTHING) -> list[int]:
    """Keys of the rows that are missing in the target, or have a column with another text."""
    names = [column.name for column in connection.execute(f"SELECT * FROM ({query}) AS q LIMIT 0").description or ()]
    schema, table = target.split(".")
    statement = sql.SQL(
        "SELECT s.id FROM ugc.everything AS s LEFT JOIN {} AS t USING (id)"
        " WHERE ROW({})::text IS DISTINCT FROM ROW({})::text ORDER BY s.id"
    ).format(
        sql.Identifier(schema, table),
        sql.SQL(", ").join(_carried(name) for name in names),
        sql.SQL(", ").join(sql.Identifier("t", name) for name in names),
    )
    return [row["id"] for row in connection.execute(statement)]


@pytest.mark.usefixtures("_every_type")
@pytest.mark.parametrize("target", ["missing", "there"])
@pytest.mark.parametrize("mode", ["full", "incremental"])
@pytest.mark.parametrize("task", ["add_rows", "copy_rows", "read_rows", "add_frame", "sort_frame"])
def test_values_that_a_transform_does_not_change_arrive_exactly(
    connection: Connection, settings: Settings, task: str, mode: str, target: str
) -> None:
    if target == "there":
        connection.execute("CREATE TABLE analytics.everything (LIKE ugc.everything INCLUDING INDEXES, extra integer)")
        connection.execute("ALTER TABLE analytics.everything ALTER place TYPE jsonb USING NULL")
    cursor: dict[str, Any] = {"options": {"cursor_is_monotonic": True}}
    if mode == "incremental":
        cursor |= {"mode": "incremental", "incremental_key": "id", "incremental_id_key": "id"}
    pipeline = create(
        connection,
        settings,
        source_query=EVERYTHING,
        python_task=task,
        target_table="analytics.everything",
        key_columns=["id"],
        batch_size=4,
        **cursor,
    )
    succeed(connection, settings, pipeline)
    assert changed(connection, "analytics.everything") == []
    assert reconcile.compare(pipeline.definition, settings).equal
    row = connection.execute("SELECT count(*) AS n FROM analytics.everything WHERE extra = 1").fetchone()
    assert row == {"n": 6}
    types = connection.execute(
        "SELECT s.attname FROM pg_attribute s JOIN pg_attribute t USING (attname) WHERE s.attnum > 0"
        " AND s.attrelid = 'ugc.everything'::regclass AND t.attrelid = 'analytics.everything'::regclass"
        " AND (s.atttypid, s.atttypmod) IS DISTINCT FROM (t.atttypid, t.atttypmod) ORDER BY 1"
    ).fetchall()
    own = ["best", "mood", "moods", "place", "score", "scores"]
    assert [row["attname"] for row in types] == (own if target == "missing" else ["place"])


@pytest.mark.usefixtures("_every_type")
@pytest.mark.parametrize("columns", [ENCODABLE, "SELECT id, key, at, small FROM ugc.everything WHERE id < 4"])
@pytest.mark.parametrize("task", ["add_frame", "sort_frame"])
def test_values_that_a_frame_passes_in_binary_arrive_exactly(
    connection: Connection, settings: Settings, monkeypatch: pytest.MonkeyPatch, task: str, columns: LiteralString
) -> None:
    def refuse(*_: Any) -> bytes:
        raise AssertionError("the frame was passed as text")

    monkeypatch.setattr("vitrine.core.copytext.frames.format_frame", refuse)
    pipeline = create(
        connection,
        settings,
        source_query=columns,
        python_task=task,
        target_table="analytics.everything",
        key_columns=["id"],
    )
    succeed(connection, settings, pipeline)
    assert [key for key in changed(connection, "analytics.everything", columns) if key < 4] == []
    assert columns != ENCODABLE or changed(connection, "analytics.everything", columns) == []


def test_a_number_too_large_for_its_column_is_reported_and_not_truncated(
    connection: Connection, settings: Settings
) -> None:
    connection.execute("CREATE TABLE analytics.films (id uuid PRIMARY KEY, extra smallint)")
    tasks = [{**SQL_STEP, "body": "SELECT id FROM content.film_work"}, step(20, "add_frame", amount=100_000)]
    pipeline = create(connection, settings, tasks=tasks, target_table="analytics.films", key_columns=["id"])
    executed = run(connection, settings, pipeline)
    assert executed.error is not None
    assert "column 'extra' does not fit: 22003" in str(executed.error)


@pytest.mark.usefixtures("_every_type")
def test_rows_that_a_transform_filters_and_reorders_keep_their_exact_values(
    connection: Connection, settings: Settings
) -> None:
    pipeline = create(
        connection,
        settings,
        source_query=EVERYTHING,
        python_task="some_rows",
        target_table="analytics.everything",
        key_columns=["id"],
    )
    succeed(connection, settings, pipeline)
    assert changed(connection, "analytics.everything") == [2, 4, 6]


@pytest.mark.usefixtures("_every_type")
def test_a_second_run_of_an_unchanged_source_writes_nothing(connection: Connection, settings: Settings) -> None:
    for task in ("copy_rows", "add_frame"):
        pipeline = create(
            connection,
            settings,
            name=f"under_{task}",
            source_query=EVERYTHING,
            python_task=task,
            target_table=f"analytics.{task}",
            key_columns=["id"],
        )
        assert succeed(connection, settings, pipeline).counts.written == 6
        assert succeed(connection, settings, pipeline).counts.written == 0


# -- plans and chains --------------------------------------------------------------------------------------------------


def step(index: int, body: str, **options: Any) -> dict[str, Any]:
    return {"order_index": index, "task_type": "PYTHON", "body": body, "options": options}


def test_transforms_of_rows_and_of_frames_work_in_one_chain_with_options(
    connection: Connection, settings: Settings
) -> None:
    chain = [step(20, "add_rows", amount=5), step(30, "add_frame", amount=7), step(40, "add_rows", amount=9)]
    pipeline = create(
        connection,
        settings,
        tasks=[SQL_STEP, *chain],
        target_table="analytics.films",
        key_columns=["id"],
        batch_size=7,
    )
    executed = succeed(connection, settings, pipeline)
    assert (executed.counts.read, executed.batches) == (60, 9)
    row = connection.execute(
        "SELECT count(*) AS n, min(extra) AS low, max(extra) AS high FROM analytics.films"
    ).fetchone()
    assert row == {"n": 60, "low": 9, "high": 9}
    assert reconcile.compare(pipeline.definition, settings).equal


@pytest.mark.parametrize(
    ("chain", "lane"),
    [([], "copy"), (["add_rows"], "rows"), (["add_frame"], "frames"), (["add_frame", "add_rows"], "rows")],
)
def test_the_run_records_its_lane(connection: Connection, settings: Settings, chain: list[str], lane: str) -> None:
    steps = [step(20 + number, body) for number, body in enumerate(chain)]
    pipeline = create(
        connection, settings, tasks=[SQL_STEP, *steps], target_table="analytics.films", key_columns=["id"]
    )
    succeed(connection, settings, pipeline)
    assert history.list_runs(connection, pipeline.id, limit=1)[0].lane == lane


def test_an_incremental_run_without_rows_accepts_columns_that_the_transform_drops(
    connection: Connection, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_key(rows: Sequence[Row]) -> Sequence[Row]:
        return [{"id": row["id"], "rating": row["rating"]} for row in rows]

    monkeypatch.setitem(vars(registry.transforms)["_tasks"], "only_key", Task("only_key", Kind.ROW, only_key, None))
    pipeline = create(
        connection,
        settings,
        source_query="SELECT id, rating, modified FROM ugc.ratings",
        python_task="only_key",
        target_table="analytics.scores",
        key_columns=["id"],
        mode="incremental",
        incremental_key="modified",
        incremental_id_key="id",
    )
    assert succeed(connection, settings, pipeline).counts.read == 900
    assert succeed(connection, settings, pipeline).counts.read == 0


def test_a_row_that_a_transform_fails_on_is_named_by_its_key_and_nothing_is_written(
    connection: Connection, settings: Settings
) -> None:
    connection.execute("CREATE TABLE ugc.titles AS SELECT n AS id, 'S3CR3T' AS title FROM generate_series(1, 20) AS n")
    pipeline = create(
        connection,
        settings,
        source_query="SELECT id, title FROM ugc.titles",
        python_task="break_at_five",
        target_table="analytics.titles",
        key_columns=["id"],
    )
    executed = run(connection, settings, pipeline)
    assert executed.error is not None
    assert executed.error.code == "TRANSFORM_ERROR"
    place = r"tests/integration/test_transforms\.py:\d+"
    sentence = rf"transform 'break_at_five' raised ZeroDivisionError in {place} at key 5 of a batch of 20 row\(s\)"
    assert re.match(sentence, str(executed.error))
    assert "S3CR3T" not in str(executed.error)
    assert connection.execute("SELECT to_regclass('analytics.titles') AS t").fetchone() == {"t": None}


# -- readers -----------------------------------------------------------------------------------------------------------


def reading(connection: Connection, settings: Settings, **fields: Any) -> Any:
    return create(
        connection, settings, type="PYTHON", target_table="analytics.numbers", key_columns=["n"], batch_size=3, **fields
    )


def numbers_in_mart(connection: Connection) -> list[int]:
    return [row["n"] for row in connection.execute("SELECT n FROM analytics.numbers ORDER BY n")]


def test_a_reader_fills_a_mart(connection: Connection, settings: Settings) -> None:
    pipeline = reading(connection, settings, python_task="all_numbers")
    executed = succeed(connection, settings, pipeline)
    assert (executed.counts.read, executed.batches) == (7, 3)
    rows = connection.execute("SELECT * FROM analytics.numbers WHERE n IN (1, 2) ORDER BY n").fetchall()
    assert rows == [{"n": 1, "word": None, "half": 0.1}, {"n": 2, "word": "\t\\N\n", "half": 0.1}]
    assert reconcile.compare(pipeline.definition, settings).equal
    assert succeed(connection, settings, pipeline).counts.written == 0


def test_a_reader_continues_after_its_cursor(
    connection: Connection, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Cursor | None] = []

    def watched(after: Cursor | None, options: Adding) -> Iterator[Row]:
        asked.append(after)
        return numbers(after, options)

    task = Task("watched", Kind.READER, watched, Adding, COLUMNS)
    monkeypatch.setitem(vars(registry.readers)["_tasks"], "watched", task)
    cursor = {"mode": "incremental", "incremental_key": "n", "incremental_id_key": "n"}
    pipeline = reading(connection, settings, tasks=[step(1, "watched", amount=4)], **cursor)
    assert succeed(connection, settings, pipeline).counts.read == 4
    monkeypatch.setitem(
        vars(registry.readers)["_tasks"], "watched", Task("watched", Kind.READER, longer(watched), Adding, COLUMNS)
    )
    assert succeed(connection, settings, pipeline).counts.read == 2
    assert asked == [None, ("4", "4")]
    assert numbers_in_mart(connection) == [1, 2, 3, 4, 5, 6]


def longer(function: Callable[[Cursor | None, Adding], Iterator[Row]]) -> Callable[..., Any]:
    def called(after: Cursor | None, options: Adding) -> Iterator[Row]:
        return function(after, Adding(amount=options.amount + 2))

    return called


def test_a_reader_that_ignores_its_cursor_repeats_nothing(connection: Connection, settings: Settings) -> None:
    cursor = {"mode": "incremental", "incremental_key": "n", "incremental_id_key": "n"}
    pipeline = reading(connection, settings, python_task="all_numbers", **cursor)
    assert succeed(connection, settings, pipeline).counts.read == 7
    assert succeed(connection, settings, pipeline).counts.read == 0
    assert numbers_in_mart(connection) == [1, 2, 3, 4, 5, 6, 7]


def test_a_paused_full_load_of_a_reader_continues_where_it_stopped(connection: Connection, settings: Settings) -> None:
    pipeline = reading(connection, settings, tasks=[step(1, "numbers", amount=9)])

    def pause(counts: Any, expected: Any) -> None:
        if counts.read == 3:
            pipelines.request_pause(connection, pipeline.id)  # noticed with the next batch

    first = succeed(connection, settings, pipeline, watch=pause)
    assert first.outcome is Outcome.PAUSED
    second = succeed(connection, settings, pipeline, resume=True)
    assert (first.counts.read + second.counts.read, second.outcome) == (9, Outcome.FINISHED)
    assert numbers_in_mart(connection) == list(range(1, 10))


def test_transforms_follow_a_reader(connection: Connection, settings: Settings) -> None:
    steps = [step(1, "numbers", amount=4), step(2, "add_rows"), step(3, "add_frame", amount=2)]
    pipeline = reading(connection, settings, tasks=steps)
    succeed(connection, settings, pipeline)
    rows = connection.execute("SELECT n, half, extra FROM analytics.numbers ORDER BY n LIMIT 1").fetchall()
    assert rows == [{"n": 1, "half": 0.5, "extra": 2}]
    assert reconcile.compare(pipeline.definition, settings).equal


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("backwards", r"reader 'backwards' does not yield its rows in the order of n, see key 1"),
        ("raising", r"reader 'raising' raised ValueError in tests/integration/test_transforms\.py:\d+ after key 1"),
    ],
)
def test_a_broken_reader_is_reported(connection: Connection, settings: Settings, name: str, sentence: str) -> None:
    executed = run(connection, settings, reading(connection, settings, python_task=name))
    assert executed.error is not None
    assert executed.error.code == "READER_ERROR"
    assert re.fullmatch(sentence, str(executed.error))
