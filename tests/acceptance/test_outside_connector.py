"""A connector from outside the package: installed by a user, run by real processes, refused when it is missing."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.helpers import memory_case, plugins
from tests.helpers.memory_case import MemoryDocuments, MemorySourceCase
from tests.helpers.observing import history, wait_for
from tests.helpers.processes import QUICK, Started, environment, started, vitrine
from tests.helpers.running import differences
from tests.helpers.waiting import wait_until
from vitrine.core.rows import Column
from vitrine.core.status import RequestKind, RunStatus, Status
from vitrine.postgres import Connection
from vitrine.store import pipelines
from vitrine_testing import Texts

QUERY = "SELECT id::text, film_id::text, rating::text, modified::text FROM ugc.ratings"
RATINGS = """\
name: ratings
source_query: SELECT id, film_id, rating, modified FROM ugc.ratings
target_table: mem:ratings
key_columns: [id]
incremental_key: modified
batch_size: 50
options:
  memory_request_rows: 20
  pause_between_batches: 50ms
"""
GENRES = """\
name: genres
source_type: memory
source_query: {name}
target_table: analytics.genres
key_columns: [id]
"""

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The distribution of the connector, in a folder of its own."""
    return plugins.install(plugins.MEMORY_CONNECTOR, tmp_path_factory.mktemp("installed"))


@pytest.fixture
def documents(tmp_path: Path) -> MemoryDocuments:
    folder = tmp_path / "documents"
    folder.mkdir()
    return MemoryDocuments(folder)


@pytest.fixture
def variables(installed: Path, documents: MemoryDocuments) -> dict[str, str]:
    """What a user sets to use the connector."""
    paths = filter(None, [str(installed), os.environ.get("PYTHONPATH")])
    return {"PYTHONPATH": os.pathsep.join(paths), "VITRINE_MEMORY_PATH": str(documents.folder)}


@pytest.fixture
def command(database_url: str, tmp_path: Path, variables: dict[str, str]) -> Command:
    def run(*arguments: str, **others: str) -> subprocess.CompletedProcess[str]:
        return vitrine(*arguments, folder=tmp_path, env=environment(database_url, **(variables | others)))

    return run


@pytest.fixture
def runner(database_url: str, tmp_path: Path) -> Callable[[dict[str, str]], AbstractContextManager[Started]]:
    """A runner with a short lease and with these variables."""
    return lambda variables: started(["runner"], tmp_path, environment(database_url, **(QUICK | variables)))


def applied(command: Command, tmp_path: Path, text: str) -> None:
    (tmp_path / "pipeline.yaml").write_text(text)
    done = command("apply", "pipeline.yaml")
    assert (done.returncode, done.stderr) == (0, ""), done


def refused(command: Command, tmp_path: Path, text: str, **variables: str) -> str:
    """The sentences on stderr."""
    (tmp_path / "pipeline.yaml").write_text(text)
    done = command("apply", "pipeline.yaml", **variables)
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_pipeline_survives_a_pause_and_a_killed_runner_and_is_proven(
    connection: Connection,
    command: Command,
    runner: Callable[[dict[str, str]], AbstractContextManager[Started]],
    documents: MemoryDocuments,
    variables: dict[str, str],
    tmp_path: Path,
) -> None:
    applied(command, tmp_path, RATINGS)
    checked = command("validate", "pipeline.yaml")
    assert checked.returncode == 0, checked
    assert "mem:ratings, full, lane rows" in checked.stdout
    ratings = pipelines.get(connection, "ratings")

    with runner(variables):
        pipelines.request_run(connection, ratings.id, trigger="api")
        wait_until(lambda: [one for one in history(connection, ratings) if one.batches >= 2], what="two batches")
        pipelines.request_pause(connection, ratings.id)  # a command takes as long as several batches
        wait_for(connection, ratings, Status.PAUSED)
    assert documents.rows("mem:ratings") == {}

    dying = {"VITRINE_TESTING": "1", "VITRINE_FAILPOINTS": "before_checkpoint=kill@3"}
    with runner(variables | dying) as victim:
        pipelines.request_run(connection, ratings.id, trigger="api", resume=True)
        wait_until(lambda: victim.process.poll() is not None, 60, "a runner that is killed")
        assert victim.process.returncode == -signal.SIGKILL
    assert documents.rows("mem:ratings") == {}

    with runner(variables):
        wait_for(connection, ratings, Status.IDLE)
    paused, killed, finished = history(connection, ratings)
    assert (paused.status, killed.status, finished.status) == (
        RunStatus.PAUSED,
        RunStatus.ABANDONED,
        RunStatus.SUCCESS,
    )
    connection.execute("SET TimeZone = 'UTC'")
    stored = {(row["id"],): dict(row) for row in connection.execute(QUERY)}
    # every row was read once, but for the unit that was written and not saved, and for the empty catch-up
    assert paused.rows_read + killed.rows_read + finished.rows_read == len(stored)
    assert documents.rows("mem:ratings") == stored

    equal = command("reconcile", "ratings")
    assert equal.returncode == 0, equal
    assert "source = target" in equal.stdout
    key = min(stored)
    documents.change("mem:ratings", key, stored[key] | {"rating": "0"})
    different = command("reconcile", "ratings")
    assert different.returncode == 2, different
    assert "source ≠ target" in different.stdout
    assert command("run", "ratings").returncode == 0
    assert command("reconcile", "ratings").returncode == 0


