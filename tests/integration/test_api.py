"""The REST API over a real store: every route, and every kind of invalid request."""

import gzip
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from fastapi.testclient import TestClient

from tests.helpers.access import bearer, issue
from vitrine.api import connections, monitoring, server
from vitrine.api.app import create_app
from vitrine.core.status import Event, RequestKind, RunStatus, Status
from vitrine.definition.model import Definition
from vitrine.definition.pipeline import Claim
from vitrine.errors import ConfigError
from vitrine.operations.context import Role
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import history, pipelines, queue
from vitrine.store.checkpoint import StoreCheckpoint
from vitrine.store.database import Link

TTL = timedelta(seconds=30)
GENRES: dict[str, Any] = {
    "name": "top_genres",
    "source_query": "SELECT id, name FROM content.genre",
    "target_table": "analytics.top_genres",
    "key_columns": ["id"],
}
FILMS: dict[str, Any] = {
    "name": "film_dim",
    "source_query": "SELECT id, title, modified FROM content.film_work",
    "target_table": "analytics.film_dim",
    "mode": "incremental",
    "incremental_key": "modified",
    "incremental_id_key": "id",
    "key_columns": ["id"],
}


@pytest.fixture
def genres(connection: Connection) -> str:
    return pipelines.create(connection, Definition.model_validate(GENRES)).name


def claim(connection: Connection) -> Claim:
    taken = queue.claim_next(connection, runner="worker-1", ttl=TTL)
    assert taken is not None
    return taken


def run_until_claimed(connection: Connection, name: str) -> Claim:
    pipelines.request_run(connection, name, trigger="api")
    return claim(connection)


def put_into(connection: Connection, name: str, status: Status) -> None:
    """Bring an IDLE pipeline into a status the way runners and users do."""
    match status:
        case Status.IDLE:
            pass
        case Status.RUN_REQUESTED:
            pipelines.request_run(connection, name, trigger="api")
        case Status.RUNNING:
            run_until_claimed(connection, name)
        case Status.PAUSE_REQUESTED:
            run_until_claimed(connection, name)
            pipelines.request_pause(connection, name)
        case Status.PAUSED:
            pipelines.request_pause(connection, name)
        case Status.FAILED:
            taken = run_until_claimed(connection, name)
            queue.end_run(connection, taken, Event.FAIL, RunStatus.FAILED, error_code="X", error_message="it failed")
    assert pipelines.get(connection, name).status is status


def problem(response: Any, status: int, code: str) -> dict[str, Any]:
    """The body of a refusal; all refusals have the same shape."""
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert (response.status_code, body["code"]) == (status, code), body
    assert body["status"] == status
    assert body["type"] == "about:blank"
    assert body["title"]
    assert body["detail"]
    return body


def overlapping(connection: Connection, name: str, *requests: Callable[[], Any]) -> list[Any]:
    """Responses of overlapping requests: all of them wait for the lock of the pipeline before any of them continues."""
    waiting = """SELECT count(*) AS n FROM pg_stat_activity WHERE application_name = 'vitrine:api'
                    AND datname = current_database() AND wait_event_type = 'Lock'"""
    with ThreadPoolExecutor(len(requests)) as threads:
        with connection.transaction():
            pipelines.lock(connection, name)
            futures = [threads.submit(request) for request in requests]
            while (row := connection.execute(waiting).fetchone()) and row["n"] < len(requests):
                connection.execute("SELECT pg_stat_clear_snapshot()")
        return [future.result(timeout=30) for future in futures]


# Configuration


def test_a_created_pipeline_is_found_by_id_and_by_name(client: TestClient) -> None:
    created = client.post("/api/v1/pipelines", json=GENRES)
    assert created.status_code == 201
    assert created.headers["etag"] == '"1"'
    body = created.json()
    assert (body.pop("warnings"), body.pop("findings")) == ([], [])
    assert body["status"] == "IDLE"
    assert body["batch_size"] == "auto"
    assert client.get(created.headers["location"]).json() == body
    for key in ("top_genres", body["id"], body["id"].upper(), body["id"].replace("-", "")):
        found = client.get(f"/pipelines/{key}")
        assert found.json() == body
        assert found.headers["etag"] == '"1"'


def test_a_definition_that_the_api_returns_can_be_created_again(client: TestClient) -> None:
    body = client.post("/pipelines", json=FILMS).json()
    definition = {name: body[name] for name in Definition.model_fields}
    assert client.delete("/pipelines/film_dim").status_code == 204
    again = client.post("/pipelines", json=definition)
    assert again.status_code == 201
    assert {name: again.json()[name] for name in Definition.model_fields} == definition


