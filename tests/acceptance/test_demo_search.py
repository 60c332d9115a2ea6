"""The demo with a cluster: search indexes beside the marts, and what the commands show of them."""

import fcntl
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.helpers.processes import environment, free_port, started, vitrine
from tests.helpers.search_case import Search
from tests.helpers.waiting import wait_until
from vitrine.embedded import EmbeddedPostgres
from vitrine.postgres import Connection, connect
from vitrine.store import pipelines

INDEXES = ("film_dim", "film_rating_agg", "movies")
PIPELINES = ("film_dim_search", "film_rating_agg_search", "movies")
MARTS = 7
SMALL = ("--films", "100", "--ratings", "2000")


@pytest.fixture
def cluster(elasticsearch_url: str) -> Iterator[Search]:
    """The cluster for one test at a time, because the indexes of the demo have fixed names."""
    search = Search(elasticsearch_url)
    with (Path(tempfile.gettempdir()) / "vitrine-demo-search.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        existing = [index for name in INDEXES for index in search.indexes(name)]
        if existing:
            pytest.skip(f"the cluster has indexes of a demo ({', '.join(existing)}), which a test must not remove")
        yield search
        for name in INDEXES:
            search.remove(name)


def shown_films(output: str, title: str) -> list[str]:
    """The lines of the table with this title."""
    lines = output.partition(title)[2].splitlines()[3:]
    return lines[: lines.index("")]


def assert_shows_the_indexes(output: str) -> None:
    lines = output.splitlines()
    for name in INDEXES:
        assert [line for line in lines if line.startswith(f"es:{name} ") and "source = target" in line]
        assert [line for line in lines if line.startswith(f"es:{name} ") and f"{name}__g" in line]
    assert output.count("source = target") == MARTS + len(INDEXES)
    by_actor = shown_films(output, "Films with the actor")
    assert [line for line in by_actor if line.startswith("Star Wars: Episode IV")]
    by_word = shown_films(output, "Films about “планета”")
    assert [line.split("  ")[0] for line in by_word] == ["Тайна третьей планеты", "Солярис"]
    assert all("«планеты»" in line for line in by_word)


def left_out(output: str) -> str:
    """The one sentence of a demo without search indexes."""
    (sentence,) = [line for line in output.splitlines() if "Search indexes" in line]
    assert sentence.startswith("Search indexes are left out: ")
    assert sentence.endswith("; `make demo-search` starts an Elasticsearch.")
    return sentence


def enabled(connection: Connection) -> list[bool]:
    return [pipelines.get(connection, name).definition.enabled for name in PIPELINES]


@pytest.mark.nightly
def test_the_demo_fills_a_configured_cluster_and_follows_where_it_is(tmp_path: Path, cluster: Search) -> None:
    configured = environment(None, ELASTICSEARCH_URL=cluster.url)
    for _ in range(2):
        done = vitrine("demo", *SMALL, folder=tmp_path, env=configured)
        assert (done.returncode, done.stderr) == (0, "")
        assert_shows_the_indexes(done.stdout)
        assert len(cluster.documents("movies")) == 100

    # a demo in another folder is another installation: it leaves these indexes as they are
    before = cluster.indexes("movies")
    (tmp_path / "other").mkdir()
    other = vitrine("demo", *SMALL, folder=tmp_path / "other", env=configured)
    assert (other.returncode, other.stderr) == (0, "")
    assert "belongs to another installation of Vitrine" in left_out(other.stdout)
    assert other.stdout.count("source = target") == MARTS
    assert cluster.indexes("movies") == before

    # another cluster, or the same one without its indexes: the checkpoint of the demo does not belong to it
    for name in INDEXES:
        cluster.remove(name)
    again = vitrine("demo", *SMALL, folder=tmp_path, env=configured)
    assert (again.returncode, again.stderr) == (0, "")
    assert_shows_the_indexes(again.stdout)

    # no cluster answers: the marts are built, and a runner leaves the search indexes as they are
    url = f"http://127.0.0.1:{free_port()}"
    without = vitrine("demo", *SMALL, folder=tmp_path, env=environment(None, VITRINE_ELASTICSEARCH_URL=url))
    assert (without.returncode, without.stderr) == (0, "")
    assert "the cluster is unavailable" in left_out(without.stdout)
    assert without.stdout.count("source = target") == MARTS
    store = EmbeddedPostgres(tmp_path / ".vitrine" / "postgres")
    with store as server, connect(server.url("vitrine"), name="tests") as connection:
        assert enabled(connection) == [False] * len(PIPELINES)

    # `up` builds them again, and its runner keeps them up to date
    port = free_port()
    with started(["up", *SMALL], tmp_path, configured | {"VITRINE_API_PORT": str(port)}) as up:
        wait_until(lambda: "Vitrine is up" in up.output() or up.process.poll() is not None, 90, "the start")
        with connect(store.url("vitrine"), name="tests") as connection:
            assert enabled(connection) == [True] * len(PIPELINES)
            wait_until(lambda: succeeded_by_schedule(port), 60, "a run by schedule")
        assert up.stop() == 0, up.output()


def succeeded_by_schedule(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/api/v1/pipelines/film_rating_agg_search/runs", timeout=10) as answer:
            runs = json.loads(answer.read())["items"]
    except OSError:
        return False  # the API is not ready yet
    return any((run["trigger"], run["status"]) == ("schedule", "SUCCESS") for run in runs)


@pytest.mark.usefixtures("elasticsearch_url")
def test_the_demo_brings_its_own_cluster_and_stops_it(tmp_path: Path) -> None:
    # another configured cluster is not used
    env = environment(None, VITRINE_ELASTICSEARCH_URL="http://127.0.0.1:1", COLUMNS="80")
    done = vitrine("demo", "--search", *SMALL, folder=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert_shows_the_indexes(done.stdout)
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "✓ Elasticsearch, data in .vitrine/elasticsearch/" in done.stdout
    home = tmp_path / ".vitrine" / "elasticsearch"
    assert home.is_dir()
    running = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(home).encode() in _read(path)]
    assert running == []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # the process has ended
