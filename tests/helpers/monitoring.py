"""A pipeline to be watched, the dashboard and the alert rules, and a real Prometheus."""

import json
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from tests.helpers import tools
from tests.helpers.processes import GRACE_SECONDS, free_port
from tests.helpers.running import create
from tests.helpers.scraping import get
from tests.helpers.waiting import wait_until
from vitrine.definition.pipeline import Pipeline
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import pipelines

INFRA = Path(__file__).parents[2] / "infra"
ALERTS = INFRA / "prometheus" / "alerts.yml"


def create_films(connection: Connection, settings: Settings, **fields: Any) -> Pipeline:
    """An incremental pipeline with a schedule, requested."""
    defaults: dict[str, Any] = {
        "name": "films",
        "source_query": "SELECT id, title, modified FROM content.film_work",
        "target_table": "analytics.films",
        "mode": "incremental",
        "incremental_key": "modified",
        "incremental_id_key": "id",
        "key_columns": ["id"],
        "schedule_interval": "1h",
    }
    pipeline = create(connection, settings, **defaults | fields)
    pipelines.request_run(connection, pipeline.id, trigger="api")
    return pipeline


def answering(port: int, path: str) -> str:
    """Wait for a response at this address; returns its text."""
    return wait_until(lambda: text if (answer := get(port, path))[0] == 200 and (text := answer[1]) else None)


def dashboard() -> dict[str, Any]:
    return json.loads((INFRA / "grafana" / "vitrine.json").read_text("utf-8"))


def panel_queries() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
    return group["rules"]


@dataclass(frozen=True)
class Prometheus:
    """A server that scrapes every second."""

    port: int

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its API."""
        status, text = get(self.port, f"/api/v1/{path}?{urlencode(parameters)}")
        answer = json.loads(text)
        assert (status, answer["status"]) == (200, "success"), (parameters, text)
        return answer["data"]

    def query(self, expression: str) -> list[Any]:
        return self.ask("query", query=expression)["result"]


@contextmanager
def prometheus(folder: Path, *targets: int) -> Generator[Prometheus]:
    """A real Prometheus with our alert rules, which scrapes these ports."""
    program, port = tools.find("prometheus"), free_port()
    addresses = [f"127.0.0.1:{target}" for target in targets]
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [{"job_name": "vitrine", "static_configs": [{"targets": addresses}]}],
    }
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config), "utf-8")
    command = [
        program,
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'series'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (folder / "prometheus.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            answering(port, "/-/ready")
            yield Prometheus(port)
        finally:
            process.terminate()
            process.wait(GRACE_SECONDS)
