"""How far a checkpoint may go: never past the start of a transaction that is still open."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from vitrine.errors import ConfigError
from vitrine.postgres import Connection, translated

# now() comes first: whoever begins later than it begins above the horizon.
# A session of another role shows nothing but its role to an account without pg_read_all_stats.
_HORIZON = """
    SELECT now() AS now, pg_is_in_recovery() AS standby,
           (SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()) AS prepared,
           (SELECT min(prepared) FROM pg_prepared_xacts WHERE database = current_database()) AS prepared_since,
           (SELECT count(*) FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid
             WHERE d.datname = current_database() AND s.subenabled) AS subscriptions,
           count(*) FILTER (WHERE hidden) AS hidden, count(*) FILTER (WHERE state = 'disabled') AS disabled,
           min(xact_start) AS oldest, (array_agg(pid ORDER BY xact_start NULLS LAST))[1] AS pid,
           (array_agg(usename::text ORDER BY xact_start NULLS LAST))[1] AS role, current_user::text AS reader
      FROM (SELECT pid, usename, xact_start, state,
                   query = '<insufficient privilege>' AND usesysid IS NOT NULL AS hidden
              FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid()) AS session
"""


@dataclass(frozen=True)
class Horizon:
    """`at` is the start of the oldest open transaction, or this moment; None: unknowable for now, stand still."""

    at: datetime | None
    now: datetime
    blocker: str | None  # who holds it back, if anybody does
    prepared_since: datetime | None = None  # of the oldest prepared transaction, where that is the blocker

    @property
    def lag(self) -> timedelta:
        """How long the oldest open transaction has been open."""
        return self.now - (self.at or self.prepared_since or self.now)


def read(connection: Connection) -> Horizon:
    """The horizon of the source's database; ConfigError (HORIZON_UNAVAILABLE) where it cannot be known."""
    with translated("source"), connection.transaction():
        connection.execute("SET LOCAL search_path = pg_catalog")
        row = connection.execute(_HORIZON).fetchone()
    if row is None:
        raise ConfigError("the source tells nothing about its sessions", code="HORIZON_UNAVAILABLE")
    if reason := _refusal(row):
        raise ConfigError(
            f"cannot tell which transactions of the source are still open: {reason}; or set options.lookback to the"
            " longest time a transaction may take, and that much is read again on every run",
            code="HORIZON_UNAVAILABLE",
        )
    if row["prepared"]:
        return Horizon(None, row["now"], f"{row['prepared']} prepared transaction(s)", row["prepared_since"])
    if row["oldest"] is None or row["oldest"] >= row["now"]:
        return Horizon(row["now"], row["now"], None)
    return Horizon(row["oldest"], row["now"], f"pid {row['pid']}, role {row['role']}")


def _refusal(row: dict[str, object]) -> str | None:
    if row["standby"]:
        return "it is a standby, which does not see the primary's sessions; read from the primary"
    if row["hidden"]:
        return (
            f"{row['hidden']} session(s) of other roles are hidden from '{row['reader']}';"
            f" GRANT pg_read_all_stats TO {row['reader']}"
        )
    if row["disabled"]:
        return f"{row['disabled']} session(s) have track_activities off; switch it on"
    if row["subscriptions"]:
        return "a logical subscription writes rows with times of another server"
    return None
