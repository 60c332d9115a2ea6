"""The audit log: every change leaves its row in its own transaction, and no row changes afterwards."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from fastapi.testclient import TestClient

from tests.helpers.access import bearer, context, issue
from tests.helpers.forked import forked
from tests.helpers.waiting import wait_until
from vitrine.api.app import create_app
from vitrine.core.status import Status
from vitrine.definition.model import Definition
from vitrine.errors import ConfigError
from vitrine.operations import access, control, definitions, history
from vitrine.operations.bodies.access import NewToken
from vitrine.operations.bodies.runs import StateChange
from vitrine.operations.context import Caller, Context, Role
from vitrine.postgres import Connection, connect
from vitrine.settings import Settings
from vitrine.store import pipelines
from vitrine.store.access import AuditFilters

GENRES: dict[str, Any] = {
    "name": "top_genres",
    "source_query": "SELECT id, name FROM content.genre",
    "target_table": "analytics.top_genres",
    "key_columns": ["id"],
}
DEFINITION = Definition.model_validate(GENRES)


@pytest.fixture
def operator(settings: Settings, connection: Connection) -> Context:
    return context(settings, connection)


def rows(connection: Connection) -> list[dict[str, Any]]:
    return connection.execute("SELECT * FROM etl.etl_audit ORDER BY id").fetchall()


CHANGES: dict[str, Callable[[Context], object]] = {
    "pipelines.create": lambda one: definitions.create(one, DEFINITION, validate=False),
    "pipelines.change": lambda one: definitions.change(one, "top_genres", {"batch_size": 7}),
    "pipelines.pause": lambda one: control.pause(one, "top_genres"),
    "pipelines.run": lambda one: control.run(one, "top_genres"),
    "pipelines.resume": lambda one: control.resume(one, "top_genres"),
    "pipelines.reload": lambda one: control.reload(one, "top_genres"),
    "state.reset": lambda one: history.change_state(one, "top_genres", StateChange(action="reset")),
    "tokens.create": lambda one: access.create_token(one, NewToken(name="ci", role=Role.VIEWER)),
    "tokens.revoke": lambda one: access.revoke_token(one, "ci"),
    "pipelines.delete": lambda one: definitions.delete(one, "top_genres"),
}


def test_every_change_is_recorded_with_who_and_what(operator: Context, connection: Connection) -> None:
    for change in CHANGES.values():
        change(operator)
    recorded = rows(connection)
    assert [row["operation"] for row in recorded] == list(CHANGES)
    assert {(row["actor"], row["role"], row["via"], row["address"]) for row in recorded} == {
        ("test-admin", "admin", "cli", None)
    }
    by_operation = {row["operation"]: row for row in recorded}
    created, changed = by_operation["pipelines.create"], by_operation["pipelines.change"]
    assert (created["before"], created["after"]["source_query"]) == (None, GENRES["source_query"])
    assert (changed["before"], changed["after"]) == ({"batch_size": None}, {"batch_size": 7})
    paused, run = by_operation["pipelines.pause"], by_operation["pipelines.run"]
    assert (paused["before"], paused["after"]) == ({"status": "IDLE"}, {"status": "PAUSED"})
    assert (run["before"]["status"], run["after"]["status"]) == ("PAUSED", "RUN_REQUESTED")
    assert run["after"]["request_id"]
    deleted = by_operation["pipelines.delete"]
    assert (deleted["pipeline"], deleted["before"]["name"], deleted["after"]) == ("top_genres", "top_genres", None)
    assert by_operation["tokens.create"]["after"].keys() == {"name", "role", "prefix", "expires_at"}


def test_what_changes_nothing_leaves_no_row(operator: Context, connection: Connection) -> None:
    definitions.create(operator, DEFINITION, validate=False)
    definitions.change(operator, "top_genres", {"description": ""})
    with pytest.raises(Exception, match="already a pipeline"):
        definitions.create(operator, DEFINITION, validate=False)
    with pytest.raises(Exception, match="no token"):
        access.revoke_token(operator, "nothing")
    definitions.get(operator, "top_genres")
    assert [row["operation"] for row in rows(connection)] == ["pipelines.create"]


def test_a_pipeline_that_the_settings_no_longer_allow_can_still_be_disabled(
    settings: Settings, connection: Connection
) -> None:
    pipelines.create(connection, DEFINITION)
    elsewhere = context(settings.model_copy(update={"allowed_targets": ("reports.*",)}), connection)
    with pytest.raises(ConfigError, match="outside the allowed targets"):
        definitions.change(elsewhere, "top_genres", {"enabled": False, "batch_size": 7})
    assert definitions.set_enabled(elsewhere, "top_genres", False).enabled is False
    with pytest.raises(ConfigError, match="outside the allowed targets"):
        definitions.set_enabled(elsewhere, "top_genres", True)
    assert [row["after"] for row in rows(connection)] == [{"enabled": False}]


@pytest.mark.promise("D17")
@pytest.mark.parametrize("action", ["kill", "raise"])
def test_a_crash_between_a_change_and_its_row_leaves_neither(
    settings: Settings, connection: Connection, action: str
) -> None:
    pipelines.create(connection, DEFINITION)

    def pause() -> str:
        with connect(settings.store_url, name="tests:child") as own:
            return control.pause(context(settings, own), "top_genres").status

    with forked(pause, f"before_audit={action}") as child:
        assert child.ended() != 0
    assert pipelines.get(connection, "top_genres").status is Status.IDLE
    assert rows(connection) == []
    with forked(pause) as child:
        assert child.answer() == "PAUSED"
    assert pipelines.get(connection, "top_genres").status is Status.PAUSED
    assert [row["operation"] for row in rows(connection)] == ["pipelines.pause"]


@pytest.mark.promise("D17")
def test_a_change_that_cannot_be_recorded_is_not_made(operator: Context, connection: Connection) -> None:
    pipelines.create(connection, DEFINITION)
    connection.execute("ALTER TABLE etl.etl_audit RENAME TO gone")
    for change in (CHANGES["pipelines.pause"], CHANGES["pipelines.run"], CHANGES["pipelines.delete"]):
        with pytest.raises(Exception, match="vitrine migrate"):
            change(operator)
    assert pipelines.get(connection, "top_genres").status is Status.IDLE


@pytest.mark.promise("H17")
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE etl.etl_audit SET actor = 'x'",
        "DELETE FROM etl.etl_audit",
        "DELETE FROM etl.etl_audit WHERE false",
        "TRUNCATE etl.etl_audit",
        "TRUNCATE etl.etl_pipelines, etl.etl_audit CASCADE",
        "MERGE INTO etl.etl_audit a USING (SELECT 1) AS s ON true WHEN MATCHED THEN DELETE",
        "INSERT INTO etl.etl_audit OVERRIDING SYSTEM VALUE SELECT * FROM etl.etl_audit"
        " ON CONFLICT (id) DO UPDATE SET actor = 'x'",
    ],
)
@pytest.mark.parametrize("replica", [False, True])
def test_no_row_of_the_audit_log_is_changed_or_deleted(
    operator: Context, connection: Connection, statement: str, replica: bool
) -> None:
    CHANGES["pipelines.create"](operator)
    before = rows(connection)
    if replica:
        connection.execute("SET session_replication_role = replica")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="append-only"):
        connection.execute(statement.encode())
    assert rows(connection) == before


# Over the API


@pytest.fixture
def client(settings: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(settings), client=("127.0.0.9", 50000)) as client:
        yield client


def test_a_request_is_recorded_with_its_token_and_its_address(
    client: TestClient, settings: Settings, connection: Connection
) -> None:
    client.post("/pipelines?validate=false", json=GENRES)
    (row,) = rows(connection)
    assert (row["actor"], row["role"], row["via"], row["address"]) == ("anonymous", "admin", "api", "127.0.0.9")
    token = issue(settings, connection, Role.OPERATOR, "airflow")
    wait_until(lambda: client.get("/whoami", headers=bearer(token)).json()["name"] == "airflow", what="the token")
    assert client.post("/pipelines/top_genres/run", headers=bearer(token)).status_code == 202
    row = rows(connection)[-1]
    assert (row["actor"], row["role"], row["operation"]) == ("airflow", "operator", "pipelines.run")
    assert token not in json.dumps(rows(connection), default=str)


def test_the_log_is_read_page_by_page_and_filtered(client: TestClient, operator: Context) -> None:
    for change in CHANGES.values():
        change(operator)
    admin = bearer(issue(operator.settings, next_connection(operator), Role.ADMIN, "root"))
    wait_until(lambda: client.get("/audit", headers=admin).status_code == 200, what="the token")
    found: list[dict[str, Any]] = []
    params: dict[str, Any] = {"limit": 3}
    while True:
        page = client.get("/audit", params=params, headers=admin).json()
        found += page["items"]
        if page["next"] is None:
            break
        params["before"] = page["next"]
    assert [one["operation"] for one in found] == ["tokens.create", *reversed(CHANGES)]

    def asked(**filters: str) -> list[str]:
        answer = client.get("/audit", params=filters, headers=admin)
        assert answer.status_code == 200, answer.text
        return [one["operation"] for one in answer.json()["items"]]

    assert asked(pipeline="top_genres", operation="pipelines.run") == ["pipelines.run"]
    assert len(asked(actor="test-admin")) == len(found)
    assert asked(actor="nobody") == []
    assert asked(since=(datetime.now(UTC) + timedelta(days=1)).isoformat()) == []
    assert len(asked(since="2020-01-01T00:00:00Z")) == len(found)
    for edge in ("0001-01-01T00:00:00+23:59", "0001-01-01", "0"):
        assert len(asked(since=edge)) == len(found)
    assert asked(since="9999-12-31T23:59:59-23:59") == []
    for wrong in ({"before": "0"}, {"before": str(2**70)}, {"since": "soon"}, {"limit": "0"}, {"actor": "x" * 300}):
        assert client.get("/audit", params=wrong, headers=admin).status_code == 422
    assert client.get("/audit", params={"actor": "\0"}, headers=admin).status_code == 422


def next_connection(operator: Context) -> Connection:
    with operator.connection() as connection:
        return connection


def test_the_whole_log_is_exported(operator: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "EXPORT_PAGE", 2)
    for change in CHANGES.values():
        change(operator)
    assert [one.operation for one in access.export_audit_log(operator)] == list(reversed(CHANGES))
    assert [one.operation for one in access.export_audit_log(operator, AuditFilters(operation="pipelines.run"))] == [
        "pipelines.run"
    ]


def test_only_an_administrator_reads_the_log(settings: Settings, connection: Connection) -> None:
    for role in (Role.VIEWER, Role.OPERATOR):
        limited = Context(settings, Caller("console", "x", role), context(settings, connection).connection)
        with pytest.raises(Exception, match="needs the role admin"):
            access.list_audit_log(limited)
