"""The ratings that most workloads move: their columns, and how they change between rounds."""

from bench.database import Database

COLUMNS = "id, user_id, film_id, rating, created, modified"
TYPES = "id uuid, user_id uuid, film_id uuid, rating smallint, created timestamptz, modified timestamptz"
QUERY = f"SELECT {COLUMNS} FROM ugc.ratings"
UPDATES = "user_id = excluded.user_id, film_id = excluded.film_id, rating = excluded.rating, created = excluded.created, modified = excluded.modified"  # noqa: E501


def newest(database: Database, table: str = "ugc.ratings") -> str:
    row = database.connection.execute(f"SELECT max(modified)::text AS newest FROM {table}".encode()).fetchone()
    return str(row["newest"]) if row else "-infinity"


def change(database: Database, count: int, seed: int, table: str = "ugc.ratings") -> str:
    """Change so many ratings anywhere in the table; returns the time after which they are.

    Their new times lie an hour above the newest and in the past, each its own: younger than a minute they would be read
    again by the next run (the horizon's margin), and every round would do more than the one before.
    """
    since = newest(database, table)
    database.execute(
        f"""
        UPDATE {table} AS r SET rating = 1 + r.rating % 10, modified = timestamptz '{since}' + interval '1 hour' + n * interval '1 ms'
          FROM (SELECT id, row_number() OVER () AS n
                  FROM (SELECT id FROM {table} ORDER BY uuid_hash_extended(id, {seed}), id LIMIT {count}) AS chosen) AS c
         WHERE r.id = c.id
        """,  # noqa: E501
        f"VACUUM ANALYZE {table}",
    )
    return since


def delete(database: Database, count: int, seed: int) -> None:
    database.execute(
        f"DELETE FROM ugc.ratings WHERE id IN"
        f" (SELECT id FROM ugc.ratings ORDER BY uuid_hash_extended(id, {seed}), id LIMIT {count})",
        "VACUUM ANALYZE ugc.ratings",
    )


def add(database: Database, count: int, seed: int) -> str:
    """So many new ratings of films that have some; returns the time after which they are."""
    since = newest(database)
    database.execute(
        f"""
        INSERT INTO ugc.ratings ({COLUMNS})
        SELECT md5(id::text || {seed})::uuid, user_id, film_id, rating, at, at
          FROM (SELECT id, user_id, film_id, rating,
                       timestamptz '{since}' + interval '1 hour' + row_number() OVER () * interval '1 ms' AS at
                  FROM (SELECT * FROM ugc.ratings ORDER BY uuid_hash_extended(id, {seed}), id LIMIT {count}) AS c) AS n
        """
    )
    return since
