"""`reconcile_interval`: a deep reconcile whenever it is due and the pipeline is IDLE; schedules stay as they are."""

import pytest

from tests.helpers.events import create_events, fill_events
from tests.helpers.running import succeed
from vitrine.core.status import RunOptions, Status
from vitrine.definition.model import Definition
from vitrine.definition.pipeline import Pipeline
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import pipelines, schedules


@pytest.fixture
def events(connection: Connection, settings: Settings) -> Pipeline:
    fill_events(connection, 10)
    options = {"reconcile_interval": "1h"}
    return create_events(connection, settings, "full", options=options, schedule_interval="5m")


@pytest.mark.promise("R7")
def test_an_idle_pipeline_is_reconciled_when_its_interval_has_passed(
    connection: Connection, settings: Settings, events: Pipeline
) -> None:
    assert schedules.fire_reconciles(connection) == []  # the mart was never built
    succeed(connection, settings, events)
    due = pipelines.get(connection, events.id).next_due_at
    assert schedules.fire_reconciles(connection) == ["under_test"]
    requested = pipelines.get(connection, events.id)
    assert (requested.status, requested.next_due_at) == (Status.RUN_REQUESTED, due)
    assert requested.request is not None
    assert (requested.request.kind, requested.request.options) == ("reconcile", RunOptions(deep=True))
    assert schedules.fire_reconciles(connection) == []
    connection.execute("UPDATE etl.etl_pipelines SET status = 'IDLE', request_id = NULL, requested_kind = NULL")
    assert schedules.fire_reconciles(connection) == []
    connection.execute("UPDATE etl.etl_pipelines SET next_reconcile_at = now() - interval '1 s'")
    assert schedules.fire_reconciles(connection) == ["under_test"]


@pytest.mark.promise("R7")
@pytest.mark.parametrize("status", [Status.PAUSED, Status.FAILED])
def test_a_pipeline_that_is_not_idle_is_left_alone(
    connection: Connection, settings: Settings, events: Pipeline, status: Status
) -> None:
    succeed(connection, settings, events)
    connection.execute("UPDATE etl.etl_pipelines SET status = %s", [status])
    assert schedules.fire_reconciles(connection) == []
    connection.execute("UPDATE etl.etl_pipelines SET status = 'IDLE', enabled = false")
    assert schedules.fire_reconciles(connection) == []


def test_a_changed_interval_applies_at_once(connection: Connection, settings: Settings, events: Pipeline) -> None:
    succeed(connection, settings, events)
    assert schedules.fire_reconciles(connection) == ["under_test"]
    fields = events.definition.model_dump(mode="json", exclude_unset=True)
    changed = Definition.model_validate(fields | {"options": {"reconcile_interval": "2h"}})
    pipelines.update(connection, events.id, changed)
    row = connection.execute("SELECT next_reconcile_at FROM etl.etl_pipelines").fetchone()
    assert row == {"next_reconcile_at": None}
