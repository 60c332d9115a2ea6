"""Due times of pipelines: of their runs, and of the reconciles between them."""

from datetime import UTC, datetime, tzinfo
from typing import NamedTuple

from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from vitrine import schedule
from vitrine.model import Definition
from vitrine.postgres import Connection
from vitrine.requests import RequestKind, RunOptions
from vitrine.status import STEPS, Status
from vitrine.store.database import execute, fetch_all, fetch_one

DUE_LIMIT = 200
"""Due times that one statement consumes."""


def first_due(connection: Connection, definition: Definition, zone: tzinfo = UTC) -> datetime | None:
    """The first due time, by the database's clock; None if the definition is disabled or has no schedule."""
    if definition.schedule is None or not definition.enabled:
        return None
    row = fetch_one(connection, "get_time")
    return definition.schedule.next_after(row["now"], zone=zone) if row else None


class Due(NamedTuple):
    """What a poll has to do."""

    schedules: bool
    reconciles: bool
    leases: bool  # some have expired


def get_due(connection: Connection) -> Due:
    """Whether `fire_schedules`, `fire_reconciles` and `expire_leases` would find anything."""
    row = fetch_one(connection, "get_due")
    return Due(**row) if row else Due(schedules=True, reconciles=True, leases=True)


def fire_schedules(connection: Connection, zone: tzinfo = UTC) -> list[str]:
    """Consume every due time that has passed; names of the pipelines for which this requested a run.

    Due times that were missed cause one run together: the next due time is the first one in the future.
    """
    fired: list[str] = []
    while due := fetch_all(connection, "list_due", limit=DUE_LIMIT):
        following = [_next_due(row, zone) for row in due]
        seen = {"ids": [row["id"] for row in due], "due": [row["next_due_at"] for row in due], "following": following}
        rows = fetch_all(connection, "fire_schedules", **seen, steps=STEPS)
        fired += [row["name"] for row in rows if row["status"] == Status.RUN_REQUESTED]
        if len(rows) < DUE_LIMIT:
            break  # these were all, or other runners are consuming the others
    if fired:
        execute(connection, "notify", name=fired[0])  # one notification wakes up every runner
    return fired


def fire_reconciles(connection: Connection) -> list[str]:
    """Request a deep reconcile of every idle pipeline whose `reconcile_interval` has passed; their names."""
    options = Jsonb(RunOptions(deep=True).stored())
    rows = fetch_all(connection, "fire_reconciles", kind=RequestKind.RECONCILE, options=options, steps=STEPS)
    return [row["name"] for row in rows]


def _next_due(row: DictRow, zone: tzinfo) -> datetime | None:
    """After a postponed run, the regular due time is the next one, or counts as the last one if it has passed."""
    regular = row["regular_due_at"]
    if regular is not None and regular > row["now"]:
        return regular
    last = regular or row["next_due_at"]
    try:
        return schedule.parse(row["schedule_interval"]).next_after(row["now"], last=last, zone=zone)
    except (ValueError, TypeError):
        return None  # written to the table without validation: this run ends FAILED with the reason, and is the last


def seconds_until_due(connection: Connection) -> float | None:
    """Seconds until the next due time, by the database's clock; None if no pipeline is scheduled."""
    row = fetch_one(connection, "seconds_until_due")
    return row["seconds"] if row else None
