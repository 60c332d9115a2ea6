"""Connections that are lost during a commit, and servers without session state between transactions."""

import threading

import pytest
from pydantic import SecretStr

from tests.helpers import journal
from tests.helpers.events import both_modes, create_events, create_target, events_are_right, fill_events
from tests.helpers.proxy import Proxy
from tests.helpers.running import create, differences, run, succeed
from vitrine.compare import reconcile
from vitrine.core.protocols import Outcome
from vitrine.core.status import RunStatus, Status
from vitrine.postgres import Connection, connect
from vitrine.runner.run import PipelineDispatcher, PipelineExecutor
from vitrine.settings import Settings
from vitrine.store import history, pipelines, queue, state
from vitrine.store.migrate import migrate

AT_ONCE = (0.0, 0.0, 0.0)
BATCH, PUBLISHED, LEFT = b"UPDATE etl.etl_state", b'DROP TABLE IF EXISTS "etl"."stage_', b"lease_token = NULL"


@pytest.fixture
def proxied(settings: Settings, database_url: str, proxy: Proxy) -> Settings:
    """Settings that connect through the proxy."""
    return settings.model_copy(update={"database_url": SecretStr(proxy.url(database_url))})


# -- the reply of a commit --------------------------------------------------------------------------------------------


@pytest.mark.promise("B2", "B3")
@both_modes
@pytest.mark.parametrize("lost", ["reply", "request"])
@pytest.mark.parametrize("batch", [1, 3, 5])
def test_a_batch_whose_commit_loses_its_connection_is_counted_once_and_no_row_is_read_twice(
    connection: Connection, proxied: Settings, proxy: Proxy, mode: str, lost: str, batch: int
) -> None:
    fill_events(connection, 500)
    create_target(connection)
    events = create_events(connection, proxied, mode)
    arm = proxy.drop_commit_reply if lost == "reply" else proxy.drop_commit_request
    drop = arm(BATCH, skip=batch if mode == "full" else batch - 1)  # a full load opens its generation first
    executed = succeed(connection, proxied, events, waits=AT_ONCE)
    (one,) = history.list_runs(connection, events.id)
    assert drop.done.is_set()
    assert (executed.counts.read, executed.counts.written, executed.batches) == (500, 500, 5)
    assert (one.status, one.rows_read, one.rows_written, one.batches) == (RunStatus.SUCCESS, 500, 500, 5)
    assert events_are_right(connection)


@pytest.mark.promise("B2", "B3")
@pytest.mark.parametrize("lost", ["reply", "request"])
def test_a_load_whose_publish_loses_its_connection_is_counted_once_and_not_read_again(
    connection: Connection, proxied: Settings, proxy: Proxy, lost: str
) -> None:
    fill_events(connection, 500)
    events = create_events(connection, proxied, "full", incremental_key="modified")
    drop = (proxy.drop_commit_reply if lost == "reply" else proxy.drop_commit_request)(PUBLISHED)
    executed = succeed(connection, proxied, events, waits=AT_ONCE)
    (one,) = history.list_runs(connection, events.id)
    assert drop.done.is_set()
    assert (executed.counts.read, executed.counts.written) == (one.rows_read, one.rows_written) == (500, 500)
    assert state.load_state(connection, events.id).generation == 1
    assert events_are_right(connection)


@pytest.mark.promise("B2", "B3")
@pytest.mark.parametrize("lost", ["reply", "request"])
def test_a_run_whose_end_loses_its_connection_is_ended_once(
    connection: Connection, proxied: Settings, proxy: Proxy, lost: str
) -> None:
    journal.start(connection)
    fill_events(connection, 10)
    events = create_events(connection, proxied, "incremental")
    pipelines.request_run(connection, events.id, trigger="api")
    claim = queue.claim_next(connection, runner="tests", ttl=proxied.lease_ttl)
    assert claim is not None
    drop = (proxy.drop_commit_reply if lost == "reply" else proxy.drop_commit_request)(LEFT)
    executed, status = PipelineDispatcher(proxied, PipelineExecutor(proxied, threading.Event())).dispatch(claim)
    assert drop.done.is_set()
    assert (executed.outcome, status) == (Outcome.FINISHED, Status.IDLE)
    assert [one.status for one in history.list_runs(connection, events.id)] == [RunStatus.SUCCESS]
    assert journal.moves(connection)[-1] == (Status.RUNNING, Status.IDLE)
    journal.assert_legal(connection)


