"""History in the store: runs, the requests that caused them, and the runners that are alive."""

from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Literal
from uuid import UUID

from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from vitrine.errors import NotFound
from vitrine.model import Claim, Definition, PipelineId, RequestId, Run, RunId
from vitrine.postgres import Connection
from vitrine.status import RunStatus, Status
from vitrine.store.database import execute, fetch_all, fetch_one

NEWEST = RunId(2**63 - 1)

RequestState = Literal["pending", "running", "paused", "succeeded", "failed"]


@dataclass(frozen=True)
class Request:
    """What has become of a run request."""

    id: RequestId
    pipeline_id: PipelineId
    state: RequestState
    run: Run | None  # None: no attempt has started yet


def list_page(connection: Connection, pipeline_id: PipelineId, *, limit: int = 20, before: RunId = NEWEST) -> list[Run]:
    """Newest first."""
    return [_run(row) for row in fetch_all(connection, "list_runs", id=pipeline_id, limit=limit, before=before)]


def get(connection: Connection, run_id: RunId) -> Run:
    row = fetch_one(connection, "get_run", run_id=run_id)
    if row is None:
        raise NotFound(f"there is no run {run_id}")
    return _run(row)


def describe(connection: Connection, claim: Claim, *, lane: str, rows: int | None) -> None:
    """Note how the run goes about it, and how many rows it may expect."""
    execute(connection, "describe_run", run_id=claim.run_id, lane=lane, rows=rows)


def enter_user_code(connection: Connection, claim: Claim) -> None:
    """Note that user code begins: should the process die before a batch is done, this run is a suspect."""
    execute(connection, "enter_user_code", run_id=claim.run_id)


def note_config(connection: Connection, claim: Claim, definition: Definition) -> None:
    """What the run goes on with."""
    execute(connection, "note_config", run_id=claim.run_id, config=Jsonb(definition.model_dump(mode="json")))


def prune(connection: Connection, *, max_age: timedelta, max_runs: int, limit: int = 500) -> int:
    """Remove some of the history that is too old or too much; how many. Fewer than `limit` means that it is done.

    The newest run of a pipeline and its newest success stay whatever their age, and so does what is running.
    """
    old = execute(connection, "prune_old_runs", max_age=max_age, limit=limit)
    return old if old >= limit else old + execute(connection, "prune_excess_runs", max_runs=max_runs, limit=limit - old)


def get_request(connection: Connection, request_id: UUID) -> Request:
    """Pending, running or paused as its pipeline says; otherwise as its last attempt ended."""
    waiting = fetch_one(connection, "pipeline_of_request", request_id=request_id)
    last = fetch_one(connection, "last_run_of_request", request_id=request_id)
    run = _run(last) if last else None
    if waiting is not None:
        state = _waiting_state(Status(waiting["status"]), current=waiting["current"])
        return Request(RequestId(request_id), waiting["id"], state, run)
    if run is None:
        raise NotFound(f"there is no request {request_id}")
    state = "succeeded" if run.status is RunStatus.SUCCESS else "failed"
    return Request(RequestId(request_id), run.pipeline_id, state, run)


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


def runner_alive(connection: Connection, name: str) -> None:
    execute(connection, "runner_alive", name=name)


def runner_gone(connection: Connection, name: str) -> None:
    execute(connection, "runner_gone", name=name)


def count_live_runners(connection: Connection, within: timedelta) -> int:
    row = fetch_one(connection, "count_live_runners", within=within)
    return row["alive"] if row else 0


_FIELDS = tuple(field.name for field in fields(Run))


def _run(row: DictRow) -> Run:
    values: dict[str, Any] = {name: row[name] for name in _FIELDS}
    values["status"] = RunStatus(row["status"])
    return Run(**values)
