"""Rows that exchange unique values: all are written in place, and no row of another table changes."""

from typing import Any

import pytest

from tests.helpers.events import both_modes
from tests.helpers.running import create, differences, run, succeed
from vitrine.definition.pipeline import Pipeline
from vitrine.postgres import Connection, raw
from vitrine.settings import Settings

QUERY = "SELECT id, place, modified FROM ugc.ranks"
TARGET = "analytics.ranks"

ACTIONS = ["CASCADE", "SET NULL", "SET DEFAULT", "RESTRICT", "NO ACTION"]

SWAP = "CASE id WHEN 1 THEN 2 WHEN 2 THEN 1 ELSE id END"


def create_ranks(connection: Connection, settings: Settings, mode: str, unique: str, **fields: Any) -> Pipeline:
    """Ten ranks, a mart with a unique place, and the first run."""
    connection.execute("CREATE TABLE ugc.ranks (id integer PRIMARY KEY, place integer, modified timestamptz NOT NULL)")
    connection.execute(
        "INSERT INTO ugc.ranks SELECT n, n, '2024-01-01'::timestamptz + n * interval '1 s'"
        " FROM generate_series(1, 10) n"
    )
    connection.execute(
        raw(f"CREATE TABLE analytics.ranks (id integer PRIMARY KEY, place integer {unique}, modified timestamptz)")
    )
    cursor = {"mode": mode, "incremental_key": "modified"} if mode == "incremental" else {"mode": mode}
    defaults = {"source_query": QUERY, "target_table": TARGET, "key_columns": ["id"]}
    pipeline = create(connection, settings, **defaults | cursor | fields)
    succeed(connection, settings, pipeline)
    return pipeline


def refer(connection: Connection, action: str, column: str = "id") -> list[dict[str, Any]]:
    """Another table with one row for each rank."""
    connection.execute(
        raw(
            "CREATE TABLE analytics.medals (number integer PRIMARY KEY, rank integer DEFAULT 1"
            f" REFERENCES analytics.ranks ({column}) ON DELETE {action})"
        )
    )
    connection.execute("INSERT INTO analytics.medals SELECT id, id FROM analytics.ranks")
    return medals(connection)


def medals(connection: Connection) -> list[dict[str, Any]]:
    return connection.execute("SELECT *, xmin::text FROM analytics.medals ORDER BY number").fetchall()


def move(connection: Connection, place: str, where: str = "true") -> None:
    """Give the ranks other places; the source's own order does not conflict."""
    connection.execute(raw(f"UPDATE ugc.ranks SET place = {place}, modified = now() WHERE {where}"))


def is_right(connection: Connection) -> bool:
    return differences(connection, QUERY, TARGET, "id") == []


@pytest.mark.promise("J10", "J24")
@both_modes
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("unique", ["UNIQUE", "NOT NULL UNIQUE DEFERRABLE"])
def test_rows_that_swap_a_unique_value_leave_the_rows_that_refer_to_them(
    connection: Connection, settings: Settings, mode: str, action: str, unique: str
) -> None:
    ranks = create_ranks(connection, settings, mode, unique)
    before = refer(connection, action)
    move(connection, SWAP)
    succeed(connection, settings, ranks)
    assert is_right(connection)
    assert medals(connection) == before


@pytest.mark.promise("J10", "J24")
@both_modes
@pytest.mark.parametrize("place", ["place + 1", "place - 1"])
def test_rows_that_shift_a_unique_value_leave_the_rows_that_refer_to_them(
    connection: Connection, settings: Settings, mode: str, place: str
) -> None:
    ranks = create_ranks(connection, settings, mode, "NOT NULL UNIQUE")
    before = refer(connection, "CASCADE")
    move(connection, place)
    succeed(connection, settings, ranks)
    assert is_right(connection)
    assert medals(connection) == before


@pytest.mark.promise("J24")
@pytest.mark.parametrize("place", [SWAP, "place + 1", "11 - place"])
def test_changes_that_exchange_unique_values_are_written_where_no_table_refers_to_them(
    connection: Connection, settings: Settings, place: str
) -> None:
    ranks = create_ranks(connection, settings, "incremental", "NOT NULL UNIQUE")
    connection.execute("ALTER TABLE analytics.ranks ADD note text; UPDATE analytics.ranks SET note = 'mine'")
    move(connection, place)
    assert succeed(connection, settings, ranks).counts.rejected == 0
    assert is_right(connection)
    assert connection.execute("SELECT DISTINCT note FROM analytics.ranks").fetchall() == [{"note": "mine"}]


