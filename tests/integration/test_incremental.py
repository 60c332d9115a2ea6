"""Incremental loads: no committed row is lost, whenever it commits."""

from collections.abc import Iterator

import pytest
from pydantic import SecretStr

from tests.helpers.ratings import QUERY, TARGET, create_ratings, is_right, rate
from tests.helpers.running import differences, run, succeed
from vitrine.definition.pipeline import Pipeline
from vitrine.postgres import Connection, connect
from vitrine.settings import Settings
from vitrine.store import state


@pytest.fixture
def ratings(connection: Connection, settings: Settings) -> Pipeline:
    return create_ratings(connection, settings)


@pytest.fixture
def writer(database_url: str) -> Iterator[Connection]:
    """A session of the application, with its own transactions."""
    with connect(database_url, name="cinema") as opened:
        yield opened


def test_the_first_run_delivers_everything_and_the_second_writes_nothing(
    connection: Connection, settings: Settings, ratings: Pipeline
) -> None:
    first = succeed(connection, settings, ratings)
    assert first.counts.written == first.counts.read > 0
    assert is_right(connection)
    second = succeed(connection, settings, ratings)
    assert second.counts.written == 0


@pytest.mark.promise("C23")
def test_an_empty_delta_is_a_success_that_does_not_move_the_checkpoint(
    connection: Connection, settings: Settings, ratings: Pipeline
) -> None:
    succeed(connection, settings, ratings)
    before = state.load_state(connection, ratings.id).position
    executed = succeed(connection, settings, ratings)
    assert (executed.counts.read, state.load_state(connection, ratings.id).position) == (0, before)


@pytest.mark.promise("C23")
def test_an_empty_source_creates_an_empty_mart(connection: Connection, settings: Settings, ratings: Pipeline) -> None:
    connection.execute("TRUNCATE ugc.ratings")
    assert succeed(connection, settings, ratings).counts.read == 0
    assert is_right(connection)


in_the_first_run_and_later = pytest.mark.parametrize("later", [False, True], ids=["first load", "changes"])


@pytest.mark.promise("C1")
@in_the_first_run_and_later
def test_a_row_that_commits_late_with_an_older_time_is_not_lost(
    connection: Connection, settings: Settings, ratings: Pipeline, writer: Connection, later: bool
) -> None:
    if later:
        succeed(connection, settings, ratings)
    with writer.transaction():
        rate(writer)
        rate(connection, "clock_timestamp()")
        succeed(connection, settings, ratings)
        assert connection.execute("SELECT count(*) AS n FROM analytics.ratings").fetchone() == {"n": 901}
    succeed(connection, settings, ratings)
    assert is_right(connection)


@pytest.mark.promise("C2")
def test_a_transaction_that_has_not_written_yet_holds_the_checkpoint_back(
    connection: Connection, settings: Settings, writer: Connection
) -> None:  # no transaction id yet when the run reads
    ratings = create_ratings(connection, settings, options={"horizon_margin": "0s"})
    with writer.transaction():
        writer.execute("SELECT now()")
        rate(connection, "clock_timestamp()")
        succeed(connection, settings, ratings)
        succeed(connection, settings, ratings)
        rate(writer)
    succeed(connection, settings, ratings)
    assert is_right(connection)


@pytest.mark.promise("C3")
def test_rows_arrive_at_once_while_a_transaction_stays_open(
    connection: Connection, settings: Settings, writer: Connection
) -> None:
    ratings = create_ratings(connection, settings, options={"horizon_margin": "0s"})
    with writer.transaction():
        writer.execute("SELECT now()")
        for _ in range(3):
            rate(connection, "clock_timestamp()", count=5)
            assert succeed(connection, settings, ratings).counts.written >= 5
            assert is_right(connection)
        standing = state.load_state(connection, ratings.id).position
        again = succeed(connection, settings, ratings)
        assert (again.counts.read > 0, again.counts.written) == (True, 0)
        assert state.load_state(connection, ratings.id).position == standing
    succeed(connection, settings, ratings)
    assert state.load_state(connection, ratings.id).position != standing


@pytest.mark.promise("C4")
def test_a_prepared_transaction_holds_the_checkpoint_back_until_it_ends(
    connection: Connection, settings: Settings, writer: Connection
) -> None:
    ratings = create_ratings(connection, settings, options={"horizon_margin": "0s"})
    writer.execute("BEGIN")
    rate(writer)
    writer.execute("PREPARE TRANSACTION 'premiere'")
    rate(connection, "clock_timestamp()")
    succeed(connection, settings, ratings)
    assert state.load_state(connection, ratings.id).position.cursor is None
    writer.execute("COMMIT PREPARED 'premiere'")
    succeed(connection, settings, ratings)
    assert is_right(connection)


