"""What stands behind a relation of the source: views, functions, types, policies and foreign tables are inspected."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from psycopg import errors
from psycopg.rows import dict_row
from pydantic import SecretStr

from tests.helpers.running import allowing, create, once_read, run, succeed
from vitrine.compare import reconcile
from vitrine.connectors.postgres import PostgresSettings, PostgresSourceOptions
from vitrine.connectors.postgres.source import copy_out
from vitrine.connectors.postgres.source.relations import Relations
from vitrine.connectors.postgres.source.session import SourceSession
from vitrine.definition.model import Definition
from vitrine.errors import ConfigError
from vitrine.plan import validation
from vitrine.postgres import Connection, connect, raw
from vitrine.settings import Settings
from vitrine.sql import policy

FIELDS: dict[str, Any] = {
    "name": "under_test",
    "source_query": "SELECT id, title FROM content.v",
    "target_table": "analytics.films",
    "key_columns": ["id"],
    "batch_size": 10,
}

FILMS = "SELECT id, title FROM content.film_work"
STEAL = (
    "CREATE OR REPLACE VIEW content.v AS"
    " SELECT id, (SELECT min(pay)::text FROM secret.salaries) AS title FROM content.film_work"
)


@pytest.fixture(autouse=True)
def _secrets(connection: Connection) -> None:
    connection.execute(
        """
        CREATE SCHEMA secret;
        CREATE TABLE secret.salaries (id integer PRIMARY KEY, pay integer);
        INSERT INTO secret.salaries VALUES (1, 1000);
        CREATE DOMAIN content.short AS text CHECK (length(VALUE) < 1000);
        CREATE TYPE content.mood AS ENUM ('calm', 'angry');
        CREATE TYPE content.address AS (city text, street text);
        """
    )


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as executor:
        yield executor


def refusal(settings: Settings, **fields: Any) -> ConfigError:
    """The error of `validate`."""
    with pytest.raises(ConfigError) as refused:
        validation.validate(Definition.model_validate(FIELDS | fields), settings)
    return refused.value


HOSTILE = {
    "another schema": (
        "CREATE VIEW content.v AS SELECT id, pay::text AS title FROM secret.salaries",
        "SCHEMA",
        "content.v reads secret.salaries, but only these schemas may be read: content, ugc",
    ),
    "view of a view": (
        "CREATE VIEW content.inner_view AS SELECT id, pay::text AS title FROM secret.salaries;"
        "CREATE VIEW content.v AS SELECT * FROM content.inner_view",
        "SCHEMA",
        "content.v reads content.inner_view, which reads secret.salaries",
    ),
    "another schema without a column": (
        f"CREATE VIEW content.v AS {FILMS} WHERE (SELECT count(*) FROM secret.salaries) > 0",
        "SCHEMA",
        "content.v reads secret.salaries",
    ),
    "a view in another schema": (
        f"CREATE VIEW secret.w AS {FILMS}; CREATE VIEW content.v AS SELECT * FROM secret.w",
        "SCHEMA",
        "content.v reads secret.w",
    ),
    "the catalog": (
        "CREATE VIEW content.v AS SELECT oid AS id, rolname AS title FROM pg_catalog.pg_authid",
        "SCHEMA",
        "content.v reads pg_catalog.pg_authid",
    ),
    "information_schema": (
        "CREATE VIEW content.v AS SELECT table_name AS id, table_schema AS title FROM information_schema.tables",
        "SCHEMA",
        "content.v reads information_schema.tables",
    ),
    "materialized view": (
        "CREATE MATERIALIZED VIEW content.v AS SELECT id, pay::text AS title FROM secret.salaries",
        "SCHEMA",
        "content.v reads secret.salaries",
    ),
    "pg_sleep": (
        f"CREATE VIEW content.v AS {FILMS}, pg_sleep(0.01)",
        "FUNC",
        "content.v: function 'pg_sleep' is not on the list",
    ),
    "query_to_xml": (
        "CREATE VIEW content.v AS"
        " SELECT id, query_to_xml('SELECT * FROM secret.salaries', true, true, '')::text AS title FROM content.genre",
        "FUNC",
        "function 'query_to_xml'",
    ),
    "the current user": (
        f"CREATE VIEW content.v AS {FILMS} WHERE title <> current_user",
        "FUNC",
        "function 'current_user'",
    ),
    "string-bodied SQL": (
        "CREATE FUNCTION content.f(uuid) RETURNS text LANGUAGE sql AS 'SELECT min(pay)::text FROM secret.salaries';"
        "CREATE VIEW content.v AS SELECT id, content.f(id) AS title FROM content.film_work",
        "FUNC",
        "content.v calls content.f(uuid), which may do anything",
    ),
    "plpgsql": (
        "CREATE FUNCTION content.f(uuid) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RETURN 'x'; END $$;"
        "CREATE VIEW content.v AS SELECT id, content.f(id) AS title FROM content.film_work",
        "FUNC",
        "content.v calls content.f(uuid)",
    ),
    "aggregate": (
        "CREATE AGGREGATE content.f(text) (SFUNC = textcat, STYPE = text);"
        "CREATE VIEW content.v AS SELECT id, content.f(title) AS title FROM content.film_work GROUP BY id",
        "FUNC",
        "content.v calls content.f(text)",
    ),
    "BEGIN ATOMIC that reads another schema": (
        "CREATE FUNCTION content.f(uuid) RETURNS text LANGUAGE sql"
        " BEGIN ATOMIC SELECT min(pay)::text FROM secret.salaries; END;"
        "CREATE VIEW content.v AS SELECT id, content.f(id) AS title FROM content.film_work",
        "SCHEMA",
        "content.v calls content.f(uuid), which reads secret.salaries",
    ),
    "BEGIN ATOMIC that acts": (
        "CREATE FUNCTION content.f(uuid) RETURNS text LANGUAGE sql RETURN pg_sleep(0.01)::text;"
        "CREATE VIEW content.v AS SELECT id, content.f(id) AS title FROM content.film_work",
        "FUNC",
        "content.v calls content.f(uuid): function 'pg_sleep'",
    ),
    "BEGIN ATOMIC that calls a string-bodied function": (
        "CREATE FUNCTION content.g() RETURNS text LANGUAGE sql AS 'SELECT min(pay)::text FROM secret.salaries';"
        "CREATE FUNCTION content.f(uuid) RETURNS text LANGUAGE sql RETURN content.g();"
        "CREATE VIEW content.v AS SELECT id, content.f(id) AS title FROM content.film_work",
        "FUNC",
        "content.v calls content.f(uuid), which calls content.g(), which may do anything",
    ),
    "default of an argument": (
        "CREATE FUNCTION content.f(uuid, text DEFAULT pg_sleep(0.01)::text) RETURNS text LANGUAGE sql RETURN $2;"
        "CREATE VIEW content.v AS SELECT id, content.f(id) AS title FROM content.film_work",
        "FUNC",
        "function 'pg_sleep'",
    ),
    "function that changes settings": (
        "CREATE FUNCTION content.f(uuid) RETURNS text LANGUAGE sql SET row_security = on RETURN $1::text;"
        "CREATE VIEW content.v AS SELECT id, content.f(id) AS title FROM content.film_work",
        "FUNC",
        "which changes settings of the session",
    ),
    "implicit cast": (
        "CREATE FUNCTION content.f(content.mood) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RETURN 'x'; END $$;"
        "CREATE CAST (content.mood AS text) WITH FUNCTION content.f(content.mood) AS IMPLICIT;"
        "CREATE VIEW content.v AS SELECT id, upper('calm'::content.mood) AS title FROM content.film_work",
        "FUNC",
        "content.v calls content.f(content.mood)",
    ),
    "operator": (
        "CREATE OPERATOR content.! (RIGHTARG = float8, PROCEDURE = pg_sleep);"
        "CREATE VIEW content.v AS SELECT id, (OPERATOR(content.!) 0.01)::text AS title FROM content.film_work",
        "FUNC",
        "content.v uses operator content.!(NONE,double precision), which calls pg_sleep",
    ),
    "operator of a function": (
        "CREATE FUNCTION content.f(uuid, int) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RETURN 'x'; END $$;"
        "CREATE OPERATOR content.+ (LEFTARG = uuid, RIGHTARG = int, PROCEDURE = content.f);"
        "CREATE VIEW content.v AS SELECT id, id OPERATOR(content.+) 1 AS title FROM content.film_work",
        "FUNC",
        "content.v uses operator content.+(uuid,integer), which calls content.f(uuid,integer)",
    ),
    "domain": (
        "CREATE FUNCTION content.f(text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RETURN true; END $$;"
        "CREATE DOMAIN content.checked AS text CHECK (content.f(VALUE));"
        "CREATE VIEW content.v AS SELECT id, title::content.checked AS title FROM content.film_work",
        "FUNC",
        "content.v uses type content.checked, which calls content.f(text)",
    ),
    "domain inside a row type inside an array": (
        "CREATE FUNCTION content.f(text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RETURN true; END $$;"
        "CREATE DOMAIN content.checked AS text CHECK (content.f(VALUE));"
        "CREATE TYPE content.box AS (a content.checked);"
        "CREATE VIEW content.v AS SELECT id, '{}'::content.box[] AS title FROM content.film_work",
        "FUNC",
        "which uses type content.checked, which calls content.f(text)",
    ),
    "foreign table": (
        "CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w;"
        "CREATE FOREIGN TABLE content.v (id integer, title text) SERVER s",
        "FOREIGN_TABLE",
        "content.v, a foreign table, whose rows another server returns",
    ),
    "view of a foreign table": (
        "CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w;"
        "CREATE FOREIGN TABLE content.far (id integer, title text) SERVER s;"
        "CREATE VIEW content.v AS SELECT * FROM content.far",
        "FOREIGN_TABLE",
        "content.v reads content.far, a foreign table",
    ),
    "foreign partition": (
        "CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w;"
        "CREATE TABLE content.v (id integer, title text) PARTITION BY LIST (id);"
        "CREATE FOREIGN TABLE content.far PARTITION OF content.v FOR VALUES IN (1) SERVER s",
        "FOREIGN_TABLE",
        "content.v reads content.far, a foreign table",
    ),
    "recursion": (
        "CREATE VIEW content.v AS WITH RECURSIVE r AS (SELECT 1 AS id UNION ALL SELECT id + 1 FROM r)"
        " SELECT id, ''::text AS title FROM r",
        "NODE",
        "content.v: WithClause RECURSIVE",
    ),
    "size": (
        "CREATE VIEW content.v AS SELECT id, '" + "x" * 70_000 + "'::text AS title FROM content.film_work",
        "TOO_COMPLEX",
        "is longer than 64 KB",
    ),
}


@pytest.mark.promise("G14", "K2")
@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_definition_is_refused_with_the_way_that_leads_to_it(
    connection: Connection, settings: Settings, case: str
) -> None:
    statements, code, sentence = HOSTILE[case]
    connection.execute(raw(statements))
    refused = refusal(settings)
    assert refused.code == code
    assert sentence in str(refused)
    assert "VITRINE_ALLOWED_RELATIONS" in str(refused)


HONEST = {
    "joins and expressions": """
        CREATE VIEW content.v AS
        SELECT f.id, f.title, extract(year FROM f.creation_date) AS year, array_agg(DISTINCT g.name ORDER BY g.name)
                   FILTER (WHERE g.id IS NOT NULL) AS genres, count(*) OVER w AS n, f.rating::numeric(3, 1) AS rating,
               trim(both FROM f.title) AS trimmed, coalesce(f.description, '') AS description, f.type LIKE 'm%' AS m,
               jsonb_build_object('id', f.id) AS document, f.created AT TIME ZONE 'UTC' AS created,
               f.rating BETWEEN 1 AND 5 AS low, f.type IN ('movie', 'series') AS known, current_date AS today
          FROM content.film_work f LEFT JOIN content.genre_film_work l ON l.film_work_id = f.id
          LEFT JOIN content.genre g ON g.id = l.genre_id, LATERAL jsonb_each('{"a": 1}') AS e
         GROUP BY f.id, e.key WINDOW w AS (PARTITION BY f.type)
    """,
    "view of a view": f"CREATE VIEW content.w AS {FILMS}; CREATE VIEW content.v AS TABLE content.w",
    "materialized view": f"CREATE MATERIALIZED VIEW content.v AS {FILMS}",
    "types of the schema": """
        CREATE TABLE content.people (id integer PRIMARY KEY, title content.short, mood content.mood, a content.address);
        INSERT INTO content.people VALUES (1, 'x', 'calm', ('Paris', 'Rue'));
        CREATE VIEW content.v AS SELECT id, title, mood = 'calm' AS is_calm, (a).city, 'y'::content.short AS short,
                   ARRAY['calm'::content.mood] AS moods, row_to_json(p) AS document FROM content.people p
    """,
    "partitions in another schema": """
        CREATE TABLE content.v (id integer PRIMARY KEY, title text) PARTITION BY LIST (id);
        CREATE TABLE secret.part PARTITION OF content.v FOR VALUES IN (1); INSERT INTO content.v VALUES (1, 'x')
    """,
    "BEGIN ATOMIC": """
        CREATE FUNCTION content.f(wanted uuid, suffix text DEFAULT lower('!')) RETURNS text LANGUAGE sql STABLE
            BEGIN ATOMIC SELECT f.title || suffix FROM content.film_work f WHERE f.id = wanted; END;
        CREATE FUNCTION content.g(text) RETURNS text LANGUAGE sql RETURN upper($1);
        CREATE VIEW content.v AS SELECT id, content.g(content.f(id)) AS title FROM content.film_work
    """,
    "collation": """
        CREATE COLLATION content.plain FROM "C";
        CREATE VIEW content.v AS SELECT id, title COLLATE content.plain AS title FROM content.film_work
    """,
    "columns named like functions": """
        CREATE TABLE content.odd (id integer PRIMARY KEY, title text, pg_sleep integer, "select" text);
        INSERT INTO content.odd VALUES (1, 'x', 2, 'y');
        CREATE VIEW content.v AS SELECT o.id, o.title, o.pg_sleep, o."select" FROM content.odd o
    """,
}


@pytest.mark.promise("K2")
@pytest.mark.parametrize("case", HONEST)
def test_an_honest_definition_is_read(connection: Connection, settings: Settings, case: str) -> None:
    connection.execute(raw(HONEST[case]))
    films = create(connection, settings, **FIELDS)
    assert succeed(connection, settings, films).counts.read > 0
    assert reconcile.compare(Definition.model_validate(FIELDS), settings).equal


@pytest.mark.promise("K2")
def test_an_allowed_relation_is_read_with_everything_behind_it(connection: Connection, settings: Settings) -> None:
    connection.execute(
        "CREATE VIEW content.inner_view AS SELECT id, pay::text AS title FROM secret.salaries, pg_sleep(0);"
        "CREATE VIEW content.v AS SELECT * FROM content.inner_view"
    )
    for allowed in ("content.v", "content.inner_view"):
        own = allowing(settings, allowed)
        assert validation.validate(Definition.model_validate(FIELDS), own).warnings == ()
    assert refusal(allowing(settings, "content.other", "inner_view.v")).code == "FUNC"
    films = create(connection, settings, **FIELDS)
    assert succeed(connection, allowing(settings, "content.v"), films).counts.read == 1


@pytest.mark.promise("K2")
def test_a_query_reads_allowed_schemas_only_whatever_relations_are_allowed(settings: Settings) -> None:
    own = allowing(settings, "secret.salaries")
    assert refusal(own, source_query="SELECT id FROM secret.salaries").code == "SCHEMA"


@pytest.mark.promise("G15", "K2")
@pytest.mark.parametrize("kind", ["view", "function"])
def test_a_definition_that_changes_after_validate_fails_the_run(
    connection: Connection, settings: Settings, kind: str
) -> None:
    connection.execute(
        """
        CREATE FUNCTION content.f(uuid) RETURNS text LANGUAGE sql RETURN $1::text;
        CREATE VIEW content.v AS SELECT id, content.f(id) AS title FROM content.film_work
        """
    )
    films = create(connection, settings, **FIELDS)
    validation.validate(films.definition, settings)
    succeed(connection, settings, films)
    before = connection.execute("SELECT * FROM analytics.films ORDER BY id").fetchall()
    if kind == "view":
        connection.execute(STEAL)
    else:
        connection.execute(
            "CREATE OR REPLACE FUNCTION content.f(uuid) RETURNS text LANGUAGE sql"
            " AS 'SELECT min(pay)::text FROM secret.salaries'"
        )
    failed = run(connection, settings, films).error
    assert failed is not None
    assert failed.code == {"view": "SCHEMA", "function": "FUNC"}[kind]
    assert connection.execute("SELECT * FROM analytics.films ORDER BY id").fetchall() == before


@pytest.mark.promise("K2")
def test_a_view_that_is_redefined_between_two_snapshots_fails_the_run(
    connection: Connection, settings: Settings, database_url: str, threads: ThreadPoolExecutor
) -> None:
    connection.execute(f"CREATE VIEW content.v AS {FILMS}")
    films = create(connection, settings, **FIELDS, options={"snapshot_max_age": "0s"})

    def redefine() -> None:
        with connect(database_url, name="owner") as owner:
            owner.execute(STEAL)

    started: list[Future[None]] = []
    watch = once_read(10, lambda: started.append(threads.submit(redefine)))
    failed = run(connection, settings, films, watch=watch).error
    started[0].result()
    assert failed is not None
    assert "content.v reads secret.salaries" in str(failed)
    assert connection.execute("SELECT to_regclass('analytics.films') AS t").fetchone() == {"t": None}


@pytest.mark.promise("K2")
def test_a_view_cannot_be_redefined_between_its_check_and_its_read(
    connection: Connection, settings: Settings, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.execute(f"CREATE VIEW content.w AS {FILMS}; CREATE VIEW content.v AS SELECT * FROM content.w")
    films = create(connection, settings, **FIELDS)
    blocked: list[str] = []
    prepare = copy_out.prepare

    def prepare_later(reader: SourceSession, text: str, then: Sequence[str] = ()) -> list[copy_out.Described]:
        for view in ("content.v", "content.w"):
            with pytest.raises(errors.LockNotAvailable):
                owner.execute(raw(STEAL.replace("content.v", view)))
            blocked.append(view)
        return prepare(reader, text, then)

    monkeypatch.setattr(copy_out, "prepare", prepare_later)
    with connect(database_url, name="owner") as owner:
        owner.execute("SET lock_timeout = '50ms'")
        succeed(connection, settings, films)
    assert blocked[:2] == ["content.v", "content.w"]


@pytest.mark.promise("K2")
def test_a_materialized_view_that_is_replaced_after_its_check_is_checked_again(
    connection: Connection, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.execute(f"CREATE MATERIALIZED VIEW content.v AS {FILMS}")
    films = create(connection, settings, **FIELDS)
    prepare, replacing = copy_out.prepare, [True]

    def replace_first(reader: SourceSession, text: str, then: Sequence[str] = ()) -> list[copy_out.Described]:
        if replacing:
            replacing.pop()
            connection.execute("DROP MATERIALIZED VIEW content.v")
            connection.execute(STEAL)
        return prepare(reader, text, then)

    monkeypatch.setattr(copy_out, "prepare", replace_first)
    first = run(connection, settings, films).error
    assert first is not None
    assert first.code == "SCHEMA_CHANGED"
    second = run(connection, settings, films).error
    assert second is not None
    assert "content.v reads secret.salaries" in str(second)


@pytest.mark.promise("K2")
def test_a_type_that_the_query_names_is_inspected(connection: Connection, settings: Settings) -> None:
    connection.execute(
        """
        CREATE FUNCTION content.f(text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RETURN true; END $$;
        CREATE DOMAIN content.checked AS text CHECK (content.f(VALUE))
        """
    )
    query = "SELECT id, title::content.checked FROM content.film_work"
    refused = refusal(settings, source_query=query)
    assert (refused.code, "content.checked calls content.f(text)" in str(refused)) == ("FUNC", True)
    harmless = FIELDS | {"source_query": query.replace("checked", "short")}
    validation.validate(Definition.model_validate(harmless), settings)


@pytest.mark.promise("K2")
@pytest.mark.parametrize("column", ["content.mood", "content.mood[]", "content.felt"])
def test_a_cast_of_a_column_is_inspected_although_no_query_names_it(
    connection: Connection, settings: Settings, column: str
) -> None:
    connection.execute(
        """
        CREATE TYPE content.felt AS (mood content.mood);
        CREATE FUNCTION content.f(content.mood) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RETURN 'x'; END $$
        """
    )
    connection.execute(raw(f"CREATE TABLE content.v (id integer PRIMARY KEY, title {column})"))
    validation.validate(Definition.model_validate(FIELDS), settings)
    connection.execute("CREATE CAST (content.mood AS text) WITH FUNCTION content.f(content.mood) AS IMPLICIT")
    refused = refusal(settings)
    assert "content.v uses type content.mood, which calls content.f(content.mood)" in str(refused)
    validation.validate(Definition.model_validate(FIELDS | {"source_query": FILMS}), settings)


@pytest.mark.promise("K2", "K4")
@pytest.mark.parametrize("column", ["content.span", "content.span[]", "content.spans", "content.spanned"])
def test_the_functions_of_a_range_type_are_inspected_although_only_the_planner_calls_them(
    connection: Connection, settings: Settings, column: str
) -> None:
    connection.execute(
        """
        CREATE FUNCTION content.distance(float8, float8) RETURNS float8 LANGUAGE sql IMMUTABLE RETURN $1 - $2;
        CREATE TYPE content.span AS RANGE
            (subtype = float8, subtype_diff = content.distance, multirange_type_name = content.spans);
        CREATE DOMAIN content.spanned AS content.span;
        """
    )
    connection.execute(raw(f"CREATE TABLE content.v (id integer PRIMARY KEY, title {column})"))
    validation.validate(Definition.model_validate(FIELDS), settings)
    connection.execute(
        "CREATE OR REPLACE FUNCTION content.distance(float8, float8) RETURNS float8 LANGUAGE plpgsql IMMUTABLE"
        " AS $$ BEGIN PERFORM pg_sleep(60); RETURN 1; END $$"
    )
    refused = refusal(settings)
    assert "content.v uses type content.span, which calls content.distance(" in str(refused)
    named = FIELDS | {"source_query": "SELECT id, '[1,2]'::content.span AS title FROM content.film_work"}
    with pytest.raises(ConfigError, match=r"calls content\.distance\("):
        validation.validate(Definition.model_validate(named), settings)


@pytest.mark.promise("K2")
def test_a_virtual_column_is_inspected(connection: Connection, settings: Settings) -> None:
    if connection.info.server_version < 180_000:
        pytest.skip("virtual generated columns need PostgreSQL 18")
    connection.execute(
        """
        CREATE TABLE content.v (id integer PRIMARY KEY, title text GENERATED ALWAYS AS (id::text || '!') VIRTUAL);
        INSERT INTO content.v VALUES (1)
        """
    )
    films = create(connection, settings, **FIELDS)
    assert succeed(connection, settings, films).counts.read == 1
    connection.execute("ALTER TABLE content.v ALTER COLUMN title SET EXPRESSION AS (repeat('x', id))")
    failed = run(connection, settings, films).error
    assert failed is not None
    assert "content.v: function 'repeat'" in str(failed)


@pytest.mark.promise("K2")
def test_a_plain_table_costs_one_query_of_the_catalog(settings: Settings) -> None:
    checked = policy.read_only("SELECT * FROM content.film_work, ugc.likes", ("content", "ugc"))
    relations = Relations(checked, PostgresSettings(), PostgresSourceOptions())
    executed: list[object] = []

    class Counting(SourceSession):
        def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
            executed.append(query)
            return super().execute(query, params, **options)

    with Counting.connect(settings.store_url, row_factory=dict_row) as own:
        relations.check(own)
    assert len(executed) == 1  # the lock and the query in one message


@pytest.mark.promise("K2")
def test_rights_on_single_columns_are_enough_for_a_table_but_not_for_a_view(
    connection: Connection, settings: Settings, database_url: str
) -> None:
    connection.execute("DROP ROLE IF EXISTS narrow; CREATE ROLE narrow LOGIN")
    try:
        connection.execute(
            f"""
            CREATE VIEW content.v AS {FILMS};
            GRANT USAGE ON SCHEMA content TO narrow;
            GRANT SELECT (id, title) ON content.film_work, content.v TO narrow
            """
        )
        url = SecretStr(database_url.replace("postgres@", "narrow@"))
        own = settings.model_copy(update={"sources": {"default": url}})
        refused = refusal(own)
        assert (refused.code, "on the whole view to role narrow" in str(refused)) == ("VIEW_NOT_LOCKED", True)
        films = create(connection, own, **FIELDS | {"source_query": FILMS})
        assert succeed(connection, own, films).counts.read > 0
    finally:
        connection.execute("DROP OWNED BY narrow; DROP ROLE narrow")
