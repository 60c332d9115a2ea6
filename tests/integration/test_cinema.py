import os
import subprocess
from collections.abc import Iterator
from importlib import resources
from typing import Any, LiteralString
from uuid import uuid4

import pytest
import yaml
from psycopg import Connection, sql
from psycopg.rows import DictRow, dict_row

from bench import psql
from tests import sample_sql
from tests.helpers.folders import server_folder
from vitrine.demo import cinema
from vitrine.embedded import EmbeddedPostgres

TABLES: tuple[LiteralString, ...] = (
    "content.film_work",
    "content.genre",
    "content.person",
    "content.genre_film_work",
    "content.person_film_work",
    "ugc.ratings",
    "ugc.likes",
    "ugc.views",
)

PIPELINES: dict[str, dict[str, Any]] = {
    file.name.removesuffix(".yaml"): yaml.safe_load(file.read_text(encoding="utf-8"))
    for file in resources.files("vitrine.demo").joinpath("pipelines").iterdir()
}

COLUMNS = {
    "genre_dim_full": ["genre_id", "name", "description", "film_count"],
    "film_dim_full": [
        *("film_id", "title", "rating", "genres", "directors", "actors", "genre_count", "person_count"),
        *("type", "creation_date"),
    ],
    "film_rating_agg_full": ["film_id", "avg_rating", "rating_count"],
    "user_features": [
        *("user_id", "rating_count", "avg_score", "like_count", "view_count", "seconds_watched"),
        *("favourite_genre", "last_activity"),
    ],
    "audience_segments": ["user_id", "rating_count", "avg_score", "like_count", "view_count"],
    "film_trends": ["film_id", "recent_count", "recent_score", "earlier_score"],
}
WITHOUT_A_QUERY = {"calendar"}


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    version = int(os.environ.get("VITRINE_TEST_POSTGRES", "18"))
    with server_folder("vitrine-cinema-") as folder, EmbeddedPostgres(folder, version=version, fast=True) as running:
        yield running


def new_cinema(server: EmbeddedPostgres) -> Connection[DictRow]:
    name = f"cinema_{uuid4().hex}"
    server.ensure_database(name)
    connection = Connection[DictRow].connect(server.url(name), autocommit=True, row_factory=dict_row)
    cinema.create_schema(connection)
    return connection


@pytest.fixture
def empty(server: EmbeddedPostgres) -> Iterator[Connection[DictRow]]:
    with new_cinema(server) as connection:
        yield connection


@pytest.fixture(scope="module")
def filled(server: EmbeddedPostgres) -> Iterator[Connection[DictRow]]:
    """Read-only, because tests share it."""
    with new_cinema(server) as connection:
        cinema.fill(connection, films=200, ratings=4000)
        connection.execute("SET default_transaction_read_only = on")
        yield connection


def checksums(connection: Connection[DictRow]) -> list[Any]:
    query: LiteralString = "SELECT md5(string_agg(t::text, ';' ORDER BY id)) AS sum FROM {} AS t"
    return [
        row["sum"]
        for table in TABLES
        for row in connection.execute(sql.SQL(query).format(sql.Identifier(*table.split("."))))
    ]


def query_of(name: str, *, checkpoint: str = "-infinity") -> bytes:
    pipeline = PIPELINES[name]
    text: str = pipeline.get("source_query") or pipeline["tasks"][0]["body"]
    return text.replace("$1", f"'{checkpoint}'::timestamptz").encode()


def read(connection: Connection[DictRow], name: str, *, checkpoint: str = "-infinity") -> dict[Any, DictRow]:
    rows = connection.execute(query_of(name, checkpoint=checkpoint)).fetchall()
    (key,) = PIPELINES[name]["key_columns"]
    by_key = {row[key]: row for row in rows}
    assert len(by_key) == len(rows)
    assert None not in by_key
    return by_key


def test_the_same_call_gives_the_same_rows_in_another_database(
    filled: Connection[DictRow], empty: Connection[DictRow]
) -> None:
    cinema.fill(empty, films=200, ratings=4000)
    assert checksums(empty) == checksums(filled)


def test_the_script_for_psql_makes_the_same_cinema_and_a_second_time_nothing(
    server: EmbeddedPostgres, empty: Connection[DictRow]
) -> None:
    cinema.fill(empty, films=sample_sql.FILMS, ratings=sample_sql.RATINGS, seed=sample_sql.SEED)
    name = f"script_{uuid4().hex}"
    server.ensure_database(name)
    for _ in range(2):
        with sample_sql.PATH.open("rb") as script:
            command = [psql.find(), "--no-psqlrc", server.url(name)]
            done = subprocess.run(command, stdin=script, capture_output=True, text=True, check=True)
        assert (done.stderr, done.stdout.split()[-3:]) == ("", ["20000", "(1", "row)"])
        with Connection[DictRow].connect(server.url(name), row_factory=dict_row) as made:
            assert checksums(made) == checksums(empty)
            assert catalog(made) == catalog(empty)


