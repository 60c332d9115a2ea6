"""Integer cursors whose numbers are assigned long before they are inserted."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers.ratings import create_ratings
from tests.helpers.running import differences, run, succeed
from vitrine.definition.model import Definition
from vitrine.definition.pipeline import Pipeline
from vitrine.plan.validation import validate
from vitrine.postgres import Connection, connect, raw
from vitrine.settings import Settings
from vitrine.store import state

EVENTS = "SELECT id, note FROM ugc.events"
TABLE = "CREATE TABLE ugc.events (id {type} GENERATED ALWAYS AS IDENTITY (CACHE 10), note text, PRIMARY KEY (id))"


def create_table(connection: Connection, type_name: str = "bigint") -> None:
    connection.execute(raw(TABLE.format(type=type_name)))


def create_events(connection: Connection, settings: Settings, query: str = EVENTS, **options: Any) -> Pipeline:
    return create_ratings(
        connection,
        settings,
        source_query=query,
        target_table="analytics.events",
        incremental_key="id",
        batch_size=4,
        options={"horizon_margin": "0s"} | options,
    )


def insert(session: Connection) -> None:
    session.execute("INSERT INTO ugc.events (note) VALUES ('x')")


def events_are_right(connection: Connection) -> bool:
    return differences(connection, EVENTS, "analytics.events", "id") == []


@pytest.fixture
def other(database_url: str) -> Iterator[Connection]:
    """A second session of the application."""
    with connect(database_url, name="cinema") as opened:
        yield opened


@pytest.mark.promise("J19")
@pytest.mark.parametrize("type_name", ["smallint", "integer", "bigint"])
def test_a_number_that_a_session_has_cached_is_not_lost(
    connection: Connection, settings: Settings, other: Connection, type_name: str
) -> None:
    create_table(connection, type_name)
    events = create_events(connection, settings, cursor_disorder=20)
    insert(connection)  # 1; this session keeps 2 to 10
    for _ in range(3):
        insert(other)  # 11, 12, 13
        succeed(connection, settings, events)
    for _ in range(12):
        insert(connection)  # 2 to 10, then 21, 22, 23
        succeed(connection, settings, events)
        assert events_are_right(connection)


@pytest.mark.promise("J19")
def test_the_checkpoint_stays_the_disorder_behind_and_then_stands_still(
    connection: Connection, settings: Settings
) -> None:
    create_table(connection)
    connection.execute("INSERT INTO ugc.events (note) SELECT 'x' FROM generate_series(1, 50)")
    events = create_events(connection, settings, cursor_disorder=20)
    succeed(connection, settings, events)
    succeed(connection, settings, events)
    position = state.load_state(connection, events.id).position
    assert (position.cursor, position.pending_cursor) == (("30",), None)
    again = succeed(connection, settings, events)
    assert (again.counts.read, again.counts.written) == (21, 0)
    assert state.load_state(connection, events.id).position == position
    connection.execute("INSERT INTO ugc.events (note) SELECT 'x' FROM generate_series(1, 5)")
    succeed(connection, settings, events)
    succeed(connection, settings, events)
    assert state.load_state(connection, events.id).position.cursor == ("35",)
    assert events_are_right(connection)


@pytest.mark.promise("J19")
def test_an_open_transaction_holds_the_checkpoint_back_below_the_disorder_as_well(
    connection: Connection, settings: Settings, other: Connection
) -> None:
    create_table(connection)
    events = create_events(connection, settings, cursor_disorder=2)
    with other.transaction():
        insert(other)  # 1
        connection.execute("INSERT INTO ugc.events (note) SELECT 'x' FROM generate_series(1, 30)")
        succeed(connection, settings, events)
        succeed(connection, settings, events)
    succeed(connection, settings, events)
    assert events_are_right(connection)


@pytest.mark.promise("J19")
def test_a_disorder_without_an_integer_cursor_is_refused(connection: Connection, settings: Settings) -> None:
    refused = run(connection, settings, create_ratings(connection, settings, options={"cursor_disorder": 5})).error
    assert refused is not None
    assert (refused.code, "cursor_disorder" in str(refused)) == ("CURSOR_TYPE", True)


def warnings(settings: Settings, query: str, **options: Any) -> tuple[str, ...]:
    definition = {
        "name": "events",
        "source_query": query,
        "target_table": "analytics.events",
        "mode": "incremental",
        "incremental_key": "id",
        "incremental_id_key": "id",
        "key_columns": ["id"],
        "options": options,
    }
    return validate(Definition.model_validate(definition), settings).warnings


SERIAL = """
    CREATE TABLE ugc.events (id bigserial PRIMARY KEY, note text);
    ALTER SEQUENCE ugc.events_id_seq CACHE 10
