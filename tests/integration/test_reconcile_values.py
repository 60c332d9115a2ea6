"""Reconcile compares the source's value with the stored one, whatever their types, encodings and collations."""

from typing import Any

import pytest

from tests.helpers.databases import source_database
from tests.helpers.running import create, succeed
from tests.helpers.tasks import register
from vitrine.compare import reconcile
from vitrine.connectors.postgres import compare_sql
from vitrine.core.keys import row_hash
from vitrine.core.rows import Column, Compare
from vitrine.definition.model import Definition
from vitrine.definition.pipeline import Pipeline
from vitrine.definition.registry import Kind, Task
from vitrine.embedded import EmbeddedPostgres
from vitrine.postgres import STABLE_NAMES, Connection, raw
from vitrine.settings import Settings
from vitrine.store import history

UUID = "8f2b3c1e-0d5a-4f0e-9a44-5f0c6a523a55"

PAIRS = [
    ("numeric", "1.5", "integer", "2", False),
    ("numeric", "1.005", "numeric(10,2)", "1.01", False),
    ("numeric", "1.0", "numeric(10,2)", "1.00", True),
    ("numeric", "1.0", "numeric", "1.00", False),
    ("integer", "5", "numeric", "5.4", False),
    ("integer", "5", "numeric(10,2)", "5.00", True),
    ("double precision", "0.1", "real", "0.1", False),
    ("real", "0.1", "double precision", "0.10000000149011612", True),
    ("double precision", "0.1", "numeric", "0.1", True),
    ("double precision", "NaN", "numeric", "NaN", True),
    ("double precision", "1e-300", "numeric", "0", False),
    ("bigint", "9007199254740993", "double precision", "9007199254740992", False),
    ("bigint", "9007199254740992", "double precision", "9007199254740992", True),
    ("oid", "4294967295", "bigint", "4294967295", True),
    ("timestamptz", "2025-01-01 12:03+00", "date", "2025-01-01", False),
    ("timestamptz", "2025-01-01 00:00+00", "date", "2025-01-01", True),
    ("timestamptz", "2025-01-01 00:00+00", "date", "300000-01-01", False),
    ("timestamptz", "2025-01-01 12:00:00.123456+00", "timestamptz(3)", "2025-01-01 12:00:00.123+00", False),
    ("timestamptz", "2025-01-01 12:00+00", "timestamp", "2025-01-01 12:00", True),
    ("date", "infinity", "timestamp", "infinity", True),
    ("time", "12:00", "timetz", "12:00+00", True),
    ("interval", "1 mon", "interval", "30 days", False),
    ("text", "abcdef", "varchar(3)", "abc", False),
    ("varchar(3)", "abc", "text", "abcdef", False),
    ("varchar(3)", "abc", "text", "abc", True),
    ("char(5)", "ab", "text", "ab", True),
    ("char(5)", "ab", "char(8)", "ab", True),
    ("text", "ab", "char(5)", "ab", True),
    ("text", "ab ", "char(5)", "ab", False),
    ('"char"', "a", "text", "a", True),
    ("name", "ab", "text", "ab", True),
    ("json", '{"b": 1,  "a": 2}', "jsonb", '{"a": 2, "b": 1}', True),
    ("json", '{"a": 1}', "jsonb", '{"a": 1.5}', False),
    ("json", '{"a": 1}', "json", '{"a":1}', False),
    ("boolean", "true", "text", "true", True),
    ("boolean", "true", "text", "t", True),
    ("boolean", "true", "text", "false", False),
    ("boolean", "true", "text", "neither", False),
    ("inet", "10.0.0.1", "text", "10.0.0.1/32", True),
    ("inet", "10.0.0.1", "text", "10.0.0.2/32", False),
    ("bytea", "\\x61", "text", "\\x61", True),
    ("uuid", UUID, "text", UUID, True),
    ("point", "(1,2)", "text", "(1,2)", True),
    ("text[]", "{a,NULL}", "varchar(9)[]", "{a,NULL}", True),
    ("integer[]", "{1,2}", "bigint[]", "{1,3}", False),
    ("content.mood", "sad", "text", "sad", True),
    ("content.mood", "sad", "content.mood", "glad", False),
]
"""Type and value in the source, type and value in the target, and whether they are equal."""

KEYS = [
    ("bytea", ("\\x00ff", "\\x61", "")),
    ("jsonb", ('{"a": 1}', "[2]", '"x"')),
    ("uuid", (UUID, UUID.replace("8", "9"))),
    ("boolean", ("true", "false")),
    ("oid", ("4294967295", "7")),
    ("bit(3)", ("101", "001")),
    ("interval", ("1 day", "2 mons")),
    ("integer[]", ("{1,2}", "{3}")),
    ("int4range", ("[1,3)", "[3,9)")),
    ("inet", ("10.0.0.1", "10.0.0.0/8")),
    ('"char"', ("a", "b")),
    ("content.mood", ("sad", "glad")),
]
"""Types of keys, with values."""