def test_pipelines_are_listed_page_by_page_in_the_order_of_names(client: TestClient) -> None:
    assert client.get("/pipelines").json() == {"items": [], "invalid": [], "next": None}
    for number in range(5):
        client.post("/pipelines", json=GENRES | {"name": f"p{number}", "target_table": f"analytics.t{number}"})
    names: list[str] = []
    after = ""
    while True:
        page = client.get("/pipelines", params={"limit": 2, "after": after}).json()
        names += [item["name"] for item in page["items"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert names == ["p0", "p1", "p2", "p3", "p4"]
    assert client.get("/pipelines", params={"limit": 5}).json()["next"] is None


@pytest.mark.promise("H10")
@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"name": "Top Genres"}, "name"),
        ({"name": None}, "name"),
        ({"name": "a" * 64}, "name"),
        ({"name": "top\ngenres"}, "name"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2**70}, "batch_size"),
        ({"batch_size": "many"}, "batch_size"),
        ({"batch_size": 1.5}, "batch_size"),
        ({"mode": "sometimes"}, "mode"),
        ({"enabled": "S3CR3T"}, "enabled"),
        ({"schedule_interval": "S3CR3T"}, "schedule_interval"),
        ({"key_columns": ["a b"]}, "key_columns[0]"),
        ({"options": {"max_delete_ratio": 2}}, "options.max_delete_ratio"),
        ({"options": {"S3CR3T_is_a_name": 1}}, "options.S3CR3T_is_a_name"),
        ({"tasks": [{"order_index": 2**70, "task_type": "SQL"}]}, "tasks[0].order_index"),
        # fields that only the store sets
        ({"status": "RUNNING"}, "status"),
        ({"id": str(uuid4())}, "id"),
        ({"lease_token": 1}, "lease_token"),
        ({"config_version": 7}, "config_version"),
    ],
)
@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_an_invalid_field_is_named_and_its_value_is_not_repeated(
    client: TestClient, genres: str, method: str, wrong: dict[str, Any], field: str
) -> None:
    if method == "POST":
        answer = client.post("/pipelines", json=GENRES | {"name": "other"} | wrong)
    else:
        answer = client.patch(f"/pipelines/{genres}", json=wrong)
    body = problem(answer, 422, "INVALID")
    assert [error["field"] for error in body["errors"]] == [field]
    assert field in body["detail"]
    assert "S3CR3T" not in answer.text.replace("S3CR3T_is_a_name", "")
    assert client.get(f"/pipelines/{genres}").json()["config_version"] == 1


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_a_misspelled_field_is_answered_with_the_correct_name(client: TestClient, genres: str, method: str) -> None:
    wrong = {"source_qurey": "SELECT 1", "options": {"lookbak": "1h"}, "key_columns": "id"}
    path = "/pipelines" if method == "POST" else f"/pipelines/{genres}"
    body = problem(client.request(method, path, json=GENRES | wrong), 422, "INVALID")
    for sentence in (
        "key_columns: give a list, for example [id]",
        "no field `options.lookbak`; did you mean `options.lookback`?",
        "no field `source_qurey`; did you mean `source_query`?",
    ):
        assert sentence in body["detail"]
    assert {error["field"] for error in body["errors"]} == {"key_columns", "options.lookbak", "source_qurey"}


def test_an_option_of_another_connector_is_refused_with_its_name(client: TestClient) -> None:
    calendar = {
        "name": "days",
        "python_task": "calendar_days",
        "target_table": "analytics.days",
        "key_columns": ["day"],
    }
    body = problem(client.post("/pipelines", json=calendar | {"options": {"lookback": "1h"}}), 422, "INVALID")
    assert "`options.lookback` does not apply to the source and target of this pipeline; remove it" in body["detail"]


@pytest.mark.promise("H5", "H8")
@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"source_query": "DROP TABLE content.genre"}, None),
        ({"source_query": "SELECT * FROM pg_catalog.pg_authid"}, None),
        ({"source_query": None}, None),
        ({"target_table": "content.genre"}, "TARGET_NOT_ALLOWED"),
        ({"target_table": "analytics.x; DROP TABLE y"}, "BAD_TARGET"),
        ({"target_table": "es:http://user:S3CR3T@169.254.169.254"}, "BAD_TARGET"),
        ({"python_task": "os.system"}, "UNKNOWN_TASK"),
        ({"python_task": "__class__"}, "UNKNOWN_TASK"),
        ({"source": "nowhere"}, "UNKNOWN_SOURCE"),
        ({"mode": "incremental"}, "INVALID"),
    ],
)
@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_a_definition_that_may_not_run_is_not_stored(
    client: TestClient, genres: str, method: str, wrong: dict[str, Any], code: str | None
) -> None:
    if method == "POST":
        answer = client.post("/pipelines", json=GENRES | {"name": "other", "target_table": "analytics.other"} | wrong)
    else:
        answer = client.patch(f"/pipelines/{genres}", json=wrong)
    problem(answer, 422, code or answer.json()["code"])
    assert "S3CR3T" not in answer.text
    assert [item["config_version"] for item in client.get("/pipelines").json()["items"]] == [1]


def test_all_reasons_are_reported_at_once(client: TestClient) -> None:
    answer = client.post("/pipelines", json=GENRES | {"target_table": "content.x", "python_task": "nothing"})
    detail = problem(answer, 422, answer.json()["code"])["detail"]
    assert "content.x" in detail
    assert "nothing" in detail


@pytest.mark.promise("D18")
def test_one_name_and_one_target_belong_to_one_pipeline(client: TestClient, genres: str) -> None:
    problem(client.post("/pipelines", json=GENRES | {"target_table": "analytics.x"}), 409, "NAME_TAKEN")
    problem(client.post("/pipelines", json=GENRES | {"name": "other"}), 409, "TARGET_TAKEN")
    # a disabled one may share the target, until it is enabled
    assert client.post("/pipelines", json=GENRES | {"name": "other", "enabled": False}).status_code == 201
    problem(client.patch("/pipelines/other", json={"enabled": True}), 409, "TARGET_TAKEN")
    problem(client.patch("/pipelines/other", json={"name": genres}), 409, "NAME_TAKEN")


def test_two_steps_cannot_have_the_same_order_index(client: TestClient) -> None:
    steps = [{"order_index": 1, "task_type": "SQL", "body": "SELECT 1 AS id"}] * 2
    answer = client.post("/pipelines", json=GENRES | {"source_query": None, "tasks": steps})
    problem(answer, 422, answer.json()["code"])


