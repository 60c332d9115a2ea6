"""Commands on a terminal: what names, errors, keys and rows of a source contain has no effect on it."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.processes import environment, vitrine
from vitrine.postgres import Connection

HOSTILE = "[/x][red]\x1b[31m\x1b]0;owned\x07\x9b2J\u202e\r\nforged"
OURS = ("\x1b[36m", "\x1b[31m", "\x1b[32m", "\x1b[1m", "\x1b[0m")
"""Colours of tables, which begin and end in the same line."""


def on_terminal(*arguments: str, folder: Path, env: dict[str, str]) -> str:
    """What a command writes to a terminal, stdout and stderr."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "vitrine", *arguments]
    with subprocess.Popen(command, cwd=folder, env=env, stdin=slave, stdout=slave, stderr=slave) as process:
        os.close(slave)
        written = bytearray()
        try:
            while part := os.read(master, 65536):
                written += part
        except OSError:  # the terminal is closed at the end of the process
            pass
        process.wait(30)
    os.close(master)
    return written.decode("utf-8", "replace").replace("\r\n", "\n")


def without_ours(text: str) -> str:
    for code in OURS:
        text = text.replace(code, "")
    return text


def is_harmless(text: str) -> bool:
    return all(letter == "\n" or letter.isprintable() for letter in text) and "\nforged" not in text


@pytest.fixture
def env(connection: Connection, database_url: str) -> dict[str, str]:
    """A store in which every text that a command shows is hostile; constraints would refuse some of them."""
    connection.execute("CREATE TABLE content.notes (id text PRIMARY KEY, note text)")
    connection.execute("INSERT INTO content.notes VALUES (%s, 'a'), (%s, 'a')", [HOSTILE, HOSTILE + "2"])
    connection.execute(
        "INSERT INTO etl.etl_pipelines (name, type, source_query, target_table, mode, key_columns, owner, tags,"
        "       last_error_code, last_error_message, last_error_at, description)"
        " VALUES ('notes', 'SQL', 'SELECT note, id FROM content.notes', 'analytics.notes', 'full', '{note}', %(text)s,"
        "         '{marts}', 'DATA', %(text)s, now(), %(text)s)",
        {"text": HOSTILE},
    )
    connection.execute(
        "INSERT INTO etl.etl_rejects (pipeline_id, run_id, key, column_name, sqlstate, reason, row)"
        " SELECT id, 1, %(text)s, %(text)s, '22P02', %(text)s, '{}' FROM etl.etl_pipelines",
        {"text": HOSTILE},
    )
    connection.execute(
        "INSERT INTO etl.etl_state (pipeline_id, cursor, horizon_blocker, horizon_lag_seconds)"
        " SELECT id, ARRAY[%(text)s], %(text)s, 1 FROM etl.etl_pipelines",
        {"text": HOSTILE},
    )
    connection.execute(
        "INSERT INTO etl.etl_runs (pipeline_id, attempt, trigger, kind, status, finished_at, config, runner,"
        "       lease_token, error_code, error_message)"
        " SELECT id, 1, 'cli', 'full', 'FAILED', now(), '{}', %(text)s, 1, 'DATA', %(text)s FROM etl.etl_pipelines",
        {"text": HOSTILE},
    )
    return environment(database_url, COLUMNS="200", TERM="xterm")


@pytest.mark.promise("K11")
@pytest.mark.parametrize(
    "command",
    [
        ("list",),
        ("list", "--tag", HOSTILE),
        ("status", "notes"),
        ("rejects", "notes"),
        ("validate", "notes"),
        ("validate", "notes", "--json"),
        ("reconcile", "notes"),
        ("pause", HOSTILE),
        ("status", HOSTILE),
        ("apply", HOSTILE),
        ("export", "files"),
        ("--env-file", HOSTILE, "list"),
    ],
    ids=lambda command: "-".join(command[:2]).encode("ascii", "ignore").decode().partition("[")[0],
)
def test_no_command_passes_control_characters_to_the_terminal(
    env: dict[str, str], tmp_path: Path, command: tuple[str, ...]
) -> None:
    shown = without_ours(on_terminal(*command, folder=tmp_path, env=env))
    assert shown.strip()
    assert "Traceback" not in shown
    assert is_harmless(shown), repr(shown)


@pytest.mark.promise("K11")
def test_a_run_that_fails_names_a_hostile_key_without_an_effect(
    connection: Connection, env: dict[str, str], tmp_path: Path
) -> None:
    connection.execute("UPDATE content.notes SET note = %s", [HOSTILE])
    finished = vitrine("run", "notes", folder=tmp_path, env=env)  # on a terminal it would show a progress bar
    assert "the same key (note) more than once" in finished.stderr
    assert is_harmless(finished.stdout + finished.stderr)


@pytest.mark.promise("K11")
def test_a_file_of_hostile_texts_is_applied_without_an_effect_on_the_terminal(
    env: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "pipelines"
    folder.mkdir()
    (folder / "a.yaml").write_text(
        'name: other\ndescription: "[/x]\\e[31m\\u202e"\nsource_query: SELECT id FROM content.genre\n'
        'target_table: analytics.other\nkey_columns: [id]\nmode: "\\e[2J"\n'
    )
    assert is_harmless(without_ours(on_terminal("apply", "pipelines", folder=tmp_path, env=env)))


@pytest.mark.promise("K11")
def test_the_demo_shows_a_folder_with_markup_in_its_name(tmp_path: Path) -> None:
    env = environment(None, VITRINE_HOME=str(tmp_path / "[bold]a"))
    finished = vitrine("demo", "--films", "30", "--ratings", "100", folder=tmp_path, env=env)
    assert finished.returncode == 0, finished.stderr
    assert "[bold]a/" in finished.stdout.replace("\n", "")