def definition(**fields: Any) -> Definition:
    defaults: dict[str, Any] = {
        "name": "under_test",
        "source_query": "SELECT * FROM content.t",
        "target_table": "analytics.t",
        "key_columns": ["id"],
    }
    return Definition.model_validate(defaults | fields)


def created(connection: Connection, settings: Settings, **fields: Any) -> Pipeline:
    return create(connection, settings, **definition(**fields).model_dump(exclude={"type"}, mode="json"))


def unchanged(rows: Any) -> Any:
    """A transform."""
    return rows


def reconciled(settings: Settings, connection: Connection, pipeline: Pipeline) -> reconcile.Comparison:
    """As the command does it."""
    return reconcile.compare(pipeline.definition, settings, history.sink_facts(connection, pipeline.id).open_rejects)


@pytest.mark.promise("J31")
def test_the_sources_value_is_compared_with_what_is_stored_and_not_after_the_same_cast(
    connection: Connection, settings: Settings
) -> None:
    connection.execute("CREATE TYPE content.mood AS ENUM ('glad', 'sad')")
    by_value = definition(options={"control_column": "value"})
    wrong: list[object] = []
    for source_type, value, target_type, stored, is_equal in PAIRS:
        connection.execute("DROP TABLE IF EXISTS content.t, analytics.t")
        for table, type_name, text in (("content.t", source_type, value), ("analytics.t", target_type, stored)):
            connection.execute(raw(f"CREATE TABLE {table} (id integer PRIMARY KEY, value {type_name})"))
            connection.execute(raw(f"INSERT INTO {table} VALUES (1, %s), (2, NULL)"), [text])
        comparison = reconcile.compare(by_value, settings)
        if comparison.equal is not is_equal or comparison.source.rows != 2:
            wrong.append((source_type, value, target_type, stored, comparison))
    assert wrong == []


@pytest.mark.promise("J30")
def test_a_key_of_any_type_is_compared(connection: Connection, settings: Settings) -> None:
    connection.execute("CREATE TYPE content.mood AS ENUM ('glad', 'sad')")
    for number, (key_type, values) in enumerate(KEYS):
        table = f"t{number}"
        connection.execute(raw(f"CREATE TABLE content.{table} (id {key_type} PRIMARY KEY, note text)"))
        for value in values:
            connection.execute(raw(f"INSERT INTO content.{table} VALUES (%s, 'as it was')"), [value])
        fields = {"source_query": f"SELECT * FROM content.{table}", "target_table": f"analytics.{table}"}
        pipeline = created(connection, settings, name=table, **fields)
        succeed(connection, settings, pipeline)
        comparison = reconciled(settings, connection, pipeline)
        assert (comparison.equal, comparison.source.rows) == (True, len(values)), key_type
        connection.execute(raw(f"UPDATE analytics.{table} SET note = 'changed by hand'"))
        assert "different values" in reconciled(settings, connection, pipeline).sentence(), key_type


@pytest.mark.promise("J30")
def test_a_control_column_without_an_order_is_compared_by_its_text(connection: Connection, settings: Settings) -> None:
    connection.execute(
        "CREATE TABLE content.t (id integer PRIMARY KEY, json json, point point, box box, words tsvector, bytes bytea,"
        " list text[], amount money)"
    )
    connection.execute("INSERT INTO content.t VALUES (1, '1', '(1,2)', '(2,2),(1,1)', 'a', 'b', '{c}', 7)")
    succeed(connection, settings, created(connection, settings))
    for control in ("json", "point", "box", "words", "bytes", "list", "amount"):
        comparison = reconcile.compare(definition(options={"control_column": control}), settings)
        assert comparison.equal, control
        assert comparison.source.lowest == comparison.source.highest is not None


@pytest.mark.promise("J30")
def test_keys_in_quarantine_are_left_out_and_named(connection: Connection, settings: Settings) -> None:
    connection.execute("CREATE TABLE content.t (id integer PRIMARY KEY, size integer)")
    connection.execute("INSERT INTO content.t SELECT n, n FROM generate_series(1, 5) AS n")
    connection.execute("CREATE TABLE analytics.t (id integer PRIMARY KEY, size integer CHECK (size < 100))")
    pipeline = created(connection, settings, options={"on_reject": "quarantine"})
    succeed(connection, settings, pipeline)
    assert reconciled(settings, connection, pipeline).left_out == ()
    connection.execute("UPDATE content.t SET size = 500 WHERE id = 3")
    succeed(connection, settings, pipeline)
    comparison = reconciled(settings, connection, pipeline)
    assert comparison.equal, comparison.sentence()
    assert comparison.source.rows == 4
    (sentence,) = comparison.left_out
    assert sentence.startswith("1 key(s) in quarantine are not compared: ")
    assert "3" in sentence.partition(": ")[2]
    connection.execute("UPDATE analytics.t SET size = 0 WHERE id = 4")
    assert not reconciled(settings, connection, pipeline).equal


