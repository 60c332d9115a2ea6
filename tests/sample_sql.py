"""Writes sql/init_demo_data.sql, the sample cinema as one script for psql: `python -m tests.sample_sql`."""

from collections.abc import Iterator
from pathlib import Path

from vitrine.demo import cinema

PATH = Path(__file__).parents[1] / "sql" / "init_demo_data.sql"
FILMS, RATINGS, SEED = 1000, 20_000, 1
"""As `vitrine demo` and `vitrine sample` have it by default."""

_HEAD = r"""-- The sample cinema: schemas content and ugc with their tables and deterministic rows. PostgreSQL 15+:
--     psql postgresql://user@host/database < sql/init_demo_data.sql
-- Everything happens in one transaction. A second time it adds nothing, and existing rows stay.
-- Written by `make sample-sql` from src/vitrine/demo/cinema_schema.sql and src/vitrine/demo/cinema_data/; change those.
\set ON_ERROR_STOP on
\set QUIET on
\encoding UTF8
BEGIN;
SET LOCAL client_min_messages = warning;
"""

_TAIL = """COMMIT;

SELECT (SELECT count(*) FROM content.film_work) AS films, (SELECT count(*) FROM content.person) AS persons,
       (SELECT count(*) FROM ugc.ratings) AS ratings, (SELECT count(*) FROM ugc.likes) AS likes,
       (SELECT count(*) FROM ugc.views) AS views;
"""

# rows that are added to an existing cinema are newer than all others, as with `vitrine sample`
_GROWS = r"""SELECT EXISTS (SELECT FROM content.film_work) OR EXISTS (SELECT FROM ugc.ratings) AS grows \gset
SET LOCAL cinema.grows = :'grows';
"""


def text() -> str:
    return "\n".join(_parts())


def _parts() -> Iterator[str]:
    yield _HEAD
    yield _script("cinema_schema.sql")
    yield f"SET LOCAL cinema.seed = {SEED};\nSET LOCAL cinema.ratings = {RATINGS};\n{_GROWS}"
    yield _script("cinema_data/begin.sql")
    for table, rows in cinema.sizes(FILMS, RATINGS).items():
        if preparation := cinema.PREPARATIONS.get(table):
            yield _script(f"cinema_data/{preparation}.sql")
        yield f"SET LOCAL cinema.first = 1;\nSET LOCAL cinema.last = {rows};\n"
        yield _script(f"cinema_data/{table}.sql")
    yield _script("cinema_data/end.sql")
    yield "-- Indexes and foreign keys, which a first load has dropped\n"
    yield _script("cinema_schema.sql")
    yield _TAIL


def _script(name: str) -> str:
    return cinema.script(name).decode()


if __name__ == "__main__":
    PATH.write_text(text(), "utf-8")
