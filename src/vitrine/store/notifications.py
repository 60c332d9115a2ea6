"""Messages about pipelines: stored in the transaction of their event, sent later, at least once."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from psycopg.types.json import Jsonb

from vitrine.core.status import PipelineId, RunId
from vitrine.postgres import Connection
from vitrine.store.database import execute, fetch_one

MAX_AGE = timedelta(days=1)
"""A message that could not be sent for so long is not sent any more."""

KEPT = timedelta(days=7)
MAX_KEPT = 10_000


class Notification(NamedTuple):
    """A message that is to be sent."""

    id: UUID
    event: str
    pipeline: str
    details: dict[str, Any]  # codes and counts; no values of rows
    created_at: datetime
    attempts: int  # this one included


class Backlog(NamedTuple):
    """Messages that are not sent yet."""

    waiting: int
    failing: int  # of them: those that an attempt has failed to send
    last_error: str | None


def record_failure(connection: Connection, pipeline_id: PipelineId, *, code: str, run_id: RunId, status: str) -> None:
    """One message for the first failure after a success, in the transaction of the failure."""
    details = Jsonb({"code": code, "run_id": run_id, "status": status})
    execute(connection, "open_alert", id=pipeline_id, event="failure", details=details)


def record_recovery(connection: Connection, pipeline_id: PipelineId, *, run_id: RunId) -> None:
    """The failure that a message has reported has ended with this run."""
    details = Jsonb({"of": "failure", "run_id": run_id})
    execute(connection, "close_alert", id=pipeline_id, event="failure", details=details)


def record_rejects(connection: Connection, pipeline_id: PipelineId, *, run_id: RunId) -> None:
    """One message if more rows are in quarantine than when they were last counted."""
    execute(connection, "record_rejects", id=pipeline_id, run_id=run_id)


def record_stale(connection: Connection, stale_crons: Sequence[UUID]) -> int:
    """One message for each mart that has become stale, and for each that is not stale any more; how many.

    `stale_crons`: pipelines whose mart is older than their cron line allows, which the database cannot compute.
    """
    return execute(connection, "record_stale", stale_crons=list(stale_crons))


def claim(connection: Connection, events: Collection[str], *, hidden: timedelta) -> Notification | None:
    """The oldest message that is due, for one sender: the others do not see it for the given time."""
    row = fetch_one(connection, "claim_notification", events=sorted(events), max_age=MAX_AGE, hidden=hidden)
    return Notification(**row) if row else None


def record_sent(connection: Connection, notification: Notification) -> None:
    execute(connection, "record_sent", id=notification.id)


def record_unsent(connection: Connection, notification: Notification, reason: str, *, delay: timedelta) -> None:
    """An attempt has failed; the next one follows after the delay."""
    execute(connection, "record_unsent", id=notification.id, reason=reason[:500], delay=delay)


def backlog(connection: Connection, events: Sequence[str]) -> Backlog:
    row = fetch_one(connection, "get_backlog", events=list(events), max_age=MAX_AGE)
    return Backlog(**row) if row else Backlog(0, 0, None)


def prune(connection: Connection, *, limit: int) -> int:
    """Delete at most `limit` messages that are too old or too many, sent or not; how many."""
    return execute(connection, "prune_notifications", max_age=KEPT, max_kept=MAX_KEPT, limit=limit)