@pytest.mark.promise("J30")
def test_a_composite_key_in_quarantine_is_found_by_its_value(connection: Connection, settings: Settings) -> None:
    for table, type_name, value in (("content.t", "numeric", "1.50"), ("analytics.t", "numeric(9,3)", "2.5")):
        connection.execute(raw(f"CREATE TABLE {table} (a text, b {type_name}, c integer, PRIMARY KEY (a, b))"))
        connection.execute(raw(f"INSERT INTO {table} VALUES ('x/y', {value}, 1), ('x', 7, 1)"))
    both = definition(key_columns=["a", "b"])
    assert not reconcile.compare(both, settings).equal
    # one is missing in the target, the other one in the source
    comparison = reconcile.compare(both, settings, ['["x/y", "1.5"]', '["x/y","2.50"]', '["x/y", "9"]'])
    assert comparison.equal, comparison.sentence()
    assert comparison.source.rows == comparison.target.rows == 1


@pytest.mark.promise("J30", "J35")
def test_columns_of_different_collation_are_compared_by_their_characters(
    connection: Connection, settings: Settings
) -> None:
    connection.execute(
        'CREATE TABLE content.t (id integer PRIMARY KEY, word text COLLATE "C", other text COLLATE "POSIX")'
    )
    connection.execute("INSERT INTO content.t VALUES (1, 'b', 'x'), (2, 'Z', 'é'), (3, 'a', 'Y'), (4, 'B', NULL)")
    # the collation of the second column is undecided: PostgreSQL refuses to order it
    query = "SELECT id, word || other AS word FROM content.t"
    pipeline = created(connection, settings, source_query=query, options={"control_column": "word"})
    connection.execute('CREATE TABLE analytics.t (id integer PRIMARY KEY, word text COLLATE "ucs_basic")')
    succeed(connection, settings, pipeline)
    comparison = reconciled(settings, connection, pipeline)
    assert comparison.equal, comparison.sentence()
    assert (comparison.source.lowest, comparison.source.highest) == ("Zé", "bx")
    connection.execute("UPDATE analytics.t SET word = 'aY ' WHERE id = 3")
    assert not reconciled(settings, connection, pipeline).equal


@pytest.mark.promise("J1", "J35")
@pytest.mark.parametrize(
    ("encoding", "words"),
    [("LATIN1", ("zebra", "été", "Ära")), ("WIN1251", ("ёж", "я", "Ж", "abc")), ("SQL_ASCII", ("ёж", "é", "abc"))],
)
def test_texts_are_compared_by_characters_whatever_the_encoding(
    connection: Connection, settings: Settings, postgres: EmbeddedPostgres, encoding: str, words: tuple[str, ...]
) -> None:
    with source_database(postgres, settings, encoding=encoding) as (source, reading):
        source.execute("CREATE TABLE content.t (word text PRIMARY KEY)")
        for word in words:
            source.execute("INSERT INTO content.t VALUES (%s)", [word])
        pipeline = created(connection, reading, key_columns=["word"])
        succeed(connection, reading, pipeline)
        comparison = reconciled(reading, connection, pipeline)
        assert comparison.equal, comparison.sentence()
        assert (comparison.target.lowest, comparison.target.highest) == (min(words), max(words))
        connection.execute("UPDATE analytics.t SET word = 'other' WHERE word = %s", [words[0]])
        assert not reconciled(reading, connection, pipeline).equal


@pytest.mark.promise("J1")
def test_a_column_that_cannot_be_converted_is_named(
    connection: Connection, settings: Settings, postgres: EmbeddedPostgres
) -> None:
    with source_database(postgres, settings, encoding="SQL_ASCII") as (source, reading):
        source.execute("CREATE TABLE content.t (id integer PRIMARY KEY, word text, other text)")
        source.execute(rb"INSERT INTO content.t VALUES (1, E'\xe9', 'a')")
        connection.execute("CREATE TABLE analytics.t (id integer PRIMARY KEY, word text, other text)")
        connection.execute("INSERT INTO analytics.t VALUES (1, 'é', 'a')")
        comparison = reconcile.compare(definition(), reading)
    assert not comparison.equal
    (unreadable,) = comparison.unreadable
    assert unreadable.startswith("column 'word' cannot be compared")
    assert comparison.columns == ("id", "other")


