"""The attack set on a real server: refused by `validate`, harmless without the parser, refused at the claim."""

import contextlib
from collections import Counter
from collections.abc import Generator

import hypothesis
import psycopg
import pytest
from hypothesis import given
from psycopg import sql

from tests.attacks.honest import HONEST
from tests.attacks.mutations import mutated
from tests.attacks.queries import CALLS, REFUSED, TOO_LARGE
from tests.helpers.running import create, run
from vitrine.connectors.postgres import PostgresSettings, PostgresSourceOptions
from vitrine.connectors.postgres.source import copy_out
from vitrine.connectors.postgres.source.copy_out import CopyOut
from vitrine.connectors.postgres.source.relations import Relations
from vitrine.connectors.postgres.source.session import SourceConnections
from vitrine.definition.model import Definition
from vitrine.errors import ConfigError, VitrineError
from vitrine.plan import validation
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.sql import policy
from vitrine.sql.functions import ALLOWED_FUNCTIONS
from vitrine.sql.policy import read_only
from vitrine.store import history

READER = "attacking_reader"
SCHEMAS = ("content", "ugc")
FIELDS = {"name": "under_attack", "target_table": "analytics.films", "key_columns": ["id"]}
STORABLE = [(query, code) for query, code in REFUSED if "\0" not in query and query.isprintable() and query.strip()]
QUICK = PostgresSettings.model_validate({"plan_timeout": "200ms", "first_row_timeout": "200ms"})

VIEWS = [
    "SELECT id, pg_sleep(60) IS NULL AS t FROM content.film_work",
    "SELECT id, query_to_xml('DELETE FROM content.genre RETURNING 1', true, true, '')::text AS t FROM content.person",
    "SELECT id, content.steals(id) AS t FROM content.film_work",
    "SELECT id, content.writes(id) AS t FROM content.film_work",
    "SELECT id, nextval('content.numbers') AS t FROM content.film_work",
    "SELECT id, lo_create(0) AS t FROM content.film_work",
    "SELECT id, set_config('role', 'postgres', false) AS t FROM content.film_work",
]

RELATIONS = """
    SELECT n.nspname AS schema, c.relname AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relkind IN ('r', 'p', 'S', 'm') AND n.nspname IN ('content', 'ugc', 'analytics', 'etl', 'secret')
     ORDER BY 1, 2
"""
OTHERS = """
    SELECT md5(string_agg(part, '|' ORDER BY part)) AS sum FROM (
        SELECT 'lob ' || loid || ' ' || md5(data) AS part FROM pg_largeobject
         UNION ALL SELECT 'setting ' || s::text FROM pg_db_role_setting s
         UNION ALL SELECT 'role ' || r::text FROM pg_roles r
         UNION ALL SELECT 'relation ' || c.oid || c.relname || coalesce(c.relacl::text, '') FROM pg_class c
         UNION ALL SELECT 'function ' || p.oid || p.proname || coalesce(p.proacl::text, '') FROM pg_proc p
    ) AS parts
"""


@pytest.fixture
def reader(connection: Connection, settings: Settings) -> Generator[SourceConnections]:
    """Connections of a role that may SELECT from the cinema, as a source has them, with short limits."""
    role = sql.Identifier(READER)
    connection.execute(
        sql.SQL(
            """
            CREATE ROLE {role} LOGIN;
            CREATE SCHEMA secret;
            CREATE TABLE secret.salaries (id integer PRIMARY KEY, pay integer);
            INSERT INTO secret.salaries VALUES (1, 1000);
            CREATE SEQUENCE content.numbers;
            CREATE FUNCTION content.steals(uuid) RETURNS text LANGUAGE sql AS 'SELECT pay::text FROM secret.salaries';
            CREATE FUNCTION content.writes(uuid) RETURNS text LANGUAGE plpgsql AS
                $$ BEGIN DELETE FROM content.genre; RETURN 'x'; END $$;
            GRANT USAGE ON SCHEMA content, ugc TO {role};
            GRANT SELECT ON ALL TABLES IN SCHEMA content, ugc TO {role};
            """
        ).format(role=role)
    )
    for number, view in enumerate(VIEWS):
        name = sql.Identifier("content", f"v{number}")
        connection.execute(sql.SQL("CREATE VIEW {} AS {}").format(name, sql.SQL(view)))  # pyright: ignore[reportArgumentType]
        connection.execute(sql.SQL("GRANT SELECT ON {} TO {}").format(name, role))
    url = settings.store_url.replace("://postgres@", f"://{READER}@")
    connections = SourceConnections(url, "attack", QUICK)
    yield connections
    connections.close()
    connection.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(role))


def state(connection: Connection) -> list[object]:
    """Checksums of tables and sequences; of large objects, settings of roles, rights and functions."""
    checksum = sql.SQL("SELECT md5(string_agg(t::text, '' ORDER BY t::text)) AS sum FROM (SELECT * FROM {}) AS t")
    relations = [sql.Identifier(row["schema"], row["name"]) for row in connection.execute(RELATIONS.encode())]
    sums = [connection.execute(checksum.format(relation)).fetchone() for relation in relations]
    return [*relations, *sums, connection.execute(OTHERS.encode()).fetchone()]


