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
    before: Annotated[
        int, Query(ge=1, le=runs.NEWEST, description="Only runs older than this id: `next` of the page before.")
    ] = runs.NEWEST,
) -> RunPage:
    """Every attempt with its counts and its error, newest first, one page at a time."""
    with pool.connection() as connection:
        pipeline = pipelines.get(connection, key)
        found = runs.list_page(connection, pipeline.id, limit=limit + 1, before=RunId(before))
    items = [RunBody.of(run) for run in found[:limit]]
    return RunPage(items=items, next=items[-1].id if len(found) > limit else None)


@router.get("/requests/{request_id}", summary="What became of a request?", responses=documented(404, 422))
def get_request(
    pool: StorePool,
    request_id: Annotated[UUID, Path(description="As answered by run.", examples=[REQUEST_ID])],
) -> RequestBody:
    """pending, running or paused while it lives, then succeeded or failed; with its newest attempt."""
    with pool.connection() as connection:
        request = runs.get_request(connection, request_id)
        pipeline = pipelines.get(connection, request.pipeline_id)
    return RequestBody.of(request, pipeline)
