"""Leases of running pipelines: their heartbeat, their expiry, and their end with the run."""

from datetime import timedelta
from typing import NamedTuple

from psycopg.rows import DictRow

from vitrine.errors import CheckpointMoved
from vitrine.ids import PipelineId, RunId
from vitrine.pipeline import Claim
from vitrine.postgres import Connection
from vitrine.requests import RETURNING
from vitrine.status import RETURNS, STEPS, Event, RunStatus, Status
from vitrine.store import chains, checkpoints, notifications
from vitrine.store.database import execute, fetch_all, fetch_one, transaction

MAX_ATTEMPTS = 3

FAILURES = frozenset({Event.FAIL, Event.POSTPONE, Event.RETRY})
"""The events after which a pipeline shows the error of its run."""


def expire_leases(connection: Connection) -> list[DictRow]:
    """End expired leases and the sessions that their holders still have open."""
    returning = sorted(RETURNING)
    rows = fetch_all(connection, "expire_leases", max_attempts=MAX_ATTEMPTS, returning=returning, steps=STEPS)
    # guarantee: A18
    for row in rows:
        end_sessions(connection, row["lease_token"])
    return rows


def end_sessions(connection: Connection, token: int) -> None:
    """Terminate every session of a lease in this cluster that our role may terminate."""
    fetch_all(connection, "terminate_sessions", token=token)


def heartbeat(connection: Connection, claim: Claim, ttl: timedelta) -> Status | None:
    """Extend the lease; the pipeline's status, or None if the lease is lost."""
    row = fetch_one(connection, "heartbeat", id=claim.pipeline_id, token=claim.token, ttl=ttl)
    return Status(row["status"]) if row else None


def get_lease_status(connection: Connection, claim: Claim) -> Status | None:
    """The pipeline's status while the lease is ours, expired or not; None if another runner has it."""
    row = fetch_one(connection, "get_lease_status", id=claim.pipeline_id, token=claim.token)
    return Status(row["status"]) if row else None


def poll_run(connection: Connection, claim: Claim) -> tuple[Status, int | None]:
    """The pipeline's status and the version whose throttle the run must apply; LeaseLost if the lease is lost."""
    row = fetch_one(connection, "poll_run", id=claim.pipeline_id, token=claim.token)
    if row is None:
        raise checkpoints.lease_lost(claim)
    return Status(row["status"]), row["reload_version"]


def end_run(
    connection: Connection,
    claim: Claim,
    event: Event,
    run_status: RunStatus,
    *,
    error_code: str | None = None,
    error_message: str | None = None,
    attempt: int = 0,
    delay: timedelta = timedelta(0),
    batch_seq: int | None = None,
) -> Status | None:
    """End the lease and record the end of the run, in one transaction; None, and no change, if the lease is lost.

    An event of RETURNS stands for the one that leads back to the status before the request.
    CheckpointMoved, and no change, if the state does not have the given batch_seq: batches of the run are lost.
    """
    with transaction(connection):
        if fetch_one(connection, "lock_row", id=claim.pipeline_id) is None:
            return None
        ended = end_lease(
            connection,
            claim.pipeline_id,
            claim.token,
            event,
            attempt=attempt,
            delay=delay,
            batch_seq=batch_seq,
            succeeded=run_status is RunStatus.SUCCESS,
            error=(error_code, error_message or "") if error_code and event in FAILURES else None,
        )
        if ended is None:
            if batch_seq is not None and get_lease_status(connection, claim) is not None:
                raise CheckpointMoved(
                    f"the database server lost the last batches of '{claim.definition.name}' when it crashed; the next"
                    " run continues from the checkpoint",
                    code="BATCHES_LOST",
                )
            return None
        rejected = record_run_end(connection, claim.run_id, run_status, error_code, error_message)
        _record_messages(connection, claim, event, ended, error_code or "", rejected)
        fired = _end_wave(connection, claim.pipeline_id, event) if ended.chained else []
        status = Status.RUN_REQUESTED if claim.pipeline_id in fired else ended.status
        if fired or status is Status.RUN_REQUESTED:
            execute(connection, "notify", name=claim.definition.name)
    return status


def _end_wave(connection: Connection, pipeline_id: PipelineId, event: Event) -> list[PipelineId]:
    """Start what waited for the end of this run: the pipelines after it, and itself if it was busy; their ids."""
    # guarantee: L2
    if event is Event.FINISH:
        chains.record_success(connection, pipeline_id)
    return chains.fire(connection, around=pipeline_id)


def _record_messages(
    connection: Connection, claim: Claim, event: Event, ended: "Ended", code: str, rejected: int
) -> None:
    """Store the messages about the end of a run; most ends have none, and need no statement."""
    about = {"run_id": claim.run_id}
    if event in (Event.FAIL, Event.POSTPONE):
        notifications.record_failure(connection, claim.pipeline_id, code=code, status=ended.status, **about)
    elif event in (Event.FINISH, Event.FINISH_PAUSED) and "failure" in ended.alerts:
        notifications.record_recovery(connection, claim.pipeline_id, **about)
    if rejected or ended.rejects_noted:
        notifications.record_rejects(connection, claim.pipeline_id, **about)


class Ended(NamedTuple):
    """A pipeline whose lease has ended."""

    status: Status
    alerts: list[str]  # conditions that a message has reported and none has ended yet
    rejects_noted: int
    chained: bool  # it runs after another one, or another one after it


def end_lease(
    connection: Connection,
    pipeline_id: PipelineId,
    token: int,
    event: Event,
    *,
    attempt: int = 0,
    delay: timedelta = timedelta(0),
    batch_seq: int | None = None,
    succeeded: bool = False,
    error: tuple[str, str] | None = None,  # code and sentence, kept with the pipeline until a run succeeds
) -> Ended | None:
    code, message = error or (None, None)
    row = fetch_one(
        connection,
        "end_run",
        id=pipeline_id,
        token=token,
        event=event,
        attempt=attempt,
        delay=delay,
        batch_seq=batch_seq,
        succeeded=succeeded,
        returns=event in RETURNS,
        error_code=code,
        error_message=message,
        steps=STEPS,
    )
    if row is None:
        return None
    return Ended(Status(row["status"]), row["alerts"], row["rejects_noted"], row["chained"])


def record_run_end(
    connection: Connection, run_id: RunId, status: RunStatus, error_code: str | None, error_message: str | None
) -> int:
    """How many rows the run has put into quarantine."""
    values = {"run_id": run_id, "status": status, "error_code": error_code, "error_message": error_message}
    row = fetch_one(connection, "record_run_end", **values)
    return row["rows_rejected"] if row else 0
