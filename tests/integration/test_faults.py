"""Faults while reading and writing batches: rows that change, targets that disappear, rows that are too large."""

import re
import resource
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr, ValidationError

from tests.helpers.events import (
    EVENTS,
    both_modes,
    count_events,
    create_events,
    create_target,
    events_are_right,
    fill_events,
)
from tests.helpers.folders import server_folder
from tests.helpers.processes import environment, free_port
from tests.helpers.ratings import create_ratings, is_right
from tests.helpers.running import differences, once_read, run, succeed
from vitrine.connectors.postgres.source import watermark
from vitrine.core.protocols import Outcome
from vitrine.core.rows import Counts, Row
from vitrine.definition import registry
from vitrine.definition.model import Definition
from vitrine.definition.pipeline import Pipeline
from vitrine.embedded import EmbeddedPostgres
from vitrine.errors import ConfigError
from vitrine.postgres import Connection, connect, raw
from vitrine.settings import Settings
from vitrine.store import checkpoint, pipelines, state


@pytest.fixture
def writer(database_url: str) -> Iterator[Connection]:
    """A session of the application, with its own transactions."""
    with connect(database_url, name="cinema") as opened:
        yield opened


# -- where the horizon is unavailable ---------------------------------------------------------------------------------


@contextmanager
def standby(version: int) -> Generator[str]:
    """A server in recovery, like a replica, with a table of events."""
    with server_folder("vitrine-standby-") as folder:
        server = EmbeddedPostgres(folder, version=version, port=free_port(), fast=True)
        with server:
            server.ensure_database("source")
            with connect(server.url("source"), name="tests") as connection:
                connection.execute("CREATE SCHEMA ugc")
                fill_events(connection, 10)
        (folder / "data" / "standby.signal").touch()
        with server:
            yield server.tcp_url("source")


@pytest.mark.promise("C6")
def test_the_horizon_is_unavailable_on_a_standby_unless_a_lookback_is_set(
    connection: Connection, settings: Settings, postgres: EmbeddedPostgres
) -> None:
    with standby(postgres.version) as url:
        replica = settings.model_copy(update={"sources": {"default": SecretStr(url)}})
        refused = run(connection, replica, create_events(connection, replica, "incremental")).error
        assert refused is not None
        assert (refused.code, "standby" in str(refused)) == ("HORIZON_UNAVAILABLE", True)
        patient = create_events(
            connection,
            replica,
            "incremental",
            name="patient",
            target_table="analytics.patient",
            options={"lookback": "1h"},
        )
        assert succeed(connection, replica, patient).counts.written == 10


@pytest.mark.promise("J7")
def test_the_checkpoint_waits_until_a_standby_has_replayed_a_transaction(
    connection: Connection, settings: Settings, postgres: EmbeddedPostgres
) -> None:
    with standby(postgres.version) as url:
        replica = settings.model_copy(update={"sources": {"default": SecretStr(url)}})
        events = create_events(connection, replica, "incremental", options={"lookback": "1h"})
        assert succeed(connection, replica, events).counts.written == 10
        assert state.load_state(connection, events.id).position.cursor is None
        again = succeed(connection, replica, events)
        assert (again.counts.read, again.counts.written) == (10, 0)


@pytest.mark.promise("C6")
def test_the_horizon_is_unavailable_with_a_logical_subscription(connection: Connection) -> None:
    with connection.transaction(force_rollback=True):
        connection.execute("CREATE SUBSCRIPTION elsewhere CONNECTION '' PUBLICATION films WITH (connect = false)")
        connection.execute("ALTER SUBSCRIPTION elsewhere ENABLE")
        with pytest.raises(ConfigError, match="logical subscription") as refused:
            watermark.read_horizon(connection)
        assert refused.value.code == "HORIZON_UNAVAILABLE"


# -- rows that change while they are read -----------------------------------------------------------------------------


