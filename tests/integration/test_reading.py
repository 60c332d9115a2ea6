"""What a run reads equals what the query returns, whatever the encoding, the types, the collations and the settings."""

from collections.abc import Generator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.helpers.databases import database, set_for_database
from tests.helpers.lanes import TASKS, Lane
from tests.helpers.running import create, differences, once_read, run, run_one_batch, succeed
from tests.helpers.types import create_caseless
from vitrine import postgres
from vitrine.compare.reconcile import compare
from vitrine.connectors.postgres import PostgresSettings, PostgresSourceOptions
from vitrine.connectors.postgres.source import source
from vitrine.connectors.postgres.source.query import OrderedQuery, SourceQuery
from vitrine.connectors.postgres.source.relations import Relations
from vitrine.connectors.postgres.source.session import SourceConnections
from vitrine.core.protocols import Throttle
from vitrine.core.rows import Lane as FlowLane
from vitrine.core.rows import Read
from vitrine.definition.pipeline import Pipeline
from vitrine.embedded import EmbeddedPostgres
from vitrine.plan import planner
from vitrine.plan.validation import validate
from vitrine.postgres import Connection, connect
from vitrine.settings import Settings
from vitrine.sql import policy
from vitrine.store.migrate import migrate

LANES: tuple[Lane, ...] = ("copy", "rows seen", "frames")
REOPENED = {"snapshot_max_age": "0s"}


def keyed(connection: Connection, settings: Settings, **fields: Any) -> Pipeline:
    """A full pipeline over content.keyed that opens a new snapshot for every row."""
    defaults: dict[str, Any] = {
        "source_query": "SELECT * FROM content.keyed",
        "target_table": "analytics.keyed",
        "key_columns": ["k"],
        "batch_size": 1,
        "options": REOPENED,
    }
    return create(connection, settings, **{**defaults, **fields})


def ordered(pipeline: Pipeline, settings: Settings, *order: str) -> OrderedQuery:
    """The query of a pipeline in this order, as a read of changes uses it."""
    definition = pipeline.definition
    assert definition.query is not None
    connections = SourceConnections(settings.store_url, "tests", PostgresSettings())
    checked = policy.read_only(definition.query, ("content",))
    relations = Relations(checked, PostgresSettings(), PostgresSourceOptions())
    query = SourceQuery(checked, relations, connections, None)
    try:
        return OrderedQuery(query, Read(FlowLane.COPY, order))
    finally:
        connections.close()


def texts(connection: Connection, query: str) -> list[str]:
    return [row["text"] for row in connection.execute(query.encode())]


# -- encodings --------------------------------------------------------------------------------------------------------


@pytest.fixture
def latin1(postgres: EmbeddedPostgres) -> Generator[str]:
    with database(postgres, encoding="LATIN1") as url:
        yield url


def from_source(settings: Settings, url: str, *, store: str | None = None) -> Settings:
    return Settings.model_validate({"database_url": store or settings.store_url, "sources": {"other": url}})


@pytest.mark.promise("J1")
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize(("encoding", "text"), [("LATIN1", "Amélie"), ("WIN1251", "Сталкер"), ("UTF8", "千と千尋")])
def test_text_arrives_from_a_source_of_another_encoding(
    encoding: str, text: str, lane: Lane, postgres: EmbeddedPostgres, connection: Connection, settings: Settings
) -> None:
    with database(postgres, encoding=encoding) as url:
        with connect(url, name="tests") as source:
            source.execute("CREATE TABLE content.films (title text PRIMARY KEY, note jsonb)")
            source.execute("INSERT INTO content.films VALUES (%s, jsonb_build_object('de', %s::text))", [text, text])
        pipeline = create(
            connection,
            from_source(settings, url),
            source="other",
            source_query="SELECT title, note FROM content.films",
            target_table="analytics.films",
            key_columns=["title"],
            python_task=TASKS[lane],
        )
        succeed(connection, from_source(settings, url), pipeline)
        rows = connection.execute("SELECT title, note FROM analytics.films").fetchall()
        assert rows == [{"title": text, "note": {"de": text}}]
        assert compare(pipeline.definition, from_source(settings, url)).equal


