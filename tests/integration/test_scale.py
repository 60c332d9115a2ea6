"""Many pipelines and a long history: claims use an index, source limits hold, old runs are deleted."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from psycopg import sql

from vitrine.core import status
from vitrine.core.status import Event, RunStatus, Status
from vitrine.definition.model import Definition
from vitrine.definition.pipeline import Claim, Pipeline
from vitrine.postgres import Connection, connect
from vitrine.runner.run import PipelineDispatcher, PipelineExecutor
from vitrine.runner.worker import PipelineManager
from vitrine.settings import Settings
from vitrine.store import database, history, pipelines, queue

TTL = timedelta(seconds=30)
DAY = timedelta(days=1)


def create(connection: Connection, name: str = "genres", **fields: Any) -> Pipeline:
    given = {"name": name, "source_query": "SELECT 1 AS id", "target_table": f"analytics.{name}", "key_columns": ["id"]}
    return pipelines.create(connection, Definition.model_validate(given | fields))


# -- claims -----------------------------------------------------------------------------------------------------------

MANY = """
    INSERT INTO etl.etl_pipelines (name, target_table, source_query, key_columns, status, request_id, requested_at)
    SELECT 'p' || n, 'analytics.p' || n, 'SELECT 1 AS id', '{id}',
           CASE WHEN n <= %(waiting)s THEN 'RUN_REQUESTED' ELSE 'IDLE' END, gen_random_uuid(),
           now() - n * interval '1 s'
      FROM generate_series(1, %(count)s) AS n
