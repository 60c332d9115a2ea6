"""Plans: the numbers of a plan are those of the run that follows, and a plan writes nothing."""

from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.helpers.events import EVENTS, create_events, create_filled, create_target, fill_events
from tests.helpers.planning_changes import carry_out, effect, figures, of_run, planned
from tests.helpers.running import create, succeed
from tests.helpers.tasks import register
from vitrine.cli.backends.local import local_context
from vitrine.compare import row_changes
from vitrine.definition.pipeline import Pipeline
from vitrine.definition.registry import Kind, Task
from vitrine.errors import Forbidden
from vitrine.operations import changes as revisions
from vitrine.operations import plans
from vitrine.operations.context import Caller, Role
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import pipelines, state

ROWS = 300
CHANGES: dict[str, dict[str, Any]] = {
    "another value": {
        "source_query": "SELECT id, note || CASE WHEN id % 3 = 0 THEN '!' ELSE '' END AS note, modified FROM ugc.events"
    },
    "fewer rows": {"source_query": f"{EVENTS} WHERE id > 20 AND id % 7 <> 0"},
    "more rows": {
        "source_query": f"{EVENTS} UNION ALL SELECT id + 1000, 'more', modified FROM ugc.events WHERE id <= 40"
    },
    "everything": {
        "source_query": "SELECT id + 100 AS id, upper(note) || 'x' AS note, modified FROM ugc.events WHERE id > 30"
    },
    "a new column": {
        "source_query": "SELECT id, note, modified, CASE WHEN id > 50 THEN id * 2 END AS twice FROM ugc.events",
        "options": {"on_schema_change": "add_columns"},
    },
    "a column less": {"source_query": "SELECT id, modified FROM ugc.events WHERE id <> 5"},
    "nothing": {},
}
changes = pytest.mark.parametrize("fields", CHANGES.values(), ids=CHANGES)


@changes
def test_a_full_pipeline_does_what_its_plan_says(
    connection: Connection, settings: Settings, fields: dict[str, Any]
) -> None:
    pipeline = create_filled(connection, settings, "full", ROWS)
    succeed(connection, settings, pipeline)
    connection.execute("UPDATE ugc.events SET note = 'newer' WHERE id IN (8, 9)")
    connection.execute("DELETE FROM ugc.events WHERE id = 200")
    found = of_run(planned(settings, pipeline, **fields), "next")
    ran: list[tuple[int, int]] = []
    real = effect(
        connection, "analytics.events", lambda: ran.append(carry_out(connection, settings, pipeline, **fields))
    )
    assert figures(found) == real
    assert ran == [(found.written, found.removed)]
    assert (found.method, found.refused, found.reads) == ("exact", None, "everything")


@changes
@pytest.mark.parametrize("run", ["keep", "reset", "full"])
def test_an_incremental_pipeline_does_what_its_plan_says_for_every_choice(
    connection: Connection, settings: Settings, fields: dict[str, Any], run: str
) -> None:
    pipeline = create_filled(connection, settings, "incremental", ROWS)
    succeed(connection, settings, pipeline)
    connection.execute("UPDATE ugc.events SET note = 'newer', modified = now() WHERE id IN (8, 9, 299)")
    connection.execute("UPDATE ugc.events SET note = 'not moved' WHERE id = 10")
    connection.execute("DELETE FROM ugc.events WHERE id = 200")
    connection.execute("INSERT INTO ugc.events VALUES (900, 'new', now())")
    plan = planned(settings, pipeline, **fields)
    changes_query = "source_query" in fields
    assert plan.state.choices == (["keep", "reset"] if changes_query else [])
    found = of_run(plan, run if changes_query or run == "full" else "next")
    ran: list[tuple[int, int]] = []
    if changes_query:
        chosen: dict[str, Any] = {"state": "reset" if run == "full" else run}
    else:
        chosen = {"state": "reset"} if run == "reset" else {}
        found = found if run != "reset" else of_run(planned(settings, pipeline, state="reset"), "reset")
    real = effect(
        connection,
        "analytics.events",
        lambda: ran.append(carry_out(connection, settings, pipeline, full=run == "full", **chosen, **fields)),
    )
    assert figures(found) == real
    assert ran == [(found.written, found.removed)]
    assert found.reads == ("changes" if run == "keep" else "everything")


