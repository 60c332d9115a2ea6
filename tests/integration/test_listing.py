"""Lists of pipelines: filters, pages, freshness against the schedule."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.helpers.pipelines import create
from vitrine.api.app import create_app
from vitrine.postgres import Connection
from vitrine.settings import Settings


def names(client: TestClient, **filters: Any) -> list[str]:
    answer = client.get("/pipelines", params=filters)
    assert answer.status_code == 200, answer.text
    return [item["name"] for item in answer.json()["items"]]


@pytest.fixture
def marts(connection: Connection) -> None:
    create(connection, "alpha", tags=["search", "tier-1"], owner="team-a")
    create(connection, "beta", tags=["search"], target_table="es:beta", enabled=False)
    create(connection, "gamma", owner="team-a")
    create(connection, "delta", target_table="es:delta")
    connection.execute("""UPDATE etl.etl_pipelines SET status = 'FAILED', last_error_code = 'CONFIG',
        last_error_message = 'it failed', last_error_at = now() WHERE name = 'gamma'""")
    connection.execute("""UPDATE etl.etl_pipelines SET postponed = 1, last_error_code = 'TRANSIENT',
        last_error_message = 'it failed', last_error_at = now() WHERE name = 'delta'""")


@pytest.mark.usefixtures("marts")
@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, ["alpha", "beta", "delta", "gamma"]),
        ({"status": "FAILED"}, ["gamma"]),
        ({"status": ["FAILED", "IDLE"]}, ["alpha", "beta", "delta", "gamma"]),
        ({"status": "PAUSED"}, []),
        ({"failed": "true"}, ["delta", "gamma"]),
        ({"failed": "false"}, ["alpha", "beta"]),
        ({"error": "TRANSIENT"}, ["delta"]),
        ({"enabled": "false"}, ["beta"]),
        ({"target": "es:delta"}, ["delta"]),
        ({"target": "es:*"}, ["beta", "delta"]),
        ({"target": "*"}, ["alpha", "beta", "delta", "gamma"]),
        ({"target": "analytics._lpha"}, []),
        ({"tag": "search"}, ["alpha", "beta"]),
        ({"tag": "tier-1"}, ["alpha"]),
        ({"owner": "team-a"}, ["alpha", "gamma"]),
        ({"owner": "team-a", "failed": "true"}, ["gamma"]),
        ({"tag": "search", "enabled": "true", "target": "es:*"}, []),
    ],
)
def test_every_filter_must_hold(client: TestClient, filters: dict[str, Any], found: list[str]) -> None:
    assert names(client, **filters) == found


@pytest.mark.promise("H9", "H21")
@pytest.mark.parametrize(
    "filters",
    [
        {"status": "SLEEPING"},
        {"stauts": "FAILED"},
        {"enabled": "perhaps"},
        {"tag": "No Tag"},
        {"owner": "o" * 201},
        {"owner": "\0"},
        {"target": "t" * 301},
        {"limit": "0"},
        {"limit": "201"},
        {"limit": "1000000000"},
        {"limit": "-1"},
        {"limit": str(2**70)},
        {"limit": "NaN"},
        {"after": "A'; --"},
        {"offset": "-1"},
    ],
)
def test_a_filter_that_cannot_hold_is_refused(client: TestClient, filters: dict[str, Any]) -> None:
    answer = client.get("/pipelines", params=filters)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")


@pytest.mark.promise("H21")
def test_pages_of_a_filtered_list_have_every_pipeline_once_while_others_change(
    client: TestClient, connection: Connection
) -> None:
    for number in range(30):
        create(connection, f"p{number:02}", tags=["odd"] if number % 2 else [])
    seen: list[str] = []
    after = ""
    while True:
        page = client.get("/pipelines", params={"tag": "odd", "limit": 4, "after": after}).json()
        seen += [item["name"] for item in page["items"]]
        if page["next"] is None:
            break
        after = page["next"]
        # a pipeline before the place of the list, and one that is not selected, shift no page
        connection.execute("DELETE FROM etl.etl_pipelines WHERE name = %s", (page["items"][0]["name"],))
        create(connection, f"a{len(seen)}", tags=["odd"])
    assert seen == [f"p{number:02}" for number in range(30) if number % 2]


def test_the_last_page_is_known_without_an_empty_one(client: TestClient, connection: Connection) -> None:
    for number in range(4):
        create(connection, f"p{number}", tags=["all"])
    create(connection, "z", tags=[])
    assert client.get("/pipelines", params={"tag": "all", "limit": 4}).json()["next"] is None
    assert client.get("/pipelines", params={"tag": "all", "limit": 2}).json()["next"] == "p1"


@pytest.mark.parametrize(
    ("schedule", "age", "stale"),
    [
        ("5m", "9 minutes", False),
        ("5m", "11 minutes", True),
        ("1d", "47 hours", False),
        ("1d", "49 hours", True),
        (None, "10 years", False),
        # the second due time after it is midnight of the next day but one, at the latest
        ("0 0 * * *", "10 hours", False),
        ("0 0 * * *", "49 hours", True),
    ],
)
def test_a_mart_is_stale_when_two_periods_of_its_schedule_have_passed(
    client: TestClient, connection: Connection, schedule: str | None, age: str, stale: bool
) -> None:
    create(connection, "mart", schedule_interval=schedule)
    connection.execute("UPDATE etl.etl_pipelines SET fresh_as_of = now() - %s::interval", (age,))
    assert names(client, stale="true") == (["mart"] if stale else [])
    assert names(client, stale="false") == ([] if stale else ["mart"])
    assert client.get("/pipelines/mart").json()["stale"] is stale
    assert client.get("/pipelines/mart/status").json()["stale"] is stale


def test_a_mart_that_was_never_built_is_as_old_as_its_pipeline(client: TestClient, connection: Connection) -> None:
    create(connection, "interval", schedule_interval="5m")
    create(connection, "cron", schedule_interval="*/5 * * * *")
    assert names(client, stale="true") == []
    connection.execute("UPDATE etl.etl_pipelines SET created_at = now() - interval '11 minutes'")
    assert names(client, stale="true") == ["cron", "interval"]


def test_a_disabled_pipeline_is_not_stale(client: TestClient, connection: Connection) -> None:
    create(connection, "interval", schedule_interval="5m")
    create(connection, "cron", schedule_interval="*/5 * * * *")
    connection.execute("UPDATE etl.etl_pipelines SET fresh_as_of = now() - interval '1 day'")
    assert names(client, stale="true") == ["cron", "interval"]
    for name in ("cron", "interval"):
        assert client.post(f"/pipelines/{name}/disable").json()["stale"] is False
    assert names(client, stale="true") == []


def test_cron_lines_follow_the_time_zone_of_the_settings(connection: Connection, settings: Settings) -> None:
    """Two due times at 00:00 in Auckland pass half a day before those in UTC."""
    create(connection, "mart", schedule_interval="0 0 * * *")
    auckland = settings.model_copy(update={"timezone": "Pacific/Auckland"})
    for zone in (settings, auckland):
        midnight = connection.execute(
            "SELECT date_trunc('day', now(), %s) - interval '1 day' - interval '1 minute' AS at", (zone.timezone,)
        ).fetchone()
        assert midnight is not None
        connection.execute("UPDATE etl.etl_pipelines SET fresh_as_of = %s", (midnight["at"],))
        with TestClient(create_app(zone)) as client:
            assert names(client, stale="true") == ["mart"]
        connection.execute("UPDATE etl.etl_pipelines SET fresh_as_of = fresh_as_of + interval '2 minutes'")
        with TestClient(create_app(zone)) as client:
            assert names(client, stale="true") == []


def test_a_list_shows_the_newest_run(client: TestClient, connection: Connection) -> None:
    mart = create(connection, "mart")
    assert client.get("/pipelines").json()["items"][0]["last_run"] is None
    for rows, seconds in ((1, 2), (2, None)):
        connection.execute(
            """INSERT INTO etl.etl_runs (pipeline_id, attempt, trigger, kind, status, started_at, finished_at,
                rows_read, config, runner, lease_token)
                VALUES (%(id)s, 1, 'api', 'full', CASE WHEN %(seconds)s::int IS NULL THEN 'RUNNING' ELSE 'SUCCESS' END,
                        now(), now() + make_interval(secs => %(seconds)s::int), %(rows)s, '{}', 'worker-1', 1)""",
            {"id": mart.id, "rows": rows, "seconds": seconds},
        )
        shown = client.get("/pipelines").json()["items"][0]["last_run"]
        assert (shown["rows_read"], shown["seconds"]) == (rows, seconds)


def test_a_row_that_was_written_without_validation_does_not_hide_the_others(
    client: TestClient, connection: Connection
) -> None:
    create(connection, "good")
    create(connection, "worse", schedule_interval="5m")
    connection.execute("UPDATE etl.etl_pipelines SET schedule_interval = 'sometimes' WHERE name = 'worse'")
    page = client.get("/pipelines", params={"stale": "false", "limit": 1}).json()
    assert ([item["name"] for item in page["items"]], page["invalid"], page["next"]) == (["good"], [], "good")
    page = client.get("/pipelines", params={"stale": "false", "after": "good"}).json()
    assert (page["items"], [one["name"] for one in page["invalid"]], page["next"]) == ([], ["worse"], None)
    assert page["invalid"][0]["reason"].startswith("schedule_interval: give an interval of at least a second")
    for path in ("", "/status", "/runs", "/state"):
        refused = client.get(f"/pipelines/worse{path}")
        assert (refused.status_code, refused.json()["code"]) == (409, "DEFINITION_INVALID")
        assert "schedule_interval" in refused.json()["detail"]
    answer = client.post("/runs", json={"status": "IDLE"}).json()
    assert [one["pipeline"] for one in answer["requested"]] == ["good"]
    assert [(one["pipeline"], one["code"]) for one in answer["refused"]] == [("worse", "DEFINITION_INVALID")]
    assert client.delete("/pipelines/worse").status_code == 204
