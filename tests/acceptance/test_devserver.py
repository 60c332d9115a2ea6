"""The development server as a process: started, used, stopped and killed."""

import re
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.helpers.processes import Started, environment, started
from tests.helpers.waiting import wait_until

ROOT = Path(__file__).parents[2]
START_SECONDS = 180
ADDRESS = re.compile(r"export VITRINE_ELASTICSEARCH_URL=(\S+)")
RUSSIAN = {"mappings": {"properties": {"title": {"type": "text", "analyzer": "russian"}}}}


def client_of(url: str) -> httpx2.Client:
    return httpx2.Client(base_url=url, trust_env=False, timeout=60)


@pytest.fixture
def client(elasticsearch_url: str) -> Iterator[httpx2.Client]:
    with client_of(elasticsearch_url) as opened:
        yield opened


def index_a_film(client: httpx2.Client, index: str) -> None:
    client.put(f"/{index}", json=RUSSIAN).raise_for_status()
    film = {"title": "Звёздные войны"}
    client.put(f"/{index}/_doc/1", params={"refresh": "true"}, json=film).raise_for_status()


def found(client: httpx2.Client, index: str, words: str) -> list[str]:
    answer = client.post(f"/{index}/_search", json={"query": {"match": {"title": words}}}).raise_for_status()
    return [hit["_id"] for hit in answer.json()["hits"]["hits"]]


def address(server: Started) -> str:
    """The address that the command shows when the server answers."""

    def shown() -> str | None:
        assert server.process.poll() is None, server.output()
        match = ADDRESS.search(server.output())
        return match[1] if match else None

    return wait_until(shown, timeout=START_SECONDS, what="the start of Elasticsearch")


@contextmanager
def process_with(folder: Path, *arguments: str) -> Generator[Started]:
    """Runs Python with the modules of this tree until the block ends."""
    log = folder / "process.log"
    env = environment(None, PYTHONPATH=f"{ROOT}:{ROOT / 'src'}", TMPDIR=str(folder))
    env.pop("ELASTICSEARCH_URL", None)
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, env=env, stdout=output, stderr=output)
    try:
        yield Started(process, log)
    finally:
        process.kill()
        process.wait()


def process_of(client: httpx2.Client) -> int:
    nodes = client.get("/_nodes/_local/process").raise_for_status().json()["nodes"]
    return next(iter(nodes.values()))["process"]["id"]


def has_ended(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return not state.strip() or state.startswith("Z")


def without_java(folder: Path) -> dict[str, str]:
    """The environment of a machine without Java."""
    (folder / "bin").mkdir()
    return {name: value for name, value in environment(None).items() if name != "JAVA_HOME"} | {
        "PATH": str(folder / "bin")
    }


def test_a_document_is_found_by_another_form_of_a_russian_word(client: httpx2.Client, index_name: str) -> None:
    index_a_film(client, index_name)
    assert found(client, index_name, "война") == ["1"]
    assert found(client, index_name, "мир") == []


def test_an_index_is_never_created_by_a_wrong_name(client: httpx2.Client, index_name: str) -> None:
    assert client.put(f"/{index_name}/_doc/1", json={"title": "Solaris"}).status_code == 404


@pytest.mark.nightly
@pytest.mark.usefixtures("elasticsearch_url")  # the test is skipped where no server can be started
def test_without_an_installed_java_the_server_runs_keeps_its_data_and_stops_with_the_command(tmp_path: Path) -> None:
    with started(
        ["devserver", "elasticsearch", "--port", "0", "--folder", "kept"], tmp_path, without_java(tmp_path)
    ) as one:
        with client_of(address(one)) as client:
            index_a_film(client, "films")
            assert found(client, "films", "война") == ["1"]
            pid = process_of(client)

        assert one.stop(signal.SIGHUP) == 0
        assert has_ended(pid)
        assert "The data is kept in kept." in one.output()
        assert one.output().endswith("Elasticsearch is stopped.\n")
    assert list((tmp_path / "kept" / "data").iterdir())


OWNER = """
import signal
from vitrine_devserver import DevServer

with DevServer.start(fast=True) as server:
    print(f"export VITRINE_ELASTICSEARCH_URL={server.url}", flush=True)
    signal.pause()
"""


@pytest.mark.usefixtures("elasticsearch_url")
def test_the_server_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    with process_with(tmp_path, "-c", OWNER) as owner:
        with client_of(address(owner)) as client:
            pid = process_of(client)

        owner.stop(signal.SIGKILL)

        wait_until(lambda: has_ended(pid), what="the end of Elasticsearch")


SESSION = """
import signal

def test_waits(elasticsearch_url):
    print(f"export VITRINE_ELASTICSEARCH_URL={elasticsearch_url}", flush=True)
    signal.pause()
"""


@pytest.mark.nightly
@pytest.mark.usefixtures("elasticsearch_url")
def test_no_server_outlives_its_test_session(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n", "utf-8")
    (tmp_path / "test_one.py").write_text(SESSION, "utf-8")
    arguments = ["-s", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'base'}", "--rootdir", str(tmp_path)]
    with process_with(tmp_path, "-m", "pytest", *arguments, str(tmp_path)) as session:
        with client_of(address(session)) as client:
            pid = process_of(client)

        session.stop(signal.SIGKILL)

        wait_until(lambda: has_ended(pid), what="the end of Elasticsearch")