@pytest.mark.promise("C5")
def test_the_horizon_is_unavailable_with_hidden_sessions_unless_a_lookback_is_set(
    connection: Connection, settings: Settings, writer: Connection, database_url: str
) -> None:
    connection.execute("DROP ROLE IF EXISTS blind")
    connection.execute("CREATE ROLE blind LOGIN")
    try:
        connection.execute("GRANT USAGE ON SCHEMA content, ugc TO blind")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA content, ugc TO blind")
        blind_url = database_url.replace("postgres@", "blind@")
        assert blind_url != database_url
        own = settings.model_copy(update={"sources": {"default": SecretStr(blind_url)}})
        ratings = create_ratings(connection, own)
        refused = run(connection, own, ratings).error
        assert refused is not None
        assert refused.code == "HORIZON_UNAVAILABLE"
        assert "GRANT pg_read_all_stats TO blind" in str(refused)
        patient = create_ratings(
            connection, own, name="patient", target_table="analytics.patient", options={"lookback": "1h"}
        )
        succeed(connection, own, patient)
        assert differences(connection, QUERY, "analytics.patient", "id") == []
    finally:
        connection.execute("DROP OWNED BY blind")
        connection.execute("DROP ROLE blind")


@pytest.mark.promise("C5")
def test_the_horizon_is_unavailable_with_a_session_that_has_track_activities_off(
    connection: Connection, settings: Settings, writer: Connection
) -> None:
    writer.execute("SET track_activities = off")
    refused = run(connection, settings, create_ratings(connection, settings)).error
    assert refused is not None
    assert refused.code == "HORIZON_UNAVAILABLE"
    assert "track_activities" in str(refused)


@pytest.mark.promise("C7")
def test_rows_with_equal_times_across_a_batch_boundary_are_all_read_once(
    connection: Connection, settings: Settings
) -> None:
    ratings = create_ratings(connection, settings, batch_size=3)
    connection.execute("DELETE FROM ugc.ratings WHERE id NOT IN (SELECT id FROM ugc.ratings LIMIT 10)")
    connection.execute("UPDATE ugc.ratings SET modified = '2024-05-05 05:05:05.000005+00'")
    executed = succeed(connection, settings, ratings)
    assert (executed.counts.read, executed.batches) == (10, 4)
    assert is_right(connection)
    assert succeed(connection, settings, ratings).counts.read == 0


@pytest.mark.promise("C9")
def test_rows_without_a_cursor_time_fail_the_run_with_their_number(
    connection: Connection, settings: Settings, ratings: Pipeline
) -> None:
    connection.execute("ALTER TABLE ugc.ratings ALTER modified DROP NOT NULL")
    rate(connection, "NULL", count=2)
    failed = run(connection, settings, ratings).error
    assert failed is not None
    assert (failed.code, str(failed).startswith("2 row(s)")) == ("NULL_CURSOR", True)


@pytest.mark.promise("C9")
def test_rows_without_a_cursor_time_can_be_ignored(connection: Connection, settings: Settings) -> None:
    connection.execute("ALTER TABLE ugc.ratings ALTER modified DROP NOT NULL")
    rate(connection, "NULL")
    ratings = create_ratings(connection, settings, options={"on_null_cursor": "ignore"})
    succeed(connection, settings, ratings)
    assert differences(connection, QUERY + " WHERE modified IS NOT NULL", TARGET, "id") == []


@pytest.mark.promise("C10")
def test_a_repeated_cursor_is_a_data_error_and_not_a_lost_row(connection: Connection, settings: Settings) -> None:
    connection.execute("CREATE TABLE analytics.ratings (id uuid PRIMARY KEY, rating smallint, modified timestamptz)")
    twice = create_ratings(
        connection,
        settings,
        batch_size=1,
        source_query="SELECT r.id, r.rating, r.modified FROM ugc.ratings r, (VALUES (1), (2)) AS twice(n)",
    )
    failed = run(connection, settings, twice).error
    assert failed is not None
    assert failed.code == "DUPLICATE_KEY"


