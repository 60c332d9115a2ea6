"""Many small pipelines on two runners: each runs exactly once."""

from pathlib import Path

import pytest

from tests.helpers import journal
from tests.helpers.processes import runner
from tests.helpers.running import create
from tests.helpers.waiting import wait_until
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import pipelines

PIPELINES = 200
QUERY = "SELECT id, name FROM content.genre"


@pytest.mark.promise("S8")
def test_two_hundred_pipelines_on_two_runners_run_once_each(
    database_url: str, settings: Settings, connection: Connection, tmp_path: Path
) -> None:
    journal.start(connection)
    for number in range(PIPELINES):
        fields = {"source_query": QUERY, "key_columns": ["id"]}
        pipeline = create(connection, settings, name=f"p{number}", target_table=f"analytics.t{number}", **fields)
        pipelines.request_run(connection, pipeline.id, trigger="api")
    with runner(database_url, tmp_path) as one, runner(database_url, tmp_path) as other:
        busy = "SELECT FROM etl.etl_pipelines WHERE status <> 'IDLE' LIMIT 1"
        wait_until(lambda: not connection.execute(busy).fetchall(), 120, "every pipeline IDLE")
    counted = connection.execute(
        "SELECT count(*) AS runs, count(DISTINCT pipeline_id) AS pipelines, count(DISTINCT request_id) AS requests,"
        "       array_agg(DISTINCT status) AS statuses, array_agg(DISTINCT runner ORDER BY runner) AS runners"
        "  FROM etl.etl_runs"
    ).fetchone()
    assert counted == {
        "runs": PIPELINES,
        "pipelines": PIPELINES,
        "requests": PIPELINES,
        "statuses": ["SUCCESS"],
        "runners": sorted([one.name, other.name]),
    }
    assert len(journal.moves(connection)) == 3 * PIPELINES
    journal.assert_legal(connection)
