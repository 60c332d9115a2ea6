"""Routes for the history: runs, and the requests that caused them."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Query

from vitrine.api.connections import StorePool
from vitrine.api.pipelines import Key, Limit
from vitrine.api.problems import documented
from vitrine.api.schemas import REQUEST_ID, RequestBody, RunBody, RunPage
from vitrine.model import RunId
from vitrine.store import pipelines, runs

router = APIRouter(tags=["runs"])


@router.get("/pipelines/{id}/runs", summary="List the runs of a pipeline", responses=documented(404, 422))
def list_runs(
    pool: StorePool,
    key: Key,
    limit: Limit = 50,
    # no default in the OpenAPI document: a browser rounds an integer of this size and would send a larger one back
    before: Annotated[
        int | None,
        Query(ge=1, le=runs.NEWEST, description="Only runs older than this id: `next` of the previous page."),
    ] = None,
) -> RunPage:
    """Every run with its row counts and its error, newest first, one page at a time."""
    with pool.connection() as connection:
        pipeline = pipelines.get(connection, key)
        found = runs.list_page(connection, pipeline.id, limit=limit + 1, before=RunId(before or runs.NEWEST))
    items = [RunBody.of(run) for run in found[:limit]]
    return RunPage(items=items, next=items[-1].id if len(found) > limit else None)


@router.get("/requests/{request_id}", summary="Read a run request", responses=documented(404, 422))
def get_request(
    pool: StorePool,
    request_id: Annotated[
        UUID, Path(description="The `request_id` from the response to a run request.", examples=[REQUEST_ID])
    ],
) -> RequestBody:
    """The request with its newest run. The state is pending, running or paused, at the end succeeded or failed."""
    with pool.connection() as connection:
        request = runs.get_request(connection, request_id)
        pipeline = pipelines.get(connection, request.pipeline_id)
    return RequestBody.of(request, pipeline)