@pytest.mark.promise("J1")
def test_a_store_that_cannot_hold_a_character_fails_with_the_name_of_the_column(
    latin1: str, connection: Connection, settings: Settings
) -> None:
    connection.execute("CREATE TABLE content.films (id integer PRIMARY KEY, title text)")
    connection.execute("INSERT INTO content.films VALUES (1, 'Amélie'), (2, 'Сталкер')")
    migrate(latin1)
    here = from_source(settings, settings.store_url, store=latin1)
    with connect(latin1, name="tests") as store:
        pipeline = create(
            store,
            here,
            source="other",
            source_query="SELECT id, title FROM content.films",
            target_table="analytics.films",
            key_columns=["id"],
        )
        executed = run(store, here, pipeline)
        assert executed.error is not None
        assert "title" in str(executed.error), executed.error
        assert "Сталкер" not in str(executed.error)


@pytest.mark.promise("J1")
@pytest.mark.parametrize("lane", LANES)
def test_bytes_that_are_no_text_fail_with_the_name_of_the_column(
    lane: Lane, postgres: EmbeddedPostgres, connection: Connection, settings: Settings
) -> None:
    with database(postgres, encoding="SQL_ASCII") as url:
        with connect(url, name="tests") as source:
            source.execute("CREATE TABLE content.films (id integer PRIMARY KEY, title text)")
            source.execute("INSERT INTO content.films VALUES (1, 'plain'), (2, 'caf' || E'\\351')")
        there = from_source(settings, url)
        pipeline = create(
            connection,
            there,
            source="other",
            source_query="SELECT id, title FROM content.films",
            target_table="analytics.films",
            key_columns=["id"],
            python_task=TASKS[lane],
        )
        executed = run(connection, there, pipeline)
        assert executed.error is not None
        assert "title" in str(executed.error), executed.error


# -- columns that move ------------------------------------------------------------------------------------------------

SWAP = (
    "ALTER TABLE content.keyed RENAME a TO c; ALTER TABLE content.keyed RENAME b TO a;"
    " ALTER TABLE content.keyed RENAME c TO b"
)


@pytest.mark.promise("J2")
@pytest.mark.parametrize("mode", ["full", "incremental"])
@pytest.mark.parametrize("change", [SWAP, "ALTER TABLE content.keyed ALTER a TYPE text"])
def test_columns_that_change_between_two_snapshots_never_mix(
    change: str, mode: str, connection: Connection, settings: Settings
) -> None:
    connection.execute("CREATE TABLE content.keyed (k integer PRIMARY KEY, a integer, b integer)")
    connection.execute("INSERT INTO content.keyed SELECT n, n, -n FROM generate_series(1, 6) AS n")
    cursor = {"incremental_key": "k", "incremental_id_key": "k"} if mode == "incremental" else {}
    pipeline = keyed(connection, settings, mode=mode, **cursor)
    executed = run(
        connection, settings, pipeline, watch=once_read(2, lambda: connection.execute(change.encode())), waits=(0.0,)
    )
    if executed.error is None:
        assert differences(connection, "SELECT * FROM content.keyed", "analytics.keyed", "k") == []
    else:
        assert executed.error.code in ("SCHEMA_CHANGED", "TARGET_SCHEMA")


# -- operators and collations -----------------------------------------------------------------------------------------


@pytest.mark.promise("J3")
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_a_key_with_operators_of_its_own_is_read_completely(
    mode: str, lane: Lane, connection: Connection, settings: Settings
) -> None:
    create_caseless(connection)
    connection.execute("CREATE TABLE content.keyed (k public.caseless PRIMARY KEY, at timestamptz NOT NULL, n integer)")
    connection.execute(
        "INSERT INTO content.keyed SELECT k, '2026-01-01', 1 FROM unnest('{b,A,C,d,E,f,G}'::text[]) AS k(k)"
    )
    cursor = {"incremental_key": "at", "incremental_id_key": "k"} if mode == "incremental" else {}
    pipeline = keyed(connection, settings, mode=mode, python_task=TASKS[lane], **cursor)
    succeed(connection, settings, pipeline)
    assert texts(connection, "SELECT k::text AS text FROM analytics.keyed ORDER BY k") == list("AbCdEfG")


