"""Status, history and control through the API: why a pipeline waits, figures over runs, runs of many pipelines."""

from datetime import timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.helpers.pipelines import create
from vitrine.api.app import create_app
from vitrine.core.status import Event, RunStatus, Status
from vitrine.definition.pipeline import Claim
from vitrine.operations.bodies.filters import MANY
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import history, pipelines, queue

TTL = timedelta(seconds=30)


def claim(connection: Connection, name: str) -> Claim:
    pipelines.request_run(connection, name, trigger="api")
    taken = queue.claim_next(connection, runner="worker-1", ttl=TTL, only=pipelines.get(connection, name).id)
    assert taken is not None
    return taken


def fail(connection: Connection, name: str, code: str = "CONFIG") -> None:
    taken = claim(connection, name)
    queue.end_run(connection, taken, Event.FAIL, RunStatus.FAILED, error_code=code, error_message="it failed")


def waiting(client: TestClient, name: str = "genres") -> Any:
    return client.get(f"/pipelines/{name}/status").json()["waiting"]


# Status


def test_the_status_says_why_the_pipeline_waits_from_the_request_to_the_end(
    client: TestClient, connection: Connection
) -> None:
    create(connection, "genres")
    assert waiting(client) is None
    client.post("/pipelines/genres/run")
    assert waiting(client) == "no runner is alive; start one with `vitrine runner`"
    assert client.get("/pipelines/genres/status").json()["runners"] == 0
    history.register_runner(connection, "worker-1")
    status = client.get("/pipelines/genres/status").json()
    assert (status["waiting"], status["runners"]) == ("the run waits for a free runner", 1)
    taken = queue.claim_next(connection, runner="worker-1", ttl=TTL)
    assert taken is not None
    assert waiting(client) is None
    queue.end_run(
        connection,
        taken,
        Event.RETRY,
        RunStatus.FAILED,
        error_code="TRANSIENT",
        error_message="it failed",
        attempt=1,
        delay=timedelta(minutes=5),
    )
    assert waiting(client).startswith("the last run failed with TRANSIENT at ")
    assert "; the next attempt is at " in waiting(client)
    client.post("/pipelines/genres/pause")
    assert waiting(client).startswith("the pipeline is paused by anonymous since ")
    client.post("/pipelines/genres/disable")
    assert waiting(client) == "the pipeline is disabled; enable it, and it can run again"
    client.post("/pipelines/genres/enable")
    client.post("/pipelines/genres/resume")
    fail_taken = queue.claim_next(connection, runner="worker-1", ttl=TTL)
    assert fail_taken is not None
    queue.end_run(connection, fail_taken, Event.FAIL, RunStatus.FAILED, error_code="CONFIG", error_message="no")
    assert waiting(client).startswith("the last run failed with CONFIG at ")


def test_a_change_of_the_definition_does_not_change_since_when_a_pipeline_is_paused(
    client: TestClient, connection: Connection
) -> None:
    create(connection, "genres")
    client.post("/pipelines/genres/pause")
    before = client.get("/pipelines/genres/status").json()["status_since"]
    client.patch("/pipelines/genres", json={"batch_size": 7})
    client.post("/pipelines/genres/pause")
    assert client.get("/pipelines/genres/status").json()["status_since"] == before


def test_a_source_at_its_limit_is_the_reason_to_wait(connection: Connection, settings: Settings) -> None:
    for name in ("first", "second", "third"):
        create(connection, name)
    create(connection, "elsewhere", source="other")
    history.register_runner(connection, "worker-1")
    claim(connection, "first")
    limited = settings.model_copy(update={"source_connections": {"DEFAULT": 2}})
    with TestClient(create_app(limited)) as client:
        for name in ("second", "elsewhere"):
            pipelines.request_run(connection, name, trigger="api")
        assert waiting(client, "second").startswith("source 'default' has as many runs as its limit")
        assert waiting(client, "elsewhere") == "the run waits for a free runner"


# Statistics