def test_a_change_affects_only_the_fields_it_names(client: TestClient, genres: str) -> None:
    before = client.get(f"/pipelines/{genres}").json()
    client.patch(f"/pipelines/{genres}", json={"options": {"max_staging_age": "2h"}})
    changed = client.patch(
        f"/pipelines/{genres}", json={"batch_size": 10, "schedule_interval": "1h", "options": {"max_delete_ratio": 0.1}}
    )
    assert changed.status_code == 200
    assert changed.headers["etag"] == '"3"'
    after = changed.json()
    assert (after.pop("warnings"), after.pop("findings")) == ([], [])
    assert after["options"]["max_staging_age"] == "2h"
    assert after["options"]["max_delete_ratio"] == 0.1
    same = {"updated_at", "config_version", "batch_size", "schedule_interval", "next_due_at", "stale_at", "options"}
    assert {name: after[name] for name in after if name not in same} == {
        name: before[name] for name in before if name not in same
    }
    unset = client.patch(f"/pipelines/{genres}", json={"schedule_interval": None}).json()
    assert unset["schedule_interval"] is None
    assert unset["batch_size"] == 10


def test_a_change_without_an_effect_keeps_the_version(client: TestClient, genres: str) -> None:
    for body in ({}, {"batch_size": "auto"}, {"state": "keep"}):
        answer = client.patch(f"/pipelines/{genres}", json=body)
        assert answer.status_code == 200
        assert answer.headers["etag"] == '"1"'


@pytest.mark.promise("D12")
@pytest.mark.parametrize(
    ("tag", "status"),
    [('"1"', 200), ("1", 200), ('W/"1"', 200), ("*", 200), ('"2"', 412), ('"99999999999999999999"', 412), ('"x"', 412)],
)
def test_if_match_refuses_to_change_another_version(client: TestClient, genres: str, tag: str, status: int) -> None:
    answer = client.patch(f"/pipelines/{genres}", json={"batch_size": 7}, headers={"If-Match": tag})
    assert answer.status_code == status
    if status == 412:
        problem(answer, 412, "VERSION_CONFLICT")
    assert client.get(f"/pipelines/{genres}").json()["batch_size"] == (7 if status == 200 else "auto")


@pytest.mark.promise("D13")
def test_one_of_two_concurrent_edits_of_one_version_is_refused(
    client: TestClient, connection: Connection, genres: str
) -> None:
    def edit(size: int) -> Any:
        return client.patch(f"/pipelines/{genres}", json={"batch_size": size}, headers={"If-Match": '"1"'})

    answers = overlapping(connection, genres, lambda: edit(11), lambda: edit(22))
    assert sorted(answer.status_code for answer in answers) == [200, 412]
    winner = next(answer for answer in answers if answer.status_code == 200)
    assert client.get(f"/pipelines/{genres}").json() | {"warnings": [], "findings": []} == winner.json()


@pytest.mark.promise("D10", "D12")
@pytest.mark.parametrize("status", [Status.RUNNING, Status.PAUSE_REQUESTED])
def test_a_running_pipeline_can_neither_be_deleted_nor_get_fields_that_would_break_its_run(
    client: TestClient, connection: Connection, genres: str, status: Status
) -> None:
    put_into(connection, genres, status)
    tearing: list[dict[str, Any]] = [
        {"source_query": "SELECT id FROM content.genre"},
        {"target_table": "analytics.y"},
        {"key_columns": []},
    ]
    for change in tearing:
        problem(client.patch(f"/pipelines/{genres}", json=change), 409, "RUNNING")
    problem(client.delete(f"/pipelines/{genres}"), 409, "RUNNING")
    assert client.patch(f"/pipelines/{genres}", json={"batch_size": 3}).status_code == 200


def test_disabling_a_running_pipeline_pauses_it(client: TestClient, connection: Connection, genres: str) -> None:
    put_into(connection, genres, Status.RUNNING)
    assert client.patch(f"/pipelines/{genres}", json={"enabled": False}).json()["status"] == "PAUSE_REQUESTED"


@pytest.mark.promise("C18")
def test_a_new_query_must_state_whether_the_checkpoint_is_kept(client: TestClient, connection: Connection) -> None:
    film_id = client.post("/pipelines", json=FILMS).json()["id"]
    connection.execute(
        "INSERT INTO etl.etl_state (pipeline_id, cursor) VALUES (%s, '{2025-01-01 00:00:00.123456+00,17}')", [film_id]
    )
    query = {"source_query": "SELECT id, modified FROM content.film_work"}
    problem(client.patch("/pipelines/film_dim", json=query), 422, "STATE_CHOICE")
    problem(client.patch("/pipelines/film_dim", json={"key_columns": ["id", "title"]}), 422, "STATE_CHOICE")
    problem(client.patch("/pipelines/film_dim", json=query | {"state": "maybe"}), 422, "INVALID")
    assert client.patch("/pipelines/film_dim", json=query | {"state": "keep"}).status_code == 200
    state = client.get("/pipelines/film_dim/state").json()
    assert state["last_processed_value"] == "2025-01-01 00:00:00.123456+00"
    assert state["last_processed_id"] == "17"
    assert client.patch("/pipelines/film_dim", json={"state": "reset"}).status_code == 200
    assert client.get("/pipelines/film_dim/state").json()["cursor"] is None


def test_deleting_a_pipeline_deletes_its_history(client: TestClient, connection: Connection, genres: str) -> None:
    request_id = client.post(f"/pipelines/{genres}/run").json()["request_id"]
    queue.end_run(connection, claim(connection), Event.FINISH, RunStatus.SUCCESS)
    answer = client.delete(f"/pipelines/{genres}")
    assert (answer.status_code, answer.content) == (204, b"")
    problem(client.get(f"/pipelines/{genres}"), 404, "NOT_FOUND")
    problem(client.get(f"/requests/{request_id}"), 404, "NOT_FOUND")
    problem(client.delete(f"/pipelines/{genres}"), 404, "NOT_FOUND")


# Requests


