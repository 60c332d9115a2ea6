"""Rows that do not fit are reported by key and column, or quarantined; targets whose columns change."""

from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest

from tests.helpers.running import create, differences, run, succeed
from vitrine.core.rows import Row
from vitrine.definition import registry
from vitrine.definition.pipeline import Pipeline
from vitrine.definition.registry import Kind, Task
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import checkpoint, pipelines, state

QUERY = "SELECT id, amount, note, modified FROM ugc.payments"
TARGET = "analytics.payments"


@pytest.fixture(autouse=True)
def payments(connection: Connection) -> None:
    """A thousand payments, one of them far too large for the mart."""
    connection.execute(
        "CREATE TABLE ugc.payments (id integer PRIMARY KEY, amount numeric, note text, modified timestamptz)"
    )
    connection.execute(
        "INSERT INTO ugc.payments SELECT n, n, 'note ' || n, '2024-01-01'::timestamptz + n * interval '1 s'"
        " FROM generate_series(1, 1000) n"
    )
    connection.execute("UPDATE ugc.payments SET amount = 1e30, note = 'S3CR3T' WHERE id = 500")
    connection.execute(
        "CREATE TABLE analytics.payments (id integer PRIMARY KEY, amount numeric(10,2), note text,"
        " modified timestamptz)"
    )


def create_payments(
    connection: Connection, settings: Settings, mode: str, fields: dict[str, Any] | None = None, **options: Any
) -> Pipeline:
    cursor = {"incremental_key": "modified", "incremental_id_key": "id"} if mode == "incremental" else {}
    defaults: dict[str, Any] = {
        "source_query": QUERY,
        "target_table": TARGET,
        "mode": mode,
        "key_columns": ["id"],
        "batch_size": 300,
        "options": options,
    }
    return create(connection, settings, **defaults | cursor | (fields or {}))


both_modes = pytest.mark.parametrize("mode", ["full", "incremental"])


@pytest.mark.promise("E1")
@both_modes
def test_a_row_that_does_not_fit_fails_the_run_by_key_and_column(
    connection: Connection, settings: Settings, mode: str
) -> None:
    pipeline = create_payments(connection, settings, mode)
    failed = run(connection, settings, pipeline).error
    assert failed is not None
    assert failed.code == "DATA_ERROR"
    assert "row 500 " in str(failed)
    assert "'amount'" in str(failed)
    assert "22003" in str(failed)
    assert "S3CR3T" not in str(failed)
    row = connection.execute("SELECT count(*) AS n FROM analytics.payments WHERE id > 300").fetchone()
    assert row == {"n": 0}


@pytest.mark.promise("E1")
@both_modes
def test_a_row_that_does_not_fit_is_quarantined_and_all_others_are_written(
    connection: Connection, settings: Settings, mode: str
) -> None:
    pipeline = create_payments(connection, settings, mode, on_reject="quarantine")
    executed = succeed(connection, settings, pipeline)
    assert (executed.counts.read, executed.counts.written, executed.counts.rejected) == (1000, 999, 1)
    (reject,) = checkpoint.list_open(connection, pipeline.id)
    assert (reject["key"], reject["column_name"], reject["code"]) == ("500", "amount", "22003")
    assert reject["row"]["note"] == "S3CR3T"
    wanted = "SELECT id, amount::numeric(10,2), note, modified FROM ugc.payments WHERE id <> 500"
    assert differences(connection, wanted, TARGET, "id") == []
    assert connection.execute("SELECT rows_rejected FROM etl.etl_runs").fetchall() == [{"rows_rejected": 1}]


def lengthen_row(rows: Sequence[Row]) -> Sequence[Row]:
    return [row | {"note": row["note"] * (10 if row["id"] == 500 else 1)} for row in rows]


