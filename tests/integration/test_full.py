"""Full loads: through staging, only the differences, never partly visible."""

import threading
from typing import Any

import pytest

from tests.helpers.running import allowing, create, differences, run, run_one_batch, succeed
from vitrine.core.protocols import Outcome
from vitrine.core.rows import Counts
from vitrine.definition.pipeline import Pipeline
from vitrine.operations import changes
from vitrine.postgres import Connection, raw
from vitrine.settings import Settings
from vitrine.store import pipelines, state

QUERY = "SELECT id, title, rating, creation_date FROM content.film_work"
TARGET = "analytics.films"


def create_films(connection: Connection, settings: Settings, **fields: Any) -> Pipeline:
    defaults: dict[str, Any] = {
        "source_query": QUERY,
        "target_table": TARGET,
        "key_columns": ["id"],
        "batch_size": 7,
    }
    return create(connection, settings, **defaults | fields)


@pytest.fixture
def films(connection: Connection, settings: Settings) -> Pipeline:
    return create_films(connection, settings)


def is_right(connection: Connection) -> bool:
    return differences(connection, QUERY, TARGET, "id") == []


def staging_tables(connection: Connection) -> list[str]:
    rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'etl' AND tablename LIKE 'stage%'")
    return [row["tablename"] for row in rows]


def test_a_missing_target_is_created_from_the_query_with_its_key(
    connection: Connection, settings: Settings, films: Pipeline
) -> None:
    executed = succeed(connection, settings, films)
    assert executed.counts.written == executed.counts.read == 60
    assert is_right(connection)
    key = (
        "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)"
    )
    row = connection.execute(f"{key} WHERE i.indrelid = 'analytics.films'::regclass AND i.indisprimary").fetchone()  # pyright: ignore[reportArgumentType]
    assert row == {"attname": "id"}
    assert staging_tables(connection) == []


def test_a_second_load_writes_exactly_the_difference(
    connection: Connection, settings: Settings, films: Pipeline
) -> None:
    succeed(connection, settings, films)
    connection.execute("DELETE FROM content.person_film_work; DELETE FROM content.genre_film_work")
    connection.execute(
        "DELETE FROM content.film_work WHERE id = (SELECT id FROM content.film_work ORDER BY id LIMIT 1)"
    )
    connection.execute(
        "UPDATE content.film_work SET title = 'Another' WHERE id = (SELECT max(id::text)::uuid FROM content.film_work)"
    )
    connection.execute(
        "INSERT INTO content.film_work SELECT gen_random_uuid(), 'New', '', NULL, 1, 'movie', now(), now()"
    )
    executed = succeed(connection, settings, films)
    assert (executed.counts.written, executed.counts.deleted) == (2, 1)
    assert is_right(connection)


@pytest.mark.promise("I5")
def test_views_indexes_and_defaults_of_the_target_stay(
    connection: Connection, settings: Settings, films: Pipeline
) -> None:
    connection.execute(
        "CREATE TABLE analytics.films (id uuid PRIMARY KEY, title text, rating double precision, creation_date date,"
        " note text DEFAULT 'mine')"
    )
    connection.execute("CREATE VIEW analytics.titles AS SELECT title FROM analytics.films")
    connection.execute("CREATE INDEX by_title ON analytics.films (title)")
    before = connection.execute("SELECT 'analytics.films'::regclass::oid AS oid").fetchone()
    succeed(connection, settings, films)
    assert connection.execute("SELECT 'analytics.films'::regclass::oid AS oid").fetchone() == before
    assert connection.execute("SELECT count(*) AS n FROM analytics.titles").fetchone() == {"n": 60}
    assert connection.execute("SELECT DISTINCT note FROM analytics.films").fetchall() == [{"note": "mine"}]
    assert is_right(connection)


@pytest.mark.promise("E9")
def test_a_column_that_the_query_does_not_return_is_not_overwritten(
    connection: Connection, settings: Settings, films: Pipeline
) -> None:
    succeed(connection, settings, films)
    connection.execute("ALTER TABLE analytics.films ADD note text; UPDATE analytics.films SET note = 'kept'")
    connection.execute("UPDATE content.film_work SET rating = 1.5")
    succeed(connection, settings, films)
    assert connection.execute("SELECT DISTINCT note FROM analytics.films").fetchall() == [{"note": "kept"}]
    assert is_right(connection)