"""


def scanned(plan: Any) -> set[str]:
    """Tables that a plan reads from their first row to their last."""
    tables = {plan["Relation Name"]} if plan["Node Type"] == "Seq Scan" else set[str]()
    return tables.union(*(scanned(inner) for inner in plan.get("Plans", ())))


@pytest.mark.promise("S8")
@pytest.mark.parametrize("waiting", [0, 1, 5000])
@pytest.mark.parametrize("full", [[], ["billing"]], ids=["unlimited", "limited"])
def test_a_claim_among_ten_thousand_pipelines_uses_the_index(
    connection: Connection, waiting: int, full: list[str]
) -> None:
    connection.execute(MANY, {"count": 10_000, "waiting": waiting})
    connection.execute("ANALYZE etl.etl_pipelines")
    statement = sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {}").format(sql.SQL(database.statement("claim_next")))
    given = {"runner": "w", "ttl": TTL, "only": None, "full_sources": full, "steps": status.STEPS}
    explained = connection.execute(statement, given).fetchone()
    assert explained is not None
    plan = explained["QUERY PLAN"][0]["Plan"]
    assert "'Index Name': 'claimable'" in str(plan)
    assert "etl_pipelines" not in scanned(plan)  # etl_installation has one row
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 100


# -- limits of sources ------------------------------------------------------------------------------------------------


def claim(connection: Connection, limits: dict[str, int]) -> Claim | None:
    return queue.claim_next(connection, runner="w", ttl=TTL, runs_per_source=limits)


@pytest.mark.promise("S7")
def test_a_source_at_its_limit_is_skipped_without_a_lease(connection: Connection) -> None:
    for number, source in enumerate(["default", "default", "billing"]):
        pipeline = create(connection, f"p{number}", source=source)
        pipelines.request_run(connection, pipeline.id, trigger="api")
    limits = {"default": 1}
    first, second = claim(connection, limits), claim(connection, limits)
    assert first is not None
    assert second is not None
    assert [first.definition.name, second.definition.name] == ["p0", "p2"]
    assert claim(connection, limits) is None
    waiting = pipelines.get(connection, "p1")
    assert (waiting.status, waiting.lease_owner) == (Status.RUN_REQUESTED, None)
    queue.end_run(connection, first, Event.FINISH, RunStatus.SUCCESS)
    third = claim(connection, limits)
    assert third is not None
    assert third.definition.name == "p1"


@pytest.mark.promise("S7")
def test_many_runners_at_once_do_not_exceed_a_limit(database_url: str, connection: Connection) -> None:
    connection.execute(MANY, {"count": 40, "waiting": 40})
    gate = threading.Barrier(8)

    def take(_: int) -> int:
        with connect(database_url, name="tests") as own:
            gate.wait()
            return sum(claim(own, {"default": 3}) is not None for _ in range(5))

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(take, range(8))) == 3


# -- history ----------------------------------------------------------------------------------------------------------


def remember(connection: Connection, pipeline: Pipeline, *statuses: str, days: int = 0) -> None:
    """Insert runs that ended this many days ago, the oldest first."""
    for end in statuses:
        connection.execute(
            "INSERT INTO etl.etl_runs (pipeline_id, attempt, trigger, kind, status, started_at, finished_at, config,"
            " runner, lease_token) VALUES (%s, 1, 'api', 'full', %s, now() - %s, CASE WHEN %s <> 'RUNNING'"
            " THEN now() - %s END, '{}', 'tests', 1)",
            [pipeline.id, end, days * DAY, end, days * DAY],
        )


def left(connection: Connection, pipeline: Pipeline) -> list[str]:
    return [run.status.value for run in reversed(history.list_runs(connection, pipeline.id, limit=1000))]


def prune(connection: Connection, max_runs: int = 1000, limit: int = 500) -> int:
    return history.prune_runs(connection, max_age=30 * DAY, max_runs=max_runs, limit=limit)


@pytest.mark.promise("S9")
def test_runs_that_are_too_old_are_deleted(connection: Connection) -> None:
    pipeline = create(connection)
    remember(connection, pipeline, "FAILED", "SUCCESS", "PAUSED", days=31)
    remember(connection, pipeline, "ABANDONED", "SUCCESS", days=29)
    assert prune(connection) == 3
    assert left(connection, pipeline) == ["ABANDONED", "SUCCESS"]
    assert prune(connection) == 0


@pytest.mark.promise("S9")
def test_excess_runs_are_deleted_per_pipeline(connection: Connection) -> None:
    busy, quiet = create(connection, "busy"), create(connection, "quiet")
    remember(connection, busy, *["SUCCESS"] * 7)
    remember(connection, quiet, "SUCCESS", "SUCCESS")
    assert prune(connection, max_runs=3) == 4
    assert (left(connection, busy), left(connection, quiet)) == (["SUCCESS"] * 3, ["SUCCESS"] * 2)


@pytest.mark.promise("S9")
def test_the_newest_run_and_the_newest_success_are_kept_at_any_age(connection: Connection) -> None:
    pipeline = create(connection)
    remember(connection, pipeline, "SUCCESS", "SUCCESS", "FAILED", "FAILED", days=400)
    assert prune(connection) == 2
    assert left(connection, pipeline) == ["SUCCESS", "FAILED"]
    assert prune(connection, max_runs=1) == 0


@pytest.mark.promise("S9")
def test_an_active_run_is_kept_however_long_it_takes(connection: Connection) -> None:
    pipeline = create(connection)
    remember(connection, pipeline, "RUNNING", days=400)
    assert prune(connection, max_runs=1) == 0
    assert left(connection, pipeline) == ["RUNNING"]


def test_history_is_deleted_in_small_batches(connection: Connection) -> None:
    pipeline = create(connection)
    remember(connection, pipeline, *["SUCCESS"] * 10, days=31)
    remember(connection, pipeline, *["FAILED"] * 10, "SUCCESS")
    assert [prune(connection, max_runs=4, limit=8) for _ in range(4)] == [8, 8, 1, 0]
    assert left(connection, pipeline) == ["FAILED"] * 3 + ["SUCCESS"]


def test_a_runner_prunes_history_as_the_settings_say(connection: Connection, settings: Settings) -> None:
    pipeline = create(connection)
    remember(connection, pipeline, *["SUCCESS"] * 5)
    few = settings.model_copy(update={"history_max_runs": 2})
    stop = threading.Event()
    dispatcher = PipelineDispatcher(few, PipelineExecutor(few, stop))
    PipelineManager(few, dispatcher, name="tests", concurrency=1, stop=stop).tick(connection)
    assert left(connection, pipeline) == ["SUCCESS"] * 2


def test_pruning_by_age_does_not_read_a_hundred_thousand_young_runs(connection: Connection) -> None:
    pipeline = create(connection)
    connection.execute(
        "INSERT INTO etl.etl_runs"
        " (pipeline_id, attempt, trigger, kind, status, finished_at, config, runner, lease_token)"
        " SELECT %s, 1, 'api', 'full', 'SUCCESS', now() - n * interval '1 second', '{}', 'tests', 1"
        "   FROM generate_series(1, 100000) AS n",
        [pipeline.id],
    )
    connection.execute("ANALYZE etl.etl_runs")
    text = sql.SQL(database.statement("prune_old_runs"))
    explained = connection.execute(
        sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {}").format(text), {"max_age": 30 * DAY, "limit": 500}
    ).fetchone()
    assert explained is not None
    plan = explained["QUERY PLAN"][0]["Plan"]
    assert "'Index Name': 'runs_by_age'" in str(plan)
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 20
