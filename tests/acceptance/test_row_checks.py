"""Checks on the command line: a failed one is named and shown, and passes once the rows are corrected."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.processes import environment, vitrine
from vitrine.postgres import Connection

Command = Callable[..., subprocess.CompletedProcess[str]]

FILMS = """\
name: films
source_query: SELECT id, title, rating FROM content.film_work
target_table: analytics.films
key_columns: [id]
checks:
- type: range
  column: rating
  min: 0
  max: 10
- type: not_null
  columns:
  - title
- name: no_short_titles
  severity: warn
  type: sql
  query: SELECT id FROM mart WHERE length(title) < 3
"""


@pytest.fixture
def command(database_url: str, tmp_path: Path) -> Command:
    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return vitrine(*arguments, folder=tmp_path, env=environment(database_url, **variables))

    return run


def ok(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


@pytest.mark.promise("M1", "M3", "M4")
def test_a_failed_check_is_named_shown_and_passes_after_the_rows_are_corrected(
    command: Command, connection: Connection, tmp_path: Path
) -> None:
    file = tmp_path / "films.yaml"
    file.write_text(FILMS)
    ok(command("apply", str(file)))
    ok(command("run", "films"))
    row = connection.execute("SELECT id::text FROM content.film_work ORDER BY id LIMIT 1").fetchone()
    assert row is not None
    before = connection.execute("SELECT * FROM analytics.films ORDER BY id").fetchall()
    connection.execute("UPDATE content.film_work SET rating = 99, title = 'it' WHERE id::text = %s", [row["id"]])

    failed = command("run", "films")
    assert failed.returncode == 1
    assert "'films' failed (CHECK_FAILED): rows for analytics.films were not published" in failed.stderr
    assert f"check 'range (rating)': 1 row outside the range of 'rating' (min 0, max 10), for example {row['id']}." in (
        failed.stderr
    )
    assert "99" not in failed.stderr.replace(row["id"], "")
    assert connection.execute("SELECT * FROM analytics.films ORDER BY id").fetchall() == before
    shown = ok(command("status", "films"))
    assert "checks in the last run: 1 of 3 passed; not passed: range (rating) (fail), no_short_titles (warn)" in shown
    assert "[CHECK_FAILED]" in shown
    logged = ok(command("logs", "films"))
    assert "check 'range (rating)': 1 row outside the range" in logged
    assert "check 'no_short_titles': 1 row returned" in logged

    connection.execute("UPDATE content.film_work SET rating = 9 WHERE id::text = %s", [row["id"]])
    done = command("run", "films")
    warning = "check 'no_short_titles': 1 row returned by its query, which must return none, for example"
    assert (done.returncode, done.stderr) == (0, f"{warning} {row['id']}\n")
    listed = ok(command("runs", "films"))
    assert f"warning, {warning} {row['id']}" in listed
    newest = json.loads(ok(command("runs", "films", "--json")))["items"][0]
    assert [(one["name"], one["passed"], one["rows"]) for one in newest["checks"]] == [
        ("range (rating)", True, 0),
        ("not_null (title)", True, 0),
        ("no_short_titles", False, 1),
    ]
    exported = ok(command("show", "films"))
    assert exported.partition("checks:")[2].rstrip("\n") == FILMS.partition("checks:")[2].rstrip("\n")


def test_a_wrong_check_is_refused_with_its_place_in_the_file(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "films.yaml"
    file.write_text(FILMS.replace("column: rating", "column: ratings"))
    refused = command("apply", str(file))
    assert refused.returncode == 1
    assert "check 'range (ratings)' names the column 'ratings', which the rows of analytics.films do not have" in (
        refused.stderr
    )
    file.write_text(FILMS.replace("FROM mart", "FROM etl.etl_tokens"))
    refused = command("apply", str(file))
    assert (
        "check 'no_short_titles', line 1, column 16: table 'etl.etl_tokens' cannot be read by a check" in refused.stderr
    )
    file.write_text(FILMS.replace("type: range", "type: rnge"))
    refused = command("apply", str(file))
    assert (
        "films.yaml, line 6, column 3: checks[0]: give type as not_null, unique, accepted_values, range, row_count, sql"
        in refused.stderr
    )