def catalog(connection: Connection[DictRow]) -> list[Any]:
    """Columns, indexes and constraints of both schemas."""
    queries: list[LiteralString] = [
        "SELECT table_schema, table_name, column_name, data_type, is_nullable, column_default"
        " FROM information_schema.columns WHERE table_schema IN ('content', 'ugc') ORDER BY 1, 2, 3",
        "SELECT schemaname, indexname, indexdef FROM pg_indexes WHERE schemaname IN ('content', 'ugc') ORDER BY 1, 2",
        "SELECT c.conname, pg_get_constraintdef(c.oid) FROM pg_constraint AS c"
        " WHERE c.connamespace IN ('content'::regnamespace, 'ugc'::regnamespace) ORDER BY 1, 2",
    ]
    return [connection.execute(query).fetchall() for query in queries]


def test_the_same_call_again_changes_nothing(empty: Connection[DictRow]) -> None:
    counts = cinema.fill(empty, films=50, ratings=400)
    before = checksums(empty)
    assert cinema.fill(empty, films=50, ratings=400) == counts
    assert cinema.fill(empty, films=30, ratings=100, seed=7) == counts
    assert checksums(empty) == before


def test_another_seed_gives_other_rows(empty: Connection[DictRow], filled: Connection[DictRow]) -> None:
    cinema.fill(empty, films=200, ratings=4000, seed=2)
    assert not set(checksums(empty)) & set(checksums(filled))


