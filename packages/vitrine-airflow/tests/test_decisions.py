"""What tasks make of answers: log lines, results, sentences."""

import logging
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from scripted_api import Reply, scripted
from vitrine_airflow import results, stopping, waiting
from vitrine_airflow.answers import Request, Status
from vitrine_airflow.client import Client
from vitrine_airflow.endpoint import Endpoint
from vitrine_airflow.errors import Failed, Refused
from vitrine_airflow.freshness import Freshness

RUN: dict[str, Any] = {
    "id": 42,
    "kind": "full",
    "attempt": 1,
    "seconds": 1.5,
    "rows_read": 10,
    "rows_written": 9,
    "rows_deleted": 0,
    "rows_rejected": 1,
    "rows_repeated": 0,
    "batches": 1,
    "error_code": None,
    "error_message": None,
    "result": None,
}
REQUEST: dict[str, Any] = {"request_id": "r1", "pipeline": "films", "state": "succeeded", "run": RUN}
STATUS: dict[str, Any] = {
    "pipeline": "films",
    "status": "RUN_REQUESTED",
    "request_id": "r1",
    "fresh_as_of": None,
    "freshness_covers": "everything",
    "waiting": "no runner is alive; start one with `vitrine runner`",
}


def with_run(state: str = "succeeded", **fields: Any) -> Request:
    return Request.of(REQUEST | {"state": state, "run": RUN | fields})


def test_waiting_logs_the_reason_once_and_ends_with_the_request(caplog: pytest.LogCaptureFixture) -> None:
    pending = [Reply(200, REQUEST | {"state": "pending", "run": None}), Reply(200, STATUS)]
    with scripted(*pending, *pending, Reply(200, REQUEST)) as script, caplog.at_level(logging.INFO):
        ended = waiting.wait_for_end(Client(Endpoint(f"http://127.0.0.1:{script.port}")), "r1")
    assert ended.state == "succeeded"
    lines = [record.getMessage() for record in caplog.records if record.name == waiting.log.name]
    assert lines == [f"request r1 of pipeline 'films' is pending: {STATUS['waiting']}"]
    waits = [path for _, path, _ in script.asked if "/requests/" in path]
    assert waits == [f"/api/v1/requests/r1?wait={seconds}s" for seconds in (5, 30, 30)]


def test_only_the_request_of_the_task_is_paused() -> None:
    with scripted(Reply(200, STATUS), Reply(202, {"status": "PAUSE_REQUESTED"}), Reply(200, STATUS)) as script:
        api = Client(Endpoint(f"http://127.0.0.1:{script.port}"))
        stopping.pause(api, "films", "r1")
        stopping.pause(api, "films", "another")
    assert [method for method, _, _ in script.asked] == ["GET", "POST", "GET"]


def test_a_failure_has_the_sentence_of_the_pipeline() -> None:
    assert results.counts(with_run())["rows_written"] == 9
    failed = with_run("failed", error_code="DATA_ERROR", error_message="column 'n' of step 1: division by zero")
    sentence = "pipeline 'films' failed with DATA_ERROR in run 42: column 'n' of step 1: division by zero"
    with pytest.raises(Failed, match=f"^{re.escape(sentence)}$"):
        results.counts(failed)
    with pytest.raises(Failed, match="`vitrine status films` shows why"):
        results.counts(replace(failed, run=None))


def compared(source: int, target: int, *, equal: bool = False) -> Request:
    sides = {"source": {"rows": source, "lowest": "secret"}, "target": {"rows": target, "lowest": "value"}}
    return with_run(result={"equal": equal, "sentence": "lowest secret ≠ value", **sides})


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (compared(10, 9), "10 rows in the source, 9 in the mart"),
        (compared(10, 10), "10 rows on both sides, but other values"),
        (with_run(), "has no result"),
    ],
)
def test_a_difference_is_shown_in_counts_without_values(request_: Request, sentence: str) -> None:
    with pytest.raises(Failed) as caught:
        results.comparison(request_)
    assert sentence in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_mart_that_equals_its_source_has_the_rows_of_both() -> None:
    found = results.comparison(compared(10, 10, equal=True))
    assert (found["source_rows"], found["target_rows"]) == (10, 10)


def test_a_mart_is_fresh_by_its_age_or_by_what_it_contains() -> None:
    never = Status.of(STATUS)
    old = replace(never, fresh_as_of=datetime.now(UTC) - timedelta(minutes=10))
    assert not Freshness.read(3600, None).is_met(never)
    assert Freshness.read(3600, None).is_met(old)
    assert not Freshness.read(60, None).is_met(old)
    assert Freshness.read(None, "2026-01-01 00:00:00+00:00").is_met(old)
    assert Freshness.read(None, "2026-01-01").is_met(old)
    assert not Freshness.read(None, "2999-01-01T00:00:00Z").is_met(old)


def test_a_time_that_is_none_is_refused() -> None:
    with pytest.raises(Refused, match=r"as_of is 'None'; give a time such as \{\{ data_interval_end \}\}"):
        Freshness.read(None, "None")
