"""Rate limits of a run: rows per second, waits between batches, reloads, and reads that block no writer."""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi.testclient import TestClient
from psycopg import sql

from tests.conftest import RATINGS
from tests.helpers.running import allowing, create, differences, run, succeed
from tests.helpers.waiting import wait_until
from vitrine.api.app import create_app
from vitrine.core.protocols import Outcome
from vitrine.core.status import Status
from vitrine.definition.pipeline import Pipeline
from vitrine.errors import LeaseLost
from vitrine.operations import changes
from vitrine.postgres import Connection, connect
from vitrine.runner.run import Executed, PipelineDispatcher, PipelineExecutor
from vitrine.settings import Settings
from vitrine.store import history, pipelines, queue

QUERY = "SELECT id, user_id, film_id, rating, created, modified FROM ugc.ratings"
SLOW: dict[str, Any] = {"pause_between_batches": "1h"}


def ratings(connection: Connection, settings: Settings, size: int = 100, **options: Any) -> Pipeline:
    return create(
        connection,
        settings,
        source_query=QUERY,
        target_table="analytics.ratings",
        key_columns=["id"],
        batch_size=size,
        options=options,
    )


class ActiveRun:
    """A run in a thread of its own."""

    def __init__(self, connection: Connection, settings: Settings, pipeline: Pipeline) -> None:
        self.stop = threading.Event()
        self._connection = connection
        self._pipeline = pipeline
        pipelines.request_run(connection, pipeline.id, trigger="api")
        claim = queue.claim_next(connection, runner="tests", ttl=settings.lease_ttl)
        assert claim is not None
        self._ended: list[Executed] = []
        dispatcher = PipelineDispatcher(settings, PipelineExecutor(settings, self.stop))
        self.thread = threading.Thread(target=lambda: self._ended.append(dispatcher.dispatch(claim)[0]))

    def batches(self) -> int:
        return history.list_runs(self._connection, self._pipeline.id, limit=1)[0].batches

    def end(self, within: float = 10) -> Executed:
        self.thread.join(within)
        assert not self.thread.is_alive(), "the run did not end in time"
        return self._ended[0]


@contextmanager
def active_run(connection: Connection, settings: Settings, pipeline: Pipeline) -> Generator[ActiveRun]:
    """Inside, the run has written its first batch, and waits or continues."""
    one = ActiveRun(connection, settings, pipeline)
    one.thread.start()
    try:
        wait_until(lambda: one.batches() >= 1, what="the first batch")
        yield one
    finally:
        one.stop.set()
        one.thread.join(10)


def rare_heartbeats(settings: Settings) -> Settings:
    """Settings with rare heartbeats, as in production: a heartbeat alone would notice a pause too late."""
    longer: dict[str, Any] = {"lease_ttl": "30s", "heartbeat_interval": "5s"}
    return Settings.model_validate({"database_url": settings.store_url, **longer})


# -- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("S5")
def test_a_run_keeps_its_limit_of_rows_per_second(connection: Connection, settings: Settings) -> None:
    executed = succeed(connection, settings, ratings(connection, settings, 500, max_rows_per_second=600))
    assert executed.counts.read == RATINGS == 900
    assert executed.batches == 2  # of 500 and 400
    assert 500 / 600 <= executed.seconds < 500 / 600 + 2


def test_batches_are_not_larger_than_the_rows_of_one_second(connection: Connection, settings: Settings) -> None:
    executed = succeed(connection, settings, ratings(connection, settings, 5000, max_rows_per_second=450))
    assert executed.batches == 2
    assert executed.seconds >= 1


@pytest.mark.promise("S5")
def test_a_run_waits_between_its_batches_and_not_after_the_last(connection: Connection, settings: Settings) -> None:
    executed = succeed(connection, settings, ratings(connection, settings, 300, pause_between_batches="400ms"))
    assert executed.batches == 3
    assert 0.8 <= executed.seconds < 1.2 + 1
    alone = succeed(connection, settings, ratings_once(connection, settings))
    assert alone.seconds < 60
    (one,) = history.list_runs(connection, pipelines.get(connection, "under_test").id)
    assert one.slowest_batch_seconds is not None
    assert one.slowest_batch_seconds < 0.4  # the wait is not part of a batch


def ratings_once(connection: Connection, settings: Settings) -> Pipeline:
    fields: dict[str, Any] = {"source_query": QUERY, "key_columns": ["id"], "options": SLOW}
    return create(connection, settings, name="once", target_table="analytics.once", **fields)


# -- a wait can be ended -----------------------------------------------------------------------------------------------


def pause(connection: Connection, pipeline: Pipeline, one: ActiveRun) -> None:
    pipelines.request_pause(connection, pipeline.id)


def stop(connection: Connection, pipeline: Pipeline, one: ActiveRun) -> None:
    one.stop.set()


def disable(connection: Connection, pipeline: Pipeline, one: ActiveRun) -> None:
    pipelines.update(connection, pipeline.id, pipeline.definition.model_copy(update={"enabled": False}))