@pytest.mark.parametrize("verb", ["run", "resume"])
@pytest.mark.parametrize(
    ("status", "becomes"),
    [
        (Status.IDLE, Status.RUN_REQUESTED),
        (Status.RUN_REQUESTED, Status.RUN_REQUESTED),
        (Status.RUNNING, Status.RUNNING),
        (Status.PAUSE_REQUESTED, Status.RUNNING),
        (Status.PAUSED, Status.RUN_REQUESTED),
        (Status.FAILED, Status.RUN_REQUESTED),
    ],
)
def test_run_is_accepted_in_every_status(
    client: TestClient, connection: Connection, genres: str, verb: str, status: Status, becomes: Status
) -> None:
    put_into(connection, genres, status)
    answer = client.post(f"/pipelines/{genres}/{verb}")
    assert answer.status_code == 202
    assert answer.json()["status"] == becomes
    assert answer.json()["pipeline"] == genres
    stored = pipelines.get(connection, genres)
    assert stored.status is becomes
    assert answer.json()["request_id"] in {str(stored.request_id), str(stored.rerun_request_id)}


@pytest.mark.promise("D1")
@pytest.mark.parametrize(
    ("status", "code", "becomes"),
    [
        (Status.IDLE, 200, Status.PAUSED),
        (Status.RUN_REQUESTED, 200, Status.PAUSED),
        (Status.RUNNING, 202, Status.PAUSE_REQUESTED),
        (Status.PAUSE_REQUESTED, 202, Status.PAUSE_REQUESTED),
        (Status.PAUSED, 200, Status.PAUSED),
        (Status.FAILED, 409, Status.FAILED),
    ],
)
def test_a_pause_reports_whether_it_has_taken_effect(
    client: TestClient, connection: Connection, genres: str, status: Status, code: int, becomes: Status
) -> None:
    put_into(connection, genres, status)
    attempts = len(client.get(f"/pipelines/{genres}/runs").json()["items"])
    answer = client.post(f"/pipelines/{genres}/pause")
    if code == 409:
        problem(answer, 409, "WRONG_STATUS")
    else:
        assert (answer.status_code, answer.json()) == (code, {"status": becomes, "pipeline": genres})
    assert pipelines.get(connection, genres).status is becomes
    assert len(client.get(f"/pipelines/{genres}/runs").json()["items"]) == attempts


@pytest.mark.promise("D1")
def test_a_paused_pipeline_is_not_claimed_until_it_is_resumed(
    client: TestClient, connection: Connection, genres: str
) -> None:
    first = client.post(f"/pipelines/{genres}/run").json()["request_id"]
    client.post(f"/pipelines/{genres}/pause")
    assert queue.claim_next(connection, runner="worker-1", ttl=TTL) is None
    assert client.get(f"/requests/{first}").json()["state"] == "paused"
    assert client.post(f"/pipelines/{genres}/resume").json()["request_id"] == first
    assert claim(connection).definition.name == genres


@pytest.mark.promise("D9")
def test_two_parallel_requests_are_one_run(client: TestClient, connection: Connection, genres: str) -> None:
    def run() -> Any:
        return client.post(f"/pipelines/{genres}/run")

    answers = overlapping(connection, genres, run, run)
    assert [answer.status_code for answer in answers] == [202, 202]
    assert answers[0].json()["request_id"] == answers[1].json()["request_id"]
    claim(connection)
    assert queue.claim_next(connection, runner="worker-2", ttl=TTL) is None


def test_run_and_pause_at_the_same_time_are_both_applied(
    client: TestClient, connection: Connection, genres: str
) -> None:
    run_until_claimed(connection, genres)
    answers = overlapping(
        connection,
        genres,
        lambda: client.post(f"/pipelines/{genres}/run"),
        lambda: client.post(f"/pipelines/{genres}/pause"),
    )
    assert [answer.status_code for answer in answers] == [202, 202]
    assert pipelines.get(connection, genres).status in {Status.RUNNING, Status.PAUSE_REQUESTED}


def test_a_request_while_running_starts_exactly_one_more_run(
    client: TestClient, connection: Connection, genres: str
) -> None:
    first = client.post(f"/pipelines/{genres}/run").json()["request_id"]
    taken = claim(connection)
    again = {client.post(f"/pipelines/{genres}/run").json()["request_id"] for _ in range(3)}
    assert len(again) == 1
    assert first not in again
    assert client.get(f"/requests/{first}").json()["state"] == "running"
    (second,) = again
    assert client.get(f"/requests/{second}").json() | {"run": None} == {
        "request_id": second,
        "pipeline_id": str(taken.pipeline_id),
        "pipeline": genres,
        "state": "pending",
        "promised_at": None,
        "run": None,
    }
    queue.end_run(connection, taken, Event.FINISH, RunStatus.SUCCESS)
    queue.end_run(connection, claim(connection), Event.FINISH, RunStatus.SUCCESS)
    assert pipelines.get(connection, genres).status is Status.IDLE
    for request_id in (first, second):
        body = client.get(f"/requests/{request_id}").json()
        assert (body["state"], body["run"]["status"]) == ("succeeded", "SUCCESS")


@pytest.mark.promise("D16")
def test_a_failed_pipeline_runs_again_from_its_first_attempt(
    client: TestClient, connection: Connection, genres: str
) -> None:
    failed = client.post(f"/pipelines/{genres}/run").json()["request_id"]
    taken = claim(connection)
    queue.end_run(connection, taken, Event.FAIL, RunStatus.FAILED, error_code="DATA_ERROR", error_message="no")
    body = client.get(f"/requests/{failed}").json()
    assert body["state"] == "failed"
    assert body["run"]["error_code"] == "DATA_ERROR"
    again = client.post(f"/pipelines/{genres}/run").json()["request_id"]
    assert again != failed
    assert client.get(f"/pipelines/{genres}/status").json()["attempt"] == 0
    assert claim(connection).attempt == 1
    assert client.get(f"/requests/{failed}").json()["state"] == "failed"


def test_a_disabled_pipeline_is_not_run(client: TestClient, genres: str) -> None:
    client.patch(f"/pipelines/{genres}", json={"enabled": False})
    problem(client.post(f"/pipelines/{genres}/run"), 409, "DISABLED")