@pytest.mark.promise("J10")
@both_modes
@pytest.mark.parametrize("on_reject", ["fail", "quarantine"])
def test_a_swap_that_cannot_be_done_in_place_names_the_constraint_and_the_remedy(
    connection: Connection, settings: Settings, mode: str, on_reject: str
) -> None:
    options = {"on_reject": on_reject}
    ranks = create_ranks(connection, settings, mode, "NOT NULL CONSTRAINT one_each UNIQUE", options=options)
    before = refer(connection, "CASCADE")
    move(connection, SWAP)
    failed = run(connection, settings, ranks).error
    assert failed is not None
    assert failed.code == "UNIQUE_SWAP"
    assert "one_each" in str(failed)
    assert "analytics.medals refers to it" in str(failed)
    assert medals(connection) == before
    connection.execute(
        "ALTER TABLE analytics.ranks DROP CONSTRAINT one_each, ADD CONSTRAINT one_each UNIQUE (place) DEFERRABLE"
    )
    succeed(connection, settings, ranks)
    assert is_right(connection)
    assert medals(connection) == before


@pytest.mark.promise("J10")
@both_modes
def test_a_swap_does_not_fire_a_trigger_for_deletions(connection: Connection, settings: Settings, mode: str) -> None:
    ranks = create_ranks(connection, settings, mode, "UNIQUE")
    connection.execute(
        "CREATE TABLE analytics.deleted (id integer);"
        "CREATE FUNCTION analytics.keep() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN INSERT INTO analytics.deleted VALUES (OLD.id); RETURN OLD; END';"
        "CREATE TRIGGER keep AFTER DELETE ON analytics.ranks FOR EACH ROW EXECUTE FUNCTION analytics.keep()"
    )
    move(connection, SWAP)
    succeed(connection, settings, ranks)
    assert is_right(connection)
    assert connection.execute("SELECT * FROM analytics.deleted").fetchall() == []


@pytest.mark.promise("J10")
@both_modes
def test_a_row_that_takes_the_value_of_a_row_that_keeps_it_is_a_reject(
    connection: Connection, settings: Settings, mode: str
) -> None:
    ranks = create_ranks(connection, settings, mode, "UNIQUE", options={"on_reject": "quarantine"})
    before = refer(connection, "CASCADE")
    move(connection, "4", "id = 3")
    assert succeed(connection, settings, ranks).counts.rejected == 1
    assert medals(connection)[3:] == before[3:]
    assert len(differences(connection, QUERY, TARGET, "id")) == 1


@pytest.mark.promise("J10")
def test_a_foreign_key_to_the_unique_value_itself_is_respected(connection: Connection, settings: Settings) -> None:
    ranks = create_ranks(connection, settings, "full", "UNIQUE")
    before = refer(connection, "CASCADE", "place")
    move(connection, SWAP)
    failed = run(connection, settings, ranks).error
    assert failed is not None
    assert failed.code == "UNIQUE_SWAP"
    assert medals(connection) == before


# -- deferred constraints ---------------------------------------------------------------------------------------------


def require_place(connection: Connection) -> None:
    """A foreign key of the mart that PostgreSQL checks at COMMIT only."""
    connection.execute("CREATE TABLE analytics.places (place integer PRIMARY KEY)")
    connection.execute("INSERT INTO analytics.places SELECT generate_series(1, 10)")
    connection.execute(
        "ALTER TABLE analytics.ranks ADD CONSTRAINT known_place FOREIGN KEY (place) REFERENCES analytics.places"
        " DEFERRABLE INITIALLY DEFERRED"
    )


@pytest.mark.promise("J22")
@both_modes
def test_a_deferred_constraint_is_named_and_the_run_after_the_repair_succeeds(
    connection: Connection, settings: Settings, mode: str
) -> None:
    ranks = create_ranks(connection, settings, mode, "")
    require_place(connection)
    move(connection, "99", "id = 3")
    for _ in range(2):
        failed = run(connection, settings, ranks).error
        assert failed is not None
        assert (failed.code, "known_place" in str(failed)) == ("DATA_ERROR", True)
        staged = "SELECT count(*) AS n FROM pg_tables WHERE schemaname = 'etl' AND tablename LIKE 'stage%'"
        assert connection.execute(staged).fetchone() == {"n": 0}
    connection.execute("INSERT INTO analytics.places VALUES (99)")
    succeed(connection, settings, ranks)
    assert is_right(connection)


