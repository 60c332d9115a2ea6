"""What is typed on the page that edits a definition, read as a definition."""

from typing import Any

from vitrine.console import drafts
from vitrine.console.drafts import EMPTY_FORM, Problem
from vitrine.definition.model import Definition
from vitrine.errors import ConfigError, DefinitionRefused, Place
from vitrine.operations.bodies.overview import TableBody

QUERY = "SELECT id, name\n  FROM content.genre"


def form(**typed: str | bool) -> dict[str, str | bool]:
    return {**EMPTY_FORM, "name": "genres", "source_query": QUERY, **typed}


def definition(**fields: Any) -> Definition:
    return Definition.model_validate(
        {"name": "genres", "source_query": QUERY, "target_table": "analytics.genres", **fields}
    )


def test_a_form_becomes_the_definition_that_it_was_made_of() -> None:
    stored = definition(
        description="Genres\nof films",
        tags=["search", "tier-1"],
        mode="incremental",
        incremental_key="modified",
        incremental_id_key="id",
        key_columns=["id"],
        batch_size=500,
        after=["film_dim"],
        checks=[{"type": "not_null", "columns": ["name"]}, {"type": "row_count", "min": 5, "severity": "warn"}],
        options={"on_reject": "quarantine", "freshness": "1h"},
    )
    assert drafts.read_form(drafts.form_of(stored), stored).definition == stored
    assert drafts.read_yaml(drafts.yaml_of(stored)).definition == stored


def test_an_empty_target_is_the_name_in_the_schema_of_marts() -> None:
    found = drafts.read_form(form(key_columns=" id , name ")).definition
    assert found is not None
    assert found.target_table == "analytics.genres"
    assert found.key_columns == ("id", "name")


def test_a_query_is_checked_before_its_pipeline_has_a_name_but_cannot_be_stored() -> None:
    reading = drafts.read_form(form(name=""))
    assert reading.definition is not None
    assert reading.definition.source_query == QUERY
    assert not reading.storable


def test_every_wrong_field_has_a_sentence() -> None:
    assert drafts.read_form(form(batch_size="9" * 5000)).problems  # Python refuses to convert so many digits
    reading = drafts.read_form(form(batch_size="many", schedule_interval="often", options="on_rejct: fail"))
    sentences = " ".join(one.text for one in reading.problems)
    assert reading.definition is None
    assert all(name in sentences for name in ("batch_size", "schedule_interval", "options.on_rejct"))


def test_options_that_are_no_yaml_are_a_problem_with_their_place() -> None:
    assert drafts.read_form(form(options="a: b: c")).problems[0].text.startswith("options: line 1, column 5")


def test_checks_are_a_list_of_yaml_and_each_mistake_has_its_place() -> None:
    found = drafts.read_form(form(key_columns="id", checks="- type: not_null\n  columns: [name]\n")).definition
    assert found is not None
    assert [check.label for check in found.checks] == ["not_null (name)"]
    assert drafts.read_form(form(checks="- type: [")).problems[0].text.startswith("checks: line 1, column")
    typed = "- type: not_null\n  columns: [name]\n- type: unique\n  colums: [name]\n"
    reading = drafts.read_form(form(checks=typed, options="on_reject: quarantine\nmax_rejects: many\n"))
    assert reading.definition is None
    assert any(one.text.startswith("checks: line 4, column 3: no field") for one in reading.problems), reading.problems
    assert any(one.text.startswith("options: line 2, column 1: options.max_rejects") for one in reading.problems)
    assert "checks" in drafts.read_form(form(checks="only words")).problems[0].text


def test_a_form_that_is_not_valid_keeps_every_text_as_yaml() -> None:
    text = drafts.yaml_of_form(form(name="No name!", batch_size="many", options="a: b: c", checks="- type: ["))
    assert all(typed in text for typed in ("No name!", "many", "a: b: c", "- type: [", "FROM content.genre"))


def test_a_mistake_in_yaml_has_its_line() -> None:
    problem = drafts.read_yaml("name: genres\ntarget_table: analytics.genres\nmod: full\n").problems[0]
    assert (problem.line, problem.column) == (3, 1)
    assert "did you mean `mode`?" in problem.text


def test_a_place_in_the_query_is_found_in_the_shown_text() -> None:
    text = "source query, line 2, column 3: syntax error"
    refused = DefinitionRefused([("source_query", ConfigError(text, place=Place(2, 3, "  FROM content.genre")))])
    typed = Problem("syntax error", "error", 2, 3)
    assert drafts.problems_of(refused, QUERY, QUERY) == [typed]
    assert drafts.problems_of(refused, f"\n\n{QUERY}", QUERY) == [Problem("syntax error", "error", 4, 3)]
    shown = drafts.yaml_of(definition())
    line = shown.split("\n").index("    FROM content.genre") + 1
    assert drafts.problems_of(refused, shown, QUERY) == [Problem("syntax error", "error", line, 5)]


def test_a_change_names_what_differs_and_gives_removed_options_their_default() -> None:
    old = definition(options={"on_reject": "quarantine", "max_rejects": 5})
    new = definition(schedule_interval="1h", options={"max_rejects": 6})
    assert drafts.changes(old, new) == {
        "schedule_interval": "1h",
        "options": {"max_rejects": 6, "on_reject": "fail"},
    }
    assert drafts.changes(old, old) == {}


def genre_table() -> TableBody:
    return TableBody.model_validate(
        {
            "schema": "content",
            "name": "genre",
            "kind": "table",
            "rows": 10,
            "columns": [],
            "key": ["id"],
            "cursors": [{"column": "modified", "type": "timestamptz", "is_modification": True, "reasons": ["indexed"]}],
        }
    )


def test_keys_and_cursors_of_the_tables_in_the_query_are_suggested() -> None:
    query = "SELECT g.id, g.modified FROM content.genre g"
    assert [one.columns for one in drafts.suggest_keys(query, [genre_table()])] == [("id",)]
    assert [one.column for one in drafts.suggest_cursors(query, [genre_table()])] == ["modified"]
    assert drafts.suggest_cursors("SELECT g.id FROM content.genre g", [genre_table()]) == []
    assert drafts.suggest_keys("SELECT 1 AS id -- content.genre", [genre_table()]) == []
    assert drafts.suggest_keys(query, [genre_table()], produced=["genre_id"]) == []


def test_fields_that_the_form_does_not_show_are_kept() -> None:
    stored = definition(key_columns=["id"]).model_copy(update={"source_type": "other"})
    assert drafts.fits_form(stored, stored)
    assert drafts.fields_of(drafts.form_of(stored), stored)["source_type"] == "other"
    # but the form would lose those that were typed as YAML
    assert not drafts.fits_form(stored, definition(key_columns=["id"]))
    assert not drafts.fits_form(stored)
