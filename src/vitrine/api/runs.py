"""Routes for the history: runs, the requests that caused them, status and state."""

from datetime import timedelta
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Body, Depends, Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from vitrine.api import parameters
from vitrine.api.connections import LONGEST, Service, Waiting
from vitrine.api.parameters import ExpectedVersion, Key, Limit
from vitrine.api.problems import documented
from vitrine.errors import NotFound
from vitrine.operations import history
from vitrine.operations.bodies.common import REQUEST_ID
from vitrine.operations.bodies.runs import (
    RequestBody,
    RunBody,
    RunLogBody,
    RunPage,
    StateBody,
    StateChange,
    Statistics,
    StatusBody,
)
from vitrine.settings import parse_duration
from vitrine.store.history import NEWEST_RUNS

router = APIRouter(tags=["runs"])


@router.get(
    "/pipelines/{id}/runs",
    summary="List the runs of a pipeline",
    responses=parameters.to_run() | documented(404, 422),
)
def list_runs(
    service: Service,
    key: Key,
    limit: Limit = 50,
    # no default in the OpenAPI document: a browser rounds an integer of this size and would send a larger one back
    before: Annotated[
        int | None,
        Query(ge=1, le=NEWEST_RUNS, description="Only runs older than this id: `next` of the previous page."),
    ] = None,
) -> RunPage:
    """Every run with its row counts and its error, newest first, one page at a time."""
    return history.list_runs(service, key, before=before, limit=limit)


@router.get("/pipelines/{id}/runs/statistics", summary="Read figures over runs", responses=documented(404, 422))
def get_statistics(
    service: Service,
    key: Key,
    newest: Annotated[
        int, Query(ge=1, le=history.MAX_RUNS, description="How many of the newest runs the figures cover.")
    ] = 100,
    days: Annotated[
        int | None,
        Query(ge=1, le=history.MAX_DAYS, description="Only those of them that started within the last days."),
    ] = None,
) -> Statistics:
    """Runs by status, sums of rows, durations of the successful runs, the last success and the last failure."""
    return history.statistics(service, key, newest=newest, days=days)


async def _run_id(
    run_id: Annotated[str, Path(description="`id` of a run, from the list of runs.", examples=["42"])],
) -> int:
    """NotFound for anything that no run has as its id."""
    if run_id.isascii() and run_id.isdigit() and int(run_id[:20]) <= NEWEST_RUNS:
        return int(run_id[:20])
    raise NotFound("there is no run of that id; an id is a number")


@router.get("/pipelines/{id}/runs/{run_id}", summary="Read a run", responses=documented(404))
def get_run(service: Service, key: Key, run_id: Annotated[int, Depends(_run_id)]) -> RunBody:
    """One run of the pipeline with its row counts and its error."""
    return history.run(service, key, run_id)


@router.get("/pipelines/{id}/runs/{run_id}/log", summary="Read the log of a run", responses=documented(404))
def get_run_log(service: Service, key: Key, run_id: Annotated[int, Depends(_run_id)]) -> RunLogBody:
    """The last lines of the run, at most 200 of them and 64 KB. They are written at the end of a run, and every ten
    seconds during a long one. They contain no row values."""
    return history.run_log(service, key, run_id)


async def _wait(
    wait: Annotated[
        str,
        Query(
            description="Wait until the request has ended, at most this long: a duration such as 30s. A longer one than"
            " 60s counts as 60s.",
            pattern=r"^[0-9]{1,5}(\.[0-9]{1,3})?(ms|s|m)?$",
            examples=["30s"],
        ),
    ] = "0s",
) -> timedelta:
    return min(parse_duration(wait), LONGEST)


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


@router.get("/requests/{request_id}", summary="Read a run request", responses=documented(404, 422))
async def get_request(
    request: Request,
    service: Service,
    waiting: Waiting,
    request_id: Annotated[
        UUID, Path(description="The `request_id` from the response to a run request.", examples=[REQUEST_ID])
    ],
    wait: Annotated[timedelta, Depends(_wait)],
) -> RequestBody:
    """The request with its newest run. The state is pending, running or paused, at the end succeeded or failed. With
    `wait`, the response is sent as soon as the request has ended, or as it is when the time is over."""
    found = await run_in_threadpool(history.request, service, request_id)
    if wait and found.state not in ("succeeded", "failed"):
        await waiting.until_ended(request_id, wait.total_seconds(), _disconnect(request))
        found = await run_in_threadpool(history.request, service, request_id)
    return found


state_router = APIRouter(tags=["pipelines"])


@state_router.get("/pipelines/{id}/status", summary="Read status and progress", responses=documented(404))
def get_status(service: Service, key: Key) -> StatusBody:
    """Status, open requests, lease, progress of the current run with the time left, freshness, due time, why the
    pipeline waits, and the newest run."""
    return history.status(service, key)


@state_router.get("/pipelines/{id}/state", summary="Read the checkpoint", responses=documented(404))
def get_state(service: Service, key: Key, response: Response) -> StateBody:
    """The checkpoint in full precision, and the state of an unfinished full load if there is one. Send the ETag as
    If-Match when you change the state."""
    return _with_etag(history.state(service, key), response)


@state_router.post(
    "/pipelines/{id}/state",
    summary="Reset the state, or rewind the checkpoint",
    responses=documented(400, 404, 409, 412, 413, 415, 422),
)
def change_state(
    service: Service,
    key: Key,
    expected_version: ExpectedVersion,
    response: Response,
    change: Annotated[
        StateChange,
        Body(
            openapi_examples={
                "reset": {"summary": "Read everything again", "value": {"action": "reset"}},
                "rewind": {
                    "summary": "Read again from a time on",
                    "value": {"action": "rewind", "value": "2025-01-01 00:00:00+00"},
                },
            }
        ),
    ],
) -> StateBody:
    """`reset` forgets the checkpoint and an unfinished load: the next run reads everything. `rewind` moves the
    checkpoint of an incremental pipeline back, never forwards: the next run reads every row again from the value on.
    Rows that are equal are not written again, changed ones are updated, and no row of the mart is deleted. Refused
    (409) during a run, and while a full load is unfinished."""
    return _with_etag(history.change_state(service, key, change, expected_batch_seq=expected_version), response)


def _with_etag(state: StateBody, response: Response) -> StateBody:
    response.headers["ETag"] = f'"{state.batch_seq}"'
    return state