@pytest.mark.parametrize(
    ("body", "shrink"), [(None, False), ({}, False), ({"allow_shrink": True}, True), ({"allow_shrink": False}, False)]
)
def test_a_request_may_allow_the_mart_to_shrink(
    client: TestClient, connection: Connection, genres: str, body: dict[str, bool] | None, shrink: bool
) -> None:
    assert client.post(f"/pipelines/{genres}/run", json=body).status_code == 202
    assert claim(connection).options.allow_shrink is shrink


@pytest.mark.parametrize(("mode", "kind"), [("incremental", RequestKind.FULL), ("full", RequestKind.RUN)])
def test_a_request_may_ask_for_a_full_run_which_is_an_ordinary_one_in_mode_full(
    client: TestClient, connection: Connection, genres: str, mode: str, kind: RequestKind
) -> None:
    query = "SELECT id, name, modified FROM content.genre"
    fields = {"mode": mode, "source_query": query, "incremental_key": "modified"}
    changed = client.patch(f"/pipelines/{genres}", json=fields)
    assert changed.status_code == 200, changed.json()
    asked = client.post(f"/pipelines/{genres}/run", json={"mode": "full", "allow_shrink": True})
    assert asked.status_code == 202
    taken = claim(connection)
    assert (taken.kind, taken.options.allow_shrink) == (kind, True)
    queue.end_run(connection, taken, Event.FINISH, RunStatus.SUCCESS)
    ended = client.get(f"/requests/{asked.json()['request_id']}").json()
    assert (ended["state"], ended["run"]["kind"]) == ("succeeded", "full")


def test_what_continues_a_request_does_not_change_its_kind(client: TestClient, genres: str) -> None:
    problem(client.post(f"/pipelines/{genres}/resume", json={"mode": "full"}), 422, "INVALID")


@pytest.mark.parametrize("body", [{"allow_shrink": "perhaps"}, {"force": True}, {"mode": "incremental"}, [], 1])
def test_a_run_request_accepts_no_other_options(client: TestClient, genres: str, body: Any) -> None:
    problem(client.post(f"/pipelines/{genres}/run", json=body), 422, "INVALID")
    assert client.get(f"/pipelines/{genres}/status").json()["status"] == "IDLE"


# Status, state, history


def test_the_status_shows_lease_and_progress(client: TestClient, connection: Connection, genres: str) -> None:
    idle = client.get(f"/pipelines/{genres}/status").json()
    assert (idle["status"], idle["progress"], idle["last_run"]) == ("IDLE", None, None)
    request_id = client.post(f"/pipelines/{genres}/run").json()["request_id"]
    taken = claim(connection)
    running = client.get(f"/pipelines/{genres}/status").json()
    nothing = {"rows_read": 0, "rows_expected": None, "percent": None, "rows_per_second": None, "seconds_left": None}
    assert running["progress"] == nothing
    assert (running["lease_owner"], running["attempt"], running["request_id"]) == ("worker-1", 1, request_id)
    assert running["lease_expires_at"]
    history.describe_run(connection, taken, lane="copy", rows=200)
    for read, percent in ((50, 25.0), (400, 100.0)):
        connection.execute("UPDATE etl.etl_runs SET rows_read = %s", [read])
        progress = client.get(f"/pipelines/{genres}/status").json()["progress"]
        assert (progress["rows_read"], progress["rows_expected"], progress["percent"]) == (read, 200, percent)
        assert progress["rows_per_second"] > 0
        assert progress["seconds_left"] >= 0
    queue.end_run(connection, taken, Event.FINISH, RunStatus.SUCCESS)
    done = client.get(f"/pipelines/{genres}/status").json()
    assert (done["status"], done["progress"], done["lease_owner"]) == ("IDLE", None, None)
    assert done["last_run"]["status"] == "SUCCESS"
    assert done["last_run"]["seconds"] >= 0


def test_the_state_is_empty_before_the_first_run(
    client: TestClient, connection: Connection, database_url: str, genres: str
) -> None:
    blank = client.get(f"/pipelines/{genres}/state").json()
    assert (blank["cursor"], blank["last_processed_value"], blank["generation"]) == (None, None, 0)
    taken = run_until_claimed(connection, genres)
    with Link(database_url, name="tests") as store:
        checkpoint = StoreCheckpoint(taken, store)
        checkpoint.open("id uuid")
        checkpoint.open_generation("f", None)
    begun = client.get(f"/pipelines/{genres}/state").json()
    assert (begun["generation"], begun["generation_open"]) == (1, True)


def test_runs_are_listed_newest_first_page_by_page(client: TestClient, connection: Connection, genres: str) -> None:
    assert client.get(f"/pipelines/{genres}/runs").json() == {"items": [], "next": None}
    for _ in range(5):
        queue.end_run(connection, run_until_claimed(connection, genres), Event.FINISH, RunStatus.SUCCESS)
    first = client.get(f"/pipelines/{genres}/runs", params={"limit": 3}).json()
    second = client.get(f"/pipelines/{genres}/runs", params={"limit": 3, "before": first["next"]}).json()
    ids = [run["id"] for run in first["items"] + second["items"]]
    assert ids == sorted(ids, reverse=True)
    assert len(ids) == 5
    assert second["next"] is None


# Invalid requests

ROUTES = [
    ("GET", "/pipelines/{}"),
    ("PATCH", "/pipelines/{}"),
    ("DELETE", "/pipelines/{}"),
    ("POST", "/pipelines/{}/run"),
    ("POST", "/pipelines/{}/resume"),
    ("POST", "/pipelines/{}/pause"),
    ("GET", "/pipelines/{}/status"),
    ("GET", "/pipelines/{}/state"),
    ("GET", "/pipelines/{}/runs"),
]
UNKNOWN = [
    "unknown",
    str(uuid4()),
    str(2**70),
    "-1",
    "NaN",
    "top_genres%00",
    "top_genres%0A",
    "%ED%A0%80",
    "'%20OR%201=1",
    "..%2e",
    "a" * 5000,
]