@pytest.mark.promise("J3")
def test_a_read_after_a_key_with_operators_of_its_own_uses_the_index(
    connection: Connection, settings: Settings
) -> None:
    create_caseless(connection)
    connection.execute("CREATE TABLE content.keyed (k public.caseless PRIMARY KEY, n integer)")
    connection.execute("INSERT INTO content.keyed SELECT 'k' || n, n FROM generate_series(1, 5000) AS n")
    connection.execute("ANALYZE content.keyed")
    statement = ordered(keyed(connection, settings), settings, "k").copy_statement(("k4990",))
    text = statement.as_string(connection).removeprefix("COPY (").rpartition(") TO STDOUT")[0]
    explained = connection.execute(f"EXPLAIN {text}".encode()).fetchall()
    assert any("Index Cond" in row["QUERY PLAN"] for row in explained), explained


NONDETERMINISTIC = """
    CREATE COLLATION content.caseless (provider = icu, locale = 'und-u-ks-level2', deterministic = false)
"""


def has_icu(connection: Connection) -> bool:
    try:
        connection.execute(NONDETERMINISTIC)
    except psycopg.errors.FeatureNotSupported:
        return False
    return True


@pytest.mark.promise("J4")
@pytest.mark.parametrize("lane", LANES)
def test_keys_that_a_collation_takes_for_equal_are_all_read(
    lane: Lane, connection: Connection, settings: Settings
) -> None:
    if not has_icu(connection):
        # the catalog's word decides; with this one, the order of the type no longer separates all values
        connection.execute('CREATE COLLATION content.caseless FROM "C"')
        connection.execute(
            "UPDATE pg_collation SET collisdeterministic = false WHERE oid = 'content.caseless'::regcollation"
        )
    connection.execute("CREATE TABLE content.keyed (k text COLLATE content.caseless, n integer)")
    connection.execute("INSERT INTO content.keyed VALUES ('a', 1), ('A', 2), ('b', 3), ('B', 4), ('á', 5)")
    pipeline = keyed(connection, settings, python_task=TASKS[lane])
    succeed(connection, settings, pipeline)
    assert texts(connection, 'SELECT k AS text FROM analytics.keyed ORDER BY k COLLATE "C"') == [
        "A",
        "B",
        "a",
        "b",
        "á",
    ]
    assert compare(pipeline.definition, settings).equal
    assert "textsend" in ordered(pipeline, settings, "k").copy_statement(("a",)).as_string(connection)


@pytest.mark.promise("J4")
@pytest.mark.parametrize("lane", LANES)
def test_keys_that_a_type_takes_for_equal_are_all_read(lane: Lane, connection: Connection, settings: Settings) -> None:
    create_caseless(connection)
    connection.execute("CREATE TABLE content.keyed (k public.caseless, at timestamptz, id integer)")
    connection.execute(
        "INSERT INTO content.keyed SELECT k, '2026-01-01', id"
        " FROM (VALUES ('a', 1), ('A', 2), ('b', 3), ('B', 4)) AS v(k, id)"
    )
    pipeline = keyed(
        connection,
        settings,
        mode="incremental",
        incremental_key="at",
        incremental_id_key="k",
        key_columns=["id"],
        python_task=TASKS[lane],
    )
    succeed(connection, settings, pipeline)
    assert texts(connection, "SELECT k::text AS text FROM analytics.keyed ORDER BY id") == ["a", "A", "b", "B"]


@pytest.mark.promise("J14")
@pytest.mark.parametrize("lane", LANES)
def test_equal_keys_that_differ_are_never_lost_at_a_batch_boundary(
    lane: Lane, connection: Connection, settings: Settings
) -> None:
    connection.execute(
        "CREATE TABLE content.keyed (k numeric NOT NULL, at timestamptz NOT NULL, id integer PRIMARY KEY)"
    )
    connection.execute(
        "INSERT INTO content.keyed SELECT k, '2026-01-01', id FROM (VALUES (1.0, 1), (1.00, 2)) v(k, id)"
    )
    pipeline = keyed(
        connection,
        settings,
        mode="incremental",
        incremental_key="at",
        incremental_id_key="k",
        key_columns=["id"],
        python_task=TASKS[lane],
    )
    succeed(connection, settings, pipeline)
    assert texts(connection, "SELECT k::text AS text FROM analytics.keyed ORDER BY id") == ["1.0", "1.00"]


