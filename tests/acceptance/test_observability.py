"""Observability of the processes: metrics, dashboards, readiness, and logs without secrets."""

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
import yaml

from tests.helpers.monitoring import answering, create_films, dashboard, panel_queries, rules
from tests.helpers.processes import QUICK, environment, free_port, runner, started, vitrine
from tests.helpers.scraping import Scraped, parse
from tests.helpers.waiting import wait_until
from vitrine.core.status import RequestKind, RunOptions, Status
from vitrine.definition.pipeline import Pipeline
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import pipelines, queue

ROOT = Path(__file__).parents[2]
PROMETHEUS_ADDS = {"job", "instance", "le"}
METRIC = re.compile(r"\bvitrine_\w+")
SELECTED = re.compile(r"\b(vitrine_\w+)\s*\{([^}]*)\}")
GROUPED = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")


def wait_for(connection: Connection, pipeline: Pipeline, *wanted: Status) -> Status:
    def reached() -> Status | None:
        status = pipelines.get(connection, pipeline.id).status
        return status if status in wanted else None

    return wait_until(reached, what=f"{pipeline.name} {' or '.join(wanted)}")


@pytest.fixture
def exposed(database_url: str, settings: Settings, connection: Connection, tmp_path: Path) -> Iterator[Scraped]:
    """Metrics of a real API and a real runner after one run and its proof, while another runner holds a pipeline."""
    late = {"freshness": "1s"}
    held = create_films(connection, settings, name="held", target_table="analytics.held", options=late)
    assert queue.claim_next(connection, runner="tests", ttl=timedelta(hours=1), only=held.id) is not None
    films = create_films(connection, settings)
    failed = (
        "UPDATE etl.etl_pipelines SET last_error_code = 'TRANSIENT', last_error_message = '', last_error_at = now(),"
        " fresh_as_of = now() - interval '1 hour'"
    )
    connection.execute(f"{failed} WHERE name = 'held'".encode())
    api, own = free_port(), free_port()
    env = environment(database_url, **QUICK, VITRINE_API_PORT=str(api))
    with started(["api"], tmp_path, env), runner(database_url, tmp_path, VITRINE_METRICS_PORT=str(own)):
        wait_for(connection, films, Status.IDLE)
        runs = "vitrine_runs_total", {"pipeline": "films", "outcome": "success"}
        wait_until(lambda: parse(answering(own, "/metrics")).value(runs[0], **runs[1]), what="a run that is counted")
        deep = RunOptions(deep=True)
        pipelines.request_run(connection, films.id, trigger="api", kind=RequestKind.RECONCILE, options=deep)
        wait_until(lambda: "vitrine_mart_differs{" in answering(api, "/metrics"), what="the verdict")
        yield parse(answering(api, "/metrics"), answering(own, "/metrics"))


def expressions() -> list[str]:
    chosen = [one["query"]["query"] for one in dashboard()["templating"]["list"] if one["type"] == "query"]
    return [*panel_queries(), *chosen, *(rule["expr"] for rule in rules())]


def label_names(expression: str) -> set[str]:
    """Labels that an expression groups by; those of a selector are checked with its metric."""
    return {name.strip() for found in GROUPED.findall(expression) for name in found.split(",") if name.strip()}


def test_every_metric_and_label_of_dashboard_alerts_and_docs_is_exposed(exposed: Scraped) -> None:
    used = {name for expression in expressions() for name in METRIC.findall(expression)}
    assert len(used) > 15
    assert used - exposed.names == set()
    known = {label for name in exposed.names for label in exposed.labels(name)} | PROMETHEUS_ADDS
    for expression in expressions():
        assert label_names(expression) <= known, expression
        for name, matchers in SELECTED.findall(expression):
            assert set(re.findall(r"(\w+)\s*[=!]", matchers)) <= exposed.labels(name) | PROMETHEUS_ADDS, expression
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= label_names(target["expr"]), panel
    for rule in rules():
        texts = " ".join(rule["annotations"].values())
        assert set(re.findall(r"\$labels\.(\w+)", texts)) <= label_names(rule["expr"]), rule["alert"]


def test_the_page_lists_every_metric_with_its_labels_and_no_other(exposed: Scraped) -> None:
    page = (ROOT / "docs" / "observability.md").read_text("utf-8")
    listed = {
        name: set(re.findall(r"`(\w+)`", labels))
        for name, labels in re.findall(r"^\| `(vitrine_\w+)` \|([^|]*)\| [^|]+ \|$", page, flags=re.MULTILINE)
    }
    real: dict[str, set[str]] = {}
    for name in exposed.names:
        if name.startswith("vitrine_"):
            histogram = re.sub(r"_(bucket|sum|count)$", "", name)
            real.setdefault(histogram, set()).update(exposed.labels(name) - PROMETHEUS_ADDS)
    assert listed == real