@pytest.mark.promise("C8")
def test_a_hundred_thousand_rows_with_one_cursor_time_are_read_in_batches_and_resumed_among_them(
    connection: Connection, settings: Settings
) -> None:
    fill_events(connection, 100_000, note="repeat('x', 500)", modified="interval '1 day'")
    create_target(connection)
    events = create_events(connection, settings, "incremental", batch_size=1000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    stop = threading.Event()
    first = run(connection, settings, events, stop=stop, watch=once_read(30_000, stop.set))
    assert (first.outcome, first.counts.read) == (Outcome.RELEASED, 30_000)
    assert state.load_state(connection, events.id).position.cursor == ("2024-01-02 00:00:00+00", "30000")
    second = succeed(connection, settings, events)
    assert (second.counts.read, second.batches) == (70_000, 70)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 20_000  # kilobytes; all rows together need 50 000
    assert events_are_right(connection)


@pytest.mark.promise("C12")
def test_a_row_updated_between_two_batches_arrives_with_the_next_run(
    connection: Connection, settings: Settings, writer: Connection
) -> None:
    fill_events(connection, 500)
    events = create_events(connection, settings, "incremental")

    def update() -> None:
        writer.execute("UPDATE ugc.events SET note = 'moved', modified = now() WHERE id IN (1, 499)")

    first = succeed(connection, settings, events, watch=once_read(100, update))
    assert first.counts.read == 500
    second = succeed(connection, settings, events)
    assert (second.counts.read, second.counts.written) == (2, 2)
    assert events_are_right(connection)


@pytest.mark.promise("C12")
def test_a_row_that_commits_below_the_cursor_between_two_snapshots_is_not_lost(
    connection: Connection, settings: Settings, writer: Connection
) -> None:  # the run continues in a new snapshot, and passes the row while it is not yet visible
    fill_events(connection, 10)
    options = {"snapshot_max_age": "0s", "horizon_margin": "0s"}
    events = create_events(connection, settings, "incremental", batch_size=1, options=options)
    succeed(connection, settings, events)  # a first load keeps one horizon by other means
    connection.execute("UPDATE ugc.events SET modified = clock_timestamp()")

    def begin() -> None:
        writer.execute("BEGIN")
        writer.execute("UPDATE ugc.events SET note = 'late', modified = now() WHERE id = 1")
        connection.execute("INSERT INTO ugc.events SELECT n, 'new', clock_timestamp() FROM generate_series(11, 50) n")

    steps = [(1, begin), (20, lambda: writer.execute("COMMIT"))]

    def watch(counts: Counts, expected: int | None) -> None:
        if steps and counts.read >= steps[0][0]:
            steps.pop(0)[1]()

    assert succeed(connection, settings, events, watch=watch).counts.read == 50
    succeed(connection, settings, events)
    assert events_are_right(connection)


@pytest.mark.promise("C20")
def test_a_long_read_of_another_pipeline_only_causes_rows_to_be_read_again(
    connection: Connection, settings: Settings
) -> None:
    fill_events(connection, 5)
    options = {"horizon_margin": "0s"}
    events = create_events(connection, settings, "incremental", options=options)
    long = create_ratings(connection, settings, name="long", batch_size=10)
    seen: list[Counts] = []

    def meanwhile() -> None:
        for number in (6, 7):
            connection.execute("INSERT INTO ugc.events VALUES (%s, 'new', clock_timestamp())", [number])
            seen.append(succeed(connection, settings, events).counts)
            assert events_are_right(connection)
        seen.append(succeed(connection, settings, events).counts)

    succeed(connection, settings, long, watch=once_read(10, meanwhile))
    assert [(counts.read, counts.written) for counts in seen] == [(6, 6), (2, 1), (2, 0)]
    assert succeed(connection, settings, events).counts.written == 0
    assert succeed(connection, settings, events).counts.read == 0
    assert is_right(connection)


@pytest.mark.promise("C20")
@pytest.mark.parametrize(
    ("grant", "held"), [("SELECT", False), ("SELECT, UPDATE (note)", True), ("SELECT, DELETE", True)]
)
def test_a_transaction_of_a_role_that_cannot_write_does_not_hold_the_checkpoint_back(
    connection: Connection, settings: Settings, database_url: str, grant: str, held: bool
) -> None:
    fill_events(connection, 5, modified="interval '1 year' + n * interval '1 s'")
    with role(connection, "bookkeeper") as name, role(connection, "analyst") as member:
        connection.execute(raw(f"GRANT USAGE ON SCHEMA ugc TO {name}; GRANT {grant} ON ugc.events TO {name}"))
        # NOINHERIT: the privileges need SET ROLE, and count nevertheless
        connection.execute(raw(f"ALTER ROLE {member} NOINHERIT; GRANT {name} TO {member}"))
        with psycopg.connect(database_url.replace("postgres@", f"{member}@")) as reading:
            reading.execute(raw(f"SET ROLE {name}"))
            reading.execute("SELECT count(*) FROM ugc.events")
            events = create_events(connection, settings, "incremental", options={"horizon_margin": "0s"})
            succeed(connection, settings, events)
            connection.execute("INSERT INTO ugc.events VALUES (6, 'new', clock_timestamp())")
            succeed(connection, settings, events)
            assert (succeed(connection, settings, events).counts.read == 1) == held


@contextmanager
def role(connection: Connection, name: str) -> Generator[str]:
    connection.execute(raw(f"DROP ROLE IF EXISTS {name}"))
    connection.execute(raw(f"CREATE ROLE {name} LOGIN"))
    try:
        yield name
    finally:
        connection.execute(raw(f"DROP OWNED BY {name}"))
        connection.execute(raw(f"DROP ROLE {name}"))


@pytest.mark.promise("C12")
@both_modes
def test_a_snapshot_that_is_too_old_is_closed_and_reading_continues_from_the_cursor(
    connection: Connection, settings: Settings, mode: str
) -> None:
    fill_events(connection, 200)
    events = create_events(connection, settings, mode, batch_size=5, options={"snapshot_max_age": "0s"})

    def change() -> None:
        connection.execute("UPDATE ugc.events SET note = 'seen by a later snapshot' WHERE id = 200")

    executed = succeed(connection, settings, events, watch=once_read(5, change))
    assert (executed.counts.read, executed.counts.written, executed.batches) == (200, 200, 40)
    assert events_are_right(connection)
    assert succeed(connection, settings, events).counts.written == 0


# -- targets that disappear, repeated keys ----------------------------------------------------------------------------


@pytest.mark.promise("E4")
@pytest.mark.parametrize("statement", ["DROP TABLE analytics.events", "ALTER TABLE analytics.events RENAME TO renamed"])
def test_a_missing_target_is_not_rebuilt_from_the_latest_rows_only(
    connection: Connection, settings: Settings, statement: Any
) -> None:
    fill_events(connection, 300)
    events = create_events(connection, settings, "incremental")
    succeed(connection, settings, events)
    before = state.load_state(connection, events.id).position
    connection.execute(statement)
    connection.execute("INSERT INTO ugc.events VALUES (301, 'new', now())")
    failed = run(connection, settings, events).error
    assert failed is not None
    assert failed.code == "TARGET_SCHEMA"
    assert state.load_state(connection, events.id).position == before
    assert pipelines.get(connection, events.id).status == "FAILED"
    state.reset_state(connection, events.id)
    succeed(connection, settings, events)
    assert events_are_right(connection)


@pytest.mark.promise("E4")
@both_modes
def test_a_target_that_is_renamed_during_a_run_fails_the_run_at_once(
    connection: Connection, settings: Settings, mode: str
) -> None:
    fill_events(connection, 1000)
    create_target(connection)
    events = create_events(connection, settings, mode)

    def rename() -> None:
        connection.execute("ALTER TABLE analytics.events RENAME TO renamed")

    failed = run(connection, settings, events, watch=once_read(200, rename)).error
    assert failed is not None
    assert failed.code == "TARGET_SCHEMA"
    connection.execute("ALTER TABLE analytics.renamed RENAME TO events")
    succeed(connection, settings, events)
    assert events_are_right(connection)


@pytest.mark.promise("E6")
@pytest.mark.parametrize("batch_size", [7, 100])
def test_a_repeated_key_fails_an_incremental_run_with_examples(
    connection: Connection, settings: Settings, batch_size: int
) -> None:
    fill_events(connection, 10)
    repeated = "SELECT id / 2 AS pair, id, note, modified FROM ugc.events"
    create_target(connection, key="pair integer PRIMARY KEY, id integer")
    events = create_events(
        connection, settings, "incremental", source_query=repeated, key_columns=["pair"], batch_size=batch_size
    )
    failed = run(connection, settings, events)
    assert failed.error is not None
    assert failed.error.code == "DUPLICATE_KEY"
    assert re.search(r"for example [1-5]\b", str(failed.error))
    assert state.load_state(connection, events.id).position.cursor is None
    assert count_events(connection) == 0


def test_a_key_that_occurs_again_in_a_later_batch_is_a_newer_version(
    connection: Connection, settings: Settings
) -> None:
    fill_events(connection, 10)
    repeated = "SELECT id / 2 AS pair, id, note, modified FROM ugc.events"
    create_target(connection, key="pair integer PRIMARY KEY, id integer")
    events = create_events(
        connection, settings, "incremental", source_query=repeated, key_columns=["pair"], batch_size=1
    )
    succeed(connection, settings, events)
    newest = (
        "SELECT DISTINCT ON (id / 2) id / 2 AS pair, id, note, modified FROM ugc.events ORDER BY id / 2, modified DESC"
    )
    assert differences(connection, newest, "analytics.events", "pair") == []


@pytest.mark.promise("H4")
@both_modes
def test_a_value_that_the_source_cannot_convert_is_not_quoted(
    connection: Connection, settings: Settings, mode: str
) -> None:
    fill_events(connection, 10, note="CASE n WHEN 5 THEN 'S3CR3T' ELSE n::text END")
    query = "SELECT id, note::integer AS note, modified FROM ugc.events"
    events = create_events(connection, settings, mode, source_query=query)
    failed = run(connection, settings, events).error
    assert failed is not None
    assert failed.code == "DATA_ERROR"
    assert "22P02" in str(failed)
    stored = connection.execute("SELECT error_message FROM etl.etl_runs").fetchall()
    assert "S3CR3T" not in f"{failed} {stored}"


# -- transforms that fail ---------------------------------------------------------------------------------------------


def _without(column: str, row: Row) -> Row:
    return {name: value for name, value in row.items() if name != column}


@registry.transforms.register("faulty_raise")
def faulty_raise(rows: Sequence[Row]) -> Sequence[Row]:
    return [row | {"note": int(row["note"])} for row in rows]


@registry.transforms.register("faulty_key")
def faulty_key(rows: Sequence[Row]) -> Sequence[Row]:
    return [_without("id", row) for row in rows] if any(row["note"] == "S3CR3T" for row in rows) else rows


@registry.transforms.register("faulty_shape")
def faulty_shape(rows: Sequence[Row]) -> Sequence[Row]:
    return [_without("modified", row) if row["note"] == "S3CR3T" else row for row in rows]


@registry.transforms.register("faulty_result")
def faulty_result(rows: Sequence[Row]) -> Any:
    return None if any(row["note"] == "S3CR3T" for row in rows) else rows


@pytest.mark.promise("D16", "E10")
@both_modes
@pytest.mark.parametrize(
    ("task", "named"),
    [("faulty_raise", "250"), ("faulty_key", "id"), ("faulty_shape", "250"), ("faulty_result", "201")],
)
def test_a_transform_that_fails_leaves_nothing_of_its_batch(
    connection: Connection, settings: Settings, mode: str, task: str, named: str
) -> None:
    fill_events(connection, 500, note="CASE n WHEN 250 THEN 'S3CR3T' ELSE n::text END")
    if mode == "incremental":
        create_target(connection)
    events = create_events(connection, settings, mode, python_task=task)
    failed = run(connection, settings, events).error
    assert failed is not None
    assert failed.code == "TRANSFORM_ERROR"
    assert f"'{task}'" in str(failed)
    assert named in str(failed)
    assert "S3CR3T" not in str(failed)
    if mode == "full":
        assert connection.execute("SELECT to_regclass('analytics.events') AS t").fetchone() == {"t": None}
    else:
        assert count_events(connection) == 200
        assert state.load_state(connection, events.id).position.cursor == ("2024-01-01 00:03:20+00", "200")
    connection.execute("UPDATE ugc.events SET note = '250' WHERE id = 250")
    read = succeed(connection, settings, events).counts.read
    assert read == (300 if mode == "incremental" else 300 + 500)  # another load follows the one that had failed
    assert count_events(connection) == 500


# -- batches and rows of any size -------------------------------------------------------------------------------------


@pytest.mark.promise("E11")
@pytest.mark.parametrize("size", [0, -1, 50_001, 10**9, "10", 1.5, None])
def test_a_batch_size_out_of_bounds_is_refused(size: Any) -> None:
    fields = {"name": "events", "source_query": EVENTS, "target_table": "analytics.events", "batch_size": size}
    with pytest.raises(ValidationError):
        Definition.model_validate(fields)


@pytest.mark.promise("E11")
@pytest.mark.parametrize("size", [0, -1, 50_001, 10**9, None])
def test_the_database_refuses_a_batch_size_out_of_bounds_too(
    connection: Connection, settings: Settings, size: int | None
) -> None:
    fill_events(connection, 1)
    create_events(connection, settings, "full")
    with pytest.raises(psycopg.errors.IntegrityError):
        connection.execute("UPDATE etl.etl_pipelines SET batch_size = %s", [size])


@pytest.mark.promise("E11")
@both_modes
@pytest.mark.parametrize("task", [None, "faulty_result"])
def test_wide_rows_are_split_into_batches_by_their_bytes(
    connection: Connection, settings: Settings, mode: str, task: str | None
) -> None:
    fill_events(connection, 20, note="repeat('x', 10000)")
    events = create_events(
        connection, settings, mode, batch_size=50_000, python_task=task, options={"max_batch_bytes": 25_000}
    )
    assert succeed(connection, settings, events).batches == 7
    assert events_are_right(connection)


@pytest.mark.promise("E11")
@pytest.mark.parametrize(
    ("task", "options", "batches"),
    [(None, {}, 1), ("faulty_result", {}, 3), ("faulty_result", {"max_batch_bytes": 2**24}, 2)],
)
def test_rows_that_become_python_values_are_split_into_smaller_batches_unless_batch_size_is_set(
    connection: Connection, settings: Settings, task: str | None, options: dict[str, int], batches: int
) -> None:
    fill_events(connection, 20, note="repeat('x', 1048576)")
    events = create_events(connection, settings, "full", python_task=task, options=options)
    assert succeed(connection, settings, events).batches == batches
    assert events_are_right(connection)


@pytest.mark.promise("E12")
@both_modes
def test_a_row_larger_than_a_batch_is_a_batch_of_its_own_in_bounded_memory(
    connection: Connection, settings: Settings, mode: str, tmp_path: Path
) -> None:
    megabytes = 50
    fill_events(connection, 3)
    events = create_events(connection, settings, mode)
    base = peak_of_a_run(settings, events, tmp_path)
    wide = "UPDATE ugc.events SET note = repeat('x', %s), modified = now() WHERE id = 2"
    connection.execute(wide, [megabytes * 2**20])
    # libpq's buffer, whose size is a power of two, and the row; less than three rows with all other memory
    assert peak_of_a_run(settings, events, tmp_path) < base + 2.75 * megabytes * 1024
    assert events_are_right(connection)


@pytest.mark.promise("K14", "E12")
@both_modes
def test_a_row_that_is_too_large_is_quarantined_in_bounded_memory(
    connection: Connection, settings: Settings, mode: str, tmp_path: Path
) -> None:
    megabytes = 100
    fill_events(connection, 6)
    events = create_events(connection, settings, mode, options={"on_reject": "quarantine"})
    base = peak_of_a_run(settings, events, tmp_path)
    wide = "UPDATE ugc.events SET note = repeat('x', %s), modified = now() WHERE id IN (2, 3, 5)"
    connection.execute(wide, [megabytes * 2**20])
    # one row at a time: libpq's buffer, and the row once more when it is complete
    peak = peak_of_a_run(settings, events, tmp_path, VITRINE_MAX_ROW_BYTES="8MB")
    assert peak < base + 2.75 * megabytes * 1024
    assert [one.key for one in checkpoint.list_page(connection, events.id)] == ["2", "3", "5"]


_PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=sys.stderr)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def peak_of_a_run(settings: Settings, pipeline: Pipeline, folder: Path, **variables: str) -> int:
    """Peak memory of one run in a process of its own, in kilobytes."""
    # started by a small process, because a child inherits the peak of its parent
    command = [sys.executable, "-c", _PEAK, sys.executable, "-m", "vitrine", "run", pipeline.name]
    ended = subprocess.run(
        command,
        cwd=folder,
        env=environment(settings.store_url, **variables),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return int(ended.stdout)
