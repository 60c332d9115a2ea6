"""Writers that the horizon counts, and sources whose writers it cannot see."""

from collections.abc import Iterator

import pytest

from tests.helpers.events import create_events, fill_events
from tests.helpers.ratings import create_ratings, is_right, rate
from tests.helpers.running import allowing, run, succeed
from vitrine.connectors.postgres.source import watermark
from vitrine.definition.model import Definition
from vitrine.errors import ConfigError
from vitrine.plan.validation import validate
from vitrine.postgres import Connection, connect, raw
from vitrine.settings import Settings

ADD = """
    INSERT INTO ugc.ratings (id, user_id, film_id, rating, created, modified)
    SELECT gen_random_uuid(), user_id, film_id, 9, now(), now() FROM ugc.ratings LIMIT 1
"""
BY_PUBLIC = f"CREATE FUNCTION content.add() RETURNS void LANGUAGE sql SECURITY DEFINER AS '{ADD}'"
BY_GROUP = f"""
    {BY_PUBLIC};
    REVOKE EXECUTE ON FUNCTION content.add() FROM PUBLIC;
    GRANT EXECUTE ON FUNCTION content.add() TO desk
"""
PROCEDURE = f"CREATE PROCEDURE content.add() LANGUAGE sql SECURITY DEFINER AS '{ADD}'"
TRIGGER = f"""
    CREATE FUNCTION content.added() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    AS 'BEGIN {ADD}; RETURN NEW; END'
"""
EVENT_TRIGGER = f"""
    CREATE FUNCTION content.noted() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER AS 'BEGIN {ADD}; END';
    REVOKE EXECUTE ON FUNCTION content.noted() FROM PUBLIC;
    CREATE EVENT TRIGGER noted ON ddl_command_end WHEN TAG IN ('CREATE VIEW') EXECUTE FUNCTION content.noted()
"""
BY_TEMPORARY_TABLE = """
    CREATE TEMPORARY TABLE note (n integer);
    CREATE TRIGGER added BEFORE INSERT ON note FOR EACH ROW EXECUTE FUNCTION content.added();
    INSERT INTO note VALUES (1)
"""
writes_without_a_right_on_the_table = pytest.mark.parametrize(
    ("definition", "use"),
    [
        (BY_PUBLIC, "SELECT content.add()"),
        (BY_GROUP, "SET ROLE desk; SELECT content.add()"),
        (PROCEDURE, "CALL content.add()"),
        (TRIGGER, BY_TEMPORARY_TABLE),
        (EVENT_TRIGGER, "CREATE TEMPORARY VIEW note AS SELECT 1 AS n"),
    ],
    ids=["function of PUBLIC", "function of a group", "procedure", "trigger of a temporary table", "event trigger"],
)


@pytest.fixture
def clerk(connection: Connection, database_url: str) -> Iterator[Connection]:
    """A session of a role without any right to write to a table; it may take the role `desk`."""
    connection.execute("DROP ROLE IF EXISTS clerk, desk")
    connection.execute("CREATE ROLE desk")
    connection.execute("CREATE ROLE clerk LOGIN NOINHERIT IN ROLE desk")
    connection.execute("GRANT USAGE ON SCHEMA content TO clerk, desk")
    try:
        with connect(database_url.replace("postgres@", "clerk@"), name="clerk") as opened:
            yield opened
    finally:
        connection.execute("DROP OWNED BY clerk, desk CASCADE")
        connection.execute("DROP ROLE clerk, desk")


@pytest.mark.promise("J6")
@writes_without_a_right_on_the_table
def test_a_role_that_can_write_through_a_security_definer_function_holds_the_checkpoint_back(
    connection: Connection, settings: Settings, clerk: Connection, definition: str, use: str
) -> None:
    connection.execute(raw(definition))
    ratings = create_ratings(connection, settings, options={"horizon_margin": "0s"})
    with clerk.transaction():
        clerk.execute("SELECT now()")
        rate(connection, "clock_timestamp()")
        succeed(connection, settings, ratings)
        clerk.execute(raw(use))
    succeed(connection, settings, ratings)
    assert is_right(connection)


@pytest.mark.promise("J6")
def test_a_role_that_can_execute_no_such_function_does_not_hold_the_checkpoint_back(
    connection: Connection, clerk: Connection
) -> None:
    connection.execute(raw(BY_PUBLIC + "; REVOKE EXECUTE ON FUNCTION content.add() FROM PUBLIC"))
    with clerk.transaction():
        clerk.execute("SELECT now()")
        assert watermark.read_horizon(connection).blocker is None


@pytest.mark.promise("J6")
def test_the_owner_of_a_table_is_counted_even_without_a_right_to_write(
    connection: Connection, settings: Settings, clerk: Connection
) -> None:  # it can restore the right in the same transaction
    connection.execute("ALTER TABLE ugc.ratings OWNER TO clerk; REVOKE ALL ON ugc.ratings FROM clerk")
    connection.execute("GRANT USAGE ON SCHEMA ugc TO clerk")
    ratings = create_ratings(connection, settings, options={"horizon_margin": "0s"})
    try:
        with clerk.transaction():
            clerk.execute("SELECT now()")
            rate(connection, "clock_timestamp()")
            succeed(connection, settings, ratings)
            clerk.execute("GRANT ALL ON ugc.ratings TO clerk")
            rate(clerk)
        succeed(connection, settings, ratings)
        assert is_right(connection)
    finally:
        connection.execute("ALTER TABLE ugc.ratings OWNER TO CURRENT_USER")