@pytest.mark.promise("H9")
@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_an_unknown_pipeline_is_not_found(client: TestClient, genres: str, method: str, path: str) -> None:
    body = {"batch_size": 1} if method == "PATCH" else None
    for key in UNKNOWN:
        for prefix in ("", "/api/v1"):
            answer = client.request(method, prefix + path.format(key), json=body)
            assert len(problem(answer, 404, "NOT_FOUND")["detail"]) < 200
    assert client.get(f"/pipelines/{genres}").status_code == 200


@pytest.mark.promise("H9")
def test_an_unknown_request_is_not_found(client: TestClient) -> None:
    problem(client.get(f"/requests/{uuid4()}"), 404, "NOT_FOUND")
    for wrong in ("x", str(2**70), "%00"):
        problem(client.get(f"/requests/{wrong}"), 422, "INVALID")


@pytest.mark.promise("H21")
@pytest.mark.parametrize(
    ("path", "params"),
    [
        (path, {"limit": limit})
        for path in ("/pipelines", "/pipelines/top_genres/runs")
        for limit in ("0", "-1", "201", "1000000000", str(2**70), "NaN", "many", "")
    ]
    + [("/pipelines", {"after": after}) for after in ("\0", "x" * 64, "a b", "\n")]
    + [("/pipelines/top_genres/runs", {"before": before}) for before in ("0", "-5", str(2**70), "x", "\0")],
)
def test_page_sizes_are_limited(client: TestClient, genres: str, path: str, params: dict[str, str]) -> None:
    assert genres in path or path == "/pipelines"
    body = problem(client.get(path, params=params), 422, "INVALID")
    assert [error["field"] for error in body["errors"]] == list(params)


@pytest.mark.promise("H6", "H9")
@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b"", 422, "INVALID"),
        (b"{", 400, "BAD_JSON"),
        (b"name: top_genres", 400, "BAD_JSON"),
        (b"\xff\xfe{}", 400, "BAD_JSON"),
        (b"\x1f\x8b\x08\x00", 400, "BAD_JSON"),
        (b"null", 422, "INVALID"),
        (b"[]", 422, "INVALID"),
        (b'"text"', 422, "INVALID"),
        (b'{"batch_size": NaN}', 422, "INVALID"),
        (b'{"options": {"max_delete_ratio": Infinity}}', 422, "INVALID"),
        (b'{"batch_size": 1e999}', 422, "INVALID"),
        (b'{"batch_size": ' + b"9" * 5000 + b"}", 422, "INVALID"),
        (b'{"description": "a\\u0000b"}', 422, "INVALID"),
        (b'{"description": "\\ud800"}', 422, "INVALID"),
        (b'{"\\ud800": 1}', 422, "INVALID"),
        (b'{"tasks": [{"order_index": 1, "task_type": "SQL", "options": {"\\u0000": 1}}]}', 422, "INVALID"),
        (b'{"tasks": [{"order_index": 1, "task_type": "SQL", "options": {"a": -1e999}}]}', 422, "INVALID"),
        (b'{"a":' * 33 + b"1" + b"}" * 33, 422, "INVALID"),
        (b"[" * 100_000 + b"]" * 100_000, 422, "INVALID"),
        (b"[" * 100_000, 422, "INVALID"),
        (b'{"description": "' + b"x" * 256 * 1024 + b'"}', 413, "BODY_TOO_LARGE"),
        (json.dumps({f"field_{number}": 1 for number in range(10_000)}).encode(), 422, "INVALID"),
    ],
    ids=lambda value: repr(value)[:40] if isinstance(value, bytes) else None,
)
@pytest.mark.parametrize(("method", "path"), [("POST", "/pipelines"), ("PATCH", "/pipelines/top_genres")])
def test_a_body_that_is_not_a_definition_is_refused_with_the_reason(
    client: TestClient, genres: str, method: str, path: str, content: bytes, status: int, code: str
) -> None:
    answer = client.request(method, path, content=content, headers={"Content-Type": "application/json"})
    problem(answer, status, code)
    assert len(answer.content) < 10_000
    assert client.get(f"/pipelines/{genres}").json()["config_version"] == 1


@pytest.mark.promise("H6")
def test_a_body_without_a_content_length_is_counted_while_it_is_received(client: TestClient) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(64):
            sent += 16 * 1024
            yield b" " * 16 * 1024

    headers = {"Content-Type": "application/json"}
    problem(client.post("/pipelines", content=endless(), headers=headers), 413, "BODY_TOO_LARGE")


@pytest.mark.promise("H6")
def test_a_compressed_body_is_not_decompressed(client: TestClient) -> None:
    bomb = gzip.compress(json.dumps(GENRES).encode() + b" " * 50_000_000)
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    problem(client.post("/pipelines", content=bomb, headers=headers), 400, "BAD_JSON")
    assert client.get("/pipelines").json()["items"] == []


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", None])
def test_only_json_is_accepted(client: TestClient, media_type: str | None) -> None:
    headers = {"Content-Type": media_type} if media_type else None
    answer = client.post("/pipelines", content=json.dumps(GENRES).encode(), headers=headers)
    assert "Content-Type: application/json" in problem(answer, 415, "NOT_JSON")["detail"]
    assert client.get("/pipelines").json()["items"] == []