def insert_run(connection: Connection, name: str, status: str, seconds: float, age: str, rows: int = 10) -> int:
    row = connection.execute(
        """INSERT INTO etl.etl_runs (pipeline_id, attempt, trigger, kind, status, started_at, finished_at, rows_read,
               rows_written, config, runner, lease_token)
           SELECT id, 1, 'api', 'full', %(status)s, now() - %(age)s::interval,
                  CASE WHEN %(status)s <> 'RUNNING'
                       THEN now() - %(age)s::interval + make_interval(secs => %(seconds)s) END,
                  %(rows)s, 1, '{}', 'worker-1', 1
             FROM etl.etl_pipelines WHERE name = %(name)s RETURNING id""",
        {"name": name, "status": status, "seconds": seconds, "age": age, "rows": rows},
    ).fetchone()
    assert row is not None
    return row["id"]


def test_figures_cover_the_newest_runs_or_the_last_days(client: TestClient, connection: Connection) -> None:
    create(connection, "genres")
    create(connection, "others")
    empty = client.get("/pipelines/genres/runs/statistics").json()
    assert (empty["runs"], empty["by_status"], empty["seconds_p50"], empty["since"]) == (0, {}, None, None)
    insert_run(connection, "genres", "SUCCESS", 100, "10 days", rows=1000)
    for seconds in range(1, 21):
        insert_run(connection, "genres", "SUCCESS", seconds, "2 days")
    insert_run(connection, "genres", "FAILED", 500, "1 hour")
    insert_run(connection, "genres", "RUNNING", 0, "1 second")
    insert_run(connection, "others", "SUCCESS", 7, "1 hour")
    every = client.get("/pipelines/genres/runs/statistics").json()
    assert every["runs"] == 23
    assert every["by_status"] == {"SUCCESS": 21, "FAILED": 1, "RUNNING": 1}
    assert (every["rows_read"], every["rows_written"], every["seconds_max"]) == (1220, 23, 100.0)
    recent = client.get("/pipelines/genres/runs/statistics", params={"days": 3}).json()
    assert (recent["runs"], recent["rows_read"]) == (22, 220)
    assert (recent["seconds_p50"], recent["seconds_p95"], recent["seconds_max"]) == (10.5, 19.05, 20.0)
    newest = client.get("/pipelines/genres/runs/statistics", params={"newest": 2}).json()
    assert (newest["runs"], newest["by_status"], newest["seconds_p50"]) == (2, {"FAILED": 1, "RUNNING": 1}, None)
    # the last success is known although the figures do not cover it
    assert newest["last_success_at"] == every["last_success_at"] is not None
    assert newest["last_failure_at"] == every["last_failure_at"] is not None


@pytest.mark.promise("H9", "H21")
@pytest.mark.parametrize(
    "params",
    [{"newest": "0"}, {"newest": "1001"}, {"newest": str(2**70)}, {"days": "0"}, {"days": "NaN"}, {"days": "-1"}],
)
def test_figures_are_bounded(client: TestClient, connection: Connection, params: dict[str, str]) -> None:
    create(connection, "genres")
    assert client.get("/pipelines/genres/runs/statistics", params=params).status_code == 422


def test_one_run_is_read_under_its_own_pipeline_only(client: TestClient, connection: Connection) -> None:
    create(connection, "genres")
    create(connection, "others")
    run_id = insert_run(connection, "genres", "SUCCESS", 1, "1 hour")
    assert (
        client.get(f"/pipelines/genres/runs/{run_id}").json() == client.get("/pipelines/genres/runs").json()["items"][0]
    )
    for path in (f"/pipelines/others/runs/{run_id}", "/pipelines/genres/runs/999999"):
        answer = client.get(path)
        assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


@pytest.mark.promise("H9")
@pytest.mark.parametrize("run_id", ["x", "-1", "1.5", "NaN", str(2**63), str(2**70), "٣", "1%00", "9" * 5000])
def test_an_id_that_no_run_can_have_is_not_found(client: TestClient, connection: Connection, run_id: str) -> None:
    create(connection, "genres")
    assert client.get(f"/pipelines/genres/runs/{run_id}").status_code == 404


# Many runs


