"""Alert rules and dashboard on a real Prometheus."""

import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helpers import tools
from tests.helpers.monitoring import INFRA, Prometheus, answering, create_films, panel_queries, prometheus, rules
from tests.helpers.processes import QUICK, environment, free_port, runner, started
from tests.helpers.scraping import parse
from tests.helpers.waiting import wait_until
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import pipelines, queue

RULE_TESTS = Path(__file__).parents[1] / "prometheus" / "alerts_test.yml"


def promtool(*arguments: str | Path) -> None:
    found = subprocess.run([tools.find("promtool"), *arguments], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def test_promtool_accepts_the_rules_and_the_example_of_a_configuration() -> None:
    promtool("check", "rules", INFRA / "prometheus" / "alerts.yml")
    promtool("check", "config", INFRA / "prometheus" / "prometheus.yml")


def test_every_alert_fires_and_recovers_in_a_unit_test_of_promtool() -> None:
    promtool("test", "rules", RULE_TESTS)


def test_every_alert_has_a_unit_test_that_expects_silence_then_the_alert_then_silence() -> None:
    tests: list[dict[str, Any]] = yaml.safe_load(RULE_TESTS.read_text("utf-8"))["tests"]
    expected = {one["name"]: [bool(step["exp_samples"]) for step in one["promql_expr_test"]] for one in tests}
    assert expected == {rule["alert"]: [False, True, False] for rule in rules()}
    for one in tests:
        selected = f'ALERTS{{alertname="{one["name"]}", alertstate="firing"}}'
        assert {step["expr"] for step in one["promql_expr_test"]} == {selected}


@pytest.fixture
def watched(database_url: str, settings: Settings, connection: Connection, tmp_path: Path):
    """A Prometheus that scrapes a real API and a real runner, after one run, while another runner holds a pipeline."""
    held = create_films(connection, settings, name="held", target_table="analytics.held")
    assert queue.claim_next(connection, runner="tests", ttl=timedelta(hours=1), only=held.id) is not None
    create_films(connection, settings)
    cron = create_films(connection, settings, name="cron", target_table="analytics.cron", schedule_interval="0 6 * * *")
    pipelines.request_pause(connection, cron.id)
    connection.execute("UPDATE etl.etl_pipelines SET created_at = now() - interval '3 days' WHERE name = 'cron'")
    api, own = free_port(), free_port()
    env = environment(database_url, **QUICK, VITRINE_API_PORT=str(api))
    with started(["api"], tmp_path, env), runner(database_url, tmp_path, VITRINE_METRICS_PORT=str(own)):
        ended = "vitrine_runs_total", {"pipeline": "films", "outcome": "success"}
        wait_until(lambda: parse(answering(own, "/metrics")).value(ended[0], **ended[1]), what="a run that is counted")
        answering(api, "/metrics")
        with prometheus(tmp_path, api, own) as server:
            yield server


def test_every_query_of_the_dashboard_has_a_result_and_every_rule_is_evaluated(watched: Prometheus) -> None:
    def has_samples() -> bool:
        counts = [
            watched.query(f"count_over_time({name}[1m]) >= 3") for name in ("vitrine_store_up", "vitrine_runner_ready")
        ]
        return all(counts)

    wait_until(has_samples, 40, "samples of API and runner")
    for query in panel_queries():
        assert watched.query(query.replace("$__rate_interval", "1m").replace("$pipeline", ".*")), query
    selector = {"match[]": "vitrine_pipeline_failed"}
    assert set(watched.ask("label/pipeline/values", **selector)) == {"cron", "films", "held"}

    def evaluated() -> list[dict[str, Any]] | None:
        (group,) = watched.ask("rules")["groups"]
        return None if any(rule["health"] == "unknown" for rule in group["rules"]) else group["rules"]

    found = wait_until(evaluated, what="an evaluation of every rule")
    assert [rule["name"] for rule in found] == [rule["alert"] for rule in rules()]
    assert {(rule["health"], rule.get("lastError", "")) for rule in found} == {("ok", "")}
    stale = {sample["metric"]["pipeline"]: sample["value"][1] for sample in watched.query("vitrine_mart_stale")}
    assert stale == {"cron": "1", "films": "0", "held": "0"}