# -- NULL in the cursor -----------------------------------------------------------------------------------------------


@pytest.mark.promise("J5")
@pytest.mark.parametrize("options", [{}, REOPENED])
@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("batch_size", [1, 100])
def test_null_in_the_tie_breaker_fails_or_is_skipped_on_every_path(
    batch_size: int, options: dict[str, str], exists: bool, connection: Connection, settings: Settings
) -> None:
    connection.execute("CREATE TABLE content.keyed (id integer PRIMARY KEY, at timestamptz NOT NULL, tie integer)")
    connection.execute("INSERT INTO content.keyed SELECT n, '2026-01-01', nullif(n, 2) FROM generate_series(1, 4) AS n")
    if exists:
        connection.execute("CREATE TABLE analytics.keyed (id integer PRIMARY KEY, at timestamptz, tie integer)")
    fields: dict[str, Any] = {
        "mode": "incremental",
        "incremental_key": "at",
        "incremental_id_key": "tie",
        "key_columns": ["id"],
    }
    pipeline = keyed(connection, settings, **fields, options=options, batch_size=batch_size)
    executed = run(connection, settings, pipeline)
    assert executed.error is not None
    assert executed.error.code == "NULL_CURSOR"
    assert "1 row(s)" in str(executed.error)
    ignoring = keyed(
        connection,
        settings,
        **{**fields, "target_table": "analytics.kept"},
        name="ignoring",
        options={**options, "on_null_cursor": "ignore"},
    )
    succeed(connection, settings, ignoring)
    assert texts(connection, "SELECT id::text AS text FROM analytics.kept ORDER BY id") == ["1", "3", "4"]


@pytest.mark.promise("J5")
def test_null_in_the_tie_breaker_is_found_among_other_rows(connection: Connection, settings: Settings) -> None:
    connection.execute("CREATE TABLE content.keyed (id integer PRIMARY KEY, at timestamptz NOT NULL, tie integer)")
    connection.execute("INSERT INTO content.keyed SELECT n, '2026-01-01', n FROM generate_series(1, 4) AS n")
    fields = {"mode": "incremental", "incremental_key": "at", "incremental_id_key": "tie", "key_columns": ["id"]}
    pipeline = keyed(connection, settings, **fields)
    succeed(connection, settings, pipeline)
    connection.execute("""INSERT INTO content.keyed SELECT n, date '2026-01-01' + n * interval '1 s', nullif(n, 1000)
                            FROM generate_series(5, 2000) AS n""")
    executed = run(connection, settings, pipeline)
    assert executed.error is not None
    assert executed.error.code == "NULL_CURSOR"


# -- settings of the source -------------------------------------------------------------------------------------------

OWN_SETTINGS = [
    {"TimeZone": "Europe/Moscow"},
    {"DateStyle": "German"},
    {"DateStyle": "SQL, DMY", "IntervalStyle": "sql_standard", "TimeZone": "America/New_York"},
    {"extra_float_digits": "0", "bytea_output": "escape", "standard_conforming_strings": "off"},
]


@pytest.mark.promise("J15")
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("own", OWN_SETTINGS, ids=str)
@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_a_query_returns_what_psql_shows(
    mode: str, own: dict[str, str], lane: Lane, connection: Connection, settings: Settings
) -> None:
    connection.execute("CREATE TABLE content.keyed (k integer PRIMARY KEY, at timestamptz NOT NULL, long interval)")
    connection.execute(
        "INSERT INTO content.keyed SELECT n, '2026-03-01 21:30:00+00'::timestamptz + n * interval '7 minutes',"
        " interval '1 year 2 days -03:04:05.678' FROM generate_series(1, 5) AS n"
    )
    set_for_database(connection, **own)
    query = (
        "SELECT k, at, at::date AS day, at::text AS shown, long, long::text AS long_shown, to_jsonb(at) AS json,"
        " ARRAY[at, NULL] AS many, tstzrange(at, NULL) AS span, 'a\\b' AS slash, '\\x00ff'::bytea AS bytes,"
        " 0.1::float8 + 0.2 AS float FROM content.keyed"
    )
    cursor = {"incremental_key": "at", "incremental_id_key": "k"} if mode == "incremental" else {}
    pipeline = keyed(connection, settings, source_query=query, mode=mode, python_task=TASKS[lane], **cursor)
    succeed(connection, settings, pipeline)
    succeed(connection, settings, pipeline)
    with connect(settings.store_url, name="psql", own_times=True) as psql:
        psql.execute("SET standard_conforming_strings = on")
        psql.execute(f"CREATE VIEW content.shown AS {query}".encode())
        assert differences(psql, "SELECT * FROM content.shown", "analytics.keyed", "k") == []
    assert compare(pipeline.definition, settings).equal