def test_rows_of_an_outside_source_are_loaded_into_postgresql(
    connection: Connection, command: Command, documents: MemoryDocuments, tmp_path: Path
) -> None:
    columns = (Column("id", "integer"), Column("name", "text"), Column("popularity", "numeric"))
    rows: list[Texts] = [
        {"id": str(number), "name": f"genre {number}\t", "popularity": f"{number}.50"} for number in range(1, 30)
    ]
    name = MemorySourceCase(documents.folder).create(columns, rows)["source_query"]
    applied(command, tmp_path, GENRES.format(name=name))
    assert command("run", "genres").returncode == 0
    texts = ", ".join(f"({row['id']}, 'genre {row['id']}' || chr(9), {row['popularity']})" for row in rows)
    query = f"SELECT id, name, popularity::numeric FROM (VALUES {texts}) AS v(id, name, popularity)"
    assert differences(connection, query, "analytics.genres", "id") == []
    assert command("reconcile", "genres").returncode == 0


def test_an_option_that_is_misspelled_is_refused_with_the_right_one(command: Command, tmp_path: Path) -> None:
    text = refused(command, tmp_path, RATINGS.replace("memory_request_rows", "memory_request_row"))
    assert "no field `options.memory_request_row`; did you mean `options.memory_request_rows`?" in text
    text = refused(command, tmp_path, RATINGS.replace("memory_request_rows: 20", "memory_request_rows: 0"))
    assert "options.memory_request_rows: give a whole number from 1 to 10000" in text
    # the option of a sink belongs to its targets only
    text = refused(command, tmp_path, RATINGS.replace("mem:ratings", "analytics.ratings"))
    assert "`options.memory_request_rows` does not apply to the source and target of this pipeline" in text


def test_without_its_setting_the_connector_names_the_setting(command: Command, tmp_path: Path) -> None:
    text = refused(command, tmp_path, RATINGS, VITRINE_MEMORY_PATH="", VITRINE_ALLOWED_TARGETS="mem:*")
    assert "VITRINE_MEMORY_PATH is not set" in text


def test_without_the_distribution_the_installed_connectors_are_listed(command: Command, tmp_path: Path) -> None:
    text = refused(command, tmp_path, RATINGS, PYTHONPATH="")
    assert "no installed connector writes 'mem:' targets" in text
    assert "installed: elasticsearch (es:index), postgres (schema.table)" in text
    text = refused(command, tmp_path, GENRES.format(name="genres"), PYTHONPATH="")
    assert "unknown source_type 'memory'; installed: postgres, python" in text


SUITE = """\
from memory_case import MemorySinkCase
import pytest
from vitrine_testing import SinkConformance


class TestMemorySink(SinkConformance):
    @pytest.fixture
    def case(self, tmp_path):
        return MemorySinkCase(tmp_path)
"""


def test_the_conformance_suite_runs_in_the_project_of_a_connector(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "test_sink.py").write_text(SUITE)
    shutil.copy(memory_case.__file__, tmp_path)
    plugin, chosen = ["-p", "vitrine_testing.fixtures"], ["-k", "test_02 or test_12"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", *plugin, *chosen, "test_sink.py"],
        cwd=tmp_path,
        env=environment(None, PYTHONPATH=str(installed)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_a_rollback_from_the_command_line_needs_no_runner_and_says_what_is_live(
    connection: Connection, command: Command, documents: MemoryDocuments, tmp_path: Path
) -> None:
    applied(command, tmp_path, RATINGS.replace("50ms", "0s"))
    for _ in range(2):
        assert command("run", "ratings").returncode == 0
        connection.execute("UPDATE ugc.ratings SET rating = rating % 10 + 1, modified = now()")
    latest = documents.rows("mem:ratings")
    done = command("rollback", "ratings")
    assert (done.returncode, done.stderr) == (0, ""), done
    assert done.stdout.startswith("ratings: the previous generation is live again and shows the data as of ")
    assert done.stdout.endswith("; the pipeline is PAUSED, `vitrine run ratings` resumes it\n")
    assert documents.rows("mem:ratings") != latest
    shown = command("status", "ratings")
    assert shown.stdout.startswith("ratings is PAUSED")
    assert "rollback" in shown.stdout
    again = command("rollback", "ratings")
    assert again.returncode == 1
    assert again.stderr.startswith("vitrine: mem:ratings has no earlier generation to go back to")
    pipelines.request_run(connection, "ratings", trigger="api", kind=RequestKind.ROLLBACK)
    assert "requested: rollback" in command("status", "ratings").stdout
    refused = command("run", "ratings")
    assert (refused.returncode, "waits for a rollback" in refused.stderr) == (4, True), refused
