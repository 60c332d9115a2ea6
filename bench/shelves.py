"""Many small pipelines for one runner: each reads its own part of one table."""

from collections.abc import Sequence

from bench.database import Database
from bench.increments import INCREMENTAL
from bench.ratings import SCHEMA
from bench.tree import Definition

ROWS, CHANGED = 200, 100

TABLE = f"{SCHEMA}.shelves"
COLUMNS = "id, score, modified"


def create(source: Database, count: int) -> None:
    source.execute(
        f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}",
        f"DROP TABLE IF EXISTS {TABLE}",
        f"CREATE TABLE {TABLE} (shelf integer, id bigint, score integer NOT NULL, modified timestamptz NOT NULL)",
        f"ALTER TABLE {TABLE} ADD PRIMARY KEY (shelf, id)",
        f"INSERT INTO {TABLE} SELECT shelf, id, 1, timestamptz '2024-01-01' + id * interval '1 ms'"
        f"  FROM generate_series(0, {count - 1}) AS shelf, generate_series(1, {ROWS}) AS id",
        f"CREATE INDEX ON {TABLE} (shelf, modified, id)",
        f"VACUUM ANALYZE {TABLE}",
    )


def change(source: Database, count: int) -> None:
    """Change some rows of each of the first shelves."""
    source.execute(
        f"UPDATE {TABLE} SET score = score + 1, modified = newest.modified + id * interval '1 ms'"
        f"  FROM (SELECT max(modified) + interval '1 hour' AS modified FROM {TABLE}) AS newest"
        f" WHERE shelf < {count} AND id <= {CHANGED}",
        f"VACUUM ANALYZE {TABLE}",
    )


def definitions(count: int) -> list[Definition]:
    return [
        {
            "name": f"shelf_{number}",
            "source_query": query(number),
            "target_table": f"analytics.shelf_{number}",
            **INCREMENTAL,
        }
        for number in range(count)
    ]


def names(count: int) -> list[str]:
    return [f"shelf_{number}" for number in range(count)]


def are_right(source: Database, store: Database, numbers: Sequence[int]) -> bool:
    return all(
        source.digest(query(number)) == store.digest(f"SELECT {COLUMNS} FROM analytics.shelf_{number}")
        for number in numbers
    )


def query(number: int) -> str:
    return f"SELECT {COLUMNS} FROM {TABLE} WHERE shelf = {number}"