@pytest.mark.promise("C11")
@in_the_first_run_and_later
def test_a_row_with_a_future_time_is_delivered_and_does_not_move_the_checkpoint_beyond_the_horizon(
    connection: Connection, settings: Settings, ratings: Pipeline, later: bool
) -> None:
    if later:
        succeed(connection, settings, ratings)
    rate(connection, "'2099-01-01'")
    succeed(connection, settings, ratings)
    assert is_right(connection)
    rate(connection)
    succeed(connection, settings, ratings)
    assert is_right(connection)


@pytest.mark.promise("C11")
def test_a_row_with_an_infinite_time_is_delivered_too(
    connection: Connection, settings: Settings, ratings: Pipeline
) -> None:
    rate(connection, "'infinity'")
    succeed(connection, settings, ratings)
    rate(connection)
    succeed(connection, settings, ratings)
    assert is_right(connection)


@pytest.mark.promise("C14")
def test_the_margin_covers_an_application_clock_that_is_behind(
    connection: Connection, settings: Settings, ratings: Pipeline
) -> None:
    rate(connection)
    succeed(connection, settings, ratings)
    rate(connection, "now() - interval '3 seconds'")
    succeed(connection, settings, ratings)
    assert is_right(connection)


@pytest.mark.promise("C22")
def test_an_integer_cursor_does_not_skip_a_number_that_commits_late(
    connection: Connection, settings: Settings, writer: Connection
) -> None:
    connection.execute("CREATE TABLE ugc.events (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text)")
    connection.execute("INSERT INTO ugc.events (note) SELECT n::text FROM generate_series(1, 10) n")
    events = create_ratings(
        connection,
        settings,
        source_query="SELECT id, note FROM ugc.events",
        target_table="analytics.events",
        incremental_key="id",
        batch_size=4,
        options={"horizon_margin": "0s"},
    )
    note = "INSERT INTO ugc.events (note) VALUES ('x')"

    def right() -> bool:
        return differences(connection, "SELECT id, note FROM ugc.events", "analytics.events", "id") == []

    with writer.transaction():
        writer.execute(note)  # a lower number, not visible yet
        connection.execute(note)
        for _ in range(3):
            succeed(connection, settings, events)
            assert right()
    succeed(connection, settings, events)
    assert right()
    succeed(connection, settings, events)
    position = state.load_state(connection, events.id).position
    assert (position.cursor, position.pending_cursor) == (("12", "12"), None)
    assert succeed(connection, settings, events).counts.read == 0


@pytest.mark.promise("C22")
def test_the_checkpoint_waits_for_a_transaction_that_began_between_horizon_and_snapshot(
    connection: Connection, settings: Settings, writer: Connection
) -> None:  # it draws a lower number than one that the snapshot sees
    connection.execute("CREATE TABLE ugc.events (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY)")
    events = create_ratings(
        connection,
        settings,
        source_query="SELECT id FROM ugc.events",
        target_table="analytics.events",
        incremental_key="id",
        options={"horizon_margin": "0s"},
    )
    insert = "INSERT INTO ugc.events DEFAULT VALUES"
    with writer.transaction():
        writer.execute(insert)
        connection.execute(insert)
        succeed(connection, settings, events)
        succeed(connection, settings, events)
    succeed(connection, settings, events)
    assert differences(connection, "SELECT id FROM ugc.events", "analytics.events", "id") == []


def test_a_cursor_that_does_not_grow_with_time_is_refused(connection: Connection, settings: Settings) -> None:
    ratings = create_ratings(connection, settings, incremental_key="id")
    failed = run(connection, settings, ratings).error
    assert failed is not None
    assert failed.code == "CURSOR_TYPE"


@pytest.mark.promise("C16")
def test_the_checkpoint_keeps_microseconds(connection: Connection, settings: Settings, ratings: Pipeline) -> None:
    connection.execute("UPDATE ugc.ratings SET modified = '2024-01-01 00:00:00.000001+00'")
    rate(connection, "'2024-01-01 00:00:00.000003+00'")
    succeed(connection, settings, ratings)
    cursor = state.load_state(connection, ratings.id).position.cursor
    assert cursor is not None
    assert cursor[0] == "2024-01-01 00:00:00.000003+00"


@pytest.mark.promise("C17")
def test_a_text_tie_breaker_is_ordered_as_its_column_is(connection: Connection, settings: Settings) -> None:
    connection.execute('CREATE TABLE ugc.named (name text COLLATE "ucs_basic" PRIMARY KEY, modified timestamptz)')
    names = ["ähre", "Zebra", "apfel", "Apfel", "zebra", "Ähre", "apfel pie", "éclair", "E", "e"]
    for name in names:
        connection.execute("INSERT INTO ugc.named VALUES (%s, '2024-01-01')", [name])
    named = create_ratings(
        connection,
        settings,
        source_query="SELECT name, modified FROM ugc.named",
        target_table="analytics.named",
        incremental_id_key="name",
        key_columns=["name"],
        batch_size=1,
    )
    executed = succeed(connection, settings, named)
    assert executed.counts.read == len(names)
    assert differences(connection, "SELECT name, modified FROM ugc.named", "analytics.named", "name") == []


