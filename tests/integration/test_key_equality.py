"""Keys are compared by the operators of their type, and the stored key follows the source."""

from typing import Any

import pytest
from psycopg import sql

from tests.helpers.events import both_modes
from tests.helpers.planning_changes import figures, of_run, planned
from tests.helpers.reconciling import NOTHING, keys, report
from tests.helpers.running import create, differences, run, succeed
from tests.helpers.types import create_caseless, create_nondeterministic_collation
from vitrine.connectors.postgres.sink.catalog import describe
from vitrine.connectors.postgres.sink.session import TargetStatements
from vitrine.core.rows import Column, Stamp
from vitrine.definition.model import Definition
from vitrine.definition.pipeline import Pipeline
from vitrine.errors import ConfigError
from vitrine.operations import changes
from vitrine.plan import planner, validation
from vitrine.postgres import TEXT_FORMAT, Connection, raw
from vitrine.settings import Settings

QUERY = "SELECT code, note, modified FROM ugc.codes"
TARGET = "analytics.codes"


def fields_of(mode: str, **fields: Any) -> dict[str, Any]:
    cursor = {"incremental_key": "modified", "incremental_id_key": "code"} if mode == "incremental" else {}
    defaults = {"source_query": QUERY, "target_table": TARGET, "key_columns": ["code"], "mode": mode}
    return {**defaults, **cursor, **fields}


def create_codes(connection: Connection, settings: Settings, mode: str, kind: str, *codes: str) -> Pipeline:
    """A source and a mart with keys of this type, after the first run."""
    for table in ("ugc.codes", TARGET):
        connection.execute(
            raw(f"CREATE TABLE {table} (code {kind} PRIMARY KEY, note text, modified timestamptz DEFAULT now())")
        )
    for code in codes:
        connection.execute("INSERT INTO ugc.codes VALUES (%s)".replace("%s", f"'{code}'").encode())
    pipeline = create(connection, settings, **fields_of(mode))
    succeed(connection, settings, pipeline)
    return pipeline


def stored(connection: Connection) -> list[str]:
    rows = connection.execute("SELECT code::text AS code FROM analytics.codes ORDER BY 1").fetchall()
    return [row["code"] for row in rows]


@pytest.mark.promise("J3", "J14")
@both_modes
def test_a_key_that_only_its_own_operator_finds_equal_updates_its_row(
    connection: Connection, settings: Settings, mode: str
) -> None:
    create_caseless(connection)
    codes = create_codes(connection, settings, mode, "public.caseless", "Alpha", "Beta")
    other = "SELECT code::text, xmin::text FROM analytics.codes WHERE code::text = 'Beta'"
    before = connection.execute(other).fetchone()
    connection.execute("UPDATE ugc.codes SET code = 'ALPHA', modified = now() WHERE code::text = 'Alpha'")
    executed = succeed(connection, settings, codes)
    assert (executed.counts.written, executed.counts.deleted) == (1, 0)
    assert stored(connection) == ["ALPHA", "Beta"]
    assert connection.execute(other).fetchone() == before


@pytest.mark.promise("J3")
def test_a_merge_finds_its_rows_by_the_key_index(connection: Connection) -> None:
    create_caseless(connection)
    connection.execute("CREATE TABLE analytics.codes (code public.caseless PRIMARY KEY, note text)")
    connection.execute("CREATE TABLE analytics.batch (code public.caseless, note text)")
    connection.execute("INSERT INTO analytics.codes SELECT n::text, '' FROM generate_series(1, 5000) n")
    connection.execute("INSERT INTO analytics.batch VALUES ('7', 'x'); ANALYZE analytics.codes, analytics.batch")
    table = sql.Identifier("analytics", "codes")
    facts = describe(connection, table)
    assert facts is not None
    equal = facts.columns["code"].facts.equal
    assert equal is not None
    merge = TargetStatements(table, ("code",), None, {"code": equal}).merge(
        sql.SQL("analytics.batch"), ["code", "note"]
    )
    with connection.transaction():
        connection.execute(TEXT_FORMAT)
        connection.execute("SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off")
        plan = connection.execute(sql.SQL("EXPLAIN {}").format(merge)).fetchall()
    assert any("codes_pkey" in row["QUERY PLAN"] for row in plan), plan


@pytest.mark.promise("J14")
@both_modes
@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [("numeric", "1.0", "1.00"), ("double precision", "0", "-0"), ("interval", "1 day", "24:00:00")],
)
def test_an_equal_key_with_another_image_is_stored_as_the_source_has_it(
    connection: Connection, settings: Settings, mode: str, kind: str, old: str, new: str
) -> None:
    codes = create_codes(connection, settings, mode, kind, old)
    connection.execute(raw(f"UPDATE ugc.codes SET code = '{new}', modified = now()"))
    executed = succeed(connection, settings, codes)
    assert (executed.counts.written, executed.counts.deleted) == (1, 0)
    assert stored(connection) == [new]
    assert differences(connection, QUERY, TARGET, "code") == []
    assert succeed(connection, settings, codes).counts.written == 0


