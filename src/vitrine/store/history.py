"""Runs, the requests that caused them, their logs, reports of deep reconciles, and messages about them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple
from uuid import UUID

from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from vitrine.core.status import PipelineId, RequestId, RunId, RunStatus, Status
from vitrine.definition.model import Definition
from vitrine.definition.pipeline import Claim, Pipeline, Run, Verdict
from vitrine.errors import NotFound
from vitrine.postgres import Connection
from vitrine.store.checkpoint import lease_lost
from vitrine.store.database import execute, fetch_all, fetch_one

NEWEST_RUNS = RunId(2**63 - 1)

RequestState = Literal["pending", "running", "paused", "succeeded", "failed"]


class Request(NamedTuple):
    """The progress of a run request."""

    id: RequestId
    pipeline_id: PipelineId
    state: RequestState
    run: Run | None  # None: no attempt has started yet
    promised_at: datetime | None  # success includes every change committed before; None: a rerun that is not queued yet

    @property
    def has_ended(self) -> bool:
        return self.state in ("succeeded", "failed")


def list_runs(
    connection: Connection, pipeline_id: PipelineId, *, limit: int = 20, before: RunId = NEWEST_RUNS
) -> list[Run]:
    """One page of a pipeline's runs, newest first."""
    return [_run(row) for row in fetch_all(connection, "list_runs", id=pipeline_id, limit=limit, before=before)]


def get_run(connection: Connection, run_id: RunId) -> Run:
    row = fetch_one(connection, "get_run", run_id=run_id)
    if row is None:
        raise NotFound(f"there is no run {run_id}")
    return _run(row)


def get_run_of_pipeline(connection: Connection, pipeline: Pipeline, run_id: RunId) -> Run:
    """NotFound if the run does not exist or belongs to another pipeline."""
    row = fetch_one(connection, "get_run", run_id=run_id)
    if row is None or row["pipeline_id"] != pipeline.id:
        raise NotFound(f"pipeline '{pipeline.name}' has no run {run_id}")
    return _run(row)


def read_statistics(connection: Connection, pipeline_id: PipelineId, *, limit: int, days: int | None) -> dict[str, Any]:
    """Figures over the newest runs; with `days`, over those of them that started within the last days."""
    row = fetch_one(connection, "get_run_statistics", id=pipeline_id, limit=limit, days=days)
    return dict(row) if row else {}


def describe_run(connection: Connection, claim: Claim, *, lane: str, rows: int | None) -> None:
    """Record the lane of the run and how many rows it expects."""
    _update(connection, "describe_run", claim, lane=lane, rows=rows)


def enter_user_code(connection: Connection, claim: Claim) -> None:
    """Record that user code starts: if the process dies, the attempt counts for this run."""
    _update(connection, "enter_user_code", claim)


def record_result(connection: Connection, claim: Claim, result: dict[str, Any]) -> None:
    """Store what a reconcile has found with its run."""
    _update(connection, "record_result", claim, result=Jsonb(result))


def update_config(connection: Connection, claim: Claim, definition: Definition) -> None:
    """Record the configuration with which the run continues."""
    _update(connection, "update_run_config", claim, config=Jsonb(definition.model_dump(mode="json")))


def _update(connection: Connection, statement: str, claim: Claim, **values: Any) -> None:
    """Change the row of the claim's run, under the fence; LeaseLost if another runner has the pipeline."""
    fenced = {"id": claim.pipeline_id, "token": claim.token, "run_id": claim.run_id}
    if not execute(connection, statement, **fenced, **values):
        raise lease_lost(claim)


def prune_runs(connection: Connection, *, max_age: timedelta, max_runs: int, limit: int = 500) -> int:
    """Delete at most `limit` runs that are too old or too many; how many. Fewer than `limit`: nothing remains.

    The newest run of a pipeline, its newest success and its current run stay at any age.
    """
    old = execute(connection, "prune_old_runs", max_age=max_age, limit=limit)
    return old if old >= limit else old + execute(connection, "prune_excess_runs", max_runs=max_runs, limit=limit - old)


def get_request(connection: Connection, request_id: UUID) -> Request:
    """Pending, running or paused according to its pipeline; otherwise according to the end of its last attempt."""
    waiting = fetch_one(connection, "get_pipeline_of_request", request_id=request_id)
    last = fetch_one(connection, "get_last_run_of_request", request_id=request_id)
    run = _run(last) if last else None
    if waiting is not None:
        state = _waiting_state(Status(waiting["status"]), current=waiting["current"])
        return Request(RequestId(request_id), waiting["id"], state, run, waiting["promised_at"])
    if run is None:
        raise NotFound(f"there is no request {request_id}")
    state = "succeeded" if run.status is RunStatus.SUCCESS else "failed"
    return Request(RequestId(request_id), run.pipeline_id, state, run, last["promised_at"] if last else None)


def list_open_requests(connection: Connection, request_ids: Iterable[UUID]) -> frozenset[UUID]:
    """Those of the requests that are pending, running or paused."""
    return frozenset(row["id"] for row in fetch_all(connection, "list_open_requests", ids=list(request_ids)))


def _waiting_state(status: Status, *, current: bool) -> RequestState:
    match status:
        case Status.RUNNING | Status.PAUSE_REQUESTED:
            return "running" if current else "pending"
        case Status.PAUSED:
            return "paused"
        case Status.FAILED:
            return "failed"
        case _:
            return "pending"


