"""Deep reconcile: the keys that differ, and no others, as a run that returns the pipeline to its status."""

import json
import threading
from functools import partial

import psycopg
import pytest

from tests.helpers.events import create_events, create_filled, fill_events
from tests.helpers.reconciling import NOTHING, keys, reconcile, report
from tests.helpers.running import create, run, succeed
from vitrine.compare import differences
from vitrine.core.protocols import Outcome
from vitrine.core.status import RequestKind, RunOptions, Status
from vitrine.definition.pipeline import Pipeline
from vitrine.operations import changes
from vitrine.postgres import Connection, raw
from vitrine.settings import Settings
from vitrine.store import history, pipelines, queue, state


@pytest.fixture
def events(connection: Connection, settings: Settings) -> Pipeline:
    pipeline = create_filled(connection, settings, "incremental", 300)
    succeed(connection, settings, pipeline)
    return pipeline


def corrupt(connection: Connection) -> None:
    """One difference of every kind, on both sides, none of which moves the cursor."""
    connection.execute("UPDATE analytics.events SET note = 'changed by hand' WHERE id = 17")
    connection.execute("DELETE FROM analytics.events WHERE id = 42")
    connection.execute("INSERT INTO analytics.events VALUES (900, 'by hand', now())")
    connection.execute("INSERT INTO analytics.events VALUES (-1, NULL, NULL)")
    connection.execute("UPDATE ugc.events SET note = 'changed at the source' WHERE id = 300")
    connection.execute("DELETE FROM ugc.events WHERE id = 1")


FOUND = {"missing": ["42"], "extra": ["-1", "1", "900"], "different": ["17", "300"]}


@pytest.mark.promise("C13", "R1")
def test_every_kind_of_difference_is_named_by_its_key(
    connection: Connection, settings: Settings, events: Pipeline
) -> None:
    assert keys(report(connection, settings, events)) == NOTHING
    corrupt(connection)
    before = state.load_state(connection, events.id)
    found = report(connection, settings, events)
    assert keys(found) == FOUND
    assert found["different"]["columns"] == {"17": ["note"], "300": ["note"]}
    assert (found["equal"], found["sentence"]) == (False, "source ≠ target: 1 missing, 3 extra, 2 different")
    assert (found["source_rows"], found["target_rows"]) == (299, 301)
    assert state.load_state(connection, events.id) == before
    assert pipelines.get(connection, events.id).status is Status.IDLE


KEYS: list[tuple[str, str, str, list[str]]] = [
    ("uuid", "md5(n::text)::uuid", "md5('7')::uuid", ["id"]),
    ("text", "'ключ ' || n", "'ключ 7'", ["id"]),
    ("bigint", "n * 10000000000", "70000000000", ["id"]),
    ("numeric", "n / 8.0", "(7 / 8.0)", ["id"]),
    ("date", "'2024-01-01'::date + n", "'2024-01-08'::date", ["id"]),
    ("boolean", "n % 2 = 0", "false", ["id", "part"]),
    ("text", "'k' || n % 5", "'k2'", ["id", "part"]),
]


@pytest.mark.promise("R1", "J30")
@pytest.mark.parametrize(("type_name", "value", "seventh", "key"), KEYS)
def test_keys_of_any_type_are_found(
    connection: Connection, settings: Settings, type_name: str, value: str, seventh: str, key: list[str]
) -> None:
    connection.execute(raw(f"CREATE TABLE ugc.keyed (id {type_name}, part integer, note text, PRIMARY KEY (id, part))"))
    connection.execute(raw(f"INSERT INTO ugc.keyed SELECT {value}, n, 'n' || n FROM generate_series(1, 100) n"))
    query = "SELECT id, part, note FROM ugc.keyed"
    pipeline = create(connection, settings, source_query=query, target_table="analytics.keyed", key_columns=key)
    succeed(connection, settings, pipeline)
    assert keys(report(connection, settings, pipeline)) == NOTHING
    connection.execute(raw(f"UPDATE analytics.keyed SET note = 'x' WHERE id = {seventh} AND part = 7"))
    connection.execute("DELETE FROM analytics.keyed WHERE part = 9")
    found = report(connection, settings, pipeline)
    row = connection.execute(raw(f"SELECT format('%s', {seventh}) AS id")).fetchone()
    assert row is not None
    name = row["id"] if len(key) == 1 else f"({row['id']}, 7)"
    assert (found["different"]["keys"], found["missing"]["count"], found["extra"]["count"]) == ([name], 1, 0)
    repaired = report(connection, settings, pipeline, repair=True)
    assert (repaired["equal"], repaired["repaired"]["different"]["keys"]) == (True, [name])


