"""Monitoring: freshness, the horizon, the queue and rows from the future."""

import logging
import threading
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry, generate_latest

from tests.helpers.ratings import create_ratings, is_right, rate
from tests.helpers.running import create, run, succeed
from tests.helpers.scraping import Scraped, parse
from tests.helpers.waiting import wait_until
from vitrine import metrics
from vitrine.api.app import create_app
from vitrine.core.protocols import Outcome
from vitrine.core.rows import Counts, Row
from vitrine.definition import registry
from vitrine.definition.pipeline import Pipeline
from vitrine.postgres import Connection, connect
from vitrine.settings import Settings
from vitrine.store import history, pipelines, queue, state


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> CollectorRegistry:
    """Metrics of this test only."""
    monkeypatch.setattr(metrics, "_meters", None)
    return metrics.switch_on()


def scraped(source: TestClient | CollectorRegistry) -> Scraped:
    if isinstance(source, CollectorRegistry):
        return parse(generate_latest(source).decode())
    answer = source.get("/metrics")
    assert answer.status_code == 200
    return parse(answer.text)


def genres(connection: Connection, settings: Settings, **fields: Any) -> Pipeline:
    defaults = {"source_query": "SELECT id, name FROM content.genre", "target_table": "analytics.genres"}
    return create(connection, settings, **{**defaults, "key_columns": ["id"], "name": "genres", **fields})


def fresh_as_of(connection: Connection, pipeline: Pipeline) -> datetime | None:
    return pipelines.get(connection, pipeline.id).fresh_as_of


def now(connection: Connection) -> datetime:
    row = connection.execute("SELECT clock_timestamp() AS now").fetchone()
    assert row is not None
    return row["now"]


# -- the horizon ------------------------------------------------------------------------------------------------------


