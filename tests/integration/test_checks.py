"""The routes for checks: validate, preview, compare, rejects, and requests for a backfill or a reconcile."""

import time
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from fastapi.testclient import TestClient

from tests.helpers.events import create_filled
from tests.helpers.running import create, run, succeed
from tests.helpers.tasks import register
from vitrine.api.app import create_app
from vitrine.core.status import RequestKind, RunOptions
from vitrine.definition.registry import Kind, Task
from vitrine.operations import context
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import history, pipelines

EVENTS: dict[str, Any] = {
    "name": "under_test",
    "source_query": "SELECT id, note, modified FROM ugc.events",
    "target_table": "analytics.events",
    "mode": "incremental",
    "incremental_key": "modified",
    "key_columns": ["id"],
}


@pytest.fixture
def events(connection: Connection, settings: Settings) -> str:
    pipeline = create_filled(connection, settings, "incremental", 50)
    succeed(connection, settings, pipeline)
    return pipeline.name


# -- validate -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_stored_pipeline_is_validated(client: TestClient, events: str, method: str) -> None:
    answer = client.request(method, f"/api/v1/pipelines/{events}/validate")
    assert answer.status_code == 200
    report = answer.json()
    assert (report["ready"], report["lane"], report["key"], report["target_exists"]) == (True, "copy", ["id"], True)
    assert report["columns"][0] == {"name": "id", "type": "integer"}
    assert "DELETES" in [finding["code"] for finding in report["findings"]]


def test_a_definition_is_validated_and_not_stored(client: TestClient, connection: Connection, events: str) -> None:
    query = "SELECT e.id, e.note, g.name, e.modified FROM ugc.events e JOIN content.genre g ON g.name = e.note"
    body = EVENTS | {"name": "new", "source_query": query, "target_table": "analytics.new", "schedule_interval": "1h"}
    report = client.post("/validate", json=body).json()
    (finding,) = [one for one in report["findings"] if one["place"] is not None]
    assert finding["place"]["line"] == 1
    assert finding["place"]["column"] > 1
    assert report["first_due_at"] is not None
    assert [one.name for one in pipelines.list_all(connection)] == [events]


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ({"source_query": "SELECT id, nothing, modified\nFROM ugc.events"}, None, "line 1, column 12"),
        ({"source_query": "DELETE FROM ugc.events"}, None, "is not a SELECT"),
        ({"target_table": "public.events"}, "TARGET_NOT_ALLOWED", "public.events"),
    ],
)
def test_a_definition_that_cannot_run_is_a_problem_with_the_reason(
    client: TestClient, events: str, change: dict[str, str], code: str | None, text: str
) -> None:
    answer = client.post("/validate", json=EVENTS | change)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    problem = answer.json()
    assert code in (None, problem["code"])
    assert text in problem["detail"]


# -- preview --------------------------------------------------------------------------------------------------------


def test_the_first_rows_are_shown_and_nothing_is_written(
    client: TestClient, connection: Connection, settings: Settings
) -> None:
    pipeline = create_filled(connection, settings, "full", 50)
    answer = client.get(f"/pipelines/{pipeline.name}/preview?limit=2").json()
    assert [column["name"] for column in answer["columns"]] == ["id", "note", "modified"]
    assert answer["rows"] == [[1, "1", "2024-01-01 00:00:01+00"], [2, "2", "2024-01-01 00:00:02+00"]]
    assert (answer["rows_read"], answer["cut"]) == (2, "rows")
    everything = client.get(f"/pipelines/{pipeline.name}/preview?limit=100").json()
    assert (len(everything["rows"]), everything["cut"]) == (50, None)
    assert connection.execute("SELECT to_regclass('analytics.events') AS there").fetchone() == {"there": None}