@pytest.mark.promise("J15")
def test_the_query_runs_under_its_own_settings_and_its_values_are_formatted_under_ours(
    connection: Connection, settings: Settings, postgres: EmbeddedPostgres
) -> None:
    defaults = {"TimeZone": "Europe/Moscow", "DateStyle": "German", "IntervalStyle": "iso_8601"}
    with source_database(postgres, settings, **defaults) as (source, reading):
        source.execute("CREATE TABLE content.t (id integer PRIMARY KEY, at timestamptz, took interval)")
        source.execute("INSERT INTO content.t VALUES (1, '2025-06-30 22:30+00', '90 min')")
        query = "SELECT id, at, at::date AS day, at::text AS shown, took FROM content.t"
        columns = tuple(
            Column(name, type_name)
            for name, type_name in (
                ("id", "integer"),
                ("at", "timestamp with time zone"),
                ("day", "date"),
                ("shown", "text"),
                ("took", "interval"),
            )
        )
        relation = compare_sql.Relation(raw(f"({query})"), own_settings=True)
        source.execute("BEGIN; SET LOCAL DateStyle = German; SET LOCAL IntervalStyle = iso_8601;" + STABLE_NAMES)
        (found,) = compare_sql.digest(source, relation, Compare(columns[:1], columns))
        source.execute("ROLLBACK")
        assert found.hash == row_hash(
            ["1", "2025-06-30 22:30:00+00", "2025-07-01", "01.07.2025 01:30:00 MSK", "01:30:00"]
        )
        pipeline = created(connection, reading, source_query=query)
        succeed(connection, reading, pipeline)
        assert reconciled(reading, connection, pipeline).equal


@pytest.mark.promise("J30")
def test_what_only_one_side_has_and_what_is_ignored_is_named(connection: Connection, settings: Settings) -> None:
    connection.execute("CREATE TABLE content.t (id integer PRIMARY KEY, at timestamptz, extra text)")
    connection.execute("INSERT INTO content.t VALUES (1, now(), 'a'), (2, NULL, 'b')")
    connection.execute("CREATE TABLE analytics.t (id integer PRIMARY KEY, at timestamptz, note text, seen timestamptz)")
    connection.execute("INSERT INTO analytics.t SELECT id, at FROM content.t WHERE id = 1")
    comparison = reconcile.compare(
        definition(
            mode="incremental",
            incremental_key="at",
            options={"on_null_cursor": "ignore", "touch_column": "seen", "on_schema_change": "add_columns"},
        ),
        settings,
    )
    assert comparison.equal
    assert comparison.left_out == (
        "rows with NULL in 'at' or 'id' are not compared (options.on_null_cursor: ignore)",
        "column(s) note, seen are not compared: only the target has them",
        "column(s) extra are not compared: only the source has them",
    )


@pytest.mark.promise("J31")
@pytest.mark.parametrize("kind", [Kind.ROW, Kind.FRAME])
@pytest.mark.parametrize(
    ("rating", "at", "label", "is_equal"),
    [
        ("integer", "timestamptz", "text", False),
        ("numeric(4,2)", "date", "text", False),
        ("numeric(4,2)", "timestamptz", "varchar(3)", False),
        ("numeric(4,2)", "timestamptz", "varchar(9)", True),
        ("double precision", "timestamp", "text", True),
    ],
)
def test_what_a_transform_returns_is_compared_before_the_target_changes_it(
    connection: Connection,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    kind: Kind,
    rating: str,
    at: str,
    label: str,
    is_equal: bool,
) -> None:
    register(monkeypatch, Task("unchanged", kind, unchanged, None))
    connection.execute("CREATE TABLE content.t (id integer PRIMARY KEY, rating numeric, at timestamptz, label text)")
    connection.execute("INSERT INTO content.t VALUES (1, 1.5, '2025-01-01 12:03+00', 'label')")
    connection.execute(
        raw(f"CREATE TABLE analytics.t (id integer PRIMARY KEY, rating {rating}, at {at}, label {label})")
    )
    stored = "SELECT id, rating, at AT TIME ZONE 'UTC', label FROM content.t"
    if at == "timestamptz":
        stored = stored.replace(" AT TIME ZONE 'UTC'", "")
    if label == "varchar(3)":
        stored = stored.replace("label", "left(label, 3)")
    connection.execute(raw(f"INSERT INTO analytics.t {stored}"))
    comparison = reconcile.compare(definition(python_task="unchanged"), settings)
    assert comparison.equal is is_equal, comparison
