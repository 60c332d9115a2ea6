"""Columns of the source that vanish, appear or change their type between two runs."""

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from tests.helpers.events import both_modes
from tests.helpers.running import create, differences, run, succeed
from tests.helpers.tasks import register
from vitrine.core.rows import Row
from vitrine.definition.pipeline import Pipeline
from vitrine.definition.registry import Kind, Task
from vitrine.operations import changes
from vitrine.plan import validation
from vitrine.postgres import Connection, raw
from vitrine.settings import Settings
from vitrine.store import pipelines, state

QUERY = "SELECT * FROM ugc.stock"
TARGET = "analytics.stock"


def create_stock(connection: Connection, settings: Settings, mode: str, **fields: Any) -> Pipeline:
    """A source of three rows, and its mart after the first run."""
    connection.execute(
        "CREATE TABLE ugc.stock (id integer PRIMARY KEY, amount integer, note text, at timestamptz,"
        " modified timestamptz NOT NULL DEFAULT now())"
    )
    connection.execute("INSERT INTO ugc.stock SELECT n, n, 'note', '2024-01-01' FROM generate_series(1, 3) n")
    cursor = {"incremental_key": "modified"} if mode == "incremental" else {}
    defaults = {"source_query": QUERY, "target_table": TARGET, "key_columns": ["id"], "mode": mode}
    pipeline = create(connection, settings, **defaults | cursor | fields)
    succeed(connection, settings, pipeline)
    return pipeline


def stored(connection: Connection) -> list[dict[str, Any]]:
    return connection.execute("SELECT *, xmin::text FROM analytics.stock ORDER BY id").fetchall()


def change(connection: Connection, statement: str) -> None:
    connection.execute(raw(statement))
    connection.execute("UPDATE ugc.stock SET modified = now(), amount = amount WHERE id = 2")


def fails(connection: Connection, settings: Settings, pipeline: Pipeline, *parts: str) -> None:
    """The run is refused, twice, and changes nothing."""
    before = stored(connection)
    for _ in range(2):
        failed = run(connection, settings, pipeline).error
        assert failed is not None
        assert failed.code == "SCHEMA_CHANGED"
        assert [part for part in parts if part not in str(failed)] == []
        assert stored(connection) == before


@pytest.mark.promise("J13")
@both_modes
def test_a_column_that_vanishes_from_the_source_fails_the_run(
    connection: Connection, settings: Settings, mode: str
) -> None:
    stock = create_stock(connection, settings, mode)
    change(connection, "ALTER TABLE ugc.stock DROP note")
    fails(connection, settings, stock, "'note'", "ignore_removed")
    change(connection, "ALTER TABLE ugc.stock ADD note text")
    succeed(connection, settings, stock)


@pytest.mark.promise("J13")
@both_modes
def test_a_renamed_column_fails_the_run_where_columns_are_added(
    connection: Connection, settings: Settings, mode: str
) -> None:
    stock = create_stock(connection, settings, mode, options={"on_schema_change": "add_columns"})
    change(connection, "ALTER TABLE ugc.stock RENAME note TO remark")
    fails(connection, settings, stock, "'note'")


@pytest.mark.promise("J13")
@both_modes
def test_a_column_that_vanishes_may_be_ignored_or_dropped_from_the_target(
    connection: Connection, settings: Settings, mode: str
) -> None:
    stock = create_stock(connection, settings, mode, options={"ignore_removed": True})
    change(connection, "ALTER TABLE ugc.stock DROP note")
    succeed(connection, settings, stock)
    assert [row["note"] for row in stored(connection)] == ["note"] * 3
    connection.execute("ALTER TABLE analytics.stock DROP amount; ALTER TABLE ugc.stock DROP amount")
    connection.execute("UPDATE etl.etl_pipelines SET options = '{}'")
    succeed(connection, settings, pipelines.get(connection, stock.id))


@pytest.mark.promise("J13")
@both_modes
def test_a_column_that_the_user_removes_from_the_query_keeps_its_values(
    connection: Connection, settings: Settings, mode: str
) -> None:
    stock = create_stock(connection, settings, mode)
    pipelines.request_pause(connection, stock.id)
    query = "SELECT id, amount, modified FROM ugc.stock"
    state: dict[str, Any] = {"state": "keep"} if mode == "incremental" else {}
    stock = changes.change(connection, settings, stock.id, {"source_query": query}, **state)
    connection.execute("UPDATE ugc.stock SET amount = 9, modified = now()")
    succeed(connection, settings, stock)
    assert differences(connection, query, TARGET, "id") == []
    assert [row["note"] for row in stored(connection)] == ["note"] * 3


@pytest.mark.promise("J13")
@both_modes
def test_columns_of_the_target_itself_never_count_as_removed(
    connection: Connection, settings: Settings, mode: str
) -> None:
    stock = create_stock(connection, settings, mode, options={"touch_column": "written"})
    connection.execute("ALTER TABLE analytics.stock ADD mine text DEFAULT 'mine'")
    change(connection, "SELECT 1")
    succeed(connection, settings, stock)
    connection.execute("ALTER TABLE analytics.stock DROP mine")
    succeed(connection, settings, stock)


