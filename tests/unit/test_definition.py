"""Definitions: what follows from the steps, options by connector, and the JSON schema of both."""

import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from tests.helpers import connectors
from tests.helpers.connectors import FAKE, SEARCH
from vitrine import input_errors
from vitrine.connectors.postgres import PostgresSinkOptions, PostgresSourceOptions
from vitrine.definition.model import Definition, Options, TaskType

QUERY = "SELECT id FROM content.genre"
SQL_STEP = {"order_index": 10, "task_type": "SQL", "body": QUERY}
PYTHON_STEP = {"order_index": 20, "task_type": "PYTHON", "body": "upper_case"}


class SearchOptions(BaseModel):
    refresh: bool = Field(default=False, description="Make rows searchable at once.")


class FeedOptions(BaseModel):
    page_size: int = Field(default=100, ge=1)


@pytest.fixture
def _others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink `idx:` and a source `feed`, each with an option of its own."""
    assert SEARCH.sink is not None
    assert FAKE.source is not None
    search = replace(SEARCH, sink=replace(SEARCH.sink, options=SearchOptions))
    feed = replace(FAKE, name="feed", source=replace(FAKE.source, options=FeedOptions), sink=None)
    connectors.install(monkeypatch, search, feed)


def definition(**fields: Any) -> Definition:
    return Definition.model_validate({"name": "genres", "target_table": "analytics.genres", **fields})


def refusal(**fields: Any) -> list[str]:
    with pytest.raises(ValidationError) as refused:
        definition(**fields)
    return [mistake.sentence for mistake in input_errors.explain(refused.value.errors(), Definition)]


def test_every_mistake_is_a_sentence_that_names_its_field() -> None:
    sentences = refusal(source_query=QUERY, batch_size=0, mode="incremental", tasks=[{"order_index": -1}])
    fields = ["batch_size", "tasks[0].order_index", "tasks[0].task_type"]
    assert [sentence.partition(":")[0] for sentence in sentences] == fields
    assert refusal(source_query=QUERY, mode="incremental") == [
        "mode incremental needs incremental_key, the column that grows with every change"
    ]


# -- batch size -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["auto", 1, 7, 50_000])
def test_a_batch_size_is_a_number_or_auto(size: int | str) -> None:
    assert definition(batch_size=size).batch_size == size


def test_the_batch_size_is_auto_by_default() -> None:
    assert definition().batch_size == "auto"


@pytest.mark.parametrize("size", [0, -1, 50_001, 1.5, "7", "Auto", "many", True, None])
def test_another_batch_size_is_refused(size: object) -> None:
    (sentence,) = refusal(batch_size=size)
    assert sentence.startswith("batch_size: give ")
    assert "auto" in sentence


# -- type -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"source_query": QUERY}, TaskType.SQL),
        ({"source_query": QUERY, "python_task": "upper_case"}, TaskType.PYTHON),
        ({"python_task": "calendar_days"}, TaskType.PYTHON),
        ({"tasks": [SQL_STEP]}, TaskType.SQL),
        ({"tasks": [SQL_STEP, PYTHON_STEP]}, TaskType.PYTHON),
        ({"tasks": [SQL_STEP], "python_task": "upper_case"}, TaskType.SQL),  # tasks take precedence
        ({}, TaskType.SQL),
    ],
)
def test_the_type_is_derived_from_the_steps(fields: dict[str, Any], expected: TaskType) -> None:
    assert definition(**fields).type is expected
    assert definition(**fields, type=expected).type is expected


def test_a_type_that_one_step_has_is_accepted_and_replaced_by_the_derived_one() -> None:
    assert definition(source_query=QUERY, python_task="upper_case", type="SQL").type is TaskType.PYTHON


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"source_query": QUERY}, "PYTHON"),
        ({"python_task": "calendar_days"}, "SQL"),
        ({"tasks": [SQL_STEP]}, "PYTHON"),
        ({"tasks": [PYTHON_STEP]}, "SQL"),
    ],
)
def test_a_type_that_contradicts_every_step_is_refused(fields: dict[str, Any], wrong: str) -> None:
    assert refusal(**fields, type=wrong) == [
        f"type {wrong} contradicts the steps, of which none is {wrong}; remove type"
    ]


# -- steps ------------------------------------------------------------------------------------------------------------


def test_query_and_python_task_are_the_short_form_of_steps() -> None:
    short = definition(source_query=QUERY, python_task="upper_case")
    assert [(step.task_type, step.body) for step in short.steps] == [
        (TaskType.SQL, QUERY),
        (TaskType.PYTHON, "upper_case"),
    ]
    assert (short.query, short.reader) == (QUERY, None)
    assert [step.body for step in short.transform_steps] == ["upper_case"]


def test_a_first_step_in_python_is_a_reader() -> None:
    read = definition(tasks=[{**PYTHON_STEP, "order_index": 30}, {**PYTHON_STEP, "body": "calendar_days"}])
    assert read.reader is not None
    assert (read.query, read.reader.body) == (None, "calendar_days")
    assert [step.body for step in read.transform_steps] == ["upper_case"]


@pytest.mark.parametrize(
    ("fields", "connector"),
    [
        ({"source_query": QUERY}, "postgres"),
        ({"source_query": QUERY, "source_type": "feed"}, "feed"),
        ({"python_task": "calendar_days"}, "python"),
        ({"python_task": "calendar_days", "source_type": "feed"}, "python"),
        ({}, "postgres"),
    ],
)
def test_a_definition_knows_the_connector_that_reads(fields: dict[str, Any], connector: str) -> None:
    assert definition(**fields).source_connector == connector


# -- options ----------------------------------------------------------------------------------------------------------


def test_options_are_those_of_every_pipeline_and_of_its_two_connectors() -> None:
    options = definition(
        source_query=QUERY, options={"max_rejects": 3, "lookback": "90s", "touch_column": "updated_at"}
    ).options
    assert isinstance(options, PostgresSourceOptions)
    assert isinstance(options, PostgresSinkOptions)
    assert (options.max_rejects, options.lookback, options.touch_column) == (3, timedelta(seconds=90), "updated_at")
    assert options.horizon_margin == timedelta(seconds=60)


def test_without_options_every_default_applies() -> None:
    options = definition(source_query=QUERY).options
    assert options.model_dump(exclude_defaults=True) == {}
    assert isinstance(options, PostgresSourceOptions)
    assert options == definition(source_query=QUERY, options={}).options


@pytest.mark.usefixtures("_others")
@pytest.mark.parametrize(
    ("fields", "accepted", "refused"),
    [
        ({"source_query": QUERY}, {"lookback": "1h", "touch_column": "at"}, {"refresh": True, "page_size": 1}),
        (
            {"source_query": QUERY, "target_table": "idx:genres"},
            {"lookback": "1h", "refresh": True},
            {"touch_column": "at", "page_size": 1},
        ),
        (
            {"source_query": "x", "source_type": "feed"},
            {"page_size": 1, "touch_column": "at"},
            {"lookback": "1h", "refresh": True},
        ),
        ({"python_task": "calendar_days"}, {"touch_column": "at"}, {"lookback": "1h", "refresh": True}),
        (
            {"source_query": "x", "source_type": "feed", "target_table": "idx:genres"},
            {"page_size": 1, "refresh": True},
            {"touch_column": "at", "lookback": "1h"},
        ),
    ],
)
def test_an_option_is_accepted_where_its_connector_reads_or_writes(
    fields: dict[str, Any], accepted: dict[str, Any], refused: dict[str, Any]
) -> None:
    options = definition(**fields, options={"max_rejects": 3, **accepted}).options
    assert options.model_dump(mode="json", exclude_defaults=True) == {"max_rejects": 3, **accepted}
    for name, value in refused.items():
        sentence = f"`options.{name}` does not apply to the source and target of this pipeline; remove it"
        assert refusal(**fields, options={name: value}) == [sentence]


def test_an_unknown_option_is_refused_with_the_nearest_one() -> None:
    assert refusal(options={"max_reject": 3}) == ["no field `options.max_reject`; did you mean `options.max_rejects`?"]


@pytest.mark.parametrize("fields", [{"source_type": "mysql"}, {"target_table": "nowhere:x"}])
def test_options_of_an_unknown_connector_are_left_to_the_check_that_reports_it(fields: dict[str, Any]) -> None:
    options = definition(**fields, options={"whatever": 1, "max_rejects": 3}).options
    assert options.model_dump(exclude_defaults=True) == {"max_rejects": 3}
    assert refusal(**fields, options={"max_rejects": -1}) != []


@pytest.mark.parametrize(
    ("option", "value"), [("lookback", "soon"), ("touch_column", "1st"), ("snapshot_max_age", -1), ("max_rejects", "x")]
)
def test_the_value_of_an_option_is_validated_by_its_own_model(option: str, value: object) -> None:
    (sentence,) = refusal(options={option: value})
    assert sentence.startswith(f"options.{option}: ")


def test_a_definition_survives_json_with_the_options_of_its_connectors() -> None:
    before = definition(source_query=QUERY, options={"lookback": "90s", "touch_column": "at", "max_rejects": 3})
    stored = before.model_dump(mode="json")
    assert (stored["options"]["lookback"], stored["options"]["touch_column"]) == ("90s", "at")
    after = Definition.model_validate(stored)
    assert after == before
    assert type(after.options) is type(before.options)


def test_options_of_a_model_are_validated_again_for_the_connectors() -> None:
    taken = definition(options=Options(max_rejects=3))
    assert isinstance(taken.options, PostgresSinkOptions)
    assert taken.options.max_rejects == 3


# -- JSON schema ------------------------------------------------------------------------------------------------------


def allowed_options(schema: dict[str, Any], target: str) -> set[str]:
    """Names that the schema's if/then rules allow for a target."""
    names = set(schema["$defs"]["Options"]["properties"])
    for rule in _definition_of(schema)["allOf"]:
        if re.search(rule["if"]["properties"]["target_table"]["pattern"], target):
            names &= set(rule["then"]["properties"]["options"]["propertyNames"]["enum"])
    return names


