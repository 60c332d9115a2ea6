"""Targets with triggers, rules, policies and columns of their own: what is stored is right, or the run is refused."""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.helpers.events import both_modes
from tests.helpers.running import create, differences, run, succeed
from tests.helpers.types import create_caseless
from vitrine.core.rows import Column
from vitrine.definition.model import Definition
from vitrine.definition.pipeline import Pipeline
from vitrine.errors import ConfigError
from vitrine.plan import planner, validation
from vitrine.postgres import Connection, raw
from vitrine.settings import Settings

QUERY = "SELECT id, note, modified FROM ugc.parts"
TARGET = "analytics.parts"
COLUMNS = "id integer PRIMARY KEY, note text, modified timestamptz"


@pytest.fixture(autouse=True)
def parts(connection: Connection) -> None:
    """Five rows in the source."""
    connection.execute("CREATE TABLE ugc.parts (id integer PRIMARY KEY, note text, modified timestamptz NOT NULL)")
    connection.execute("INSERT INTO ugc.parts SELECT n, 'note ' || n, now() FROM generate_series(1, 5) n")


def create_parts(connection: Connection, settings: Settings, mode: str, columns: str, **fields: Any) -> Pipeline:
    """A pipeline with an empty mart of these columns."""
    connection.execute(raw(f"CREATE TABLE analytics.parts ({columns})"))
    cursor = {"incremental_key": "modified"} if mode == "incremental" else {}
    defaults = {"source_query": QUERY, "target_table": TARGET, "key_columns": ["id"], "mode": mode}
    return create(connection, settings, **defaults | cursor | fields)


def add_trigger(connection: Connection, when: str, body: str) -> None:
    """A trigger `meddle`; `body` is PL/pgSQL that returns a row or NULL."""
    connection.execute(
        raw(
            "CREATE OR REPLACE FUNCTION analytics.meddle() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN {body} END $$; CREATE TRIGGER meddle {when} EXECUTE FUNCTION analytics.meddle()"
        )
    )


def is_right(connection: Connection) -> bool:
    return differences(connection, QUERY, TARGET, "id") == []


def fails_with(connection: Connection, settings: Settings, pipeline: Pipeline, code: str, *parts: str) -> None:
    failed = run(connection, settings, pipeline).error
    assert failed is not None
    assert failed.code == code, failed
    assert [part for part in parts if part not in str(failed)] == []


def refused(settings: Settings, pipeline: Pipeline, code: str, *parts: str) -> None:
    """Both by validate and by a run."""
    with pytest.raises(ConfigError) as found:
        validation.validate(pipeline.definition, settings)
    assert found.value.code == code
    assert [part for part in parts if part not in str(found.value)] == []


# -- triggers and rules -----------------------------------------------------------------------------------------------


MEDDLING = [
    ("BEFORE INSERT ON analytics.parts FOR EACH ROW", "IF NEW.id = 3 THEN RETURN NULL; END IF; RETURN NEW;"),
    ("BEFORE INSERT OR UPDATE ON analytics.parts FOR EACH ROW", "NEW.note := upper(NEW.note); RETURN NEW;"),
    ("AFTER INSERT ON analytics.parts", "UPDATE analytics.parts SET note = 'x' WHERE id = 2; RETURN NULL;"),
    ("AFTER INSERT ON analytics.parts FOR EACH ROW", "DELETE FROM analytics.parts WHERE id = NEW.id; RETURN NULL;"),
]


@pytest.mark.promise("J20")
@both_modes
@pytest.mark.parametrize(("when", "body"), MEDDLING)
def test_a_trigger_that_changes_what_is_stored_fails_the_run_and_is_named(
    connection: Connection, settings: Settings, mode: str, when: str, body: str
) -> None:
    pipeline = create_parts(connection, settings, mode, COLUMNS)
    add_trigger(connection, when, body)
    (warning,) = validation.validate(pipeline.definition, settings).warnings
    assert "triggers (meddle)" in warning
    fails_with(connection, settings, pipeline, "TARGET_CHANGED_ROWS", "meddle", "on_target_trigger")
    assert connection.execute("SELECT count(*) AS n FROM analytics.parts").fetchone() == {"n": 0}
    connection.execute("DROP TRIGGER meddle ON analytics.parts")
    succeed(connection, settings, pipeline)
    assert is_right(connection)