def test_a_run_of_every_failed_pipeline_is_requested_at_once(client: TestClient, connection: Connection) -> None:
    for name in ("alpha", "beta", "gamma", "idle"):
        create(connection, name)
    for name in ("alpha", "beta", "gamma"):
        fail(connection, name)
    client.post("/pipelines/beta/disable")
    dry = client.post("/runs", json={"status": "FAILED", "dry_run": True})
    assert dry.status_code == 202
    assert (dry.json()["names"], dry.json()["matched"], dry.json()["requested"]) == (["alpha", "beta", "gamma"], 3, [])
    assert client.get("/pipelines/alpha").json()["status"] == "FAILED"
    body = client.post("/runs", json={"status": "FAILED"}).json()
    assert [one["pipeline"] for one in body["requested"]] == ["alpha", "gamma"]
    assert [(one["pipeline"], one["code"]) for one in body["refused"]] == [("beta", "DISABLED")]
    assert (body["matched"], body["next"]) == (3, None)
    for one in body["requested"]:
        assert client.get(f"/requests/{one['request_id']}").json()["state"] == "pending"
    assert client.get("/pipelines/idle").json()["status"] == "IDLE"
    # only the one that was refused is left
    assert client.post("/runs", json={"status": "FAILED"}).json()["names"] == ["beta"]


@pytest.mark.promise("D9")
def test_a_repeated_request_for_many_returns_the_same_requests(client: TestClient, connection: Connection) -> None:
    for name in ("alpha", "beta"):
        create(connection, name, tags=["nightly"])
    first, second = (client.post("/runs", json={"tag": "nightly"}).json() for _ in range(2))
    assert first["requested"] == second["requested"]


def test_options_of_a_run_apply_to_all(client: TestClient, connection: Connection) -> None:
    fields = {"mode": "incremental", "incremental_key": "modified", "incremental_id_key": "id"}
    create(connection, "films", source_query="SELECT id, modified FROM content.film_work", **fields)
    assert client.post("/runs", json={"enabled": True, "mode": "full", "allow_shrink": True}).json()["matched"] == 1
    request = pipelines.get(connection, "films").request
    assert request is not None
    assert (request.kind, request.options.allow_shrink) == ("full", True)


def test_a_request_for_many_is_bounded_and_continues_after_the_last(
    client: TestClient, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MANY == 1000
    monkeypatch.setattr("vitrine.operations.many.MANY", 3)
    for number in range(5):
        create(connection, f"p{number}", tags=["all"])
    body = client.post("/runs", json={"tag": "all"}).json()
    assert (body["names"], body["next"]) == (["p0", "p1", "p2"], "p2")
    assert client.get("/pipelines", params={"status": Status.RUN_REQUESTED}).json()["items"][-1]["name"] == "p2"
    body = client.post("/runs", json={"tag": "all", "after": "p2"}).json()
    assert (body["names"], body["next"]) == (["p3", "p4"], None)


@pytest.mark.promise("H10")
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"status": []},
        {"enabled": None},
        {"dry_run": True},
        {"allow_shrink": True},
        {"status": "SLEEPING"},
        {"stauts": "FAILED"},
        {"enabled": "true"},
        {"status": "FAILED", "request_id": "0b9d9b0e-8a53-4c3b-8f0b-2f9f3a1c7d55"},
        {"enabled": True, "backfill": {"from": "2025-01-01", "to": "2025-02-01"}},
    ],
)
def test_a_request_for_many_needs_a_condition_and_nothing_else(
    client: TestClient, connection: Connection, body: dict[str, Any]
) -> None:
    create(connection, "genres")
    answer = client.post("/runs", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "INVALID")
    assert pipelines.get(connection, "genres").status is Status.IDLE


# Tasks, enable and disable


def test_the_task_plan_is_replaced_as_a_whole(client: TestClient, connection: Connection) -> None:
    create(connection, "genres")
    assert client.get("/pipelines/genres/tasks").json() == []
    steps = [{"order_index": 10, "task_type": "SQL", "body": "SELECT id, name FROM content.genre"}]
    answer = client.put("/pipelines/genres/tasks", json=steps)
    assert (answer.status_code, answer.headers["etag"]) == (200, '"2"')
    read = client.get("/pipelines/genres/tasks")
    assert (read.json()[0]["body"], read.headers["etag"]) == (steps[0]["body"], '"2"')
    assert client.put("/pipelines/genres/tasks", json=[]).json()["tasks"] == []
    assert client.get("/pipelines/genres").json()["source_query"] == "SELECT id, name FROM content.genre"


