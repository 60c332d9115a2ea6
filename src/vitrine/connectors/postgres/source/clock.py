"""Times by the clock of the source's server."""

from datetime import datetime, timedelta
from typing import Any

from psycopg import sql
from psycopg.rows import DictRow

from vitrine.errors import ConfigError
from vitrine.postgres import Connection, raw

# Of a standby, only the past up to the last replayed transaction is certain: the standby's own clock runs while replay
# waits, and a standby that has received everything cannot know that the primary has committed nothing since.
# guarantee: J7
_LATEST_VISIBLE = """
    SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_xact_replay_timestamp() ELSE clock_timestamp() END AS at
"""

# ALTER DATABASE SET, before what the reading account or its client may have set for itself
_USE_DATABASE_ZONE = """
    SELECT set_config('TimeZone', coalesce(
        (SELECT substr(setting, length('TimeZone=') + 1)
           FROM pg_db_role_setting AS s CROSS JOIN unnest(s.setconfig) AS setting
          WHERE s.setrole = 0 AND lower(setting) LIKE 'timezone=%'
            AND s.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
          ORDER BY s.setdatabase = 0 LIMIT 1),
        (SELECT reset_val FROM pg_settings WHERE name = 'TimeZone')), true) AS zone
"""

_SETTLED = "(%(at)s::timestamptz - make_interval(secs => %(margin)s))"

# When clocks are set back, local times repeat: a row written later may have a lower local time. So the bound is the
# lowest local time of all moments from the settled one on. No zone sets its clocks back by more than 27 hours, and
# zones change at whole minutes.
# guarantee: J8
_LOWEST_LOCAL = """
    SELECT CAST(min({local}) AS {type})::text AS bound
      FROM (SELECT {settled} UNION ALL
            SELECT generate_series(date_trunc('minute', {settled}, 'UTC') + interval '1 minute',
                                   {settled} + interval '27 hours', interval '1 minute')) AS later(moment)
"""


def now(connection: Connection) -> datetime:
    """The present."""
    return _one(connection, sql.SQL("SELECT clock_timestamp() AS at"))["at"]


def latest_visible(connection: Connection) -> datetime | None:
    """What committed before this time is visible; None: a standby has not replayed any transaction yet."""
    return _one(connection, sql.SQL(_LATEST_VISIBLE))["at"]


def use_database_zone(connection: Connection) -> str:
    """Use the database's TimeZone until the transaction ends; returns its name."""
    return _one(connection, sql.SQL(_USE_DATABASE_ZONE))["zone"]


def bound(connection: Connection, type_name: str, at: datetime, margin: timedelta) -> str:
    """`at` minus the margin, as text of a type with time zone."""
    statement = sql.SQL("SELECT CAST({} AS {})::text AS bound").format(raw(_SETTLED), raw(type_name))
    return _one(connection, statement, {"at": at, "margin": margin.total_seconds()})["bound"]


def local_bound(connection: Connection, type_name: str, at: datetime, margin: timedelta, zone: str | None) -> str:
    """A local time, as text of a type without time zone, that no moment from `at` minus the margin on is below.

    None: the zone of the database. It is used as a setting and not by name, because AT TIME ZONE reads some names of
    zones, such as CET, as abbreviations without daylight saving.
    """
    if zone is None:
        use_database_zone(connection)
    local = "moment::timestamp" if zone is None else "moment AT TIME ZONE %(zone)s"
    statement = sql.SQL(_LOWEST_LOCAL).format(local=raw(local), type=raw(type_name), settled=raw(_SETTLED))
    return _one(connection, statement, {"at": at, "margin": margin.total_seconds(), "zone": zone})["bound"]


def _one(connection: Connection, statement: sql.SQL | sql.Composed, arguments: dict[str, Any] | None = None) -> DictRow:
    row = connection.execute(statement, arguments).fetchone()
    if row is None:
        raise ConfigError("the source did not return the time", code="HORIZON_UNAVAILABLE")
    return row
