"""A definition becomes a plan, or is refused with every reason at once."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

from tests.helpers import connectors
from tests.helpers.connectors import FAKE, SEARCH, FakeSink, FakeSource
from tests.helpers.tasks import register
from vitrine.connectors.postgres.sink.sink import PostgresSink
from vitrine.connectors.postgres.source.source import PostgresSource
from vitrine.connectors.python_reader.source import PythonReaderSource
from vitrine.core.protocols import Limits
from vitrine.core.rows import START, Batch, Column, Finding, FrameRows, Lane, Row, TextRows
from vitrine.core.status import PipelineId, RunId, RunOptions
from vitrine.definition import registry
from vitrine.definition.model import Definition
from vitrine.definition.pipeline import Claim
from vitrine.definition.registry import Kind, Task
from vitrine.errors import ConfigError
from vitrine.plan import planner
from vitrine.plan.planner import CheckedDefinition, Prepared
from vitrine.settings import Settings

SETTINGS = Settings.model_validate(
    {"database_url": "postgresql://localhost/cinema", "sources": {"other": "postgresql://localhost/other"}}
)
QUERY = "SELECT id, name FROM content.genre"
SQL_STEP = {"order_index": 10, "task_type": "SQL", "body": QUERY}
PYTHON_STEP = {"order_index": 20, "task_type": "PYTHON", "body": "upper_case"}


class Shouting(BaseModel):
    marks: int = Field(default=1, ge=1)
    name: str = "!"


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks and a connector of our own."""

    def unchanged(rows: Sequence[Row]) -> Sequence[Row]:
        return rows

    for name, kind, options in (
        ("upper_case", Kind.ROW, None),
        ("lower_case", Kind.ROW, None),
        ("shout", Kind.ROW, Shouting),
        ("framed", Kind.FRAME, None),
    ):
        register(monkeypatch, Task(name, kind, unchanged, options))
    register(monkeypatch, Task("numbers", Kind.READER, unchanged, Shouting, (("id", "integer"),)))
    connectors.install(monkeypatch, FAKE)


def definition(**fields: Any) -> Definition:
    return Definition.model_validate({"name": "genres", "target_table": "analytics.genres", **fields})


def checked(**fields: Any) -> CheckedDefinition:
    return planner.check(definition(**fields), SETTINGS)


def reasons(*, settings: Settings = SETTINGS, **fields: Any) -> tuple[str, list[str]]:
    with pytest.raises(ConfigError) as refused:
        planner.check(definition(**fields), settings)
    return refused.value.code, str(refused.value).split("; ")


def names(accepted: CheckedDefinition) -> list[str]:
    return [task.name for task in accepted.tasks]


def test_a_query_and_a_target_are_enough() -> None:
    accepted = checked(source_query=QUERY)
    assert (type(accepted.source), type(accepted.sink)) == (PostgresSource, PostgresSink)
    assert accepted.definition.query == QUERY
    assert (str(accepted.target), accepted.tasks) == ("analytics.genres", ())


def test_a_python_task_is_one_transform_after_the_query() -> None:
    accepted = checked(type="PYTHON", source_query=QUERY, python_task="upper_case")
    assert names(accepted) == ["upper_case"]


def test_a_task_plan_is_ordered_and_takes_precedence_over_the_query() -> None:
    accepted = checked(
        source_query="SELECT id FROM content.person",
        python_task="lower_case",
        tasks=[
            {**PYTHON_STEP, "order_index": 7},
            {**SQL_STEP, "order_index": 3},
            {**PYTHON_STEP, "order_index": 5},
        ],
    )
    assert accepted.definition.query == QUERY
    assert names(accepted) == ["upper_case", "upper_case"]


def test_a_source_table_is_read_completely() -> None:
    step = {"order_index": 1, "task_type": "SQL", "source_table": "ugc.ratings"}
    assert checked(tasks=[step]).definition.query == "SELECT * FROM ugc.ratings"


def test_a_source_table_is_checked_by_the_same_policy() -> None:
    step = {"order_index": 1, "task_type": "SQL", "source_table": "pg_catalog.pg_authid"}
    _, texts = reasons(tasks=[step])
    assert any("pg_authid" in text for text in texts)