def test_dashboard_and_alert_rules_have_the_expected_structure() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)
    for rule in rules():
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"]["summary"]
    for expression in expressions():
        assert [expression.count(one) for one in "([{"] == [expression.count(one) for one in ")]}"], expression
    scraped = yaml.safe_load((ROOT / "infra" / "prometheus" / "prometheus.yml").read_text("utf-8"))
    assert scraped["rule_files"] == ["alerts.yml"]


# -- secrets ----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("H3")
def test_a_secret_reaches_no_log_no_metric_no_response_and_no_history(
    database_url: str, settings: Settings, connection: Connection, tmp_path: Path
) -> None:
    canary = f"S3CR3T-{uuid4()}"
    secret_url = database_url.replace("postgres@", f"postgres:{canary}@")
    assert secret_url != database_url
    connection.execute("UPDATE content.film_work SET title = %s", [canary])
    connection.execute("CREATE TABLE analytics.numbers (id uuid PRIMARY KEY, title integer NOT NULL)")
    made = [
        create_films(connection, settings),
        create_films(
            connection,
            settings,
            name="misfits",
            source_query="SELECT id, title::varchar AS title, modified FROM content.film_work",
            target_table="analytics.numbers",
        ),
        create_films(
            connection,
            settings,
            name="unreadable",
            source_query="SELECT id, title::integer AS title, modified FROM content.film_work",
            target_table="analytics.unreadable",
        ),
    ]
    api, own = free_port(), free_port()
    env = environment(
        secret_url,
        **QUICK,
        VITRINE_API_PORT=str(api),
        VITRINE_METRICS_PORT=str(own),
        VITRINE_LOG_LEVEL="debug",
        VITRINE_SOURCES__UNREACHABLE=f"postgresql://reader:{canary}@127.0.0.1:1/nothing",
    )
    unreachable = settings.model_copy(update={"sources": {"unreachable": settings.database_url}})
    create_films(
        connection, unreachable, name="unreachable", source="unreachable", target_table="analytics.unreachable"
    )
    complaint = re.compile(r'^(?=.*"level": "(warning|error)")(?=.*"pipeline": "unreachable")', flags=re.MULTILINE)
    with started(["api"], tmp_path, env) as server, started(["runner"], tmp_path, env) as worker:
        ended = [wait_for(connection, pipeline, Status.IDLE, Status.FAILED) for pipeline in made]
        wait_until(lambda: complaint.search(worker.output()), what="a source that cannot be reached")
        shown_texts = [answering(port, "/metrics") for port in (api, own)]
        for name in ("unreachable", *(pipeline.name for pipeline in made)):
            shown_texts += [answering(api, f"/api/v1/pipelines/{name}{path}") for path in ("", "/status", "/runs")]
        assert (server.stop(), worker.stop()) == (0, 0)
        shown_texts += [server.output(), worker.output()]
    shown = vitrine("status", "unreachable", folder=tmp_path, env=env)
    history = connection.execute("SELECT r.*, r.config::text FROM etl.etl_runs r").fetchall()
    assert ended == [Status.IDLE, Status.FAILED, Status.FAILED]
    assert "127.0.0.1" in worker.output()  # the address of an unavailable server is not a secret
    for text in (*shown_texts, shown.stdout, shown.stderr, str(history)):
        assert canary not in text


# -- logs -------------------------------------------------------------------------------------------------------------


def test_the_log_of_a_runner_follows_its_runs(
    database_url: str, settings: Settings, connection: Connection, tmp_path: Path
) -> None:
    films = create_films(connection, settings, batch_size=20)
    with runner(database_url, tmp_path, VITRINE_LOG_LEVEL="debug") as worker:
        wait_for(connection, films, Status.IDLE)
        wait_until(lambda: "run_ended" in worker.output(), what="the end of the run in the log")
        assert worker.stop() == 0
    lines = [json.loads(line) for line in worker.output().splitlines() if line.startswith("{")]
    mine = [line for line in lines if line.get("pipeline") == "films"]
    batches = ["batch_started", "batch_written"] * 3
    assert [line["action"] for line in mine] == ["run_started", *batches, "run_ended"]
    assert {(line["pipeline_id"], line["run_id"]) for line in mine} == {(str(films.id), mine[0]["run_id"])}
    assert [line["rows_read"] for line in mine if "rows_read" in line] == [20, 20, 20, 60]
    assert mine[-1]["status"] == "IDLE"
    assert mine[-1]["run_seconds"] >= mine[-2]["batch_seconds"] > 0
