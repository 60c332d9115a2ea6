"""`vitrine plan`, and what `vitrine apply` shows of it: on the database, and through an API."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.processes import QUICK, environment, free_port, started, vitrine
from tests.helpers.waiting import wait_until
from vitrine.postgres import Connection, raw

Command = Callable[..., subprocess.CompletedProcess[str]]

GENRES = """\
name: genres
source_query: SELECT id, name, modified FROM content.genre
target_table: analytics.genres
mode: incremental
incremental_key: modified
key_columns: [id]
"""
UPPER = GENRES.replace("id, name,", "id, upper(name) AS name,")


@pytest.fixture
def service(database_url: str, tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "service"
    folder.mkdir()
    port = str(free_port())
    with started(["api"], folder, environment(database_url, VITRINE_API_PORT=port, **QUICK)) as api:
        wait_until(lambda: "API at" in api.output(), timeout=60)
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(params=["database", "api"])
def command(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> Command:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        if request.param == "database" or arguments[0] == "run":
            env = environment(database_url)
        else:
            env = environment(None, VITRINE_API_URL=request.getfixturevalue("service"))
        return vitrine(*arguments, folder=tmp_path, env=env)

    return run


@pytest.fixture
def file(command: Command, tmp_path: Path) -> Path:
    """The file of a pipeline whose mart is filled."""
    path = tmp_path / "genres.yaml"
    path.write_text(GENRES)
    assert command("apply", str(path)).returncode == 0
    assert command("run", "genres").returncode == 0
    return path


def genres(connection: Connection) -> int:
    row = connection.execute("SELECT count(*) AS n FROM content.genre").fetchone()
    assert row is not None
    return row["n"]


def test_a_file_is_planned_beside_the_stored_pipeline(command: Command, connection: Connection, file: Path) -> None:
    count = genres(connection)
    file.write_text(UPPER)
    done = command("plan", str(file))
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "genres → analytics.genres, incremental, changed" in done.stdout
    assert "state: the query changes, but the pipeline has a checkpoint" in done.stdout
    assert "next run, state: reset" in done.stdout
    assert f"changed columns: name ({count})" in done.stdout
    assert done.stdout.endswith("nothing was changed: these are plans\n")
    done = command("plan", str(file), "genres", "--json", "--state", "reset")
    first, second = json.loads(done.stdout)["items"]
    assert [(one["run"], one["changed"]) for one in first["runs"]] == [("reset", count), ("full", count)]
    assert second["changes"] == []


def test_apply_shows_the_plan_before_it_applies(command: Command, connection: Connection, file: Path) -> None:
    count = genres(connection)
    file.write_text(UPPER)
    arguments = ("apply", str(file), "--state", "reset")
    line = f"genres: plan: the next run, with state: reset, reads everything: 0 rows added, {count} changed, 0 removed"
    dry = command(*arguments, "--dry-run").stdout
    assert dry.splitlines()[0] == line
    assert dry.splitlines()[1] == "genres: changed"
    assert "plan:" not in command(*arguments, "--dry-run", "--no-plan").stdout
    done = command(*arguments)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, line), done
    assert "plan:" not in command(*arguments).stdout  # nothing is changed any more


def test_a_definition_that_is_refused_ends_with_exit_code_1(command: Command, file: Path) -> None:
    file.write_text(GENRES.replace("id, name,", "id, name, 1 AS one,"))
    done = command("plan", str(file))
    assert done.returncode == 1
    assert "the run is refused (TARGET_SCHEMA)" in done.stdout
    assert "would be refused or fail" in done.stdout
    file.write_text(GENRES.replace("content.genre", "content.nothing"))
    done = command("plan", str(file))
    assert done.returncode == 1
    assert "content.nothing" in done.stderr
    assert "Traceback" not in done.stderr


def test_apply_works_where_the_plan_cannot_be_computed(command: Command, connection: Connection, file: Path) -> None:
    many = ", ".join(f"content.genre g{number}" for number in range(8))
    connection.execute(raw(f"CREATE VIEW content.slow AS SELECT count(*) AS n FROM {many}"))
    file.write_text(GENRES.replace("content.genre", "content.genre WHERE (SELECT n FROM content.slow) > 0"))
    done = command("apply", str(file), "--state", "reset")
    assert done.returncode == 0, done
    assert "rows were not counted: the rows could not be compared within" in done.stdout
    assert "genres: changed" in done.stdout