def test_a_plan_writes_nothing(connection: Connection, settings: Settings) -> None:
    pipeline = create_filled(connection, settings, "incremental", ROWS)
    succeed(connection, settings, pipeline)
    connection.execute("UPDATE ugc.events SET note = 'newer', modified = now() WHERE id IN (8, 9, 299)")
    before = (state.load_state(connection, pipeline.id), pipelines.get(connection, pipeline.id))

    def plan() -> None:
        planned(settings, pipeline, **CHANGES["a new column"])

    assert effect(connection, "analytics.events", plan) == (0, 0, 0)
    assert before == (state.load_state(connection, pipeline.id), pipelines.get(connection, pipeline.id))
    assert "twice" not in [
        row["column_name"]
        for row in connection.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_name = 'events'"
        ).fetchall()
    ]


def test_examples_name_keys_and_columns(connection: Connection, settings: Settings) -> None:
    pipeline = create_filled(connection, settings, "full", ROWS)
    succeed(connection, settings, pipeline)
    query = (
        "SELECT id, CASE id WHEN 7 THEN 'seven' ELSE note END AS note, modified FROM ugc.events WHERE id <> 12"
        " UNION ALL SELECT 5000, 'new', now()"
    )
    found = of_run(planned(settings, pipeline, source_query=query), "next")
    assert found.examples.model_dump() == {"added": ["5000"], "changed": {"7": ["note"]}, "removed": ["12"]}
    assert found.changed_columns == {"note": 1}


# -- deletes and quarantine -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["full", "incremental"])
@pytest.mark.parametrize("run", ["next", "reset"])
def test_rows_that_the_source_marks_as_deleted_are_removed_as_by_the_run(
    connection: Connection, settings: Settings, mode: str, run: str
) -> None:
    fill_events(connection, 50)
    connection.execute("ALTER TABLE ugc.events ADD COLUMN gone boolean")
    query = "SELECT id, note, modified, gone FROM ugc.events"
    options = {"delete_mode": "soft_column", "delete_column": "gone"}
    pipeline = create_events(connection, settings, mode, source_query=query, options=options)
    succeed(connection, settings, pipeline)
    connection.execute("UPDATE ugc.events SET gone = true, modified = now() WHERE id IN (3, 4)")
    connection.execute("UPDATE ugc.events SET gone = true WHERE id = 5")  # its cursor does not move
    connection.execute("DELETE FROM ugc.events WHERE id = 6")
    state: Any = "reset" if run == "reset" and mode == "incremental" else None
    found = of_run(planned(settings, pipeline, state=state), "reset" if state else "next")
    real = effect(connection, "analytics.events", lambda: carry_out(connection, settings, pipeline, state=state))
    assert figures(found) == real
    expected = {("full", "next"): 4, ("full", "reset"): 4, ("incremental", "next"): 2, ("incremental", "reset"): 3}
    assert found.removed == expected[mode, run]


def test_rows_that_vanished_are_removed_by_the_next_run_if_it_compares_the_keys(
    connection: Connection, settings: Settings
) -> None:
    pipeline = create_filled(connection, settings, "incremental", 50, options={"delete_mode": "reconcile_keys"})
    succeed(connection, settings, pipeline)
    connection.execute("DELETE FROM ugc.events WHERE id IN (6, 7)")
    found = of_run(planned(settings, pipeline), "next")
    assert figures(found) == (0, 0, 2)
    assert effect(connection, "analytics.events", lambda: carry_out(connection, settings, pipeline)) == (0, 0, 2)
    later = {"delete_mode": "reconcile_keys", "delete_interval": "1h"}
    connection.execute("DELETE FROM ugc.events WHERE id = 8")
    found = of_run(planned(settings, pipeline, options=later), "next")
    assert (found.removed, found.kept) == (0, 1)