@pytest.mark.promise("J22")
@both_modes
def test_a_row_that_breaks_a_deferred_constraint_is_quarantined(
    connection: Connection, settings: Settings, mode: str
) -> None:
    ranks = create_ranks(connection, settings, mode, "", options={"on_reject": "quarantine"})
    require_place(connection)
    move(connection, "99", "id = 3")
    move(connection, "7", "id = 4")
    assert succeed(connection, settings, ranks).counts.rejected == 1
    assert [row["key"] for row in differences(connection, QUERY, TARGET, "id")] == ["3"]


@pytest.mark.promise("J22")
def test_a_deferred_foreign_key_to_the_target_is_checked_before_the_load_is_published(
    connection: Connection, settings: Settings
) -> None:
    ranks = create_ranks(connection, settings, "full", "")
    connection.execute(
        "CREATE TABLE analytics.medals (rank integer CONSTRAINT of_rank REFERENCES analytics.ranks"
        " DEFERRABLE INITIALLY DEFERRED); INSERT INTO analytics.medals VALUES (5)"
    )
    connection.execute("DELETE FROM ugc.ranks WHERE id = 5")
    failed = run(connection, settings, ranks).error
    assert failed is not None
    assert (failed.code, "of_rank" in str(failed)) == ("DATA_ERROR", True)
    connection.execute("DELETE FROM analytics.medals")
    succeed(connection, settings, ranks)
    assert is_right(connection)


@pytest.mark.promise("J10")
def test_rows_that_refer_to_a_partition_stay(connection: Connection, settings: Settings) -> None:
    ranks = create_ranks(connection, settings, "full", "")
    connection.execute(
        "ALTER TABLE analytics.ranks RENAME TO part; CREATE TABLE analytics.ranks (LIKE analytics.part INCLUDING ALL,"
        " UNIQUE (id, place)) PARTITION BY RANGE (id); ALTER TABLE analytics.ranks ATTACH PARTITION analytics.part"
        " DEFAULT; CREATE UNIQUE INDEX ON analytics.part (place); CREATE TABLE analytics.medals"
        " (rank integer REFERENCES analytics.part ON DELETE CASCADE); INSERT INTO analytics.medals VALUES (1), (2)"
    )
    move(connection, SWAP)
    failed = run(connection, settings, ranks).error
    assert failed is not None
    assert failed.code == "DATA_ERROR"
    assert connection.execute("SELECT count(*) AS n FROM analytics.medals").fetchone() == {"n": 2}


@pytest.mark.promise("J10")
@pytest.mark.parametrize("action", ["CASCADE", "SET NULL", "NO ACTION"])
def test_a_row_whose_parent_vanishes_moves_to_its_new_one_and_stays(
    connection: Connection, settings: Settings, action: str
) -> None:
    ranks = create_ranks(connection, settings, "full", "")
    connection.execute(
        raw(f"ALTER TABLE analytics.ranks ADD FOREIGN KEY (place) REFERENCES analytics.ranks ON DELETE {action}")
    )
    connection.execute("ALTER TABLE analytics.ranks ADD note text DEFAULT 'ours'")
    move(connection, "1", "id = 2")
    succeed(connection, settings, ranks)
    move(connection, "3", "id <= 2")
    connection.execute("DELETE FROM ugc.ranks WHERE id = 1")
    connection.execute("UPDATE analytics.ranks SET note = 'kept' WHERE id = 2")
    assert succeed(connection, settings, ranks).counts.deleted == 1
    assert is_right(connection)
    assert connection.execute("SELECT note FROM analytics.ranks WHERE id = 2").fetchone() == {"note": "kept"}


@pytest.mark.promise("J10")
@pytest.mark.parametrize("action", ["CASCADE", "SET NULL"])
def test_a_row_whose_parent_vanishes_and_that_keeps_it_is_a_reject(
    connection: Connection, settings: Settings, action: str
) -> None:
    ranks = create_ranks(connection, settings, "full", "")
    connection.execute(
        raw(f"ALTER TABLE analytics.ranks ADD FOREIGN KEY (place) REFERENCES analytics.ranks ON DELETE {action}")
    )
    move(connection, "1", "id = 2")
    succeed(connection, settings, ranks)
    connection.execute("DELETE FROM ugc.ranks WHERE id = 1")
    failed = run(connection, settings, ranks).error
    assert failed is not None
    assert (failed.code, "row 2 of analytics.ranks" in str(failed)) == ("DATA_ERROR", True)
    assert connection.execute("SELECT place FROM analytics.ranks WHERE id = 2").fetchone() == {"place": 1}