@pytest.mark.promise("B2")
def test_a_run_that_was_taken_over_does_not_count_the_commit_of_another(
    connection: Connection, proxied: Settings, proxy: Proxy
) -> None:  # the same batch number under another token is not ours
    fill_events(connection, 500)
    events = create_events(connection, proxied, "incremental")
    proxy.drop_commit_request(BATCH, skip=2)
    taken: list[object] = []

    def take_over(counts: object, expected: int | None) -> None:
        if getattr(counts, "read", 0) == 200 and not taken:
            taken.append(
                connection.execute(
                    "UPDATE etl.etl_pipelines SET lease_token = nextval('etl.fencing_seq');"
                    "UPDATE etl.etl_state SET batch_seq = batch_seq + 1, lease_token = currval('etl.fencing_seq')"
                )
            )

    executed = run(connection, proxied, events, waits=AT_ONCE, watch=take_over)
    assert executed.error is not None
    assert (executed.error.code, executed.counts.read) == ("ETL01", 200)


# -- connections that are cut -----------------------------------------------------------------------------------------


@pytest.mark.promise("B9")
@both_modes
def test_a_run_whose_connections_are_all_cut_continues(
    connection: Connection, proxied: Settings, proxy: Proxy, mode: str
) -> None:
    fill_events(connection, 1000)
    events = create_events(connection, proxied, mode)
    cuts: list[int] = []

    def cut(counts: object, expected: int | None) -> None:
        if getattr(counts, "read", 0) in (200, 700) and len(cuts) < 2:
            cuts.append(proxy.cut())

    executed = succeed(connection, proxied, events, waits=AT_ONCE, watch=cut)
    (one,) = history.list_runs(connection, events.id)
    assert all(number >= 3 for number in cuts)
    assert executed.counts.read == one.rows_read == 1000
    assert events_are_right(connection)


# -- transaction pooling ----------------------------------------------------------------------------------------------


@pytest.mark.promise("B10")
def test_migrations_runs_and_reconcile_work_with_transaction_pooling(
    connection: Connection, proxied: Settings, proxy: Proxy
) -> None:
    proxy.pooling = True
    migrate(proxied.store_url)
    fill_events(connection, 500, note="CASE n WHEN 250 THEN NULL ELSE n::text END")
    create_target(connection)
    connection.execute(
        "CREATE TABLE analytics.strict (id integer PRIMARY KEY, note text NOT NULL, modified timestamptz)"
    )
    strict = create_events(
        connection,
        proxied,
        "incremental",
        name="strict",
        target_table="analytics.strict",
        options={"on_reject": "quarantine"},
    )
    query = "SELECT id, title, rating FROM content.film_work"
    with connect(proxied.store_url, name="tests:pooled") as pooled:
        journal.start(pooled)
        events = create_events(pooled, proxied, "incremental")
        films = create(
            pooled, proxied, name="films", source_query=query, target_table="analytics.f", key_columns=["id"]
        )
        for _ in range(2):
            succeed(pooled, proxied, events, waits=AT_ONCE)
            succeed(pooled, proxied, films, waits=AT_ONCE)
            connection.execute("UPDATE ugc.events SET note = 'new', modified = now() WHERE id < 100")
        assert succeed(pooled, proxied, strict).counts.rejected == 1
        succeed(pooled, proxied, events)
        journal.assert_legal(pooled)
    assert events_are_right(connection)
    assert differences(connection, query, "analytics.f", "id") == []
    assert reconcile.compare(events.definition, proxied).equal
    assert proxy.discarded > 50