def test_the_last_step_may_repeat_the_target() -> None:
    checked(tasks=[SQL_STEP, {**PYTHON_STEP, "target_table": "analytics.genres"}])


@pytest.mark.parametrize(
    ("tasks", "sentence"),
    [
        ([SQL_STEP, {**PYTHON_STEP, "order_index": 10}], "tasks: two steps have the same order_index"),
        ([PYTHON_STEP], "tasks: the first step reads, so it must be SQL or name a registered reader"),
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
    ],
)
def test_a_broken_contract_of_the_task_plan_is_reported(tasks: list[dict[str, Any]], sentence: str) -> None:
    code, texts = reasons(tasks=tasks)
    assert code == "PLAN"
    assert sentence in "; ".join(texts)


def test_every_broken_rule_is_reported_at_once() -> None:
    _, texts = reasons(
        source="shop",
        target_table="content.genre",
        tasks=[
            {"order_index": 10, "task_type": "SQL", "body": "DELETE FROM content.genre"},
            {"order_index": 10, "task_type": "PYTHON", "body": "os.system", "source_table": "content.genre"},
            {"order_index": 20, "task_type": "SQL", "target_table": "content.person"},
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
    missing = "source_query is missing: give the query to read, tasks, or a reader as python_task"
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


def test_a_target_is_refused_unless_a_connector_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    code, texts = reasons(source_query=QUERY, target_table="idx:genres")
    assert (code, texts[0]) == ("BAD_TARGET", "target 'idx:genres' is not a valid name")
    assert "no installed connector writes 'idx:' targets" in texts[1]
    connectors.install(monkeypatch, SEARCH)
    assert isinstance(checked(source_query=QUERY, target_table="idx:genres").sink, FakeSink)


def test_the_checkpoint_belongs_to_incremental_pipelines_only() -> None:
    query = "SELECT id, modified FROM content.genre WHERE modified >= $1"
    code, texts = reasons(source_query=query)
    assert (code, texts) == ("PARAM", ["$1 is the checkpoint of an incremental pipeline", "a full one has none"])
    incremental = checked(source_query=query, mode="incremental", incremental_key="modified", incremental_id_key="id")
    assert incremental.definition.query == query


def test_a_module_of_the_settings_that_cannot_be_imported_is_reported() -> None:
    settings = SETTINGS.model_copy(update={"transform_modules": ("no_such_module",)})
    with pytest.raises(ConfigError, match="cannot import 'no_such_module' named by VITRINE_TRANSFORM_MODULES"):
        planner.check(definition(source_query=QUERY, python_task="capitalise"), settings)
    planner.check(definition(source_query=QUERY), settings)  # it runs no Python


def test_a_reader_reads_where_there_is_no_query() -> None:
    accepted = checked(type="PYTHON", python_task="numbers", source="nowhere")
    assert isinstance(accepted.source, PythonReaderSource)
    assert accepted.source.describe().columns == (Column("id", "integer"),)
    assert accepted.source.describe().fingerprint == f"numbers {Shouting().model_dump_json()}"
    assert accepted.tasks == ()


def test_a_reader_may_be_the_first_step_of_a_plan() -> None:
    first = {"order_index": 1, "task_type": "PYTHON", "body": "numbers", "options": {"marks": 3}}
    accepted = checked(source_query=QUERY, tasks=[PYTHON_STEP, first])
    assert isinstance(accepted.source, PythonReaderSource)
    assert accepted.source.describe().fingerprint == f"numbers {Shouting(marks=3).model_dump_json()}"
    assert names(accepted) == ["upper_case"]


def test_the_options_of_a_step_are_validated_by_its_model() -> None:
    shout = {"order_index": 20, "task_type": "PYTHON", "body": "shout", "options": {"marks": 2}}
    (task,) = checked(tasks=[SQL_STEP, shout]).tasks
    assert task.options == Shouting(marks=2)
    assert checked(source_query=QUERY, python_task="shout").tasks[0].options == Shouting()


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


def test_frames_need_polars(monkeypatch: pytest.MonkeyPatch) -> None:
    checked(source_query=QUERY, python_task="framed")
    monkeypatch.setattr(registry, "has_frames", lambda: False)
    code, texts = reasons(source_query=QUERY, python_task="framed")
    assert code == "EXTRA_MISSING"
    assert texts == [
        "transform 'framed' works on frames and needs the extra `frames`: pip install 'vitrine-etl[frames]'"
    ]


def test_both_sides_get_the_settings_of_their_own_connector() -> None:
    settings = SETTINGS.model_copy(update={"connectors": {"fake": {"fingerprint": "another"}}})
    accepted = planner.check(definition(source_type="fake", source_query="x", target_table="fake:genres"), settings)
    assert isinstance(accepted.source, FakeSource)
    assert isinstance(accepted.sink, FakeSink)
    assert accepted.source.job.settings.fingerprint == accepted.sink.job.settings.fingerprint == "another"
    assert accepted.source.job.url == accepted.sink.job.store_url == "postgresql://localhost/cinema"
    assert (str(accepted.sink.job.target), accepted.sink.job.target.name) == ("fake:genres", "genres")


def test_an_unknown_source_type_is_reported_with_those_installed() -> None:
    code, texts = reasons(source_type="mysql", source_query=QUERY)
    assert (code, texts) == (
        "UNKNOWN_SOURCE_TYPE",
        ["unknown source_type 'mysql'", "installed: fake, postgres, python"],
    )


def test_an_unknown_connection_does_not_hide_what_is_wrong_with_the_query() -> None:
    code, texts = reasons(source="shop", source_query="SELECT id FROM secret.table")
    assert (code, texts[0]) == ("UNKNOWN_SOURCE", "unknown source 'shop'")
    assert any("secret.table" in text for text in texts)


# -- allowed targets --------------------------------------------------------------------------------------------------


def test_by_default_the_targets_of_configured_connectors_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert planner.allowed_targets(SETTINGS) == ("analytics.*", "fake:*")

    class Unconfigured(BaseModel):
        is_configured: bool = False

    connectors.install(monkeypatch, replace(SEARCH, settings=Unconfigured))
    assert planner.allowed_targets(SETTINGS) == ("analytics.*", "fake:*")
    configured = SETTINGS.model_copy(update={"connectors": {"search": {"is_configured": True}}})
    assert planner.allowed_targets(configured) == ("analytics.*", "fake:*", "idx:*")


@pytest.mark.parametrize("allowed", [("analytics.films_*",), ()])
def test_configured_targets_replace_the_default(allowed: tuple[str, ...]) -> None:
    settings = SETTINGS.model_copy(update={"allowed_targets": allowed})
    assert planner.allowed_targets(settings) == allowed
    assert reasons(settings=settings, source_query=QUERY)[0] == "TARGET_NOT_ALLOWED"


# -- throttle ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lane", "batch_rows", "batch_bytes"),
    [
        (Lane.COPY, 50_000, 32 * 1024 * 1024),
        (Lane.TEXT, 20_000, 8 * 1024 * 1024),
        (Lane.FRAMES, 20_000, 32 * 1024 * 1024),
        (Lane.ROWS, 5_000, 8 * 1024 * 1024),
    ],
)
def test_the_lane_decides_the_size_of_a_batch_unless_it_is_configured(
    lane: Lane, batch_rows: int, batch_bytes: int
) -> None:
    automatic = definition(source_query=QUERY)
    assert planner.limits_of(automatic, lane) == Limits(batch_rows, batch_bytes)
    configured = definition(source_query=QUERY, batch_size=7, options={"max_batch_bytes": 4096})
    assert planner.limits_of(configured, lane) == Limits(7, 4096)


def test_the_throttle_of_a_definition_becomes_limits() -> None:
    options = {"max_rows_per_second": 10, "pause_between_batches": "3s"}
    limits = planner.limits_of(definition(source_query=QUERY, options=options), Lane.COPY)
    assert (limits.max_rows_per_second, limits.pause_between_batches) == (10, timedelta(seconds=3))


# -- plans ------------------------------------------------------------------------------------------------------------


def prepared(answers: dict[str, Any] | None = None, **fields: Any) -> Prepared:
    """The plan between a source and a sink that answer this."""
    settings = SETTINGS.model_copy(update={"connectors": {"fake": answers or {}}})
    fields = {"source_type": "fake", "source_query": "x", "target_table": "fake:genres", **fields}
    return planner.prepare(planner.check(definition(**fields), settings))


INCREMENTAL: dict[str, Any] = {"mode": "incremental", "incremental_key": "modified", "incremental_id_key": "id"}


def test_a_full_load_is_read_in_the_order_of_the_key() -> None:
    made = prepared(mode="full", incremental_key="modified").plan
    assert (made.incremental, made.order, made.cursor_column) == (False, ("id",), "modified")
    assert made.cursor_types == "id integer"


def test_changes_are_read_in_the_order_of_the_cursor_and_of_what_breaks_its_ties() -> None:
    made = prepared(**INCREMENTAL).plan
    assert (made.incremental, made.order, made.cursor_column) == (True, ("modified", "id"), "modified")
    assert made.cursor_types == "modified timestamp with time zone, id integer"


def test_a_key_of_one_column_breaks_ties_by_default() -> None:
    fields: dict[str, Any] = {"mode": "incremental", "incremental_key": "modified", "key_columns": ["id"]}
    assert prepared(**fields).plan.order == ("modified", "id")


@pytest.mark.parametrize(
    ("fields", "answers"),
    [
        ({"python_task": "numbers", "source_query": None, **INCREMENTAL}, {}),
        ({}, {"key": ("modified",), "columns": ()}),
    ],
)
def test_a_key_or_cursor_that_is_no_column_is_refused(fields: dict[str, Any], answers: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match="has no column 'modified', which the pipeline names as key or cursor; it has: "
    ) as refused:
        prepared(answers, **fields)
    assert refused.value.code == "SCHEMA_CHANGED"


def test_options_of_the_definition_become_fields_of_the_plan() -> None:
    made = prepared().plan
    assert (made.skip_null, made.last_wins, made.max_delete_ratio) == (False, False, 0.5)
    options = {
        "on_null_cursor": "ignore",
        "on_duplicate_key": "last",
        "max_delete_ratio": 0.1,
        "max_staging_age": "5m",
    }
    made = prepared(options=options).plan
    assert (made.skip_null, made.last_wins, made.max_delete_ratio) == (True, True, 0.1)
    assert made.max_staging_age == timedelta(minutes=5)


@pytest.mark.parametrize(
    ("fields", "user_code", "reads_user_code"),
    [
        ({}, False, False),
        ({"python_task": "upper_case"}, True, False),
        ({"source_query": None, "python_task": "numbers"}, False, True),
    ],
)
def test_a_plan_knows_where_code_of_the_user_runs(
    fields: dict[str, Any], user_code: bool, reads_user_code: bool
) -> None:
    made = prepared(**fields).plan
    assert (made.user_code, made.reads_user_code) == (user_code, reads_user_code)


def test_the_sink_checks_the_columns_of_the_source_unless_a_transform_may_change_them() -> None:
    sink = prepared().plan.sink
    assert isinstance(sink, FakeSink)
    assert [column.name for column in sink.described or ()] == ["id", "modified"]
    sink = prepared(python_task="upper_case").plan.sink
    assert isinstance(sink, FakeSink)
    assert sink.described == ()


def test_fatal_findings_are_refused_all_at_once_and_both_sides_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    def close(side: FakeSource | FakeSink) -> None:
        closed.append(type(side).__name__)

    monkeypatch.setattr(FakeSource, "close", close)
    monkeypatch.setattr(FakeSink, "close", close)
    findings = (
        Finding("ODD", "a mere warning"),
        Finding("KEY", "no key", fatal=True),
        Finding("TYPE", "no such type", "id", fatal=True),
    )
    assert prepared({"findings": findings[:1]}).plan.target.findings == findings[:1]
    assert closed == []
    with pytest.raises(ConfigError, match=r"^no key; no such type$") as refused:
        prepared({"findings": findings})
    assert (refused.value.code, closed) == ("KEY", ["FakeSource", "FakeSink"])


@pytest.mark.promise("M6")
def test_a_check_that_a_sink_does_not_know_is_refused_and_not_ignored() -> None:
    check = {"type": "not_null", "columns": ["id"]}
    with pytest.raises(ConfigError, match=r"has no checks of type not_null; it has none$") as refused:
        prepared(checks=[check])
    assert refused.value.code == "CHECK_UNSUPPORTED"


def test_a_refused_query_of_a_check_is_a_reason_of_its_field() -> None:
    code, texts = reasons(
        source_query=QUERY, checks=[{"type": "sql", "name": "mine", "query": "SELECT 1 FROM x, mart"}]
    )
    assert code == "SCHEMA"
    assert texts[0].startswith("check 'mine', line 1, column 15: table 'x' cannot be read by a check")


def test_closing_what_was_prepared_closes_both_sides() -> None:
    made = prepared()
    source, sink = made.plan.source, made.plan.sink
    assert isinstance(source, FakeSource)
    assert isinstance(sink, FakeSink)
    made.close()
    assert (source.calls, sink.calls) == (["close source"], ["close sink"])


def test_both_sides_know_the_run_they_work_for() -> None:
    pipeline, options = PipelineId(UUID(int=7)), RunOptions(allow_shrink=True)
    fake = definition(source_type="fake", source_query="x", target_table="fake:genres")
    claim = Claim(pipeline, fake, RunId(1), 42, 0.0, 2, options, config_version=3, taken_over=True, tag="ab")
    made = planner.build(claim, SETTINGS, planner.NoLease(), planner.Known("here", ["1/2"], {"offset": 5})).plan
    assert isinstance(made.source, FakeSource)
    assert isinstance(made.sink, FakeSink)
    assert made.source.job.run == made.sink.job.run
    run = made.sink.job.run
    assert (run.session, run.pipeline_id, run.installation) == ("vitrine:ab:42", pipeline, "here")
    assert (run.taken_over, run.log_fields["run_id"]) == (True, 1)
    assert (made.sink.job.open_rejects, made.sink.job.facts) == (["1/2"], {"offset": 5})
    assert made.max_delete_ratio is None


# -- fingerprints -----------------------------------------------------------------------------------------------------


def test_other_options_of_a_step_change_the_fingerprint() -> None:
    def fingerprint(options: dict[str, Any]) -> str:
        step = {**PYTHON_STEP, "body": "shout", "options": options}
        return prepared(source_query=None, tasks=[SQL_STEP, step]).plan.fingerprint

    assert fingerprint({}) == fingerprint({"marks": 1}) != fingerprint({"marks": 2})


COLUMNS = (Column("id", "integer"), Column("modified", "timestamp with time zone"))
OTHER_COLUMNS = (Column("id", "bigint"), COLUMNS[1])


@pytest.mark.parametrize(
    ("answers", "fields"),
    [
        ({"fingerprint": "another query"}, {}),
        ({"columns": OTHER_COLUMNS}, {}),
        ({"key": ("id", "modified")}, {}),
        ({}, {"python_task": "upper_case"}),
        ({}, {"target_table": "fake:others"}),
        ({}, {"source": "other"}),
        ({}, INCREMENTAL),
    ],
)
def test_whatever_staged_rows_depend_on_changes_the_fingerprint(
    answers: dict[str, Any], fields: dict[str, Any]
) -> None:
    assert prepared(answers, **fields).plan.fingerprint != prepared().plan.fingerprint


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "another", "description": "text", "batch_size": 7, "schedule_interval": "5m"},
        {"options": {"max_rejects": 3, "max_rows_per_second": 9}},
    ],
)
def test_fields_that_do_not_concern_staged_rows_keep_the_fingerprint(fields: dict[str, Any]) -> None:
    assert prepared(**fields).plan.fingerprint == prepared().plan.fingerprint


