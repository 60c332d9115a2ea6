"""The horizon of a source: the start of its oldest open transaction, which no checkpoint may pass."""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import NamedTuple

from vitrine.accounts import horizon as shown
from vitrine.connectors.postgres.source import lineage
from vitrine.errors import ConfigError
from vitrine.policy import Call
from vitrine.postgres import TEXT_FORMAT, Connection, in_transaction, translated


class Horizon(NamedTuple):
    """`at`: start of the oldest open transaction, or the current time; None: unknown, the checkpoint must not move."""

    at: datetime | None
    now: datetime
    blocker: str | None  # the session that holds it back, if any
    prepared_since: datetime | None = None  # of the oldest prepared transaction, if that is the blocker

    @property
    def lag(self) -> timedelta:
        """How long the oldest open transaction has been open."""
        # guarantee: C3
        return self.now - (self.at or self.prepared_since or self.now)


def read(connection: Connection, relations: lineage.Relations = (), functions: Collection[Call] = ()) -> Horizon:
    """The horizon for these relations and functions; ConfigError (HORIZON_UNAVAILABLE) if it cannot be determined."""
    # in UTC: Python subtracts two times of one zone by their local clocks, wrong when clocks change between them
    with translated("source"), in_transaction(connection, TEXT_FORMAT):
        row = connection.execute(shown.PLAIN).fetchone()
        # the function also knows that a reader who may call it cannot write through it
        is_unsure = row is not None and (row["hidden"] or row["oldest"] is not None)
        if is_unsure and _has_function(connection):
            row = connection.execute(shown.CALL).fetchone()
        outside = lineage.outside(connection, relations, functions)
    if row is None:
        raise ConfigError("the source returned nothing about its sessions", code="HORIZON_UNAVAILABLE")
    if reason := _refusal(row) or _blind_spot(outside):
        raise ConfigError(
            f"the open transactions of the source cannot be determined: {reason}; or set options.lookback to the"
            " longest time from the time in a row until the row can be read, and every run reads that much again",
            code="HORIZON_UNAVAILABLE",
        )
    # guarantee: C4
    if row["prepared"]:
        return Horizon(None, row["now"], f"{row['prepared']} prepared transaction(s)", row["prepared_since"])
    if row["oldest"] is None or row["oldest"] >= row["now"]:
        return Horizon(row["now"], row["now"], None)
    return Horizon(row["oldest"], row["now"], f"pid {row['pid']}, role {row['role']}")


def _has_function(connection: Connection) -> bool:
    """Whether this account may call the function of `vitrine migrate --roles`, and it is unchanged."""
    arguments = {"schema": shown.SCHEMA, "name": shown.NAME, "body": shown.BODY}
    found = connection.execute(shown.FIND, arguments).fetchone()
    return found is not None and found["granted"]


def _refusal(row: dict[str, object]) -> str | None:
    if row["standby"]:
        return "it is a standby, which does not see the primary's sessions; read from the primary"
    if row["hidden"]:
        return (
            f"{row['hidden']} session(s) of other roles are hidden from '{row['reader']}';"
            f" GRANT pg_read_all_stats TO {row['reader']}, or run `vitrine migrate --roles`"
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
