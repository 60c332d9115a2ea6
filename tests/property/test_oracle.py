"""The comparison behind the property tests finds every kind of difference."""

import pytest

from tests.helpers.kinds import BY_NAME
from tests.helpers.oracle import Oracle
from vitrine.postgres import Connection

COLUMNS = {"id": BY_NAME["bigint"], "number": BY_NAME["numeric"]}


@pytest.fixture
def oracle(database_url: str, connection: Connection) -> Oracle:
    connection.execute(
        "CREATE TABLE ugc.given (id bigint, number numeric); INSERT INTO ugc.given VALUES (1, 1.0), (2, NULL);"
        "CREATE TABLE analytics.given AS SELECT * FROM ugc.given"
    )
    compared = Oracle(database_url, connection, "analytics.given")
    compared.expect("SELECT * FROM ugc.given", COLUMNS)
    assert compared.differences("id") == []
    return compared


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("UPDATE analytics.given SET number = 1.00 WHERE id = 1", "number (numeric) of row 1: '1.0' became '1.00'"),
        ("UPDATE analytics.given SET number = 0 WHERE id = 2", "number (numeric) of row 2: None became '0'"),
        ("DELETE FROM analytics.given WHERE id = 2", "row 2 is missing"),
        ("INSERT INTO analytics.given VALUES (3, 0)", "row 3 is extra"),
        ("ALTER TABLE analytics.given DROP COLUMN number", "column 'number' is missing"),
    ],
)
def test_a_difference_is_found(change: str, found: str, oracle: Oracle, connection: Connection) -> None:
    connection.execute(change.encode())
    assert oracle.differences("id") == [found]


def test_another_type_is_a_difference_unless_the_mart_was_there_before(oracle: Oracle, connection: Connection) -> None:
    connection.execute("ALTER TABLE analytics.given ALTER COLUMN number TYPE text")
    assert "column 'number' (numeric) has type text instead of numeric" in oracle.differences("id")
    assert oracle.differences("id", retyped=True) == []


def test_a_value_is_that_of_a_session_with_the_settings_of_its_database(
    database_url: str, connection: Connection
) -> None:
    connection.execute(
        "CREATE TABLE ugc.times (id bigint, at timestamptz);"
        "INSERT INTO ugc.times VALUES (1, '2024-01-01 22:00:00+00');"
        "CREATE TABLE analytics.times (id bigint, day date); INSERT INTO analytics.times VALUES (1, '2024-01-02')"
    )
    connection.execute(f"ALTER DATABASE \"{connection.info.dbname}\" SET TimeZone = 'Europe/Moscow'".encode())
    compared = Oracle(database_url, connection, "analytics.times")
    compared.expect("SELECT id, at::date AS day FROM ugc.times", {"id": BY_NAME["bigint"], "day": BY_NAME["date"]})
    assert compared.differences("id") == []