def test_values_are_returned_without_loss(client: TestClient, connection: Connection) -> None:
    query = """SELECT 1 AS id, 9007199254740993::bigint AS big, 0.10000000000000000001::numeric AS exact,
                      'a' || chr(9) || chr(10) || chr(92) || 'b' AS odd, true AS yes, NULL::text AS nothing,
                      'infinity'::timestamptz AS never, '{"a": 1.10}'::jsonb AS document, 'NaN'::float8 AS nan,
                      ARRAY[1, NULL] AS list FROM content.genre LIMIT 1"""
    body = {"name": "odd", "source_query": query, "target_table": "analytics.odd", "key_columns": ["id"]}
    answer = client.post("/preview", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["rows"] == [
        [
            1,
            "9007199254740993",
            "0.10000000000000000001",
            "a\t\n\\b",
            True,
            None,
            "infinity",
            '{"a": 1.10}',
            "NaN",
            "{1,NULL}",
        ]
    ]


def test_rows_are_shown_after_the_transforms_even_if_these_drop_most_rows(
    client: TestClient, connection: Connection, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def last_ones(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row | {"double": row["id"] * 2} for row in rows if row["id"] > 190]

    register(monkeypatch, Task("last_ones", Kind.ROW, last_ones, None))
    pipeline = create_filled(connection, settings, "full", 200, python_task="last_ones")
    answer = client.get(f"/pipelines/{pipeline.name}/preview?limit=3").json()
    assert [row[0] for row in answer["rows"]] == [191, 192, 193]
    assert answer["columns"][-1]["name"] == "double"
    assert answer["cut"] == "rows"


def test_a_preview_is_bounded_in_size(client: TestClient, connection: Connection, settings: Settings) -> None:
    pipeline = create_filled(connection, settings, "full", 20)
    connection.execute("UPDATE ugc.events SET note = repeat('x', 200_000)")
    answer = client.get(f"/pipelines/{pipeline.name}/preview?limit=20").json()
    assert (len(answer["rows"]), answer["cut"]) == (5, "size")


def test_a_failing_transform_is_a_problem_without_values(
    client: TestClient, connection: Connection, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row | {"n": int(row["note"])} for row in rows]

    register(monkeypatch, Task("broken", Kind.ROW, broken, None))
    pipeline = create_filled(connection, settings, "full", 3, python_task="broken")
    connection.execute("UPDATE ugc.events SET note = 'S3CR3T'")
    answer = client.get(f"/pipelines/{pipeline.name}/preview")
    assert (answer.status_code, answer.json()["code"]) == (422, "TRANSFORM_ERROR")
    assert "S3CR3T" not in answer.text


@pytest.mark.parametrize("limit", ["0", "101", "x"])
def test_the_number_of_rows_is_limited(client: TestClient, events: str, limit: str) -> None:
    assert client.get(f"/pipelines/{events}/preview?limit={limit}").status_code == 422


# -- compare --------------------------------------------------------------------------------------------------------


def test_a_mart_is_compared_at_once(client: TestClient, connection: Connection, events: str) -> None:
    equal = client.get(f"/pipelines/{events}/reconcile").json()
    assert (equal["equal"], equal["columns"], equal["source"]["rows"]) == (True, ["modified"], 50)
    connection.execute("DELETE FROM ugc.events WHERE id = 1")
    different = client.get(f"/pipelines/{events}/reconcile").json()
    assert (different["equal"], different["source"]["rows"], different["target"]["rows"]) == (False, 49, 50)
    assert "rows 49 ≠ 50" in different["sentence"]
    assert len(history.list_runs(connection, pipelines.get(connection, events).id)) == 1


def test_a_comparison_that_takes_too_long_is_ended(
    connection: Connection, settings: Settings, events: str, database_url: str
) -> None:
    hurried = settings.model_copy(update={"check_timeout": timedelta(milliseconds=300)})
    with (
        TestClient(create_app(hurried), raise_server_exceptions=False) as client,
        psycopg.connect(database_url) as blocker,
    ):
        blocker.execute("LOCK TABLE ugc.events IN ACCESS EXCLUSIVE MODE")
        started = time.monotonic()
        answer = client.get(f"/pipelines/{events}/reconcile")
        assert time.monotonic() - started < 10
        assert (answer.status_code, answer.json()["code"]) == (504, "CHECK_TIMEOUT")


def test_more_checks_than_allowed_are_refused_and_not_queued(
    client: TestClient, events: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "WAIT_SECONDS", 0.05)
    with ExitStack() as taken:
        for _ in range(context.CHECKS_AT_ONCE):
            taken.enter_context(context.check_slot())
        answer = client.get(f"/pipelines/{events}/preview")
        assert (answer.status_code, answer.json()["code"]) == (429, "TOO_MANY_CHECKS")
    assert client.get(f"/pipelines/{events}/preview").status_code == 200


def test_a_mart_that_was_never_built_is_a_problem(
    client: TestClient, connection: Connection, settings: Settings
) -> None:
    pipeline = create_filled(connection, settings, "full", 3)
    answer = client.get(f"/pipelines/{pipeline.name}/reconcile")
    assert (answer.status_code, answer.json()["code"]) == (422, "TARGET_MISSING")


def test_a_comparison_is_requested_as_a_run_and_its_result_is_in_the_request(
    client: TestClient, connection: Connection, settings: Settings, events: str
) -> None:
    asked = client.post(f"/pipelines/{events}/reconcile")
    assert (asked.status_code, asked.json()["status"]) == (202, "RUN_REQUESTED")
    pending = client.get(f"/requests/{asked.json()['request_id']}").json()
    assert (pending["state"], pending["promised_at"]) == ("pending", None)
    run(connection, settings, pipelines.get(connection, events), kind=RequestKind.RECONCILE)
    done = client.get(f"/requests/{asked.json()['request_id']}").json()
    assert (done["state"], done["run"]["kind"], done["run"]["result"]["equal"]) == ("succeeded", "reconcile", True)


@pytest.mark.promise("R3", "R5")
def test_a_deep_reconcile_and_a_repair_are_requested_and_their_reports_are_kept(
    client: TestClient, connection: Connection, settings: Settings, events: str
) -> None:
    connection.execute("DELETE FROM analytics.events WHERE id = 7")
    connection.execute("UPDATE analytics.events SET note = 'x' WHERE id = 8")
    for body in ({"deep": True}, {"repair": True}):
        asked = client.post(f"/pipelines/{events}/reconcile", json=body)
        assert asked.status_code == 202, asked.text
        options = RunOptions(deep=True, repair="repair" in body)
        run(connection, settings, pipelines.get(connection, events), kind=RequestKind.RECONCILE, options=options)
        assert client.get(f"/requests/{asked.json()['request_id']}").json()["state"] == "succeeded"
    page = client.get(f"/pipelines/{events}/reconciliations?limit=1").json()
    repaired, before = page["items"][0], page["next"]
    assert (repaired["verdict"], repaired["report"]["repaired"]["missing"]["keys"]) == ("equal", ["7"])
    (found,) = client.get(f"/pipelines/{events}/reconciliations?before={before}").json()["items"]
    assert (found["verdict"], found["report"]["missing"]) == ("different", {"count": 1, "keys": ["7"]})
    assert found["report"]["different"]["columns"] == {"8": ["note"]}
    for path in ("", "/status"):
        shown = client.get(f"/pipelines/{events}{path}").json()
        assert (shown["verdict"], shown["verified_until"]) == ("equal", repaired["verified_until"])
    assert 'vitrine_mart_differs{pipeline="under_test"} 0.0' in client.get("/metrics").text
    operations = connection.execute(
        "SELECT after FROM etl.etl_audit WHERE operation = 'pipelines.reconcile'"
    ).fetchall()
    assert [row["after"].get("repair") for row in operations] == [None, True]


@pytest.mark.parametrize("body", [{"deep": "yes"}, {"allow_shrink": True}, {"depth": 3}])
def test_a_wrong_request_for_a_reconcile_is_refused(client: TestClient, events: str, body: dict[str, Any]) -> None:
    assert client.post(f"/pipelines/{events}/reconcile", json=body).status_code == 422


# -- rejects --------------------------------------------------------------------------------------------------------


@pytest.fixture
def rejected(connection: Connection, settings: Settings) -> str:
    connection.execute("CREATE TABLE analytics.short (id integer PRIMARY KEY, note varchar(2))")
    pipeline = create(
        connection,
        settings,
        source_query="SELECT * FROM (VALUES (1, 'S3CR3T1'), (2, 'ok'), (3, 'S3CR3T3'), (4, 'S3CR3T4')) AS v(id, note)",
        target_table="analytics.short",
        key_columns=["id"],
        options={"on_reject": "quarantine"},
    )
    succeed(connection, settings, pipeline)
    return pipeline.name


def test_rejects_are_listed_in_pages_without_their_rows(client: TestClient, rejected: str) -> None:
    first = client.get(f"/pipelines/{rejected}/rejects?limit=2").json()
    second = client.get(f"/pipelines/{rejected}/rejects?limit=2&after={first['next']}").json()
    items = first["items"] + second["items"]
    assert [one["key"] for one in items] == ["1", "3", "4"]
    assert second["next"] is None
    assert {(one["column"], one["row"] is None) for one in items} == {("note", True)}
    assert all(one["reason"] and one["code"] and one["run_id"] for one in items)
    assert "S3CR3T" not in str(items)


def test_the_rows_of_rejects_are_returned_only_on_request(client: TestClient, rejected: str) -> None:
    items = client.get(f"/pipelines/{rejected}/rejects?rows=true").json()["items"]
    assert items[0]["row"] == {"id": 1, "note": "S3CR3T1"}


@pytest.mark.promise("R6")
def test_a_replay_of_rejects_is_requested(
    client: TestClient, connection: Connection, settings: Settings, rejected: str
) -> None:
    connection.execute("ALTER TABLE analytics.short ALTER note TYPE text")
    asked = client.post(f"/pipelines/{rejected}/rejects/replay")
    assert (asked.status_code, asked.json()["status"]) == (202, "RUN_REQUESTED")
    run(connection, settings, pipelines.get(connection, rejected), kind=RequestKind.REPLAY)
    done = client.get(f"/requests/{asked.json()['request_id']}").json()
    assert (done["state"], done["run"]["result"]) == ("succeeded", {"replayed": 3, "closed": 3, "open": 0})
    assert client.get(f"/pipelines/{rejected}/rejects").json()["items"] == []


# -- requests -------------------------------------------------------------------------------------------------------


def test_a_backfill_is_requested_with_its_range(client: TestClient, connection: Connection, events: str) -> None:
    wanted = {"backfill": {"from": "2024-01-01T03:00:10+03:00", "to": "2024-01-01T00:00:20Z"}}
    asked = client.post(f"/pipelines/{events}/run", json=wanted)
    assert asked.status_code == 202, asked.text
    request = pipelines.get(connection, events).request
    assert request is not None
    assert (request.kind, request.options.backfill_from, request.options.backfill_to) == (
        RequestKind.BACKFILL,
        "2024-01-01 00:00:10+00",
        "2024-01-01 00:00:20+00",
    )
    # the same range in other words is the same request; another one follows it, and a third is refused
    same = {"backfill": {"from": "2024-01-01T00:00:10Z", "to": "2024-01-01T00:00:20Z"}}
    assert client.post(f"/pipelines/{events}/run", json=same).json() == asked.json()
    assert client.post(f"/pipelines/{events}/reconcile").status_code == 202
    third = client.post(f"/pipelines/{events}/run")
    assert (third.status_code, third.json()["code"]) == (409, "REQUEST_CONFLICT")
    assert "a backfill from 2024-01-01 00:00:10+00" in third.json()["detail"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"backfill": {"from": "x", "to": "2024-01-02"}}, "BACKFILL"),
        ({"backfill": {"from": 1, "to": 2}}, "BACKFILL"),
        ({"backfill": {"from": "2024-01-02", "to": "2024-01-01"}}, "BACKFILL"),
        ({"backfill": {"from": "2024-01-01"}}, "INVALID"),
        ({"backfill": {"from": None, "to": None}}, "INVALID"),
        ({"backfill": {"from": "2024-01-01", "to": "2024-01-02", "step": 1}}, "INVALID"),
        ({"backfill": {"from": "2024-01-01", "to": "2024-01-02"}, "mode": "full"}, "INVALID"),
        ({"backfill": {"from": "2024-01-01", "to": "2024-01-02"}, "allow_shrink": True}, "INVALID"),
        ({"backfill": {"from": True, "to": "2024-01-02"}}, "INVALID"),
    ],
)
def test_a_wrong_backfill_is_refused_and_nothing_is_requested(
    client: TestClient, connection: Connection, events: str, body: dict[str, Any], code: str
) -> None:
    answer = client.post(f"/pipelines/{events}/run", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text
    assert pipelines.get(connection, events).request is None


def test_a_backfill_of_a_full_pipeline_is_refused(
    client: TestClient, connection: Connection, settings: Settings
) -> None:
    pipeline = create_filled(connection, settings, "full", 3)
    answer = client.post(f"/pipelines/{pipeline.name}/run", json={"backfill": {"from": 1, "to": 2}})
    assert (answer.status_code, answer.json()["code"]) == (422, "BACKFILL")


# -- the log of a run -------------------------------------------------------------------------------------------------


def test_the_log_of_a_run_is_returned(client: TestClient, connection: Connection, events: str) -> None:
    (newest, *_) = history.list_runs(connection, pipelines.get(connection, events).id)
    log = client.get(f"/pipelines/{events}/runs/{newest.id}/log")
    assert log.status_code == 200
    assert (log.json()["run_id"], log.json()["pipeline"], log.json()["dropped"]) == (newest.id, events, 0)


def test_the_log_of_another_pipelines_run_is_not_found(
    client: TestClient, connection: Connection, settings: Settings, events: str
) -> None:
    (newest, *_) = history.list_runs(connection, pipelines.get(connection, events).id)
    create(
        connection,
        settings,
        name="other",
        source_query="SELECT id, name FROM content.genre",
        target_table="analytics.other",
        key_columns=["id"],
    )
    assert client.get(f"/pipelines/other/runs/{newest.id}/log").status_code == 404
    assert client.get(f"/pipelines/{events}/runs/9999/log").status_code == 404
    assert client.get(f"/pipelines/{events}/runs/x/log").status_code == 404


@pytest.mark.parametrize("route", ["validate", "preview", "reconcile", "rejects", "runs/1/log"])
def test_an_unknown_pipeline_is_not_found(client: TestClient, route: str) -> None:
    answer = client.get(f"/pipelines/no_such/{route}")
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")
