"""Traces through the API and the command line: keys of any text, roles, limits, hostile values."""

import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.helpers.processes import environment, vitrine
from tests.helpers.running import create, succeed
from tests.helpers.tracing import resend
from vitrine.definition.pipeline import Pipeline
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import pipelines

HOSTILE = "\x1b]0;owned\x07\u202eevil\r\n"
ODD_KEY = "a/b c?d&key=e%2F#ü"


@pytest.fixture
def pairs(connection: Connection, settings: Settings) -> Pipeline:
    connection.execute("CREATE TABLE ugc.pairs (a integer, b text, note text, PRIMARY KEY (a, b))")
    connection.execute("INSERT INTO ugc.pairs VALUES (1, %s, %s), (2, 'x', NULL)", [ODD_KEY, HOSTILE])
    pipeline = create(
        connection,
        settings,
        name="pairs",
        source_query="SELECT a, b, note FROM ugc.pairs",
        target_table="analytics.pairs",
        key_columns=["a", "b"],
    )
    succeed(connection, settings, pipeline)
    return pipeline


def test_a_key_of_several_columns_is_a_repeated_parameter(client: TestClient, pairs: Pipeline) -> None:
    answer = client.get("/pipelines/pairs/trace", params={"key": ["1", ODD_KEY]})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert (body["standing"], body["key"], body["source"][0]["note"]) == ("equal", ["1", ODD_KEY], HOSTILE)
    assert client.get("/pipelines/pairs/trace?key=2&key=x").json()["target_rows"] == [
        {"a": "2", "b": "x", "note": None}
    ]


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("", 422, "INVALID"),
        ("?key=1", 422, "KEY_WIDTH"),
        ("?key=x&key=y", 422, "KEY_VALUE"),
        ("?key=1&key=%00", 422, "INVALID"),
        (f"?key=1&key={'x' * 4001}", 422, "INVALID"),
        ("?key=1" + "&key=1" * 40, 422, "INVALID"),
    ],
)
def test_a_wrong_key_is_a_problem(client: TestClient, pairs: Pipeline, query: str, status: int, code: str) -> None:
    answer = client.get(f"/pipelines/pairs/trace{query}")
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.promise("R10")
def test_a_resend_is_requested_recorded_and_its_result_is_in_the_request(
    client: TestClient, connection: Connection, settings: Settings, pairs: Pipeline
) -> None:
    connection.execute("DELETE FROM analytics.pairs WHERE a = 2")
    asked = client.post("/pipelines/pairs/trace/resend", json={"key": ["2", "x"]})
    assert (asked.status_code, asked.json()["status"]) == (202, "RUN_REQUESTED")
    # another key is another request, and follows
    other = client.post("/pipelines/pairs/trace/resend", json={"key": ["1", ODD_KEY]})
    assert other.json()["request_id"] != asked.json()["request_id"]
    assert resend(connection, settings, pairs, "2", "x").error is None
    done = client.get(f"/requests/{asked.json()['request_id']}").json()
    assert (done["state"], done["run"]["kind"]) == ("succeeded", "resend")
    assert done["run"]["result"]["standing"] == "equal"
    row = connection.execute("SELECT after FROM etl.etl_audit WHERE operation = 'pipelines.resend'").fetchone()
    assert row is not None
    assert row["after"]["key"] == '["2", "x"]'


@pytest.mark.parametrize(
    "body", [{}, {"key": []}, {"key": "2"}, {"key": ["2"], "delete": "yes"}, {"key": ["2"], "more": 1}]
)
def test_a_wrong_request_for_a_resend_is_refused(client: TestClient, pairs: Pipeline, body: dict[str, object]) -> None:
    assert client.post("/pipelines/pairs/trace/resend", json=body).status_code == 422


def test_the_command_shows_hostile_text_without_its_effect_and_ends_with_2_if_it_differs(
    connection: Connection, database_url: str, tmp_path: Path, pairs: Pipeline
) -> None:
    env = environment(database_url)
    equal = vitrine("trace", "pairs", "1", ODD_KEY, folder=tmp_path, env=env)
    assert (equal.returncode, equal.stderr) == (0, "")
    assert "\x1b" not in equal.stdout
    assert "\u202e" not in equal.stdout
    assert "\\x1b]0;owned\\x07" in equal.stdout
    connection.execute("UPDATE analytics.pairs SET note = %s WHERE a = 2", [HOSTILE])
    different = vitrine("trace", "pairs", "2", "x", "--json", folder=tmp_path, env=env)
    assert (different.returncode, "\x1b" in different.stdout) == (2, False)
    assert json.loads(different.stdout)["standing"] == "waiting"
    sent = vitrine("trace", "pairs", "2", "x", "--resend", folder=tmp_path, env=env)
    assert (sent.returncode, sent.stdout.startswith("pairs: 1 row(s) sent again, 0 deleted\n")) == (0, True), sent
    assert "NULL" in sent.stdout
    assert pipelines.get(connection, pairs.id).status == "IDLE"
    wrong = vitrine("trace", "pairs", "2", "x", "--delete", folder=tmp_path, env=env)
    assert (wrong.returncode, "--delete needs --resend" in wrong.stderr) == (2, True)
    missing = vitrine("trace", "pairs", "2", folder=tmp_path, env=env)
    assert (missing.returncode, "give one value for each" in missing.stderr) == (1, True)
