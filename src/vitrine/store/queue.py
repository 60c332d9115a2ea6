"""Claims of requested pipelines, and the leases of running ones."""

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any, NamedTuple

from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from vitrine.core.status import (
    RETURNING,
    RETURNS,
    STEPS,
    Event,
    PipelineId,
    RequestKind,
    RunId,
    RunOptions,
    RunStatus,
    Status,
)
from vitrine.definition.model import Definition
from vitrine.definition.pipeline import Claim, suspended_clock
from vitrine.errors import CheckpointMoved, ConfigError, NotFound
from vitrine.postgres import Connection
from vitrine.store import checkpoint, history, schedules
from vitrine.store.database import execute, fetch_all, fetch_one, transaction
from vitrine.store.pipelines import of_row

SCHEDULE = "schedule"
"""The trigger of a request that a due time has made."""

PROMISING = frozenset({None, RequestKind.RUN, RequestKind.FULL})
"""The kinds after which every change that was committed before the request is in the mart; None is an ordinary run."""

NO_LIMITS: Mapping[str, int] = MappingProxyType({})


def claim_next(
    connection: Connection,
    *,
    runner: str,
    ttl: timedelta,
    only: PipelineId | None = None,
    runs_per_source: Mapping[str, int] = NO_LIMITS,
) -> Claim | None:
    """Claim one requested pipeline under a new token and insert its run; None if no pipeline is claimable.

    A pipeline whose source has as many runs as `runs_per_source` allows stays in the queue. A pipeline that was
    written to the table without validation, and is not valid, ends FAILED here, and the next one is claimed.
    """
    while True:
        before = suspended_clock()
        with transaction(connection):
            full_sources = _list_full_sources(connection, runs_per_source) if runs_per_source else []
            row = fetch_one(
                connection,
                "claim_next",
                runner=runner,
                ttl=ttl,
                only=only,
                full_sources=full_sources,
                steps=STEPS,
            )
            if row is None:
                return None
            try:
                return _open_run(connection, row, runner, before)
            except ConfigError as exc:
                _fail_invalid(connection, row, runner, str(exc))


def _list_full_sources(connection: Connection, runs_per_source: Mapping[str, int]) -> list[str]:
    """Sources at their limit; other claims wait until the transaction ends before they count."""
    fetch_one(connection, "lock_source_limits")
    return list_full_sources(connection, runs_per_source)


def list_full_sources(connection: Connection, runs_per_source: Mapping[str, int]) -> list[str]:
    """Sources whose runs have all the connections that are allowed."""
    allowed = {"sources": list(runs_per_source), "runs": list(runs_per_source.values())}
    return [row["source"] for row in fetch_all(connection, "list_full_sources", **allowed)]


def is_source_full(connection: Connection, source: str, runs_per_source: Mapping[str, int]) -> bool:
    """Whether a run of this source would have to wait, because others have all the connections that are allowed."""
    if source not in runs_per_source:
        return False
    return bool(list_full_sources(connection, {source: runs_per_source[source]}))


def _open_run(connection: Connection, row: DictRow, runner: str, taken_at: float) -> Claim:
    pipeline = of_row(row)
    _refuse_unguarded_target(row, pipeline.definition)
    kind, options = _known_request(row)
    run_id, taken_over = _insert_run(connection, row, runner, pipeline.definition.model_dump(mode="json"))
    return Claim(
        pipeline_id=pipeline.id,
        definition=pipeline.definition,
        run_id=run_id,
        token=row["lease_token"],
        taken_at=taken_at,
        attempt=pipeline.attempt,
        options=options,
        config_version=pipeline.config_version,
        taken_over=taken_over,
        tag=row["tag"],
        kind=kind,
        request_id=row["request_id"],
        scheduled=row["requested_trigger"] == SCHEDULE and not _is_joined(row),
        postponed=row["postponed"],
    )


def _refuse_unguarded_target(row: DictRow, definition: Definition) -> None:
    """ConfigError if the row names another target than its last step: the index on targets does not know that one."""
    if row["target_table"] != definition.target_table:
        raise ConfigError(
            f"the stored target_table '{row['target_table']}' is not that of the last step,"
            f" '{definition.target_table}'; correct it through the API or `vitrine apply`"
        )


def _is_joined(row: DictRow) -> bool:
    """Whether a person has asked for the same while the request was waiting."""
    return row["promised_at"] is not None and row["promised_at"] >= row["requested_at"]


def _known_request(row: DictRow) -> tuple[RequestKind, RunOptions]:
    """What the claimed request asks for; ConfigError if only a newer release knows it."""
    kind, options = row["requested_kind"] or RequestKind.RUN, row["requested_options"]
    try:
        return RequestKind(kind), RunOptions(**options)
    except (ValueError, TypeError) as exc:
        named = " and ".join([f"kind '{kind}'", *(f"option '{name}'" for name in options)])
        raise ConfigError(f"this runner does not know a request of {named}; upgrade it, then request again") from exc


def _insert_run(connection: Connection, row: DictRow, runner: str, config: dict[str, Any]) -> tuple[RunId, bool]:
    """The id of the new run, and whether the run before it lost its lease."""
    inserted = fetch_one(
        connection,
        "insert_run",
        pipeline_id=row["id"],
        request_id=row["request_id"],
        promised_at=row["promise"] if row["requested_kind"] in PROMISING else None,
        attempt=row["attempt"],
        trigger=row["requested_trigger"] or "api",
        due_at=row["requested_due_at"],
        kind=row["mode"] if row["requested_kind"] in (None, RequestKind.RUN) else row["requested_kind"],
        config=Jsonb(config),
        runner=runner,
        token=row["lease_token"],
    )
    if inserted is None:
        raise NotFound("the store returned no id for the new run")
    return RunId(inserted["id"]), inserted["taken_over"]


def _fail_invalid(connection: Connection, row: DictRow, runner: str, text: str) -> None:
    run_id, _ = _insert_run(connection, row, runner, {})
    event = Event.RETURN_IDLE if row["requested_kind"] in RETURNING else Event.FAIL
    error = ("CONFIG", text) if event in FAILURES else None
    end_lease(connection, row["id"], row["lease_token"], event, error=error)
    record_run_end(connection, run_id, RunStatus.FAILED, "CONFIG", text)
    if event is Event.FAIL:
        history.record_failure(connection, row["id"], code="CONFIG", run_id=run_id, status=Status.FAILED)


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
        raise checkpoint.lease_lost(claim)
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
        schedules.record_success(connection, pipeline_id)
    return schedules.fire_chains(connection, around=pipeline_id)


def _record_messages(
    connection: Connection, claim: Claim, event: Event, ended: "Ended", code: str, rejected: int
) -> None:
    """Store the messages about the end of a run; most ends have none, and need no statement."""
    about = {"run_id": claim.run_id}
    if event in (Event.FAIL, Event.POSTPONE):
        history.record_failure(connection, claim.pipeline_id, code=code, status=ended.status, **about)
    elif event in (Event.FINISH, Event.FINISH_PAUSED) and "failure" in ended.alerts:
        history.record_recovery(connection, claim.pipeline_id, **about)
    if rejected or ended.rejects_noted:
        history.record_rejects(connection, claim.pipeline_id, **about)


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
