"""The sample cinema: tables as the cinema has them, and a deterministic generator in SQL."""

from dataclasses import dataclass
from importlib import resources
from typing import Any

from psycopg import Connection
from psycopg.rows import class_row

_COUNT = """
    SELECT (SELECT count(*) FROM content.film_work) AS film_work,
           (SELECT count(*) FROM content.genre) AS genre,
           (SELECT count(*) FROM content.person) AS person,
           (SELECT count(*) FROM content.genre_film_work) AS genre_film_work,
           (SELECT count(*) FROM content.person_film_work) AS person_film_work,
           (SELECT count(*) FROM ugc.ratings) AS ratings,
           (SELECT count(*) FROM ugc.likes) AS likes,
           (SELECT count(*) FROM ugc.views) AS views
"""

# A viewer and a film come from two ratings found by a random place in the key: no scan, however many there are
_ADD_RATINGS = """
    WITH place AS MATERIALIZED (
        SELECT least(gen_random_uuid(), last.id) AS viewer_from, least(gen_random_uuid(), last.id) AS film_from
          FROM generate_series(1, %(count)s::integer), (SELECT id FROM ugc.ratings ORDER BY id DESC LIMIT 1) AS last
    )
    INSERT INTO ugc.ratings (id, user_id, film_id, score, created, modified)
    SELECT gen_random_uuid(), viewer.user_id, film.film_id, 1 + floor(random() * 10)::smallint, now(), now()
      FROM place
     CROSS JOIN LATERAL (SELECT user_id FROM ugc.ratings WHERE id >= viewer_from ORDER BY id LIMIT 1) AS viewer
     CROSS JOIN LATERAL (SELECT film_id FROM ugc.ratings WHERE id >= film_from ORDER BY id LIMIT 1) AS film
"""


@dataclass(frozen=True)
class Counts:
    """Rows per table."""

    film_work: int
    genre: int
    person: int
    genre_film_work: int
    person_film_work: int
    ratings: int
    likes: int
    views: int


def create_schema(connection: Connection[Any]) -> None:
    """Afterwards the schemas content and ugc have their tables and indexes; what is in them stays."""
    with connection.transaction():
        connection.execute(_script("cinema_schema.sql"))


def fill(connection: Connection[Any], *, films: int = 1000, ratings: int = 20000, seed: int = 1) -> Counts:
    """Afterwards there are at least so many films and ratings, and likes and views to match; returns what there is.

    Equal arguments on an empty cinema give equal rows. On a filled one only what is missing is added.
    """
    with connection.transaction():
        for name, value in (("cinema.films", films), ("cinema.ratings", ratings), ("cinema.seed", seed)):
            connection.execute("SELECT set_config(%s, %s, true)", [name, str(value)])
        connection.execute(_script("cinema_data.sql"))
        connection.execute(_script("cinema_schema.sql"))
        with connection.cursor(row_factory=class_row(Counts)) as cursor:
            return cursor.execute(_COUNT).fetchall()[0]


def add_ratings(connection: Connection[Any], count: int) -> int:
    """A trickle of new ratings by viewers and of films that have some; returns how many were added."""
    with connection.transaction():
        return connection.execute(_ADD_RATINGS, {"count": count}).rowcount


def _script(name: str) -> bytes:
    return resources.files("vitrine.demo").joinpath(name).read_bytes()