def test_the_touch_column_changes_only_with_its_row(connection: Connection, settings: Settings) -> None:
    films = create_films(connection, settings, options={"touch_column": "updated_at"})
    succeed(connection, settings, films)
    connection.execute("UPDATE analytics.films SET updated_at = '2020-01-01'")
    changed = connection.execute("UPDATE content.film_work SET rating = 9 WHERE title LIKE 'Star Wars%'").rowcount
    succeed(connection, settings, films)
    rows = connection.execute("SELECT count(*) AS n FROM analytics.films WHERE updated_at > '2021-01-01'").fetchone()
    assert rows == {"n": changed}


@pytest.mark.promise("D5", "I1")
@pytest.mark.parametrize("batches", [0, 1, 4, 8])
def test_a_stopped_load_continues_where_it_stopped(
    connection: Connection, settings: Settings, films: Pipeline, batches: int
) -> None:
    stop = threading.Event()
    seen: list[int] = []

    def watch(counts: Counts, expected: int | None) -> None:
        seen.append(counts.read)
        if counts.read >= batches * 7:
            stop.set()

    first = run(connection, settings, films, watch=watch, stop=stop)
    assert first.outcome is Outcome.RELEASED
    assert connection.execute("SELECT to_regclass('analytics.films') AS t").fetchone() == {"t": None}
    second = succeed(connection, settings, films, resume=True)
    assert first.counts.read + second.counts.read == 60
    assert is_right(connection)
    assert staging_tables(connection) == []


@pytest.mark.promise("D5")
def test_a_pause_between_batches_leaves_the_mart_untouched_and_resume_continues(
    connection: Connection, settings: Settings, films: Pipeline
) -> None:
    def watch(counts: Counts, expected: int | None) -> None:
        if counts.read == 14 and expected is None:
            pipelines.request_pause(connection, films.id)

    executed = run(connection, settings, films, watch=watch)
    assert (executed.outcome, executed.counts.read) == (Outcome.PAUSED, 21)
    assert pipelines.get(connection, films.id).status == "PAUSED"
    assert connection.execute("SELECT to_regclass('analytics.films') AS t").fetchone() == {"t": None}
    assert succeed(connection, settings, films, resume=True).counts.read == 39
    assert is_right(connection)


@pytest.mark.promise("I1")
def test_another_query_does_not_continue_an_old_staging(
    connection: Connection, settings: Settings, films: Pipeline
) -> None:
    run_one_batch(connection, settings, films)
    assert len(staging_tables(connection)) == 1
    changed = QUERY.replace("title", "upper(title) AS title")
    connection.execute("UPDATE etl.etl_pipelines SET source_query = %s", [changed])
    executed = succeed(connection, settings, films)
    assert executed.counts.read == 60
    assert differences(connection, changed, TARGET, "id") == []
    assert staging_tables(connection) == []


@pytest.mark.promise("I1")
def test_another_key_does_not_continue_an_old_staging(connection: Connection, settings: Settings) -> None:
    numbers = create_films(
        connection,
        settings,
        source_query="SELECT n, -n AS m FROM (SELECT count(*) OVER (ORDER BY id) AS n FROM ugc.ratings) AS r",
        key_columns=["n"],
    )
    run_one_batch(connection, settings, numbers)
    pipelines.request_pause(connection, numbers.id)
    numbers = changes.change(connection, settings, numbers.id, {"key_columns": ["m"]})
    assert succeed(connection, settings, numbers).counts.read == 900
    assert connection.execute("SELECT count(*) AS n FROM analytics.films").fetchone() == {"n": 900}


def test_staged_rows_that_cannot_be_applied_are_read_again_after_the_source_is_corrected(
    connection: Connection, settings: Settings
) -> None:
    connection.execute("CREATE TABLE content.shelf (id integer, title text)")
    connection.execute("INSERT INTO content.shelf VALUES (1, 'a'), (2, 'b'), (2, 'c'), (3, 'd')")
    shelf = create_films(connection, settings, source_query="SELECT id, title FROM content.shelf", batch_size=100)
    failed = run(connection, settings, shelf).error
    assert failed is not None
    assert failed.code == "DUPLICATE_KEY"
    connection.execute("DELETE FROM content.shelf WHERE title = 'c'")
    succeed(connection, settings, shelf)
    assert differences(connection, "SELECT id, title FROM content.shelf", TARGET, "id") == []


