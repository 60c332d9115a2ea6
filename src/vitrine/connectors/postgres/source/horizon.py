"""The horizon of a source: the start of its oldest open transaction, which no checkpoint may pass."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from vitrine.errors import ConfigError
from vitrine.postgres import TEXT_FORMAT, Connection, translated

# now() is read first: a transaction that starts later starts above the horizon.
# An account without pg_read_all_stats sees only the role of another role's session.
# A session whose role, with all roles it is a member of, cannot write to any table has nothing to commit: long reads
# do not hold the horizon back.
_HORIZON = """
    SELECT now() AS now, pg_is_in_recovery() AS standby,
           (SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()) AS prepared,
           (SELECT min(prepared) FROM pg_prepared_xacts WHERE database = current_database()) AS prepared_since,
           (SELECT count(*) FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid
             WHERE d.datname = current_database() AND s.subenabled) AS subscriptions,
           count(*) FILTER (WHERE hidden) AS hidden, count(*) FILTER (WHERE state = 'disabled') AS disabled,
           min(xact_start) AS oldest, (array_agg(pid ORDER BY xact_start NULLS LAST))[1] AS pid,
           (array_agg(usename::text ORDER BY xact_start NULLS LAST))[1] AS role, current_user::text AS reader
      FROM (SELECT pid, usename, usesysid, xact_start, state,
                   query = '<insufficient privilege>' AND usesysid IS NOT NULL AS hidden
              FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid()) AS session
     WHERE xact_start IS NULL OR usesysid IS NULL OR EXISTS (
               SELECT FROM pg_roles AS role
                WHERE pg_has_role(session.usesysid, role.oid, 'MEMBER')
                  AND (role.rolsuper OR EXISTS (
                      SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
                       WHERE c.relkind IN ('r', 'p', 'v', 'f') AND n.nspname !~ '^(pg_|information_schema$)'
                         AND (has_table_privilege(role.oid, c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')
                              OR has_any_column_privilege(role.oid, c.oid, 'INSERT, UPDATE')))))
"""


@dataclass(frozen=True)
class Horizon:
    """`at`: start of the oldest open transaction, or the current time; None: unknown, the checkpoint must not move."""

    at: datetime | None
    now: datetime
    blocker: str | None  # the session that holds it back, if any
    prepared_since: datetime | None = None  # of the oldest prepared transaction, if that is the blocker

    @property
    def lag(self) -> timedelta:
        """How long the oldest open transaction has been open."""
        return self.now - (self.at or self.prepared_since or self.now)


def read(connection: Connection) -> Horizon:
    """The horizon of the connected database; ConfigError (HORIZON_UNAVAILABLE) if it cannot be determined."""
    with translated("source"), connection.transaction():
        connection.execute(TEXT_FORMAT)
        row = connection.execute(_HORIZON).fetchone()
    if row is None:
        raise ConfigError("the source returned nothing about its sessions", code="HORIZON_UNAVAILABLE")
    if reason := _refusal(row):
        raise ConfigError(
            f"the open transactions of the source cannot be determined: {reason}; or set options.lookback to the"
            " longest time a transaction may take, and every run reads that much again",
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
