"""`validate` reports how a pipeline would run, with warnings, without writing a row."""

from typing import Any

import pytest

from tests.helpers.running import succeed, sweep
from vitrine.connectors.postgres.sink import session
from vitrine.definition.model import Definition
from vitrine.errors import ConfigError
from vitrine.operations import changes
from vitrine.plan import validation
from vitrine.postgres import Connection, connect, raw
from vitrine.settings import Settings


def definition(**fields: Any) -> Definition:
    defaults: dict[str, Any] = {
        "name": "films",
        "source_query": "SELECT id, title, modified FROM content.film_work",
        "target_table": "analytics.films",
        "key_columns": ["id"],
    }
    return Definition.model_validate(defaults | fields)


INCREMENTAL = {"mode": "incremental", "incremental_key": "modified"}


def test_a_report_shows_lane_columns_key_and_rows(connection: Connection, settings: Settings) -> None:
    report = validation.validate(definition(), settings)
    assert report.lane == "copy"
    described = [(column.name, column.type) for column in report.columns]
    assert described == [("id", "uuid"), ("title", "text"), ("modified", "timestamp with time zone")]
    assert (report.key, report.target_exists, report.warnings) == (("id",), False, ())
    assert report.rows_expected is not None
    assert connection.execute("SELECT to_regclass('analytics.films') AS t").fetchone() == {"t": None}


def test_a_cascade_on_the_target_is_a_warning(connection: Connection, settings: Settings) -> None:
    films = changes.create(connection, settings, definition())
    succeed(connection, settings, films)
    connection.execute("CREATE TABLE analytics.notes (film uuid REFERENCES analytics.films ON DELETE CASCADE)")
    (warning,) = validation.validate(definition(), settings).warnings
    assert warning.startswith("analytics.notes refers to the target with ON DELETE CASCADE")


@pytest.mark.promise("C3")
def test_an_open_transaction_is_named_once_it_is_older_than_the_margin(settings: Settings, database_url: str) -> None:
    with connect(database_url, name="blocker") as blocker, blocker.transaction():
        blocker.execute("SELECT 1")
        assert validation.validate(definition(**INCREMENTAL), settings).warnings == ()
        held = definition(**INCREMENTAL, options={"horizon_margin": "0s"})
        (warning,) = validation.validate(held, settings).warnings
        row = blocker.execute("SELECT pg_backend_pid() AS pid").fetchone()
        assert row is not None
        assert f"pid {row['pid']}, role postgres" in warning


def test_a_lookback_is_reported_with_its_risk(connection: Connection, settings: Settings) -> None:
    (warning,) = validation.validate(definition(**INCREMENTAL, options={"lookback": "90m"}), settings).warnings
    assert "longer than 90m" in warning


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"source_query": "SELECT id, nothing FROM content.film_work"}, "CONFIG"),
        ({"key_columns": ["film_id"]}, "SCHEMA_CHANGED"),
        ({"key_columns": []}, "KEY_MISSING"),
        ({"source_query": "SELECT id FROM secret.films"}, "SCHEMA"),
    ],
)
def test_a_definition_that_could_not_run_is_refused(settings: Settings, fields: dict[str, Any], code: str) -> None:
    with pytest.raises(ConfigError) as refused:
        validation.validate(definition(**fields), settings)
    assert refused.value.code == code


@pytest.mark.promise("I9")
def test_leftover_staging_is_removed_and_nothing_else(connection: Connection, settings: Settings) -> None:
    films = changes.create(connection, settings, definition())
    half_built = session.staging_name(films.id, 3)
    connection.execute(raw(f"CREATE TABLE etl.{half_built} ()"))
    connection.execute(
        "INSERT INTO etl.etl_state (pipeline_id, generation, generation_open) VALUES (%s, 3, true)", [films.id]
    )
    connection.execute(raw(f"CREATE TABLE etl.{session.staging_name(films.id, 2)} ()"))
    connection.execute("CREATE TABLE etl.stage_00000000000000000000000000000000_g1 (); CREATE TABLE etl.stage_notes ()")
    removed = sweep(connection, settings)
    assert sorted(removed) == sorted([session.staging_name(films.id, 2), "stage_00000000000000000000000000000000_g1"])
    left = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'etl' AND tablename LIKE 'stage%'")
    assert sorted(row["tablename"] for row in left) == sorted([half_built, "stage_notes"])
