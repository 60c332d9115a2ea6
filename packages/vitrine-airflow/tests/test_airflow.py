"""The provider in a real Airflow, against a real API and runner."""

import os
import signal

import pytest

from airflow_processes import Airflow
from tests.helpers.waiting import wait_until
from vitrine_service import FILMS, Vitrine

BROKEN = "SELECT id, 1 / (rating - rating)::int AS n FROM content.film_work"
both_ways = pytest.mark.parametrize("suffix", ["", "_deferred"])


def test_the_example_waits_runs_and_compares(airflow: Airflow, vitrine: Vitrine) -> None:
    vitrine.run("film_dim_full")
    run = airflow.trigger("vitrine_marts")
    for task in ("refresh_ratings", "compare_ratings", "films_are_fresh"):
        run.wait_for("success", task=task)
    refreshed, compared = run.value("refresh_ratings"), run.value("compare_ratings")
    assert refreshed["rows_read"] == compared["source_rows"] == compared["target_rows"] > 0


@both_ways
def test_a_run_returns_its_counts(airflow: Airflow, vitrine: Vitrine, suffix: str) -> None:
    name = vitrine.create(f"counted{suffix}")
    run = airflow.trigger(f"run{suffix}", pipeline=name)
    run.wait_for("success")
    (made,) = vitrine.runs(name)
    assert run.value()["run_id"] == made["id"]
    assert run.value()["request_id"] == made["request_id"]
    assert run.value()["rows_written"] == FILMS


@both_ways
def test_a_failed_pipeline_fails_the_task_with_its_sentence(airflow: Airflow, vitrine: Vitrine, suffix: str) -> None:
    name = vitrine.create(f"broken{suffix}", BROKEN)
    run = airflow.trigger(f"run{suffix}", pipeline=name)
    run.wait_for("failed")
    (made,) = vitrine.runs(name)
    assert made["error_message"]
    assert f"pipeline '{name}' failed with {made['error_code']}" in run.log()


def test_a_killed_task_leaves_the_run_alone_and_its_retry_waits_for_it(airflow: Airflow, vitrine: Vitrine) -> None:
    name = vitrine.create_slow("killed")
    run = airflow.trigger("retry", pipeline=name)
    vitrine.wait_for(name, "RUNNING")
    os.kill(wait_until(run.pid), signal.SIGKILL)
    wait_until(lambda: "of an earlier try is running" in run.log(), timeout=60)
    vitrine.hurry(name)
    run.wait_for("success")
    assert [made["status"] for made in vitrine.runs(name)] == ["SUCCESS"]


@both_ways
def test_a_task_that_a_user_ends_leaves_the_run_alone(airflow: Airflow, vitrine: Vitrine, suffix: str) -> None:
    name = vitrine.create_slow(f"ended{suffix}")
    run = airflow.trigger(f"run{suffix}", pipeline=name)
    vitrine.wait_for(name, "RUNNING")
    run.wait_until_waiting()
    run.mark_failed()
    vitrine.hurry(name)
    vitrine.wait_for(name, "IDLE")
    assert [made["status"] for made in vitrine.runs(name)] == ["SUCCESS"]
    assert run.state() == "failed"


@both_ways
def test_cancel_on_kill_pauses_when_a_user_ends_the_task(airflow: Airflow, vitrine: Vitrine, suffix: str) -> None:
    name = vitrine.create_slow(f"cancelled{suffix}")
    run = airflow.trigger(f"cancel{suffix}", pipeline=name)
    vitrine.wait_for(name, "RUNNING")
    run.wait_until_waiting()
    run.mark_failed()
    vitrine.wait_for(name, "PAUSED")


def test_a_restart_of_the_triggerer_pauses_nothing(airflow: Airflow, vitrine: Vitrine) -> None:
    name = vitrine.create_slow("restarted")
    run = airflow.trigger("cancel_deferred", pipeline=name)
    vitrine.wait_for(name, "RUNNING")
    run.wait_until_waiting()
    airflow.restart("triggerer")
    vitrine.hurry(name)
    run.wait_for("success")
    assert [made["status"] for made in vitrine.runs(name)] == ["SUCCESS"]


@both_ways
def test_a_second_trigger_waits_for_its_own_request(airflow: Airflow, vitrine: Vitrine, suffix: str) -> None:
    name = vitrine.create_slow(f"twice{suffix}")
    first = airflow.trigger(f"run{suffix}", pipeline=name)
    vitrine.wait_for(name, "RUNNING")
    second = airflow.trigger(f"run{suffix}", pipeline=name)
    second.wait_until_waiting()
    vitrine.hurry(name)
    first.wait_for("success")
    second.wait_for("success")
    made = [run["request_id"] for run in vitrine.runs(name)]
    assert [first.value()["request_id"], second.value()["request_id"]] == made
    assert len(set(made)) == 2


@both_ways
def test_the_sensor_waits_until_the_mart_is_fresh(airflow: Airflow, vitrine: Vitrine, suffix: str) -> None:
    name = vitrine.create(f"fresh{suffix}")
    run = airflow.trigger(f"fresh{suffix}", pipeline=name)
    run.wait_for("deferred" if suffix else "running")
    wait_until(lambda: "has never been loaded" in run.log(), timeout=60)
    vitrine.run(name)
    run.wait_for("success")


@both_ways
def test_reconcile_fails_with_the_counts(airflow: Airflow, vitrine: Vitrine, suffix: str) -> None:
    name = vitrine.create(f"compared{suffix}")
    vitrine.run(name)
    vitrine.execute(f"DELETE FROM analytics.{name} WHERE id = (SELECT id FROM analytics.{name} LIMIT 1)")
    run = airflow.trigger(f"reconcile{suffix}", pipeline=name)
    run.wait_for("failed")
    assert f"differs from its source: {FILMS} rows in the source, {FILMS - 1} in the mart" in run.log()


def test_a_backfill_and_a_full_run_are_requested_as_such(airflow: Airflow, vitrine: Vitrine) -> None:
    query = "SELECT id, title, modified FROM content.film_work"
    name = vitrine.create("ranges", query, mode="incremental", incremental_key="modified")
    vitrine.run(name)
    backfill, full = airflow.trigger("backfill", pipeline=name), None
    backfill.wait_for("success")
    full = airflow.trigger("run", pipeline=name, mode="full")
    full.wait_for("success")
    assert (backfill.value()["kind"], backfill.value()["rows_read"]) == ("backfill", FILMS)
    assert (full.value()["kind"], full.value()["rows_read"]) == ("full", FILMS)


@pytest.mark.parametrize(
    ("conf", "sentence"),
    [
        ({"pipeline": "unknown"}, "there is no pipeline 'unknown'"),
        ({"pipeline": "x", "connection": "wrong_token"}, "does not accept the access token"),
        ({"pipeline": "x", "connection": "wrong_port"}, "cannot be reached"),
        ({"pipeline": "x", "connection": "unknown"}, "isn't defined"),
    ],
    ids=["pipeline", "token", "address", "connection"],
)
def test_what_cannot_be_requested_fails_with_a_sentence(airflow: Airflow, conf: dict[str, str], sentence: str) -> None:
    run = airflow.trigger("run", **conf)
    run.wait_for("failed")
    assert sentence in run.log()
