"""What the store records about pipelines and runners of other processes."""

from tests.helpers.processes import Started
from tests.helpers.waiting import wait_until
from vitrine.core.status import Status
from vitrine.definition.pipeline import Pipeline, Run
from vitrine.postgres import Connection
from vitrine.store import pipelines
from vitrine.store.history import list_runs


def history(connection: Connection, pipeline: Pipeline) -> list[Run]:
    return list(reversed(list_runs(connection, pipeline.id)))


def status(connection: Connection, pipeline: Pipeline) -> Status:
    return pipelines.get(connection, pipeline.id).status


def wait_for(connection: Connection, pipeline: Pipeline, wanted: Status) -> None:
    wait_until(lambda: status(connection, pipeline) is wanted, 60, f"{pipeline.name} {wanted}")


def has_ticked(connection: Connection, one: Started, over: str = "0.1 s") -> None:
    """Wait until the runner has polled for at least this long."""
    seen = "SELECT FROM etl.etl_runners WHERE name = %s AND seen_at - started_at > %s::interval"
    wait_until(lambda: connection.execute(seen, [one.name, over]).fetchall(), what="a runner that polls")
