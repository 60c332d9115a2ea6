"""Columns that bear the names of our aliases, reserved words and odd characters."""

from typing import Any

import pytest
from psycopg import sql

from tests.helpers.events import both_modes
from tests.helpers.running import create, succeed
from vitrine.compare import reconcile
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import checkpoint

ALIASES = [
    "t",
    "s",
    "q",
    "n",
    "k",
    "r",
    "w",
    "b",
    "c",
    "gone",
    "taken",
    "place",
    "part",
    "key",
    "image",
    "control",
    "one",
    "batch",
    "staging",
    "example",
    "incomplete",
    "row",
    "rows",
    "number",
    "wanted",
    "k0",
    "hash",
    "column",
    "conflict",
    "is_stored",
    "name",
    "vitrine_batch",
    "vitrine_numbered",
    "vitrine_taken",
]
SPACED = ["vitrine number", "vitrine verdict", "key 0"]
WORDS = ["select", "Table", "UPPER", "user", "current_date", "default", "end", "null", "true", "record", "excluded"]
ODD = [
    "per%cent",
    "%s",
    "%(x)s",
    'quo"te',
    "apo'stro",
    "back\\slash",
    "semi;colon",
    "dou  ble",
    "naïve",
    "列",
    "{}",
    "a.b",
]
LONG = ["x" * 63, "ä" * 31]
NAMES = [*ALIASES, *SPACED, *WORDS, *ODD, *LONG]

SOURCE = sql.Identifier("ugc", "names")
TARGET = sql.Identifier("analytics", "names")


def listed(names: list[str], kind: str = "") -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(name) + sql.SQL(kind) for name in names)  # pyright: ignore[reportArgumentType]


def create_names(connection: Connection, names: list[str] = NAMES) -> None:
    """A table with these columns, and three rows."""
    create_table = sql.SQL("CREATE TABLE {} (id integer PRIMARY KEY, modified timestamptz DEFAULT now(), {})")
    connection.execute(create_table.format(SOURCE, listed(names, " integer")))
    for number in (1, 2, 3):
        values = sql.SQL(", ").join(sql.Literal(number * 100 + at) for at in range(len(names)))
        insert = sql.SQL("INSERT INTO {} (id, {}) VALUES ({}, {})").format(SOURCE, listed(names), number, values)
        connection.execute(insert)


def set_all(connection: Connection, names: list[str], value: Any, where: str) -> None:
    assignments = sql.SQL(", ").join(
        sql.SQL("{} = {}").format(sql.Identifier(name), sql.Literal(value)) for name in names
    )
    update = sql.SQL("UPDATE {} SET modified = clock_timestamp(), {} WHERE {}")
    connection.execute(update.format(SOURCE, assignments, sql.SQL(where)))  # pyright: ignore[reportArgumentType]


def difference(connection: Connection) -> list[int]:
    """Ids of rows that differ."""
    columns = listed(["id", *NAMES])
    found: set[int] = set()
    for one, other in ((SOURCE, TARGET), (TARGET, SOURCE)):
        statement = sql.SQL("SELECT {0} FROM {1} EXCEPT SELECT {0} FROM {2}").format(columns, one, other)
        found |= {row["id"] for row in connection.execute(statement)}
    return sorted(found)


def fields(mode: str, **others: Any) -> dict[str, Any]:
    cursor = {"incremental_key": "modified"} if mode == "incremental" else {}
    defaults = {"source_query": "SELECT * FROM ugc.names", "target_table": "analytics.names", "mode": mode}
    return {**defaults, "key_columns": ["id"], **cursor, **others}


def create_target(connection: Connection, key: sql.Composable, rule: sql.Composable) -> None:
    statement = sql.SQL("CREATE TABLE {} AS SELECT * FROM {} WHERE false")
    connection.execute(statement.format(TARGET, SOURCE))
    connection.execute(sql.SQL("ALTER TABLE {} ADD PRIMARY KEY ({})").format(TARGET, key))
    connection.execute(sql.SQL("ALTER TABLE {} ADD CHECK ({})").format(TARGET, rule))


@pytest.mark.promise("J23")
@both_modes
def test_a_table_whose_columns_bear_every_alias_is_copied_changed_and_compared(
    connection: Connection, settings: Settings, mode: str
) -> None:
    create_names(connection)
    pipeline = create(connection, settings, **fields(mode))
    succeed(connection, settings, pipeline)
    assert difference(connection) == []
    set_all(connection, NAMES, 7, "id = 2")
    connection.execute("INSERT INTO ugc.names (id) VALUES (4)")
    connection.execute("DELETE FROM ugc.names WHERE id = 3")
    succeed(connection, settings, pipeline)
    assert difference(connection) == ([] if mode == "full" else [3])
    connection.execute("DELETE FROM analytics.names WHERE id = 3")
    assert reconcile.compare(pipeline.definition, settings).equal


@pytest.mark.promise("J23")
@both_modes
@pytest.mark.parametrize("name", ["n", "per%cent", "vitrine number", "x" * 63])
def test_a_row_with_any_column_name_is_quarantined_and_healed(
    connection: Connection, settings: Settings, mode: str, name: str
) -> None:
    create_names(connection)
    create_target(connection, sql.SQL("id"), sql.SQL("{} <> 0").format(sql.Identifier(name)))
    pipeline = create(connection, settings, **fields(mode, options={"on_reject": "quarantine"}))
    set_all(connection, [name], 0, "id = 2")
    assert succeed(connection, settings, pipeline).counts.rejected == 1
    assert difference(connection) == [2]
    assert len(checkpoint.list_open(connection, pipeline.id)) == 1
    set_all(connection, [name], 5, "id = 2")
    succeed(connection, settings, pipeline)
    assert difference(connection) == []


@pytest.mark.promise("J23")
@both_modes
@pytest.mark.parametrize("name", ["s", "per%cent", 'quo"te', "x" * 63])
def test_any_name_may_be_the_key(connection: Connection, settings: Settings, mode: str, name: str) -> None:
    create_names(connection)
    create_target(connection, sql.Identifier(name), sql.SQL("id <> 3"))
    quarantine = {"on_reject": "quarantine"}
    key: dict[str, Any] = {"key_columns": [], "incremental_id_key": "id"}
    pipeline = create(connection, settings, **fields(mode, **key, options=quarantine))
    assert succeed(connection, settings, pipeline).counts.rejected == 1
    assert difference(connection) == [3]
    connection.execute("ALTER TABLE analytics.names DROP CONSTRAINT names_id_check")
    set_all(connection, [one for one in NAMES if one != name], 7, "id > 1")
    succeed(connection, settings, pipeline)
    assert difference(connection) == []
    assert checkpoint.list_open(connection, pipeline.id) == []
    assert reconcile.compare(pipeline.definition, settings).equal
