"""A new project, completion in a shell, and answers of the command line that need no database."""

import json
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.processes import answered, environment, vitrine
from vitrine.postgres import Connection
from vitrine.store import pipelines

GENRES = """\
name: genres
source_query: SELECT id, name, modified FROM content.genre
target_table: analytics.genres
key_columns: [id]
"""


def ok(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def test_init_makes_a_project_that_can_be_applied_and_keeps_existing_files(database_url: str, tmp_path: Path) -> None:
    env = environment(database_url)
    ok(vitrine("init", "project", folder=tmp_path, env=env))
    project = tmp_path / "project"
    assert {file.name for file in project.iterdir()} == {".env", ".gitignore", ".vitrine-project", "pipelines"}
    assert stat.S_IMODE((project / ".env").stat().st_mode) & 0o077 == 0
    settings = [line for line in (project / ".env").read_text().splitlines() if line and not line.startswith("#")]
    assert settings == []
    (project / ".env").write_text("VITRINE_TIMEZONE=Asia/Almaty\n")
    again = ok(vitrine("init", folder=project, env=env))
    assert "kept     .env" in again
    assert (project / ".env").read_text() == "VITRINE_TIMEZONE=Asia/Almaty\n"
    assert ok(vitrine("apply", "pipelines", folder=project, env=env)) == "top_genres: created\n"


def test_a_table_becomes_a_pipeline_that_runs(database_url: str, tmp_path: Path, connection: Connection) -> None:
    env = environment(database_url)
    write = ["discover", "film_work", "--write", "pipelines/films.yaml"]
    assert "pipeline film_work, incremental by modified" in ok(vitrine(*write, folder=tmp_path, env=env))
    ok(vitrine("validate", "pipelines/films.yaml", folder=tmp_path, env=env))
    ok(vitrine("apply", "pipelines", folder=tmp_path, env=env))
    assert "60 rows read, 60 written" in ok(vitrine("run", "film_work", folder=tmp_path, env=env))
    before = (tmp_path / "pipelines" / "films.yaml").read_text()
    done = vitrine(*write, folder=tmp_path, env=env)
    assert (done.returncode, "exists already and is kept" in done.stderr) == (1, True)
    assert (tmp_path / "pipelines" / "films.yaml").read_text() == before
    shown = json.loads(ok(vitrine("discover", "--schema", "ugc", "--json", folder=tmp_path, env=env)))
    assert [one["name"] for one in shown["items"]] == ["likes", "ratings", "views"]


def test_what_removes_something_asks_and_refuses_without_a_terminal(
    database_url: str, tmp_path: Path, connection: Connection
) -> None:
    env = environment(database_url)
    (tmp_path / "genres.yaml").write_text(GENRES)
    ok(vitrine("apply", "genres.yaml", folder=tmp_path, env=env))
    for arguments in (["delete", "genres"], ["reset", "genres"]):
        done = vitrine(*arguments, folder=tmp_path, env=env, standard_input="y\n")
        assert (done.returncode, "there is no terminal to ask" in done.stderr) == (1, True), done
        code, shown = answered(arguments, "n\n", folder=tmp_path, env=env)
        assert (code, "'genres'" in shown, "nothing was changed" in shown) == (1, True, True), shown
        assert [one.name for one in pipelines.list_all(connection)] == ["genres"]
    code, shown = answered(["delete", "genres"], "y\n", folder=tmp_path, env=env)
    assert (code, shown.endswith("genres: deleted; analytics.genres stays\n")) == (0, True), shown
    assert pipelines.list_all(connection) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_valid(shell: str, tmp_path: Path) -> None:
    script = ok(vitrine("completion", shell, folder=tmp_path, env=environment(None)))
    assert "_VITRINE_COMPLETE" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def completed(line: str, env: dict[str, str], folder: Path) -> list[str]:
    words = line.split(" ")
    asked = {"_VITRINE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    return vitrine(folder=folder, env={**env, **asked}).stdout.split()


def test_commands_options_and_pipelines_are_completed(database_url: str, tmp_path: Path) -> None:
    env = environment(database_url)
    (tmp_path / "genres.yaml").write_text(GENRES)
    ok(vitrine("apply", "genres.yaml", folder=tmp_path, env=env))
    assert completed("vitrine rej", env, tmp_path) == ["rejects"]
    assert completed("vitrine run ge", env, tmp_path) == ["genres"]
    assert "--failed" in completed("vitrine list --", env, tmp_path)
    assert completed("vitrine run ge", environment("postgresql://nobody@127.0.0.1:1/none"), tmp_path) == []


def test_the_list_is_readable_at_80_columns(database_url: str, tmp_path: Path, connection: Connection) -> None:
    env = environment(database_url, COLUMNS="80")
    name = "a_mart_with_a_name_that_is_as_long_as_names_of_marts_may_be_xxx"
    (tmp_path / "long.yaml").write_text(GENRES.replace("name: genres", f"name: {name}") + "schedule_interval: 1h\n")
    ok(vitrine("apply", "long.yaml", folder=tmp_path, env=env))
    ok(vitrine("run", name, folder=tmp_path, env=env))
    connection.execute(
        "UPDATE etl.etl_runs SET rows_read = 1234567890, started_at = now() - interval '100000 s', finished_at = now()"
    )
    connection.execute("UPDATE etl.etl_pipelines SET fresh_as_of = now() - interval '40 days'")
    shown = ok(vitrine("list", "--stale", folder=tmp_path, env=env))
    assert max(map(len, shown.splitlines())) <= 80
    assert "1,234,567,890  100000.00" in shown
    assert "40d !" in shown
    table, _, cause = shown.partition(f"{name} is late: ")
    assert "".join(line.split("  ")[0].strip() for line in table.splitlines()[2:]) == name
    assert cause


def test_a_closed_pipe_ends_a_command_without_a_traceback(database_url: str, tmp_path: Path) -> None:
    command = f"{sys.executable} -m vitrine schema | head -1"
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, env=environment(None), capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("{\n", "")
