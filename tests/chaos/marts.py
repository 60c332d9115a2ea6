"""Source tables, pipelines, and the check that every mart equals its source."""

from dataclasses import dataclass, field
from typing import Any

from psycopg import sql

from tests.helpers.running import create, differences
from vitrine.definition.pipeline import Pipeline
from vitrine.postgres import Connection
from vitrine.settings import Settings

TABLES = """
    CREATE TABLE ugc.chaos_changes (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text NOT NULL, modified timestamptz NOT NULL
    );
    CREATE INDEX ON ugc.chaos_changes (modified, id);
    CREATE TABLE ugc.chaos_log (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text NOT NULL);
    CREATE TABLE ugc.chaos_shelf (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text NOT NULL);
    INSERT INTO ugc.chaos_changes (note, modified)
    SELECT 'old ' || n, now() - interval '1 h' FROM generate_series(1, 500) n;
    INSERT INTO ugc.chaos_log (note) SELECT 'old ' || n FROM generate_series(1, 500) n;
    INSERT INTO ugc.chaos_shelf (note) SELECT 'old ' || n FROM generate_series(1, 2000) n;
"""

_CHANGES, _LOG, _SHELF = (f"SELECT * FROM ugc.chaos_{name}" for name in ("changes", "log", "shelf"))
_BY_TIME: dict[str, Any] = {
    "mode": "incremental",
    "incremental_key": "modified",
    "incremental_id_key": "id",
    # Every time is the start of its transaction, so the horizon needs no margin
    "options": {"horizon_margin": "0s"},
}
_BY_NUMBER: dict[str, Any] = {"mode": "incremental", "incremental_key": "id", "options": {"horizon_margin": "0s"}}


@dataclass(frozen=True)
class Mart:
    """A pipeline, and the query that its mart must equal."""

    name: str
    query: str
    batch_size: int
    fields: dict[str, Any] = field(default_factory=dict[str, Any])
    expected: str | None = None  # None: the query itself

    @property
    def target(self) -> str:
        return f"analytics.{self.name}"

    def create(self, connection: Connection, settings: Settings) -> Pipeline:
        return create(
            connection,
            settings,
            name=self.name,
            source_query=self.query,
            target_table=self.target,
            key_columns=["id"],
            batch_size=self.batch_size,
            **self.fields,
        )

    def count(self, connection: Connection) -> int:
        statement = sql.SQL("SELECT count(*) AS n FROM {}").format(sql.Identifier("analytics", self.name))
        row = connection.execute(statement).fetchone()
        return row["n"] if row else 0

    def wrong_rows(self, connection: Connection) -> list[dict[str, Any]]:
        return differences(connection, self.expected or self.query, self.target, "id")


_CAPITALS = "SELECT id, upper(note) AS note, modified FROM ugc.chaos_changes"

MARTS = (
    Mart("by_time", _CHANGES, 20, _BY_TIME),
    Mart("by_time_in_rows", _CHANGES, 50, {**_BY_TIME, "python_task": "chaos_rows"}, _CAPITALS),
    Mart("by_time_in_frames", _CHANGES, 50, {**_BY_TIME, "python_task": "chaos_frames"}, _CAPITALS),
    Mart("by_number", _LOG, 50, _BY_NUMBER),
    Mart("whole", _SHELF, 200),
    Mart("whole_and_followed", _CHANGES, 100, {"mode": "full", "incremental_key": "modified"}),
)