@pytest.mark.parametrize("delete_mode", ["none", "reconcile_keys"])
@pytest.mark.parametrize("is_stored", [False, True])
def test_the_first_run_into_a_mart_that_exists_deletes_what_its_plan_says(
    connection: Connection, settings: Settings, delete_mode: str, is_stored: bool
) -> None:
    fill_events(connection, 10)
    create_target(connection)
    connection.execute("INSERT INTO analytics.events VALUES (1, '1', now()), (100, 'only here', now())")
    fields: dict[str, Any] = {"options": {"delete_mode": delete_mode}}
    definition = create_events(connection, settings, "incremental", **fields).definition
    if not is_stored:
        pipelines.delete(connection, pipelines.get(connection, definition.name).id)
    plan = plans.plan_change(local_context(settings), definition)
    found = of_run(plan, "next")
    pipeline = (
        pipelines.get(connection, definition.name) if is_stored else revisions.create(connection, settings, definition)
    )
    assert effect(connection, "analytics.events", lambda: carry_out(connection, settings, pipeline)) == figures(found)
    assert (found.removed, found.kept) == ((0, 1) if delete_mode == "none" else (1, 0))


def test_keys_in_quarantine_are_not_counted(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 50)
    connection.execute(
        "CREATE TABLE analytics.events (id int PRIMARY KEY, note text CHECK (note <> '7'), modified timestamptz)"
    )
    pipeline = create_events(connection, settings, "full", options={"on_reject": "quarantine", "max_rejects": 10})
    succeed(connection, settings, pipeline)
    plan = planned(settings, pipeline)
    assert figures(of_run(plan, "next")) == (0, 0, 0)
    assert "1 key(s) in quarantine are not compared" in plan.left_out[0]
    assert effect(connection, "analytics.events", lambda: carry_out(connection, settings, pipeline)) == (0, 0, 0)


# -- transforms -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_transforms_are_part_of_the_plan(
    connection: Connection, settings: Settings, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    def keep_even(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row | {"note": f"<{row['note']}>"} for row in rows if row["id"] % 2 == 0]

    register(monkeypatch, Task("keep_even", Kind.ROW, keep_even, None))
    pipeline = create_filled(connection, settings, mode, ROWS)
    succeed(connection, settings, pipeline)
    connection.execute("UPDATE ugc.events SET note = 'newer', modified = now() WHERE id IN (8, 9)")
    plan = planned(settings, pipeline, python_task="keep_even")
    state: Any = "keep" if mode == "incremental" else None
    found = of_run(plan, state or "next")
    real = effect(
        connection,
        "analytics.events",
        lambda: carry_out(connection, settings, pipeline, state=state, python_task="keep_even"),
    )
    assert figures(found) == real
    assert real == ((0, 1, 0) if mode == "incremental" else (0, 150, 150))


# -- columns, state, refusals ---------------------------------------------------------------------------------------


def test_columns_are_named_with_what_happens_to_them(connection: Connection, settings: Settings) -> None:
    pipeline = create_filled(connection, settings, "full", 20, options={"touch_column": "written_at"})
    succeed(connection, settings, pipeline)
    query = "SELECT id::bigint AS id, modified, length(note) AS size FROM ugc.events"
    plan = planned(settings, pipeline, source_query=query)
    assert [(one.name, one.change) for one in plan.columns] == [("id", "retyped"), ("size", "added"), ("note", "lost")]
    assert "refused (TARGET_SCHEMA)" in plan.columns[1].effect
    (found,) = plan.runs
    assert found.refused is not None
    assert "on_schema_change" in found.refused
    assert figures(found) == (None, None, None)
    plan = planned(settings, pipeline, source_query=query, options={"on_schema_change": "add_columns"})
    assert plan.columns[1].effect.startswith("added to the mart")
    assert plan.columns[2].effect.startswith("kept in the mart")
    assert figures(plan.runs[0]) == (0, 20, 0)


