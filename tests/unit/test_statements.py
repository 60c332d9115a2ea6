"""The file of named statements and the fragments that they share."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import vitrine
from vitrine.store import database

SOURCES = Path(vitrine.__file__).parent
MOVE = "UPDATE etl.etl_pipelines p\n   SET status = step.new"
GUARD = "WHERE p.id = chosen.id AND p.status = chosen.status AND step.new IS NOT NULL"
FILE = """
-- fragment held --
-- A sentence
held AS (SELECT 1)

-- first --
-- Another sentence
WITH
    -- include held
SELECT * FROM held;

-- second --
SELECT 2;
"""


def test_a_fragment_stands_where_a_statement_includes_it() -> None:
    assert database.parse(FILE) == {
        "first": "-- Another sentence\nWITH\n-- A sentence\nheld AS (SELECT 1)\nSELECT * FROM held;",
        "second": "SELECT 2;",
    }


def test_a_fragment_that_does_not_exist_is_refused() -> None:
    with pytest.raises(KeyError, match="nothing"):
        database.parse("-- first --\n-- include nothing\nSELECT 1;")


@pytest.mark.parametrize("name", ["hold_lease", "save_state"])
def test_every_write_of_a_run_takes_the_same_fence(name: str) -> None:
    fence = "FROM etl.etl_pipelines WHERE id = %(id)s AND lease_token = %(token)s FOR SHARE"
    assert database.statement(name).count(fence) == 1


def status_updates(text: str) -> Iterator[str]:
    """Every UPDATE of etl_pipelines that assigns `status`."""
    for update in re.split(r"\bUPDATE\b", text)[1:]:
        of_pipelines = re.match(r"\s+(ONLY\s+)?(etl\.)?etl_pipelines\b", update)
        if of_pipelines and re.search(r"(\bSET|,)\s*(\([^)]*)?\bstatus\b[^=;()]*(\)\s*)?=", update.partition(";")[0]):
            yield f"UPDATE{update}"


@pytest.mark.parametrize(
    "text",
    [
        "UPDATE etl.etl_pipelines SET status = 'IDLE';",
        "UPDATE etl_pipelines p\n   SET rerun = false,\n       status='IDLE' WHERE id = 1;",
        "UPDATE ONLY etl.etl_pipelines SET (rerun, status) = (false, 'IDLE');",
        "BEGIN UPDATE etl.etl_pipelines SET status = NEW.status; END",
    ],
)
def test_an_update_of_a_status_is_recognised(text: str) -> None:
    assert len(list(status_updates(text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "UPDATE etl.etl_runs SET status = 'FAILED';",
        "UPDATE etl.etl_pipelines SET rerun = false WHERE status = 'IDLE' RETURNING id, status;",
        "SELECT id, status FROM etl.etl_pipelines FOR UPDATE;",
    ],
)
def test_other_statements_are_not_taken_for_one(text: str) -> None:
    assert list(status_updates(text)) == []


def test_one_update_in_the_whole_source_sets_a_status() -> None:
    files = [file for file in SOURCES.rglob("*") if file.suffix in (".py", ".sql")]
    found = [(file.name, update) for file in files for update in status_updates(file.read_text("utf-8"))]
    assert [file for file, _ in found] == ["queries.sql"]
    assert found[0][1].startswith(MOVE)


@pytest.mark.parametrize("name", database.statement_names())
def test_every_statement_that_sets_a_status_applies_the_guard(name: str) -> None:
    text = database.statement(name)
    assert text.count(MOVE) == text.count(GUARD) <= 1
    assert text.count(MOVE) == len(list(status_updates(text)))


def test_the_statements_that_set_a_status_are_those_of_the_events() -> None:
    assert [name for name in database.statement_names() if MOVE in database.statement(name)] == [
        "claim_next",
        "end_run",
        "expire_leases",
        "fire_chains",
        "fire_reconciles",
        "fire_schedules",
        "request_pause",
        "request_run",
        "update_pipeline",
    ]


@pytest.mark.parametrize("name", ["claim_next", "expire_leases", "fire_schedules"])
def test_what_a_runner_chooses_by_itself_it_locks_without_waiting(name: str) -> None:
    assert "SKIP LOCKED" in database.statement(name)
