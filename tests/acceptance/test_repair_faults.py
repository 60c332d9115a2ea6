"""A repair whose runner is killed: another runner ends it, and the pipeline returns to the status it had."""

from pathlib import Path

import pytest

from tests.helpers.events import create_filled, events_are_right
from tests.helpers.processes import runner
from tests.helpers.running import succeed
from tests.helpers.waiting import wait_until
from vitrine.core.status import RequestKind, RunOptions, RunStatus, Status
from vitrine.definition.pipeline import Pipeline
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import history, pipelines, state

REPAIR = RunOptions(deep=True, repair=True)


@pytest.fixture
def damaged(connection: Connection, settings: Settings) -> Pipeline:
    """Four rows are to be written, in one batch, and one to be deleted."""
    pipeline = create_filled(connection, settings, "incremental", 300)
    succeed(connection, settings, pipeline)
    connection.execute("UPDATE analytics.events SET note = 'by hand' WHERE id IN (17, 18)")
    connection.execute("DELETE FROM analytics.events WHERE id IN (42, 43)")
    connection.execute("INSERT INTO analytics.events VALUES (900, 'by hand', now())")
    return pipeline


@pytest.mark.promise("R5", "A2")
@pytest.mark.parametrize(
    ("point", "before", "done"),
    [
        ("before_commit=kill@1", Status.IDLE, (0, 0)),  # nothing is written yet
        ("after_commit=kill@1", Status.PAUSED, (4, 0)),  # nothing is deleted yet
        ("after_commit=kill@2", Status.PAUSED, (4, 1)),  # nothing is compared again yet
    ],
)
def test_a_repair_whose_runner_is_killed_is_ended_by_another(
    database_url: str,
    connection: Connection,
    damaged: Pipeline,
    tmp_path: Path,
    point: str,
    before: Status,
    done: tuple[int, int],
) -> None:
    if before is Status.PAUSED:
        pipelines.request_pause(connection, damaged.id)
    position = state.load_state(connection, damaged.id).position
    pipelines.request_run(connection, damaged.id, trigger="api", kind=RequestKind.RECONCILE, options=REPAIR)
    with runner(database_url, tmp_path, VITRINE_TESTING="true", VITRINE_FAILPOINTS=point) as dying:
        assert dying.process.wait(60) < 0
    with runner(database_url, tmp_path):
        wait_until(lambda: pipelines.get(connection, damaged.id).request is None, what="the end of the repair")
    second, first, _ = history.list_runs(connection, damaged.id)
    assert (first.status, first.error_code) == (RunStatus.ABANDONED, "LEASE_EXPIRED")
    assert (first.rows_written, first.rows_deleted) == done
    assert (second.status, second.rows_written + done[0], second.rows_deleted + done[1]) == (RunStatus.SUCCESS, 4, 1)
    stored = pipelines.get(connection, damaged.id)
    assert (stored.status, stored.verification.verdict, stored.last_error) == (before, "equal", None)
    assert state.load_state(connection, damaged.id).position == position
    assert events_are_right(connection)