@pytest.mark.parametrize(("films", "ratings"), [(0, 0), (1, 1), (74, 0), (200, 4000)])
def test_a_fill_creates_the_requested_number_of_rows(empty: Connection[DictRow], films: int, ratings: int) -> None:
    counts = cinema.fill(empty, films=films, ratings=ratings)
    assert (counts.film_work, counts.genre, counts.person) == (films, 26, max(60, films))
    if films > 0:
        assert (counts.ratings, counts.likes, counts.views) == (ratings, ratings // 2, ratings)
    assert films <= counts.genre_film_work <= 3 * films
    assert 4 * films <= counts.person_film_work <= 9 * films


def test_growing_keeps_existing_rows_and_adds_the_missing_ones(empty: Connection[DictRow]) -> None:
    cinema.fill(empty, films=50, ratings=400)
    cinema.add_ratings(empty, 10)
    before = {row["id"] for row in empty.execute("SELECT id FROM ugc.ratings")}
    counts = cinema.fill(empty, films=80, ratings=600, seed=3)
    assert (counts.film_work, counts.ratings, counts.likes, counts.views) == (80, 600, 300, 600)
    assert before <= {row["id"] for row in empty.execute("SELECT id FROM ugc.ratings")}


def test_rows_added_to_a_filled_cinema_are_newer_than_all_rows_before(empty: Connection[DictRow]) -> None:
    cinema.fill(empty, films=50, ratings=400)
    cinema.add_ratings(empty, 10)
    newest = "SELECT max(modified) AS newest FROM ugc.ratings"
    (before,) = empty.execute(newest).fetchall()
    cinema.fill(empty, films=80, ratings=600)
    for table, added in (("ratings", 190), ("likes", 100), ("views", 200)):
        query = sql.SQL("SELECT count(*) AS added FROM {} WHERE modified > %s").format(sql.Identifier("ugc", table))
        assert empty.execute(query, [before["newest"]]).fetchall() == [{"added": added}]


def test_a_fill_reports_its_progress_until_all_rows_are_added(empty: Connection[DictRow]) -> None:
    seen: list[tuple[str, int, int]] = []
    cinema.fill(empty, films=100, ratings=30_000, watch=lambda adding, done, of: seen.append((adding, done, of)))
    total = 100 + 100 + 30_000 + 15_000 + 30_000
    assert {of for _, _, of in seen} == {total}
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert list(dict.fromkeys(adding for adding, _, _ in seen)) == [
        *("person", "film_work", "ratings", "likes", "views", "indexes"),
    ]
    assert len(seen) > 6
    assert seen[-1] == ("indexes", total, total)


def test_a_cinema_of_an_earlier_release_is_recognised_by_its_column(empty: Connection[DictRow]) -> None:
    assert not cinema.has_old_layout(empty)
    empty.execute("ALTER TABLE ugc.ratings RENAME COLUMN rating TO score")
    assert cinema.has_old_layout(empty)
    cinema.drop(empty)
    assert not cinema.has_old_layout(empty)


def test_a_deleted_row_does_not_stop_the_next_fill(empty: Connection[DictRow]) -> None:
    cinema.fill(empty, films=50, ratings=400)
    empty.execute("DELETE FROM content.film_work WHERE title = 'Star Trek'")
    empty.execute("DELETE FROM ugc.ratings WHERE rating = 10")
    cinema.fill(empty, films=50, ratings=400)


def test_a_fill_is_rolled_back_with_its_transaction(empty: Connection[DictRow]) -> None:
    with empty.transaction(force_rollback=True):
        cinema.fill(empty, films=10, ratings=20)
        cinema.fill(empty, films=20, ratings=40)
    assert empty.execute("SELECT count(*) AS n FROM content.film_work").fetchall() == [{"n": 0}]


def test_indexes_and_foreign_keys_are_the_same_before_and_after_a_fill(empty: Connection[DictRow]) -> None:
    query = """
        SELECT indexdef AS definition FROM pg_indexes WHERE schemaname IN ('content', 'ugc')
         UNION ALL
        SELECT conrelid::regclass || pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'f'
         ORDER BY 1
    """
    before = empty.execute(query).fetchall()
    cinema.fill(empty, films=10, ratings=20)
    cinema.create_schema(empty)
    assert empty.execute(query).fetchall() == before
    assert len(before) == 30


def test_films_have_plausible_genres_directors_and_actors(filled: Connection[DictRow]) -> None:
    rows = read(filled, "film_dim_full").values()
    assert {row["genre_count"] for row in rows} == {1, 2, 3}
    assert {len(row["directors"]) for row in rows} == {1, 2}
    assert {len(row["actors"]) for row in rows} == {2, 3, 4, 5, 6}
    titles = [row["title"] for row in rows]
    assert "Star Wars: Episode IV - A New Hope" in titles
    assert sum("Star Wars" in title for title in titles) == 12
    assert sum("Star Trek" in title for title in titles) == 13


@pytest.mark.parametrize("table", [table for table in TABLES if not table.endswith("_film_work")])
def test_several_rows_have_the_same_time_and_none_is_from_today(
    filled: Connection[DictRow], table: LiteralString
) -> None:
    query = "SELECT count(*) > count(DISTINCT modified) AS ties, max(modified) <= '2026-01-01' AS past FROM {}"
    (row,) = filled.execute(sql.SQL(query).format(sql.Identifier(*table.split(".")))).fetchall()
    assert row == {"ties": True, "past": True}


def test_new_ratings_have_the_current_time_and_known_viewers_and_films(empty: Connection[DictRow]) -> None:
    cinema.fill(empty, films=50, ratings=400)
    empty.execute("CREATE TABLE public.known AS SELECT * FROM ugc.ratings")
    assert cinema.add_ratings(empty, 25) == 25
    (row,) = empty.execute("""
        SELECT count(*) AS added,
               bool_and(modified > now() - interval '1 minute') AS of_now,
               bool_and(user_id IN (SELECT user_id FROM public.known)) AS known_viewer,
               bool_and(film_id IN (SELECT id FROM content.film_work)) AS known_film
          FROM ugc.ratings WHERE id NOT IN (SELECT id FROM public.known)
    """).fetchall()
    assert row == {"added": 25, "of_now": True, "known_viewer": True, "known_film": True}


def test_an_empty_cinema_gets_no_new_ratings(empty: Connection[DictRow]) -> None:
    assert cinema.add_ratings(empty, 5) == 0


@pytest.mark.parametrize("name", sorted(COLUMNS))
def test_every_query_runs_with_a_unique_key_and_the_columns_it_promises(filled: Connection[DictRow], name: str) -> None:
    pipeline = PIPELINES[name]
    assert pipeline["name"] == name
    rows = list(read(filled, name).values())
    assert rows
    assert [list(row) for row in rows] == [COLUMNS[name]] * len(rows)


@pytest.mark.parametrize("name", sorted(COLUMNS))
def test_every_query_runs_on_an_empty_cinema(empty: Connection[DictRow], name: str) -> None:
    assert read(empty, name) == {}


def test_every_sample_pipeline_has_a_test_here() -> None:
    assert sorted(PIPELINES) == sorted({*COLUMNS, *WITHOUT_A_QUERY})


def test_film_figures_equal_those_of_independent_subqueries(filled: Connection[DictRow]) -> None:
    expected = filled.execute("""
        SELECT f.id AS film_id, f.title, f.rating, f.type, f.creation_date,
               ARRAY(SELECT DISTINCT g.name FROM content.genre_film_work l, content.genre g
                      WHERE l.film_work_id = f.id AND g.id = l.genre_id ORDER BY 1) AS genres,
               ARRAY(SELECT DISTINCT p.full_name FROM content.person_film_work l, content.person p
                      WHERE l.film_work_id = f.id AND p.id = l.person_id AND l.role = 'director'
                      ORDER BY 1) AS directors,
               ARRAY(SELECT DISTINCT p.full_name FROM content.person_film_work l, content.person p
                      WHERE l.film_work_id = f.id AND p.id = l.person_id AND l.role = 'actor' ORDER BY 1) AS actors,
               (SELECT count(*) FROM content.genre_film_work l WHERE l.film_work_id = f.id) AS genre_count,
               (SELECT count(DISTINCT l.person_id) FROM content.person_film_work l
                 WHERE l.film_work_id = f.id) AS person_count
          FROM content.film_work f
    """).fetchall()
    assert read(filled, "film_dim_full") == {row["film_id"]: row for row in expected}


def test_a_film_without_genres_and_persons_has_empty_lists_and_zero_counts(empty: Connection[DictRow]) -> None:
    cinema.fill(empty, films=1, ratings=0)
    empty.execute("DELETE FROM content.genre_film_work")
    empty.execute("DELETE FROM content.person_film_work")
    (row,) = read(empty, "film_dim_full").values()
    assert [row[name] for name in COLUMNS["film_dim_full"][3:8]] == [[], [], [], 0, 0]


def test_genres_without_films_have_a_count_of_zero(empty: Connection[DictRow]) -> None:
    cinema.fill(empty, films=0, ratings=0)
    assert [row["film_count"] for row in read(empty, "genre_dim_full").values()] == [0] * 26


def test_viewer_figures_equal_those_of_independent_subqueries(filled: Connection[DictRow]) -> None:
    expected = filled.execute("""
        SELECT u.user_id,
               (SELECT count(*) FROM ugc.ratings r WHERE r.user_id = u.user_id) AS rating_count,
               (SELECT round(avg(rating), 2) FROM ugc.ratings r WHERE r.user_id = u.user_id) AS avg_score,
               (SELECT count(*) FROM ugc.likes l WHERE l.user_id = u.user_id) AS like_count,
               (SELECT count(*) FROM ugc.views v WHERE v.user_id = u.user_id) AS view_count,
               (SELECT coalesce(sum(seconds_watched), 0) FROM ugc.views v
                 WHERE v.user_id = u.user_id) AS seconds_watched,
               (SELECT g.name FROM ugc.ratings r, content.genre_film_work l, content.genre g
                 WHERE r.user_id = u.user_id AND l.film_work_id = r.film_id AND g.id = l.genre_id
                 GROUP BY g.id ORDER BY sum(r.rating) DESC, g.name LIMIT 1) AS favourite_genre,
               (SELECT max(modified)
                  FROM (SELECT user_id, modified FROM ugc.ratings UNION ALL SELECT user_id, modified FROM ugc.likes
                         UNION ALL SELECT user_id, modified FROM ugc.views) e
                 WHERE e.user_id = u.user_id) AS last_activity
          FROM (SELECT user_id FROM ugc.ratings UNION SELECT user_id FROM ugc.likes
                 UNION SELECT user_id FROM ugc.views) u
    """).fetchall()
    assert read(filled, "user_features") == {row["user_id"]: row for row in expected}
    figures = COLUMNS["audience_segments"]
    assert read(filled, "audience_segments") == {
        row["user_id"]: {name: row[name] for name in figures} for row in expected
    }


def test_viewers_with_changes_since_the_checkpoint_are_aggregated_over_all_their_rows(
    empty: Connection[DictRow],
) -> None:
    cinema.fill(empty, films=50, ratings=2000)
    everyone = read(empty, "user_features")
    viewer = next(iter(everyone))
    empty.execute(
        "INSERT INTO ugc.likes (id, user_id, film_id) SELECT gen_random_uuid(), %s, id FROM content.film_work LIMIT 1",
        [viewer],
    )
    touched = read(empty, "user_features", checkpoint="2026-01-02")
    assert list(touched) == [viewer]
    changed = {name for name in touched[viewer] if touched[viewer][name] != everyone[viewer][name]}
    assert changed == {"like_count", "last_activity"}
    assert touched[viewer]["like_count"] == everyone[viewer]["like_count"] + 1