def test_unknown_paths_and_methods_are_answered_with_a_problem(client: TestClient, genres: str) -> None:
    for path in ("/nothing", "/api/v1", "/api/v2/pipelines", f"/pipelines/{genres}/nothing", "/%00"):
        problem(client.get(path), 404, "NO_ROUTE")
    for method, path in (
        ("PUT", f"/pipelines/{genres}"),
        ("GET", f"/pipelines/{genres}/run"),
        ("DELETE", "/pipelines"),
    ):
        answer = client.request(method, path)
        problem(answer, 405, "METHOD_NOT_ALLOWED")
        assert answer.headers["allow"]


@pytest.mark.promise("H13")
def test_other_origins_get_no_permission(client: TestClient) -> None:
    headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    for answer in (client.get("/pipelines", headers=headers), client.options("/pipelines", headers=headers)):
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_an_unexpected_error_is_reported_without_internals(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("S3CR3T")

    monkeypatch.setattr("vitrine.operations.definitions.list_pipelines", broken)
    with caplog.at_level(logging.ERROR, "vitrine.api.app"):
        answer = client.get("/pipelines")
    problem(answer, 500, "UNEXPECTED")
    assert "S3CR3T" not in answer.text
    assert "request failed" in caplog.text


# Health


def test_health_requires_a_database_and_a_runner(client: TestClient, connection: Connection) -> None:
    for path in ("/health", "/api/v1/health"):
        alone = client.get(path)
        assert alone.status_code == 503
        assert alone.json()["database"] == "ok"
        assert "vitrine runner" in alone.json()["detail"]
    history.register_runner(connection, "worker-1")
    well = client.get("/health")
    assert (well.status_code, well.json()) == (200, {"status": "ok", "database": "ok", "runners": 1, "detail": None})
    connection.execute("UPDATE etl.etl_runners SET seen_at = now() - interval '16 seconds'")
    assert client.get("/health").status_code == 503


def test_the_api_starts_without_its_database_and_reports_it(
    settings: Settings, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "WAIT_SECONDS", 0.2)
    monkeypatch.setattr(monitoring, "WAIT_SECONDS", 0.2)
    nowhere = {"database_url": f"postgresql://vitrine:S3CR3T@/none?host={tmp_path}"}
    unavailable = Settings.model_validate(settings.model_dump() | nowhere)
    assert unavailable != settings
    with TestClient(create_app(unavailable), raise_server_exceptions=False) as client:
        answer = client.get("/health")
        assert answer.status_code == 503
        assert answer.json()["database"] == "down"
        assert "S3CR3T" not in answer.text
        assert client.get("/health/live").json() == {"status": "ok"}
        assert client.get("/docs").status_code == 200
        for method, path in (("GET", "/pipelines"), ("POST", "/pipelines/x/run")):
            refused = client.request(method, path)
            problem(refused, 503, "DATABASE_BUSY")
            assert int(refused.headers["retry-after"]) > 0
            assert "S3CR3T" not in refused.text


@pytest.mark.promise("B11")
def test_lost_connections_are_replaced(client: TestClient, connection: Connection) -> None:
    assert client.get("/pipelines").status_code == 200
    ended = connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'vitrine:api' AND datname = current_database()"
    ).fetchall()
    assert ended
    assert client.get("/pipelines").status_code == 200


def test_a_store_that_was_not_migrated_is_not_an_error_of_the_request(
    client: TestClient, connection: Connection
) -> None:
    connection.execute("ALTER TABLE etl.etl_pipelines RENAME TO moved")
    connection.execute("ALTER TABLE etl.etl_runners RENAME TO moved_too")
    assert "vitrine migrate" in problem(client.get("/pipelines"), 503, "NOT_MIGRATED")["detail"]
    assert "vitrine migrate" in client.get("/health").json()["detail"]


# Documentation