def register_runner(connection: Connection, name: str) -> None:
    execute(connection, "register_runner", name=name)


def deregister_runner(connection: Connection, name: str) -> None:
    execute(connection, "deregister_runner", name=name)


RUNNER_SEEN_WITHIN = timedelta(seconds=15)


def count_live_runners(connection: Connection, within: timedelta = RUNNER_SEEN_WITHIN) -> int:
    row = fetch_one(connection, "count_live_runners", within=within)
    return row["alive"] if row else 0


_FIELDS = tuple(field.name for field in fields(Run))


def _run(row: DictRow) -> Run:
    values: dict[str, Any] = {name: row[name] for name in _FIELDS}
    values["status"] = RunStatus(row["status"])
    return Run(**values)


def installation_id(connection: Connection) -> str:
    """The id with which sinks mark what they create for this store."""
    row = fetch_one(connection, "get_installation")
    return str(row["id"]) if row else ""


class SinkFacts(NamedTuple):
    """What a run's sink needs to know."""

    installation: str
    facts: dict[str, Any]  # as the sink last stored them
    open_rejects: list[str]  # keys in quarantine


def sink_facts(connection: Connection, pipeline_id: PipelineId) -> SinkFacts:
    row = fetch_one(connection, "get_run_context", id=pipeline_id)
    return SinkFacts(**row) if row else SinkFacts("", {}, [])


class RunLog(NamedTuple):
    """The lines of a run, oldest first, as `logs.RunLines` made them."""

    lines: Sequence[Mapping[str, Any]] = ()
    dropped: int = 0  # earlier lines that are not kept


def save_log(connection: Connection, run_id: RunId, log: RunLog) -> None:
    """Replace the lines of a run. The commit does not wait for the disk: a lost line costs nothing."""
    execute(connection, "save_run_log", run_id=run_id, lines=Jsonb(list(log.lines)), dropped=log.dropped)


def load_log(connection: Connection, run_id: RunId) -> RunLog:
    row = fetch_one(connection, "get_run_log", run_id=run_id)
    return RunLog(row["lines"], row["dropped"]) if row else RunLog()


RECONCILIATIONS_KEPT = 50
"""Reports of a pipeline that are kept, the newest."""

NEWEST_RECONCILIATIONS = 2**63 - 1


@dataclass(frozen=True)
class StoredReport:
    """A report, with what it says about its pipeline."""

    id: int
    run_id: int | None  # None: the run was deleted from the history
    started_at: datetime
    finished_at: datetime
    verdict: Verdict
    verified_until: datetime | None  # the mart equals its source as of this time; None: it does not
    report: dict[str, Any]


def record_reconciliation(connection: Connection, claim: Claim, figures: dict[str, Any]) -> None:
    """Store the figures of a `Reconciliation`; its pipeline shows the verdict. LeaseLost if another runner has it."""
    repaired = figures["repaired"]
    row = fetch_one(
        connection,
        "insert_reconciliation",
        id=claim.pipeline_id,
        token=claim.token,
        run_id=claim.run_id,
        verdict="equal" if figures["equal"] else "different",
        missing=figures["missing"]["count"],
        extra=figures["extra"]["count"],
        different=figures["different"]["count"],
        waiting=figures["waiting"],
        repaired=None if repaired is None else sum(found["count"] for found in repaired.values()),
        report=Jsonb(figures),
        others=RECONCILIATIONS_KEPT - 1,
    )
    if row is None:
        raise lease_lost(claim)


def forget_verdict(connection: Connection, pipeline_id: PipelineId) -> None:
    """What was proven concerns another definition; the reports stay."""
    execute(connection, "forget_verdict", id=pipeline_id)


def list_reconciliations(
    connection: Connection, pipeline_id: PipelineId, *, before: int = NEWEST_RECONCILIATIONS, limit: int = 20
) -> list[StoredReport]:
    """One page of the reports of a pipeline, newest first."""
    rows = fetch_all(connection, "list_reconciliations", id=pipeline_id, before=before, limit=limit)
    return [StoredReport(**row) for row in rows]


MAX_AGE = timedelta(days=1)
"""A message that could not be sent for so long is not sent any more."""

NOTIFICATIONS_KEPT = timedelta(days=7)
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


def claim_notification(connection: Connection, events: Collection[str], *, hidden: timedelta) -> Notification | None:
    """The oldest message that is due, for one sender: the others do not see it for the given time."""
    row = fetch_one(connection, "claim_notification", events=sorted(events), max_age=MAX_AGE, hidden=hidden)
    return Notification(**row) if row else None


def record_sent(connection: Connection, notification: Notification) -> None:
    execute(connection, "record_sent", id=notification.id)


def record_unsent(connection: Connection, notification: Notification, reason: str, *, delay: timedelta) -> None:
    """An attempt has failed; the next one follows after the delay."""
    execute(connection, "record_unsent", id=notification.id, reason=reason[:500], delay=delay)


def notification_backlog(connection: Connection, events: Sequence[str]) -> Backlog:
    row = fetch_one(connection, "get_backlog", events=list(events), max_age=MAX_AGE)
    return Backlog(**row) if row else Backlog(0, 0, None)


def prune_notifications(connection: Connection, *, limit: int) -> int:
    """Delete at most `limit` messages that are too old or too many, sent or not; how many."""
    return execute(connection, "prune_notifications", max_age=NOTIFICATIONS_KEPT, max_kept=MAX_KEPT, limit=limit)
