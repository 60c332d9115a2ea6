"""A definition becomes a design, or is refused with every reason at once."""

from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import BaseModel, Field

from vitrine import plan, registry
from vitrine.errors import ConfigError
from vitrine.model import Definition, Row
from vitrine.plan import Design
from vitrine.policy import ReadOnlySql
from vitrine.registry import BoundTask, Kind, Task
from vitrine.settings import Settings

SETTINGS = Settings.model_validate({"database_url": "postgresql://localhost/cinema"})
QUERY = "SELECT id, name FROM content.genre"
SQL_STEP = {"order_index": 10, "task_type": "SQL", "body": QUERY}
PYTHON_STEP = {"order_index": 20, "task_type": "PYTHON", "body": "upper_case"}


class Shouting(BaseModel):
    marks: int = Field(default=1, ge=1)
    name: str = "!"


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of our own, in registries that are put back afterwards."""

    def unchanged(rows: Sequence[Row]) -> Sequence[Row]:
        return rows

    registry.load()
    transforms: dict[str, Any] = vars(registry.transforms)["_tasks"]
    for name, kind, options in (
        ("upper_case", Kind.ROW, None),
        ("lower_case", Kind.ROW, None),
        ("shout", Kind.ROW, Shouting),
        ("framed", Kind.FRAME, None),
    ):
        monkeypatch.setitem(transforms, name, Task(name, kind, unchanged, options))
    readers: dict[str, Any] = vars(registry.readers)["_tasks"]
    monkeypatch.setitem(readers, "numbers", Task("numbers", Kind.READER, unchanged, Shouting, (("id", "integer"),)))


def definition(**fields: Any) -> Definition:
    return Definition.model_validate({"name": "genres", "target_table": "analytics.genres", **fields})


def reasons(*, settings: Settings = SETTINGS, **fields: Any) -> tuple[str, list[str]]:
    with pytest.raises(ConfigError) as refused:
        plan.check(definition(**fields), settings)
    return refused.value.code, str(refused.value).split("; ")


def _query(design: Design) -> ReadOnlySql:
    assert isinstance(design.source, ReadOnlySql)
    return design.source


def names(design: Design) -> list[str]:
    return [task.name for task in design.tasks]


def test_a_query_and_a_target_are_enough() -> None:
    design = plan.check(definition(source_query=QUERY), SETTINGS)
    assert _query(design).text.split() == QUERY.split()
    assert (str(design.target), design.tasks) == ("analytics.genres", ())


def test_a_python_task_is_one_transform_after_the_query() -> None:
    design = plan.check(definition(type="PYTHON", source_query=QUERY, python_task="upper_case"), SETTINGS)
    assert names(design) == ["upper_case"]


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
    assert "content.genre" in _query(design).text
    assert names(design) == ["upper_case", "upper_case"]


def test_a_source_table_is_read_whole() -> None:
    step = {"order_index": 1, "task_type": "SQL", "source_table": "ugc.ratings"}
    assert _query(plan.check(definition(tasks=[step]), SETTINGS)).text == "SELECT * FROM ugc.ratings"


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
        ([PYTHON_STEP], "tasks: the first step must be SQL, or name a registered reader, for it reads"),
        ([{**SQL_STEP, "options": {"a": 1}}], "tasks: step 10 is SQL, which takes no options"),
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
    missing = "source_query is missing: say what to read, there, in tasks, or with a reader as python_task"
    assert reasons() == ("PLAN", [missing])
    assert reasons(source_query="  ")[0] == "PLAN"
    assert reasons(python_task="upper_case") == ("PLAN", [missing])


@pytest.mark.parametrize("name", ["os.system", "../upper_case", "a.b:c", "__class__", "Upper_Case", "normalise"])
def test_an_unknown_transform_is_named_with_those_installed(name: str) -> None:
    code, texts = reasons(source_query=QUERY, python_task=name)
    assert code == "UNKNOWN_TASK"
    installed = ", ".join(registry.transforms.names())
    assert texts == [f"unknown transform '{name}'", f"installed: {installed}"]
    code, texts = reasons(python_task=name)
    assert (code, texts) == ("UNKNOWN_TASK", [f"unknown reader '{name}'", "installed: calendar_days, numbers"])
    assert reasons(tasks=[{"order_index": 1, "task_type": "PYTHON", "body": name}])[0] == "UNKNOWN_TASK"


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
    assert _query(plan.check(incremental, SETTINGS)).uses_checkpoint


def test_a_module_of_the_settings_that_cannot_be_imported_is_told() -> None:
    settings = SETTINGS.model_copy(update={"transform_modules": ("no_such_module",)})
    with pytest.raises(ConfigError, match="cannot import 'no_such_module' named by VITRINE_TRANSFORM_MODULES"):
        plan.check(definition(source_query=QUERY), settings)


def test_a_reader_reads_where_there_is_no_query() -> None:
    design = plan.check(definition(type="PYTHON", python_task="numbers", source="nowhere"), SETTINGS)
    assert isinstance(design.source, BoundTask)
    assert (design.source.name, design.source.options, design.tasks) == ("numbers", Shouting(), ())


def test_a_reader_may_be_the_first_step_of_a_plan() -> None:
    first = {"order_index": 1, "task_type": "PYTHON", "body": "numbers", "options": {"marks": 3}}
    design = plan.check(definition(source_query=QUERY, tasks=[PYTHON_STEP, first]), SETTINGS)
    assert isinstance(design.source, BoundTask)
    assert (design.source.options, names(design)) == (Shouting(marks=3), ["upper_case"])


def test_the_options_of_a_step_are_validated_by_its_model() -> None:
    shout = {"order_index": 20, "task_type": "PYTHON", "body": "shout", "options": {"marks": 2}}
    (task,) = plan.check(definition(tasks=[SQL_STEP, shout]), SETTINGS).tasks
    assert task.options == Shouting(marks=2)
    assert plan.check(definition(source_query=QUERY, python_task="shout"), SETTINGS).tasks[0].options == Shouting()


@pytest.mark.parametrize(
    ("body", "options", "sentence"),
    [
        ("shout", {"marks": 0}, "'shout': options.marks: give a whole number of at least 1"),
        ("shout", {"mark": 2}, "'shout': no field `options.mark`; did you mean `options.marks`?"),
        ("upper_case", {"marks": 2}, "'upper_case' takes no options; remove marks"),
    ],
)
def test_wrong_options_are_reported_by_field_and_remedy(body: str, options: dict[str, Any], sentence: str) -> None:
    code, texts = reasons(tasks=[SQL_STEP, {**PYTHON_STEP, "body": body, "options": options}])
    assert (code, "; ".join(texts)) == ("TASK_OPTIONS", sentence)


def test_other_options_are_other_work() -> None:
    def fingerprint(options: dict[str, Any]) -> tuple[str, ...]:
        return plan.check(
            definition(tasks=[SQL_STEP, {**PYTHON_STEP, "body": "shout", "options": options}]), SETTINGS
        ).fingerprint()

    assert fingerprint({}) == fingerprint({"marks": 1}) != fingerprint({"marks": 2})


def test_frames_need_polars(monkeypatch: pytest.MonkeyPatch) -> None:
    plan.check(definition(source_query=QUERY, python_task="framed"), SETTINGS)
    monkeypatch.setattr(registry, "has_frames", lambda: False)
    code, texts = reasons(source_query=QUERY, python_task="framed")
    assert code == "EXTRA_MISSING"
    assert texts == ["transform 'framed' works on frames and needs polars: pip install 'vitrine-etl[frames]'"]