@pytest.mark.promise("C3")
def test_a_transaction_that_stays_open_is_reported_with_its_age_pid_and_role(
    connection: Connection,
    database_url: str,
    settings: Settings,
    client: TestClient,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def lag() -> float:
        exposed = scraped(client).value("vitrine_horizon_lag_seconds", pipeline="under_test")
        assert exposed is not None
        return exposed

    ratings = create_ratings(connection, settings, options={"horizon_margin": "0s"})
    succeed(connection, settings, ratings)
    assert lag() == 0
    with connect(database_url, name="cinema") as writer, writer.transaction():
        writer.execute("SELECT now()")
        rate(connection, "clock_timestamp()", count=5)
        assert succeed(connection, settings, ratings).counts.written == 5
        first = lag()
        older = "SELECT FROM pg_stat_activity WHERE pid = %s AND clock_timestamp() - xact_start > interval '1.1 s'"
        pid = writer.info.backend_pid
        wait_until(lambda: connection.execute(older, [pid]).fetchall(), what="a transaction of more than a second")
        caplog.clear()
        again = succeed(connection, settings, ratings)
        assert (again.counts.read > 0, again.counts.written) == (True, 0)
        assert is_right(connection)
        assert 0 < first < 1.1 < lag()
        (line,) = [record for record in caplog.records if vars(record).get("action") == "horizon_stalled"]
        assert line.levelno == logging.WARNING
        assert f"pid {pid}, role {writer.info.user}" in line.getMessage()
        assert vars(line)["pipeline"] == "under_test"
        body = client.get("/api/v1/pipelines/under_test/state").json()
        assert body["horizon_blocker"] == f"pid {pid}, role {writer.info.user}"
        assert body["horizon_lag_seconds"] > 1.1
    succeed(connection, settings, ratings)
    assert lag() == 0
    assert state.load_state(connection, ratings.id).horizon_blocker is None


def test_a_transaction_that_the_margin_covers_is_not_reported_as_a_blocker(
    connection: Connection, database_url: str, settings: Settings, client: TestClient
) -> None:
    ratings = create_ratings(connection, settings, options={"horizon_margin": "1h"})
    with connect(database_url, name="cinema") as writer, writer.transaction():
        writer.execute("SELECT now()")
        succeed(connection, settings, ratings)
        body = client.get("/api/v1/pipelines/under_test/state").json()
        assert (body["horizon_lag_seconds"] > 0, body["horizon_blocker"]) == (True, None)
        findings = client.get("/api/v1/pipelines/under_test/validate").json()["findings"]
        assert "HORIZON_STALLED" not in [one["code"] for one in findings]


def test_a_prepared_transaction_is_reported_with_its_age_too(
    connection: Connection, database_url: str, settings: Settings, client: TestClient
) -> None:
    ratings = create_ratings(connection, settings)
    with connect(database_url, name="cinema") as writer:
        writer.execute("BEGIN")
        rate(writer)
        writer.execute("PREPARE TRANSACTION 'watched'")
    succeed(connection, settings, ratings)
    exposed = scraped(client).value("vitrine_horizon_lag_seconds", pipeline="under_test")
    connection.execute("ROLLBACK PREPARED 'watched'")
    assert exposed is not None
    assert exposed > 0


# -- rows from the future ---------------------------------------------------------------------------------------------


@registry.transforms.register("watched_as_it_is")
def watched_as_it_is(rows: Sequence[Row]) -> Sequence[Row]:
    return rows


@pytest.mark.promise("C11")
@pytest.mark.parametrize("task", [None, "watched_as_it_is"])
@pytest.mark.parametrize("kind", ["timestamptz", "timestamp", "date"])
@pytest.mark.parametrize("lookback", [None, "1h"])
def test_rows_from_the_future_are_counted_and_no_others(
    connection: Connection,
    settings: Settings,
    counted: CollectorRegistry,
    kind: str,
    task: str | None,
    lookback: str | None,
) -> None:
    connection.execute("CREATE TABLE ugc.events (id integer PRIMARY KEY, modified timestamptz NOT NULL)")
    connection.execute(
        "INSERT INTO ugc.events SELECT n, now() - n * interval '1 s' FROM generate_series(1, 50) n"
        " UNION ALL SELECT 60, now() + interval '5 s'"  # within the margin
        " UNION ALL SELECT 70 + n, '2099-01-01'::timestamptz + n * interval '1 d' FROM generate_series(1, 7) n"
        " UNION ALL SELECT 80, 'infinity'"
    )
    pipeline = create(
        connection,
        settings,
        source_query=f"SELECT id, modified::{kind} AS modified FROM ugc.events",
        target_table="analytics.events",
        mode="incremental",
        incremental_key="modified",
        incremental_id_key="id",
        key_columns=["id"],
        batch_size=10,
        python_task=task,
        options={"lookback": lookback} if lookback else {},
    )
    assert succeed(connection, settings, pipeline).counts.written == 59
    assert scraped(counted).value("vitrine_future_rows_total", pipeline="under_test") == 8
    succeed(connection, settings, pipeline)  # read again, and counted again
    assert scraped(counted).value("vitrine_future_rows_total", pipeline="under_test") == 16


# -- freshness --------------------------------------------------------------------------------------------------------


def test_an_incremental_mart_is_as_fresh_as_the_start_of_its_last_successful_run(
    connection: Connection, settings: Settings, client: TestClient
) -> None:
    ratings = create_ratings(connection, settings)
    assert fresh_as_of(connection, ratings) is None
    assert scraped(client).value("vitrine_mart_age_seconds", pipeline="under_test") is None
    succeed(connection, settings, ratings)
    before = now(connection)
    succeed(connection, settings, ratings)
    last = history.list_runs(connection, ratings.id)[0]
    fresh = fresh_as_of(connection, ratings)
    assert fresh is not None
    assert fresh == last.started_at > before
    shown = [client.get(f"/api/v1/pipelines/under_test{path}").json()["fresh_as_of"] for path in ("", "/status")]
    assert [datetime.fromisoformat(text) for text in shown] == [fresh, fresh]
    age = scraped(client).value("vitrine_mart_age_seconds", pipeline="under_test")
    assert age is not None
    assert 0 < age <= (now(connection) - fresh).total_seconds()
    connection.execute("ALTER TABLE analytics.ratings DROP COLUMN rating")
    assert run(connection, settings, ratings).error is not None
    assert fresh_as_of(connection, ratings) == fresh  # a failed run does not change the freshness


@pytest.mark.promise("I7")
@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_a_full_load_is_as_fresh_as_its_first_snapshot_however_often_it_was_stopped(
    connection: Connection, settings: Settings, mode: str
) -> None:  # the first load of an incremental mart is a load, too
    ratings = create_ratings(connection, settings, mode=mode)
    stop = threading.Event()

    def watch(counts: Counts, expected: int | None) -> None:
        if counts.read >= 300:
            stop.set()

    before = now(connection)
    assert run(connection, settings, ratings, watch=watch, stop=stop).outcome is Outcome.RELEASED
    between = now(connection)
    assert fresh_as_of(connection, ratings) is None
    rate(connection)  # may be read by the second part or not: a full load is as fresh as its oldest part
    assert succeed(connection, settings, ratings, resume=True).counts.read < 900
    fresh = fresh_as_of(connection, ratings)
    assert fresh is not None
    # a pass over the changes follows the resumed first load of an incremental mart
    assert before < fresh < between if mode == "full" else fresh > between
    succeed(connection, settings, ratings)
    again = fresh_as_of(connection, ratings)
    assert again is not None
    assert again > between


def test_a_new_target_is_not_fresh_before_it_is_built(
    connection: Connection, settings: Settings, client: TestClient
) -> None:
    succeed(connection, settings, genres(connection, settings))
    change = {"target_table": "analytics.other", "state": "reset"}
    changed = client.patch("/api/v1/pipelines/genres", json=change)
    assert (changed.status_code, changed.json()["fresh_as_of"]) == (200, None)


# -- the store as a whole ---------------------------------------------------------------------------------------------


def test_queue_statuses_and_heartbeats_are_metrics_from_the_store(
    connection: Connection, settings: Settings, client: TestClient
) -> None:
    for name in ("held", "waiting", "later", "broken", "off"):
        genres(connection, settings, name=name, target_table=f"analytics.{name}", enabled=name != "off")
    pipelines.request_run(connection, "held", trigger="api")
    assert queue.claim_next(connection, runner="tests", ttl=timedelta(hours=1)) is not None
    for name in ("waiting", "later"):
        pipelines.request_run(connection, name, trigger="api")
    connection.execute("UPDATE etl.etl_pipelines SET next_attempt_at = now() + interval '1 h' WHERE name = 'later'")
    connection.execute("UPDATE etl.etl_pipelines SET status = 'FAILED' WHERE name = 'broken'")
    found = scraped(client)
    assert found.value("vitrine_store_up") == 1
    assert found.value("vitrine_queue_length") == 1
    by_status = {status: found.value("vitrine_pipelines", status=status) for status in ("IDLE", "FAILED", "PAUSED")}
    assert by_status == {"IDLE": 1, "FAILED": 1, "PAUSED": 0}
    assert found.value("vitrine_pipelines", status="RUN_REQUESTED") == 2
    assert found.value("vitrine_pipeline_failed", pipeline="broken") == 1
    assert found.value("vitrine_pipeline_failed", pipeline="held") == 0
    assert list(found.samples["vitrine_heartbeat_age_seconds"]) == [(("pipeline", "held"),)]
    assert found.value("vitrine_runners") == 0


def test_a_deleted_or_disabled_pipeline_has_no_freshness_metrics(
    connection: Connection, settings: Settings, client: TestClient
) -> None:
    pipeline = genres(connection, settings, schedule_interval="5m")
    succeed(connection, settings, pipeline)
    assert scraped(client).value("vitrine_schedule_interval_seconds", pipeline="genres") == 300
    assert client.patch("/api/v1/pipelines/genres", json={"enabled": False}).status_code == 200
    assert scraped(client).value("vitrine_mart_age_seconds", pipeline="genres") is None
    assert scraped(client).value("vitrine_pipeline_failed", pipeline="genres") == 0
    assert client.delete("/api/v1/pipelines/genres").status_code == 204
    assert "pipeline" not in scraped(client).labels("vitrine_pipeline_failed")


def test_metrics_report_only_that_the_database_is_unavailable_while_it_is(settings: Settings) -> None:
    unavailable = settings.model_copy(update={"database_url": "postgresql://127.0.0.1:1/nothing"})
    with TestClient(create_app(Settings.model_validate(unavailable.model_dump()))) as client:
        found = scraped(client)
    assert {name for name in found.names if name.startswith("vitrine_")} == {"vitrine_store_up"}
    assert found.value("vitrine_store_up") == 0
