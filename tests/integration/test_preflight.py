"""What the catalog can tell is said before a row moves: by `validate`, and when a pipeline is created or changed."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr

from tests.helpers.processes import free_port
from tests.helpers.running import create, succeed
from vitrine.api.app import create_app
from vitrine.definition.model import Definition
from vitrine.definition.yaml import Document
from vitrine.errors import ConfigError
from vitrine.operations import changes
from vitrine.plan import planner, validation
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import pipelines

BASE: dict[str, Any] = {
    "name": "under_test",
    "source_query": "SELECT * FROM content.t",
    "target_table": "analytics.t",
    "key_columns": ["id"],
}
INCREMENTAL: dict[str, Any] = {"mode": "incremental", "incremental_key": "code"}

# (what is wrong, statements before, fields of the definition, what the refusal or the warning names)
REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    (
        "the target lacks a column",
        "CREATE TABLE content.t (id integer PRIMARY KEY, code text); CREATE TABLE analytics.t (id integer PRIMARY KEY)",
        {},
        "no column 'code'",
    ),
    (
        "a cursor that does not grow with time",
        "CREATE TABLE content.t (id integer PRIMARY KEY, code text)",
        INCREMENTAL,
        "incremental_key 'code' is of type text",
    ),
    (
        "a column twice",
        "CREATE TABLE content.t (id integer PRIMARY KEY, code text)",
        {"source_query": "SELECT id, code, id AS code FROM content.t"},
        "column 'code' appears twice",
    ),
    (
        "a key that the query does not return",
        "CREATE TABLE content.t (id integer PRIMARY KEY, code text)",
        {"key_columns": ["number"]},
        "'number'",
    ),
    (
        "no key at all",
        "CREATE TABLE content.t (id integer PRIMARY KEY, code text); CREATE TABLE analytics.t (id integer, code text)",
        {"key_columns": []},
        "no primary key",
    ),
    (
        "a key that is not unique in the target",
        "CREATE TABLE content.t (id integer PRIMARY KEY, code text); CREATE TABLE analytics.t (id integer, code text)",
        {},
        "key_columns (id)",
    ),
    (
        "a key without an order",
        "CREATE TABLE content.t (id json, code text)",
        {},
        "column 'id' is of type json",
    ),
    (
        "J31: a type that is not assigned to the target's",
        "CREATE TABLE content.t (id integer PRIMARY KEY, code text);"
        " CREATE TABLE analytics.t (id integer PRIMARY KEY, code integer)",
        {},
        "column 'code' has type text",
    ),
    (
        "J14: keys that are equal only in the target",
        "CREATE TABLE content.t (id text PRIMARY KEY); CREATE TABLE analytics.t (id numeric PRIMARY KEY)",
        {},
        "key column 'id'",
    ),
    (
        "J28: a generated column of the target",
        "CREATE TABLE content.t (id integer PRIMARY KEY, code integer);"
        " CREATE TABLE analytics.t (id integer PRIMARY KEY, code integer GENERATED ALWAYS AS (id) STORED)",
        {},
        "column 'code'",
    ),
    (
        "J28: an identity of the target",
        "CREATE TABLE content.t (id integer PRIMARY KEY, code integer);"
        " CREATE TABLE analytics.t (id integer PRIMARY KEY, code integer GENERATED ALWAYS AS IDENTITY)",
        {},
        "column 'code'",
    ),
    (
        "a target that is no table",
        "CREATE TABLE content.t (id integer PRIMARY KEY);"
        " CREATE MATERIALIZED VIEW analytics.t AS SELECT 1 AS id; CREATE UNIQUE INDEX ON analytics.t (id)",
        {},
        "analytics.t is a materialized view",
    ),
    *(
        (
            f"a type that has the name of the target: {statement}",
            f"CREATE TABLE content.t (id integer PRIMARY KEY); CREATE {statement}",
            {},
            f"a type of this name exists ({kind})",
        )
        for kind, statement in (
            ("enum", "TYPE analytics.t AS ENUM ('a')"),
            ("domain", "DOMAIN analytics.t AS integer"),
            ("range", "TYPE analytics.t AS RANGE (subtype = integer)"),
            ("multirange", "TYPE analytics.r AS RANGE (subtype = integer, multirange_type_name = analytics.t)"),
        )
    ),
    (
        "a composite type that has the name of the target",
        "CREATE TABLE content.t (id integer PRIMARY KEY); CREATE TYPE analytics.t AS (id integer)",
        {},
        "analytics.t is a composite type",
    ),
    (
        "a touch column that cannot hold a time",
        "CREATE TABLE content.t (id integer PRIMARY KEY);"
        " CREATE TABLE analytics.t (id integer PRIMARY KEY, loaded integer)",
        {"options": {"touch_column": "loaded"}},
        "column 'loaded' (touch_column)",
    ),
    (
        "a touch column that is too short for a time",
        "CREATE TABLE content.t (id integer PRIMARY KEY);"
        " CREATE TABLE analytics.t (id integer PRIMARY KEY, loaded varchar(28))",
        {"options": {"touch_column": "loaded"}},
        "column 'loaded' (touch_column)",
    ),
    (
        "a touch column that is a domain over such a type",
        "CREATE TABLE content.t (id integer PRIMARY KEY); CREATE DOMAIN analytics.short AS char(5);"
        " CREATE TABLE analytics.t (id integer PRIMARY KEY, loaded analytics.short)",
        {"options": {"touch_column": "loaded"}},
        "type analytics.short, which cannot hold a time",
    ),
    (
        "a touch column that is generated",
        "CREATE TABLE content.t (id integer PRIMARY KEY);"
        " CREATE TABLE analytics.t (id integer PRIMARY KEY, loaded text GENERATED ALWAYS AS ('') STORED)",
        {"options": {"touch_column": "loaded"}},
        "column 'loaded' (touch_column) of target analytics.t is generated",
    ),
    (
        "a touch column that the query returns",
        "CREATE TABLE content.t (id integer PRIMARY KEY, loaded timestamptz)",
        {"options": {"touch_column": "loaded"}},
        "column 'loaded', which touch_column sets",
    ),
    ("no source table", "SELECT 1", {}, "content.t"),
    (
        "a column that is not there",
        "CREATE TABLE content.t (id integer PRIMARY KEY)",
        {"source_query": "SELECT id, code FROM content.t"},
        "code",
    ),
]

WARNED: list[tuple[str, str, dict[str, Any], str]] = [
    (
        "J31: numeric into integer",
        "CREATE TABLE content.t (id integer PRIMARY KEY, code numeric);"
        " CREATE TABLE analytics.t (id integer PRIMARY KEY, code integer)",
        {},
        "column 'code'",
    ),
    (
        "J31: timestamptz into date",
        "CREATE TABLE content.t (id integer PRIMARY KEY, code timestamptz);"
        " CREATE TABLE analytics.t (id integer PRIMARY KEY, code date)",
        {},
        "column 'code'",
    ),
    (
        "J31: text into varchar",
        "CREATE TABLE content.t (id integer PRIMARY KEY, code text);"
        " CREATE TABLE analytics.t (id integer PRIMARY KEY, code varchar(3))",
        {},
        "column 'code'",
    ),
    (
        "J31: an interval that loses days",
        "CREATE TABLE content.t (id integer PRIMARY KEY, code interval);"
        " CREATE TABLE analytics.t (id integer PRIMARY KEY, code interval year to month)",
        {},
        "column 'code'",
    ),
    (
        "a column that every new row needs",
        "CREATE TABLE content.t (id integer PRIMARY KEY);"
        " CREATE TABLE analytics.t (id integer PRIMARY KEY, code integer NOT NULL)",
        {},
        "column 'code' of target analytics.t is NOT NULL",
    ),
    ("J8: a local time", "CREATE TABLE content.t (id integer PRIMARY KEY, code timestamp)", INCREMENTAL, "'code'"),
    (
        "J19: a sequence with CACHE",
        "CREATE SEQUENCE content.s CACHE 10;"
        " CREATE TABLE content.t (id integer PRIMARY KEY, code integer DEFAULT nextval('content.s'))",
        INCREMENTAL,
        "sequence content.s",
    ),
    (
        "J33: NULL hidden by the query",
        "CREATE TABLE content.t (id integer PRIMARY KEY, code timestamptz); INSERT INTO content.t VALUES (1)",
        {**INCREMENTAL, "source_query": "SELECT * FROM content.t WHERE code >= $1"},
        "'code'",
    ),
]


def definition(**fields: Any) -> Definition:
    return Definition.model_validate(BASE | fields)


@pytest.mark.promise("J31")
@pytest.mark.parametrize(
    ("before", "fields", "named"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_what_every_run_would_hit_is_refused_by_validate_and_by_create(
    connection: Connection, settings: Settings, client: TestClient, before: str, fields: dict[str, Any], named: str
) -> None:
    connection.execute(before.encode())
    with pytest.raises(ConfigError) as refused:
        validation.validate(definition(**fields), settings)
    assert named in str(refused.value)
    answer = client.post("/pipelines", json=BASE | fields)
    assert (answer.status_code, answer.json()["code"]) == (422, refused.value.code), answer.json()
    assert named in answer.json()["detail"]
    assert answer.json()["detail"].endswith("To store it anyway, add ?validate=false")
    assert pipelines.list_all(connection) == []
    assert client.post("/pipelines?validate=false", json=BASE | fields).status_code == 201


@pytest.mark.promise("J31")
@pytest.mark.parametrize(("before", "fields", "named"), [case[1:] for case in WARNED], ids=[case[0] for case in WARNED])
def test_what_some_rows_may_hit_is_a_warning_that_names_it(
    connection: Connection, settings: Settings, before: str, fields: dict[str, Any], named: str
) -> None:
    connection.execute(before.encode())
    assert any(named in warning for warning in validation.validate(definition(**fields), settings).warnings)


@pytest.mark.parametrize("mode", [{}, {"mode": "incremental", "incremental_key": "modified"}])
def test_names_and_types_that_only_resemble_those_that_are_refused_are_accepted(
    connection: Connection, settings: Settings, mode: dict[str, Any]
) -> None:
    connection.execute("CREATE TYPE analytics.t AS ENUM ('a')")  # PostgreSQL moves its array, _t, out of the way
    connection.execute("CREATE TABLE content.t (id integer PRIMARY KEY, modified timestamptz DEFAULT now())")
    connection.execute("INSERT INTO content.t VALUES (1)")
    pipeline = create(connection, settings, **BASE | {"target_table": "analytics._t", **mode})
    assert succeed(connection, settings, pipeline).counts.written == 1
    connection.execute("DROP TABLE analytics._t; CREATE DOMAIN analytics.moment AS varchar(29)")
    connection.execute(
        "CREATE TABLE analytics.u (id integer PRIMARY KEY, modified timestamptz, loaded analytics.moment)"
    )
    fields = {"name": "touched", "target_table": "analytics.u", "options": {"touch_column": "loaded"}, **mode}
    assert succeed(connection, settings, create(connection, settings, **BASE | fields)).counts.written == 1


def test_a_type_that_only_the_source_has_is_carried_as_text(connection: Connection, settings: Settings) -> None:
    connection.execute("CREATE TYPE content.mood AS ENUM ('sad', 'glad'); CREATE TYPE content.pair AS (a int, b text)")
    connection.execute("CREATE TABLE content.t (id integer PRIMARY KEY, mood content.mood, pair content.pair)")
    report = validation.validate(definition(), settings)
    assert [(column.type, column.declared) for column in report.columns[1:]] == [
        ("text", "content.mood"),
        ("jsonb", "content.pair"),
    ]


def test_warnings_are_part_of_the_answer(connection: Connection, client: TestClient) -> None:
    connection.execute("CREATE TABLE content.t (id integer PRIMARY KEY, code timestamptz)")
    options = {"lookback": "90m"}
    created = client.post("/pipelines", json={**BASE, **INCREMENTAL, "options": options})
    assert created.status_code == 201
    assert any("longer than 90m" in warning for warning in created.json()["warnings"])
    changed = client.patch("/pipelines/under_test", json={"options": {"lookback": "2h"}})
    assert changed.status_code == 200
    assert any("longer than 2h" in warning for warning in changed.json()["warnings"])


def test_a_source_that_does_not_respond_is_a_warning(connection: Connection, settings: Settings) -> None:
    unreachable = SecretStr(f"postgresql://reader@127.0.0.1:{free_port()}/x")
    without_source = settings.model_copy(update={"sources": {"default": unreachable}})
    with TestClient(create_app(without_source)) as client:
        created = client.post("/pipelines", json=BASE)
    assert created.status_code == 201
    (warning,) = created.json()["warnings"]
    assert warning.startswith("not validated: source: ")


def test_a_database_that_takes_too_long_is_not_waited_for(connection: Connection, settings: Settings) -> None:
    connection.execute("CREATE TABLE content.t (id integer PRIMARY KEY)")
    with connection.transaction():
        connection.execute("LOCK TABLE content.t")
        (finding,) = validation.preflight(planner.check(definition(), settings), seconds=0.5)
    expected = ("NOT_VALIDATED", "not validated: source or target did not respond within 0.5 s")
    assert (finding.code, finding.text) == expected


def test_a_change_that_source_and_target_do_not_judge_is_stored_unasked(
    connection: Connection, settings: Settings, client: TestClient
) -> None:
    create(connection, settings, **BASE)
    for fields in (
        {"enabled": False},
        {"schedule_interval": "1h"},
        {"batch_size": 7},
        {"options": {"max_rows_per_second": 9}},
    ):
        answer = client.patch("/pipelines/under_test", json=fields)
        assert (answer.status_code, answer.json()["warnings"]) == (200, []), answer.json()
    refused = client.patch("/pipelines/under_test", json={"source_query": "SELECT id FROM content.t"})
    assert refused.status_code == 422
    assert "content.t" in refused.json()["detail"]
    path = "/pipelines/under_test?validate=false"
    assert client.patch(path, json={"source_query": "SELECT id FROM content.t"}).status_code == 200


def test_no_transaction_of_the_store_is_open_while_source_and_target_are_asked(
    connection: Connection, settings: Settings, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.execute("CREATE TABLE content.t (id integer PRIMARY KEY)")
    seen: list[int] = []

    def watched(checked: planner.CheckedDefinition) -> tuple[str, ...]:
        row = connection.execute(
            "SELECT count(*) AS n FROM pg_stat_activity"
            " WHERE application_name = 'vitrine:api' AND xact_start IS NOT NULL"
        ).fetchone()
        seen.append(row["n"] if row else -1)
        return ()

    monkeypatch.setattr(validation, "preflight", watched)
    client.post("/pipelines", json=BASE)
    client.patch("/pipelines/under_test", json={"source_query": "SELECT id FROM content.t"})
    assert seen == [0, 0]


def test_documents_that_are_stored_already_are_not_asked_about_again(
    connection: Connection, settings: Settings
) -> None:
    create(connection, settings, **BASE)
    other = {**BASE, "name": "other", "target_table": "analytics.other"}
    given = {"a.yaml": {**BASE, "description": "new"}, "b.yaml": other, "c.yaml": {"name": "?"}}
    documents = [Document(*one) for one in given.items()]
    assert [document.origin for document, _ in changes.new_work(connection, documents)] == ["b.yaml"]


def test_nothing_is_applied_if_one_document_is_refused(connection: Connection, settings: Settings) -> None:
    other = {**BASE, "name": "b", "target_table": "analytics.b"}
    documents = [Document("a.yaml", BASE), Document("b.yaml", other)]
    with pytest.raises(ConfigError, match=r"b\.yaml: the reason") as refused:
        changes.apply_all(connection, settings, documents, None, refused=["b.yaml: the reason"])
    assert refused.value.code == "NOT_APPLIED"
    assert pipelines.list_all(connection) == []


@pytest.mark.parametrize(("mode", "covers"), [("full", "everything"), ("incremental", "inserts and updates")])
def test_freshness_says_which_changes_it_covers(
    connection: Connection, settings: Settings, client: TestClient, mode: str, covers: str
) -> None:
    cursor = {"incremental_key": "modified"} if mode == "incremental" else {}
    query = "SELECT id, title, modified FROM content.film_work"
    fields = {"source_query": query, "target_table": "analytics.films", "mode": mode, **cursor}
    films = create(connection, settings, **BASE | fields)
    succeed(connection, settings, films)
    for path in ("/pipelines/under_test", "/pipelines/under_test/status"):
        answer = client.get(path).json()
        assert answer["freshness_covers"] == covers
        assert answer["fresh_as_of"] is not None
