"""Three marts in a chain under two runners, as processes: one run each per wave, whatever dies."""

from pathlib import Path

import pytest

from tests.helpers import journal
from tests.helpers.observing import history, status, wait_for
from tests.helpers.processes import environment, runner, vitrine
from tests.helpers.running import create
from tests.helpers.waiting import wait_until
from vitrine.core.status import RunStatus, Status
from vitrine.definition.pipeline import Pipeline
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import pipelines

WAVES = 3


@pytest.fixture
def chain(connection: Connection, settings: Settings) -> list[Pipeline]:
    """Three marts of genres, each after the one before it."""
    journal.start(connection)
    connection.execute("CREATE VIEW content.shown AS SELECT id, name FROM content.genre")
    names = ["first", "second", "third"]
    return [
        create(
            connection,
            settings,
            name=name,
            source_query="SELECT id, name FROM content.shown",
            target_table=f"analytics.{name}",
            key_columns=["id"],
            after=names[number - 1 : number] if number else [],
        )
        for number, name in enumerate(names)
    ]


def successes(connection: Connection, pipeline: Pipeline) -> list[str]:
    """The triggers of the successful runs."""
    return [one.trigger for one in history(connection, pipeline) if one.status is RunStatus.SUCCESS]


def wait_for_wave(connection: Connection, chain: list[Pipeline], number: int) -> None:
    wait_until(lambda: len(successes(connection, chain[-1])) == number, 60, f"wave {number} at the end of the chain")


@pytest.mark.promise("L1", "L2")
def test_each_wave_runs_each_mart_once_and_a_failure_stops_it(
    database_url: str, connection: Connection, chain: list[Pipeline], tmp_path: Path
) -> None:
    with runner(database_url, tmp_path), runner(database_url, tmp_path):
        for number in range(1, WAVES + 1):
            pipelines.request_run(connection, chain[0].id, trigger="api")
            wait_for_wave(connection, chain, number)
        connection.execute("DROP VIEW content.shown; CREATE VIEW content.shown AS SELECT name FROM content.genre")
        pipelines.request_run(connection, chain[0].id, trigger="api")
        wait_for(connection, chain[0], Status.FAILED)
        # the next request ends after two polls at least: nothing else was waiting for a runner
        pipelines.request_run(connection, chain[0].id, trigger="api")
        wait_for(connection, chain[0], Status.FAILED)
    assert [successes(connection, one) for one in chain] == [["api"] * WAVES, ["chain"] * WAVES, ["chain"] * WAVES]
    assert [len(history(connection, one)) for one in chain[1:]] == [WAVES, WAVES]
    assert [status(connection, one) for one in chain[1:]] == [Status.IDLE, Status.IDLE]
    journal.assert_legal(connection)
    shown = vitrine("status", "second", folder=tmp_path, env=environment(database_url)).stdout
    assert "runs after: first (not yet since the last wave)" in shown
    listed = vitrine("list", folder=tmp_path, env=environment(database_url)).stdout
    assert "after second" in listed


@pytest.mark.promise("L3")
@pytest.mark.parametrize("point", ["before_finish", "after_finish"])
def test_a_runner_that_is_killed_at_the_end_of_a_run_loses_no_wave(
    database_url: str, connection: Connection, chain: list[Pipeline], tmp_path: Path, point: str
) -> None:
    pipelines.request_run(connection, chain[0].id, trigger="api")
    with runner(database_url, tmp_path, VITRINE_TESTING="true", VITRINE_FAILPOINTS=f"{point}=kill@1") as dying:
        assert dying.process.wait(60) < 0
    assert status(connection, chain[1]) is (Status.IDLE if point == "before_finish" else Status.RUN_REQUESTED)
    with runner(database_url, tmp_path):
        wait_for_wave(connection, chain, 1)
    assert [len(successes(connection, one)) for one in chain] == [1, 1, 1]
    assert [one.name for one in chain if status(connection, one) is not Status.IDLE] == []
