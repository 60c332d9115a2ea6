"""The publish of a full load: a crash leaves all old rows, and a reader sees the old rows or the new ones."""

import threading
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from tests.helpers.running import create, differences, run, run_one_batch, succeed
from tests.helpers.waiting import wait_until
from vitrine.core.rows import Counts
from vitrine.definition.pipeline import Pipeline
from vitrine.postgres import Connection, connect
from vitrine.runner.run import Executed
from vitrine.settings import Settings
from vitrine.store.state import load_state

QUERY = "SELECT id, title, version FROM content.shelf"
TARGET = "analytics.shelf"
ROWS = 200


@pytest.fixture
def shelf(connection: Connection, settings: Settings) -> Pipeline:
    """A mart that holds version 1 of every row, and a source that holds other rows of version 2."""
    connection.execute("CREATE TABLE content.shelf (id integer PRIMARY KEY, title text, version integer)")
    put_on_shelf(connection, version=1)
    pipeline = create(connection, settings, source_query=QUERY, target_table=TARGET, key_columns=["id"], batch_size=30)
    succeed(connection, settings, pipeline)
    put_on_shelf(connection, version=2)
    return pipeline


def put_on_shelf(connection: Connection, *, version: int) -> None:
    """The same number of rows, all of this version; a quarter of them have new keys."""
    with connection.transaction():
        connection.execute("DELETE FROM content.shelf")
        connection.execute(
            "INSERT INTO content.shelf SELECT n, 'title ' || n, %(version)s"
            " FROM generate_series(%(version)s * 50, %(version)s * 50 + %(rows)s - 1) n",
            {"version": version, "rows": ROWS},
        )


def versions(connection: Connection) -> list[tuple[int, int]]:
    """Versions in the mart with their number of rows, read by one statement."""
    rows = connection.execute("SELECT version, count(*) AS n FROM analytics.shelf GROUP BY 1 ORDER BY 1").fetchall()
    return [(row["version"], row["n"]) for row in rows]


def is_right(connection: Connection) -> bool:
    return differences(connection, QUERY, TARGET, "id") == []


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@contextmanager
def held(
    connection: Connection, settings: Settings, pipeline: Pipeline, threads: ThreadPoolExecutor, lock: Any
) -> Generator[tuple[Future[Executed], int]]:
    """A run in a thread, and the pid of its writer, which waits for this lock of the target."""

    def run_there() -> Executed:
        with connect(settings.store_url, name="tests:thread") as own:
            return run(own, settings, pipeline, retry=True)

    waiting = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        " AND application_name ~ '^vitrine:[0-9a-f]+:[0-9]+$'"
    )
    with connect(settings.store_url, name="tests:hold") as other, other.transaction():
        other.execute(lock)
        running = threads.submit(run_there)
        found = wait_until(lambda: connection.execute(waiting).fetchall(), what="a writer that waits")
        yield running, found[0]["pid"]


def terminate(connection: Connection, pid: int) -> None:
    connection.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])


BEFORE_THE_FIRST_CHANGE = "LOCK TABLE analytics.shelf IN SHARE MODE"
AMONG_THE_CHANGES = "SELECT FROM analytics.shelf WHERE id = 249 FOR UPDATE"


@pytest.mark.promise("I2", "I3")
@pytest.mark.parametrize("moment", [BEFORE_THE_FIRST_CHANGE, AMONG_THE_CHANGES])
def test_a_load_that_dies_during_its_publish_leaves_the_old_rows_and_is_published_without_reading_again(
    connection: Connection, settings: Settings, shelf: Pipeline, threads: ThreadPoolExecutor, moment: str
) -> None:
    with held(connection, settings, shelf, threads, moment) as (running, pid):
        assert versions(connection) == [(1, ROWS)]
        terminate(connection, pid)
        died = running.result()
    assert (died.outcome, died.counts.read) == (None, ROWS)
    assert versions(connection) == [(1, ROWS)]
    state = load_state(connection, shelf.id)
    assert (state.generation_open, state.generation_rows) == (True, ROWS)
    applied = succeed(connection, settings, shelf, resume=True)
    assert applied.counts == Counts(read=0, written=ROWS, deleted=50)
    assert versions(connection) == [(2, ROWS)]
    assert is_right(connection)


