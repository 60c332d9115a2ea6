"""The surroundings of a pipeline under test: writer sessions, expiring leases, points where a run is interrupted."""

from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

import pytest
from psycopg import sql

from tests.helpers import journal
from vitrine.connectors.postgres.source import relations, watermark
from vitrine.core.protocols import Transaction
from vitrine.core.rows import Entry, Saved
from vitrine.postgres import Connection, connect
from vitrine.settings import Settings
from vitrine.sql.functions import Call
from vitrine.store import pipelines, queue
from vitrine.store.checkpoint import StoreCheckpoint

WRITERS = 3


class When(StrEnum):
    """What a writer sets `modified` to; values below now() need a horizon margin that covers them."""

    NOW = "now()"
    CLOCK = "clock_timestamp()"
    SAME_SECOND_AHEAD = "date_trunc('second', now()) + interval '1 second'"
    SOON = "now() + interval '300 milliseconds'"
    FUTURE = "'2099-01-01'::timestamptz"
    INFINITY = "'infinity'::timestamptz"
    SAME_SECOND_BEHIND = "date_trunc('second', now())"
    BEHIND = "now() - interval '1900 milliseconds'"

    @property
    def is_behind(self) -> bool:
        return self in (When.SAME_SECOND_BEHIND, When.BEHIND)


class Writer:
    """A session of the application; outside a transaction every statement commits at once."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection = connect(url, name="cinema")
        self._reset()

    def _reset(self) -> None:
        self.open = False
        self.savepoints = 0
        self.is_behind = False  # wrote a time before the start of its open transaction

    def begin(self) -> None:
        if not self.open:
            self._connection.execute("BEGIN")
            self.open = True

    def execute(self, statement: sql.Composed, arguments: dict[str, Any]) -> None:
        self._connection.execute(statement, arguments)

    def savepoint(self) -> None:
        if self.open:
            self._connection.execute("SAVEPOINT here")
            self.savepoints += 1

    def roll_back_to(self) -> None:
        if self.savepoints:
            self._connection.execute("ROLLBACK TO SAVEPOINT here; RELEASE SAVEPOINT here")
            self.savepoints -= 1

    def end(self, word: Literal["COMMIT", "ROLLBACK"]) -> None:
        if self.open:
            self._connection.execute(word)
        self._reset()

    def reconnect(self) -> None:
        """Lose the connection and the open transaction."""
        self.close()
        self._connection = connect(self._url, name="cinema")
        self._reset()

    def close(self) -> None:
        self._connection.close()


Point = Literal["horizon", "save", "batch"]
"""After the horizon is read and before the snapshot; before a unit commits; after a unit has committed."""


def nothing(point: Point) -> None:
    pass


@dataclass
class World:
    """A database with the table ugc.subject, and the sessions that use it."""

    settings: Settings
    control: Connection
    other: Connection  # of another account: it can take a pipeline over, but not terminate the old holder's sessions
    writers: list[Writer]
    at: Callable[[Point], None] = nothing  # called at every point that a run reaches

    def clear(self) -> None:
        """Restore the initial state."""
        for writer in self.writers:
            writer.end("ROLLBACK")
        self.expire()
        for pipeline in pipelines.list_all(self.control):
            pipelines.delete(self.control, pipeline.id)
        self.control.execute(
            "DROP TABLE IF EXISTS analytics.subject; TRUNCATE ugc.subject, public.status_journal RESTART IDENTITY"
        )

    def expire(self, connection: Connection | None = None) -> None:
        """Let every lease expire, as after a time without heartbeats."""
        self.control.execute(
            "UPDATE etl.etl_pipelines SET lease_expires_at = clock_timestamp() - interval '1 second'"
            " WHERE lease_token IS NOT NULL"
        )
        queue.expire_leases(connection or self.control)

    def terminate(self) -> None:
        """Terminate every session of every run."""
        self.control.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE application_name LIKE 'vitrine:%' AND datname = current_database()"
        )


@contextmanager
def opened(url: str, monkeypatch: pytest.MonkeyPatch) -> Generator[World]:
    """A world in a migrated database."""
    # A long lease, so that it expires only when a test makes it expire
    settings = Settings.model_validate({"database_url": url, "lease_ttl": "60s", "heartbeat_interval": "20s"})
    with connect(url, name="tests") as control:
        control.execute(
            "CREATE TABLE ugc.subject (id uuid PRIMARY KEY, part int NOT NULL, payload text NOT NULL,"
            " modified timestamptz NOT NULL, rev bigint GENERATED BY DEFAULT AS IDENTITY);"
            "CREATE INDEX ON ugc.subject (modified, id); CREATE INDEX ON ugc.subject (rev, id);"
            "DROP ROLE IF EXISTS second_owner; CREATE ROLE second_owner LOGIN SUPERUSER"
        )
        journal.start(control)
        with connect(url.replace("postgres@", "second_owner@"), name="tests") as other:
            world = World(settings, control, other, [Writer(url) for _ in range(WRITERS)])
            _report_points(world, monkeypatch)
            yield world
            for writer in world.writers:
                writer.close()
        control.execute("DROP ROLE second_owner")


def _report_points(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    read, save = watermark.read_horizon, StoreCheckpoint.save

    def reading(
        connection: Connection, relations: relations.RelationTree = (), functions: Collection[Call] = ()
    ) -> watermark.Horizon:
        seen = read(connection, relations, functions)
        world.at("horizon")
        return seen

    def saving(self: StoreCheckpoint, entry: Entry, transaction: Transaction | None) -> Saved:
        saved = save(self, entry, transaction)
        if transaction is not None:  # without one the save has committed already
            world.at("save")
        return saved

    monkeypatch.setattr(watermark, "read_horizon", reading)
    monkeypatch.setattr(StoreCheckpoint, "save", saving)