# -- lanes ------------------------------------------------------------------------------------------------------------

COPY, TEXT, ROWS, FRAMES = Lane.COPY, Lane.TEXT, Lane.ROWS, Lane.FRAMES


def route(source: Sequence[Lane], sink: Sequence[Lane], *tasks: str) -> tuple[Lane, Lane, int]:
    """Lane of the read, lane of the sink, and number of steps between."""
    steps = [{"order_index": 1, "task_type": "SQL", "body": "x"}]
    steps += [{"order_index": 2 + place, "task_type": "PYTHON", "body": task} for place, task in enumerate(tasks)]
    made = prepared({"source_lanes": source, "sink_lanes": sink}, source_query=None, tasks=steps)
    return made.plan.lane, made.lane, len(made.plan.transforms)


def refused_route(source: Sequence[Lane], sink: Sequence[Lane], *tasks: str) -> str:
    with pytest.raises(ConfigError) as refused:
        route(source, sink, *tasks)
    assert refused.value.code == "NO_LANE"
    return str(refused.value)


@pytest.mark.parametrize(("read", "written"), list(product(Lane, Lane)))
def test_every_pair_of_lanes_has_a_route_unless_binary_rows_would_be_converted(read: Lane, written: Lane) -> None:
    if read is written:
        assert route([read], [written]) == (read, written, 0)
    elif COPY in (read, written):
        assert refused_route([read], [written]) == f"no lane connects the source ({read}) to the sink ({written})"
    else:
        assert route([read], [written]) == (read, written, 1)