@pytest.mark.promise("J15")
def test_validate_names_the_settings_that_a_query_runs_under(connection: Connection, settings: Settings) -> None:
    connection.execute("CREATE TABLE content.keyed (k integer PRIMARY KEY)")
    pipeline = keyed(connection, settings)
    assert validate(pipeline.definition, settings).warnings == ()
    set_for_database(connection, TimeZone="Europe/Moscow")
    (warning,) = validate(pipeline.definition, settings).warnings
    assert "TimeZone Europe/Moscow, DateStyle ISO, MDY, IntervalStyle postgres" in warning


ODD_LIMITS = [
    {"default_transaction_isolation": "serializable"},
    {"default_transaction_isolation": "repeatable read", "default_transaction_deferrable": "on"},
    {"default_transaction_read_only": "on"},
    {"idle_session_timeout": "50ms"},
    {"idle_in_transaction_session_timeout": "5s"},
    {"lock_timeout": "1s"},
    {"search_path": "content, ugc"},
    {"row_security": "off"},
]


@pytest.mark.promise("J25")
@pytest.mark.parametrize("odd", ODD_LIMITS, ids=str)
@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_settings_of_roles_and_databases_do_not_break_a_run(
    mode: str, odd: dict[str, str], account: str, connection: Connection, settings: Settings
) -> None:
    connection.execute("CREATE TABLE content.keyed (k integer PRIMARY KEY, at timestamptz NOT NULL)")
    connection.execute("INSERT INTO content.keyed SELECT n, '2026-01-01' FROM generate_series(1, 8) AS n")
    cursor = {"incremental_key": "at", "incremental_id_key": "k"} if mode == "incremental" else {}
    # the query streams for longer than any of the limits
    pipeline = keyed(connection, settings, mode=mode, options={"pause_between_batches": "50ms"}, **cursor)
    for name, value in odd.items():
        set_role = sql.SQL("ALTER ROLE {} SET {} = {}")
        connection.execute(set_role.format(sql.Identifier(account), sql.Identifier(name), sql.Literal(value)))
    url = settings.store_url.replace("://postgres@", f"://{account}@")
    under_limits = Settings.model_validate({**settings.model_dump(), "database_url": url, "sources": {"default": url}})
    # a busy machine may take longer than 50 ms for the first statement of a session, which changes that limit
    succeed(connection, under_limits, pipeline, waits=(0.1, 0.1, 0.1))
    assert differences(connection, "SELECT * FROM content.keyed", "analytics.keyed", "k") == []


@pytest.mark.promise("J25", "K5")
@pytest.mark.parametrize("name", ["statement_timeout", "transaction_timeout"])
@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_a_limit_of_the_reader_that_ends_a_stream_is_named_with_its_value_and_role(
    mode: str, name: str, account: str, connection: Connection, settings: Settings
) -> None:
    if name == "transaction_timeout" and connection.info.server_version < 170_000:
        pytest.skip("transaction_timeout exists since PostgreSQL 17")
    connection.execute("CREATE TABLE content.keyed (k integer PRIMARY KEY, at timestamptz NOT NULL, long text)")
    connection.execute(
        "INSERT INTO content.keyed SELECT n, '2026-01-01', repeat(md5(n::text), 100000)"
        " FROM generate_series(1, 48) AS n"
    )
    cursor = {"incremental_key": "at", "incremental_id_key": "k"} if mode == "incremental" else {}
    options = {"pause_between_batches": "200ms"}
    pipeline = keyed(connection, settings, mode=mode, options=options, **cursor)
    set_role = sql.SQL("ALTER ROLE {} SET {} = '600ms'")
    connection.execute(set_role.format(sql.Identifier(account), sql.Identifier(name)))
    url = settings.store_url.replace("://postgres@", f"://{account}@")
    limited = Settings.model_validate({**settings.model_dump(), "sources": {"default": url}})
    error = run(connection, limited, pipeline).error
    assert error is not None
    assert f"ended by {name} = 600ms, which applies to role {account}" in str(error)


