"""Routes for pipelines: their configuration and their control."""

import logging
import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Body, Depends, Header, Path, Query, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from vitrine import revisions
from vitrine.api.connections import CurrentSettings, Pool, StorePool
from vitrine.api.problems import documented
from vitrine.api.schemas import (
    DEFINITION_EXAMPLE,
    INCREMENTAL_EXAMPLE,
    Change,
    Paused,
    PipelineBody,
    PipelinePage,
    Reloaded,
    Requested,
    RunOptionsBody,
    StateBody,
    StatusBody,
)
from vitrine.errors import NotFound, TransitionRefused
from vitrine.model import NAME, Definition, Pipeline, RunOptions
from vitrine.status import Status
from vitrine.store import checkpoints, pipelines, runs

log = logging.getLogger(__name__)

PREFIX = "/api/v1"

router = APIRouter(tags=["pipelines"])


def _pipeline_key(
    key: Annotated[str, Path(alias="id", description="The pipeline's name, or its UUID.", examples=["top_genres"])],
) -> str:
    """A name or UUID; NotFound for anything else, so that no odd character reaches the store."""
    if re.fullmatch(NAME, key) or _is_uuid(key):
        return key
    raise NotFound("there is no pipeline of that name; a name has only lower-case letters, digits and _")


def _is_uuid(text: str) -> bool:
    return len(text) <= 36 and re.fullmatch(r"[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}", text) is not None


def _expected_version(
    if_match: Annotated[
        str | None,
        Header(
            description="The ETag of the pipeline as you read it: 412 if it has been changed since.", examples=['"1"']
        ),
    ] = None,
) -> int | None:
    """None: any version."""
    if if_match is None or if_match.strip() == "*":
        return None
    tag = if_match.strip().removeprefix("W/").strip('"')
    if not re.fullmatch(r"[0-9]{1,18}", tag):
        raise TransitionRefused('give If-Match one ETag from a response, such as "3"', code="VERSION_CONFLICT")
    return int(tag)


Key = Annotated[str, Depends(_pipeline_key)]
ExpectedVersion = Annotated[int | None, Depends(_expected_version)]
Limit = Annotated[int, Query(ge=1, le=200, description="At most so many items.")]


def _with_etag(pipeline: Pipeline, response: Response) -> PipelineBody:
    response.headers["ETag"] = f'"{pipeline.config_version}"'
    return PipelineBody.of(pipeline)


@router.get("/pipelines", summary="List pipelines", responses=documented(422))
def list_pipelines(
    pool: StorePool,
    limit: Limit = 50,
    after: Annotated[
        str,
        Query(pattern="^[a-z0-9_]*$", max_length=63, description="Start after this name: `next` of the page before."),
    ] = "",
) -> PipelinePage:
    """Pipelines in the order of their names, one page at a time."""
    with pool.connection() as connection:
        found = pipelines.list_page(connection, after=after, limit=limit + 1)
    items = [PipelineBody.of(pipeline) for pipeline in found[:limit]]
    return PipelinePage(items=items, next=items[-1].name if len(found) > limit else None)


@router.post("/pipelines", status_code=201, summary="Create a pipeline", responses=documented(400, 409, 413, 415, 422))
def create_pipeline(
    pool: StorePool,
    settings: CurrentSettings,
    response: Response,
    definition: Annotated[
        Definition,
        Body(
            openapi_examples={
                "full": {"summary": "A full load on a schedule", "value": DEFINITION_EXAMPLE},
                "incremental": {"summary": "Only what has changed", "value": INCREMENTAL_EXAMPLE},
            }
        ),
    ],
) -> PipelineBody:
    """Stores a new pipeline, IDLE. Its query and target are checked first; a refusal lists every reason."""
    with pool.connection() as connection:
        pipeline = revisions.create(connection, settings, definition)
    response.headers["Location"] = f"{PREFIX}/pipelines/{pipeline.id}"
    return _with_etag(pipeline, response)


@router.get("/pipelines/{id}", summary="Read a pipeline", responses=documented(404))
def get_pipeline(pool: StorePool, key: Key, response: Response) -> PipelineBody:
    """The definition with its status; the ETag is the version to give as If-Match when changing it."""
    with pool.connection() as connection:
        return _with_etag(pipelines.get(connection, key), response)


@router.patch("/pipelines/{id}", summary="Change a pipeline", responses=documented(400, 404, 409, 412, 413, 415, 422))
def change_pipeline(
    pool: StorePool,
    settings: CurrentSettings,
    key: Key,
    expected_version: ExpectedVersion,
    response: Response,
    change: Annotated[
        Change,
        Body(
            openapi_examples={
                "pace": {"summary": "Other pace", "value": {"batch_size": 10_000, "schedule_interval": "1h"}},
                "query": {
                    "summary": "Another query: say what becomes of the checkpoint",
                    "value": {"source_query": DEFINITION_EXAMPLE["source_query"], "state": "reset"},
                },
            }
        ),
    ],
) -> PipelineBody:
    """Changes the fields that are given. Once there is a checkpoint, a new query needs `state: keep` or `reset`, a new
    cursor, key or target needs `reset`; none of them can change while a runner is at work."""
    fields = change.model_dump(mode="json", exclude_unset=True)
    state = fields.pop("state", None)
    with pool.connection() as connection, _body_errors():
        pipeline = revisions.change(connection, settings, key, fields, state=state, expected_version=expected_version)
    return _with_etag(pipeline, response)


