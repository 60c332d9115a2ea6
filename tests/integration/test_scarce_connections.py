"""Fewer connections than concurrent runs need: runs wait without holding any, and all of them finish."""

import logging
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from psycopg import sql
from pydantic import SecretStr

from tests.helpers.proxy import Proxy
from tests.helpers.running import create, differences
from tests.helpers.waiting import wait_until
from vitrine import postgres
from vitrine.core.status import Status
from vitrine.definition.pipeline import Pipeline
from vitrine.embedded import EmbeddedPostgres
from vitrine.postgres import Connection
from vitrine.runner import run
from vitrine.runner.run import PipelineDispatcher, PipelineExecutor
from vitrine.runner.worker import PipelineManager
from vitrine.settings import Settings
from vitrine.store import pipelines

RUNS, ROWS = 4, 4000
ROLE = "scarce"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(run, "CONNECTION_WAITS", (0.05, 0.3))


def with_url(settings: Settings, url: str) -> Settings:
    """A longer lease: these runs wait."""
    return settings.model_copy(update={"database_url": SecretStr(url), "lease_ttl": timedelta(seconds=10)})


@contextmanager
def runner(settings: Settings) -> Generator[None]:
    """A runner in this process, with a slot for every pipeline."""
    stop = threading.Event()
    work = PipelineDispatcher(settings, PipelineExecutor(settings, stop))
    manager = PipelineManager(settings, work, name="tests", concurrency=RUNS, stop=stop)
    thread = threading.Thread(target=manager.run)
    thread.start()
    try:
        yield
    finally:
        manager.request_stop()
        thread.join(20)


def requested(connection: Connection, settings: Settings) -> list[Pipeline]:
    """Pipelines with a requested run each. Their rows do not fit into the buffers of a connection."""
    connection.execute(
        sql.SQL(
            "CREATE TABLE ugc.wide AS SELECT n AS id, repeat(md5(n::text), 20) AS note FROM generate_series(1, {}) n"
        ).format(ROWS)
    )
    created = [
        create(
            connection,
            settings,
            name=f"wide_{number}",
            source_query="SELECT id, note FROM ugc.wide",
            target_table=f"analytics.wide_{number}",
            key_columns=["id"],
            batch_size=200,
        )
        for number in range(RUNS)
    ]
    for pipeline in created:
        pipelines.request_run(connection, pipeline.id, trigger="api")
    return created


def all_end_idle(connection: Connection, created: list[Pipeline]) -> None:
    def states() -> set[Status]:
        return {pipelines.get(connection, pipeline.id).status for pipeline in created}

    wait_until(lambda: states() <= {Status.IDLE, Status.FAILED}, 60, "the end of every run")
    assert states() == {Status.IDLE}
    for pipeline in created:
        assert differences(connection, "SELECT * FROM ugc.wide", pipeline.definition.target_table, "id") == []


def reports(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if getattr(one, "action", "") == "connections_scarce"]


@pytest.mark.promise("J36")
def test_runs_that_share_a_pool_smaller_than_they_need_all_finish(
    postgres: EmbeddedPostgres,
    connection: Connection,
    settings: Settings,
    database_url: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Proxy(postgres.port or 0, pool=2) as proxy, caplog.at_level(logging.WARNING):
        pooled = with_url(settings, proxy.url(database_url))
        created = requested(connection, settings)
        with runner(pooled):
            all_end_idle(connection, created)
        assert proxy.waits
    assert any("the pooler has no free connection" in text for text in reports(caplog))


@pytest.fixture
def limited(connection: Connection, settings: Settings, database_url: str) -> Iterator[Settings]:
    """Settings with an account that may have only so many connections."""
    rights = f"""
        DROP ROLE IF EXISTS {ROLE};
        CREATE ROLE {ROLE} LOGIN CONNECTION LIMIT 8;
        GRANT pg_read_all_data, pg_write_all_data TO {ROLE};
        GRANT CREATE ON SCHEMA etl, analytics TO {ROLE};
    """
    connection.execute(rights.encode())
    yield with_url(settings, database_url.replace("//postgres@", f"//{ROLE}@"))
    connection.execute(f"DROP OWNED BY {ROLE} CASCADE; DROP ROLE {ROLE}".encode())


@pytest.mark.promise("J36")
def test_runs_whose_account_has_fewer_connections_than_they_need_all_finish(
    connection: Connection, settings: Settings, limited: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    created = requested(connection, settings)
    with caplog.at_level(logging.WARNING), runner(limited):
        all_end_idle(connection, created)
    assert any(f'too many connections for role "{ROLE}"' in text for text in reports(caplog))
    (row,) = connection.execute("SELECT count(*) AS n FROM etl.etl_runs WHERE error_code = 'CRASH_LOOP'").fetchall()
    assert row == {"n": 0}