@pytest.mark.parametrize("tags", [["A"], [""], ["a b"], ["a", "a"], ["a" * 64], [1], "a", [str(n) for n in range(21)]])
def test_tags_that_are_no_names_or_given_twice_are_refused(tags: object) -> None:
    with pytest.raises(ValidationError):
        Definition.model_validate({"name": "a", "target_table": "analytics.a", "tags": tags})


def _definition_of(schema: dict[str, Any]) -> dict[str, Any]:
    return schema if "allOf" in schema else schema["$defs"]["Definition"]


@pytest.mark.usefixtures("_others")
@pytest.mark.parametrize(
    ("target", "expected"),
    [("analytics.genres", {"touch_column"}), ("idx:genres", {"refresh"})],
)
def test_the_schema_allows_the_options_of_the_sink_that_the_target_names(target: str, expected: set[str]) -> None:
    names = allowed_options(Definition.model_json_schema(), target)
    assert names & {"touch_column", "refresh"} == expected
    # a source is not known by the target: its options are allowed everywhere
    assert names >= {*Options.model_fields, *PostgresSourceOptions.model_fields, "page_size"}


@pytest.mark.usefixtures("_others")
def test_two_definitions_in_one_document_have_the_same_rules() -> None:
    class Extended(Definition):
        note: str = ""

    schema = TypeAdapter(tuple[Definition, Extended]).json_schema()
    assert schema["$defs"]["Extended"]["allOf"] == schema["$defs"]["Definition"]["allOf"]
    assert "touch_column" not in allowed_options(schema, "idx:genres")


@pytest.mark.usefixtures("_others")
def test_the_schema_describes_the_options_of_connectors() -> None:
    properties = Definition.model_json_schema()["$defs"]["Options"]["properties"]
    assert properties["refresh"]["description"] == "Make rows searchable at once."
    assert properties["page_size"]["minimum"] == 1
    assert properties["touch_column"]["description"] == PostgresSinkOptions.model_fields["touch_column"].description


@pytest.mark.usefixtures("_others")
@pytest.mark.parametrize("target", ["analytics.genres", "idx:genres"])
def test_schema_and_validation_agree_about_the_options_of_a_target(target: str) -> None:
    values = {"touch_column": "at", "refresh": True, "lookback": "1h", "max_rejects": 3, "unheard_of": 1}
    allowed = allowed_options(Definition.model_json_schema(), target)
    for name, value in values.items():
        fields = {"source_query": QUERY, "target_table": target, "options": {name: value}}
        if name in allowed:
            definition(**fields)
        else:
            refusal(**fields)
