"""Messages of a real runner to a real receiver."""

from pathlib import Path

import pytest

from tests.helpers.observing import history, wait_for
from tests.helpers.processes import runner
from tests.helpers.running import create
from tests.helpers.waiting import wait_until
from tests.helpers.webhooks import Receiver, receiver
from vitrine.core.status import Status
from vitrine.definition.pipeline import Pipeline
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import pipelines


def genres(connection: Connection, settings: Settings) -> Pipeline:
    return create(
        connection,
        settings,
        name="genres",
        source_query="SELECT id, name FROM content.genre",
        target_table="analytics.genres",
        key_columns=["id"],
    )


def events(hook: Receiver) -> set[str]:
    return {one.content["event"] for one in hook.requests}


@pytest.mark.promise("L8")
def test_a_receiver_that_never_answers_delays_no_run(
    database_url: str, settings: Settings, connection: Connection, tmp_path: Path
) -> None:
    pipeline = genres(connection, settings)
    with (
        receiver(silent=True) as hook,
        runner(database_url, tmp_path, concurrency=1, VITRINE_WEBHOOK_URL=hook.url) as one,
    ):
        connection.execute("ALTER TABLE content.genre RENAME COLUMN name TO label")
        pipelines.request_run(connection, pipeline.id, trigger="api")
        wait_for(connection, pipeline, Status.FAILED)
        wait_until(lambda: hook.requests, what="the message")
        # the receiver still holds it, and runs start and end
        connection.execute("ALTER TABLE content.genre RENAME COLUMN label TO name")
        for _ in range(3):
            pipelines.request_run(connection, pipeline.id, trigger="api")
            wait_for(connection, pipeline, Status.IDLE)
        assert len(history(connection, pipeline)) == 4
        assert events(hook) == {"failure"}
        hook.answering.set()
        wait_until(lambda: "recovery" in events(hook), what="the message about the recovery")
        assert hook.url not in one.output()