@pytest.mark.promise("I5")
def test_a_new_target_gets_the_default_privileges_of_its_schema(
    connection: Connection, settings: Settings, films: Pipeline
) -> None:
    connection.execute("DROP ROLE IF EXISTS analyst")
    connection.execute("CREATE ROLE analyst")
    try:
        connection.execute("ALTER DEFAULT PRIVILEGES IN SCHEMA analytics GRANT SELECT ON TABLES TO analyst")
        succeed(connection, settings, films)
        row = connection.execute(
            "SELECT has_table_privilege('analyst', 'analytics.films', 'SELECT') AS reads,"
            " has_table_privilege('analyst', 'analytics.films', 'INSERT') AS writes"
        ).fetchone()
        assert row == {"reads": True, "writes": False}
    finally:
        connection.execute("DROP OWNED BY analyst")
        connection.execute("DROP ROLE analyst")


@pytest.mark.promise("I1")
def test_a_load_with_an_old_staging_starts_from_the_beginning(connection: Connection, settings: Settings) -> None:
    films = create_films(connection, settings, options={"max_staging_age": "1h"})
    run_one_batch(connection, settings, films)
    connection.execute("UPDATE etl.etl_state SET generation_started_at = now() - interval '2 hours'")
    assert succeed(connection, settings, films).counts.read == 60
    assert is_right(connection)


def test_a_load_whose_staging_was_dropped_starts_from_the_beginning(
    connection: Connection, settings: Settings, films: Pipeline
) -> None:
    run_one_batch(connection, settings, films)
    connection.execute(raw(f"DROP TABLE etl.{staging_tables(connection)[0]}"))
    assert succeed(connection, settings, films).counts.read == 60
    assert is_right(connection)


def test_a_staging_that_another_session_changed_is_not_applied(
    connection: Connection, settings: Settings, films: Pipeline
) -> None:
    run_one_batch(connection, settings, films)
    connection.execute(raw(f"DELETE FROM etl.{staging_tables(connection)[0]}"))
    failed = run(connection, settings, films).error
    assert failed is not None
    assert failed.code == "STAGING_MISMATCH"


@pytest.mark.promise("I6")
@pytest.mark.parametrize("share", [1.0, 0.6])
def test_a_source_that_shrinks_too_much_is_refused_and_can_be_allowed_once(
    connection: Connection, settings: Settings, films: Pipeline, share: float
) -> None:
    succeed(connection, settings, films)
    connection.execute("DELETE FROM content.person_film_work; DELETE FROM content.genre_film_work")
    connection.execute(
        "DELETE FROM content.film_work WHERE id IN (SELECT id FROM content.film_work ORDER BY id LIMIT %s)",
        [int(60 * share)],
    )
    failed = run(connection, settings, films).error
    assert failed is not None
    assert failed.code == "SHRINK_GUARD"
    assert connection.execute("SELECT count(*) AS n FROM analytics.films").fetchone() == {"n": 60}
    succeed(connection, settings, films, allow_shrink=True)
    assert is_right(connection)
    succeed(connection, settings, films)


@pytest.mark.promise("E6")
def test_a_repeated_key_fails_a_full_load_with_examples_and_changes_nothing(
    connection: Connection, settings: Settings
) -> None:
    films = create_films(
        connection,
        settings,
        batch_size=5000,
        source_query="SELECT f.id, f.title FROM content.film_work f"
        " JOIN content.genre_film_work g ON g.film_work_id = f.id",
    )
    failed = run(connection, settings, films).error
    assert failed is not None
    assert failed.code == "DUPLICATE_KEY"
    row = connection.execute(
        "SELECT film_work_id::text AS id FROM content.genre_film_work GROUP BY 1 HAVING count(*) > 1 ORDER BY 1"
    ).fetchall()
    assert any(found["id"] in str(failed) for found in row)
    assert connection.execute("SELECT to_regclass('analytics.films') AS t").fetchone() == {"t": None}


