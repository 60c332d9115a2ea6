"""A definition becomes a design, or is refused with every reason at once."""

from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from vitrine import plan, registry
from vitrine.errors import ConfigError
from vitrine.model import Definition, Row
from vitrine.settings import Settings

SETTINGS = Settings.model_validate({"database_url": "postgresql://localhost/cinema"})
QUERY = "SELECT id, name FROM content.genre"
SQL_STEP = {"order_index": 10, "task_type": "SQL", "body": QUERY}
PYTHON_STEP = {"order_index": 20, "task_type": "PYTHON", "body": "upper_case"}


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two transforms of our own, in a registry that is put back afterwards."""

    def unchanged(rows: Sequence[Row]) -> Sequence[Row]:
        return rows

    registry.transforms.load()
    known: dict[str, Any] = vars(registry.transforms)["_parts"]
    monkeypatch.setitem(known, "upper_case", unchanged)
    monkeypatch.setitem(known, "lower_case", unchanged)


def definition(**fields: Any) -> Definition:
    return Definition.model_validate({"name": "genres", "target_table": "analytics.genres", **fields})


def reasons(*, settings: Settings = SETTINGS, **fields: Any) -> tuple[str, list[str]]:
    with pytest.raises(ConfigError) as refused:
        plan.check(definition(**fields), settings)
    return refused.value.code, str(refused.value).split("; ")


def test_a_query_and_a_target_are_enough() -> None:
    design = plan.check(definition(source_query=QUERY), SETTINGS)
    assert design.query.text.split() == QUERY.split()
    assert (str(design.target), design.tasks) == ("analytics.genres", ())


def test_a_python_task_is_one_transform_after_the_query() -> None:
    design = plan.check(definition(type="PYTHON", source_query=QUERY, python_task="upper_case"), SETTINGS)
    assert design.tasks == ("upper_case",)


def test_a_task_plan_goes_by_its_order_and_before_the_query() -> None:
    design = plan.check(
        definition(
            source_query="SELECT id FROM content.person",
            python_task="lower_case",
            tasks=[
                {**PYTHON_STEP, "order_index": 7},
                {**SQL_STEP, "order_index": 3},
                {**PYTHON_STEP, "order_index": 5},
            ],
        ),
        SETTINGS,
    )
    assert "content.genre" in design.query.text
    assert design.tasks == ("upper_case", "upper_case")


def test_a_source_table_is_read_whole() -> None:
    step = {"order_index": 1, "task_type": "SQL", "source_table": "ugc.ratings"}
    assert plan.check(definition(tasks=[step]), SETTINGS).query.text == "SELECT * FROM ugc.ratings"


def test_a_source_table_goes_through_the_same_policy() -> None:
    step = {"order_index": 1, "task_type": "SQL", "source_table": "pg_catalog.pg_authid"}
    _, texts = reasons(tasks=[step])
    assert any("pg_authid" in text for text in texts)


def test_the_last_step_may_repeat_the_target() -> None:
    plan.check(definition(tasks=[SQL_STEP, {**PYTHON_STEP, "target_table": "analytics.genres"}]), SETTINGS)


@pytest.mark.parametrize(
    ("tasks", "sentence"),
    [
        ([SQL_STEP, {**PYTHON_STEP, "order_index": 10}], "tasks: two steps have the same order_index"),
        ([PYTHON_STEP], "tasks: the first step must be of type SQL, for it reads"),
        (
            [SQL_STEP, {**SQL_STEP, "order_index": 20}],
            "tasks: step 20 is SQL, but only the first step reads; the others are PYTHON",
        ),
        ([{**SQL_STEP, "body": None}], "tasks: step 10 has no body"),
        ([{**SQL_STEP, "body": " \n"}], "tasks: step 10 has no body"),
        ([SQL_STEP, {**PYTHON_STEP, "body": ""}], "tasks: step 20 has no body"),
        (
            [SQL_STEP, {**PYTHON_STEP, "source_table": "content.genre"}],
            "tasks: step 20 has a source_table, which only the SQL step may have",
        ),
        (
            [{**SQL_STEP, "source_table": "content.genre"}],
            "tasks: step 10 has both a body and a source_table; keep one",
        ),
        (
            [{**SQL_STEP, "target_table": "analytics.genres"}, PYTHON_STEP],
            "tasks: step 10 has a target_table, which only the last step may have",
        ),
        (
            [SQL_STEP, {**PYTHON_STEP, "target_table": "analytics.other"}],
            "tasks: step 20 writes to 'analytics.other', the pipeline to 'analytics.genres'; say one",
        ),
    ],
)
def test_a_broken_contract_of_the_task_plan_is_told(tasks: list[dict[str, Any]], sentence: str) -> None:
    code, texts = reasons(tasks=tasks)
    assert code == "PLAN"
    assert sentence in "; ".join(texts)


def test_every_broken_rule_is_told_at_once() -> None:
    _, texts = reasons(
        source="shop",
        target_table="content.genre",
        tasks=[
            {"order_index": 10, "task_type": "SQL", "body": "DELETE FROM content.genre"},
            {"order_index": 10, "task_type": "PYTHON", "body": "os.system", "source_table": "content.genre"},
            {"order_index": 20, "task_type": "SQL", "target_table": "analytics.genres"},
        ],
    )
    text = "; ".join(texts)
    for part in (
        "two steps have the same order_index",
        "step 10 has a source_table",
        "step 20 is SQL",
        "step 20 has no body",
        "unknown transform 'os.system'",
        "SELECT",
        "outside the allowed targets",
        "unknown source 'shop'",
    ):
        assert part in text, part


def test_a_definition_that_reads_nothing_is_refused() -> None:
    assert reasons() == ("PLAN", ["source_query is missing: say what to read, there or in tasks"])
    assert reasons(source_query="  ")[0] == "PLAN"


@pytest.mark.parametrize("name", ["os.system", "../upper_case", "a.b:c", "__class__", "Upper_Case", "normalise"])
def test_an_unknown_transform_is_named_with_those_installed(name: str) -> None:
    code, texts = reasons(source_query=QUERY, python_task=name)
    assert code == "UNKNOWN_TASK"
    assert texts == [f"unknown transform '{name}'", "installed: audience_segment, lower_case, upper_case"]


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("content.genre", "TARGET_NOT_ALLOWED"),
        ("etl.etl_pipelines", "TARGET_NOT_ALLOWED"),
        ("analytics.a; DROP", "BAD_TARGET"),
        ("genres", "BAD_TARGET"),
    ],
)
def test_a_target_outside_the_allow_list_is_refused(target: str, code: str) -> None:
    assert reasons(source_query=QUERY, target_table=target)[0] == code


def test_an_index_is_refused_until_there_is_a_sink_for_it() -> None:
    code, texts = reasons(source_query=QUERY, target_table="es:genres")
    assert (code, texts) == ("TARGET", ["target_table 'es:genres': only analytics.<table> can be written yet"])


def test_the_checkpoint_belongs_to_incremental_pipelines_only() -> None:
    query = "SELECT id, modified FROM content.genre WHERE modified >= $1"
    code, texts = reasons(source_query=query)
    assert (code, texts) == ("PARAM", ["$1 is the checkpoint of an incremental pipeline", "a full one has none"])
    incremental = definition(
        source_query=query, mode="incremental", incremental_key="modified", incremental_id_key="id"
    )
    assert plan.check(incremental, SETTINGS).query.uses_checkpoint


def test_a_module_of_the_settings_that_cannot_be_imported_is_told() -> None:
    settings = SETTINGS.model_copy(update={"transform_modules": ("no_such_module",)})
    with pytest.raises(ConfigError, match="cannot import 'no_such_module' named by VITRINE_TRANSFORM_MODULES"):
        plan.check(definition(source_query=QUERY), settings)


def test_complaints_of_the_model_are_sentences_that_name_the_field() -> None:
    with pytest.raises(ValidationError) as refused:
        definition(source_query=QUERY, batch_size=0, mode="incremental", tasks=[{"order_index": -1}])
    sentences = plan.sentences(refused.value)
    assert [sentence.partition(":")[0] for sentence in sentences] == [
        "batch_size",
        "tasks.0.order_index",
        "tasks.0.task_type",
    ]
    with pytest.raises(ValidationError) as refused:
        definition(source_query=QUERY, mode="incremental")
    assert plan.sentences(refused.value) == [
        "mode incremental needs incremental_key, the column that grows with every change"
    ]
