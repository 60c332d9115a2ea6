"""Errors and findings about a query name the line and the column of what the user typed."""

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.helpers.processes import environment, vitrine
from tests.helpers.running import create, run
from vitrine.api.app import create_app
from vitrine.definition.model import Definition
from vitrine.errors import ConfigError, RelationMissing, VitrineError
from vitrine.plan import validation
from vitrine.postgres import Connection
from vitrine.settings import Settings

FIELDS: dict[str, Any] = {
    "name": "films",
    "source_query": "select  f.id , f.title\n  from content.film_work as f\n where f.nothing is not null",
    "target_table": "analytics.films",
    "key_columns": ["id"],
}


def refusal(settings: Settings, query: str) -> VitrineError:
    with pytest.raises(VitrineError) as refused:
        validation.validate(Definition.model_validate(FIELDS | {"source_query": query}), settings)
    return refused.value


@pytest.mark.parametrize(
    ("query", "line", "column"),
    [
        (FIELDS["source_query"], 3, 8),
        ("SELECT id,\n  /* é */ lower(id) FROM content.film_work", 2, 11),
        ("SELECT id,\n\t'é', title + 1 FROM content.film_work", 2, 13),
        ("SELECT f.id FROM content.film_work f\n  JOIN content.genre g\n    ON x.id = f.id", 3, 8),
        ("SELECT id, title\n  FROM content.film_work\n GROUP BY rating", 1, 8),
        ("SELECT id FROM content.film_work WHERE id =\n 'no uuid'", 2, 2),
    ],
)
def test_an_error_of_postgresql_has_its_place_in_what_was_typed(
    settings: Settings, query: str, line: int, column: int
) -> None:
    error = refusal(settings, query)
    assert error.place is not None, error
    assert (error.place.line, error.place.column) == (line, column)
    assert str(error).startswith(f"source query, line {line}, column {column}: ")


@pytest.mark.parametrize(("name", "code"), [("content.nothing", "CONFIG"), ('content."No thing"', "CONFIG")])
def test_a_missing_table_has_its_place(settings: Settings, name: str, code: str) -> None:
    error = refusal(settings, f"SELECT f.id FROM content.film_work f\n  JOIN {name} n ON n.id = f.id")
    assert isinstance(error, RelationMissing)
    assert error.place is not None
    assert (error.code, error.place.line, error.place.column) == (code, 2, 8)


def test_a_run_stores_the_place_in_its_sentence(connection: Connection, settings: Settings) -> None:
    failed = run(connection, settings, create(connection, settings, **FIELDS)).error
    assert isinstance(failed, ConfigError)
    assert str(failed).startswith("source query, line 3, column 8: ")


def test_the_api_answers_with_the_place(settings: Settings) -> None:
    with TestClient(create_app(settings)) as client:
        problem = client.post("/pipelines", json=FIELDS).json()
        assert problem["place"] == {"line": 3, "column": 8, "text": " where f.nothing is not null"}
        bad = client.post("/pipelines", json=FIELDS | {"source_query": "SELECT\n pg_sleep(1)"}).json()
        assert (bad["code"], bad["place"]["line"], bad["place"]["column"]) == ("FUNC", 2, 2)


def test_the_api_answers_with_findings(settings: Settings) -> None:
    fields = FIELDS | {
        "source_query": "SELECT id, title, modified FROM content.film_work",
        "mode": "incremental",
        "incremental_key": "modified",
        "options": {"lookback": "90m"},
    }
    with TestClient(create_app(settings)) as client:
        body = client.post("/pipelines", json=fields).json()
    assert [(one["code"], one["note"]) for one in body["findings"]] == [("LOOKBACK", False), ("DELETES", True)]
    assert body["warnings"] == [body["findings"][0]["text"]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "films.yaml"
    found.write_text(json.dumps(FIELDS))  # JSON is YAML
    return found


def test_the_terminal_shows_the_line_with_a_caret(file: Path, database_url: str) -> None:
    done = vitrine("validate", str(file), folder=file.parent, env=environment(database_url))
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "vitrine: source query, line 3, column 8: column f.nothing does not exist (42703)",
        "3 |  where f.nothing is not null",
        "  |        ^",
    ]


def test_json_has_the_error_with_its_place(file: Path, database_url: str) -> None:
    done = vitrine("validate", "--json", str(file), folder=file.parent, env=environment(database_url))
    answer = json.loads(done.stdout)
    assert (done.returncode, done.stderr, answer["ready"], answer["name"]) == (1, "", False, "films")
    assert answer["error"]["code"] == "CONFIG"
    assert answer["error"]["place"] == {"line": 3, "column": 8, "text": " where f.nothing is not null"}


def test_json_has_the_report(file: Path, database_url: str) -> None:
    query = "SELECT id, modified FROM content.film_work"
    file.write_text(json.dumps(FIELDS | {"source_query": query, "mode": "incremental", "incremental_key": "modified"}))
    done = vitrine("validate", "--json", str(file), folder=file.parent, env=environment(database_url))
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["ready"], answer["lane"], answer["key"]) == (0, True, "copy", ["id"])
    assert answer["columns"][0] == {"name": "id", "type": "uuid"}
    (note,) = answer["findings"]
    assert sorted(note) == ["code", "column", "note", "place", "text"]
    assert (note["code"], note["note"]) == ("DELETES", True)