@pytest.mark.promise("I2")
def test_a_load_that_dies_after_its_last_batch_is_published_without_reading_again(
    connection: Connection, settings: Settings, shelf: Pipeline
) -> None:  # before the key of staging is built
    def watch(counts: Counts, expected: int | None) -> None:
        if counts.read == ROWS and not counts.written:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name ~ '^vitrine:[0-9a-f]+:[0-9]+$'"
            )

    assert run(connection, settings, shelf, watch=watch, retry=True).error is not None
    assert versions(connection) == [(1, ROWS)]
    assert succeed(connection, settings, shelf, resume=True).counts.read == 0
    assert is_right(connection)


@pytest.mark.promise("I4")
def test_a_reader_sees_the_old_rows_until_it_sees_the_new_ones(
    connection: Connection, settings: Settings, shelf: Pipeline, threads: ThreadPoolExecutor
) -> None:
    with held(connection, settings, shelf, threads, AMONG_THE_CHANGES) as (running, _):
        assert versions(connection) == [(1, ROWS)]
    assert running.result().error is None
    assert versions(connection) == [(2, ROWS)]


@pytest.mark.promise("I4")
def test_a_reader_never_sees_a_mixture_however_often_it_reads(
    connection: Connection, settings: Settings, shelf: Pipeline, threads: ThreadPoolExecutor
) -> None:
    ended = threading.Event()

    def read() -> list[list[tuple[int, int]]]:
        with connect(settings.store_url, name="tests:reader") as own:
            seen = [versions(own)]
            while not ended.is_set():
                seen.append(versions(own))
            return seen

    reading = [threads.submit(read) for _ in range(2)]
    try:
        for version in range(2, 8):
            put_on_shelf(connection, version=version)
            succeed(connection, settings, shelf)
    finally:
        ended.set()
    for seen in (one.result() for one in reading):
        assert all(len(found) == 1 and found[0][1] == ROWS for found in seen)
        assert seen == sorted(seen)


@pytest.mark.promise("I7")
def test_rows_that_change_during_a_load_arrive_with_the_next_load(
    connection: Connection, settings: Settings, shelf: Pipeline
) -> None:
    def watch(counts: Counts, expected: int | None) -> None:
        if counts.read == 30 and expected is None:
            put_on_shelf(connection, version=3)

    succeed(connection, settings, shelf, watch=watch)
    assert versions(connection) == [(2, ROWS)]
    succeed(connection, settings, shelf)
    assert is_right(connection)


@pytest.mark.promise("I7")
def test_rows_that_change_between_two_parts_of_a_load_arrive_with_the_next_load(
    connection: Connection, settings: Settings, shelf: Pipeline
) -> None:
    run_one_batch(connection, settings, shelf)
    put_on_shelf(connection, version=3)
    succeed(connection, settings, shelf)
    succeed(connection, settings, shelf)
    assert is_right(connection)


@pytest.mark.promise("I7")
def test_rows_that_change_between_two_parts_of_a_load_with_a_cursor_arrive_with_the_second_part(
    connection: Connection, settings: Settings, shelf: Pipeline
) -> None:  # from the horizon of the first part on
    connection.execute("ALTER TABLE content.shelf ADD modified timestamptz NOT NULL DEFAULT '2024-01-01'")
    query = QUERY.replace("version", "version, modified")
    dated = create(
        connection,
        settings,
        name="dated",
        source_query=query,
        target_table="analytics.dated",
        key_columns=["id"],
        incremental_key="modified",
        batch_size=30,
    )
    run_one_batch(connection, settings, dated)
    connection.execute("UPDATE content.shelf SET version = 3, modified = now() WHERE id = 100")
    succeed(connection, settings, dated)
    assert differences(connection, query, "analytics.dated", "id") == []


@pytest.mark.promise("E9")
def test_a_load_of_equal_rows_neither_writes_nor_locks_a_row(
    connection: Connection, settings: Settings, shelf: Pipeline
) -> None:
    succeed(connection, settings, shelf)
    images = "SELECT id, ctid::text, xmin::text, xmax::text FROM analytics.shelf ORDER BY id"
    before = connection.execute(images).fetchall()
    again = succeed(connection, settings, shelf)
    assert again.counts == Counts(read=ROWS)
    assert connection.execute(images).fetchall() == before
