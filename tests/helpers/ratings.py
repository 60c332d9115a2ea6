"""The incremental pipeline of the cinema's ratings, and the check that its mart equals them."""

from typing import Any
from uuid import UUID, uuid4

from tests.helpers.running import create, differences
from vitrine.definition.pipeline import Pipeline
from vitrine.postgres import Connection
from vitrine.settings import Settings

QUERY = "SELECT id, rating, modified FROM ugc.ratings"
TARGET = "analytics.ratings"
SLOW_QUERY = """
    SELECT a.id, count(*) AS n FROM ugc.ratings a CROSS JOIN ugc.ratings b CROSS JOIN ugc.ratings c GROUP BY a.id
"""
"""Returns its first row after minutes."""


def create_ratings(connection: Connection, settings: Settings, **fields: Any) -> Pipeline:
    defaults: dict[str, Any] = {
        "source_query": QUERY,
        "target_table": TARGET,
        "mode": "incremental",
        "incremental_key": "modified",
        "incremental_id_key": "id",
        "key_columns": ["id"],
        "batch_size": 100,
    }
    return create(connection, settings, **defaults | fields)


def rate(connection: Connection, modified: str = "now()", *, count: int = 1) -> UUID:
    """Insert ratings with this SQL expression as `modified`; returns the id of the last one."""
    rating = uuid4()
    for number in range(count):
        rating = uuid4()
        connection.execute(
            "INSERT INTO ugc.ratings (id, user_id, film_id, rating, created, modified)"  # pyright: ignore[reportArgumentType]
            f" SELECT %s, user_id, film_id, 7, now(), {modified} FROM ugc.ratings LIMIT 1 OFFSET {number}",
            [rating],
        )
    return rating


def is_right(connection: Connection) -> bool:
    return differences(connection, QUERY, TARGET, "id") == []
