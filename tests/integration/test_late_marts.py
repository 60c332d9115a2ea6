"""Late marts: list, status and metrics name the cause, with a bounded number of statements."""

import json
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from psycopg import sql

from tests.helpers.events import create_filled
from tests.helpers.pipelines import create
from tests.helpers.processes import environment, vitrine
from tests.helpers.reconciling import report
from tests.helpers.recording import record_statements
from tests.helpers.running import succeed
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import database, history


@pytest.fixture(autouse=True)
def _runner(connection: Connection) -> None:
    history.register_runner(connection, "worker-1")


def age(connection: Connection, **fields: str) -> None:
    """Make every mart an hour old, and set further columns, as SQL expressions."""
    assignments = [sql.SQL("{} = {}").format(sql.Identifier(name), sql.SQL(value)) for name, value in fields.items()]  # pyright: ignore[reportArgumentType]
    connection.execute(
        sql.SQL("UPDATE etl.etl_pipelines SET {}").format(
            sql.SQL(", ").join([sql.SQL("fresh_as_of = now() - interval '1 hour'"), *assignments])
        )
    )


def shown(client: TestClient) -> dict[str, Any]:
    """The pipeline in the list and in its status, which agree."""
    (item,) = client.get("/pipelines").json()["items"]
    status = client.get("/pipelines/mart/status").json()
    fields = ("stale", "stale_at", "late_cause", "late_reason")
    assert [item[name] for name in fields] == [status[name] for name in fields]
    return item


def late_metrics(client: TestClient) -> list[str]:
    return [line for line in client.get("/metrics").text.splitlines() if line.startswith("vitrine_mart_late{")]


FAILED = {"status": "'FAILED'", "last_error_at": "now()", "last_error_message": "'x'"}
REQUEST = {"request_id": "gen_random_uuid()", "requested_at": "now()", "requested_trigger": "'api'"}
RUNNING = {"status": "'RUNNING'", "lease_owner": "'worker-1'", "lease_token": "1", **REQUEST}
# a reconcile makes no mart fresh: the status before it is the cause
COMPARED = {**RUNNING, "lease_expires_at": "now() + interval '1 minute'", "requested_kind": "'reconcile'"}
CAUSES: list[tuple[dict[str, str], str]] = [
    ({}, "not_due"),
    ({"status": "'PAUSED'"}, "paused"),
    (FAILED | {"last_error_code": "'CONFIG'"}, "failed"),
    (FAILED | {"last_error_code": "'TOO_MANY_REJECTS'"}, "quarantine_full"),
    (FAILED | {"status": "'IDLE'", "postponed": "1", "last_error_code": "'TRANSIENT'"}, "retrying"),
    ({"status": "'RUN_REQUESTED'", **REQUEST}, "no_slot"),
    ({**RUNNING, "lease_expires_at": "now() + interval '1 minute'"}, "running"),
    ({**RUNNING, "lease_expires_at": "now() - interval '1 minute'"}, "runner_gone"),
    ({**COMPARED, "returns_to": "'IDLE'"}, "not_due"),
    ({**COMPARED, "returns_to": "'PAUSED'"}, "paused"),
    ({**COMPARED, **FAILED, "status": "'RUNNING'", "last_error_code": "'CONFIG'", "returns_to": "'FAILED'"}, "failed"),
    ({"next_due_at": "NULL"}, "not_scheduled"),
]


@pytest.mark.promise("S10")
@pytest.mark.parametrize(("fields", "cause"), CAUSES)
def test_list_status_and_metrics_name_the_cause(
    client: TestClient, connection: Connection, fields: dict[str, str], cause: str
) -> None:
    create(connection, "mart", schedule_interval="5m", options={"freshness": "10m"})
    assert (shown(client)["late_cause"], late_metrics(client)) == (None, [])
    age(connection, **fields)
    found = shown(client)
    assert (found["stale"], found["late_cause"]) == (True, cause), found["late_reason"]
    assert late_metrics(client) == [f'vitrine_mart_late{{cause="{cause}",pipeline="mart"}} 1.0']


@pytest.mark.promise("S10")
def test_who_paused_or_disabled_a_mart_is_named(client: TestClient, connection: Connection) -> None:
    create(connection, "mart", schedule_interval="5m")
    assert client.post("/pipelines/mart/pause").status_code < 300
    age(connection)
    found = shown(client)
    assert found["late_cause"] == "paused"
    assert found["late_reason"].startswith("it is paused by anonymous since 2")
    assert client.post("/pipelines/mart/disable").status_code < 300
    found = shown(client)
    assert (found["stale"], found["late_cause"]) == (False, "disabled")
    assert found["late_reason"].startswith("it is disabled by anonymous since 2")
    # its age must raise no alert
    assert late_metrics(client) == []


