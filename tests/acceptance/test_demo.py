"""The two commands of the quick start: `vitrine demo`, and `vitrine up` with requests to its API."""

import json
import re
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest

from tests.helpers.processes import environment, started, vitrine
from tests.helpers.running import differences
from tests.helpers.scraping import get, parse
from tests.helpers.waiting import wait_until
from vitrine.embedded import EmbeddedPostgres
from vitrine.postgres import connect
from vitrine.store import pipelines

MARTS = (
    "audience_segments",
    "calendar",
    "film_dim",
    "film_rating_agg",
    "film_trends",
    "genre_dim",
    "user_features",
)
WITHOUT_SEARCH = (
    "Search indexes are left out: VITRINE_ELASTICSEARCH_URL is not set; `make demo-search` starts an Elasticsearch."
)
SMALL = ("--films", "100", "--ratings", "2000")
TOP_GENRES = """
    SELECT g.id, g.name, count(*) AS films
      FROM content.genre AS g
      JOIN content.genre_film_work AS gf ON gf.genre_id = g.id
     GROUP BY g.id, g.name
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The data folder of the demo."""
    return tmp_path / ".vitrine"


def is_running(home: Path) -> bool:
    """Whether a PostgreSQL runs on the demo's data, by its pid file and the kernel."""
    pid_file = home / "postgres" / "data" / "postmaster.pid"
    if not pid_file.exists():
        return False
    pid = pid_file.read_text().split("\n")[0]
    return Path(f"/proc/{pid}").exists()


def children(pid: int) -> set[int]:
    """Processes that this process started, directly or indirectly."""
    parents: dict[int, int] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(file.parent.name)] = int(file.read_text().rpartition(")")[2].split()[1])
    found, fresh = set[int](), {pid}
    while fresh := {pid for pid, parent in parents.items() if parent in fresh} - found:
        found |= fresh
    return found


def test_the_demo_builds_and_proves_seven_marts_and_does_so_again_from_its_data(tmp_path: Path, home: Path) -> None:
    for _ in range(2):
        done = vitrine("demo", *SMALL, folder=tmp_path, env=environment(None))
        assert (done.returncode, done.stderr) == (0, "")
        for mart in MARTS:
            assert [
                line for line in done.stdout.splitlines() if f"analytics.{mart} " in line and "source = target" in line
            ]
        assert done.stdout.count("source = target") == len(MARTS)
        assert "100 films" in done.stdout
        assert "2,000 ratings" in done.stdout
        assert "Star " in done.stdout
        assert done.stdout.splitlines().count(WITHOUT_SEARCH) == 1
        assert "es:movies" not in done.stdout
        assert not is_running(home)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".vitrine"]


@pytest.mark.nightly
def test_a_larger_cinema_is_loaded_and_a_smaller_one_keeps_the_existing_rows(tmp_path: Path) -> None:
    first = vitrine("demo", *SMALL, folder=tmp_path, env=environment(None))
    assert (first.returncode, first.stderr) == (0, "")
    larger = vitrine("demo", "--films", "150", "--ratings", "5000", folder=tmp_path, env=environment(None))
    assert (larger.returncode, larger.stderr) == (0, "")
    assert "150 films, 150 persons, 5,000 ratings, 2,500 likes, 5,000 views" in larger.stdout
    assert larger.stdout.count("source = target") == len(MARTS)
    assert "kept" not in larger.stdout.partition("Building")[0]

    smaller = vitrine("demo", *SMALL, folder=tmp_path, env=environment(None))
    kept = "The existing sample cinema has more than 100 films and more than 2,000 ratings; it is kept."
    assert kept in smaller.stdout.splitlines()
    assert "150 films, 150 persons, 5,000 ratings" in smaller.stdout
    assert (smaller.returncode, smaller.stdout.count("source = target")) == (0, len(MARTS))


@pytest.mark.nightly
def test_a_cinema_of_an_earlier_release_is_rebuilt_and_own_pipelines_stay(tmp_path: Path, home: Path) -> None:
    first = vitrine("demo", *SMALL, folder=tmp_path, env=environment(None))
    assert (first.returncode, first.stderr) == (0, "")
    with (
        EmbeddedPostgres(home / "postgres") as server,
        connect(server.url("vitrine"), name="tests") as connection,
    ):
        connection.execute("ALTER TABLE ugc.ratings RENAME COLUMN rating TO score")
        connection.execute(
            "UPDATE etl.etl_pipelines SET name = 'own', target_table = 'analytics.own' WHERE name = 'calendar'"
        )
        connection.execute("ALTER TABLE analytics.calendar RENAME TO own")
        connection.execute("UPDATE analytics.film_rating_agg SET avg_rating = 0")
    rebuilt = vitrine("demo", "--films", "50", "--ratings", "500", folder=tmp_path, env=environment(None))
    assert (rebuilt.returncode, rebuilt.stderr) == (0, "")
    sentence = "The sample cinema has the layout of an earlier release; it is rebuilt with its marts and pipelines."
    assert rebuilt.stdout.splitlines().count(sentence) == 1
    assert "50 films, 60 persons, 500 ratings" in rebuilt.stdout
    assert rebuilt.stdout.count("source = target") == len(MARTS)
    with (
        EmbeddedPostgres(home / "postgres") as server,
        connect(server.url("vitrine"), name="tests") as connection,
    ):
        assert pipelines.get(connection, "own").definition.target_table == "analytics.own"
        assert connection.execute("SELECT count(*) AS days FROM analytics.own").fetchone() == {"days": 1096}
        audited = connection.execute(
            "SELECT operation, count(*) AS n FROM etl.etl_audit WHERE via = 'cli' GROUP BY operation ORDER BY operation"
        ).fetchall()
    # the demo changes pipelines as any caller does; it deleted all but the one that was renamed
    marts = len(MARTS)
    assert {row["operation"]: row["n"] for row in audited} == {
        "pipelines.create": 2 * marts,
        "pipelines.delete": marts - 1,
        "pipelines.run": 2 * marts,
    }