@pytest.mark.promise("R1")
@pytest.mark.parametrize("rows_at_once", [7, 20_000])
def test_large_ranges_are_cut_further(
    connection: Connection,
    settings: Settings,
    events: Pipeline,
    rows_at_once: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(differences, "PARTS", 3)
    monkeypatch.setattr(differences, "find", partial(differences.find, rows_at_once=rows_at_once))
    corrupt(connection)
    assert keys(report(connection, settings, events)) == FOUND
    connection.execute("TRUNCATE analytics.events")
    assert report(connection, settings, events)["missing"]["count"] == 299


@pytest.mark.promise("R1")
def test_a_large_table_is_cut_by_a_sample_of_its_pages(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 60_000, note="repeat('x', 300)")
    pipeline = create_events(connection, settings, "full", batch_size=50_000)
    succeed(connection, settings, pipeline)
    connection.execute("UPDATE analytics.events SET note = 'x' WHERE id IN (1, 33333, 60000)")
    assert keys(report(connection, settings, pipeline)) == NOTHING | {"different": ["1", "33333", "60000"]}


@pytest.mark.promise("R2", "I11")
def test_keys_that_the_next_run_reads_are_no_differences(
    connection: Connection, settings: Settings, events: Pipeline
) -> None:
    connection.execute("UPDATE ugc.events SET note = 'newer', modified = now() WHERE id <= 20")
    connection.execute("INSERT INTO ugc.events SELECT n, 'new', now() FROM generate_series(1001, 1030) n")
    corrupt_target = "UPDATE analytics.events SET note = 'changed by hand' WHERE id IN (19, 21)"
    connection.execute(corrupt_target)
    found = report(connection, settings, events)
    assert (keys(found), found["waiting"]) == (NOTHING | {"different": ["21"]}, 50)
    succeed(connection, settings, events)
    found = report(connection, settings, events)
    assert (keys(found), found["waiting"]) == (NOTHING | {"different": ["21"]}, 0)


@pytest.mark.promise("R2", "I11")
def test_any_number_of_keys_may_wait_for_the_next_run(
    connection: Connection, settings: Settings, events: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(differences, "PARTS", 10)
    monkeypatch.setattr(differences, "find", partial(differences.find, most_keys=50, rows_at_once=20))
    connection.execute("UPDATE ugc.events SET note = 'newer', modified = now()")
    connection.execute("INSERT INTO analytics.events VALUES (900, 'by hand', now())")
    found = report(connection, settings, events)
    assert (keys(found), found["waiting"], found["complete"]) == (NOTHING | {"extra": ["900"]}, 300, True)


def test_a_search_that_ended_early_is_never_equal(
    connection: Connection, settings: Settings, events: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(differences, "PARTS", 10)
    monkeypatch.setattr(differences, "find", partial(differences.find, most_keys=50, rows_at_once=20))
    connection.execute("UPDATE analytics.events SET note = 'by hand'")
    found = report(connection, settings, events, repair=True)
    assert (found["complete"], found["equal"], found["different"]["count"]) == (False, False, 0)
    count = found["repaired"]["different"]["count"]
    more = "the search ended before all ranges were compared; repeat it"
    assert found["sentence"] == f"repaired {count} different; source ≠ target: {more}"


@pytest.mark.promise("R2", "I11")
def test_writers_cause_no_false_alarm(
    connection: Connection, settings: Settings, events: Pipeline, database_url: str
) -> None:
    stop = threading.Event()
    writer = threading.Thread(target=write, args=(database_url, stop))
    writer.start()
    try:
        for _ in range(5):
            found = report(connection, settings, events)
            assert (keys(found), found["equal"]) == (NOTHING, True)
    finally:
        stop.set()
        writer.join()


def write(url: str, stop: threading.Event) -> None:
    with psycopg.connect(url, autocommit=True) as other:
        number = 10_000
        while not stop.is_set():
            number += 1
            other.execute("INSERT INTO ugc.events VALUES (%s, 'new', clock_timestamp())", [number])
            other.execute(
                "UPDATE ugc.events SET note = note || '.', modified = clock_timestamp() WHERE id = %s", [number % 300]
            )


@pytest.mark.promise("R2")
def test_a_full_pipeline_with_a_cursor_leaves_out_what_changed_since_its_load(
    connection: Connection, settings: Settings
) -> None:
    fill_events(connection, 100)
    pipeline = create_events(connection, settings, "full", incremental_key="modified")
    succeed(connection, settings, pipeline)
    connection.execute("UPDATE ugc.events SET note = 'newer', modified = now() WHERE id = 5")
    connection.execute("UPDATE analytics.events SET note = 'by hand' WHERE id = 6")
    found = report(connection, settings, pipeline)
    assert (keys(found), found["waiting"]) == (NOTHING | {"different": ["6"]}, 1)


def test_a_full_pipeline_without_a_cursor_says_that_changes_are_reported(
    connection: Connection, settings: Settings
) -> None:
    fill_events(connection, 10)
    pipeline = create_events(connection, settings, "full")
    succeed(connection, settings, pipeline)
    connection.execute("UPDATE ugc.events SET note = 'newer', modified = now() WHERE id = 5")
    found = report(connection, settings, pipeline)
    assert keys(found) == NOTHING | {"different": ["5"]}
    assert found["left_out"] == ["the pipeline has no cursor of time, so changes since its last load are reported too"]


@pytest.mark.promise("R3")
def test_the_pipeline_shows_until_when_it_is_proven(
    connection: Connection, settings: Settings, events: Pipeline
) -> None:
    report(connection, settings, events)
    (newest, *_) = history.list_runs(connection, events.id)
    shown = pipelines.get(connection, events.id).verification
    assert (shown.verdict, shown.until) == ("equal", newest.started_at)
    connection.execute("UPDATE ugc.events SET note = 'newer', modified = now() WHERE id = 5")
    report(connection, settings, events)
    waiting = pipelines.get(connection, events.id)
    assert (waiting.verification.verdict, waiting.verification.until) == ("equal", waiting.fresh_as_of)
    connection.execute("DELETE FROM analytics.events WHERE id = 7")
    report(connection, settings, events)
    differs = pipelines.get(connection, events.id).verification
    assert (differs.verdict, differs.until) == ("different", waiting.fresh_as_of)
    stored = history.list_reconciliations(connection, events.id)
    assert [one.verdict for one in stored] == ["different", "equal", "equal"]
    assert stored[0].report["missing"] == {"count": 1, "keys": ["7"]}


@pytest.mark.promise("R3")
def test_what_was_proven_does_not_outlive_the_query(
    connection: Connection, settings: Settings, events: Pipeline
) -> None:
    report(connection, settings, events)
    changes.change(connection, settings, events.id, {"schedule_interval": "1h", "options": {"freshness": "1h"}})
    assert pipelines.get(connection, events.id).verification.verdict == "equal"
    fields = {"source_query": "SELECT id, upper(note) || '!' AS note, modified FROM ugc.events"}
    changed = changes.change(connection, settings, events.id, fields, state="keep")
    assert (changed.verification.verdict, changed.verification.until) == (None, None)
    assert len(history.list_reconciliations(connection, events.id)) == 1


def test_reports_and_their_keys_are_limited(
    connection: Connection, settings: Settings, events: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "RECONCILIATIONS_KEPT", 2)
    connection.execute("DELETE FROM analytics.events WHERE id <= 250")
    report(connection, settings, events)
    report(connection, settings, events)
    found = report(connection, settings, events)
    assert (found["missing"]["count"], len(found["missing"]["keys"])) == (250, 100)
    assert len(history.list_reconciliations(connection, events.id)) == 2
    assert len(json.dumps(found)) < 10_000


@pytest.mark.promise("J30")
def test_keys_in_quarantine_are_named_as_such(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 10)
    connection.execute("CREATE TABLE analytics.events (id integer PRIMARY KEY, note varchar(3), modified timestamptz)")
    connection.execute("UPDATE ugc.events SET note = 'too long' WHERE id = 4")
    options = {"on_reject": "quarantine"}
    pipeline = create_events(connection, settings, "incremental", options=options)
    succeed(connection, settings, pipeline)
    connection.execute("DELETE FROM analytics.events WHERE id = 5")
    found = report(connection, settings, pipeline)
    assert keys(found) == NOTHING | {"missing": ["5"]}
    assert found["left_out"] == ['1 key(s) in quarantine are not compared: ["4"]']


@pytest.mark.promise("R1")
def test_rows_behind_a_transform_are_compared(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 200)
    pipeline = create(
        connection,
        settings,
        target_table="analytics.events",
        key_columns=["id"],
        mode="incremental",
        incremental_key="modified",
        tasks=[
            {"order_index": 1, "task_type": "SQL", "body": "SELECT id, ' ' || note AS note, modified FROM ugc.events"},
            {"order_index": 2, "task_type": "PYTHON", "body": "map_fields", "options": {"trim": ["note"]}},
        ],
    )
    succeed(connection, settings, pipeline)
    assert keys(report(connection, settings, pipeline)) == NOTHING
    connection.execute("UPDATE ugc.events SET note = 'newer', modified = now() WHERE id = 5")
    connection.execute("UPDATE analytics.events SET note = 'x' WHERE id = 17")
    connection.execute("DELETE FROM ugc.events WHERE id = 1")
    connection.execute("DELETE FROM analytics.events WHERE id = 42")
    found = report(connection, settings, pipeline)
    assert keys(found) == {"missing": ["42"], "extra": ["1"], "different": ["17"]}
    assert found["waiting"] == 1
    repaired = report(connection, settings, pipeline, repair=True)
    assert (repaired["equal"], keys(repaired)) == (True, NOTHING)


@pytest.mark.promise("R4", "D23")
@pytest.mark.parametrize("status", [Status.IDLE, Status.PAUSED])
def test_the_pipeline_returns_to_its_status(
    connection: Connection, settings: Settings, events: Pipeline, status: Status
) -> None:
    if status is Status.PAUSED:
        pipelines.request_pause(connection, events.id)
    report(connection, settings, events)
    assert pipelines.get(connection, events.id).status is status


def test_a_mart_that_was_never_built_is_refused(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 3)
    error = reconcile(connection, settings, create_events(connection, settings, "full")).error
    assert error is not None
    assert error.code == "TARGET_MISSING"


@pytest.mark.promise("R4", "I12")
def test_a_reconcile_of_a_running_pipeline_follows_its_run(
    connection: Connection, settings: Settings, events: Pipeline
) -> None:
    pipelines.request_run(connection, events.id, trigger="api")
    held = queue.claim_next(connection, runner="other", ttl=settings.lease_ttl)
    assert held is not None
    options = RunOptions(deep=True, repair=True)
    status, _ = pipelines.request_run(connection, events.id, trigger="api", kind=RequestKind.RECONCILE, options=options)
    assert status is Status.RUNNING
    assert queue.claim_next(connection, runner="tests", ttl=settings.lease_ttl) is None


def test_a_stop_ends_the_comparison(connection: Connection, settings: Settings, events: Pipeline) -> None:
    stop = threading.Event()
    stop.set()
    options = RunOptions(deep=True)
    executed = run(connection, settings, events, kind=RequestKind.RECONCILE, options=options, stop=stop)
    assert executed.outcome is Outcome.RELEASED
    assert pipelines.get(connection, events.id).status is Status.RUN_REQUESTED
