"""The user's own PostgreSQL over TCP: one ordinary account that owns etl and analytics and may read the sources."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.helpers.folders import server_folder
from tests.helpers.processes import QUICK, environment, free_port, started, vitrine
from tests.helpers.running import differences
from tests.helpers.waiting import wait_until
from vitrine.demo import cinema
from vitrine.embedded import EmbeddedPostgres
from vitrine.postgres import Connection, connect

ACCOUNT = """
    CREATE ROLE vitrine LOGIN PASSWORD 'S3CR3T' NOSUPERUSER NOCREATEDB NOCREATEROLE;
    ALTER ROLE vitrine SET search_path = pg_catalog;
    CREATE SCHEMA etl AUTHORIZATION vitrine;
    CREATE SCHEMA analytics AUTHORIZATION vitrine;
    GRANT USAGE ON SCHEMA content, ugc TO vitrine;
    GRANT SELECT ON ALL TABLES IN SCHEMA content, ugc TO vitrine;
    GRANT pg_read_all_stats TO vitrine;
"""
TOP_GENRES = (
    "SELECT g.id, g.name, count(*) AS films FROM content.genre g"
    " JOIN content.genre_film_work f ON f.genre_id = g.id GROUP BY g.id, g.name"
)


@pytest.fixture(scope="module", params=[16, 18])
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedPostgres]:
    with (
        server_folder("vitrine-own-") as folder,
        EmbeddedPostgres(folder, version=request.param, port=free_port(), fast=True) as own,
    ):
        own.ensure_database("cinema")
        with connect(own.url("cinema"), name="tests") as owner:
            cinema.create_schema(owner)
            cinema.fill(owner, films=60, ratings=900)
            owner.execute(ACCOUNT)
        yield own


@pytest.fixture
def owner(server: EmbeddedPostgres) -> Iterator[Connection]:
    """A session of the application, with another role."""
    with connect(server.url("cinema"), name="cinema") as opened:
        yield opened


def call(port: int, method: str, path: str, body: Any = None) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def run(port: int, pipeline: str) -> None:
    request_id = call(port, "POST", f"/pipelines/{pipeline}/run")["request_id"]
    wait_until(lambda: call(port, "GET", f"/requests/{request_id}")["state"] == "succeeded")


def answers(port: int) -> bool:
    try:
        return call(port, "GET", "/health")["status"] == "ok"
    except OSError:
        return False


def test_an_ordinary_account_is_enough_for_everything(
    server: EmbeddedPostgres, owner: Connection, tmp_path: Path
) -> None:
    url = server.tcp_url("cinema", user="vitrine").replace("vitrine@", "vitrine:S3CR3T@")
    port = free_port()
    env = environment(url, VITRINE_API_PORT=str(port), **QUICK)
    for _ in range(2):
        migrated = vitrine("migrate", folder=tmp_path, env=env)
        assert migrated.returncode == 0, migrated.stderr
    logs = tmp_path / "logs"
    logs.mkdir()
    with started(["api"], logs, env) as api, started(["runner"], logs, env) as runner:
        wait_until(lambda: answers(port))
        created = {"name": "top_genres", "target_table": "analytics.top_genres", "key_columns": ["id"]}
        call(port, "POST", "/pipelines", created | {"source_query": TOP_GENRES})
        run(port, "top_genres")
        assert differences(owner, TOP_GENRES, "analytics.top_genres", "id") == []
        assert call(port, "GET", "/pipelines/top_genres/status")["status"] == "IDLE"

        incremental = {
            "name": "ratings",
            "source_query": "SELECT id, rating, modified FROM ugc.ratings",
            "target_table": "analytics.ratings",
            "mode": "incremental",
            "incremental_key": "modified",
            "key_columns": ["id"],
        }
        call(port, "POST", "/pipelines", incremental)
        with psycopg.connect(server.url("cinema")) as late:  # a transaction of another role, open during a run
            late.execute("UPDATE ugc.ratings SET rating = 1, modified = now() WHERE rating = 10")
            run(port, "ratings")
            run(port, "ratings")
        run(port, "ratings")
        assert differences(owner, "SELECT id, rating, modified FROM ugc.ratings", "analytics.ratings", "id") == []
        assert "S3CR3T" not in api.output() + runner.output()
