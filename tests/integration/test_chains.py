"""Pipelines that run after others: one run per wave, no wave lost, no cycle."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.helpers import journal
from tests.helpers import pipelines as stored
from tests.helpers.chains import finish, link, start, status
from tests.helpers.running import create, run, succeed
from tests.helpers.waiting import wait_until
from vitrine.api.app import create_app
from vitrine.core.status import Event, RequestKind, RunStatus, Status
from vitrine.definition.model import Definition
from vitrine.definition.pipeline import Pipeline
from vitrine.definition.yaml import Document
from vitrine.errors import ConfigError, TransitionRefused
from vitrine.operations import changes, checks
from vitrine.postgres import Connection, connect
from vitrine.settings import Settings
from vitrine.store import history, pipelines, queue, schedules

IDLE, REQUESTED = Status.IDLE, Status.RUN_REQUESTED
GENRES: dict[str, Any] = {"source_query": "SELECT id, name FROM content.genre", "key_columns": ["id"]}


def mart(connection: Connection, settings: Settings, name: str, **fields: Any) -> Pipeline:
    """A pipeline whose runs read genres."""
    return create(connection, settings, name=name, target_table=f"analytics.{name}", **GENRES | fields)


def fields_of(name: str, *after: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "target_table": f"analytics.{name}", "after": list(after), **GENRES, **fields}


def apply(connection: Connection, settings: Settings, *documents: dict[str, Any], **options: Any) -> dict[str, str]:
    """What becomes of each pipeline."""
    read = [Document(f"{one['name']}.yaml", one) for one in documents]
    return {one.name: one.outcome for one in changes.apply_all(connection, settings, read, None, **options)}


def after_of(connection: Connection, name: str) -> tuple[str, ...]:
    return pipelines.get(connection, name).definition.after


def waits_for_a_lock(connection: Connection) -> bool:
    connection.execute("SELECT pg_stat_clear_snapshot()")  # otherwise a transaction sees sessions as at first
    waiting = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return bool(connection.execute(waiting).fetchall())


# -- waves ------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("L1")
def test_the_end_of_a_run_requests_the_pipelines_after_it_and_no_others(connection: Connection) -> None:
    first, second = stored.create(connection, "first"), link(connection, "second", "first")
    third, other = link(connection, "third", "second"), stored.create(connection, "other")
    assert finish(connection, first) is IDLE
    assert [status(connection, one) for one in (second, third, other)] == [REQUESTED, IDLE, IDLE]
    request = pipelines.get(connection, second.id).request_id
    assert request is not None
    assert history.get_request(connection, request).state == "pending"
    finish(connection, second)
    assert [(one.trigger, one.request_id) for one in history.list_runs(connection, second.id)] == [("chain", request)]
    assert history.get_request(connection, request).state == "succeeded"
    assert [status(connection, one) for one in (first, second, third)] == [IDLE, IDLE, REQUESTED]


@pytest.mark.promise("L1")
def test_the_request_is_made_in_the_transaction_that_ends_the_run(connection: Connection) -> None:
    journal.start(connection)
    first, second = stored.create(connection, "first"), link(connection, "second", "first")
    finish(connection, first)
    rows = connection.execute("SELECT name, new, txid FROM public.status_journal ORDER BY id").fetchall()
    *_, ended, fired = rows
    assert [(one["name"], one["new"]) for one in (ended, fired)] == [("first", "IDLE"), (second.name, "RUN_REQUESTED")]
    assert ended["txid"] == fired["txid"]


@pytest.mark.promise("L1")
def test_a_pipeline_waits_until_all_of_its_upstreams_have_succeeded(connection: Connection) -> None:
    top = stored.create(connection, "top")
    left, right = link(connection, "left", "top"), link(connection, "right", "top")
    bottom = link(connection, "bottom", "left", "right")
    finish(connection, top)
    finish(connection, left)
    finish(connection, left)
    assert status(connection, bottom) is IDLE
    finish(connection, right)
    assert status(connection, bottom) is REQUESTED
    finish(connection, bottom)
    assert status(connection, bottom) is IDLE
    # the next wave needs both again
    finish(connection, right)
    assert status(connection, bottom) is IDLE
    finish(connection, left)
    assert status(connection, bottom) is REQUESTED


@pytest.mark.promise("L1")
def test_an_upstream_that_succeeds_twice_before_the_start_causes_one_run(connection: Connection) -> None:
    first, second = stored.create(connection, "first"), link(connection, "second", "first")
    finish(connection, first)
    request = pipelines.get(connection, second.id).request_id
    finish(connection, first)
    assert pipelines.get(connection, second.id).request_id == request


@pytest.mark.promise("L1")
def test_a_success_that_the_run_has_read_causes_no_second_run(connection: Connection, settings: Settings) -> None:
    first, second = mart(connection, settings, "first"), mart(connection, settings, "second", after=["first"])
    succeed(connection, settings, first)
    succeed(connection, settings, first)  # the second wave is complete while the run of the first one waits
    succeed(connection, settings, second)
    assert schedules.fire_chains(connection) == []
    assert status(connection, second) is IDLE
    assert [one.succeeded_at for one in schedules.list_upstreams(connection, second.id)] == [None]


@pytest.mark.promise("L2")
@pytest.mark.parametrize(
    ("event", "run_status"),
    [
        (Event.FAIL, RunStatus.FAILED),
        (Event.RETRY, RunStatus.FAILED),
        (Event.RELEASE, RunStatus.ABANDONED),
        (Event.FINISH_PAUSED, RunStatus.SUCCESS),
        (Event.RETURN_IDLE, RunStatus.SUCCESS),
    ],
)
def test_only_a_run_that_succeeds_counts(connection: Connection, event: Event, run_status: RunStatus) -> None:
    first, second = stored.create(connection, "first"), link(connection, "second", "first")
    queue.end_run(connection, start(connection, first), event, run_status)
    assert status(connection, second) is IDLE
    assert schedules.fire_chains(connection) == []


@pytest.mark.promise("L2")
def test_a_reconcile_starts_nothing_and_a_full_run_does(connection: Connection, settings: Settings) -> None:
    first = mart(
        connection,
        settings,
        "first",
        source_query="SELECT id, name, modified FROM content.genre",
        mode="incremental",
        incremental_key="modified",
    )
    second = mart(connection, settings, "second", after=["first"])
    succeed(connection, settings, first)
    succeed(connection, settings, second)
    run(connection, settings, first, kind=RequestKind.RECONCILE)
    assert status(connection, second) is IDLE
    succeed(connection, settings, first, full=True)
    assert status(connection, second) is REQUESTED


# -- no wave is lost --------------------------------------------------------------------------------------------------


@pytest.mark.promise("L3")
def test_a_success_during_the_run_is_followed_by_one_more_run(connection: Connection, settings: Settings) -> None:
    first, second = mart(connection, settings, "first"), mart(connection, settings, "second", after=["first"])
    journal.start(connection)
    held = start(connection, second)
    finish(connection, first)
    finish(connection, first)
    assert status(connection, second) is Status.RUNNING
    assert queue.end_run(connection, held, Event.FINISH, RunStatus.SUCCESS) is REQUESTED
    assert history.list_runs(connection, second.id)[0].trigger == "api"
    succeed(connection, settings, second)
    assert status(connection, second) is IDLE
    assert history.list_runs(connection, second.id)[0].trigger == "chain"
    journal.assert_legal(connection)


@pytest.mark.promise("L3")
@pytest.mark.parametrize("stopped", ["paused", "failed", "disabled"])
def test_a_pipeline_that_is_stopped_does_not_start_and_keeps_its_wave(
    connection: Connection, settings: Settings, stopped: str
) -> None:
    first, second = mart(connection, settings, "first"), mart(connection, settings, "second", after=["first"])
    if stopped == "paused":
        pipelines.request_pause(connection, second.id)
    elif stopped == "failed":
        queue.end_run(connection, start(connection, second), Event.FAIL, RunStatus.FAILED)
    else:
        changes.change(connection, settings, "second", {"enabled": False})
    before = status(connection, second)
    finish(connection, first)
    assert schedules.fire_chains(connection) == []
    assert status(connection, second) is before
    if stopped == "disabled":
        changes.change(connection, settings, "second", {"enabled": True})
        assert schedules.fire_chains(connection) == [second.id]
    else:
        succeed(connection, settings, second)  # a person starts it: the mart shows the wave then
        assert schedules.fire_chains(connection) == []
        assert status(connection, second) is IDLE


@pytest.mark.promise("L3", "L6")
def test_the_end_of_a_run_does_not_wait_for_a_pipeline_that_is_locked(
    connection: Connection, database_url: str
) -> None:
    first, second = stored.create(connection, "first"), link(connection, "second", "first")
    with connect(database_url, name="tests:other") as other:
        with other.transaction():
            pipelines.lock(other, second.id)
            connection.execute("SET lock_timeout = '5s'")
            assert finish(connection, first) is IDLE
            assert schedules.fire_chains(connection) == []
        assert schedules.fire_chains(connection) == [second.id]
    assert status(connection, second) is REQUESTED


@pytest.mark.promise("L3")
def test_two_upstreams_that_end_at_the_same_moment_start_one_run(connection: Connection, database_url: str) -> None:
    left, right = stored.create(connection, "left"), stored.create(connection, "right")
    bottom = link(connection, "bottom", "left", "right")
    with connect(database_url, name="tests:other") as other:
        with other.transaction():
            finish_left = start(connection, left)
            queue.end_run(other, finish_left, Event.FINISH, RunStatus.SUCCESS)
            finish(connection, right)  # does not see the other success
        assert status(connection, bottom) is IDLE
        assert schedules.fire_chains(connection) == [bottom.id]
        assert schedules.fire_chains(other) == []


@pytest.mark.promise("L1")
def test_two_runners_that_poll_at_the_same_moment_request_one_run(connection: Connection, database_url: str) -> None:
    left, right = stored.create(connection, "left"), stored.create(connection, "right")
    bottom = link(connection, "bottom", "left", "right")
    pipelines.request_pause(connection, bottom.id)
    for one in (left, right):
        finish(connection, one)
    connection.execute("UPDATE etl.etl_pipelines SET status = 'IDLE' WHERE name = 'bottom'")
    with connect(database_url, name="tests:other") as other:
        with other.transaction():
            assert schedules.fire_chains(other) == [bottom.id]
            assert schedules.fire_chains(connection) == []
        assert schedules.fire_chains(connection) == []


@pytest.mark.promise("L6")
def test_the_end_of_a_run_without_a_chain_asks_nothing_more(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    link(connection, "second", stored.create(connection, "first").name)
    alone = stored.create(connection, "alone")

    def fail(*_: object, **__: object) -> list[Any]:
        raise AssertionError("a further statement")

    monkeypatch.setattr(schedules, "fire_chains", fail)
    monkeypatch.setattr(schedules, "record_success", fail)
    assert finish(connection, alone) is IDLE


# -- definitions ------------------------------------------------------------------------------------------------------


def test_what_a_pipeline_runs_after_is_a_field_of_its_definition(connection: Connection, settings: Settings) -> None:
    for name in ("a", "b"):
        mart(connection, settings, name)
    created = mart(connection, settings, "c", after=["b", "a"])
    assert created.definition.after == ("a", "b")
    changed = changes.change(connection, settings, "c", {"after": ["b"]})
    assert (changed.definition.after, changed.config_version) == (("b",), created.config_version + 1)
    changes.change(connection, settings, "b", {"name": "renamed"})
    assert after_of(connection, "c") == ("renamed",)
    assert changes.change(connection, settings, "c", {"after": []}).definition.after == ()


def test_an_upstream_that_stays_keeps_its_success(connection: Connection, settings: Settings) -> None:
    a, b = (mart(connection, settings, name) for name in ("a", "b"))
    mart(connection, settings, "c", after=["a"])
    pipelines.request_pause(connection, "c")
    finish(connection, a)
    changed = changes.change(connection, settings, "c", {"after": ["a", "b"]})
    noted = {one.name: one.succeeded_at is not None for one in schedules.list_upstreams(connection, changed.id)}
    assert noted == {"a": True, "b": False}
    assert b.name == "b"


@pytest.mark.promise("L4")
def test_a_name_that_no_pipeline_has_is_refused(connection: Connection, settings: Settings) -> None:
    with pytest.raises(ConfigError, match="there is no pipeline 'ghost'; create it first"):
        mart(connection, settings, "a", after=["ghost"])
    mart(connection, settings, "a")
    with pytest.raises(ConfigError, match="there is no pipeline 'ghost'"):
        changes.change(connection, settings, "a", {"after": ["ghost"]})
    with pytest.raises(ConfigError, match=r"a\.yaml: after: there is no pipeline 'ghost'"):
        apply(connection, settings, fields_of("a", "ghost"))
    assert after_of(connection, "a") == ()


@pytest.mark.promise("L4")
def test_a_cycle_is_refused_with_its_names(connection: Connection, settings: Settings) -> None:
    mart(connection, settings, "a")
    mart(connection, settings, "b", after=["a"])
    mart(connection, settings, "c", after=["b"])
    with pytest.raises(ConfigError, match="waits for") as refused:
        changes.change(connection, settings, "a", {"after": ["c"]})
    assert refused.value.code == "CHAIN_CYCLE"
    assert all(f"{one} waits for {two}" in f"{refused.value} {refused.value}" for one, two in ("ac", "cb", "ba"))
    with pytest.raises(ConfigError, match="waits for"):
        apply(connection, settings, fields_of("a", "c"))
    with pytest.raises(ConfigError, match="waits for"):
        apply(connection, settings, fields_of("x", "y"), fields_of("y", "x"))
    assert [after_of(connection, name) for name in "abc"] == [(), ("a",), ("b",)]


@pytest.mark.promise("L4")
def test_two_changes_at_the_same_time_cannot_close_a_cycle(
    connection: Connection, settings: Settings, database_url: str
) -> None:
    for name, after in (("a", []), ("b", ["a"]), ("c", []), ("d", ["c"])):
        mart(connection, settings, name, after=after)
    # no pipeline is locked by both: each change alone is right
    with connect(database_url, name="tests:other") as other, ThreadPoolExecutor(1) as thread:
        with connection.transaction():
            changes.change(connection, settings, "a", {"after": ["d"]})
            second = thread.submit(changes.change, other, settings, "c", {"after": ["b"]})
            wait_until(lambda: second.done() or waits_for_a_lock(connection), what="the second change")
        with pytest.raises(ConfigError, match="waits for"):
            second.result(20)
    assert (after_of(connection, "a"), after_of(connection, "c")) == (("d",), ())


def test_documents_may_name_one_another_in_any_order(connection: Connection, settings: Settings) -> None:
    documents = [fields_of("a", "b"), fields_of("b", "c"), fields_of("c")]
    assert set(apply(connection, settings, *documents, dry_run=True).values()) == {"created"}
    assert apply(connection, settings, *documents) == {"a": "created", "b": "created", "c": "created"}
    assert [after_of(connection, name) for name in "abc"] == [("b",), ("c",), ()]
    assert set(apply(connection, settings, *documents).values()) == {"unchanged"}
    # turned round in one step
    turned = [fields_of("a"), fields_of("b", "a"), fields_of("c", "b")]
    assert set(apply(connection, settings, *turned).values()) == {"changed"}
    assert [after_of(connection, name) for name in "abc"] == [(), ("a",), ("b",)]


@pytest.mark.promise("L4")
def test_a_pipeline_that_others_run_after_is_not_deleted(connection: Connection, settings: Settings) -> None:
    mart(connection, settings, "a")
    for name in ("b", "c"):
        mart(connection, settings, name, after=["a"])
    with pytest.raises(TransitionRefused, match="b, c run after 'a'; remove it from their `after` first") as refused:
        pipelines.delete(connection, "a", force=True)
    assert refused.value.code == "HAS_DEPENDANTS"
    with pytest.raises(ConfigError, match="c run after 'a'"):
        apply(connection, settings, fields_of("b"), delete=["a"])
    assert apply(connection, settings, fields_of("b"), delete=["a", "c"])["a"] == "deleted"
    assert after_of(connection, "b") == ()


@pytest.mark.promise("L6")
def test_documents_that_wait_for_the_end_of_a_run_have_not_locked_its_chain(
    connection: Connection, settings: Settings, database_url: str
) -> None:
    upstream = mart(connection, settings, "upstream")
    mart(connection, settings, "gone", after=["upstream"])
    with connect(database_url, name="tests:ending") as ending, ThreadPoolExecutor(1) as thread:
        with ending.transaction():
            pipelines.lock(ending, upstream.id)
            changed = fields_of("upstream", description="changed")
            applied = thread.submit(apply, connection, settings, changed, delete=["gone"])
            wait_until(lambda: waits_for_a_lock(ending), what="the documents")
            ending.execute("SET LOCAL lock_timeout = '5s'")
            schedules.record_success(ending, upstream.id)
        assert applied.result(20) == {"gone": "deleted", "upstream": "changed"}


# -- a mart as a source -----------------------------------------------------------------------------------------------


@pytest.mark.promise("L5")
def test_a_mart_that_reads_a_mart_by_its_touch_column_misses_no_late_commit(
    connection: Connection, settings: Settings, database_url: str
) -> None:
    readable = settings.model_copy(
        update={"connectors": {"postgres": {"allowed_source_schemas": ("content", "ugc", "analytics")}}}
    )
    first = mart(connection, readable, "first", options={"touch_column": "loaded_at"})
    succeed(connection, readable, first)
    second = create(
        connection,
        readable,
        name="second",
        target_table="analytics.second",
        source_query="SELECT id, name, loaded_at FROM analytics.first",
        key_columns=["id"],
        mode="incremental",
        incremental_key="loaded_at",
        after=["first"],
        options={"horizon_margin": "0s"},
    )
    succeed(connection, readable, second)
    with connect(database_url, name="tests:late") as late:
        with late.transaction():
            # as a run of `first` does that is slow to commit: the time is that of the beginning
            late.execute("INSERT INTO analytics.first (id, name, loaded_at) VALUES (gen_random_uuid(), 'late', now())")
            connection.execute(
                "INSERT INTO analytics.first (id, name, loaded_at)"
                " VALUES (gen_random_uuid(), 'early', clock_timestamp())"
            )
            succeed(connection, readable, second)
        succeed(connection, readable, second)
    names = "SELECT name FROM analytics.second WHERE name IN ('late', 'early') ORDER BY name"
    assert [row["name"] for row in connection.execute(names)] == ["early", "late"]


@pytest.mark.promise("L5")
@pytest.mark.parametrize(("cursor", "warned"), [("modified", True), ("loaded_at", False)])
def test_validate_warns_of_a_cursor_that_a_mart_has_copied_from_its_source(
    connection: Connection, settings: Settings, cursor: str, warned: bool
) -> None:
    query = "SELECT id, name, modified FROM content.genre"
    first = mart(connection, settings, "first", source_query=query, options={"touch_column": "loaded_at"})
    succeed(connection, settings, first)
    second = Definition.model_validate(
        {
            **fields_of("second", "first"),
            "source_query": f"SELECT id, name, {cursor} FROM analytics.first",
            "mode": "incremental",
            "incremental_key": cursor,
        }
    )
    codes = [finding.code for finding in checks.cursor_findings(second, schedules.list_marts(connection))]
    assert codes == (["MART_CURSOR"] if warned else [])


def test_validate_warns_of_upstreams_that_never_start_the_pipeline(connection: Connection, settings: Settings) -> None:
    mart(connection, settings, "off", enabled=False)
    mart(connection, settings, "on")
    definition = Definition.model_validate(fields_of("c", "off", "on", "ghost"))
    texts = [finding.text for finding in checks.upstream_findings(connection, definition)]
    assert [text.split(" ")[2] for text in texts] == ["'ghost'", "'off'"]
    changes.change(connection, settings, "on", {"after": ["off"]})
    with pytest.raises(ConfigError, match=r"(off|on) waits for (on|off) waits for"):
        list(checks.upstream_findings(connection, Definition.model_validate(fields_of("off", "on"))))


# -- API --------------------------------------------------------------------------------------------------------------


def test_the_api_shows_chains_and_refuses_wrong_ones(connection: Connection, settings: Settings) -> None:
    with TestClient(create_app(settings)) as client:
        for name, after in (("a", []), ("b", []), ("c", ["a", "b"])):
            assert client.post("/pipelines", json=fields_of(name, *after)).status_code == 201
        assert client.get("/pipelines/c").json()["after"] == ["a", "b"]
        finish(connection, pipelines.get(connection, "a"))
        status = client.get("/pipelines/c/status").json()
        assert [(one["name"], one["succeeded_at"] is None) for one in status["upstreams"]] == [
            ("a", False),
            ("b", True),
        ]
        assert status["waiting"] == "the run starts when b has succeeded, too"
        refusals = [
            client.delete("/pipelines/a"),
            client.patch("/pipelines/a", json={"after": ["c"]}),
            client.patch("/pipelines/a", json={"after": ["ghost"]}),
            client.patch("/pipelines/a", json={"after": ["a"]}),
        ]
    assert [(one.status_code, one.json()["code"]) for one in refusals] == [
        (409, "HAS_DEPENDANTS"),
        (422, "CHAIN_CYCLE"),
        (422, "UNKNOWN_UPSTREAM"),
        (422, "INVALID"),
    ]