def test_a_key_that_contains_null_is_a_data_error_and_not_a_lost_row(
    connection: Connection, settings: Settings
) -> None:
    films = create_films(
        connection, settings, source_query="SELECT rating AS id, count(*) AS n FROM content.film_work GROUP BY rating"
    )
    connection.execute("UPDATE content.film_work SET rating = NULL WHERE title LIKE 'Star%'")
    failed = run(connection, settings, films).error
    assert failed is not None
    assert failed.code in ("NULL_CURSOR", "NULL_KEY")


def test_a_key_with_null_in_its_second_column_is_reported_when_its_batch_is_staged(
    connection: Connection, settings: Settings
) -> None:
    connection.execute(
        "UPDATE content.film_work SET rating = NULL WHERE title = (SELECT min(title) FROM content.film_work)"
    )
    pairs = create_films(
        connection,
        settings,
        source_query="SELECT title, rating, id FROM content.film_work",
        key_columns=["title", "rating"],
        options={"on_reject": "quarantine"},
    )
    failed = run(connection, settings, pairs).error
    assert failed is not None
    assert failed.code == "NULL_KEY"
    assert "NULL in the key (title, rating)" in str(failed)
    assert connection.execute("SELECT to_regclass('analytics.films') AS t").fetchone() == {"t": None}


def test_values_are_converted_by_assignment_casts(connection: Connection, settings: Settings, films: Pipeline) -> None:
    connection.execute(
        "CREATE TABLE analytics.films (id uuid PRIMARY KEY, title varchar(5), rating numeric(3,1), creation_date date)"
    )
    failed = run(connection, settings, films).error
    assert failed is not None  # a title is too long: it is never truncated silently
    assert failed.code == "DATA_ERROR"
    connection.execute("ALTER TABLE analytics.films ALTER title TYPE varchar(500)")
    pipelines_state = state.load_state(connection, films.id)
    assert pipelines_state.generation >= 1
    succeed(connection, settings, films)
    wanted = "SELECT id, title::varchar(500), rating::numeric(3,1), creation_date FROM content.film_work"
    assert differences(connection, wanted, TARGET, "id") == []


@pytest.mark.promise("E3")
def test_a_column_that_the_target_does_not_have_is_named(
    connection: Connection, settings: Settings, films: Pipeline
) -> None:
    connection.execute("CREATE TABLE analytics.films (id uuid PRIMARY KEY, title text)")
    failed = run(connection, settings, films).error
    assert failed is not None
    assert (failed.code, "'rating'" in str(failed)) == ("TARGET_SCHEMA", True)


@pytest.mark.promise("E5")
def test_a_key_without_a_unique_index_is_refused(connection: Connection, settings: Settings, films: Pipeline) -> None:
    connection.execute(
        "CREATE TABLE analytics.films (id uuid, title text, rating double precision, creation_date date)"
    )
    failed = run(connection, settings, films).error
    assert failed is not None
    assert failed.code == "KEY_NOT_UNIQUE"


@pytest.mark.promise("E7", "H4")
def test_a_failed_batch_does_not_show_row_values(connection: Connection, settings: Settings, films: Pipeline) -> None:
    connection.execute(
        "CREATE TABLE analytics.films (id uuid PRIMARY KEY, title text CHECK (title NOT LIKE 'S3CR3T%'),"
        " rating double precision, creation_date date)"
    )
    connection.execute("UPDATE content.film_work SET title = 'S3CR3T-4711' WHERE title LIKE 'Star Wars%'")
    failed = run(connection, settings, films).error
    assert failed is not None
    assert (failed.code, "S3CR3T" in str(failed)) == ("DATA_ERROR", False)
    stored = connection.execute("SELECT error_message FROM etl.etl_runs").fetchall()
    assert "S3CR3T" not in str(stored)


def test_generated_and_identity_columns_of_the_target_are_respected(connection: Connection, settings: Settings) -> None:
    connection.execute(
        "CREATE TABLE analytics.films (id uuid PRIMARY KEY, title text, shout text GENERATED ALWAYS AS (upper(title))"
        " STORED, number bigint GENERATED ALWAYS AS IDENTITY)"
    )
    films = create_films(connection, settings, source_query="SELECT id, title FROM content.film_work")
    succeed(connection, settings, films)
    row = connection.execute(
        "SELECT count(*) AS n, count(DISTINCT number) AS numbers FROM analytics.films WHERE shout = upper(title)"
    ).fetchone()
    assert row == {"n": 60, "numbers": 60}


