"""What belongs to a run while it has its lease, and what another runner or installation may touch."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from tests.helpers import journal
from tests.helpers.databases import copy_of
from tests.helpers.events import create_events, create_filled, events_are_right, fill_events
from tests.helpers.forked import claimed, dispatched, forked
from tests.helpers.waiting import wait_until
from vitrine import failpoints
from vitrine.core.status import Status
from vitrine.definition.pipeline import Claim, Pipeline
from vitrine.embedded import EmbeddedPostgres
from vitrine.errors import LeaseLost, TransitionRefused
from vitrine.operations import changes
from vitrine.postgres import Connection, connect
from vitrine.settings import Settings
from vitrine.store import history, pipelines, queue, state
from vitrine.store.checkpoint import StoreCheckpoint
from vitrine.store.database import Link

EVENTS, BATCH = 30, 10


@pytest.fixture(autouse=True)
def _watched(connection: Connection) -> Iterator[None]:
    """Asserts that every status change is legal."""
    journal.start(connection)
    yield
    failpoints.install("")
    journal.assert_legal(connection)


def requested(connection: Connection, settings: Settings, pipeline: Pipeline) -> Claim:
    pipelines.request_run(connection, pipeline.id, trigger="api")
    return claimed(settings)


def taken_over(connection: Connection, settings: Settings) -> Claim:
    """The claim of another runner, once the lease has expired."""
    connection.execute("UPDATE etl.etl_pipelines SET lease_expires_at = clock_timestamp() - interval '1 s'")
    wait_until(lambda: queue.expire_leases(connection), what="the end of the expired lease")
    return claimed(settings, runner="successor")


# -- the target -------------------------------------------------------------------------------------------------------


@pytest.mark.promise("J11")
def test_a_target_belongs_to_a_disabled_pipeline_until_its_run_has_ended(
    connection: Connection, settings: Settings, tmp_path: Path
) -> None:
    first = create_filled(connection, settings, "full", EVENTS, batch_size=BATCH)
    second = create_events(connection, settings, "full", name="second", enabled=False)
    third = create_events(connection, settings, "full", name="third", target_table="analytics.others")
    claim, file = requested(connection, settings, first), tmp_path / "held"
    with forked(lambda: dispatched(settings, claim), f"staging_built=wait:{file}") as child:
        wait_until(file.exists, what="a load that is about to be published")
        disabled = changes.change(connection, settings, first.id, {"enabled": False})
        assert disabled.status is Status.PAUSE_REQUESTED
        for take in (
            lambda: changes.change(connection, settings, second.id, {"enabled": True}),
            lambda: changes.change(connection, settings, third.id, {"target_table": "analytics.events"}),
            lambda: create_events(connection, settings, "full", name="fourth"),
        ):
            with pytest.raises(TransitionRefused, match=r"'under_test' is disabled, but .* still runs it") as refused:
                take()
            assert refused.value.code == "TARGET_TAKEN"
        with pytest.raises(TransitionRefused):
            pipelines.request_run(connection, second.id, trigger="api")
        with pytest.raises(psycopg.errors.UniqueViolation):
            connection.execute("UPDATE etl.etl_pipelines SET enabled = true WHERE name = 'second'")
        file.unlink()
        assert child.answer() == [None, Status.PAUSED]
    assert changes.change(connection, settings, second.id, {"enabled": True}).definition.enabled
    assert dispatched(settings, requested(connection, settings, second)) == [None, Status.IDLE]
    assert events_are_right(connection)


# -- the rows of a run ------------------------------------------------------------------------------------------------


def stored(connection: Connection) -> list[Any]:
    """Everything that the store has recorded about runs and reads."""
    statements = (
        "SELECT * FROM etl.etl_runs ORDER BY id",
        "SELECT * FROM etl.etl_state",
        "SELECT * FROM etl.etl_rejects",
        "SELECT status, lease_token, request_id, fresh_as_of FROM etl.etl_pipelines",
        "SELECT tablename FROM pg_tables WHERE schemaname IN ('etl', 'analytics') ORDER BY 1",
    )
    return [connection.execute(statement).fetchall() for statement in statements]


@pytest.mark.promise("J29")
def test_no_write_of_a_run_that_has_lost_its_lease_is_applied(connection: Connection, settings: Settings) -> None:
    events = create_filled(connection, settings, "full", EVENTS, batch_size=BATCH)
    lost = requested(connection, settings, events)
    with Link(settings.store_url, name="tests:zombie") as link:
        checkpoint = StoreCheckpoint(lost, link)
        checkpoint.open("id integer")
        taken_over(connection, settings)
        before, own = stored(connection), link.connection()
        for write in (
            lambda: history.describe_run(own, lost, lane="rows", rows=7),
            lambda: history.enter_user_code(own, lost),
            lambda: history.update_config(own, lost, lost.definition),
            lambda: checkpoint.open("id integer"),
            lambda: checkpoint.open_generation("another", "2024-01-01"),
        ):
            with pytest.raises(LeaseLost):
                write()
        state.note_watermark(own, lost, timedelta(seconds=7), "pid 7")
    assert stored(connection) == before


@pytest.mark.promise("J29")
@pytest.mark.parametrize("point", ["after_claim", "after_horizon"])
@pytest.mark.parametrize("mode", ["full", "first load"])
def test_a_run_that_lost_its_lease_before_its_first_load_changes_nothing(
    connection: Connection, settings: Settings, point: str, mode: str
) -> None:
    fill_events(connection, EVENTS)
    events = create_events(connection, settings, "full" if mode == "full" else "incremental", batch_size=BATCH)
    lost = requested(connection, settings, events)
    with forked(lambda: dispatched(settings, lost), f"{point}=stop") as zombie:
        zombie.stopped()
        assert dispatched(settings, taken_over(connection, settings)) == [None, Status.IDLE]
        before = stored(connection)
        zombie.wake()
        error, left = zombie.answer()
        assert (error is not None, left) == (True, None)
    assert stored(connection) == before
    assert events_are_right(connection)


# -- sessions ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def neighbour(postgres: EmbeddedPostgres, template: str, settings: Settings) -> Iterator[Settings]:
    """Another installation in the same cluster: a copy of the same database, so even its id is the same."""
    with copy_of(postgres, template, "neighbour") as name:
        yield settings.model_copy(update={"database_url": SecretStr(postgres.tcp_url(name))})


def sessions_in(settings: Settings) -> list[str]:
    statement = "SELECT application_name FROM pg_stat_activity WHERE datname = current_database() ORDER BY pid"
    with connect(settings.store_url, name="tests:observer") as connection:
        return [row["application_name"] for row in connection.execute(statement)]


@pytest.mark.promise("J26")
def test_an_expired_lease_does_not_end_the_sessions_of_another_installation_with_the_same_token(
    connection: Connection, settings: Settings, neighbour: Settings, tmp_path: Path
) -> None:
    events = create_filled(connection, settings, "full", EVENTS, batch_size=BATCH)
    with connect(neighbour.store_url, name="tests:neighbour") as other:
        assert history.installation_id(other) == history.installation_id(connection)
        theirs = requested(other, neighbour, create_filled(other, neighbour, "full", EVENTS, batch_size=BATCH))
        connection.execute("SELECT setval('etl.fencing_seq', %s, false)", [theirs.token])
        ours = requested(connection, settings, events)
        assert ours.token == theirs.token
        file = tmp_path / "held"
        with (
            connect(settings.store_url, name=ours.session) as stuck,
            forked(lambda: dispatched(neighbour, theirs), f"after_commit=wait:{file}@1") as child,
        ):
            wait_until(file.exists, what="a run of the other installation")
            before = sessions_in(neighbour)
            assert theirs.session in before
            taken_over(connection, settings)
            with pytest.raises(psycopg.errors.AdminShutdown):
                stuck.execute("SELECT 1")
            assert set(sessions_in(neighbour)) >= set(before)
            file.unlink()
            assert child.answer() == [None, Status.IDLE]
        assert events_are_right(other)


@pytest.mark.promise("J26")
def test_sessions_on_a_source_in_another_database_of_the_cluster_are_ended_too(
    connection: Connection, settings: Settings, neighbour: Settings, tmp_path: Path
) -> None:
    with connect(neighbour.store_url, name="tests:neighbour") as other:
        fill_events(other, EVENTS)
    reading = settings.model_copy(update={"sources": {"shop": neighbour.database_url}})
    claim = requested(connection, reading, create_events(connection, reading, "full", source="shop", batch_size=BATCH))
    with forked(lambda: dispatched(reading, claim), "after_commit=stop@1") as zombie:
        zombie.stopped()
        assert claim.session in sessions_in(neighbour)
        taken_over(connection, settings)
        wait_until(lambda: claim.session not in sessions_in(neighbour), what="the end of the session on the source")
