"""The restricted accounts: what each may do, tried with plain SQL, and the product under all three."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.helpers.accounts import PLACES, Accounts, accounts, as_user
from tests.helpers.chains import start
from tests.helpers.databases import database as database_beside
from tests.helpers.running import differences, succeed
from vitrine import horizon
from vitrine.compare import reconcile
from vitrine.connectors.postgres.source import watermark
from vitrine.core.status import Event, RunStatus, Status
from vitrine.definition.model import Definition
from vitrine.embedded import EmbeddedPostgres, programs_of
from vitrine.errors import ConfigError
from vitrine.operations import changes
from vitrine.operations.doctor import check_accounts
from vitrine.plan import validation
from vitrine.postgres import Connection, connect
from vitrine.settings import Settings
from vitrine.store import database, history, pipelines, queue, roles
from vitrine.store.migrate import migrate
from vitrine.store.roles import DEFINITION, TABLES

RATINGS = {
    "name": "ratings",
    "source_query": "SELECT id, rating, modified FROM ugc.ratings",
    "target_table": "analytics.ratings",
    "mode": "incremental",
    "incremental_key": "modified",
    "key_columns": ["id"],
}
GENRES = {
    "name": "genres",
    "source_query": "SELECT id, name FROM content.genre",
    "target_table": "analytics.genres",
    "key_columns": ["id"],
}

API_ONLY = {"insert_pipeline", "update_pipeline", "delete_steps", "insert_step", "delete_pipeline"} | {
    *("add_upstreams", "remove_upstreams", "mark_files", "detach_file"),
    *("insert_token", "list_tokens", "has_tokens", "record_token_use", "list_valid_tokens", "revoke_token"),
    *("insert_session", "list_valid_sessions", "record_session_use", "delete_session", "prune_sessions"),
}
RUNNER_ONLY = {
    *("claim_next", "heartbeat", "end_run", "expire_leases", "insert_run", "record_run_end", "enter_user_code"),
    *("describe_run", "update_run_config", "open_state", "note_horizon", "open_generation", "save_state"),
    *("upsert_rejects", "close_rejects", "leave_generation", "insert_generation", "restore_generation"),
    *("prune_old_runs", "prune_excess_runs", "register_runner", "deregister_runner"),
    *("save_run_log", "record_result", "record_checks", "record_upstream_success", "fire_chains"),
    *("open_alert", "close_alert", "record_rejects", "record_stale", "claim_notification", "record_sent"),
    *("record_unsent", "prune_notifications", "insert_reconciliation", "note_deletes_checked"),
}


@pytest.fixture
def restricted(connection: Connection, database_url: str) -> Iterator[Accounts]:
    with accounts(connection, database_url) as created:
        yield created


def refused(url: str, statement: str) -> bool:
    """Whether `psql` may not execute the statement under the account."""
    psql = programs_of(18) / "psql"
    commands = [option for text in ("BEGIN", statement, "ROLLBACK") for option in ("-c", text)]
    tried = subprocess.run(
        [psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=sqlstate", *commands, url],
        capture_output=True,
        text=True,
        check=False,
    )
    assert tried.returncode == 0 or "42501" in tried.stderr, (statement, tried.stderr)
    return tried.returncode != 0


def test_every_table_sequence_and_column_of_the_store_has_an_entry_in_the_list_of_grants(
    connection: Connection,
) -> None:
    found = connection.execute(
        "SELECT relname::text AS name FROM pg_class c WHERE relnamespace = 'etl'::regnamespace"
        "   AND relkind IN ('r', 'p', 'S') AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid"
        "   AND d.deptype = 'i')"
    ).fetchall()
    assert {row["name"] for row in found} - TABLES.keys() == set()


def test_each_statement_of_the_store_is_allowed_to_those_who_need_it_only(restricted: Accounts) -> None:
    allowed: dict[str, set[str]] = {name: set() for name in database.statement_names()}
    for account, url in (("api", restricted.api), ("runner", restricted.runner)):
        with connect(url, name="tests") as session:
            for name in database.statement_names():
                text = database.statement(name)
                arguments = dict.fromkeys(re.findall(r"%\((\w+)\)s", text))
                with suppress(psycopg.errors.InsufficientPrivilege):
                    session.execute(sql.SQL("EXPLAIN {}").format(sql.SQL(text)), arguments)
                    allowed[name].add(account)
    assert {name for name, accounts in allowed.items() if accounts == {"api"}} == API_ONLY
    assert {name for name, accounts in allowed.items() if accounts == {"runner"}} == RUNNER_ONLY
    assert not [name for name, accounts in allowed.items() if not accounts]


def test_marts_are_built_under_the_three_accounts(
    connection: Connection, settings: Settings, restricted: Accounts
) -> None:
    api, runner = restricted.of_api(settings), restricted.of_runner(settings)
    with connect(restricted.api, name="tests") as asking, connect(restricted.runner, name="tests") as working:
        for definition in (RATINGS, GENRES):
            validation.validate(Definition.model_validate(definition), api)
            pipeline = changes.create(asking, api, Definition.model_validate(definition))
            for _ in range(2):
                succeed(working, runner, pipeline)
            assert (
                differences(connection, pipeline.definition.source_query or "", str(definition["target_table"]), "id")
                == []
            )
            assert reconcile.compare(pipeline.definition, runner).equal
            assert history.list_runs(asking, pipeline.id)
        connection.execute("UPDATE ugc.ratings SET rating = 1, modified = now() WHERE rating = 10")
        succeed(working, runner, pipelines.get(asking, "ratings"))
        assert differences(connection, str(RATINGS["source_query"]), "analytics.ratings", "id") == []


_ENTRY = "(actor, role, via, operation{}) {}VALUES ('someone', 'admin', 'cli', 'pipelines.delete'{})"
TAMPERING = (
    "UPDATE etl.etl_audit SET actor = 'someone'",
    "DELETE FROM etl.etl_audit",
    "TRUNCATE etl.etl_audit",
    "INSERT INTO etl.etl_audit " + _ENTRY.format(", at", "", ", '2020-01-01'"),
    "INSERT INTO etl.etl_audit " + _ENTRY.format(", id", "OVERRIDING SYSTEM VALUE ", ", 1"),
    "ALTER TABLE etl.etl_audit DISABLE TRIGGER append_only",
    "DROP TRIGGER append_only ON etl.etl_audit",
    "DROP FUNCTION etl.refuse_audit_change() CASCADE",
    "CREATE OR REPLACE FUNCTION etl.refuse_audit_change() RETURNS trigger LANGUAGE sql AS ''",
    "DROP TABLE etl.etl_audit",
    "ALTER TABLE etl.etl_audit RENAME TO gone",
    "CREATE RULE gone AS ON INSERT TO etl.etl_audit DO INSTEAD NOTHING",
    "SET session_replication_role = replica",
)
"""Ways to change, remove or backdate an entry of the audit log."""


def test_chains_and_messages_work_under_the_three_accounts(settings: Settings, restricted: Accounts) -> None:
    api, runner = restricted.of_api(settings), restricted.of_runner(settings)
    with connect(restricted.api, name="tests") as asking, connect(restricted.runner, name="tests") as working:
        ratings = changes.create(asking, api, Definition.model_validate(RATINGS))
        genres = changes.create(asking, api, Definition.model_validate({**GENRES, "after": ["ratings"]}))
        held = start(working, ratings)
        queue.end_run(working, held, Event.FAIL, RunStatus.FAILED, error_code="CONFIG", error_message="x")
        succeed(working, runner, ratings)
        assert pipelines.get(asking, genres.id).status is Status.RUN_REQUESTED
        assert history.record_stale(working, []) == 0
        message = history.claim_notification(working, ["failure"], hidden=timedelta(0))
        assert message is not None
        history.record_sent(working, message)
        assert history.notification_backlog(asking, ["failure"]).waiting == 0
        changes.change(asking, api, "genres", {"after": []})
        pipelines.delete(asking, "ratings")


EVERY_TABLE = (
    "content.film_work",
    "ugc.ratings",
    "etl.etl_pipelines",
    "etl.etl_state",
    "etl.etl_runs",
    "analytics.marts",
)


@pytest.mark.promise("K16")
def test_the_reader_cannot_write_anywhere(connection: Connection, restricted: Accounts) -> None:
    connection.execute("CREATE TABLE analytics.marts (id integer)")
    attempts = [
        *(f"INSERT INTO {table} DEFAULT VALUES" for table in EVERY_TABLE),
        *(f"DELETE FROM {table}" for table in EVERY_TABLE),
        *(f"TRUNCATE {table}" for table in EVERY_TABLE),
        *(f"DROP TABLE {table}" for table in EVERY_TABLE),
        *(f"CREATE TABLE {schema}.mine ()" for schema in ("content", "ugc", "etl", "analytics", "vitrine", "public")),
        "UPDATE ugc.ratings SET rating = 1",
        "SELECT * FROM ugc.ratings FOR UPDATE",
        "CREATE SCHEMA mine",
        "SELECT nextval('etl.fencing_seq')",
        "SELECT * FROM etl.etl_pipelines",
        "SELECT * FROM analytics.marts",
        "CREATE ROLE mine",
        "ALTER FUNCTION vitrine.open_transactions() SECURITY INVOKER",
        "COPY ugc.ratings TO '/tmp/x'",
    ]
    assert [one for one in attempts if not refused(restricted.reader, one)] == []
    assert not refused(restricted.reader, "SELECT * FROM ugc.ratings")


@pytest.mark.promise("K16", "H10", "H17")
def test_the_api_s_account_cannot_touch_a_lease_or_a_mart(connection: Connection, restricted: Accounts) -> None:
    connection.execute("CREATE TABLE analytics.marts (id integer)")
    attempts = [
        "UPDATE etl.etl_pipelines SET lease_token = 1",
        "UPDATE etl.etl_pipelines SET lease_owner = 'me'",
        "UPDATE etl.etl_pipelines SET lease_expires_at = now()",
        "UPDATE etl.etl_pipelines SET heartbeat_at = now()",
        "UPDATE etl.etl_pipelines SET status = 'IDLE', lease_token = NULL",
        "INSERT INTO etl.etl_pipelines (name, lease_token) VALUES ('x', 1)",
        "SELECT nextval('etl.fencing_seq')",
        "SELECT setval('etl.fencing_seq', 1)",
        "UPDATE etl.etl_state SET lease_token = 1",
        "INSERT INTO etl.etl_state DEFAULT VALUES",
        "UPDATE etl.etl_runs SET status = 'SUCCESS'",
        "DELETE FROM etl.etl_runs",
        "INSERT INTO etl.etl_rejects DEFAULT VALUES",
        "TRUNCATE etl.etl_pipelines CASCADE",
        "CREATE TABLE etl.stage_mine ()",
        "CREATE TABLE analytics.mine ()",
        "SELECT * FROM analytics.marts",
        "DELETE FROM analytics.marts",
        "SELECT * FROM ugc.ratings",
        "ALTER TABLE etl.etl_pipelines DISABLE TRIGGER ALL",
        "UPDATE etl.alembic_version SET version_num = '0001'",
        "DELETE FROM etl.etl_tokens",
        *TAMPERING,
    ]
    assert [one for one in attempts if not refused(restricted.api, one)] == []


@pytest.mark.promise("K16", "H17")
def test_the_runner_s_account_cannot_change_configuration(connection: Connection, restricted: Accounts) -> None:
    attempts = [
        *(f"UPDATE etl.etl_pipelines SET {column} = DEFAULT" for column in DEFINITION),
        "INSERT INTO etl.etl_pipelines (name) VALUES ('x')",
        "DELETE FROM etl.etl_pipelines",
        "INSERT INTO etl.etl_pipeline_tasks (order_index) VALUES (1)",
        "UPDATE etl.etl_pipeline_tasks SET body = 'SELECT 1'",
        "DELETE FROM etl.etl_pipeline_tasks",
        "UPDATE etl.etl_installation SET id = gen_random_uuid()",
        "TRUNCATE etl.etl_runs",
        "ALTER TABLE etl.etl_runs ADD COLUMN mine text",
        "SELECT * FROM ugc.ratings",
        "UPDATE ugc.ratings SET rating = 1",
        "SELECT * FROM etl.etl_tokens",
        "INSERT INTO etl.etl_tokens (name) VALUES ('mine')",
        "UPDATE etl.etl_tokens SET role = 'admin'",
        *TAMPERING,
    ]
    assert [one for one in attempts if not refused(restricted.runner, one)] == []
    assert not refused(restricted.runner, "UPDATE etl.etl_pipelines SET lease_owner = 'me'")
    assert not refused(restricted.runner, "CREATE TABLE analytics.mine ()")


def rights_of_others(connection: Connection, names: list[str]) -> list[tuple[Any, ...]]:
    """Every right in the database that does not belong to these roles, and every owner."""
    rows = connection.execute(
        """
        SELECT c.oid::regclass::text AS object, a.grantee, a.privilege_type FROM pg_class c, aclexplode(c.relacl) AS a
         UNION ALL SELECT n.nspname, a.grantee, a.privilege_type FROM pg_namespace n, aclexplode(n.nspacl) AS a
         UNION ALL SELECT d.datname, a.grantee, a.privilege_type FROM pg_database d, aclexplode(d.datacl) AS a
         WHERE d.datname = current_database()
         UNION ALL SELECT p.oid::regprocedure::text, a.grantee, a.privilege_type
          FROM pg_proc p, aclexplode(p.proacl) AS a
        """
    ).fetchall()
    known = connection.execute("SELECT oid FROM pg_roles WHERE rolname = ANY (%s)", [names]).fetchall()
    ours = {row["oid"] for row in known}
    owner = connection.execute("SELECT oid FROM pg_roles WHERE rolname = current_user").fetchone()
    # PostgreSQL writes the default rights of owner and PUBLIC down with the first grant
    return sorted(
        (row["object"], row["grantee"], row["privilege_type"])
        for row in rows
        if row["grantee"] not in ours
        and (owner is None or row["grantee"] not in (owner["oid"],))
        and not (row["grantee"] == 0 and row["privilege_type"] in ("CONNECT", "TEMPORARY"))
    )


@pytest.mark.promise("K16")
def test_creating_the_roles_changes_no_right_of_public_or_of_another_role(
    connection: Connection, database_url: str
) -> None:
    connection.execute(
        "DROP ROLE IF EXISTS analyst; CREATE ROLE analyst; GRANT SELECT ON ugc.ratings TO analyst, PUBLIC"
    )
    before = rights_of_others(connection, [])
    with accounts(connection, database_url) as created:
        assert rights_of_others(connection, list(created.roles)) == before
        assert roles.plan_roles(connection, created.roles, PLACES) == []  # a second time, there is nothing to do
    connection.execute("DROP OWNED BY analyst; DROP ROLE analyst")


@pytest.mark.promise("K16")
def test_an_installation_of_one_account_is_brought_over(connection: Connection, settings: Settings) -> None:
    """Its tables move to the role of the runners, and processes that still use the account continue."""
    database_url = settings.store_url
    connection.execute("DROP ROLE IF EXISTS analyst, former; CREATE ROLE analyst; CREATE ROLE former LOGIN")
    connection.execute("ALTER SCHEMA etl OWNER TO former; ALTER SCHEMA analytics OWNER TO former")
    for row in connection.execute(
        "SELECT oid::regclass::text AS name FROM pg_class WHERE relnamespace = 'etl'::regnamespace AND relkind = 'r'"
        " UNION ALL SELECT 'etl.fencing_seq'"
    ).fetchall():
        kind = "SEQUENCE" if row["name"].endswith("fencing_seq") else "TABLE"
        connection.execute(f"ALTER {kind} {row['name']} OWNER TO former".encode())
    connection.execute("GRANT USAGE ON SCHEMA content, ugc TO former; GRANT pg_read_all_stats TO former")
    connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA content, ugc TO former")
    connection.execute("ALTER DEFAULT PRIVILEGES FOR ROLE former IN SCHEMA analytics GRANT SELECT ON TABLES TO analyst")
    former = Settings.model_validate(settings.model_dump() | {"database_url": as_user(database_url, "former")})
    with connect(former.store_url, name="tests") as own:
        old = changes.create(own, former, Definition.model_validate(GENRES))
        succeed(own, former, old)
        with accounts(connection, database_url) as created:
            assert _owner(connection, "analytics.genres") == created.roles.runner
            runner = created.of_runner(settings)
            with connect(created.runner, name="tests") as working:
                succeed(working, runner, old)
                new = changes.create(own, former, Definition.model_validate(RATINGS))
                succeed(working, runner, new)
            assert _owner(connection, "analytics.ratings") == created.roles.runner
            granted = connection.execute("SELECT has_table_privilege('analyst', 'analytics.ratings', 'SELECT') AS yes")
            assert granted.fetchall() == [{"yes": True}]
            connection.execute("UPDATE ugc.ratings SET rating = 1, modified = now() WHERE rating = 9")
            succeed(own, former, new)  # a process that has not been restarted yet
            assert differences(connection, str(RATINGS["source_query"]), "analytics.ratings", "id") == []
    connection.execute(
        "REASSIGN OWNED BY former TO CURRENT_USER; DROP OWNED BY former; DROP OWNED BY analyst;"
        " DROP ROLE former, analyst"
    )


def _owner(connection: Connection, table: str) -> str:
    row = connection.execute(
        "SELECT pg_get_userbyid(relowner) AS owner FROM pg_class WHERE oid = %s::regclass", [table]
    ).fetchone()
    return row["owner"] if row else ""


@pytest.mark.promise("K16")
def test_two_accounts_of_runners_build_one_mart(
    connection: Connection, settings: Settings, restricted: Accounts
) -> None:
    second = f"{restricted.roles.runner}_2"
    connection.execute(f"CREATE ROLE {second} LOGIN IN ROLE {restricted.roles.runner}".encode())
    first_settings = restricted.of_runner(settings)
    second_settings = Settings.model_validate(
        first_settings.model_dump() | {"database_url": as_user(settings.store_url, second)}
    )
    pipeline = changes.create(connection, settings, Definition.model_validate(GENRES))
    with connect(restricted.runner, name="tests") as one, connect(second_settings.store_url, name="tests") as two:
        succeed(one, first_settings, pipeline)
        connection.execute("DELETE FROM content.genre WHERE name = (SELECT max(name) FROM content.genre)")
        succeed(two, second_settings, pipeline)
    assert differences(connection, str(GENRES["source_query"]), "analytics.genres", "id") == []
    connection.execute(f"DROP OWNED BY {second}; DROP ROLE {second}".encode())


OPERATORS = """
    DO $do$
    DECLARE
        types text[] := '{text[],uuid,text,name,jsonb,timestamptz,bigint,integer,interval,oid}';
        operators text[] := '{=,<>,<,>,<=,>=,||,&&,~,-,+}';
        operator text; l text; r text; number integer := 0;
    BEGIN
        FOREACH operator IN ARRAY operators LOOP FOREACH l IN ARRAY types LOOP FOREACH r IN ARRAY types LOOP
            CONTINUE WHEN EXISTS (SELECT FROM pg_operator WHERE oprname = operator AND oprnamespace = 11
                                     AND oprleft = l::regtype AND oprright = r::regtype);
            number := number + 1;
            EXECUTE format('CREATE FUNCTION public.evil%s(%s, %s) RETURNS boolean LANGUAGE plpgsql AS '
                           '$f$ BEGIN RAISE EXCEPTION ''evil''; END $f$', number, l, r);
            EXECUTE format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = public.evil%s)',
                           operator, l, r, number);
        END LOOP; END LOOP; END LOOP;
    END $do$