def execute(connections: SourceConnections, text: str) -> str | None:
    """Send a text to the server without the parser, as the executor does; the error, if there was one."""
    try:
        with connections.reading(executes=True) as session:
            copy_out.prepare(session, text)
            rows = CopyOut(session, f"COPY ({text}) TO STDOUT", skip=0, shortest=0, max_row=1024**2)
            while rows.peek() is not None:
                rows.take()
            if rows.is_too_large:
                session.close()
                return "RowTooLarge"
    except (psycopg.Error, VitrineError) as exc:
        connections.close()
        return type(exc).__name__
    return None


# -- (a) validate ------------------------------------------------------------------------------------------------------


@pytest.mark.promise("G1", "G2", "G3", "G4", "G5", "G6", "G8", "G9", "G16", "G17", "G18", "G19", "G20", "G21")
def test_validate_refuses_every_attack_with_its_code(connection: Connection, settings: Settings) -> None:
    def code(query: str) -> str:
        try:
            validation.validate(Definition.model_validate({**FIELDS, "source_query": query}), settings)
        except (ConfigError, ValueError) as exc:
            return getattr(exc, "code", "SYNTAX")
        return "accepted"

    found = [(query[:60], code(query), expected) for query, expected in STORABLE if code(query) != expected]
    assert found == []
    assert {code(f"SELECT 1 AS id, {call} AS x") for call in CALLS} <= {"FUNC", "NODE", "SYNTAX"}
    assert {code(query) for query in TOO_LARGE} <= {"FUNC", "TOO_COMPLEX"}


# -- (b) and (c): without the parser -----------------------------------------------------------------------------------


@pytest.mark.promise("G1", "G4", "G6", "G9", "G18", "G19")
def test_without_the_parser_no_attack_changes_anything(reader: SourceConnections, connection: Connection) -> None:
    before = state(connection)
    calls = [f"SELECT {call} AS x FROM content.genre" for call in CALLS if not call.startswith(("pg_sleep", "repeat"))]
    views = [f"SELECT * FROM content.v{number}" for number in range(len(VIEWS))]
    bombs = ["SELECT pg_sleep(60)", "SELECT a.* FROM ugc.ratings a, ugc.ratings b, ugc.ratings c ORDER BY 1"]
    attacks = [*(query for query, _ in STORABLE), *calls, *views, *bombs]
    ended = {attack: execute(reader, attack) for attack in attacks}
    assert state(connection) == before
    refused = [attack for attack in [*views[:5], *bombs] if ended[attack] is None]
    assert refused == []
    statements = [query for query, code in STORABLE if code in {"NOT_SELECT", "MULTIPLE_STATEMENTS", "INTO"}]
    assert [query for query in statements if ended[query] is None and "EXPLAIN" not in query] == []


@pytest.mark.promise("G24")
def test_an_accepted_mutation_of_a_query_changes_nothing_even_where_it_could_write(
    reader: SourceConnections, connection: Connection
) -> None:
    before, ended = state(connection), Counter[str]()
    url = reader._url  # pyright: ignore[reportPrivateUsage]

    @hypothesis.settings(max_examples=400, deadline=None, database=None, derandomize=True)
    @given(mutated(HONEST))
    def attempt(text: str) -> None:
        try:
            query = policy.read_only(text, SCHEMAS)
        except ConfigError:
            ended["refused"] += 1
            return
        with psycopg.connect(url, options="-c statement_timeout=500ms -c search_path=pg_catalog,pg_temp") as session:
            try:
                session.execute(query.text.encode(), binary=True)
                ended["executed"] += 1
            except psycopg.Error as exc:  # a column that does not exist, or a value that cannot be converted
                session.rollback()
                ended[f"{exc.sqlstate}"] += 1

    attempt()
    assert state(connection) == before
    assert ended["executed"] > 20, ended
    assert ended["refused"] > 20, ended
    assert ended["42501"] == 0, ended  # the parser has refused what the account may not read


# -- (d) stored without validation -------------------------------------------------------------------------------------


@pytest.mark.promise("G1", "G4", "G6", "G19")
def test_an_attack_that_is_stored_without_validation_is_refused_by_the_runner(
    connection: Connection, settings: Settings
) -> None:
    pipeline = create(connection, settings, **FIELDS | {"source_query": "SELECT id, title FROM content.film_work"})
    by_class = {code: query for query, code in reversed(STORABLE)}
    attacks = [*by_class.items(), ("FUNC", "SELECT 1 AS id, pg_terminate_backend(1)"), ("FUNC", TOO_LARGE[0])]
    assert len(attacks) >= 10
    for code, query in attacks:
        connection.execute("UPDATE etl.etl_pipelines SET source_query = %s WHERE id = %s", [query, pipeline.id])
        executed = run(connection, settings, pipeline)
        assert executed.error is not None, query
        newest = history.list_runs(connection, pipeline.id, limit=1)[0]
        assert (newest.error_code, newest.rows_written) == (code, 0), query