def lengthen_frame(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(
        pl.when(pl.col("id") == 500).then(pl.lit("S3CR3T S3CR3T")).otherwise(pl.col("note")).alias("note")
    )


@pytest.mark.promise("E1")
@both_modes
@pytest.mark.parametrize(("kind", "function"), [(Kind.ROW, lengthen_row), (Kind.FRAME, lengthen_frame)])
def test_a_row_that_a_transform_made_too_long_is_quarantined_too(
    connection: Connection, settings: Settings, mode: str, kind: Kind, function: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(registry.transforms)["_tasks"], "lengthen", Task("lengthen", kind, function, None))
    # the query limits the length too: a table with the columns of the query refuses this text as well
    connection.execute("ALTER TABLE analytics.payments DROP amount, ALTER note TYPE varchar(10)")
    pipeline = create_payments(
        connection,
        settings,
        mode,
        on_reject="quarantine",
        fields={
            "source_query": "SELECT id, note::varchar(10) AS note, modified FROM ugc.payments",
            "python_task": "lengthen",
        },
    )
    executed = succeed(connection, settings, pipeline)
    assert (executed.counts.read, executed.counts.written, executed.counts.rejected) == (1000, 999, 1)
    (reject,) = checkpoint.list_open(connection, pipeline.id)
    assert (reject["key"], reject["column_name"], reject["code"]) == ("500", "note", "22001")
    wanted = "SELECT id, note::varchar(10) AS note, modified FROM ugc.payments WHERE id <> 500"
    assert differences(connection, wanted, TARGET, "id") == []


@both_modes
def test_a_reject_is_closed_when_its_row_is_written(connection: Connection, settings: Settings, mode: str) -> None:
    pipeline = create_payments(connection, settings, mode, on_reject="quarantine")
    succeed(connection, settings, pipeline)
    connection.execute("UPDATE ugc.payments SET amount = 7, modified = now() WHERE id = 500")
    succeed(connection, settings, pipeline)
    assert checkpoint.list_open(connection, pipeline.id) == []
    assert connection.execute("SELECT count(*) AS n FROM etl.etl_rejects WHERE closed_at IS NOT NULL").fetchone() == {
        "n": 1
    }


def test_a_row_rejected_again_stays_one_open_reject(connection: Connection, settings: Settings) -> None:
    pipeline = create_payments(connection, settings, "full", on_reject="quarantine")
    succeed(connection, settings, pipeline)
    succeed(connection, settings, pipeline)
    assert len(checkpoint.list_open(connection, pipeline.id)) == 1


@pytest.mark.promise("E2")
@both_modes
def test_too_many_rejects_fail_the_run_and_its_batch(connection: Connection, settings: Settings, mode: str) -> None:
    connection.execute("UPDATE ugc.payments SET amount = 1e30 WHERE id BETWEEN 500 AND 505")
    pipeline = create_payments(connection, settings, mode, on_reject="quarantine", max_rejects=5)
    failed = run(connection, settings, pipeline).error
    assert failed is not None
    assert failed.code == "TOO_MANY_REJECTS"
    assert connection.execute("SELECT count(*) AS n FROM etl.etl_rejects").fetchone() == {"n": 0}


@pytest.mark.promise("E7")
@both_modes
@pytest.mark.parametrize(
    "rule",
    [
        "ALTER TABLE analytics.payments ALTER note SET NOT NULL",
        "ALTER TABLE analytics.payments ADD CHECK (note IS NOT NULL)",
        "CREATE TABLE analytics.notes AS SELECT DISTINCT note FROM ugc.payments WHERE note IS NOT NULL;"
        " ALTER TABLE analytics.notes ADD PRIMARY KEY (note); UPDATE ugc.payments SET note = 'none' WHERE note IS NULL;"
        " ALTER TABLE analytics.payments ADD FOREIGN KEY (note) REFERENCES analytics.notes",
    ],
    ids=["not null", "check", "foreign key"],
)
def test_a_row_that_violates_a_constraint_of_the_target_is_quarantined(
    connection: Connection, settings: Settings, mode: str, rule: Any
) -> None:
    connection.execute("UPDATE ugc.payments SET amount = 1, note = NULL WHERE id IN (500, 501)")
    connection.execute(rule)
    pipeline = create_payments(connection, settings, mode, on_reject="quarantine")
    executed = succeed(connection, settings, pipeline)
    assert (executed.counts.written, executed.counts.rejected) == (998, 2)
    assert {reject["key"] for reject in checkpoint.list_open(connection, pipeline.id)} == {"500", "501"}


@pytest.mark.promise("E3")
def test_a_missing_target_column_fails_at_once_and_the_next_run_continues_when_it_is_restored(
    connection: Connection, settings: Settings
) -> None:
    connection.execute("UPDATE ugc.payments SET amount = 1")
    pipeline = create_payments(connection, settings, "incremental")
    succeed(connection, settings, pipeline)
    before = state.load_state(connection, pipeline.id).position
    connection.execute("ALTER TABLE analytics.payments DROP COLUMN note")
    connection.execute("UPDATE ugc.payments SET note = 'new', modified = now() WHERE id = 1")
    failed = run(connection, settings, pipeline).error
    assert failed is not None
    assert failed.code == "TARGET_SCHEMA"
    assert state.load_state(connection, pipeline.id).position == before
    assert pipelines.get(connection, pipeline.id).status == "FAILED"
    connection.execute("ALTER TABLE analytics.payments ADD COLUMN note text")
    succeed(connection, settings, pipeline)
    assert connection.execute("SELECT note FROM analytics.payments WHERE id = 1").fetchone() == {"note": "new"}


@both_modes
def test_a_new_column_of_the_query_is_added_if_the_option_says_so(
    connection: Connection, settings: Settings, mode: str
) -> None:
    connection.execute("UPDATE ugc.payments SET amount = 1")
    connection.execute("ALTER TABLE analytics.payments DROP COLUMN note")
    pipeline = create_payments(connection, settings, mode, on_schema_change="add_columns")
    succeed(connection, settings, pipeline)
    row = connection.execute("SELECT count(*) AS n FROM analytics.payments WHERE note IS NOT NULL").fetchone()
    assert row == {"n": 1000}


@pytest.mark.promise("E13")
@both_modes
def test_a_source_column_with_another_type_is_a_change_of_schema(
    connection: Connection, settings: Settings, mode: str
) -> None:
    connection.execute("UPDATE ugc.payments SET amount = 1")
    pipeline = create_payments(connection, settings, mode)
    succeed(connection, settings, pipeline)
    connection.execute("ALTER TABLE ugc.payments ALTER amount TYPE text")
    connection.execute("UPDATE ugc.payments SET modified = now() WHERE id = 1")
    failed = run(connection, settings, pipeline).error
    assert failed is not None
    assert failed.code == "SCHEMA_CHANGED"


def test_rows_that_swap_a_unique_value_are_both_written(connection: Connection, settings: Settings) -> None:
    connection.execute("UPDATE ugc.payments SET amount = 1")
    connection.execute("ALTER TABLE analytics.payments ADD UNIQUE (note), ADD COLUMN mine text DEFAULT 'mine'")
    pipeline = create_payments(connection, settings, "full")
    succeed(connection, settings, pipeline)
    connection.execute("UPDATE analytics.payments SET mine = 'kept' WHERE id = 1")
    connection.execute(
        "UPDATE ugc.payments SET note = CASE id WHEN 1 THEN 'note 2' ELSE 'note 1' END WHERE id IN (1, 2)"
    )
    executed = succeed(connection, settings, pipeline)
    assert executed.counts.written == 2
    rows = connection.execute("SELECT note, mine FROM analytics.payments WHERE id IN (1, 2) ORDER BY id").fetchall()
    assert rows == [{"note": "note 2", "mine": "kept"}, {"note": "note 1", "mine": "mine"}]


@pytest.mark.promise("E7")
@both_modes
def test_a_row_that_violates_another_unique_constraint_is_never_lost_silently(
    connection: Connection, settings: Settings, mode: str
) -> None:
    connection.execute("UPDATE ugc.payments SET amount = 1, note = 'same' WHERE id IN (10, 11)")
    connection.execute("UPDATE ugc.payments SET amount = 1")
    connection.execute("ALTER TABLE analytics.payments ADD UNIQUE (note)")
    pipeline = create_payments(connection, settings, mode)
    failed = run(connection, settings, pipeline).error
    assert failed is not None
    assert failed.code == "DATA_ERROR"
    assert "23505" in str(failed)