@pytest.mark.promise("J25")
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize(
    ("element", "keys"), [("text", ("{NULL}", '{"NULL"}', '{"a"}', '{"z"}')), ("numeric", ("{NULL}", "{1}", "{2}"))]
)
def test_a_read_continues_after_a_key_with_a_null_in_an_array_whatever_the_database_takes_null_for(
    element: str,
    keys: tuple[str, ...],
    lane: Lane,
    connection: Connection,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # as behind a pooler, where each transaction may have another session
    monkeypatch.setattr(postgres, "_SESSION", "SELECT 1")
    connection.execute(f"CREATE TABLE content.keyed (k {element}[] PRIMARY KEY, n integer)".encode())
    connection.execute(
        f"INSERT INTO content.keyed SELECT k::{element}[], 1 FROM unnest(%s::text[]) AS k(k)".encode(), [list(keys)]
    )
    set_for_database(connection, array_nulls="off")
    pipeline = keyed(connection, settings, python_task=TASKS[lane])
    succeed(connection, settings, pipeline)
    assert sorted(texts(connection, "SELECT k::text AS text FROM analytics.keyed")) == sorted(
        texts(connection, "SELECT k::text AS text FROM content.keyed")
    )
    assert compare(pipeline.definition, settings).equal


@pytest.fixture
def account(connection: Connection) -> Generator[str]:
    """A role with a role's own settings."""
    connection.execute("CREATE ROLE odd_limits SUPERUSER LOGIN")
    yield "odd_limits"
    connection.execute("DROP OWNED BY odd_limits; DROP ROLE odd_limits")


@pytest.mark.promise("J27")
@pytest.mark.parametrize(("slow", "snapshots"), [(0.0, {1}), (60.0, {1, 2, 3})])
def test_a_query_that_is_slow_to_start_is_executed_once(
    slow: float, snapshots: set[int], connection: Connection, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_SLOW_START", slow)
    connection.execute("CREATE TABLE content.keyed AS SELECT n AS k FROM generate_series(1, 3) AS n")
    definition = keyed(connection, settings).definition
    built = planner.prepare(planner.check(definition, settings), writes=False)
    try:
        throttle = Throttle(planner.limits_of(definition, FlowLane.COPY))
        batches = list(built.plan.source.batches(Read(FlowLane.COPY, ("k",)), throttle))
    finally:
        built.close()
    assert {batch.snapshot for batch in batches if batch.count} == snapshots


# -- types of the source's owner --------------------------------------------------------------------------------------

HOSTILE = """
    CREATE ROLE cinema_owner;
    CREATE TABLE content.taken (by text);
    GRANT ALL ON content.taken TO PUBLIC;
    GRANT USAGE, CREATE ON SCHEMA content TO cinema_owner;
    SET ROLE cinema_owner;
    CREATE FUNCTION content.acts(text) RETURNS boolean LANGUAGE plpgsql AS
        $$ BEGIN INSERT INTO content.taken VALUES (current_user); RETURN true;
           EXCEPTION WHEN read_only_sql_transaction THEN RETURN true; END $$;
    CREATE DOMAIN content.evil AS text CHECK (content.acts(VALUE));
    CREATE TYPE content.pair AS (a content.evil, b integer);
    CREATE TYPE content.mood AS ENUM ('sad', 'happy');
    CREATE TYPE content.evils AS RANGE (SUBTYPE = text);
    CREATE TABLE content.keyed (k integer PRIMARY KEY, one content.evil, many content.evil[], pair content.pair,
        pairs content.pair[], mood content.mood, moods content.mood[], span content.evils);
    INSERT INTO content.keyed VALUES
        (1, 'x', '{x,y}', '(x,1)', '{"(x,1)","(y,2)"}', 'sad', '{happy,sad}', '[a,b)'),
        (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
    RESET ROLE;
    TRUNCATE content.taken;
"""


@pytest.fixture
def hostile(connection: Connection) -> Generator[Connection]:
    connection.execute(HOSTILE)
    yield connection
    connection.execute("DROP OWNED BY cinema_owner CASCADE; DROP ROLE cinema_owner")


@pytest.mark.promise("K1")
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_code_of_the_sources_owner_never_runs_in_a_session_that_writes(
    mode: str, lane: Lane, hostile: Connection, settings: Settings
) -> None:
    cursor = {"incremental_key": "k", "incremental_id_key": "k"} if mode == "incremental" else {}
    pipeline = keyed(hostile, settings, mode=mode, python_task=TASKS[lane], **cursor)
    succeed(hostile, settings, pipeline)
    assert hostile.execute("SELECT * FROM content.taken").fetchall() == []
    types = hostile.execute(
        "SELECT attname AS name, format_type(atttypid, atttypmod) AS type FROM pg_attribute"
        " WHERE attrelid = 'analytics.keyed'::regclass AND attnum > 0 ORDER BY attnum"
    ).fetchall()
    assert [(row["name"], row["type"]) for row in types] == [
        ("k", "integer"),
        ("one", "text"),
        ("many", "text[]"),
        ("pair", "jsonb"),
        ("pairs", "jsonb"),
        ("mood", "text"),
        ("moods", "text[]"),
        ("span", "text"),
    ]
    rows = hostile.execute("SELECT * FROM analytics.keyed ORDER BY k").fetchall()
    assert rows[0] == {
        "k": 1,
        "one": "x",
        "many": ["x", "y"],
        "pair": {"a": "x", "b": 1},
        "pairs": [{"a": "x", "b": 1}, {"a": "y", "b": 2}],
        "mood": "sad",
        "moods": ["happy", "sad"],
        "span": "[a,b)",
    }
    assert set(rows[1].values()) == {2, None}
    assert compare(pipeline.definition, settings).equal


@pytest.mark.promise("K1")
@pytest.mark.parametrize("key", ["mood", "span", "many"])
def test_a_key_whose_type_is_flattened_keeps_the_order_of_the_source(
    key: str, hostile: Connection, settings: Settings
) -> None:
    hostile.execute("DELETE FROM content.keyed WHERE k = 2")
    hostile.execute(
        "INSERT INTO content.keyed (k, mood, span, many) VALUES (3, 'happy', '[b,c)', '{z}'), (4, 'sad', '[,)', '{}')"
    )
    unique = f"SELECT DISTINCT ON ({key}) {key}, k FROM content.keyed ORDER BY {key}, k"
    pipeline = keyed(hostile, settings, source_query=unique, key_columns=[key])
    succeed(hostile, settings, pipeline)
    expected = texts(hostile, f"SELECT {key}::text AS text FROM ({unique}) AS q")
    assert sorted(texts(hostile, f"SELECT {key}::text AS text FROM analytics.keyed")) == sorted(expected)


@pytest.mark.promise("K1")
@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_a_key_without_an_order_is_refused_by_name(mode: str, connection: Connection, settings: Settings) -> None:
    connection.execute("CREATE TABLE content.keyed (k json, n integer)")
    cursor = {"incremental_key": "n", "incremental_id_key": "n"} if mode == "incremental" else {}
    executed = run(connection, settings, keyed(connection, settings, mode=mode, **cursor))
    assert executed.error is not None
    assert executed.error.code == "KEY_TYPE"
    assert "'k'" in str(executed.error)


@pytest.mark.promise("J3")
def test_an_interrupted_load_continues_after_a_key_with_operators_of_its_own(
    connection: Connection, settings: Settings
) -> None:
    create_caseless(connection)
    connection.execute("CREATE TABLE content.keyed (k public.caseless PRIMARY KEY)")
    connection.execute("INSERT INTO content.keyed SELECT k FROM unnest('{B,a,C,d}'::text[]) AS k(k)")
    pipeline = keyed(connection, settings, options={})
    run_one_batch(connection, settings, pipeline)
    succeed(connection, settings, pipeline, resume=True)  # another request would be followed by another load
    assert texts(connection, "SELECT k::text AS text FROM analytics.keyed ORDER BY k") == list("aBCd")