@pytest.mark.promise("J13")
@both_modes
@pytest.mark.parametrize(
    ("column", "kind", "using"),
    [
        ("amount", "text", "amount::text"),
        ("at", "timestamp", "at::timestamp"),
        ("at", "date", "at::date"),
        ("amount", "double precision", "amount"),
    ],
)
def test_a_column_of_another_type_fails_the_run(
    connection: Connection, settings: Settings, mode: str, column: str, kind: str, using: str
) -> None:
    stock = create_stock(connection, settings, mode)
    change(connection, f"ALTER TABLE ugc.stock ALTER {column} TYPE {kind} USING {using}")
    fails(connection, settings, stock, f"'{column}'", "ALTER TABLE analytics.stock")
    connection.execute(raw(f"ALTER TABLE analytics.stock ALTER {column} TYPE {kind} USING {using}"))
    succeed(connection, settings, stock)
    assert differences(connection, QUERY, TARGET, "id") == []


@pytest.mark.promise("J13")
@both_modes
def test_a_wider_number_that_fits_the_target_is_written(connection: Connection, settings: Settings, mode: str) -> None:
    stock = create_stock(connection, settings, mode)
    change(connection, "ALTER TABLE ugc.stock ALTER amount TYPE bigint")
    succeed(connection, settings, stock)
    connection.execute("UPDATE ugc.stock SET amount = 3000000000, modified = now() WHERE id = 1")
    failed = run(connection, settings, stock).error
    assert failed is not None
    assert "'amount'" in str(failed)


@pytest.mark.promise("J13")
def test_a_column_that_is_added_is_reported_with_what_old_rows_hold(
    connection: Connection, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    stock = create_stock(connection, settings, "incremental", options={"on_schema_change": "add_columns"})
    change(connection, "ALTER TABLE ugc.stock ADD colour text DEFAULT 'red'")
    (warning,) = validation.validate(stock.definition, settings).warnings
    assert "'colour'" in warning
    assert "hold NULL in it until a full run" in warning
    with caplog.at_level(logging.WARNING):
        succeed(connection, settings, stock)
    assert warning in caplog.text
    state.reset_state(connection, stock.id)
    succeed(connection, settings, stock)
    assert differences(connection, QUERY, TARGET, "id") == []


@pytest.mark.promise("J13")
@both_modes
def test_a_state_without_columns_compares_nothing(connection: Connection, settings: Settings, mode: str) -> None:
    # as after an upgrade from a release that did not store them
    stock = create_stock(connection, settings, mode)
    connection.execute("UPDATE etl.etl_state SET sink_facts = '{}'")
    change(connection, "ALTER TABLE ugc.stock DROP note")
    succeed(connection, settings, stock)


@pytest.mark.promise("J13")
@both_modes
def test_a_run_that_transforms_no_row_does_not_forget_the_columns(
    connection: Connection, settings: Settings, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def double(rows: Sequence[Row]) -> list[Row]:
        return [{**row, "twice": row["amount"] * 2} for row in rows]

    register(monkeypatch, Task("double", Kind.ROW, double, None))
    stock = create_stock(connection, settings, mode, python_task="double")
    succeed(connection, settings, stock)
    if mode == "full":
        connection.execute("DELETE FROM ugc.stock")
        succeed(connection, settings, stock, allow_shrink=True)
        assert stored(connection) == []
    connection.execute("INSERT INTO ugc.stock VALUES (4, 4, 'note', now())")
    succeed(connection, settings, stock)
    change(connection, "ALTER TABLE ugc.stock DROP note")
    connection.execute("UPDATE ugc.stock SET modified = now()")
    fails(connection, settings, stock, "'note'")


@pytest.mark.promise("J13")
@both_modes
def test_a_column_that_vanishes_from_a_very_wide_table_fails_the_run(
    connection: Connection, settings: Settings, mode: str
) -> None:
    columns = ", ".join(f"column_with_a_rather_long_name_number_{n} integer" for n in range(300))
    connection.execute(
        raw(f"CREATE TABLE ugc.stock (id integer PRIMARY KEY, modified timestamptz DEFAULT now(), {columns})")
    )
    connection.execute("INSERT INTO ugc.stock VALUES (1)")
    cursor = {"incremental_key": "modified"} if mode == "incremental" else {}
    fields = {"source_query": QUERY, "target_table": TARGET, "key_columns": ["id"], "mode": mode, **cursor}
    stock = create(connection, settings, **fields)
    succeed(connection, settings, stock)
    succeed(connection, settings, stock)
    connection.execute("ALTER TABLE ugc.stock DROP column_with_a_rather_long_name_number_7")
    fails(connection, settings, stock, "columns or types")
