"""Row-level security of the source: a shorter mart is refused, unless the pipeline asks for it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr

from tests.helpers.running import create, once_read, run, succeed
from vitrine.api.app import create_app
from vitrine.definition.model import Definition
from vitrine.errors import ConfigError
from vitrine.plan import planner, validation
from vitrine.postgres import Connection, connect, raw
from vitrine.settings import Settings

FIELDS: dict[str, Any] = {
    "name": "under_test",
    "source_query": "SELECT id, title, modified FROM content.film_work",
    "target_table": "analytics.films",
    "key_columns": ["id"],
}
MODES: dict[str, dict[str, Any]] = {"full": {}, "incremental": {"mode": "incremental", "incremental_key": "modified"}}

POLICY = """
    ALTER TABLE content.film_work ENABLE ROW LEVEL SECURITY;
    CREATE POLICY few ON content.film_work USING (title < 'M')
"""
RESPECT = {"options": {"row_security": "respect"}}


@pytest.fixture
def guarded(connection: Connection, settings: Settings, database_url: str) -> Iterator[Settings]:
    """Settings whose source is read by a role that policies apply to."""
    connection.execute("DROP ROLE IF EXISTS guarded")
    connection.execute(
        """
        CREATE ROLE guarded LOGIN;
        GRANT pg_read_all_stats TO guarded;
        GRANT USAGE ON SCHEMA content, ugc TO guarded;
        GRANT SELECT ON ALL TABLES IN SCHEMA content, ugc TO guarded;
        ALTER DEFAULT PRIVILEGES IN SCHEMA content GRANT SELECT ON TABLES TO guarded
        """
    )
    url = database_url.replace("postgres@", "guarded@")
    assert url != database_url
    yield settings.model_copy(update={"sources": {"default": SecretStr(url)}})
    connection.execute("DROP OWNED BY guarded; DROP ROLE guarded")


def films(connection: Connection) -> list[dict[str, Any]]:
    return connection.execute("SELECT * FROM analytics.films ORDER BY id").fetchall()


@pytest.mark.promise("J34")
@pytest.mark.parametrize("mode", MODES)
def test_a_policy_that_is_enabled_between_two_runs_fails_the_second(
    connection: Connection, guarded: Settings, mode: str
) -> None:
    pipeline = create(connection, guarded, **FIELDS, **MODES[mode])
    succeed(connection, guarded, pipeline)
    before = films(connection)
    connection.execute(POLICY)
    connection.execute("UPDATE content.film_work SET title = 'A', modified = now()")
    failed = run(connection, guarded, pipeline).error
    assert isinstance(failed, ConfigError)
    assert failed.code == "ROW_SECURITY"
    assert "row-level security of content.film_work hides rows from role guarded" in str(failed)
    assert "options.row_security: respect" in str(failed)
    assert films(connection) == before
    with pytest.raises(ConfigError, match="role guarded"):
        validation.validate(Definition.model_validate(FIELDS), guarded)


@pytest.mark.promise("J34")
def test_a_policy_that_is_enabled_between_two_snapshots_fails_the_run(
    connection: Connection, guarded: Settings, database_url: str
) -> None:
    pipeline = create(connection, guarded, **FIELDS, batch_size=10, options={"snapshot_max_age": "0s"})

    def enable() -> None:
        with connect(database_url, name="owner") as owner:
            owner.execute(POLICY)

    with ThreadPoolExecutor() as threads:
        failed = run(connection, guarded, pipeline, watch=once_read(10, lambda: threads.submit(enable))).error
    assert failed is not None
    assert failed.code == "ROW_SECURITY"


@pytest.mark.promise("J34")
@pytest.mark.parametrize("setting", ["on", "off"])
def test_a_pipeline_may_respect_a_policy_and_says_so(connection: Connection, guarded: Settings, setting: str) -> None:
    connection.execute(POLICY)
    connection.execute(raw(f"ALTER ROLE guarded SET row_security = {setting}"))
    succeed(connection, guarded, create(connection, guarded, **FIELDS, **RESPECT))
    assert films(connection)
    assert all(row["title"] < "M" for row in films(connection))
    (warning,) = validation.validate(Definition.model_validate(FIELDS | RESPECT), guarded).warnings
    assert "rows that policies of content.film_work hide" in warning
    built = planner.prepare(planner.check(Definition.model_validate(FIELDS | RESPECT), guarded), writes=False)
    built.close()
    assert [finding.code for finding in built.source.findings] == ["ROW_SECURITY"]


@pytest.mark.promise("J34")
def test_policies_do_not_apply_to_an_owner_or_to_a_role_that_bypasses_them(
    connection: Connection, settings: Settings, guarded: Settings
) -> None:
    connection.execute(POLICY)
    assert validation.validate(Definition.model_validate(FIELDS), settings).warnings == ()
    assert validation.validate(Definition.model_validate(FIELDS | RESPECT), settings).warnings == ()
    connection.execute("ALTER ROLE guarded BYPASSRLS")
    assert validation.validate(Definition.model_validate(FIELDS), guarded).warnings == ()


@pytest.mark.promise("J34")
def test_a_policy_behind_a_view_applies_to_the_owner_of_the_view(connection: Connection, guarded: Settings) -> None:
    connection.execute(POLICY)
    connection.execute("DROP ROLE IF EXISTS lender")
    connection.execute(
        """
        CREATE ROLE lender;
        GRANT USAGE ON SCHEMA content TO lender;
        GRANT SELECT ON content.film_work TO lender;
        CREATE VIEW content.lent AS SELECT id, title FROM content.film_work;
        ALTER VIEW content.lent OWNER TO lender;
        GRANT SELECT ON content.lent TO guarded
        """
    )
    try:
        lent = Definition.model_validate(FIELDS | {"source_query": "SELECT * FROM content.lent"})
        with pytest.raises(ConfigError, match=r"row-level security of content\.film_work hides rows from role lender"):
            validation.validate(lent, guarded)
        connection.execute("ALTER ROLE lender BYPASSRLS")
        assert validation.validate(lent, guarded).warnings == ()
        connection.execute("ALTER VIEW content.lent SET (security_invoker = true)")
        with pytest.raises(ConfigError, match="hides rows from role guarded"):
            validation.validate(lent, guarded)
    finally:
        connection.execute("DROP OWNED BY lender; DROP ROLE lender")


@pytest.mark.promise("J34", "K2")
def test_a_policy_that_is_respected_is_inspected(connection: Connection, guarded: Settings) -> None:
    connection.execute(POLICY)
    definition = Definition.model_validate(FIELDS | RESPECT)
    connection.execute(
        "ALTER POLICY few ON content.film_work"
        " USING (title < current_setting('app.tenant', true) OR pg_has_role(current_user, 'MEMBER'))"
    )
    validation.validate(definition, guarded)
    connection.execute("ALTER POLICY few ON content.film_work USING (pg_sleep(0.01) IS NOT NULL)")
    with pytest.raises(ConfigError, match=r"content\.film_work: function 'pg_sleep'"):
        validation.validate(definition, guarded)
    connection.execute("CREATE SCHEMA secret; CREATE TABLE secret.seen (id uuid)")
    connection.execute("ALTER POLICY few ON content.film_work USING (id IN (SELECT id FROM secret.seen))")
    with pytest.raises(ConfigError, match=r"content\.film_work reads secret\.seen"):
        validation.validate(definition, guarded)


@pytest.mark.promise("J34")
@pytest.mark.parametrize(("method", "path"), [("GET", "reconcile"), ("POST", "plan"), ("GET", "trace?key=1")])
def test_checks_name_the_policy_and_the_remedy_of_it_alone(
    connection: Connection, guarded: Settings, method: str, path: str
) -> None:
    pipeline = create(connection, guarded, **FIELDS)
    succeed(connection, guarded, pipeline)
    connection.execute(POLICY)
    with TestClient(create_app(guarded)) as client:
        answer = client.request(method, f"/pipelines/{pipeline.id}/{path}")
    assert (answer.status_code, answer.json()["code"]) == (422, "ROW_SECURITY")
    # the command line reads by the same role
    assert answer.json()["detail"].endswith("if the mart is to hold only what the policies show")
