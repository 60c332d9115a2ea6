"""What a source offers to pipelines: readable tables with keys and cursor candidates, and a first YAML file each."""

from contextlib import nullcontext
from typing import Any

import pytest
from fastapi.testclient import TestClient
from psycopg import sql

from vitrine.api.app import create_app
from vitrine.definition import files, yaml
from vitrine.errors import ConfigError, NotFound
from vitrine.operations import checks
from vitrine.operations.bodies.overview import TableBody
from vitrine.operations.context import Context, local_caller
from vitrine.plan import validation
from vitrine.postgres import Connection
from vitrine.settings import Settings


@pytest.fixture
def context(connection: Connection, settings: Settings) -> Context:
    return Context(settings, local_caller(), lambda: nullcontext(connection))


def tables(context: Context, **options: Any) -> dict[str, TableBody]:
    return {one.full_name: one for one in checks.list_tables(context, "default", **options).items}


def test_tables_have_their_key_and_the_best_cursor_first(context: Context) -> None:
    found = tables(context)
    film = found["content.film_work"]
    assert (film.kind, film.key, film.cursors[0].column) == ("table", ["id"], "modified")
    assert film.cursors[0].reasons == ["named like the time of a change", "indexed"]
    assert {column.name: column.type for column in film.columns}["rating"] == "double precision"
    assert sorted(name.partition(".")[0] for name in found)[0] == "content"
    assert not [name for name in found if name.startswith(("etl.", "analytics.", "pg_"))]


def test_only_allowed_schemas_and_readable_columns_are_listed(
    context: Context, connection: Connection, settings: Settings
) -> None:
    connection.execute(
        """
        CREATE TABLE public.other (id int PRIMARY KEY);
        CREATE TABLE content.hidden (id int PRIMARY KEY);
        CREATE TABLE content.partly (id int PRIMARY KEY, updated_at timestamptz NOT NULL, secret text);
        DROP ROLE IF EXISTS tables_reader;
        CREATE ROLE tables_reader LOGIN;
        GRANT USAGE ON SCHEMA content TO tables_reader;
        GRANT SELECT (updated_at) ON content.partly TO tables_reader;
        """
    )
    url = settings.store_url.replace("postgres@", "tables_reader@")
    reading = Context(
        Settings.model_validate({"database_url": settings.store_url, "sources": {"default": url}}),
        context.caller,
        context.connection,
    )
    try:
        found = tables(reading)
        assert list(found) == ["content.partly"]
        (column,) = found["content.partly"].columns
        assert (column.name, found["content.partly"].key) == ("updated_at", [])
    finally:
        connection.execute("DROP OWNED BY tables_reader; DROP ROLE tables_reader")
    with pytest.raises(ConfigError, match="VITRINE_ALLOWED_SOURCE_SCHEMAS"):
        tables(context, schema="public")
    with pytest.raises(NotFound, match="configured: default"):
        checks.list_tables(context, "billing")


def test_every_kind_of_table_is_described(context: Context, connection: Connection) -> None:
    connection.execute(
        """
        CREATE TABLE content.parted (id int, day date, updated_at timestamptz, PRIMARY KEY (id, day))
            PARTITION BY RANGE (day);
        CREATE TABLE content.parted_1 PARTITION OF content.parted FOR VALUES FROM ('2025-01-01') TO ('2026-01-01');
        CREATE VIEW content.seen AS SELECT id, title FROM content.film_work;
        CREATE TABLE content.unkeyed (n int, film_id int);
        CREATE UNIQUE INDEX ON content.unkeyed (n);
        CREATE TABLE content.numbered (id bigserial PRIMARY KEY, code text NOT NULL UNIQUE, film_id bigint);
        """
    )
    found = tables(context)
    assert "content.parted_1" not in found  # it is read through its table
    assert (found["content.parted"].kind, found["content.parted"].key) == ("partitioned table", ["id", "day"])
    assert found["content.parted"].cursors[0].reasons[-1] == "may be NULL"
    assert (found["content.seen"].kind, found["content.seen"].rows, found["content.seen"].key) == ("view", None, [])
    assert found["content.unkeyed"].key == []  # NULL may occur more than once
    assert [one.column for one in found["content.numbered"].cursors] == ["id"]
    assert not found["content.numbered"].cursors[0].is_modification


def test_pages_continue_where_the_last_one_ended(context: Context) -> None:
    whole = list(tables(context))
    seen: list[str] = []
    after: str | None = ""
    while after is not None:
        page = checks.list_tables(context, "default", after=after, limit=3)
        seen += [one.full_name for one in page.items]
        after = page.next
    assert seen == whole


def test_the_first_file_of_every_table_is_valid(context: Context, connection: Connection, settings: Settings) -> None:
    connection.execute(
        """
        CREATE TABLE content."Odd Table" ("user" int PRIMARY KEY, "Select" text, "a""b" text, updated_at timestamptz);
        CREATE TABLE content."2nd" (id int PRIMARY KEY, "order" int);
        """
    )
    for name, table in tables(context).items():
        cursor = next((one.column for one in table.cursors if one.is_modification), None)
        columns = [column.name for column in table.columns]
        starting = files.Starting(table.schema_name, table.name, columns, table.key, cursor)
        document = yaml.parse_text(f"{name}.yaml", starting.text())
        report = validation.validate(document.valid_definition(), settings)
        assert [column.name for column in report.columns] == columns, name


def test_routes_list_tables_and_transforms(settings: Settings, connection: Connection) -> None:
    with TestClient(create_app(settings)) as client:
        page = client.get("/api/v1/sources/default/tables", params={"schema": "ugc", "limit": 1}).json()
        assert [one["name"] for one in page["items"]] == ["likes"]
        assert (page["items"][0]["schema"], page["next"]) == ("ugc", "ugc.likes")
        assert client.get("/sources/billing/tables").status_code == 404
        assert client.get("/sources/default/tables", params={"schema": "etl"}).status_code == 422
        assert client.get("/sources/default/tables", params={"table": "a\0b"}).status_code == 422
        names = [one["name"] for one in client.get("/api/v1/transforms").json()["items"]]
        assert {"map_fields", "calendar_days"} <= set(names)


def test_names_are_quoted_only_where_sql_needs_it() -> None:
    starting = files.Starting("content", "film", ["id", "user", "Name", 'a"b'], ["id"], None)
    assert 'SELECT id, "user", "Name", "a""b"\n' in starting.text()
    assert sql.Identifier('a"b').as_string(None) == '"a""b"'