@pytest.mark.promise("C18")
def test_another_cursor_type_under_an_old_checkpoint_fails(
    connection: Connection, settings: Settings, ratings: Pipeline
) -> None:
    succeed(connection, settings, ratings)
    connection.execute("ALTER TABLE ugc.ratings ALTER modified TYPE timestamp USING modified AT TIME ZONE 'UTC'")
    failed = run(connection, settings, ratings).error
    assert failed is not None
    assert failed.code == "SCHEMA_CHANGED"
    connection.execute("UPDATE etl.etl_state SET sink_facts = '{}'")  # an earlier version did not record the columns
    failed = run(connection, settings, ratings).error
    assert failed is not None
    assert failed.code == "STATE_MISMATCH"


@pytest.mark.promise("C19")
def test_a_query_that_no_longer_returns_its_cursor_column_fails_before_writing(
    connection: Connection, settings: Settings
) -> None:
    connection.execute("CREATE VIEW ugc.seen AS SELECT id, rating, modified FROM ugc.ratings")
    seen = create_ratings(connection, settings, source_query="SELECT * FROM ugc.seen")
    succeed(connection, settings, seen)
    connection.execute("DROP VIEW ugc.seen")
    connection.execute("CREATE VIEW ugc.seen AS SELECT rating, id FROM ugc.ratings")
    failed = run(connection, settings, seen).error
    assert failed is not None
    assert failed.code == "SCHEMA_CHANGED"


@pytest.mark.promise("C19")
def test_the_order_of_columns_has_no_effect(connection: Connection, settings: Settings, ratings: Pipeline) -> None:
    connection.execute("CREATE TABLE analytics.ratings (modified timestamptz, id uuid PRIMARY KEY, rating smallint)")
    succeed(connection, settings, ratings)
    assert is_right(connection)


def test_a_new_event_refreshes_the_row_of_its_user_only(connection: Connection, settings: Settings) -> None:
    features = create_ratings(
        connection,
        settings,
        source_query="SELECT r.user_id, count(*) AS ratings, max(r.modified) AS last_activity FROM ugc.ratings r"
        " WHERE r.user_id IN (SELECT t.user_id FROM ugc.ratings t WHERE t.modified >= $1) GROUP BY r.user_id",
        target_table="analytics.features",
        incremental_key="last_activity",
        incremental_id_key="user_id",
        key_columns=["user_id"],
    )
    succeed(connection, settings, features)
    rate(connection)
    executed = succeed(connection, settings, features)
    assert (executed.counts.read, executed.counts.written) == (1, 1)
    expected = "SELECT user_id, count(*) AS ratings, max(modified) AS last_activity FROM ugc.ratings GROUP BY user_id"
    assert differences(connection, expected, "analytics.features", "user_id") == []


@pytest.mark.promise("E9")
def test_unchanged_rows_are_neither_written_nor_locked(
    connection: Connection, settings: Settings, ratings: Pipeline
) -> None:
    rate(connection, count=5)
    succeed(connection, settings, ratings)
    versions = "SELECT id, xmin::text, xmax::text FROM analytics.ratings ORDER BY id"
    before = connection.execute(versions).fetchall()
    again = succeed(connection, settings, ratings)
    assert (again.counts.read > 0, again.counts.written) == (True, 0)
    assert connection.execute(versions).fetchall() == before


@pytest.mark.promise("E4")
def test_a_target_that_was_renamed_under_a_checkpoint_is_not_rebuilt_from_new_rows_only(
    connection: Connection, settings: Settings, ratings: Pipeline
) -> None:
    succeed(connection, settings, ratings)
    before = state.load_state(connection, ratings.id).position
    connection.execute("ALTER TABLE analytics.ratings RENAME TO ratings_moved")
    rate(connection)
    failed = run(connection, settings, ratings).error
    assert failed is not None
    assert failed.code == "TARGET_SCHEMA"
    assert state.load_state(connection, ratings.id).position == before
    connection.execute("ALTER TABLE analytics.ratings_moved RENAME TO ratings")
    succeed(connection, settings, ratings)
    assert is_right(connection)