def test_a_plan_that_cannot_run_is_refused_and_the_old_one_stays(client: TestClient, connection: Connection) -> None:
    create(connection, "genres")
    refused: list[tuple[Any, str | None]] = [
        ([{"order_index": 1, "task_type": "SQL", "body": "DROP TABLE content.genre"}], None),
        ([{"order_index": 1, "task_type": "SQL", "body": "SELECT nothing FROM content.genre"}], None),
        ([{"order_index": False, "task_type": "SQL", "body": "SELECT 1"}], "INVALID"),
        ([{"order_index": 1, "task_type": "SQL", "body": "SELECT 1", "id": "x"}], "INVALID"),
        ({"tasks": []}, "INVALID"),
    ]
    for steps, code in refused:
        answer = client.put("/pipelines/genres/tasks", json=steps)
        assert answer.status_code == 422, answer.text
        assert code is None or answer.json()["code"] == code
    assert client.get("/pipelines/genres").json()["config_version"] == 1


@pytest.mark.promise("D12")
def test_the_task_plan_of_a_running_pipeline_cannot_be_replaced(client: TestClient, connection: Connection) -> None:
    create(connection, "genres")
    claim(connection, "genres")
    steps = [{"order_index": 1, "task_type": "SQL", "body": "SELECT id FROM content.genre"}]
    answer = client.put("/pipelines/genres/tasks", json=steps)
    assert (answer.status_code, answer.json()["code"]) == (409, "RUNNING")


@pytest.mark.promise("D12", "D13")
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", "", {"batch_size": 7}),
        ("PATCH", "/update-config", {"batch_size": 7}),
        ("POST", "/update-config", {"batch_size": 7}),
        ("PUT", "/tasks", []),
        ("POST", "/enable", None),
        ("POST", "/disable", None),
        ("POST", "/state", {"action": "reset"}),
        ("DELETE", "", None),
    ],
)
def test_every_change_refuses_another_version_than_the_one_that_was_read(
    client: TestClient, connection: Connection, method: str, path: str, body: Any
) -> None:
    create(connection, "genres")
    before = client.get("/pipelines/genres").json()
    for tag in ('"7"', '"x"'):
        answer = client.request(method, f"/pipelines/genres{path}", json=body, headers={"If-Match": tag})
        assert (answer.status_code, answer.json()["code"]) == (412, "VERSION_CONFLICT")
    assert client.get("/pipelines/genres").json() == before
    current = '"0"' if path == "/state" else '"1"'
    answer = client.request(method, f"/pipelines/genres{path}", json=body, headers={"If-Match": current})
    assert answer.is_success, answer.text


def test_a_disabled_pipeline_has_no_due_time_and_gets_a_new_one_when_it_is_enabled(
    client: TestClient, connection: Connection
) -> None:
    create(connection, "genres", schedule_interval="5m")
    disabled = client.post("/pipelines/genres/disable")
    assert (disabled.json()["enabled"], disabled.json()["next_due_at"]) == (False, None)
    assert disabled.headers["etag"] == '"2"'
    # a second time nothing changes
    assert client.post("/pipelines/genres/disable").headers["etag"] == '"2"'
    enabled = client.post("/pipelines/genres/enable").json()
    assert enabled["enabled"]
    assert enabled["next_due_at"] > enabled["updated_at"]


def test_a_running_pipeline_that_is_disabled_is_paused_after_its_batch(
    client: TestClient, connection: Connection
) -> None:
    create(connection, "genres")
    claim(connection, "genres")
    assert client.post("/pipelines/genres/disable").json()["status"] == "PAUSE_REQUESTED"


def test_a_target_that_another_pipeline_has_taken_refuses_to_enable(client: TestClient, connection: Connection) -> None:
    create(connection, "old", enabled=False, target_table="analytics.one")
    create(connection, "new", target_table="analytics.one")
    answer = client.post("/pipelines/old/enable")
    assert (answer.status_code, answer.json()["code"]) == (409, "TARGET_TAKEN")