@pytest.mark.promise("S10")
def test_a_mart_that_was_compared_under_its_pause_is_paused_since_the_pause(
    client: TestClient, connection: Connection, settings: Settings
) -> None:
    pipeline = create_filled(connection, settings, "full", 10)
    succeed(connection, settings, pipeline)
    assert client.post(f"/pipelines/{pipeline.id}/pause").json()["status"] == "PAUSED"
    # the time of a sentence has whole seconds: the comparison ends a minute after the pause
    connection.execute("ALTER TABLE etl.etl_audit DISABLE TRIGGER append_only")
    paused_at = connection.execute("UPDATE etl.etl_audit SET at = at - interval '1 min' RETURNING at").fetchone()
    assert paused_at is not None
    assert report(connection, settings, pipeline)["equal"]
    assert client.post(f"/pipelines/{pipeline.id}/pause").json()["status"] == "PAUSED"  # changes nothing
    status = client.get(f"/pipelines/{pipeline.id}/status").json()
    since = f"by anonymous since {paused_at['at'].astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    assert (status["status"], status["waiting"]) == (
        "PAUSED",
        f"the pipeline is paused {since}; resume it to continue",
    )


def test_an_open_transaction_of_the_source_is_named(client: TestClient, connection: Connection) -> None:
    pipeline = create(connection, "mart", schedule_interval="5m")
    connection.execute(
        "INSERT INTO etl.etl_state (pipeline_id, horizon_lag_seconds, horizon_blocker) VALUES (%s, 720, 'pid 42')"
        " ON CONFLICT (pipeline_id) DO UPDATE SET horizon_lag_seconds = 720, horizon_blocker = 'pid 42'",
        [pipeline.id],
    )
    age(connection)
    found = shown(client)
    assert (found["late_cause"], "pid 42, open for 720 s" in found["late_reason"]) == ("source_transaction", True)


def test_a_mart_that_runs_after_others_names_them(client: TestClient, connection: Connection) -> None:
    create(connection, "first")
    create(connection, "mart", options={"freshness": "10m"})
    connection.execute("""INSERT INTO etl.etl_chains (pipeline_id, upstream_id)
        SELECT m.id, f.id FROM etl.etl_pipelines m, etl.etl_pipelines f WHERE m.name = 'mart' AND f.name = 'first'""")
    age(connection)
    status = client.get("/pipelines/mart/status").json()
    assert (status["late_cause"], "it runs after first" in status["late_reason"]) == ("upstream", True)


def test_no_runner_alive_is_the_cause_of_every_scheduled_mart(client: TestClient, connection: Connection) -> None:
    create(connection, "mart", schedule_interval="5m")
    connection.execute("DELETE FROM etl.etl_runners")
    age(connection)
    assert shown(client)["late_cause"] == "runner_gone"


def test_a_mart_without_a_promise_is_never_late(client: TestClient, connection: Connection) -> None:
    create(connection, "mart")
    age(connection)
    found = shown(client)
    assert (found["stale_at"], found["late_cause"]) == (None, None)


@pytest.mark.promise("S10")
def test_ten_thousand_late_marts_cost_no_more_statements_and_use_the_indexes(
    client: TestClient, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.execute("""INSERT INTO etl.etl_pipelines (name, target_table, source_query, key_columns, status,
        schedule_interval, next_due_at, created_at)
        SELECT 'p' || n, 'analytics.p' || n, 'SELECT 1 AS id', '{id}', 'PAUSED', '5m', now(), now() - interval '1 day'
          FROM generate_series(1, 10000) AS n""")
    connection.execute("""INSERT INTO etl.etl_audit (actor, role, via, operation, pipeline, pipeline_id)
        SELECT 'anna', 'operator', 'api', 'pipelines.pause', name, id FROM etl.etl_pipelines""")
    connection.execute("ANALYZE etl.etl_pipelines, etl.etl_audit")
    executed = record_statements(monkeypatch)
    page = client.get("/pipelines?limit=200").json()
    assert {item["late_cause"] for item in page["items"]} == {"paused"}
    assert executed.count("list_late_facts") == 1
    assert len(executed) < 10
    ids = [item["id"] for item in page["items"]]
    explained = connection.execute(
        sql.SQL("EXPLAIN (FORMAT JSON) {}").format(sql.SQL(database.statement("list_late_facts"))),
        {"ids": ids, "returning": ["reconcile"]},
    ).fetchone()
    assert explained is not None
    plan = json.dumps(explained["QUERY PLAN"])
    assert '"Relation Name": "etl_audit"' in plan
    assert "audit_by_pipeline" in plan
    executed.clear()
    assert len(late_metrics(client)) == 10_000
    assert executed.count("list_late_facts") == 1


def test_the_commands_show_age_promise_and_cause(
    connection: Connection, settings: Settings, database_url: str, tmp_path: Path
) -> None:
    create(connection, "mart", schedule_interval="5m", options={"freshness": "10m"})
    create(connection, "other", schedule_interval="5m")
    age(connection, status="'PAUSED'")
    env = environment(database_url)
    listed = vitrine("list", folder=tmp_path, env=env).stdout
    header, _, first, second, *_ = listed.splitlines()
    assert header.split()[:5] == ["pipeline", "status", "age", "promise", "late"]
    assert first.split()[:6] == ["mart", "PAUSED", "1h", "!", "10m", "paused"]
    assert second.split()[4:8] == ["2", "×", "5m", "paused"]
    assert "mart is late: it is paused" in listed
    status = vitrine("status", "mart", folder=tmp_path, env=env).stdout
    assert "it is late [paused]: it is paused" in status
