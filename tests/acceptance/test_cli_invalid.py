"""Commands beside a pipeline whose stored definition is not valid, on the database and through an API."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.processes import QUICK, environment, free_port, started, vitrine
from tests.helpers.waiting import wait_until
from vitrine.postgres import Connection
from vitrine.store import state

Command = Callable[..., subprocess.CompletedProcess[str]]

QUERY = "SELECT id, name, modified FROM content.genre"
GENRES = f"""\
name: genres
source_query: {QUERY}
target_table: analytics.genres
mode: incremental
incremental_key: modified
key_columns: [id]
options:
  max_rejects: 7
"""
RATINGS = """\
name: ratings
source_query: SELECT id, film_id, rating FROM ugc.ratings
target_table: analytics.ratings
key_columns: [id]
"""
REASON = "no field `options.speed`; remove it"
BREAK = """UPDATE etl.etl_pipelines SET options = options || '{"speed": "high"}' WHERE name = 'genres'"""


@pytest.fixture(params=["database", "api"])
def command(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> Iterator[Command]:
    """`vitrine …` on the database, or through an API."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return vitrine(*arguments, folder=tmp_path, env=env)

    if request.param == "database":
        env = environment(database_url)
        yield run
        return
    folder = tmp_path / "service"
    folder.mkdir()
    port = str(free_port())
    with started(["api"], folder, environment(database_url, VITRINE_API_PORT=port, **QUICK)) as api:
        wait_until(lambda: "API at" in api.output(), timeout=60)
        env = environment(None, VITRINE_API_URL=f"http://127.0.0.1:{port}")
        yield run


@pytest.fixture
def files(command: Command, database_url: str, tmp_path: Path, connection: Connection) -> Path:
    """Two pipelines in a folder, applied; the definition of one is not valid any more, and it has a checkpoint."""
    folder = tmp_path / "pipelines"
    folder.mkdir()
    (folder / "genres.yaml").write_text(GENRES)
    (folder / "ratings.yaml").write_text(RATINGS)
    ok(command("apply", str(folder)))
    ok(vitrine("run", "genres", folder=tmp_path, env=environment(database_url)))
    connection.execute(BREAK)
    return folder


def ok(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1, done
    return done.stderr


@pytest.mark.usefixtures("files")
def test_lists_name_it_with_the_reason_and_show_the_others(command: Command) -> None:
    *_, row, invalid = ok(command("list")).splitlines()
    assert row.startswith("ratings ")
    assert invalid == f"genres: the stored definition is not valid: {REASON} [DEFINITION_INVALID]"
    page = json.loads(ok(command("list", "--json")))
    assert [one["name"] for one in page["items"]] == ["ratings"]
    assert page["invalid"] == [{"name": "genres", "reason": REASON}]
    ok(command("delete", "ratings", "--yes"))
    assert ok(command("list")) == f"{invalid}\n"


@pytest.mark.usefixtures("files")
def test_questions_about_it_are_answered_with_the_reason_and_the_remedy(command: Command) -> None:
    for arguments in (["show"], ["status"], ["runs"], ["validate"], ["run", "--no-wait"]):
        assert refused(command(*arguments, "genres")) == (
            f"vitrine: the stored definition of 'genres' is not valid ({REASON}); apply a valid one with"
            " `vitrine apply`, or delete the pipeline\n"
        ), arguments


@pytest.mark.usefixtures("files")
def test_it_can_be_paused(command: Command) -> None:
    assert ok(command("pause", "genres")).startswith("genres: PAUSED")


@pytest.mark.usefixtures("files")
def test_the_doctor_names_it_with_the_remedy(command: Command) -> None:
    done = command("doctor", "--json")
    (check,) = [one for one in json.loads(done.stdout)["checks"] if one["subject"] == "pipelines"]
    assert (done.returncode, check["level"], check["text"]) == (1, "error", f"'genres' is not valid: {REASON}")
    assert check["remedy"] == "apply a valid definition with `vitrine apply`, or delete the pipeline"
    ok(command("delete", "genres", "--yes"))
    checks = json.loads(command("doctor", "--json").stdout)["checks"]
    assert [one["level"] for one in checks if one["subject"] == "pipelines"] == ["ok"]


@pytest.mark.usefixtures("files")
def test_export_writes_the_others_and_says_what_it_left_out(command: Command, tmp_path: Path) -> None:
    done = command("export", "out")
    assert done.stdout == "1 file(s) in out\n"
    assert refused(done) == (
        "vitrine: 1 pipeline(s) left out; apply a valid definition with `vitrine apply`, or delete the pipeline:\n"
        f"  genres: the stored definition is not valid: {REASON}\n"
    )
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["pipeline.schema.json", "ratings.yaml"]
    assert ok(command("apply", "out")) == "ratings: unchanged\n"


def test_apply_replaces_it_and_its_checkpoint_stays_where_the_work_is_the_same(
    command: Command, files: Path, connection: Connection
) -> None:
    changed = "genres: changed\n  options.speed: high → default\nratings: unchanged\n"
    dry = ok(command("apply", "--dry-run", str(files)))
    assert dry == f"{changed}nothing was changed: this was a dry run\n"
    before = state.load_state(connection, _id(connection))
    assert ok(command("apply", str(files))) == changed
    assert state.load_state(connection, _id(connection)) == before
    assert ok(command("apply", str(files))) == "genres: unchanged\nratings: unchanged\n"
    assert _audited(connection, "pipelines.change") == [({"options.speed": "high"}, {"options.speed": None})]


def test_apply_asks_about_its_checkpoint_where_the_work_is_another(
    command: Command, files: Path, connection: Connection
) -> None:
    (files / "genres.yaml").write_text(GENRES.replace("SELECT id", "SELECT DISTINCT id"))
    assert "genres.yaml, line 1, column 1: the query changes, but the pipeline has a checkpoint" in refused(
        command("apply", str(files))
    )
    assert "genres: changed" in ok(command("apply", "--state", "reset", str(files)))
    assert not state.load_state(connection, _id(connection)).has_checkpoint


def test_prune_deletes_it(command: Command, files: Path, connection: Connection) -> None:
    (files / "genres.yaml").unlink()
    assert "genres: has no file; --prune deletes it\n" in ok(command("apply", "--dry-run", str(files)))
    assert ok(command("apply", "--prune", "--yes", str(files))) == "genres: deleted\nratings: unchanged\n"
    ((before, after),) = _audited(connection, "pipelines.delete")
    assert (before["options.speed"], before["mode"], after) == ("high", "incremental", None)


def _id(connection: Connection):
    row = connection.execute("SELECT id FROM etl.etl_pipelines WHERE name = 'genres'").fetchone()
    assert row is not None
    return row["id"]


def _audited(connection: Connection, operation: str):
    rows = connection.execute(
        "SELECT before, after FROM etl.etl_audit WHERE operation = %s ORDER BY id", [operation]
    ).fetchall()
    return [(row["before"], row["after"]) for row in rows]