def operations(schema: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def example_of(schema: dict[str, Any], content: dict[str, Any]) -> Any:
    """The example of a body: its own, or that of its model; None if there is neither."""
    if "example" in content:
        return content["example"]
    if content.get("examples"):
        return next(iter(content["examples"].values()))["value"]
    model = content.get("schema", {})
    for candidate in (model, *model.get("anyOf", ())):
        name = candidate.get("$ref", "").rpartition("/")[2]
        resolved = schema["components"]["schemas"][name] if name else candidate
        if resolved.get("examples"):
            return resolved["examples"][0]
    return None


def test_every_route_is_documented_with_examples(client: TestClient) -> None:
    schema = client.get("/openapi.json").json()
    assert schema["info"]["title"] == "Vitrine"
    for method, path, operation in operations(schema):
        where = f"{method} {path}"
        assert operation["summary"], where
        assert operation["description"], where
        assert path.startswith("/api/v1/"), where
        for status, answer in operation["responses"].items():
            for media_type, content in answer.get("content", {}).items():
                assert example_of(schema, content) is not None, f"{where} {status}"
                if status >= "400" and "health" not in path:
                    assert media_type == "application/problem+json", f"{where} {status}"
        for content in operation.get("requestBody", {}).get("content", {}).values():
            assert example_of(schema, content) is not None, where
        assert "HTTPValidationError" not in json.dumps(operation), where


@pytest.mark.parametrize(("prefix", "slash"), [("/api/v1", ""), ("", "/")])
def test_every_route_answers_with_and_without_the_prefix_and_a_slash_at_the_end(
    client: TestClient, prefix: str, slash: str
) -> None:
    for method, path, _ in operations(client.get("/openapi.json").json()):
        short = path.removeprefix("/api/v1").replace("{id}", "unknown").replace("{request_id}", str(uuid4()))
        address = f"{prefix}{short.replace('{run_id}', '1')}{slash}"
        body: Any = {} if method in {"post", "patch", "put"} else None
        answer = client.request(method, address, json=body, follow_redirects=False)
        assert answer.status_code not in {307, 308}, address
        assert answer.json().get("code") not in {"NO_ROUTE", "METHOD_NOT_ALLOWED"}, address


@pytest.mark.parametrize("prefix", ["/api/v1", ""])
@pytest.mark.parametrize("slash", ["", "/"])
def test_a_refused_method_names_every_method_of_the_address(client: TestClient, prefix: str, slash: str) -> None:
    schema = client.get("/openapi.json").json()
    for path, methods in schema["paths"].items():
        address = f"{prefix}{path.removeprefix('/api/v1')}{slash}"
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"} - {one.upper() for one in methods}:
            answer = client.request(method, address)
            problem(answer, 405, "METHOD_NOT_ALLOWED")
            assert answer.headers["allow"] == ", ".join(sorted(one.upper() for one in methods)), address


def examples_of_bodies(schema: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    for method, path, operation in operations(schema):
        for content in operation.get("requestBody", {}).get("content", {}).values():
            for example in content.get("examples", {}).values():
                yield method, path, example["value"]


def test_examples_in_the_documentation_are_accepted(
    client: TestClient, settings: Settings, connection: Connection
) -> None:
    headers: dict[str, str] = {}
    for method, path, body in examples_of_bodies(client.get("/openapi.json").json()):
        address = path.replace("{id}", "film_dim" if path.endswith("/state") else "top_genres")
        if body == {"action": "rewind", "value": "2025-01-01 00:00:00+00"}:
            connection.execute("""INSERT INTO etl.etl_state (pipeline_id, cursor, cursor_fingerprint)
                SELECT id, '{2025-06-01 00:00:00+00}', 'modified timestamp with time zone, id uuid'
                  FROM etl.etl_pipelines WHERE name = 'film_dim'""")
        answer = client.request(method, address, json=body, headers=headers)
        assert answer.is_success, f"{method} {address}: {answer.text}"
        if path.endswith("/tokens"):  # from now on, every request needs one
            headers = bearer(issue(settings, connection, Role.ADMIN))
    assert {pipeline.name for pipeline in pipelines.list_all(connection)} == {"film_dim", "top_genres"}


def test_the_root_redirects_to_the_documentation_page(client: TestClient) -> None:
    assert client.get("/", follow_redirects=False).headers["location"] == "/docs"
    answer = client.get("/docs")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "<b>evil" not in client.get("/docs", headers={"Host": "<b>evil"}).text
    problem(client.get("/docs/docs.py"), 404, "NO_ROUTE")


def test_the_bearer_token_is_documented_as_optional_and_is_ignored(client: TestClient, genres: str) -> None:
    schema = client.get("/openapi.json").json()
    ((name, scheme),) = schema["components"]["securitySchemes"].items()
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    assert "needs none" in scheme["description"]
    assert schema["security"] == [{}, {name: []}]
    without, with_token = (
        client.get(f"/pipelines/{genres}", headers=headers) for headers in ({}, {"Authorization": "Bearer nothing"})
    )
    assert (without.status_code, with_token.status_code) == (200, 200)
    assert without.json() == with_token.json()


def test_a_browser_represents_every_default_of_a_parameter_exactly(client: TestClient) -> None:
    for method, path, operation in operations(client.get("/openapi.json").json()):
        for parameter in operation.get("parameters", []):
            default = parameter["schema"].get("default")
            assert not isinstance(default, int) or abs(default) < 2**53, f"{method} {path} {parameter['name']}"


def test_a_burst_of_requests_is_answered_with_few_connections(client: TestClient, genres: str) -> None:
    with ThreadPoolExecutor(100) as threads:
        answers = list(threads.map(client.get, [f"/pipelines/{genres}/status"] * 200))
    assert {answer.status_code for answer in answers} == {200}


# The process


def test_a_port_in_use_is_reported_before_anything_starts(settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use .*VITRINE_API_PORT=") as refusal:
            server.serve(settings.model_copy(update={"api_port": port}))
    assert refusal.value.code == "PORT_TAKEN"


@pytest.mark.promise("H20")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_without_tokens_only_loopback_is_served(settings: Settings, host: str) -> None:
    with pytest.raises(ConfigError, match="no access tokens yet") as refusal:
        server.serve(settings.model_copy(update={"api_host": host}))
    assert refusal.value.code == "NOT_LOOPBACK"


PROGRAM = """
from vitrine.api.server import serve
from vitrine.settings import load
serve(load(), ready=lambda: print("ready", flush=True))
print("stopped", flush=True)
"""


@pytest.mark.promise("H6")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_process_serves_requests_until_it_receives_a_signal(
    database_url: str, number: signal.Signals, tmp_path: Any
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "VITRINE_DATABASE_URL": database_url,
        "VITRINE_API_PORT": str(port),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=environment, cwd=tmp_path, text=True, stdout=-1, stderr=-1
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        with socket.create_connection(("127.0.0.1", port), timeout=30) as plain:
            plain.sendall(b"GET /pipelines HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert b'{"items":[],"invalid":[],"next":null}' in b"".join(iter(lambda: plain.recv(65536), b""))
        # an endless body, in chunks without a length, is refused at the limit
        with socket.create_connection(("127.0.0.1", port), timeout=30) as chunked:
            chunked.sendall(b"POST /pipelines HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(17):
                chunked.sendall(b"4000\r\n" + b" " * 0x4000 + b"\r\n")
            assert chunked.recv(65536).startswith(b"HTTP/1.1 413 ")
        process.send_signal(number)
        assert process.stdout.read() == "stopped\n"
        assert process.wait(timeout=30) == 0
        assert process.stderr.read() == ""


@pytest.mark.promise("H13")
def test_a_page_of_another_site_changes_nothing(client: TestClient) -> None:
    client.post("/pipelines", json=GENRES)
    refused = client.post("/pipelines/top_genres/run", headers={"Origin": "http://evil.example"})
    assert (refused.status_code, refused.json()["code"]) == (403, "OTHER_ORIGIN")
    allowed = client.post("/pipelines/top_genres/run", headers={"Origin": "http://testserver"})
    assert allowed.status_code == 202