def test_a_type_that_the_mart_cannot_hold_is_refused_as_by_the_run(connection: Connection, settings: Settings) -> None:
    pipeline = create_filled(connection, settings, "incremental", 20)
    succeed(connection, settings, pipeline)
    connection.execute("ALTER TABLE ugc.events ALTER COLUMN id TYPE text")
    plan = planned(settings, pipeline)
    assert [one.change for one in plan.columns] == ["retyped"]
    assert plan.runs[0].refused is not None
    with pytest.raises(AssertionError):
        carry_out(connection, settings, pipeline)


def test_a_mart_that_does_not_exist_gets_every_row(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 30)
    pipeline = create_events(connection, settings, "incremental")
    plan = planned(settings, pipeline)
    assert (plan.target_exists, plan.columns) == (False, [])
    found = of_run(plan, "next")
    assert figures(found) == (30, 0, 0)
    assert carry_out(connection, settings, pipeline) == (30, 0)
    assert found.seconds is None
    connection.execute("INSERT INTO ugc.events VALUES (900, 'new', now())")
    assert of_run(planned(settings, pipeline), "next").seconds is not None


def test_an_empty_mart_gets_every_row(connection: Connection, settings: Settings) -> None:
    pipeline = create_filled(connection, settings, "incremental", 30)
    found = of_run(planned(settings, pipeline), "next")
    assert figures(found) == (30, 0, 0)
    assert len(found.examples.added) == 5
    assert carry_out(connection, settings, pipeline) == (30, 0)


def test_another_target_needs_a_reset_and_gets_every_row(connection: Connection, settings: Settings) -> None:
    pipeline = create_filled(connection, settings, "incremental", 30)
    succeed(connection, settings, pipeline)
    plan = planned(settings, pipeline, target_table="analytics.other")
    assert plan.state.choices == ["reset"]
    assert [one.run for one in plan.runs] == ["reset", "full"]
    assert figures(of_run(plan, "reset")) == (30, 0, 0)


def test_another_key_without_a_unique_index_is_refused(connection: Connection, settings: Settings) -> None:
    pipeline = create_filled(connection, settings, "full", 30)
    succeed(connection, settings, pipeline)
    plan = planned(settings, pipeline, key_columns=["note"])
    assert "unique index" in (plan.runs[0].refused or "")
    plan = planned(settings, pipeline, source_query="SELECT id, note AS other FROM ugc.events", key_columns=["other"])
    assert plan.runs[0].refused is not None


def test_repeated_keys_are_reported_as_the_failure_of_the_run(connection: Connection, settings: Settings) -> None:
    pipeline = create_filled(connection, settings, "full", 30)
    succeed(connection, settings, pipeline)
    query = f"{EVENTS} UNION ALL SELECT 7, 'again', modified FROM ugc.events WHERE id = 7"
    found = planned(settings, pipeline, source_query=query).runs[0]
    assert "DUPLICATE_KEY" in (found.refused or "")


def test_a_change_that_removes_too_much_names_the_guard(connection: Connection, settings: Settings) -> None:
    pipeline = create_filled(connection, settings, "full", 30)
    succeed(connection, settings, pipeline)
    found = planned(settings, pipeline, source_query=f"{EVENTS} WHERE id <= 10").runs[0]
    assert found.removed == 20
    assert "SHRINK_GUARD" in (found.refused or "")
    with pytest.raises(AssertionError):
        carry_out(connection, settings, pipeline, source_query=f"{EVENTS} WHERE id <= 10")


