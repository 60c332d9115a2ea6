"""The overview over ten thousand pipelines and a long history: bounded queries, and little beside them."""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest
from psycopg import sql

from tests.helpers.access import context
from tests.helpers.databases import copy_of
from tests.helpers.recording import Recorder
from vitrine.console.pages.overview import Query, read_marts
from vitrine.embedded import EmbeddedPostgres
from vitrine.operations import overview
from vitrine.operations.context import Role
from vitrine.postgres import Connection, connect
from vitrine.settings import Settings
from vitrine.store import database

PIPELINES = 10_000
RUNS_EACH = 35
MOST_STATEMENTS = 6

FILL = """
    INSERT INTO etl.etl_pipelines (name, target_table, source_query, key_columns, schedule_interval, next_due_at,
           owner, tags)
    SELECT 'p' || lpad(n::text, 5, '0'), 'analytics.p' || n, 'SELECT 1 AS id', '{id}',
           CASE WHEN n %% 100 = 0 THEN '*/5 * * * *' ELSE '5m' END, now(), 'team-' || n %% 50, ARRAY['tag-' || n %% 20]
      FROM generate_series(1, %(pipelines)s) AS n;
"""
HISTORY = """
    INSERT INTO etl.etl_runs (pipeline_id, attempt, trigger, kind, status, started_at, finished_at, config, runner,
           lease_token)
    SELECT p.id, 1, 'schedule', 'full', 'SUCCESS', now() - n * interval '5 m', now() - n * interval '5 m' + '1 s',
           '{}', 'here', 1
      FROM generate_series(%(runs)s, 1, -1) AS n CROSS JOIN etl.etl_pipelines p
"""


# one database for all tests: to fill it takes longer than they do


@pytest.fixture(scope="module")
def settings(postgres: EmbeddedPostgres, template: str) -> Iterator[Settings]:
    with copy_of(postgres, template, "console_scale") as name:
        yield Settings.model_validate({"database_url": postgres.tcp_url(name)})


@pytest.fixture(scope="module")
def connection(settings: Settings) -> Iterator[Connection]:
    with connect(settings.store_url, name="tests") as opened:
        opened.execute(FILL, {"pipelines": PIPELINES})
        opened.execute(HISTORY, {"runs": RUNS_EACH})
        opened.execute("ANALYZE etl.etl_pipelines")
        opened.execute("ANALYZE etl.etl_runs")
        yield opened


def quickest(work: Callable[[], object], rounds: int = 7) -> float:
    times: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def rows_read(plan: Any, table: str) -> int:
    """Rows that a plan reads of a table."""
    own = plan["Actual Rows"] * plan["Actual Loops"] if plan.get("Relation Name") == table else 0
    return int(own) + sum(rows_read(inner, table) for inner in plan.get("Plans", ()))


def test_a_page_of_the_overview_takes_a_fixed_number_of_statements(connection: Connection, settings: Settings) -> None:
    """However many pipelines and runs there are; how long they take is measured by the benchmark."""
    recorder = Recorder(connection)

    @contextmanager
    def recording() -> Generator[Connection]:
        yield cast(Connection, recorder)

    page = read_marts(replace(context(settings, connection, Role.VIEWER), connection=recording), Query())
    assert len(page.rows) == 50
    assert {len(row["runs"]["outcomes"]) for row in page.rows} == {30}
    assert len(recorder.executed) <= MOST_STATEMENTS


def test_the_newest_runs_of_a_page_are_found_by_their_index(connection: Connection) -> None:
    ids = [row["id"] for row in connection.execute("SELECT id FROM etl.etl_pipelines LIMIT 50")]
    statement = sql.SQL("EXPLAIN (ANALYZE, FORMAT JSON) {}").format(sql.SQL(database.statement("list_sparklines")))
    explained = connection.execute(statement, {"ids": ids, "limit": 30}).fetchone()
    assert explained is not None
    plan = explained["QUERY PLAN"][0]["Plan"]
    assert "'Index Name': 'runs_by_pipeline'" in str(plan)
    assert rows_read(plan, "etl_runs") == 50 * 30


def test_counters_and_groups_of_ten_thousand_pipelines_are_quick(connection: Connection, settings: Settings) -> None:
    viewer = context(settings, connection, Role.VIEWER)
    assert overview.counts(viewer).pipelines == PIPELINES
    assert len(overview.groups(viewer, "owner")) == 50
    assert len(overview.groups(viewer, "tag")) == 20
    assert quickest(lambda: overview.counts(viewer), 3) < 2
    assert quickest(lambda: overview.health(viewer), 3) < 1