# -- functions ---------------------------------------------------------------------------------------------------------


@pytest.mark.promise("G4")
def test_every_function_of_the_server_is_refused_unless_it_is_listed(connection: Connection) -> None:
    rows = connection.execute(
        "SELECT proname AS name, bool_or(provolatile = 'v') AS volatile, bool_or(prosecdef) AS definer"
        "  FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace GROUP BY 1"
    ).fetchall()
    accepted: list[str] = []
    for row in rows:
        with contextlib.suppress(ConfigError):
            read_only(f'SELECT "{row["name"]}"()', SCHEMAS)
            accepted.append(row["name"])
    assert set(accepted) <= ALLOWED_FUNCTIONS
    assert [row["name"] for row in rows if row["name"] in accepted and (row["volatile"] or row["definer"])] == []


@pytest.mark.promise("K2")
def test_a_function_of_the_source_passes_if_its_body_can_be_inspected_or_if_it_is_listed(
    connection: Connection, settings: Settings
) -> None:
    connection.execute(
        """
        CREATE SCHEMA secret; CREATE TABLE secret.salaries (pay integer);
        CREATE FUNCTION content.half(float8) RETURNS float8 LANGUAGE sql IMMUTABLE RETURN $1 / 2;
        CREATE FUNCTION content.quarter(float8) RETURNS float8 LANGUAGE sql
            BEGIN ATOMIC SELECT content.half(content.half($1)); END;
        CREATE FUNCTION content.steals(float8) RETURNS bigint LANGUAGE sql
            BEGIN ATOMIC SELECT count(*) FROM secret.salaries; END;
        CREATE FUNCTION content.opaque(float8) RETURNS float8 LANGUAGE plpgsql AS $$ BEGIN RETURN $1; END $$;
        CREATE FUNCTION public.opaque(float8) RETURNS float8 LANGUAGE plpgsql AS $$ BEGIN RETURN $1; END $$;
        CREATE VIEW content.v AS SELECT id, content.opaque(rating) AS x FROM content.film_work;
        """
    )

    def refusal(call: str, listed: tuple[str, ...] = (), source: str = "content.film_work") -> str | None:
        with_list = settings.model_copy(update={"connectors": {"postgres": {"allowed_functions": listed}}})
        fields = {**FIELDS, "source_query": f"SELECT id, {call} AS x FROM {source}"}
        try:
            validation.validate(Definition.model_validate(fields), with_list)
        except ConfigError as exc:
            return f"{exc.code}: {exc}"
        return None

    assert refusal("content.quarter(rating)") is None
    assert "the query calls content.steals(double precision), which reads secret.salaries" in str(
        refusal("content.steals(rating)")
    )
    assert "which may do anything" in str(refusal("content.opaque(rating)"))
    assert "FUNC: " in str(refusal("public.opaque(rating)"))
    assert "there is no function content.nothing with 1 argument" in str(refusal("content.nothing(rating)"))
    listed = ("content.opaque/1", "public.opaque/1")
    assert refusal("content.opaque(rating) + public.opaque(rating)", listed) is None
    assert "content.v calls content.opaque" in str(refusal("x", source="content.v"))
    assert refusal("x", listed, "content.v") is None
    assert "FUNC: " in str(refusal("content.opaque(rating, 1)", listed))


def test_a_materialized_view_behind_a_function_of_the_query_needs_a_lookback(
    connection: Connection, settings: Settings
) -> None:
    connection.execute(
        """
        CREATE MATERIALIZED VIEW content.counted AS SELECT count(*) AS n FROM ugc.likes;
        CREATE FUNCTION content.likes() RETURNS bigint LANGUAGE sql BEGIN ATOMIC SELECT n FROM content.counted; END;
        """
    )
    query = "SELECT id, modified, content.likes() AS likes FROM content.film_work"
    cursor = {"mode": "incremental", "incremental_key": "modified", "incremental_id_key": "id"}
    definition = Definition.model_validate({**FIELDS, **cursor, "source_query": query})
    with pytest.raises(ConfigError) as refused:
        validation.validate(definition, settings)
    assert (refused.value.code, "content.counted" in str(refused.value)) == ("HORIZON_UNAVAILABLE", True)


# -- honest queries ----------------------------------------------------------------------------------------------------


def test_every_honest_query_is_accepted_and_executed(reader: SourceConnections) -> None:
    assert len(HONEST) >= 80
    settings, failed = PostgresSettings(), dict[str, str]()
    connections = SourceConnections(reader._url, "honest", settings)  # pyright: ignore[reportPrivateUsage]
    for text in HONEST:
        try:
            query = policy.read_only(text, SCHEMAS)
            with connections.reading(executes=True) as session:
                Relations(query, settings, PostgresSourceOptions()).check(session)
                rows = CopyOut(session, f"COPY ({query.text}) TO STDOUT", skip=0, shortest=0, max_row=1024**2)
                while rows.peek() is not None:
                    rows.take()
        except (psycopg.Error, VitrineError) as exc:
            failed[text] = str(exc)
    connections.close()
    assert failed == {}
