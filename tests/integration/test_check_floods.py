"""A flood of definitions to check: refused with 429 beyond a few at once, and other routes answer in time."""

import http.client
import json
import statistics
import time
from collections import Counter
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.processes import environment, free_port, runner, started
from tests.helpers.running import create
from tests.helpers.waiting import wait_until
from vitrine.errors import ConfigError, TransientError
from vitrine.operations import context
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.sql import parse
from vitrine.sql.policy import read_only
from vitrine.store import pipelines

HOSTILE = [
    "SELECT 1 " + "/*" * 16000 + "*/" * 16000,
    "SELECT 1 " + "/*" * 32000,
    "SELECT 1 " + "+-" * 32000 + "1",
    "SELECT " + "(" * 32000 + "1" + ")" * 32000,
    "SELECT array" + "[" * 32000 + "1" + "]" * 32000,
    "SELECT 1" + "+1" * 31000,
    "SELECT 1 WHERE " + " AND ".join(["a"] * 10000),
    "SELECT " + ",".join(["(SELECT " * 13 + "1" + ")" * 13] * 500),
]


def send(port: int, method: str, path: str, body: Any = None) -> tuple[int, dict[str, str], float]:
    """Status, headers, and seconds until the answer."""
    started_at = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Content-Type": "application/json"} if body else {}
    connection.request(method, path, json.dumps(body) if body else None, headers)
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status, dict(response.getheaders()), time.monotonic() - started_at


def answers(port: int) -> bool:
    try:
        return send(port, "GET", "/api/v1/pipelines")[0] == 200
    except OSError:
        return False


@pytest.fixture
def port(database_url: str, tmp_path: Path) -> Generator[int]:
    number = free_port()
    with started(["api"], tmp_path, environment(database_url, VITRINE_API_PORT=str(number))):
        wait_until(lambda: answers(number), what="the API")
        yield number


@pytest.mark.promise("K7", "H12")
def test_sixty_hostile_posts_at_once_delay_neither_a_list_nor_a_status_nor_a_run(
    port: int, database_url: str, settings: Settings, connection: Connection, tmp_path: Path
) -> None:
    genres = create(
        connection,
        settings,
        name="genres",
        source_query="SELECT id, name FROM content.genre",
        target_table="analytics.genres",
        key_columns=["id"],
    )
    paths = ("/api/v1/pipelines", "/api/v1/pipelines/genres/status")
    idle = {path: min(send(port, "GET", path)[2] for _ in range(5)) for path in paths}

    def post(number: int) -> tuple[int, dict[str, str], float]:
        body = {
            "name": f"hostile_{number}",
            "source_query": HOSTILE[number % len(HOSTILE)] + " " * number,
            "target_table": f"analytics.hostile_{number}",
            "key_columns": ["id"],
        }
        return send(port, "POST", "/api/v1/pipelines", body)

    taken: dict[str, list[float]] = {path: [] for path in paths}
    with runner(database_url, tmp_path), ThreadPoolExecutor(60) as threads:
        posted = [threads.submit(post, number) for number in range(60)]
        assert send(port, "POST", "/api/v1/pipelines/genres/run")[0] == 202
        while not all(one.done() for one in posted):
            for path in paths:
                status, _, seconds = send(port, "GET", path)
                assert status == 200
                taken[path].append(seconds)
        wait_until(lambda: pipelines.get(connection, genres.id).fresh_as_of, 60, "the end of the run")
    statuses = Counter(one.result()[0] for one in posted)
    # 201: the source did not answer in time about a query that is only long
    assert set(statuses) <= {201, 422, 429}, statuses
    refused = [one.result()[1] for one in posted if one.result()[0] == 429]
    assert all("retry-after" in {name.lower() for name in headers} for headers in refused)
    for path, seconds in taken.items():
        assert statistics.median(seconds) < 2 * idle[path] + 1, (idle, seconds)
        assert max(seconds) < 3.0, seconds  # the machine of the tests is shared


@pytest.mark.promise("H12")
def test_more_checks_than_allowed_at_once_are_refused() -> None:
    with ExitStack() as taken:
        for _ in range(context.CHECKS_AT_ONCE):
            taken.enter_context(context.check_slot())
        with pytest.raises(TransientError) as refused, context.check_slot():
            pass
    assert refused.value.code == "TOO_MANY_CHECKS"
    with context.check_slot():
        pass


@pytest.mark.promise("K7", "G20")
@pytest.mark.parametrize("sql", HOSTILE[:5], ids=[sql[:24] for sql in HOSTILE[:5]])
def test_nesting_that_takes_the_parser_long_is_refused_before_it_is_parsed(sql: str) -> None:
    started_at = time.process_time()
    with pytest.raises(ConfigError) as refused:
        read_only(sql[: parse.MAX_BYTES], ("content",))
    assert refused.value.code == "TOO_COMPLEX"
    assert time.process_time() - started_at < 0.5


@pytest.mark.promise("K7")
def test_a_query_that_takes_too_long_to_check_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse, "MAX_SECONDS", 0.0)
    with pytest.raises(ConfigError) as refused:
        read_only("SELECT 1 WHERE " + " AND ".join(["b"] * 5000), ("content",))
    assert (refused.value.code, "s to check" in str(refused.value)) == ("TOO_COMPLEX", True)