IMAGES = [("numeric", "1.0", "1.00"), ("interval", "1 day", "24:00:00"), ("public.caseless", "Alpha", "ALPHA")]


@pytest.mark.promise("J14", "R1", "R5")
@pytest.mark.parametrize(("kind", "old", "new"), IMAGES)
def test_an_equal_key_with_another_image_is_different_and_no_repair_deletes_its_row(
    connection: Connection, settings: Settings, kind: str, old: str, new: str
) -> None:
    create_caseless(connection)
    codes = create_codes(connection, settings, "incremental", kind, old)
    long_ago = "UPDATE {} SET modified = '2024-01-01'"
    connection.execute(raw(f"{long_ago.format('ugc.codes')}, code = '{new}'; {long_ago.format(TARGET)}"))
    assert figures(of_run(planned(settings, codes), "full")) == (0, 1, 0)
    options = {"delete_mode": "reconcile_keys", "max_delete_ratio": 1}
    codes = changes.change(connection, settings, codes.id, {"options": options})
    assert succeed(connection, settings, codes).counts.deleted == 0
    found = report(connection, settings, codes)
    assert keys(found) == NOTHING | {"different": [new]}
    assert found["different"]["columns"] == {new: ["code"]}
    assert stored(connection) == [old]
    assert report(connection, settings, codes, repair=True)["equal"]
    assert stored(connection) == [new]


@pytest.mark.promise("J14")
def test_an_update_of_another_column_does_not_set_an_exact_key(connection: Connection, settings: Settings) -> None:
    codes = create_codes(connection, settings, "full", "text", "a")
    connection.execute(
        "CREATE TABLE analytics.uses (code text REFERENCES analytics.codes ON UPDATE RESTRICT);"
        "INSERT INTO analytics.uses VALUES ('a')"
    )
    connection.execute("UPDATE ugc.codes SET note = 'x'")
    assert succeed(connection, settings, codes).counts.written == 1


@pytest.mark.promise("J14")
@both_modes
@pytest.mark.parametrize(
    ("source", "target", "code"),
    [
        ("text", "text COLLATE public.ignoring_case", "KEY_COLLATION"),
        ("text", "public.caseless", "KEY_TYPE"),
        ("text", "character(5)", "KEY_TYPE"),
    ],
)
def test_a_target_that_finds_more_keys_equal_than_the_source_is_refused(
    connection: Connection, settings: Settings, mode: str, source: str, target: str, code: str
) -> None:
    create_caseless(connection)
    create_nondeterministic_collation(connection)
    for table, kind in (("ugc.codes", source), (TARGET, target)):
        connection.execute(raw(f"CREATE TABLE {table} (code {kind} PRIMARY KEY, note text, modified timestamptz)"))
    definition = Definition.model_validate({"name": "codes", **fields_of(mode)})
    with pytest.raises(ConfigError, match="'code'") as refused:
        validation.validate(definition, settings)
    assert refused.value.code == code
    pipeline = create(connection, settings, **fields_of(mode))
    failed = run(connection, settings, pipeline).error
    assert failed is not None
    assert failed.code == code


@pytest.mark.promise("J14")
@pytest.mark.parametrize(("source", "target"), [("integer", "numeric"), ("numeric", "numeric(9,2)"), ("uuid", "text")])
def test_a_wider_key_column_is_accepted(connection: Connection, settings: Settings, source: str, target: str) -> None:
    for table, kind in (("ugc.codes", source), (TARGET, target)):
        connection.execute(raw(f"CREATE TABLE {table} (code {kind} PRIMARY KEY, note text, modified timestamptz)"))
    definition = Definition.model_validate({"name": "codes", **fields_of("full")})
    assert validation.validate(definition, settings).target_exists


@pytest.mark.promise("J3")
def test_a_unique_index_with_other_operators_does_not_cover_the_key(connection: Connection, settings: Settings) -> None:
    connection.execute("CREATE TABLE ugc.codes (code text PRIMARY KEY, note text, modified timestamptz)")
    create_nondeterministic_collation(connection)
    connection.execute(
        "CREATE TABLE analytics.codes (code text, note text, modified timestamptz);"
        "CREATE UNIQUE INDEX ON analytics.codes (code COLLATE public.ignoring_case)"
    )
    definition = Definition.model_validate({"name": "codes", **fields_of("full")})
    with pytest.raises(ConfigError) as refused:
        validation.validate(definition, settings)
    assert refused.value.code == "KEY_NOT_UNIQUE"


@pytest.mark.promise("J3")
def test_rows_are_deleted_and_fetched_by_the_operator_of_their_key(connection: Connection, settings: Settings) -> None:
    create_caseless(connection)
    codes = create_codes(connection, settings, "full", "public.caseless", "Alpha", "Beta")
    prepared = planner.prepare(planner.check(codes.definition, settings), writes=False)
    try:
        sink = prepared.plan.sink
        key = (Column("code", "text"),)
        assert sum(batch.count for batch in sink.fetch([("ALPHA",)], key)) == 1
        with sink.unit(Stamp(1, 1, 1)) as unit:
            unit.delete([("ALPHA",)])
    finally:
        prepared.close()
    assert stored(connection) == ["Beta"]
