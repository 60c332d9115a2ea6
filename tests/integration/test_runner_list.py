"""Runners, their leases, and the load of each source, as a page shows them."""

from datetime import timedelta

from pydantic import SecretStr

from tests.helpers.access import context
from tests.helpers.pipelines import create
from vitrine.operations import overview
from vitrine.operations.bodies.overview import RunnersBody
from vitrine.operations.context import Role
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import history, pipelines, queue


def read(settings: Settings, connection: Connection) -> RunnersBody:
    return overview.read_runners(context(settings, connection, Role.VIEWER))


def test_a_runner_that_was_killed_is_listed_and_not_alive(settings: Settings, connection: Connection) -> None:
    history.register_runner(connection, "host:1")
    history.register_runner(connection, "host:2")
    connection.execute("UPDATE etl.etl_runners SET seen_at = now() - interval '1 min' WHERE name = 'host:1'")
    assert [(one.name, one.is_alive) for one in read(settings, connection).runners] == [
        ("host:2", True),
        ("host:1", False),
    ]


def test_a_lease_names_its_pipeline_its_run_and_its_age(settings: Settings, connection: Connection) -> None:
    pipeline = create(connection, "genres")
    pipelines.request_run(connection, pipeline.id, trigger="cli")
    claim = queue.claim_next(connection, runner="host:1", ttl=timedelta(minutes=1))
    assert claim is not None
    (lease,) = read(settings, connection).leases
    assert (lease.pipeline, lease.runner, lease.run_id, lease.kind) == ("genres", "host:1", claim.run_id, "full")
    assert lease.heartbeat_at is not None
    assert timedelta(seconds=50) < lease.expires_at - lease.heartbeat_at <= timedelta(minutes=1)
    assert not lease.is_expired
    connection.execute("UPDATE etl.etl_pipelines SET lease_expires_at = now() - interval '1 s'")
    assert read(settings, connection).leases[0].is_expired


def test_each_source_shows_its_runs_against_its_limit(settings: Settings, connection: Connection) -> None:
    limited = settings.model_copy(
        update={"sources": {"crm": SecretStr("postgresql://crm.example/crm")}, "source_connections": {"default": 4}}
    )
    for name in ("one", "two", "three"):
        pipeline = create(connection, name, **({"source": "gone"} if name == "three" else {}))
        pipelines.request_run(connection, pipeline.id, trigger="cli")
    assert queue.claim_next(connection, runner="host:1", ttl=timedelta(minutes=1))
    assert [
        (one.name, one.running, one.waiting, one.connections, one.max_connections, one.is_configured)
        for one in read(limited, connection).sources
    ] == [("crm", 0, 0, 0, None, True), ("default", 1, 1, 2, 4, True), ("gone", 0, 1, 0, None, False)]
