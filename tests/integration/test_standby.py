"""A standby as the source: what it has not replayed yet is not lost."""

import pytest
from pydantic import SecretStr

from tests.helpers.events import create_events
from tests.helpers.replication import replication
from tests.helpers.running import succeed
from tests.helpers.waiting import wait_until
from vitrine.embedded import EmbeddedPostgres
from vitrine.postgres import Connection, connect
from vitrine.settings import Settings
from vitrine.store import state

EARLIER, LATER = 1, 2


def insert(primary: Connection, event: int, before: str) -> None:
    primary.execute(
        "INSERT INTO ugc.events SELECT %s, 'x', coalesce(max(modified), now()) - %s::interval FROM ugc.events",
        [event, before],
    )


def events_on(standby: Connection) -> int:
    row = standby.execute("SELECT count(*) AS n FROM ugc.events").fetchone()
    assert row is not None
    return row["n"]


@pytest.mark.promise("J7")
def test_a_row_that_a_standby_replays_later_is_not_lost(
    connection: Connection, settings: Settings, postgres: EmbeddedPostgres
) -> None:
    with (
        replication(postgres.version) as servers,
        connect(servers.primary, name="cinema") as primary,
        connect(servers.standby, name="tests") as standby,
    ):
        replica = settings.model_copy(update={"sources": {"default": SecretStr(servers.standby)}})
        events = create_events(connection, replica, "incremental", options={"lookback": "1s"})
        primary.execute("CREATE TABLE ugc.events (id integer PRIMARY KEY, note text, modified timestamptz NOT NULL)")
        insert(primary, LATER, before="0")
        wait_until(lambda: standby.execute("SELECT to_regclass('ugc.events') AS n").fetchone() != {"n": None})
        wait_until(lambda: events_on(standby) == 1)
        standby.execute("SELECT pg_wal_replay_pause()")
        wait_until(lambda: standby.execute("SELECT pg_get_wal_replay_pause_state() AS s").fetchone() == {"s": "paused"})
        insert(primary, EARLIER, before="100 ms")
        passed = "SELECT FROM ugc.events WHERE modified < clock_timestamp() - interval '1 s'"
        wait_until(lambda: standby.execute(passed).fetchone() is not None)
        assert succeed(connection, replica, events).counts.written == 1

        standby.execute("SELECT pg_wal_replay_resume()")
        wait_until(lambda: events_on(standby) == 2)
        assert succeed(connection, replica, events).counts.written == 1
        # idle from here on: the checkpoint stays, at most the lookback behind the last transaction
        position = state.load_state(connection, events.id).position
        assert position.cursor is not None
        assert succeed(connection, replica, events).counts.written == 0
        assert state.load_state(connection, events.id).position == position