def test_a_transform_runs_between_reading_and_writing(connection: Connection, settings: Settings) -> None:
    segments = create(
        connection,
        settings,
        target_table="analytics.segments",
        key_columns=["user_id"],
        batch_size=10,
        tasks=[
            {
                "order_index": 10,
                "task_type": "SQL",
                "body": "SELECT user_id, count(*) AS rating_count, round(avg(rating), 2) AS avg_score,"
                " 0::bigint AS like_count, 0::bigint AS view_count FROM ugc.ratings GROUP BY user_id",
            },
            {"order_index": 20, "task_type": "PYTHON", "body": "audience_segment"},
        ],
    )
    executed = succeed(connection, settings, segments)
    assert executed.counts.written == executed.counts.read > 10
    row = connection.execute(
        "SELECT count(*) AS n FROM analytics.segments WHERE segment IS NULL OR reason = ''"
    ).fetchone()
    assert row == {"n": 0}
    assert succeed(connection, settings, segments).counts.written == 0


@pytest.mark.promise("I7")
def test_rows_that_change_while_a_full_load_is_read_arrive_in_the_same_run(
    connection: Connection, settings: Settings
) -> None:
    query = "SELECT id, title, modified FROM content.film_work"
    films = create_films(connection, settings, source_query=query, incremental_key="modified")
    changed = "UPDATE content.film_work SET title = 'Renamed', modified = now() WHERE title LIKE 'Star Wars%'"

    def watch(counts: Counts, expected: int | None) -> None:
        if counts.read == 21 and expected is None:
            connection.execute(changed)

    succeed(connection, settings, films, watch=watch)
    row = connection.execute("SELECT count(*) AS n FROM analytics.films WHERE title = 'Renamed'").fetchone()
    assert row is not None
    assert row["n"] > 0
    assert differences(connection, query, TARGET, "id") == []


@pytest.mark.promise("I7")
def test_without_a_cursor_column_the_next_full_load_delivers_the_changes(
    connection: Connection, settings: Settings, films: Pipeline
) -> None:
    def watch(counts: Counts, expected: int | None) -> None:
        if counts.read == 21 and expected is None:
            connection.execute("UPDATE content.film_work SET title = 'Renamed'")

    succeed(connection, settings, films, watch=watch)
    assert not is_right(connection)
    succeed(connection, settings, films)
    assert is_right(connection)


@pytest.mark.promise("I7")
def test_a_catch_up_accepts_rows_without_a_cursor_time_and_a_key_of_several_columns(
    connection: Connection, settings: Settings
) -> None:
    connection.execute("ALTER TABLE content.film_work ALTER modified DROP NOT NULL")
    connection.execute("UPDATE content.film_work SET modified = NULL WHERE title LIKE 'Star Wars%'")
    films = create_films(
        connection,
        settings,
        source_query="SELECT id, title, modified FROM content.film_work",
        key_columns=["id", "title"],
        incremental_key="modified",
        batch_size=1,
    )
    succeed(connection, settings, films)
    assert differences(connection, "SELECT id, title, modified FROM content.film_work", TARGET, "id") == []


@pytest.mark.parametrize(
    ("own", "source", "seen"),
    [
        ("4MB", "content.film_work", "16MB"),
        ("64MB", "content.film_work", "64MB"),
        # for anything but a table, more memory may lead the planner to a slower plan
        ("4MB", "(SELECT DISTINCT id FROM content.film_work) AS f", "4MB"),
    ],
)
def test_work_mem_is_raised_for_the_sort_of_a_table_and_for_no_other_query(
    connection: Connection, settings: Settings, own: str, source: str, seen: str
) -> None:
    settings = allowing(settings, "content.memory")
    connection.execute(
        raw(f"CREATE VIEW content.memory AS SELECT id, current_setting('work_mem') AS memory FROM {source}")
    )
    connection.execute(raw(f"ALTER DATABASE {connection.info.dbname} SET work_mem = '{own}'"))
    films = create_films(connection, settings, source_query="SELECT id, memory FROM content.memory")
    succeed(connection, settings, films)
    assert connection.execute("SELECT DISTINCT memory FROM analytics.films").fetchall() == [{"memory": seen}]