def test_the_guard_of_vanished_keys_counts_the_rows_that_the_run_has_added(
    connection: Connection, settings: Settings
) -> None:
    pipeline = create_filled(connection, settings, "incremental", 10, options={"delete_mode": "reconcile_keys"})
    succeed(connection, settings, pipeline)
    connection.execute("DELETE FROM ugc.events WHERE id <= 6")
    found = of_run(planned(settings, pipeline), "next")
    assert "6 of 10 rows" in (found.refused or "")
    connection.execute("INSERT INTO ugc.events SELECT n, 'new', now() FROM generate_series(11, 20) n")
    found = of_run(planned(settings, pipeline), "next")
    assert (figures(found), found.refused) == ((10, 0, 6), None)
    assert effect(connection, "analytics.events", lambda: carry_out(connection, settings, pipeline)) == (10, 0, 6)


def test_a_query_with_the_checkpoint_is_planned_from_it_and_in_full(connection: Connection, settings: Settings) -> None:
    pipeline = create_filled(connection, settings, "incremental", 30)
    succeed(connection, settings, pipeline)
    connection.execute("INSERT INTO ugc.events VALUES (900, 'new', now())")
    connection.execute("DELETE FROM ugc.events WHERE id = 1")
    plan = planned(settings, pipeline, source_query=f"{EVENTS} WHERE modified >= $1")
    assert figures(of_run(plan, "keep")) == (1, 0, 0)
    assert figures(of_run(plan, "full")) == (1, 0, 1)


def test_hostile_names_and_keys_are_planned(connection: Connection, settings: Settings) -> None:
    connection.execute("""CREATE TABLE ugc.odd (id text PRIMARY KEY, "a""b; DROP" text)""")
    connection.execute("INSERT INTO ugc.odd VALUES ('''; x', 'y'), ('\t\\', NULL), ('ключ', '')")
    pipeline = create(
        connection,
        settings,
        source_query='SELECT id, "a""b; DROP" FROM ugc.odd',
        target_table="analytics.odd",
        key_columns=["id"],
    )
    succeed(connection, settings, pipeline)
    query = """SELECT id, "a""b; DROP" || '!' AS "a""b; DROP" FROM ugc.odd"""
    found = planned(settings, pipeline, source_query=query).runs[0]
    assert (figures(found), found.changed_columns) == ((0, 2, 0), {'a"b; DROP': 2})


def test_the_plan_of_a_stored_pipeline_describes_its_next_run(connection: Connection, settings: Settings) -> None:
    pipeline: Pipeline = create_filled(connection, settings, "incremental", 30)
    succeed(connection, settings, pipeline)
    connection.execute("UPDATE ugc.events SET note = 'newer', modified = now() WHERE id = 8")
    plan = planned(settings, pipeline)
    assert (plan.stored, plan.changes, plan.state.has_checkpoint) == (True, [], True)
    assert [one.run for one in plan.runs] == ["next", "full"]
    assert of_run(plan, "next").sentence == (
        "the next run reads from the checkpoint on: 0 rows added, 1 changed, 0 removed"
    )
    assert plan.cursor == "'modified': an index serves it, or its tables are small"


# -- through the API ------------------------------------------------------------------------------------------------


def test_the_api_plans_a_change_and_a_definition(
    client: TestClient, connection: Connection, settings: Settings
) -> None:
    pipeline = create_filled(connection, settings, "full", 30)
    succeed(connection, settings, pipeline)
    query = f"{EVENTS} WHERE id <> 5"
    answer = client.post(f"/api/v1/pipelines/{pipeline.name}/plan", json={"source_query": query})
    assert (answer.status_code, answer.json()["runs"][0]["removed"]) == (200, 1), answer.json()
    assert client.post(f"/pipelines/{pipeline.name}/plan").json()["runs"][0]["removed"] == 0
    definition = pipeline.definition.model_dump(mode="json", exclude={"type"}) | {"source_query": query}
    planned_again = client.post("/plan", json=definition).json()
    assert (planned_again["stored"], planned_again["runs"][0]["removed"]) == (True, 1)
    new = definition | {"name": "new", "target_table": "analytics.new"}
    found = client.post("/plan", json=new).json()
    assert (found["stored"], found["runs"][0]["added"]) == (False, 29)
    assert client.post("/pipelines/none/plan").status_code == 404
    broken = client.post(f"/pipelines/{pipeline.name}/plan", json={"source_query": "DELETE FROM ugc.events"})
    assert (broken.status_code, broken.headers["content-type"]) == (422, "application/problem+json")
    assert client.post(f"/pipelines/{pipeline.name}/plan", json={"nothing": 1}).status_code == 422