@pytest.mark.parametrize(
    ("source", "sink", "expected"),
    [
        ([COPY, TEXT], [COPY, FRAMES, TEXT, ROWS], (COPY, COPY, 0)),
        ([COPY, TEXT], [ROWS, TEXT], (TEXT, TEXT, 0)),
        ([COPY, TEXT], [TEXT, COPY], (TEXT, TEXT, 0)),  # the sink's first choice that the source has
        ([COPY, TEXT], [FRAMES, ROWS], (TEXT, FRAMES, 1)),
        ([ROWS], [COPY, FRAMES, TEXT, ROWS], (ROWS, ROWS, 0)),
        ([ROWS], [COPY, TEXT], (ROWS, TEXT, 1)),
        ([FRAMES], [COPY, TEXT], (FRAMES, TEXT, 1)),
    ],
)
def test_without_transforms_the_sink_chooses_among_the_lanes_of_the_source(
    source: list[Lane], sink: list[Lane], expected: tuple[Lane, Lane, int]
) -> None:
    assert route(source, sink) == expected


@pytest.mark.parametrize(
    ("source", "sink", "tasks", "expected"),
    [
        ([COPY, TEXT], [COPY, FRAMES, TEXT, ROWS], ["upper_case"], (TEXT, ROWS, 1)),
        ([COPY, TEXT], [COPY, FRAMES, TEXT, ROWS], ["framed"], (TEXT, FRAMES, 1)),
        ([COPY, TEXT, ROWS], [ROWS], ["upper_case"], (ROWS, ROWS, 1)),
        ([TEXT, FRAMES], [FRAMES], ["framed"], (FRAMES, FRAMES, 1)),
        ([ROWS], [FRAMES], ["framed"], (ROWS, FRAMES, 1)),
        ([FRAMES], [ROWS], ["upper_case"], (FRAMES, ROWS, 1)),
        # what comes out of the last transform is converted if the sink does not take it
        ([TEXT], [COPY, TEXT], ["framed"], (TEXT, TEXT, 2)),
        ([TEXT], [FRAMES, TEXT], ["framed", "upper_case"], (TEXT, ROWS, 3)),
        # a transform of single rows decides the size of batches, wherever it stands
        ([TEXT], [FRAMES], ["upper_case", "framed"], (TEXT, ROWS, 2)),
        ([TEXT], [TEXT], ["upper_case"], (TEXT, ROWS, 2)),
    ],
)
def test_transforms_decide_the_lane_of_the_read(
    source: list[Lane], sink: list[Lane], tasks: list[str], expected: tuple[Lane, Lane, int]
) -> None:
    assert route(source, sink, *tasks) == expected


@pytest.mark.parametrize(("source", "sink"), [([COPY], [ROWS]), ([TEXT], [COPY]), ([COPY], [COPY])])
def test_transforms_neither_read_nor_write_binary_rows(source: list[Lane], sink: list[Lane]) -> None:
    assert "no lane connects the source" in refused_route(source, sink, "upper_case")


def test_the_steps_of_a_plan_return_rows_in_the_lane_of_the_sink() -> None:
    made = prepared({"source_lanes": [TEXT], "sink_lanes": [FRAMES]}).plan
    batch = Batch(TextRows(b"1\t2026-01-01 00:00:00+00\n", 1), COLUMNS, None, START)
    for step in made.transforms:
        batch = step(batch)
    assert isinstance(batch.payload, FrameRows)
    assert batch.payload.frame["id"].to_list() == [1]