def test_the_demo_refuses_to_fill_a_configured_database(tmp_path: Path) -> None:
    done = vitrine("demo", folder=tmp_path, env=environment("postgresql://127.0.0.1:1/theirs"))
    assert done.returncode == 1
    assert done.stderr.startswith("vitrine: VITRINE_DATABASE_URL is set")
    assert len(done.stderr.splitlines()) == 1


class Api:
    """The API as curl sees it."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        try:
            with urlopen(Request(self._base + path, data, headers, method=method), timeout=10) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except HTTPError as refused:
            with refused:
                return refused.code, json.loads(refused.read())

    def is_healthy(self) -> bool:
        try:
            return self.call("GET", "/health")[0] == 200
        except (URLError, ConnectionError):
            return False


def settled(api: Api, request_id: str) -> Callable[[], dict[str, Any] | None]:
    def ask() -> dict[str, Any] | None:
        _, answer = api.call("GET", f"/api/v1/requests/{request_id}")
        return answer if answer["state"] in ("succeeded", "failed") else None

    return ask


def test_up_serves_the_marts_accepts_a_new_one_and_leaves_no_process_behind(
    tmp_path: Path, home: Path, port: int
) -> None:
    api = Api(port)
    with started(["up", *SMALL], tmp_path, environment(None, VITRINE_API_PORT=str(port))) as up:
        wait_until(api.is_healthy, 60, "a healthy API")
        family = children(up.process.pid)
        assert len(family) >= 2
        assert is_running(home)

        # a new mart, by configuration only
        body = {
            "name": "top_genres",
            "source_query": TOP_GENRES,
            "target_table": "analytics.top_genres",
            "key_columns": ["id"],
        }
        assert api.call("POST", "/api/v1/pipelines", body)[0] == 201
        accepted, asked = api.call("POST", "/api/v1/pipelines/top_genres/run")
        assert accepted == 202
        answer = wait_until(settled(api, asked["request_id"]), what="the end of the request")
        assert answer["state"] == "succeeded"
        assert api.call("GET", "/api/v1/pipelines/top_genres")[1]["status"] == "IDLE"
        with connect(EmbeddedPostgres(home / "postgres").url("vitrine"), name="tests") as mart:
            assert differences(mart, TOP_GENRES, "analytics.top_genres", "id") == []
            built = mart.execute("SELECT count(*) AS rows FROM analytics.top_genres").fetchone()
        (run,) = api.call("GET", "/api/v1/pipelines/top_genres/runs")[1]["items"]
        assert run["status"] == "SUCCESS"
        assert built == {"rows": run["rows_written"]}

        # the account of the API may compare the mart, which the account of the runner has created
        compared = api.call("GET", "/api/v1/pipelines/top_genres/reconcile")[1]
        assert compared.get("equal"), compared["detail"]
        with connect(EmbeddedPostgres(home / "postgres").url("vitrine"), name="tests") as mart:
            (genre,) = mart.execute("SELECT id::text FROM analytics.top_genres LIMIT 1").fetchall()
        assert api.call("GET", f"/api/v1/pipelines/top_genres/trace?key={genre['id']}")[1]["standing"] == "equal"

        # both processes serve metrics at the addresses in the output
        ports = [int(port) for port in re.findall(r"http://127\.0\.0\.1:(\d+)/metrics", up.output())]
        scraped = [parse(get(one, "/metrics")[1]) for one in ports]
        assert scraped[0].value("vitrine_pipeline_failed", pipeline="top_genres") == 0
        assert scraped[1].value("vitrine_runs_total", pipeline="top_genres", outcome="success") == 1

        # a second one on the same folder, and one on the same port
        second = vitrine("demo", *SMALL, folder=tmp_path, env=environment(None))
        assert (second.returncode, second.stdout) == (1, "")
        assert f"is already in use by process {up.process.pid}" in second.stderr
        assert len(second.stderr.splitlines()) == 1

        assert up.stop(signal.SIGINT) == 0, up.output()
    assert not is_running(home)
    wait_until(lambda: not [pid for pid in family if Path(f"/proc/{pid}").exists()], what="the end of every process")
    assert "Traceback" not in up.output()


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("command", ["up", "api"])
def test_a_port_in_use_is_named_with_the_remedy(tmp_path: Path, command: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        url = None if command == "up" else "postgresql://127.0.0.1:1/none"
        done = vitrine(command, folder=tmp_path, env=environment(url, VITRINE_API_PORT=str(port)))
    assert done.returncode == 1
    assert f"port {port} on 127.0.0.1 is in use by another program; stop that program" in done.stderr
    assert "VITRINE_API_PORT=" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / ".vitrine").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_demo_that_is_interrupted_leaves_nothing_running(
    tmp_path: Path, home: Path, number: signal.Signals, code: int
) -> None:
    with started(["demo", "--films", "1000", "--ratings", "500000"], tmp_path, environment(None)) as one:
        wait_until(lambda: is_running(home), what="a running PostgreSQL")
        wait_until(lambda: "PostgreSQL, embedded" in one.output(), what="a database that answers")
        assert one.stop(number) == code
    assert not is_running(home)
