"""A store of its own for the pages of the console: ten thousand pipelines with a hundred runs each."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
from psycopg.rows import DictRow, dict_row

from bench import crowd
from bench.database import Database, opened
from bench.server import Server
from bench.setup import Setup
from bench.tree import Installation, this_tree
from bench.waiting import wait_until
from vitrine.api.connections import make_context, make_pool
from vitrine.operations.context import Caller, Context, Role
from vitrine.settings import Settings
from vitrine.store.database import statement

PIPELINES, RUNS = 10_000, 1_000_000
FEWEST = 200
"""Pipelines: enough for several pages of the overview at any scale."""

QUIET_SECONDS = 12.0
"""A session of PostgreSQL reports its transactions within ten seconds."""

COUNTED_SECONDS = 20.0

VARIETY = """
UPDATE etl.etl_pipelines p
   SET source_query = format('SELECT a.id, b.name FROM content.t%s a JOIN content.u%s b ON b.id = a.id',
                             n % 500, n % 300)
                      || CASE WHEN n % 3 = 1 THEN format(' JOIN analytics.t%s m ON m.id = a.id', n - 1) ELSE '' END,
       schedule_interval = CASE WHEN n % 10 = 0 THEN '0 */6 * * *' WHEN n % 10 < 6 THEN '6h' END,
       fresh_as_of = now() - CASE WHEN n % 20 IN (3, 10) THEN interval '1 day' ELSE n * interval '10 milliseconds' END,
       status = CASE WHEN n % 40 = 7 THEN 'PAUSED' ELSE status END,
       enabled = n % 60 <> 11,
       description = 'The mart number ' || n || ' of the benchmark, with a sentence as a team would write it.'
  FROM (SELECT id, row_number() OVER (ORDER BY name) - 1 AS n FROM etl.etl_pipelines) AS numbered
 WHERE numbered.id = p.id
"""
"""A tenth is late, and stays so; all others are in time for hours. Every third mart is made from another one."""

LONGEST = timedelta(hours=13)
LATE = "enabled AND schedule_interval IS NOT NULL AND fresh_as_of < now() - interval '13 hours'"
"""Which marts of this store are late, by hand: no schedule of it allows more than twelve hours."""


@dataclass(frozen=True)
class ConsoleStore:
    installation: Installation
    database: Database
    server: Server
    pipelines: int
    runs: int

    @contextmanager
    def reader(self) -> Generator[Context]:
        """Connections and rights as the poller of the API has them."""
        settings = Settings.model_validate({"database_url": self.database.url})
        with make_pool(self.database.url) as pool:
            yield make_context(settings, pool, Caller("console", "bench", Role.VIEWER))

    @contextmanager
    def bare(self) -> Generator["Bare"]:
        with psycopg.Connection[DictRow].connect(
            self.database.url, autocommit=True, prepare_threshold=None, row_factory=dict_row
        ) as connection:
            yield Bare(connection)

    def transactions(self) -> int:
        """How many this database has seen; each statement of the console is one."""
        row = self.server.admin.execute(
            "SELECT xact_commit + xact_rollback AS count FROM pg_stat_database WHERE datname = %s", [DATABASE]
        ).fetchone()
        return int(row["count"]) if row else 0

    def per_second(self) -> float:
        """Transactions in a second, of pages that have been open for a while."""
        time.sleep(QUIET_SECONDS)
        before, began = self.transactions(), time.monotonic()
        time.sleep(COUNTED_SECONDS)
        return (self.transactions() - before) / (time.monotonic() - began)

    def wait_until_quiet(self) -> None:
        """The last page is gone, and nothing asks the store."""

        def is_quiet() -> bool:
            before = self.transactions()
            time.sleep(QUIET_SECONDS)
            return self.transactions() == before

        wait_until(is_quiet, "nothing asks the store any more")


@dataclass(frozen=True)
class Bare:
    """Statements of the store and nothing else: no models, no pool."""

    connection: psycopg.Connection[DictRow]

    def rows(self, name: str, **arguments: Any) -> list[DictRow]:
        return self.connection.execute(statement(name), arguments).fetchall()


DATABASE = "console"


@contextmanager
def filled(setup: Setup, *, all_runs: int = RUNS) -> Generator[ConsoleStore]:
    """Dropped at the end: other workloads measure stores without a crowd. `all_runs`: their number at scale 1."""
    pipelines = max(FEWEST, round(PIPELINES * min(setup.scale, 1)))
    runs = max(30 * pipelines, round(all_runs * min(setup.scale, 1)))
    setup.server.recreate(DATABASE)
    url = setup.server.url(DATABASE)
    installation = Installation(this_tree(), url, url)
    installation.migrate()
    with opened(url) as database:
        crowd.fill(database.connection, pipelines, runs)
        database.execute(VARIETY, "VACUUM ANALYZE")
        setup.checkpoint()
        yield ConsoleStore(installation, database, setup.server, pipelines, runs)
    setup.server.drop(DATABASE)