def test_an_operator_may_plan_a_stored_pipeline_but_no_query_of_their_own(
    connection: Connection, settings: Settings
) -> None:
    pipeline = create_filled(connection, settings, "full", 30)
    succeed(connection, settings, pipeline)
    context = replace(local_context(settings), caller=Caller("api", "ops", Role.OPERATOR))
    assert plans.plan_change(context, pipeline.name).runs[0].added == 0
    assert plans.plan_change(context, pipeline.name, {"source_query": EVENTS}).runs[0].added == 0  # as it is stored
    with pytest.raises(Forbidden):
        plans.plan_change(context, pipeline.name, {"source_query": f"{EVENTS} WHERE id > 3"})
    with pytest.raises(Forbidden):
        plans.plan_change(context, pipeline.definition)
    viewer = replace(context, caller=Caller("api", "view", Role.VIEWER))
    with pytest.raises(Forbidden):
        plans.plan_change(viewer, pipeline.name)


# -- limits ---------------------------------------------------------------------------------------------------------


def test_rows_that_cannot_be_compared_in_time_are_not_counted_and_the_rest_is_planned(
    connection: Connection, settings: Settings
) -> None:
    pipeline = create_filled(connection, settings, "full", ROWS)
    succeed(connection, settings, pipeline)
    slow = "SELECT count(*) FROM ugc.events a, ugc.events b, ugc.events c, ugc.events d"
    query = f"{EVENTS} WHERE ({slow}) > id"
    found = plans.plan_change(local_context(settings), pipeline.name, {"source_query": query}, seconds=1.0)
    assert found.runs[0].reason == "the rows could not be compared within 1 s"
    assert figures(found.runs[0]) == (None, None, None)
    assert found.changes == ["source_query"]


def test_a_mart_that_differs_in_many_rows_is_estimated_from_a_sample(
    connection: Connection, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_changes, "ROWS_PER_SECOND", 2000 / plans.SECONDS)
    pipeline = create_filled(connection, settings, "full", 20_000, batch_size="auto")
    succeed(connection, settings, pipeline)
    connection.execute("ANALYZE ugc.events")
    query = (
        "SELECT id, CASE WHEN id % 2 = 0 THEN note ELSE 'odd' END AS note, modified FROM ugc.events WHERE id % 4 <> 2"
    )
    found = planned(settings, pipeline, source_query=query).runs[0]
    assert found.method == "sample"
    assert 1000 < (found.rows_compared or 0) < 4000
    assert figures(found) == pytest.approx((0, 10_000, 5_000), rel=0.2)
    assert found.sentence.startswith("the next run reads everything: about ")


def test_ranges_that_remain_when_the_time_is_spent_are_estimated(
    connection: Connection, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_changes.Budget, "is_spent", True)
    pipeline = create_filled(connection, settings, "full", 60_000, batch_size="auto")
    succeed(connection, settings, pipeline)
    query = (
        "SELECT id, CASE WHEN id % 2 = 0 THEN note ELSE 'odd' END AS note, modified FROM ugc.events WHERE id % 4 <> 2"
    )
    found = planned(settings, pipeline, source_query=query).runs[0]
    assert (found.method, (found.rows_compared or 0) < 30_000) == ("sample", True)
    assert figures(found) == pytest.approx((0, 30_000, 15_000), rel=0.1)