"""
"""An operator for every pair of types that PostgreSQL has none for, or only one for any type: these come first."""


@pytest.mark.promise("K1", "K16")
def test_operators_that_others_create_in_the_search_path_run_in_no_session_of_ours(
    connection: Connection, settings: Settings, restricted: Accounts
) -> None:
    connection.execute("CREATE ROLE evil LOGIN; GRANT CREATE ON SCHEMA public TO evil")
    try:
        with connect(as_user(settings.store_url, "evil"), name="tests") as evil:
            evil.execute("SET search_path = pg_catalog")
            evil.execute(OPERATORS)
        api, runner = restricted.of_api(settings), restricted.of_runner(settings)
        with connect(restricted.api, name="tests") as asking, connect(restricted.runner, name="tests") as working:
            for definition in (RATINGS, GENRES):
                pipeline = changes.create(asking, api, Definition.model_validate(definition))
                for _ in range(2):
                    succeed(working, runner, pipeline)
            assert check_accounts(working, runner) == []
        # as a superuser, whose search_path has the schema
        migrate(settings.store_url)
        assert roles.find_prefix(connection) == restricted.roles.runner.removesuffix("_runner")
        assert roles.apply_roles(connection, restricted.roles, PLACES) == []
        codes = {one.code: one.text for one in check_accounts(connection, settings)}
        assert "schema public: operators and functions that role 'evil'" in codes["SEARCH_PATH"]
    finally:
        connection.execute("DROP OWNED BY evil CASCADE; DROP ROLE evil")


# -- the function that shows open transactions ------------------------------------------------------------------------


@pytest.mark.promise("J6")
@pytest.mark.parametrize("sees_all", [False, True])
def test_only_the_reader_may_call_the_function_and_it_does_not_count_as_writing(
    sees_all: bool, connection: Connection, restricted: Accounts
) -> None:
    if sees_all:
        connection.execute(f"GRANT pg_read_all_stats TO {restricted.roles.reader}".encode())
    call = "SELECT * FROM vitrine.open_transactions()"
    assert refused(restricted.runner, call)
    assert refused(restricted.api, call)
    with connect(restricted.reader, name="tests") as long_read, connect(restricted.reader, name="tests") as asking:
        long_read.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT * FROM ugc.ratings LIMIT 1")
        connection.execute("BEGIN")  # of a role that can write
        held = watermark.read_horizon(asking)
        assert held.blocker is not None
        assert restricted.roles.reader not in held.blocker
        connection.execute("ROLLBACK")
        free = watermark.read_horizon(asking)
        assert (free.at, free.blocker) == (free.now, None)


@pytest.mark.promise("J6")
@pytest.mark.parametrize(
    "change",
    [
        "CREATE OR REPLACE FUNCTION vitrine.open_transactions() RETURNS TABLE ({columns}) LANGUAGE sql SECURITY DEFINER"
        " SET search_path = pg_catalog, pg_temp AS $$ {other} $$",
        "ALTER FUNCTION vitrine.open_transactions() SECURITY INVOKER",
        "ALTER FUNCTION vitrine.open_transactions() SET search_path = public",
        "DROP FUNCTION vitrine.open_transactions()",
    ],
)
def test_a_function_that_is_not_exactly_ours_is_not_called(
    connection: Connection, restricted: Accounts, change: str
) -> None:
    connection.execute(
        change.format(columns=horizon.COLUMNS, other=horizon.PLAIN.replace("pg_roles", "pg_roles ")).encode()
    )
    with (
        connect(restricted.reader, name="tests") as asking,
        pytest.raises(ConfigError, match="are hidden from") as caught,
    ):
        watermark.read_horizon(asking)
    assert caught.value.code == "HORIZON_UNAVAILABLE"


# -- what is wrong with accounts --------------------------------------------------------------------------------------


def test_one_account_for_everything_works_and_its_cost_is_named(connection: Connection, settings: Settings) -> None:
    found = {one.code: one.text for one in check_accounts(connection, settings)}
    assert found.keys() == {"ACCOUNT_SUPERUSER", "SOURCE_ACCOUNT"}
    assert all("vitrine migrate --roles" in text or "VITRINE_SOURCES__DEFAULT" in text for text in found.values())


def test_restricted_accounts_have_no_finding(settings: Settings, restricted: Accounts) -> None:
    for url, own in (
        (restricted.api, restricted.of_api(settings)),
        (restricted.runner, restricted.of_runner(settings)),
    ):
        with connect(url, name="tests") as store:
            assert check_accounts(store, own) == []


def test_a_reader_that_can_write_and_rights_of_an_earlier_release_are_found(
    connection: Connection, settings: Settings, restricted: Accounts
) -> None:
    connection.execute(f"GRANT INSERT (rating) ON ugc.ratings TO {restricted.roles.reader}".encode())
    connection.execute(f"REVOKE SELECT ON etl.etl_runs FROM {restricted.roles.api}".encode())
    with connect(restricted.runner, name="tests") as store:
        found = {one.code: one.text for one in check_accounts(store, restricted.of_runner(settings))}
    assert found.keys() == {"READER_WRITES", "GRANTS_OUTDATED"}
    assert "may write to ugc.ratings" in found["READER_WRITES"]
    assert "GRANT SELECT" in found["GRANTS_OUTDATED"]


@pytest.mark.promise("K16")
@pytest.mark.parametrize(
    ("prepared", "reason"),
    [
        ("CREATE ROLE mighty_api CREATEROLE", "it would not be restricted"),
        ("CREATE ROLE mighty_api; GRANT pg_write_all_data TO mighty_api", "it would not be restricted"),
        ("CREATE ROLE mighty_runner LOGIN", "was not created for this store"),
        ("CREATE ROLE mighty_runner; CREATE ROLE mighty_other IN ROLE mighty_runner", "was not created for this store"),
    ],
)
def test_a_role_that_somebody_has_prepared_is_refused(connection: Connection, prepared: str, reason: str) -> None:
    """Otherwise a user who may create roles on the server could prepare one that gets rights here."""
    connection.execute(prepared.encode())
    with pytest.raises(ConfigError, match=reason) as caught:
        roles.apply_roles(connection, roles.Roles.of("mighty"), PLACES)
    assert caught.value.code == "ROLE_NAME"
    connection.execute("DROP ROLE IF EXISTS mighty_other, mighty_api, mighty_runner")


@pytest.mark.promise("K16")
def test_the_roles_of_another_installation_on_the_server_are_refused(
    restricted: Accounts, postgres: EmbeddedPostgres
) -> None:
    prefix = restricted.roles.runner.removesuffix("_runner")
    with database_beside(postgres) as url:
        migrate(url)
        with connect(url, name="tests") as other, pytest.raises(ConfigError, match="was not created for this store"):
            roles.apply_roles(other, roles.Roles.of(prefix), PLACES)


@pytest.mark.promise("K16")
def test_a_pipeline_that_the_api_s_account_stores_gives_the_runner_no_right_on_its_target(
    connection: Connection, restricted: Accounts
) -> None:
    connection.execute(
        "DROP ROLE IF EXISTS payroll; CREATE ROLE payroll; CREATE SCHEMA secret; CREATE TABLE secret.pay (id int);"
        " CREATE TABLE analytics.shared (id int); ALTER TABLE secret.pay OWNER TO payroll;"
        " ALTER TABLE analytics.shared OWNER TO payroll"
    )
    with connect(restricted.api, name="tests") as api:
        for number, target in enumerate(("secret.pay", "content.genre", "analytics.shared")):
            api.execute(
                "INSERT INTO etl.etl_pipelines (name, type, source_query, target_table, mode, key_columns)"
                " VALUES (%s, 'SQL', 'SELECT 1', %s, 'full', '{id}')",
                [f"hostile_{number}", target],
            )
    statements = roles.apply_roles(connection, restricted.roles, PLACES)
    assert {statement.split(" ON ")[1] for statement in statements} == {
        f'TABLE "analytics"."shared" TO "{restricted.roles.runner}"'
    }
    connection.execute("DROP OWNED BY payroll; DROP ROLE payroll")


def test_an_account_without_the_right_to_create_roles_is_refused_with_the_remedy(
    connection: Connection, restricted: Accounts
) -> None:
    with connect(restricted.runner, name="tests") as own, pytest.raises(ConfigError) as caught:
        roles.apply_roles(own, roles.Roles.of("more"), PLACES)
    assert "connect as a superuser, or give the output of `vitrine migrate --roles --print-sql` to one" in str(
        caught.value
    )


def test_the_script_for_a_further_source_prepares_its_reader(
    postgres: EmbeddedPostgres, connection: Connection
) -> None:
    script = roles.reader_script(roles.Roles.of("further"), roles.Places(sources=("content",)))
    with database_beside(postgres) as url, connect(url, name="tests") as admin:
        admin.execute("CREATE TABLE content.film (id integer)")
        for statement in script:
            admin.execute(statement.encode())
        admin.execute("CREATE ROLE further_1 LOGIN IN ROLE further_reader")
        own = as_user(url, "further_1")
        assert not refused(own, "SELECT * FROM content.film")
        assert refused(own, "INSERT INTO content.film VALUES (1)")
        with connect(own, name="tests") as reading:
            assert watermark.read_horizon(reading).now is not None
        admin.execute("DROP OWNED BY further_1, further_reader; DROP ROLE further_1, further_reader")
