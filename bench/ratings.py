"""The table of ratings that most workloads move: how it is generated, and how it changes."""

from bench.database import Database

SCHEMA = "bench"
TABLE = f"{SCHEMA}.ratings"
WARM_UP_TABLE = f"{SCHEMA}.warm_up"
WARM_UP_ROWS = 10

COLUMNS = "id, user_id, film_id, score, created, modified"
TYPES = "id uuid, user_id uuid, film_id uuid, score smallint, created timestamptz, modified timestamptz"
UPDATES = "user_id = excluded.user_id, film_id = excluded.film_id, score = excluded.score, created = excluded.created, modified = excluded.modified"  # noqa: E501

TWO_YEARS_SECONDS = 63_072_000


def query(table: str = TABLE) -> str:
    return f"SELECT {COLUMNS} FROM {table}"


def raised_query(table: str = TABLE) -> str:
    """The rows as the transforms of the benchmark change them."""
    return f"SELECT id, user_id, film_id, (score + 1)::smallint AS score, created, modified FROM {table}"


def create(database: Database, count: int, table: str = TABLE) -> None:
    """A table of that many ratings, the same rows for every call, in the order of their times and with random keys.

    There are ten ratings a film and forty a user on average; a few films and users have most of them. Three ratings
    share each time, so that readers have ties to break.
    """
    database.execute(
        f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}",
        f"DROP TABLE IF EXISTS {table}",
        f"CREATE TABLE {table} ({TYPES.replace(',', ' NOT NULL,')} NOT NULL)",
        f"""
        INSERT INTO {table} ({COLUMNS})
        SELECT md5('rating ' || n)::uuid, md5('user ' || user_number)::uuid, md5('film ' || film_number)::uuid,
               1 + n * 7 % 10, modified - interval '1 hour' * (n % 5), modified
          FROM (SELECT n,
                       floor({max(1, count // 40)} * power(mod(abs(hashint8extended(n, 1)), 1000000) / 1e6, 2)) AS user_number,
                       floor({max(1, count // 10)} * power(mod(abs(hashint8extended(n, 2)), 1000000) / 1e6, 2)) AS film_number,
                       timestamptz '2024-01-01' + n / 3 * interval '{3 * TWO_YEARS_SECONDS / count:.6f} s' AS modified
                  FROM generate_series(1, {count}) AS n) AS numbered
        """,  # noqa: E501
        f"ALTER TABLE {table} ADD PRIMARY KEY (id)",
        f"CREATE INDEX ON {table} (modified, id)",
        f"CREATE INDEX ON {table} (film_id)",
        f"VACUUM (ANALYZE, FREEZE) {table}",
    )


def create_warm_up(database: Database) -> None:
    """The table that the warm-up run of each measurement reads."""
    create(database, WARM_UP_ROWS, WARM_UP_TABLE)


def newest(database: Database, table: str = TABLE) -> str:
    (row,) = database.fetch(f"SELECT max(modified)::text AS newest FROM {table}")
    return str(row["newest"])


def change(database: Database, count: int, seed: int, table: str = TABLE) -> str:
    """Change that many ratings, spread over the table; returns the newest time before the change.

    The changed rows get times of their own an hour above the newest one. These times are in the past: rows younger
    than the margin of the horizon (a minute) are read again by the next run, and each round would do more work.
    """
    since = newest(database, table)
    database.execute(
        f"""
        UPDATE {table} AS r SET score = 1 + r.score % 10, modified = timestamptz '{since}' + interval '1 hour' + n * interval '1 ms'
          FROM (SELECT id, row_number() OVER () AS n
                  FROM (SELECT id FROM {table} ORDER BY uuid_hash_extended(id, {seed}), id LIMIT {count}) AS chosen) AS c
         WHERE r.id = c.id
        """,  # noqa: E501
        f"VACUUM ANALYZE {table}",
    )
    return since


def delete(database: Database, count: int, seed: int, table: str = TABLE) -> None:
    database.execute(
        f"DELETE FROM {table} WHERE id IN"
        f" (SELECT id FROM {table} ORDER BY uuid_hash_extended(id, {seed}), id LIMIT {count})",
        f"VACUUM ANALYZE {table}",
    )


def add(database: Database, count: int, seed: int, table: str = TABLE) -> str:
    """Add that many ratings of films that have ratings; returns the newest time before."""
    since = newest(database, table)
    database.execute(
        f"""
        INSERT INTO {table} ({COLUMNS})
        SELECT md5(id::text || {seed})::uuid, user_id, film_id, score, at, at
          FROM (SELECT id, user_id, film_id, score,
                       timestamptz '{since}' + interval '1 hour' + row_number() OVER () * interval '1 ms' AS at
                  FROM (SELECT * FROM {table} ORDER BY uuid_hash_extended(id, {seed}), id LIMIT {count}) AS c) AS n
        """,
        f"VACUUM ANALYZE {table}",
    )
    return since


def aggregate(restriction: str = "", table: str = TABLE) -> str:
    """The rating of each film."""
    return f"""
        SELECT film_id, round(avg(score), 2)::numeric(4, 2) AS avg_rating, count(*) AS rating_count,
               max(modified) AS modified
          FROM {table} {restriction} GROUP BY film_id
    """


def films_rated(condition: str, table: str = TABLE) -> str:
    """Restricts an aggregate to the films with a rating whose time meets the condition, such as `>= $1`."""
    return f"WHERE film_id IN (SELECT film_id FROM {table} WHERE modified {condition})"
