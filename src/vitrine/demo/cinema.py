"""The sample cinema: its tables, and a deterministic generator of its rows in SQL."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any, LiteralString

from psycopg import Connection
from psycopg.rows import class_row, scalar_row

# A progress bar moves about this often during a large fill. Each step sorts its rows by the key before it inserts
# them, and few large steps keep the index of the key small.
STEPS = 30
MIN_STEP_ROWS = 10_000

Watch = Callable[[str, int, int], None]
"""Called with the name of what is added next, the rows added so far, and the rows to add in total."""

_TABLES: LiteralString = """
    content.genre_film_work, content.person_film_work, content.film_work, content.genre, content.person,
    ugc.ratings, ugc.likes, ugc.views
"""

PREPARATIONS = {"film_work": "number_persons", "ratings": "number_films"}
"""Scripts that run before rows are added to a table: links need the persons, and events the films, that exist then."""

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

_HAS_OLD_LAYOUT = """
    SELECT to_regclass('ugc.ratings') IS NOT NULL AND NOT EXISTS (
               SELECT FROM pg_attribute
                WHERE attrelid = to_regclass('ugc.ratings') AND attname = 'rating' AND NOT attisdropped)
"""

# Viewer and film are those of two ratings at random places in the key: an index scan each, however many ratings exist.
_ADD_RATINGS = """
    WITH place AS MATERIALIZED (
        SELECT least(gen_random_uuid(), last.id) AS viewer_from, least(gen_random_uuid(), last.id) AS film_from
          FROM generate_series(1, %(count)s::integer), (SELECT id FROM ugc.ratings ORDER BY id DESC LIMIT 1) AS last
    )
    INSERT INTO ugc.ratings (id, user_id, film_id, rating, created, modified)
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


def has_old_layout(connection: Connection[Any]) -> bool:
    """Whether `ugc.ratings` exists without the column `rating`; earlier releases named that column `score`."""
    with connection.cursor(row_factory=scalar_row) as cursor:
        return cursor.execute(_HAS_OLD_LAYOUT).fetchall()[0]


def create_schema(connection: Connection[Any]) -> None:
    """Create the schemas `content` and `ugc` with their tables and indexes where they are missing; rows stay."""
    with connection.transaction():
        connection.execute(script("cinema_schema.sql"))


def drop(connection: Connection[Any]) -> None:
    """Drop the tables of the cinema, and the views that read them."""
    connection.execute(f"DROP TABLE IF EXISTS {_TABLES} CASCADE")


def fill(
    connection: Connection[Any],
    *,
    films: int = 1000,
    ratings: int = 20000,
    seed: int = 1,
    watch: Watch = lambda adding, done, total: None,
) -> Counts:
    """Add rows until the cinema has this many films and ratings, and likes and views to match; return its counts.

    Equal arguments on an empty cinema give equal rows. A filled cinema keeps its rows and gets only the missing ones.
    """
    with connection.transaction():
        found = _count(connection)
        missing = _missing(found, films, ratings)
        if found.genre and not any(missing.values()):
            return found
        grows = found.film_work > 0 or found.ratings > 0
        _set(connection, seed=seed, ratings=ratings, grows=grows)
        _add(connection, missing, watch)
        connection.execute(script("cinema_schema.sql"))
        return _count(connection)


def add_ratings(connection: Connection[Any], count: int) -> int:
    """Add ratings of now, by viewers and of films that already have some; return how many were added."""
    with connection.transaction():
        return connection.execute(_ADD_RATINGS, {"count": count}).rowcount


def _count(connection: Connection[Any]) -> Counts:
    with connection.cursor(row_factory=class_row(Counts)) as cursor:
        return cursor.execute(_COUNT).fetchall()[0]


def sizes(films: int, ratings: int) -> dict[str, int]:
    """Rows of each table of a cinema of this size, in the order in which tables are filled."""
    return {
        "person": max(60, films),
        "film_work": films,
        "ratings": ratings,
        "likes": ratings // 2,
        "views": ratings,
    }


def script(name: str) -> bytes:
    """A script of this package."""
    return resources.files("vitrine.demo").joinpath(name).read_bytes()


def _missing(found: Counts, films: int, ratings: int) -> dict[str, range]:
    """Numbers of the rows to add, per table."""
    return {table: range(getattr(found, table) + 1, count + 1) for table, count in sizes(films, ratings).items()}


def _add(connection: Connection[Any], missing: dict[str, range], watch: Watch) -> None:
    done, total = 0, sum(map(len, missing.values()))
    connection.execute(script("cinema_data/begin.sql"))
    for table, numbers in missing.items():
        if preparation := PREPARATIONS.get(table):
            connection.execute(script(f"cinema_data/{preparation}.sql"))
        for step in _steps(numbers, max(MIN_STEP_ROWS, total // STEPS)):
            watch(table, done, total)
            _set(connection, first=step[0], last=step[-1])
            connection.execute(script(f"cinema_data/{table}.sql"))
            done += len(step)
    watch("indexes", done, total)
    connection.execute(script("cinema_data/end.sql"))


def _steps(numbers: range, size: int) -> Iterator[range]:
    return (numbers[start : start + size] for start in range(0, len(numbers), size))


def _set(connection: Connection[Any], **parameters: int) -> None:
    """Pass parameters to the scripts, which consist of several statements and so take no arguments."""
    for name, value in parameters.items():
        connection.execute("SELECT set_config('cinema.' || %s, %s, true)", [name, str(value)])
