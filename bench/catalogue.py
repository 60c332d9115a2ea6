"""Films with their genres and persons, and the query that gathers them into one row per film."""

from bench.database import Database
from bench.ratings import SCHEMA

GENRES = 26

FILM_COLUMNS = "film_id, title, rating, genres, directors, actors, genre_count, person_count, type, creation_date"

# Genres and persons are aggregated before the join: joined first, each would multiply the rows of the other.
FILM_DIM = f"""
    SELECT f.id AS film_id, f.title, f.rating,
           coalesce(g.genres, ARRAY[]::text[]) AS genres,
           coalesce(p.directors, ARRAY[]::text[]) AS directors,
           coalesce(p.actors, ARRAY[]::text[]) AS actors,
           coalesce(g.genre_count, 0) AS genre_count,
           coalesce(p.person_count, 0) AS person_count,
           f.type, f.creation_date
      FROM {SCHEMA}.film AS f
      LEFT JOIN (SELECT l.film_id, array_agg(DISTINCT genre.name ORDER BY genre.name) AS genres,
                        count(*) AS genre_count
                   FROM {SCHEMA}.film_genre AS l JOIN {SCHEMA}.genre AS genre ON genre.id = l.genre_id
                  GROUP BY l.film_id) AS g ON g.film_id = f.id
      LEFT JOIN (SELECT l.film_id,
                        array_agg(DISTINCT person.full_name ORDER BY person.full_name)
                            FILTER (WHERE l.role = 'director') AS directors,
                        array_agg(DISTINCT person.full_name ORDER BY person.full_name)
                            FILTER (WHERE l.role = 'actor') AS actors,
                        count(DISTINCT l.person_id) AS person_count
                   FROM {SCHEMA}.film_person AS l JOIN {SCHEMA}.person AS person ON person.id = l.person_id
                  GROUP BY l.film_id) AS p ON p.film_id = f.id
"""


def create(database: Database, films: int) -> None:
    """That many films, as many persons, one to three genres and four to eight persons a film; always the same rows."""
    persons = max(60, films)
    tables = ", ".join(f"{SCHEMA}.{name}" for name in ("film_person", "film_genre", "person", "genre", "film"))
    database.execute(
        f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}",
        f"DROP TABLE IF EXISTS {tables}",
        f"""
        CREATE TABLE {SCHEMA}.film AS
        SELECT md5('film ' || n)::uuid AS id, 'Film ' || md5('title ' || n) AS title,
               CASE WHEN n % 13 > 0 THEN (n * 7 % 100) / 10.0::float8 END AS rating,
               CASE WHEN n % 5 = 0 THEN 'tv_show' ELSE 'movie' END AS type,
               CASE WHEN n % 11 > 0 THEN date '1960-01-01' + (n * 37 % 23740)::int END AS creation_date
          FROM generate_series(0, {films} - 1) AS n
         ORDER BY 1
        """,
        f"""
        CREATE TABLE {SCHEMA}.genre AS
        SELECT md5('genre ' || n)::uuid AS id, 'Genre ' || n AS name FROM generate_series(0, {GENRES} - 1) AS n
        """,
        f"""
        CREATE TABLE {SCHEMA}.person AS
        SELECT md5('person ' || n)::uuid AS id, 'Person ' || md5('name ' || n) AS full_name
          FROM generate_series(0, {persons} - 1) AS n
        """,
        f"""
        CREATE TABLE {SCHEMA}.film_genre AS
        SELECT md5('film ' || n)::uuid AS film_id, md5('genre ' || (n * 3 + place * 5) % {GENRES})::uuid AS genre_id
          FROM generate_series(0, {films} - 1) AS n CROSS JOIN LATERAL generate_series(0, n % 3) AS place
         ORDER BY 1
        """,
        f"""
        CREATE TABLE {SCHEMA}.film_person AS
        SELECT md5('film ' || n)::uuid AS film_id,
               md5('person ' || (mod(abs(hashint8extended(n, 3)), {persons}) + place * 7) % {persons})::uuid AS person_id,
               CASE place WHEN 0 THEN 'director' WHEN 1 THEN 'writer' ELSE 'actor' END AS role
          FROM generate_series(0, {films} - 1) AS n CROSS JOIN LATERAL generate_series(0, 3 + n % 5) AS place
         ORDER BY 1
        """,  # noqa: E501
        *(f"ALTER TABLE {SCHEMA}.{name} ADD PRIMARY KEY (id)" for name in ("film", "genre", "person")),
        f"CREATE INDEX ON {SCHEMA}.film_genre (film_id, genre_id)",
        f"CREATE INDEX ON {SCHEMA}.film_person (film_id, person_id)",
        f"VACUUM (ANALYZE, FREEZE) {tables}",
    )


def retitle(database: Database, count: int) -> None:
    """Give that many films, spread over the table, another title."""
    database.execute(
        f"UPDATE {SCHEMA}.film SET title = title || ' (restored)' WHERE id IN"
        f" (SELECT id FROM {SCHEMA}.film ORDER BY uuid_hash_extended(id, 1), id LIMIT {count})",
        f"VACUUM ANALYZE {SCHEMA}.film",
    )