"""
SHARED = """
    CREATE SEQUENCE ugc.numbers CACHE 10;
    CREATE TABLE ugc.events (id bigint PRIMARY KEY DEFAULT nextval('ugc.numbers'), note text)
"""
IDENTITY = TABLE.format(type="bigint")
PARTITION = """
    CREATE SEQUENCE ugc.numbers CACHE 10;
    CREATE TABLE ugc.events (id bigint PRIMARY KEY, note text) PARTITION BY RANGE (id);
    CREATE TABLE ugc.part PARTITION OF ugc.events DEFAULT;
    ALTER TABLE ugc.part ALTER id SET DEFAULT nextval('ugc.numbers')
"""
VIEW = f"{IDENTITY}; CREATE VIEW ugc.seen AS SELECT id AS id, note FROM ugc.events"
UNION = f"{IDENTITY}; CREATE TABLE ugc.archive (id bigint, note text)"


@pytest.mark.promise("J19")
@pytest.mark.parametrize(
    ("definition", "query", "sequence"),
    [
        (SERIAL, EVENTS, "ugc.events_id_seq"),
        (SHARED, EVENTS, "ugc.numbers"),
        (IDENTITY, EVENTS, "ugc.events_id_seq"),
        (IDENTITY, "SELECT max(id) AS id, note FROM ugc.events GROUP BY note", "ugc.events_id_seq"),
        (IDENTITY, "WITH e AS (SELECT id AS n, note FROM ugc.events) SELECT n AS id, note FROM e", "ugc.events_id_seq"),
        (PARTITION, EVENTS, "ugc.numbers"),
        (VIEW, "SELECT id, note FROM ugc.seen", "ugc.events_id_seq"),
        (UNION, "SELECT id, note FROM ugc.archive UNION ALL SELECT id, note FROM ugc.events", "ugc.events_id_seq"),
        (UNION, "SELECT id, note FROM ugc.events UNION ALL SELECT id, note FROM ugc.archive", "ugc.events_id_seq"),
    ],
    ids=["serial", "shared", "identity", "aggregate", "with", "partition", "view", "union", "union first"],
)
def test_validate_names_the_sequence_with_a_cache(
    connection: Connection, settings: Settings, definition: str, query: str, sequence: str
) -> None:
    connection.execute(raw(definition))
    named = [warning for warning in warnings(settings, query) if sequence in warning]
    assert len(named) == 1
    assert "CACHE 10" in named[0]
    assert "cursor_disorder" in named[0]
    assert not any("CACHE" in warning for warning in warnings(settings, query, cursor_disorder=10))


@pytest.mark.promise("J19")
def test_validate_does_not_name_the_sequence_of_another_column(connection: Connection, settings: Settings) -> None:
    connection.execute("CREATE TABLE ugc.events (id bigserial PRIMARY KEY, note text, other bigserial)")
    connection.execute("ALTER SEQUENCE ugc.events_other_seq CACHE 10")
    assert not any("CACHE" in warning for warning in warnings(settings, EVENTS))