@pytest.mark.promise("D14", "S5")
@pytest.mark.parametrize(
    ("interrupt", "outcome", "left"),
    [
        (pause, Outcome.PAUSED, Status.PAUSED),
        (stop, Outcome.RELEASED, Status.RUN_REQUESTED),
        (disable, Outcome.PAUSED, Status.PAUSED),
    ],
)
def test_a_waiting_run_ends_within_a_second(
    connection: Connection,
    settings: Settings,
    interrupt: Callable[[Connection, Pipeline, ActiveRun], None],
    outcome: Outcome,
    left: Status,
) -> None:
    pipeline = ratings(connection, settings, **SLOW)
    with active_run(connection, rare_heartbeats(settings), pipeline) as one:
        began = time.monotonic()
        interrupt(connection, pipeline, one)
        assert one.end().outcome is outcome
        assert time.monotonic() - began < 1.5  # a second, and time to release
    assert pipelines.get(connection, pipeline.id).status is left
    assert one.batches() == 1


@pytest.mark.promise("S5")
def test_a_waiting_run_that_lost_its_lease_ends_and_writes_nothing(connection: Connection, settings: Settings) -> None:
    pipeline = ratings(connection, settings, **SLOW)
    with active_run(connection, rare_heartbeats(settings), pipeline) as one:
        connection.execute("UPDATE etl.etl_pipelines SET lease_token = nextval('etl.fencing_seq')")
        assert isinstance(one.end().error, LeaseLost)
    assert pipelines.get(connection, pipeline.id).status is Status.RUNNING


def test_a_wait_longer_than_the_lease_keeps_the_lease(connection: Connection, settings: Settings) -> None:
    pipeline = ratings(connection, settings, **SLOW)
    with active_run(connection, settings, pipeline):
        first = pipelines.get(connection, pipeline.id).lease_expires_at
        assert first is not None
        kept = "SELECT FROM etl.etl_pipelines WHERE lease_expires_at > %s + interval '2 seconds'"
        wait_until(lambda: connection.execute(kept, [first]).fetchall(), what="a lease that outlives its first term")
        assert queue.expire_leases(connection) == []


def test_no_transaction_stays_open_at_the_target_while_a_run_waits(connection: Connection, settings: Settings) -> None:
    pipeline = ratings(connection, settings, **SLOW)
    with active_run(connection, settings, pipeline):
        idle = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"
        wait_until(lambda: not connection.execute(idle).fetchall(), what="the end of every transaction")


# -- reload ------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("D12")
def test_a_run_uses_a_new_rate_limit_after_a_reload(connection: Connection, settings: Settings) -> None:
    pipeline = ratings(connection, settings, 10, pause_between_batches="100ms")
    with active_run(connection, settings, pipeline) as one, TestClient(create_app(settings)) as client:
        change = {"batch_size": 400, "description": "faster", "options": {"pause_between_batches": "0s"}}
        assert client.patch(f"/pipelines/{pipeline.name}", json=change).status_code == 200
        answer = client.post(f"/pipelines/{pipeline.name}/reload-config")
        assert answer.status_code == 202
        assert (answer.json()["applies"], answer.json()["waiting"]) == ("next_batch", ["description"])
        executed = one.end()
    assert executed.outcome is Outcome.FINISHED
    assert executed.counts.read == RATINGS
    assert executed.batches < 40  # a few of ten rows, then of four hundred
    config = connection.execute("SELECT config FROM etl.etl_runs").fetchone()
    assert config is not None
    assert (config["config"]["batch_size"], config["config"]["description"]) == (400, "")
    assert differences(connection, QUERY, "analytics.ratings", "id") == []


@pytest.mark.promise("D12")
def test_a_new_rate_limit_does_not_affect_the_current_run_without_a_reload(
    connection: Connection, settings: Settings
) -> None:
    pipeline = ratings(connection, settings, **SLOW)
    with active_run(connection, settings, pipeline) as one:
        changes.change(connection, settings, pipeline.id, {"options": {"pause_between_batches": "0s"}})
        pipelines.request_pause(connection, pipeline.id)
        assert one.end().outcome is Outcome.PAUSED
        assert one.batches() == 1


def test_a_reload_ends_a_long_wait(connection: Connection, settings: Settings) -> None:
    pipeline = ratings(connection, settings, **SLOW)
    with active_run(connection, rare_heartbeats(settings), pipeline) as one:
        changes.change(connection, settings, pipeline.id, {"options": {"pause_between_batches": "0s"}})
        assert changes.reload(connection, pipeline.id).running
        assert one.end().outcome is Outcome.FINISHED


def test_a_reload_without_a_current_run_takes_effect_with_the_next_run(
    connection: Connection, settings: Settings
) -> None:
    pipeline = ratings(connection, settings)
    with TestClient(create_app(settings)) as client:
        answer = client.post(f"/pipelines/{pipeline.name}/reload-config")
        assert (answer.status_code, answer.json()["applies"], answer.json()["waiting"]) == (200, "next_run", [])
        assert client.post("/pipelines/unknown/reload-config").status_code == 404


