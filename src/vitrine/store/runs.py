"""Runs in the store, the requests that caused them and the live runner processes."""

from collections.abc import Iterable
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple
from uuid import UUID

from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from vitrine.errors import NotFound
from vitrine.ids import PipelineId, RequestId, RunId
from vitrine.model import Definition
from vitrine.pipeline import Claim, Pipeline, Run
from vitrine.postgres import Connection
from vitrine.status import RunStatus, Status
from vitrine.store.checkpoints import lease_lost
from vitrine.store.database import execute, fetch_all, fetch_one

NEWEST = RunId(2**63 - 1)

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


def list_page(connection: Connection, pipeline_id: PipelineId, *, limit: int = 20, before: RunId = NEWEST) -> list[Run]:
    """One page of a pipeline's runs, newest first."""
    return [_run(row) for row in fetch_all(connection, "list_runs", id=pipeline_id, limit=limit, before=before)]


def get(connection: Connection, run_id: RunId) -> Run:
    row = fetch_one(connection, "get_run", run_id=run_id)
    if row is None:
        raise NotFound(f"there is no run {run_id}")
    return _run(row)


def get_of_pipeline(connection: Connection, pipeline: Pipeline, run_id: RunId) -> Run:
    """NotFound if the run does not exist or belongs to another pipeline."""
    row = fetch_one(connection, "get_run", run_id=run_id)
    if row is None or row["pipeline_id"] != pipeline.id:
        raise NotFound(f"pipeline '{pipeline.name}' has no run {run_id}")
    return _run(row)


def statistics(connection: Connection, pipeline_id: PipelineId, *, limit: int, days: int | None) -> dict[str, Any]:
    """Figures over the newest runs; with `days`, over those of them that started within the last days."""
    row = fetch_one(connection, "get_run_statistics", id=pipeline_id, limit=limit, days=days)
    return dict(row) if row else {}


def describe(connection: Connection, claim: Claim, *, lane: str, rows: int | None) -> None:
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


def prune(connection: Connection, *, max_age: timedelta, max_runs: int, limit: int = 500) -> int:
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


def installation(connection: Connection) -> str:
    """The id with which sinks mark what they create for this store."""
    row = fetch_one(connection, "get_installation")
    return str(row["id"]) if row else ""


class RunContext(NamedTuple):
    """What a run's sink needs to know."""

    installation: str
    facts: dict[str, Any]  # as the sink last stored them
    open_rejects: list[str]  # keys in quarantine


def context(connection: Connection, pipeline_id: PipelineId) -> RunContext:
    row = fetch_one(connection, "get_run_context", id=pipeline_id)
    return RunContext(**row) if row else RunContext("", {}, [])
