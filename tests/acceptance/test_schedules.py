"""A scheduled pipeline under three runners: no due time missed, none run twice.

Ten seconds in CI; `make schedules SECONDS=120` takes longer.
"""

import os
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.helpers import journal
from tests.helpers.processes import runner
from tests.helpers.running import create
from tests.helpers.waiting import wait_until
from vitrine.core.status import RunStatus, Status
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import pipelines
from vitrine.store.history import list_runs

SECONDS = int(os.environ.get("VITRINE_TEST_SCHEDULE_SECONDS", "10"))
EVERY = timedelta(seconds=1)

# A trigger records what happens to the due times
_NOTES = """
    CREATE TABLE public.due_journal (id bigint GENERATED ALWAYS AS IDENTITY, due timestamptz, following timestamptz);
    CREATE FUNCTION public.note_due() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO public.due_journal (due, following) VALUES (OLD.next_due_at, NEW.next_due_at);
        RETURN NULL;
    END $$;
    CREATE TRIGGER note_due AFTER UPDATE ON etl.etl_pipelines
        FOR EACH ROW WHEN (OLD.next_due_at <> NEW.next_due_at) EXECUTE FUNCTION public.note_due();
"""


def consumed(connection: Connection) -> list[datetime]:
    """Due times in the order in which runners consumed them."""
    return [row["due"] for row in connection.execute("SELECT due FROM public.due_journal ORDER BY id")]


def rhythm(first: datetime, last: datetime) -> list[datetime]:
    return [first + number * EVERY for number in range((last - first) // EVERY + 1)]


@pytest.mark.promise("S1")
def test_three_runners_miss_no_due_time_and_run_none_twice(
    database_url: str, settings: Settings, connection: Connection, tmp_path: Path
) -> None:
    journal.start(connection)
    connection.execute(_NOTES)
    query = "SELECT id, name FROM content.genre"
    with ExitStack() as stack:
        started = [stack.enter_context(runner(database_url, tmp_path)) for _ in range(3)]
        alive = "SELECT FROM etl.etl_runners"
        wait_until(lambda: len(connection.execute(alive).fetchall()) == 3, what="three runners")
        pipeline = create(
            connection,
            settings,
            source_query=query,
            target_table="analytics.genres",
            key_columns=["id"],
            schedule_interval="1s",
        )
        wait_until(lambda: len(consumed(connection)) >= SECONDS, SECONDS * 3, f"{SECONDS} due times")
        # no further due time; requested and active runs finish
        pipelines.update(connection, pipeline.id, pipeline.definition.model_copy(update={"schedule_interval": None}))
        wait_until(lambda: pipelines.get(connection, pipeline.id).status is Status.IDLE, what="the end of the last run")
    taken = consumed(connection)
    history = list_runs(connection, pipeline.id, limit=10 * SECONDS)
    assert taken == rhythm(taken[0], taken[-1]), "no due time was missed, and the rhythm was kept"
    assert sorted(one.due_at for one in history if one.due_at) == taken, "one run for each due time"
    assert {one.trigger for one in history} == {"schedule"}
    assert {one.runner for one in history} <= {one.name for one in started}
    assert {one.status for one in history} == {RunStatus.SUCCESS}
    assert len({one.request_id for one in history}) == len(history)
    journal.assert_legal(connection)
