"""Changes of the state by an operator: reset, and rewind of the checkpoint."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.helpers.pipelines import create
from tests.helpers.ratings import create_ratings, is_right
from tests.helpers.running import run, succeed
from vitrine.definition.pipeline import Pipeline
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import pipelines, queue


@pytest.fixture
def ratings(connection: Connection, settings: Settings) -> Pipeline:
    pipeline = create_ratings(connection, settings)
    succeed(connection, settings, pipeline)
    return pipeline


def change(client: TestClient, pipeline: Pipeline, headers: dict[str, str] | None = None, **body: Any) -> Any:
    return client.post(f"/pipelines/{pipeline.name}/state", json=body, headers=headers)


def refusal(answer: Any) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["code"]


def give(connection: Connection, pipeline: Pipeline, value: str, type_name: str) -> None:
    """A checkpoint of another type."""
    connection.execute(
        "UPDATE etl.etl_state SET cursor = %s, cursor_fingerprint = %s WHERE pipeline_id = %s",
        ([value, "1"], f"modified {type_name}, id uuid", pipeline.id),
    )


def test_after_a_rewind_the_rows_from_there_on_are_read_again_and_equal_ones_are_not_written(
    client: TestClient, connection: Connection, settings: Settings, ratings: Pipeline
) -> None:
    before = client.get(f"/pipelines/{ratings.name}/state").json()
    half = connection.execute(
        "SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY modified)::text AS at FROM ugc.ratings"
    ).fetchone()
    assert half is not None
    answer = change(client, ratings, action="rewind", value=half["at"])
    assert answer.status_code == 200, answer.text
    state = answer.json()
    assert (state["last_processed_id"], state["batch_seq"]) == (None, before["batch_seq"] + 1)
    assert answer.headers["etag"] == f'"{state["batch_seq"]}"'
    expected = connection.execute(
        "SELECT count(*) AS n FROM ugc.ratings WHERE modified >= %s", (half["at"],)
    ).fetchone()
    executed = succeed(connection, settings, ratings)
    assert expected is not None
    assert (executed.counts.read, executed.counts.written) == (expected["n"], 0)
    assert is_right(connection)


def test_a_rewind_repairs_rows_that_were_changed_in_the_mart_and_deletes_none(
    client: TestClient, connection: Connection, settings: Settings, ratings: Pipeline
) -> None:
    connection.execute("UPDATE analytics.ratings SET rating = 0")
    connection.execute("DELETE FROM ugc.ratings WHERE id = (SELECT id FROM ugc.ratings LIMIT 1)")
    assert change(client, ratings, action="rewind", value="-infinity").status_code == 200
    executed = succeed(connection, settings, ratings)
    assert executed.counts.written == 899
    left = connection.execute("SELECT count(*) AS n FROM analytics.ratings WHERE rating = 0").fetchone()
    assert left == {"n": 1}


def test_after_a_reset_everything_is_read_again(
    client: TestClient, connection: Connection, settings: Settings, ratings: Pipeline
) -> None:
    state = change(client, ratings, action="reset").json()
    assert (state["cursor"], state["pending_cursor"]) == (None, None)
    assert succeed(connection, settings, ratings).counts.read == 900


def test_the_checkpoint_never_moves_forwards(client: TestClient, connection: Connection, ratings: Pipeline) -> None:
    before = client.get(f"/pipelines/{ratings.name}/state").json()
    for value in ("infinity", "2999-01-01", "now"):
        answer = change(client, ratings, action="rewind", value=value)
        assert refusal(answer) == (422, "CURSOR_VALUE")
        assert before["last_processed_value"] in answer.json()["detail"]
    assert client.get(f"/pipelines/{ratings.name}/state").json() == before
    # the value of the checkpoint itself is read again
    assert change(client, ratings, action="rewind", value=before["last_processed_value"]).status_code == 200


@pytest.mark.parametrize(
    ("type_name", "current", "value", "stored"),
    [
        ("timestamp with time zone", "2025-06-01 00:00:00+00", "2025-01-01T02:00:00+02:00", "2025-01-01 00:00:00+00"),
        ("timestamp(3) with time zone", "2025-06-01 00:00:00+00", "2025-01-01", "2025-01-01 00:00:00+00"),
        ("timestamp without time zone", "2025-06-01 00:00:00", "2025-01-01 10:00", "2025-01-01 10:00:00"),
        ("date", "2025-06-01", "2025-05-31", "2025-05-31"),
        ("bigint", "100", "99", "99"),
        ("bigint", "100", "-5", "-5"),
        ("integer", "100", "0099", "99"),
        ("numeric(10,2)", "100.00", "9.5", "9.5"),
    ],
)
def test_a_value_is_stored_in_the_text_format_of_its_type(
    client: TestClient, connection: Connection, ratings: Pipeline, type_name: str, current: str, value: str, stored: str
) -> None:
    give(connection, ratings, current, type_name)
    answer = change(client, ratings, action="rewind", value=value)
    assert answer.status_code == 200, answer.text
    assert answer.json()["cursor"] == [stored]


@pytest.mark.promise("H9")
@pytest.mark.parametrize(
    ("type_name", "current", "value", "code"),
    [
        ("timestamp with time zone", "2025-06-01 00:00:00+00", "yesterday'; --", "CURSOR_VALUE"),
        ("timestamp with time zone", "2025-06-01 00:00:00+00", "", "CURSOR_VALUE"),
        ("bigint", "100", "1e2", "CURSOR_VALUE"),
        ("bigint", "100", "99999999999999999999999", "CURSOR_VALUE"),
        ("smallint", "100", "100000", "CURSOR_VALUE"),
        # the text of 99 sorts after the text of 100, its number before
        ("bigint", "99", "100", "CURSOR_VALUE"),
        ("numeric", "99.5", "NaN", "CURSOR_VALUE"),
        ("text", "m", "a", "CURSOR_TYPE"),
        ("uuid", "8f2b3c1e-0d5a-4f0e-9a44-5f0c6a523a55", "00000000-0000-0000-0000-000000000000", "CURSOR_TYPE"),
    ],
)
def test_a_value_that_is_not_earlier_or_not_of_the_type_is_refused(
    client: TestClient, connection: Connection, ratings: Pipeline, type_name: str, current: str, value: str, code: str
) -> None:
    give(connection, ratings, current, type_name)
    answer = change(client, ratings, action="rewind", value=value)
    assert refusal(answer) == (422, code)
    assert client.get(f"/pipelines/{ratings.name}/state").json()["cursor"] == [current, "1"]


@pytest.mark.promise("D12")
def test_the_state_of_a_running_pipeline_cannot_be_changed(
    client: TestClient, connection: Connection, settings: Settings, ratings: Pipeline
) -> None:
    pipelines.request_run(connection, ratings.id, trigger="api")
    assert queue.claim_next(connection, runner="worker-1", ttl=settings.lease_ttl) is not None
    before = client.get(f"/pipelines/{ratings.name}/state").json()
    for answer in (
        change(client, ratings, action="reset"),
        change(client, ratings, action="rewind", value="-infinity"),
    ):
        assert refusal(answer) == (409, "RUNNING")
        assert "worker-1" in answer.json()["detail"]
    assert client.get(f"/pipelines/{ratings.name}/state").json() == before


@pytest.mark.promise("D13")
def test_a_state_that_has_moved_since_it_was_read_is_not_changed(
    client: TestClient, connection: Connection, settings: Settings, ratings: Pipeline
) -> None:
    read = client.get(f"/pipelines/{ratings.name}/state")
    run(connection, settings, ratings, full=True)
    headers = {"If-Match": read.headers["etag"]}
    assert refusal(change(client, ratings, headers, action="reset")) == (412, "VERSION_CONFLICT")
    assert client.get(f"/pipelines/{ratings.name}/state").json()["cursor"] is not None
    headers = {"If-Match": client.get(f"/pipelines/{ratings.name}/state").headers["etag"]}
    assert change(client, ratings, headers, action="reset").status_code == 200


def test_without_a_checkpoint_there_is_nothing_to_rewind(client: TestClient, connection: Connection) -> None:
    full = create(connection, "genres")
    assert refusal(change(client, full, action="rewind", value="1")) == (409, "NO_CHECKPOINT")
    assert change(client, full, action="reset").status_code == 200


def test_an_unfinished_load_is_not_rewound(client: TestClient, connection: Connection, ratings: Pipeline) -> None:
    connection.execute("UPDATE etl.etl_state SET generation_open = true")
    assert refusal(change(client, ratings, action="rewind", value="-infinity")) == (409, "LOAD_UNFINISHED")
    assert change(client, ratings, action="reset").json()["generation_open"] is False


@pytest.mark.parametrize("body", [{}, {"action": "rewind"}, {"action": "reset", "value": "1"}, {"action": "forward"}])
def test_an_incomplete_change_of_the_state_is_refused(client: TestClient, ratings: Pipeline, body: Any) -> None:
    assert refusal(change(client, ratings, **body)) == (422, "INVALID")