@pytest.mark.promise("J6")
def test_a_session_whose_role_was_dropped_is_counted(connection: Connection, database_url: str) -> None:
    connection.execute("CREATE ROLE temp_clerk LOGIN")
    with connect(database_url.replace("postgres@", "temp_clerk@"), name="clerk") as session, session.transaction():
        session.execute("SELECT now()")
        assert watermark.read_horizon(connection).blocker is None
        connection.execute("DROP ROLE temp_clerk")
        assert watermark.read_horizon(connection).blocker is not None


FOREIGN_SERVER = "CREATE FOREIGN DATA WRAPPER branches; CREATE SERVER branch FOREIGN DATA WRAPPER branches"
FOREIGN = "(id integer, note text, modified timestamptz) SERVER branch"
FOREIGN_TABLE = f"CREATE FOREIGN TABLE ugc.remote {FOREIGN}"
UNION_VIEW = "CREATE VIEW ugc.everything AS TABLE ugc.events UNION ALL TABLE ugc.remote"
FOREIGN_PARTITION = """
    CREATE TABLE ugc.parted (id integer, note text, modified timestamptz) PARTITION BY RANGE (modified);
    CREATE TABLE ugc.local PARTITION OF ugc.parted FOR VALUES FROM ('2024-01-01') TO ('2030-01-01');
    CREATE FOREIGN TABLE ugc.remote PARTITION OF ugc.parted DEFAULT SERVER branch
"""
ATOMIC_FUNCTION = """
    CREATE FUNCTION ugc.remote_notes() RETURNS bigint BEGIN ATOMIC SELECT count(*) FROM ugc.remote; END;
    CREATE VIEW ugc.noted AS SELECT e.id, e.note, e.modified, ugc.remote_notes() AS notes FROM ugc.events AS e
"""
outside_the_database = pytest.mark.parametrize(
    ("definition", "relation", "named"),
    [
        (FOREIGN_TABLE, "remote", "foreign table ugc.remote"),
        (f"{FOREIGN_TABLE}; {UNION_VIEW}", "everything", "foreign table ugc.remote"),
        (f"{FOREIGN_TABLE}; {UNION_VIEW}; CREATE VIEW ugc.top AS TABLE ugc.everything", "top", "ugc.remote"),
        (FOREIGN_PARTITION, "parted", "foreign table ugc.remote"),
        (
            "CREATE FOREIGN TABLE ugc.remote () INHERITS (ugc.events) SERVER branch",
            "events",
            "foreign table ugc.remote",
        ),
        (f"{FOREIGN_TABLE}; {ATOMIC_FUNCTION}", "noted", "foreign table ugc.remote"),
        ("CREATE MATERIALIZED VIEW ugc.kept AS TABLE ugc.events", "kept", "materialized view ugc.kept"),
        (
            'CREATE MATERIALIZED VIEW ugc.kept AS TABLE ugc.events; CREATE VIEW ugc."Odd ""name" AS TABLE ugc.kept',
            '"Odd ""name"',
            "materialized view ugc.kept",
        ),
    ],
    ids=["foreign", "view", "view of a view", "partition", "child", "function", "materialized", "view of it"],
)


@pytest.mark.promise("J6")
@outside_the_database
def test_rows_that_no_session_of_the_database_writes_need_a_lookback(
    connection: Connection, settings: Settings, definition: str, relation: str, named: str
) -> None:
    fill_events(connection, 5)
    connection.execute(raw(f"{FOREIGN_SERVER}; {definition}"))
    settings = allowing(settings, "ugc.remote")
    query = f"SELECT id, note, modified FROM ugc.{relation} WHERE modified >= $1"
    events = create_events(connection, settings, "incremental", source_query=query)
    refused = run(connection, settings, events).error
    assert refused is not None
    assert refused.code == "HORIZON_UNAVAILABLE"
    assert named in str(refused)
    assert "options.lookback" in str(refused)


@pytest.mark.promise("J6")
def test_a_materialized_view_is_read_with_a_lookback(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 5)
    connection.execute("CREATE MATERIALIZED VIEW ugc.kept AS TABLE ugc.events")
    query = "SELECT id, note, modified FROM ugc.kept"
    kept = create_events(connection, settings, "incremental", source_query=query, options={"lookback": "1d"})
    assert succeed(connection, settings, kept).counts.written == 5


@pytest.mark.promise("J6")
def test_validate_names_the_relation_that_makes_the_run_fail(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 5)
    connection.execute("CREATE MATERIALIZED VIEW ugc.kept AS TABLE ugc.events")
    definition = Definition.model_validate(
        {
            "name": "kept",
            "source_query": "SELECT id, note, modified FROM ugc.kept",
            "target_table": "analytics.kept",
            "mode": "incremental",
            "incremental_key": "modified",
            "incremental_id_key": "id",
            "key_columns": ["id"],
        }
    )
    with pytest.raises(ConfigError, match=r"materialized view ugc\.kept"):
        validate(definition, settings)


@pytest.mark.promise("J6")
def test_a_disabled_subscription_may_be_enabled_later(connection: Connection) -> None:
    with connection.transaction(force_rollback=True):
        connection.execute("CREATE SUBSCRIPTION elsewhere CONNECTION '' PUBLICATION films WITH (connect = false)")
        with pytest.raises(ConfigError, match="logical subscription elsewhere") as refused:
            watermark.read_horizon(connection)
        assert refused.value.code == "HORIZON_UNAVAILABLE"