@contextmanager
def _body_errors() -> Generator[None]:
    """Report an invalid combination of new and stored fields like an invalid body."""
    try:
        yield
    except ValidationError as exc:
        errors = exc.errors(include_input=False, include_url=False)
        raise RequestValidationError([{**error, "loc": ("body", *error["loc"])} for error in errors]) from exc


@router.delete("/pipelines/{id}", status_code=204, summary="Delete a pipeline", responses=documented(404, 409, 422))
def delete_pipeline(
    pool: StorePool,
    key: Key,
    force: Annotated[
        bool, Query(description="Even while a runner is at work: it commits nothing more, its batch is rolled back.")
    ] = False,
) -> None:
    """Removes the pipeline with its state and history; the target table stays. Refused while a runner is at work,
    unless `force` is given."""
    with pool.connection() as connection:
        pipelines.delete(connection, key, force=force)


@router.post(
    "/pipelines/{id}/run", status_code=202, summary="Ask for a run", responses=documented(400, 404, 409, 413, 415, 422)
)
def run_pipeline(pool: StorePool, key: Key, options: RunOptionsBody | None = None) -> Requested:
    """A runner starts it soon. Asking again before it starts gives the same request; while it is RUNNING, one more run
    follows; a PAUSED or FAILED one goes on from its checkpoint."""
    return _request_run(pool, key, options)


@router.post(
    "/pipelines/{id}/resume",
    status_code=202,
    summary="Resume a paused pipeline",
    responses=documented(400, 404, 409, 413, 415, 422),
)
def resume_pipeline(pool: StorePool, key: Key, options: RunOptionsBody | None = None) -> Requested:
    """The same as run: a paused pipeline goes on from its checkpoint, and a requested pause is withdrawn."""
    return _request_run(pool, key, options)


def _request_run(pool: Pool, key: str, options: RunOptionsBody | None) -> Requested:
    run_options = RunOptions(allow_shrink=options.allow_shrink) if options else RunOptions()
    with pool.connection() as connection:
        pipeline = pipelines.get(connection, key)
        status, request_id = pipelines.request_run(connection, pipeline.id, trigger="api", options=run_options)
    log.info(
        "run requested",
        extra={"action": "run_requested", "request_id": str(request_id), **_log_fields(pipeline, status)},
    )
    return Requested(request_id=UUID(str(request_id)), status=status, pipeline=pipeline.name)


def _log_fields(pipeline: Pipeline, status: Status) -> dict[str, object]:
    return {"pipeline": pipeline.name, "pipeline_id": str(pipeline.id), "status": status}


@router.post(
    "/pipelines/{id}/pause",
    summary="Pause a pipeline",
    responses={
        202: {"model": Paused, "description": "PAUSE_REQUESTED: the runner stops after its current batch"},
        **documented(404, 409),
    },
)
def pause_pipeline(pool: StorePool, key: Key, response: Response) -> Paused:
    """200 when it is PAUSED at once, 202 when the runner stops after its current batch. It stays paused, schedule
    included, until it is resumed; a FAILED pipeline has nothing to pause (409)."""
    with pool.connection() as connection:
        pipeline = pipelines.get(connection, key)
        status = pipelines.request_pause(connection, pipeline.id)
    log.info("pause requested", extra={"action": "pause_requested", **_log_fields(pipeline, status)})
    response.status_code = 202 if status is Status.PAUSE_REQUESTED else 200
    return Paused(status=status, pipeline=pipeline.name)


@router.post(
    "/pipelines/{id}/reload-config",
    summary="Let a running pipeline take its new pace",
    responses={
        202: {"model": Reloaded, "description": "RUNNING: the pace is taken at the next batch that is read"},
        **documented(404),
    },
)
def reload_config(pool: StorePool, key: Key, response: Response) -> Reloaded:
    """202 when a run is under way: it takes `batch_size`, `max_rows_per_second` and `pause_between_batches` as they are
    stored now. 200 when there is none: the next run takes everything anyway."""
    with pool.connection() as connection:
        reload = revisions.reload(connection, key)
    response.status_code = 202 if reload.running else 200
    return Reloaded.of(reload)


@router.get("/pipelines/{id}/status", summary="Where does it stand?", responses=documented(404))
def get_status(pool: StorePool, key: Key) -> StatusBody:
    """Status, requests, lease, the progress of the current run, and the newest run."""
    with pool.connection() as connection:
        pipeline = pipelines.get(connection, key)
        newest = runs.list_page(connection, pipeline.id, limit=1)
    return StatusBody.of(pipeline, newest[0] if newest else None)


@router.get("/pipelines/{id}/state", summary="What has been read?", responses=documented(404))
def get_state(pool: StorePool, key: Key) -> StateBody:
    """The checkpoint, in full precision, and a half-built full load if there is one."""
    with pool.connection() as connection:
        pipeline = pipelines.get(connection, key)
        return StateBody.of(pipeline, checkpoints.load(connection, pipeline.id))
