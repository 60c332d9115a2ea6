"""A real Vitrine: PostgreSQL with the sample cinema, an API and a runner as processes."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import psycopg

from tests.helpers.processes import QUICK, environment, free_port, started, vitrine
from tests.helpers.waiting import wait_until
from vitrine.embedded import EmbeddedPostgres

START_SECONDS = 60
FILMS = 60


@dataclass(frozen=True)
class Vitrine:
    """What the tests use of it: the REST API as an administrator, the database, and a token for Airflow."""

    port: int
    token: str
    http: httpx.Client
    database_url: str

    def connection(self, token: str | None = None, port: int | None = None, **extra: str) -> str:
        """The URI of an Airflow connection."""
        query = f"?{urlencode(extra)}" if extra else ""
        return f"vitrine://:{token or self.token}@127.0.0.1:{port or self.port}/http{query}"

    def create(self, name: str, query: str = "SELECT id, title FROM content.film_work", **fields: Any) -> str:
        """A pipeline without a schedule, with a mart of its own."""
        body = {"name": name, "source_query": query, "target_table": f"analytics.{name}", "key_columns": ["id"]}
        self._ok(self.http.post("/pipelines", json=body | fields))
        return name

    def create_slow(self, name: str) -> str:
        """A pipeline that reads a row per second until `hurry` is called."""
        return self.create(name, batch_size=1, options={"pause_between_batches": "1s"})

    def hurry(self, name: str) -> None:
        self._ok(self.http.patch(f"/pipelines/{name}", json={"options": {"pause_between_batches": "0s"}}))
        self._ok(self.http.post(f"/pipelines/{name}/reload-config"))

    def status(self, name: str) -> str:
        return self._ok(self.http.get(f"/pipelines/{name}/status"))["status"]

    def wait_for(self, name: str, status: str) -> None:
        wait_until(lambda: self.status(name) == status, timeout=60, what=f"{name} {status}")

    def run(self, name: str) -> None:
        """Runs the pipeline without Airflow."""
        request = self._ok(self.http.post(f"/pipelines/{name}/run"))["request_id"]
        assert self._ok(self.http.get(f"/requests/{request}", params={"wait": "60s"}))["state"] == "succeeded"

    def runs(self, name: str) -> list[dict[str, Any]]:
        """Oldest first."""
        return self._ok(self.http.get(f"/pipelines/{name}/runs"))["items"][::-1]

    def execute(self, statement: Any) -> None:
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            connection.execute(statement)

    @staticmethod
    def _ok(answer: httpx.Response) -> Any:
        assert answer.is_success, answer.text
        return answer.json()


@contextmanager
def running(folder: Path) -> Generator[Vitrine]:
    port = free_port()
    with EmbeddedPostgres(folder / "postgres", port=free_port(), fast=True) as postgres:
        postgres.ensure_database("cinema")
        database_url = postgres.tcp_url("cinema")
        env = environment(database_url, VITRINE_API_PORT=str(port), **QUICK)

        def command(*arguments: str) -> str:
            done = vitrine(*arguments, folder=folder, env=env)
            assert done.returncode == 0, done
            return done.stdout.strip()

        command("migrate")
        command("sample", "--films", str(FILMS), "--ratings", "900")
        tokens = {role: command("token", "create", f"the-{role}", "--role", role) for role in ("admin", "operator")}
        with started(["api"], folder, env) as api, started(["runner"], folder, env) as runner:
            wait_until(lambda: "API at" in api.output() and "runner started" in runner.output(), timeout=START_SECONDS)
            headers = {"Authorization": f"Bearer {tokens['admin']}"}
            url = f"http://127.0.0.1:{port}/api/v1"
            with httpx.Client(base_url=url, headers=headers, timeout=90, trust_env=False) as http:
                yield Vitrine(port, tokens["operator"], http, database_url)