# -- no blocking at the source -----------------------------------------------------------------------------------------

READING = """
    SELECT pid, extract(epoch FROM clock_timestamp() - xact_start)::float8 AS age FROM pg_stat_activity
     WHERE datname = current_database() AND query LIKE 'COPY (SELECT%%' AND state <> 'idle' AND xact_start IS NOT NULL
"""


@pytest.mark.promise("S6")
@pytest.mark.parametrize("wait", ["200ms", "1200ms"])
def test_a_rate_limited_run_reads_from_no_snapshot_older_than_snapshot_max_age(
    connection: Connection, settings: Settings, wait: str
) -> None:
    # five batches: two are read ahead, and the reader waits with the third
    pipeline = ratings(connection, settings, 180, pause_between_batches=wait, snapshot_max_age="400ms")
    oldest = 0.0
    with active_run(connection, settings, pipeline) as one:
        while one.thread.is_alive():
            oldest = max([oldest, *(row["age"] for row in connection.execute(READING))])
            time.sleep(0.01)
        assert one.end(30).counts.read == RATINGS
    assert oldest < 0.4 + 0.4  # snapshot_max_age, and one batch
    assert differences(connection, QUERY, "analytics.ratings", "id") == []


def wide(connection: Connection) -> None:
    """Rows too large for the buffers between source and run: the read stays open while the run waits."""
    connection.execute("ALTER TABLE ugc.ratings ADD COLUMN filler text")
    connection.execute("UPDATE ugc.ratings SET filler = repeat('x', 20000)")


@pytest.mark.promise("S6")
def test_a_writer_at_the_source_is_never_blocked_by_a_read(
    connection: Connection, settings: Settings, database_url: str
) -> None:
    wide(connection)
    pipeline = create(
        connection,
        settings,
        source_query="SELECT id, filler, rating FROM ugc.ratings",
        target_table="analytics.wide",
        key_columns=["id"],
        batch_size=10,
        options={"pause_between_batches": "5m"},  # less than snapshot_max_age
    )
    with active_run(connection, settings, pipeline), connect(database_url, name="writer") as writer:
        wait_until(lambda: connection.execute(READING).fetchall(), what="a read under way")
        locks = "SELECT DISTINCT mode FROM pg_locks WHERE relation = 'ugc.ratings'::regclass AND pid = ANY(%s)"
        pids = [row["pid"] for row in connection.execute(READING)]
        assert [row["mode"] for row in connection.execute(locks, [pids])] == ["AccessShareLock"]
        writer.execute("SET lock_timeout = '500ms'")
        for statement in (
            "UPDATE ugc.ratings SET rating = 1",
            "DELETE FROM ugc.ratings WHERE id IN (SELECT id FROM ugc.ratings LIMIT 5)",
            "INSERT INTO ugc.ratings SELECT gen_random_uuid(), user_id, film_id, rating FROM ugc.ratings LIMIT 5",
            "LOCK TABLE ugc.ratings IN SHARE ROW EXCLUSIVE MODE",
            "CREATE INDEX ON ugc.ratings (rating)",
            "ALTER TABLE ugc.ratings ALTER COLUMN rating SET STATISTICS 50",
        ):
            with writer.transaction():
                writer.execute(sql.SQL(statement))


@pytest.mark.promise("S6")
def test_a_table_can_be_altered_while_a_run_waits_longer_than_snapshot_max_age(
    connection: Connection, settings: Settings, database_url: str
) -> None:
    pipeline = ratings(connection, settings, snapshot_max_age="1s", **SLOW)
    with active_run(connection, settings, pipeline), connect(database_url, name="writer") as writer:
        writer.execute("SET lock_timeout = '2s'")
        writer.execute("ALTER TABLE ugc.ratings ADD COLUMN note text")


@pytest.mark.promise("S6")
def test_reads_cannot_write(connection: Connection, settings: Settings) -> None:
    connection.execute("CREATE TABLE ugc.seen (id uuid)")
    connection.execute(
        "CREATE FUNCTION ugc.note(id uuid) RETURNS uuid LANGUAGE sql AS 'INSERT INTO ugc.seen VALUES (id) RETURNING id'"
    )
    settings = allowing(settings, "ugc.sly")
    connection.execute("CREATE VIEW ugc.sly AS SELECT ugc.note(id) AS id, rating FROM ugc.ratings")
    pipeline = create(
        connection,
        settings,
        source_query="SELECT id, rating FROM ugc.sly",
        target_table="analytics.sly",
        key_columns=["id"],
    )
    error = run(connection, settings, pipeline).error
    assert error is not None
    assert "read-only transaction" in str(error)
    assert connection.execute("SELECT FROM ugc.seen").fetchall() == []
