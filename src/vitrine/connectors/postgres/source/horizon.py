"""The horizon of a source: the start of its oldest open transaction, which no checkpoint may pass."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from vitrine.connectors.postgres.source import lineage
from vitrine.errors import ConfigError
from vitrine.postgres import TEXT_FORMAT, Connection, in_transaction, translated

# now() is read first: a transaction that starts later starts above the horizon.
# The functions behind pg_stat_activity and pg_prepared_xacts: a new session takes a millisecond to plan these views.
# An account without pg_read_all_stats sees only the role of another role's session.
# A session whose role, with all roles it is a member of, cannot write has nothing to commit: long reads do not hold the
# horizon back. A role can write to a table by a right on it, as its owner, who can restore a right, and through a
# SECURITY DEFINER function: called, as a trigger of the role's own temporary table, or as an event trigger. Up to
# version 15, CREATEROLE can grant itself any of these rights. A role that was dropped still has the rights of PUBLIC.
_HORIZON = """
    WITH here AS (SELECT oid FROM pg_database WHERE datname = current_database())
    SELECT now() AS now, pg_is_in_recovery() AS standby,
           (SELECT count(*) FROM pg_prepared_xact() WHERE dbid = (SELECT oid FROM here)) AS prepared,
           (SELECT min(prepared) FROM pg_prepared_xact() WHERE dbid = (SELECT oid FROM here)) AS prepared_since,
           (SELECT string_agg(quote_ident(subname), ', ' ORDER BY subname) FROM pg_subscription
             WHERE subdbid = (SELECT oid FROM here)) AS subscriptions,
           count(*) FILTER (WHERE hidden) AS hidden, count(*) FILTER (WHERE state = 'disabled') AS disabled,
           min(xact_start) AS oldest, (array_agg(pid ORDER BY xact_start NULLS LAST))[1] AS pid,
           (array_agg(usename::text ORDER BY xact_start NULLS LAST))[1] AS role, current_user::text AS reader
      FROM (SELECT pid, pg_get_userbyid(usesysid) AS usename, usesysid, xact_start, state,
                   query = '<insufficient privilege>' AND usesysid IS NOT NULL AS hidden
              FROM pg_stat_get_activity(NULL)
             WHERE datid = (SELECT oid FROM here) AND pid <> pg_backend_pid()) AS session
     WHERE xact_start IS NULL OR usesysid IS NULL OR usename = format('unknown (OID=%s)', usesysid) OR EXISTS (
               SELECT FROM pg_roles AS role
                WHERE pg_has_role(session.usesysid, role.oid, 'MEMBER')
                  AND (role.rolsuper OR role.rolcreaterole OR EXISTS (
                      SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
                       WHERE c.relkind IN ('r', 'p', 'v', 'f') AND n.nspname !~ '^(pg_|information_schema$)'
                         AND (role.oid = c.relowner
                              OR has_table_privilege(role.oid, c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')
                              OR has_any_column_privilege(role.oid, c.oid, 'INSERT, UPDATE'))) OR EXISTS (
                      SELECT FROM pg_proc AS p
                       WHERE p.prosecdef AND has_function_privilege(role.oid, p.oid, 'EXECUTE')))) OR EXISTS (
               SELECT FROM pg_event_trigger AS e JOIN pg_proc AS p ON p.oid = e.evtfoid
                WHERE p.prosecdef AND e.evtenabled <> 'D')
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


def read(connection: Connection, relations: lineage.Relations = ()) -> Horizon:
    """The horizon for these relations; ConfigError (HORIZON_UNAVAILABLE) if it cannot be determined."""
    # in UTC: Python subtracts two times of one zone by their local clocks, wrong when clocks change between them
    with translated("source"), in_transaction(connection, TEXT_FORMAT):
        row = connection.execute(_HORIZON).fetchone()
        outside = lineage.outside(connection, relations)
    if row is None:
        raise ConfigError("the source returned nothing about its sessions", code="HORIZON_UNAVAILABLE")
    if reason := _refusal(row) or _blind_spot(outside):
        raise ConfigError(
            f"the open transactions of the source cannot be determined: {reason}; or set options.lookback to the"
            " longest time from the time in a row until the row can be read, and every run reads that much again",
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
        # a disabled one may be enabled at any time, and then writes rows with times before that
        return f"logical subscription {row['subscriptions']} writes rows with times of another server"
    return None


def _blind_spot(found: lineage.Outside | None) -> str | None:
    if found is None:
        return None
    reads = "the query reads" if found.is_named else "a view or a table of the query reads"
    if found.is_foreign:
        return f"{reads} foreign table {found.name}, whose transactions run on another server; read it there"
    return f"{reads} materialized view {found.name}, whose refresh brings rows with old times; read its tables instead"
