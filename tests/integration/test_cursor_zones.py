"""Cursors without a time zone: local times of the database, and the hour that clocks repeat."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg import sql

from tests.helpers.ratings import create_ratings
from tests.helpers.running import differences, succeed
from vitrine.connectors.postgres.source import watermark
from vitrine.definition.model import Definition
from vitrine.definition.pipeline import Pipeline
from vitrine.plan.validation import validate
from vitrine.postgres import Connection, connect, raw
from vitrine.settings import Settings
from vitrine.store import state

SHOWS = "SELECT id, modified FROM ugc.shows"
NEW_YORK = "America/New_York"


def use_zone(connection: Connection, zone: str) -> None:
    """The zone of every later session of the database."""
    database = sql.Identifier(connection.info.dbname)
    connection.execute(sql.SQL("ALTER DATABASE {} SET TimeZone = {}").format(database, sql.Literal(zone)))


def create_shows(connection: Connection, settings: Settings, type_name: str = "timestamp", **options: Any) -> Pipeline:
    connection.execute(raw(f"CREATE TABLE ugc.shows (id integer PRIMARY KEY, modified {type_name} NOT NULL)"))
    connection.execute(raw(f"CREATE TABLE analytics.shows (id integer PRIMARY KEY, modified {type_name})"))
    return create_ratings(
        connection,
        settings,
        source_query=SHOWS,
        target_table="analytics.shows",
        options={"horizon_margin": "0s"} | options,
    )


def shows_are_right(connection: Connection) -> bool:
    return differences(connection, SHOWS, "analytics.shows", "id") == []


@pytest.fixture
def cinema(connection: Connection, database_url: str) -> Iterator[Connection]:
    """A session of an application in New York."""
    use_zone(connection, NEW_YORK)
    with connect(database_url, name="cinema") as opened:
        yield opened


@pytest.mark.promise("J8")
@pytest.mark.parametrize("type_name", ["timestamp", "timestamp(0)"])
def test_a_late_row_is_not_lost_where_the_database_has_another_zone_than_utc(
    connection: Connection, settings: Settings, cinema: Connection, type_name: str
) -> None:
    shows = create_shows(connection, settings, type_name)
    add = "INSERT INTO ugc.shows VALUES (%s, clock_timestamp() AT TIME ZONE 'America/New_York' - %s::interval)"
    with cinema.transaction():
        cinema.execute("INSERT INTO ugc.shows VALUES (1, localtimestamp)")
        connection.execute(add, [2, "-2 s"])
        succeed(connection, settings, shows)
    succeed(connection, settings, shows)
    assert shows_are_right(connection)


@pytest.mark.promise("J8")
def test_a_date_is_a_day_of_the_database(connection: Connection, settings: Settings) -> None:
    zone = "Pacific/Kiritimati"  # 14 hours ahead of UTC
    use_zone(connection, zone)
    shows = create_shows(connection, settings, "date")
    connection.execute("INSERT INTO ugc.shows VALUES (1, now() AT TIME ZONE %s), (2, '2099-01-01')", [zone])
    days = [today(connection, zone)]
    succeed(connection, settings, shows)
    days.append(today(connection, zone))
    assert state.load_state(connection, shows.id).position.cursor in [(day,) for day in days]


def today(connection: Connection, zone: str) -> str:
    row = connection.execute("SELECT (now() AT TIME ZONE %s)::date::text AS day", [zone]).fetchone()
    assert row is not None
    return row["day"]


def set_horizon(monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """No transaction is open at this moment, a time in UTC."""
    now = datetime.fromisoformat(moment).replace(tzinfo=UTC)

    def read(*_: object) -> watermark.Horizon:
        return watermark.Horizon(now, now, None)

    monkeypatch.setattr(watermark, "read_horizon", read)


CLOCKS_GO_BACK = [
    # zone, moment of the first run, a row before it; moment of a later row, its local time
    (NEW_YORK, "2026-11-01 05:50", "2026-11-01 01:49", "2026-11-01 06:10", "2026-11-01 01:10"),
    (NEW_YORK, "2026-11-01 05:00", "2026-11-01 00:59:59", "2026-11-01 06:00", "2026-11-01 01:00"),
    ("Australia/Lord_Howe", "2026-04-04 14:55", "2026-04-05 01:54", "2026-04-04 15:01", "2026-04-05 01:31"),
    ("Africa/Casablanca", "2026-02-15 01:50", "2026-02-15 02:49", "2026-02-15 02:05", "2026-02-15 02:05"),
]


@pytest.mark.promise("J8")
@pytest.mark.parametrize("by_option", [False, True], ids=["zone of the database", "zone by option"])
@pytest.mark.parametrize(("zone", "first", "early", "second", "late"), CLOCKS_GO_BACK)
def test_a_row_of_the_repeated_hour_is_not_lost(
    connection: Connection,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    by_option: bool,
    zone: str,
    first: str,
    early: str,
    second: str,
    late: str,
) -> None:
    options = {"cursor_timezone": zone} if by_option else {}
    if not by_option:
        use_zone(connection, zone)
    shows = create_shows(connection, settings, **options)
    # row 3 is in the future: with it, the checkpoint advances as far as it may
    connection.execute("INSERT INTO ugc.shows VALUES (1, %s), (3, '2099-01-01')", [early])
    for moment, local in ((first, None), (second, late)):
        if local is not None:
            local_time = connection.execute("SELECT %s::timestamptz AT TIME ZONE %s AS at", [f"{moment}Z", zone])
            assert local_time.fetchone() == {"at": datetime.fromisoformat(local)}
            connection.execute("INSERT INTO ugc.shows VALUES (2, %s)", [local])
        set_horizon(monkeypatch, moment)
        succeed(connection, settings, shows)
    assert shows_are_right(connection)


@pytest.mark.promise("J8")
@pytest.mark.parametrize(
    ("zone", "moment", "expected"),
    [
        (NEW_YORK, "2026-11-01 04:30", "2026-11-01 00:30:00"),
        (NEW_YORK, "2026-11-01 05:30", "2026-11-01 01:00:00"),
        (NEW_YORK, "2026-11-01 06:30", "2026-11-01 01:30:00"),
        (NEW_YORK, "2026-03-08 07:30", "2026-03-08 03:30:00"),
        ("Australia/Lord_Howe", "2026-04-04 14:50", "2026-04-05 01:30:00"),
        ("CET", "2026-07-01 12:00", "2026-07-01 14:00:00"),  # as an abbreviation, it would be without daylight saving
        ("-5", "2026-07-01 12:00", "2026-07-01 07:00:00"),
        ("Asia/Kathmandu", "2026-07-01 12:00", "2026-07-01 17:45:00"),
    ],
)
def test_the_checkpoint_is_the_lowest_local_time_that_can_follow(
    connection: Connection,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    zone: str,
    moment: str,
    expected: str,
) -> None:
    use_zone(connection, zone)
    shows = create_shows(connection, settings)
    connection.execute("INSERT INTO ugc.shows VALUES (1, '2099-01-01')")
    set_horizon(monkeypatch, moment)
    succeed(connection, settings, shows)
    assert state.load_state(connection, shows.id).position.cursor == (expected,)


@pytest.mark.promise("J8")
def test_a_lookback_of_days_is_not_shortened_by_a_change_of_the_clocks(
    connection: Connection, settings: Settings, cinema: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    shows = create_shows(connection, settings, horizon_margin="1d")
    connection.execute("INSERT INTO ugc.shows VALUES (1, '2099-01-01')")
    set_horizon(monkeypatch, "2026-03-08 17:00")  # 13:00 in summer time
    succeed(connection, settings, shows)
    assert state.load_state(connection, shows.id).position.cursor == ("2026-03-07 12:00:00",)


@pytest.mark.promise("J8")
def test_the_age_of_a_transaction_is_right_across_a_change_of_the_clocks(cinema: Connection) -> None:
    seen = watermark.read_horizon(cinema)
    assert seen.now.utcoffset() == timedelta(0)


@pytest.mark.promise("J8")
def test_a_checkpoint_stored_under_another_zone_stays_valid(connection: Connection, settings: Settings) -> None:
    shows = create_shows(connection, settings)
    connection.execute(
        "INSERT INTO ugc.shows SELECT n, localtimestamp - n * interval '1 h' FROM generate_series(1, 9) n"
    )
    succeed(connection, settings, shows)
    before = state.load_state(connection, shows.id).position
    use_zone(connection, NEW_YORK)
    connection.execute("INSERT INTO ugc.shows VALUES (10, localtimestamp)")
    succeed(connection, settings, shows)
    assert state.load_state(connection, shows.id).position == before
    assert shows_are_right(connection)


def definition(**options: str) -> Definition:
    return Definition.model_validate(
        {
            "name": "shows",
            "source_query": SHOWS,
            "target_table": "analytics.shows",
            "mode": "incremental",
            "incremental_key": "modified",
            "incremental_id_key": "id",
            "key_columns": ["id"],
            "options": options,
        }
    )


@pytest.mark.promise("J8")
def test_validate_names_the_zone_that_is_assumed(
    connection: Connection, settings: Settings, cinema: Connection
) -> None:
    create_shows(connection, settings)
    warnings = validate(definition(), settings).warnings
    assert any("'modified'" in warning and NEW_YORK in warning for warning in warnings)
    named = validate(definition(cursor_timezone="UTC"), settings).warnings
    assert not any("'modified'" in warning and NEW_YORK in warning for warning in named)


@pytest.mark.promise("J8")
def test_the_zone_is_that_of_the_database_and_not_of_the_reading_account(
    connection: Connection, settings: Settings, cinema: Connection
) -> None:
    create_shows(connection, settings)
    connection.execute("ALTER ROLE CURRENT_USER SET TimeZone = 'Asia/Tokyo'")
    try:
        assert any(NEW_YORK in warning for warning in validate(definition(), settings).warnings)
    finally:
        connection.execute("ALTER ROLE CURRENT_USER RESET TimeZone")