@pytest.mark.promise("J20")
@both_modes
@pytest.mark.parametrize(("when", "body"), MEDDLING[:2])
def test_a_trigger_that_changes_what_is_stored_is_a_warning_by_option(
    connection: Connection, settings: Settings, mode: str, when: str, body: str, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = create_parts(connection, settings, mode, COLUMNS, options={"on_target_trigger": "warn"})
    add_trigger(connection, when, body)
    with caplog.at_level(logging.WARNING):
        succeed(connection, settings, pipeline)
    assert "of the rows differently or not at all" in caplog.text
    assert "meddle" in caplog.text


@pytest.mark.promise("J20")
@both_modes
def test_a_trigger_that_stores_every_row_as_it_is_changes_nothing(
    connection: Connection, settings: Settings, mode: str
) -> None:
    pipeline = create_parts(connection, settings, mode, f"{COLUMNS}, length integer")
    when = "BEFORE INSERT OR UPDATE ON analytics.parts FOR EACH ROW"
    add_trigger(connection, when, "NEW.length := length(NEW.note); RETURN NEW;")
    succeed(connection, settings, pipeline)
    connection.execute("UPDATE ugc.parts SET note = 'changed', modified = now() WHERE id = 3")
    assert succeed(connection, settings, pipeline).counts.written == 1
    assert is_right(connection)


@pytest.mark.promise("J20")
def test_a_trigger_that_keeps_rows_which_have_vanished_fails_the_load(
    connection: Connection, settings: Settings
) -> None:
    pipeline = create_parts(connection, settings, "full", COLUMNS)
    succeed(connection, settings, pipeline)
    add_trigger(connection, "BEFORE DELETE ON analytics.parts FOR EACH ROW", "RETURN NULL;")
    connection.execute("DELETE FROM ugc.parts WHERE id = 3")
    fails_with(connection, settings, pipeline, "TARGET_CHANGED_ROWS", "1 rows that the source lacks", "meddle")


@pytest.mark.promise("J20")
@pytest.mark.parametrize("option", ["fail", "warn"])
@pytest.mark.parametrize("delete_mode", ["soft_column", "reconcile_keys"])
def test_a_trigger_that_keeps_rows_which_changes_delete_fails_the_run(
    connection: Connection, settings: Settings, delete_mode: str, option: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"delete_mode": delete_mode, "on_target_trigger": option}
    options |= {"delete_column": "gone"} if delete_mode == "soft_column" else {}
    connection.execute("ALTER TABLE ugc.parts ADD gone boolean")
    query = "SELECT id, note, modified, gone FROM ugc.parts"
    columns = f"{COLUMNS}, gone boolean"
    pipeline = create_parts(connection, settings, "incremental", columns, source_query=query, options=options)
    succeed(connection, settings, pipeline)
    add_trigger(connection, "BEFORE DELETE ON analytics.parts FOR EACH ROW", "RETURN NULL;")
    if delete_mode == "soft_column":
        connection.execute("UPDATE ugc.parts SET gone = true, modified = now() WHERE id = 3")
    else:
        connection.execute("DELETE FROM ugc.parts WHERE id = 3")
    if option == "fail":
        fails_with(connection, settings, pipeline, "TARGET_CHANGED_ROWS", "1 rows that were deleted", "meddle")
    else:
        with caplog.at_level(logging.WARNING):
            succeed(connection, settings, pipeline)
        assert "1 rows that were deleted" in caplog.text


PARTITIONS = (
    "ALTER TABLE analytics.parts RENAME TO whole; CREATE TABLE analytics.parts (LIKE analytics.whole INCLUDING ALL)"
    " PARTITION BY RANGE (id); CREATE TABLE analytics.low PARTITION OF analytics.parts FOR VALUES FROM (0) TO (4);"
    " CREATE TABLE analytics.high PARTITION OF analytics.parts DEFAULT"
)


@pytest.mark.promise("J20")
@both_modes
@pytest.mark.parametrize(
    "children",
    [PARTITIONS, "CREATE TABLE analytics.low () INHERITS (analytics.parts); INSERT INTO analytics.low (id) VALUES (3)"],
    ids=["partition", "child"],
)
def test_a_trigger_of_a_partition_is_seen(connection: Connection, settings: Settings, mode: str, children: str) -> None:
    pipeline = create_parts(connection, settings, mode, COLUMNS)
    connection.execute(raw(children))
    when = "BEFORE INSERT OR UPDATE ON analytics.low FOR EACH ROW"
    add_trigger(connection, when, "NEW.note := upper(NEW.note); RETURN NEW;")
    (warning,) = validation.validate(pipeline.definition, settings).warnings
    assert "triggers (meddle)" in warning
    fails_with(connection, settings, pipeline, "TARGET_CHANGED_ROWS", "meddle")
    connection.execute("DROP TRIGGER meddle ON analytics.low")
    succeed(connection, settings, pipeline)
    assert is_right(connection)


@pytest.mark.promise("J20")
@both_modes
def test_a_trigger_that_a_run_does_not_fire_is_ignored(connection: Connection, settings: Settings, mode: str) -> None:
    pipeline = create_parts(connection, settings, mode, COLUMNS)
    add_trigger(connection, *MEDDLING[0])
    connection.execute("ALTER TABLE analytics.parts DISABLE TRIGGER meddle")
    assert validation.validate(pipeline.definition, settings).warnings == ()
    succeed(connection, settings, pipeline)
    assert is_right(connection)


@pytest.mark.promise("J20")
@both_modes
@pytest.mark.parametrize("event", ["INSERT", "UPDATE", "DELETE"])
def test_a_rule_of_the_target_is_refused_by_name(
    connection: Connection, settings: Settings, mode: str, event: str
) -> None:
    pipeline = create_parts(connection, settings, mode, COLUMNS)
    connection.execute(raw(f"CREATE RULE swallow AS ON {event} TO analytics.parts DO INSTEAD NOTHING"))
    refused(settings, pipeline, "TARGET_RULE", "swallow")
    fails_with(connection, settings, pipeline, "TARGET_RULE", "swallow")


# -- columns and checks -----------------------------------------------------------------------------------------------


@pytest.mark.promise("J28")
@both_modes
@pytest.mark.parametrize(
    ("column", "part"),
    [
        ("note text GENERATED ALWAYS AS ('x') STORED", "is generated"),
        ("note bigint GENERATED ALWAYS AS IDENTITY", "SET GENERATED BY DEFAULT"),
    ],
)
@pytest.mark.parametrize("on_schema_change", ["fail", "add_columns"])
def test_a_column_that_cannot_be_written_is_refused_by_name(
    connection: Connection, settings: Settings, mode: str, column: str, part: str, on_schema_change: str
) -> None:
    columns = f"id integer PRIMARY KEY, {column}, modified timestamptz"
    query = QUERY if "text" in column else QUERY.replace("note", "id::bigint AS note")
    options = {"on_schema_change": on_schema_change}
    pipeline = create_parts(connection, settings, mode, columns, source_query=query, options=options)
    refused(settings, pipeline, "TARGET_SCHEMA", "'note'", part)
    fails_with(connection, settings, pipeline, "TARGET_SCHEMA", "'note'", part)


@pytest.mark.promise("J28")
@both_modes
def test_an_identity_column_in_the_key_is_written_as_it_is_read(
    connection: Connection, settings: Settings, mode: str
) -> None:
    columns = COLUMNS.replace("integer", "integer GENERATED ALWAYS AS IDENTITY")
    pipeline = create_parts(connection, settings, mode, columns)
    succeed(connection, settings, pipeline)
    connection.execute("UPDATE ugc.parts SET note = 'changed', modified = now()")
    succeed(connection, settings, pipeline)
    assert is_right(connection)


@pytest.mark.promise("J28")
@both_modes
def test_old_rows_may_break_a_check_that_is_not_valid_and_new_ones_may_not(
    connection: Connection, settings: Settings, mode: str
) -> None:
    pipeline = create_parts(connection, settings, mode, COLUMNS)
    succeed(connection, settings, pipeline)
    connection.execute("ALTER TABLE analytics.parts ADD CONSTRAINT short CHECK (note <> 'note 3') NOT VALID")
    connection.execute("UPDATE ugc.parts SET note = 'other', modified = now() WHERE id = 1")
    assert succeed(connection, settings, pipeline).counts.written == 1
    assert is_right(connection)
    connection.execute("UPDATE ugc.parts SET note = 'note 3', modified = now() WHERE id = 2")
    fails_with(connection, settings, pipeline, "DATA_ERROR", "short", "row 2")


@contextmanager
def role(connection: Connection, name: str) -> Generator[str]:
    """A role of the cluster, for the time of a test."""
    connection.execute(raw(f"DROP ROLE IF EXISTS {name}"))
    connection.execute(raw(f"CREATE ROLE {name} LOGIN"))
    try:
        yield name
    finally:
        connection.execute(raw(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}"))


@pytest.mark.promise("J28")
@both_modes
@pytest.mark.parametrize("owner", [True, False])
def test_a_policy_that_would_hide_rows_of_the_target_is_refused(
    connection: Connection, settings: Settings, database_url: str, mode: str, owner: bool
) -> None:
    pipeline = create_parts(connection, settings, mode, COLUMNS)
    succeed(connection, settings, pipeline)
    connection.execute("ALTER TABLE analytics.parts ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
    connection.execute("CREATE POLICY few ON analytics.parts USING (id > 2)")
    with role(connection, f"writer_{mode}_{owner}".lower()) as writer:
        connection.execute(
            raw(
                f"GRANT ALL ON SCHEMA etl, analytics, content, ugc TO {writer};"
                f"GRANT ALL ON ALL TABLES IN SCHEMA etl, analytics, content, ugc TO {writer};"
                f"GRANT ALL ON ALL SEQUENCES IN SCHEMA etl TO {writer}; GRANT pg_read_all_stats TO {writer};"
                f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA etl TO {writer}"
            )
        )
        if owner:
            connection.execute(raw(f"ALTER TABLE analytics.parts OWNER TO {writer}"))
        as_writer = Settings.model_validate({"database_url": database_url.replace("postgres@", f"{writer}@")})
        refused(as_writer, pipeline, "ROW_SECURITY", "NO FORCE ROW LEVEL SECURITY")
        fails_with(connection, as_writer, pipeline, "ROW_SECURITY")
        connection.execute(raw(f"ALTER ROLE {writer} BYPASSRLS"))
        connection.execute("UPDATE ugc.parts SET note = 'changed', modified = now()")
        succeed(connection, as_writer, pipeline)
        assert is_right(connection)


# -- persistence and types --------------------------------------------------------------------------------------------


@pytest.mark.promise("J17")
def test_an_unlogged_target_is_refused_for_changes_and_a_warning_for_full_loads(
    connection: Connection, settings: Settings
) -> None:
    pipeline = create_parts(connection, settings, "incremental", COLUMNS)
    succeed(connection, settings, pipeline)
    connection.execute("ALTER TABLE analytics.parts SET UNLOGGED")
    connection.execute("TRUNCATE analytics.parts")  # as after a crash
    refused(settings, pipeline, "UNLOGGED_TARGET", "SET LOGGED")
    fails_with(connection, settings, pipeline, "UNLOGGED_TARGET", "SET LOGGED")
    full = pipeline.definition.model_copy(update={"mode": "full"})
    (warning,) = validation.validate(full, settings).warnings
    assert "UNLOGGED" in warning


@pytest.mark.promise("J17")
def test_an_unlogged_partition_is_refused_for_changes(connection: Connection, settings: Settings) -> None:
    pipeline = create_parts(connection, settings, "incremental", COLUMNS)
    connection.execute(raw(PARTITIONS))
    connection.execute("ALTER TABLE analytics.low SET UNLOGGED")
    refused(settings, pipeline, "UNLOGGED_TARGET", "ALTER TABLE analytics.low SET LOGGED")


@pytest.mark.promise("J17")
def test_a_full_load_fills_an_unlogged_target_again_after_a_crash(connection: Connection, settings: Settings) -> None:
    pipeline = create_parts(connection, settings, "full", COLUMNS)
    connection.execute("ALTER TABLE analytics.parts SET UNLOGGED")
    succeed(connection, settings, pipeline)
    connection.execute("TRUNCATE analytics.parts")
    succeed(connection, settings, pipeline)
    assert is_right(connection)


@pytest.mark.promise("K1")
@both_modes
@pytest.mark.parametrize("kind", ["public.trap", "public.trap[]"])
def test_a_target_column_whose_type_belongs_to_another_owner_is_refused_before_its_code_runs(
    connection: Connection, settings: Settings, mode: str, kind: str
) -> None:
    with role(connection, f"mallory_{mode}") as mallory:
        connection.execute(
            raw(
                f"GRANT CREATE ON SCHEMA public TO {mallory};"
                "CREATE TABLE analytics.executed (at timestamptz); GRANT INSERT ON analytics.executed TO PUBLIC;"
                f"SET ROLE {mallory};"
                "CREATE FUNCTION public.spring(text) RETURNS boolean LANGUAGE plpgsql AS"
                " 'BEGIN INSERT INTO analytics.executed VALUES (now()); RETURN true; END';"
                "CREATE DOMAIN public.trap AS text CHECK (public.spring(VALUE)); RESET ROLE"
            )
        )
        pipeline = create_parts(
            connection, settings, mode, f"id integer PRIMARY KEY, note {kind}, modified timestamptz"
        )
        refused(settings, pipeline, "TYPE_UNTRUSTED", "'note'", "ALTER COLUMN note TYPE text")
        fails_with(connection, settings, pipeline, "TYPE_UNTRUSTED", "'note'")
        assert connection.execute("SELECT * FROM analytics.executed").fetchall() == []
        connection.execute("DROP TABLE analytics.parts")


@pytest.mark.promise("K1")
@pytest.mark.parametrize("exists", [True, False])
def test_a_type_that_is_not_of_an_extension_in_the_targets_database_is_refused(
    connection: Connection, settings: Settings, exists: bool
) -> None:
    create_caseless(connection)
    connection.execute("CREATE DOMAIN public.own AS text; CREATE TYPE public.mood AS ENUM ('good')")
    if exists:
        connection.execute(raw(f"CREATE TABLE analytics.parts ({COLUMNS})"))
    definition = Definition.model_validate(
        {"name": "parts", "source_query": QUERY, "target_table": TARGET, "key_columns": ["id"]}
    )
    sink = planner.check(definition, settings).sink
    columns = [Column("id", "integer"), Column("modified", "timestamp(3) with time zone")]
    try:
        for name in ("public.missing", "nowhere.type", "public.own", "public.mood", "public.own[]", "public.missing[]"):
            (finding,) = sink.describe([*columns, Column("note", name)]).findings
            assert (finding.code, finding.fatal, finding.column) == ("TYPE_MISSING", True, "note")
            assert name in finding.text
        for name in ("public.caseless", "public.caseless[]", "text", "character varying(5)[]", '"char"'):
            assert sink.describe([*columns, Column("note", name)]).findings == ()
    finally:
        sink.close()
