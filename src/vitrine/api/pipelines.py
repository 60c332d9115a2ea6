"""Routes for pipelines: their configuration and their control."""

import logging
import re
from collections.abc import Generator, Sequence
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
    FindingBody,
    Paused,
    PipelineBody,
    PipelinePage,
    Reloaded,
    Requested,
    RunOptionsBody,
    RunRequestBody,
    StateBody,
    StatusBody,
    StoredPipelineBody,
)
from vitrine.engine import plan, rollback, validation
from vitrine.errors import ConfigError, NotFound, TransitionRefused
from vitrine.flow.rows import Finding
from vitrine.model import NAME, Definition, Pipeline, RequestKind, RunOptions
from vitrine.settings import Settings
from vitrine.status import Status
from vitrine.store import pipelines, runs
from vitrine.store import state as states

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
            description="ETag of the version you have read: 412 if the pipeline has changed since.", examples=['"1"']
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
Validate = Annotated[
    bool,
    Query(
        description="Ask source and target first: 422 if no run could succeed. false: store the definition unasked, for"
        " example before its source table exists."
    ),
]
Limit = Annotated[int, Query(ge=1, le=200, description="Maximum number of items on a page.")]


def _with_etag(pipeline: Pipeline, response: Response) -> PipelineBody:
    response.headers["ETag"] = f'"{pipeline.config_version}"'
    return PipelineBody.of(pipeline)


def _stored(pipeline: Pipeline, findings: Sequence[Finding], response: Response) -> StoredPipelineBody:
    response.headers["ETag"] = f'"{pipeline.config_version}"'
    return StoredPipelineBody.of(pipeline).model_copy(
        update={
            "warnings": list(validation.warnings_of(findings)),
            "findings": [FindingBody.of(finding) for finding in findings],
        }
    )


def _preflight(definition: Definition, settings: Settings) -> tuple[Finding, ...]:
    """Findings of source and target; called while no connection of the pool is held."""
    checked = plan.check(definition, settings)
    try:
        return validation.preflight(checked)
    except ConfigError as exc:
        raise ConfigError(f"{exc}. To store it anyway, add ?validate=false", code=exc.code, place=exc.place) from exc


@router.get("/pipelines", summary="List pipelines", responses=documented(422))
def list_pipelines(
    pool: StorePool,
    limit: Limit = 50,
    after: Annotated[
        str,
        Query(pattern="^[a-z0-9_]*$", max_length=63, description="Start after this name: `next` of the previous page."),
    ] = "",
) -> PipelinePage:
    """Pipelines sorted by name, one page at a time."""
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
                "incremental": {"summary": "An incremental load", "value": INCREMENTAL_EXAMPLE},
            }
        ),
    ],
    validate: Validate = True,
) -> StoredPipelineBody:
    """Stores a new pipeline in status IDLE. Query and target are checked first; a refusal lists every reason. Source
    and target are asked as well, if they respond within 5 seconds; `warnings` has what they report."""
    findings = _preflight(definition, settings) if validate else ()
    with pool.connection() as connection:
        pipeline = revisions.create(connection, settings, definition)
    response.headers["Location"] = f"{PREFIX}/pipelines/{pipeline.id}"
    return _stored(pipeline, findings, response)


@router.get("/pipelines/{id}", summary="Read a pipeline", responses=documented(404))
def get_pipeline(pool: StorePool, key: Key, response: Response) -> PipelineBody:
    """Definition and status. Send the ETag as If-Match when you change the pipeline."""
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
                "throttle": {
                    "summary": "Batch size and schedule",
                    "value": {"batch_size": 10_000, "schedule_interval": "1h"},
                },
                "query": {
                    "summary": "A new query that resets the checkpoint",
                    "value": {"source_query": DEFINITION_EXAMPLE["source_query"], "state": "reset"},
                },
            }
        ),
    ],
    validate: Validate = True,
) -> StoredPipelineBody:
    """Changes only the fields in the body. If the pipeline has a checkpoint, a new query needs `state: keep` or
    `state: reset`, and a new cursor, key or target needs `state: reset`. None of these can change during a run. Source
    and target are asked as for a new pipeline, unless only the schedule, the throttle or a text changes."""
    fields = change.model_dump(mode="json", exclude_unset=True)
    state = fields.pop("state", None)
    findings: tuple[Finding, ...] = ()
    with _body_errors():
        if validate:
            with pool.connection() as connection:
                work = revisions.work_changed_by(
                    connection, settings, key, fields, state=state, expected_version=expected_version
                )
            findings = _preflight(work, settings) if work else ()
        with pool.connection() as connection:
            pipeline = revisions.change(
                connection, settings, key, fields, state=state, expected_version=expected_version
            )
    return _stored(pipeline, findings, response)


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
        bool,
        Query(description="Delete even during a run: its current batch is rolled back, and it commits nothing more."),
    ] = False,
) -> None:
    """Deletes the pipeline with its state and history. The target table is kept. Refused during a run, unless `force`
    is set."""
    with pool.connection() as connection:
        pipelines.delete(connection, key, force=force)


@router.post(
    "/pipelines/{id}/run", status_code=202, summary="Request a run", responses=documented(400, 404, 409, 413, 415, 422)
)
def run_pipeline(pool: StorePool, key: Key, options: RunRequestBody | None = None) -> Requested:
    """The next free runner starts the run. An equal request before the start returns the same `request_id`; one with
    other options follows it, and a third is refused (409). A request while the pipeline is RUNNING adds one more run.
    A PAUSED or FAILED pipeline continues from its checkpoint. The request succeeds only when every change committed
    before it is in the mart. `{"mode": "full"}` asks for a full run: once, an incremental pipeline reads everything and
    removes what vanished at the source. If its query uses `$1` otherwise than as a lower bound, the request fails
    (PARAM), and the pipeline returns to the status it had."""
    is_full = options is not None and options.mode == "full"
    return _request_run(pool, key, options, kind=RequestKind.FULL if is_full else RequestKind.RUN)


@router.post(
    "/pipelines/{id}/resume",
    status_code=202,
    summary="Resume a paused pipeline",
    responses=documented(400, 404, 409, 413, 415, 422),
)
def resume_pipeline(pool: StorePool, key: Key, options: RunOptionsBody | None = None) -> Requested:
    """Continues the paused request, of any kind, which promises the changes committed before it was made and keeps its
    options unless others are given. Cancels a requested pause. In any other status the same as run."""
    return _request_run(pool, key, options, resume=True)


@router.post(
    "/pipelines/{id}/rollback",
    status_code=202,
    summary="Go back to the previous generation",
    responses=documented(404, 409, 422),
)
def roll_back_pipeline(pool: StorePool, settings: CurrentSettings, key: Key) -> Requested:
    """The next free runner makes the generation visible again that was live before, restores its checkpoint and leaves
    the pipeline PAUSED; `resume` continues it. During a run the rollback follows that run. Refused (409,
    NOTHING_TO_ROLL_BACK) if no earlier generation is recorded, or if the target keeps none, as PostgreSQL tables do. If
    only the runner finds that out, the request fails with this code, and the pipeline returns to the status it had."""
    with pool.connection() as connection:
        pipeline = pipelines.get(connection, key)
        check = rollback.prepare_check(connection, settings, pipeline)
    check()
    return _request_run(pool, key, None, kind=RequestKind.ROLLBACK)


def _request_run(
    pool: Pool,
    key: str,
    options: RunOptionsBody | None,
    *,
    kind: RequestKind = RequestKind.RUN,
    resume: bool = False,
) -> Requested:
    run_options = RunOptions(allow_shrink=options.allow_shrink) if options else None
    with pool.connection() as connection:
        pipeline = pipelines.get(connection, key)
        status, request_id = pipelines.request_run(
            connection, pipeline.id, trigger="api", kind=kind, options=run_options, resume=resume
        )
    log.info(
        "%s requested",
        kind,
        extra={"action": f"{kind}_requested", "request_id": str(request_id), **_log_fields(pipeline, status)},
    )
    return Requested(request_id=UUID(str(request_id)), status=status, pipeline=pipeline.name)


def _log_fields(pipeline: Pipeline, status: Status) -> dict[str, object]:
    return {"pipeline": pipeline.name, "pipeline_id": str(pipeline.id), "status": status}


@router.post(
    "/pipelines/{id}/pause",
    summary="Pause a pipeline",
    responses={
        202: {"model": Paused, "description": "PAUSE_REQUESTED: the run stops after its current batch"},
        **documented(404, 409),
    },
)
def pause_pipeline(pool: StorePool, key: Key, response: Response) -> Paused:
    """200 when the pipeline is PAUSED at once, 202 when the run stops after its current batch. The pipeline stays
    paused, schedule included, until it is resumed. A FAILED pipeline cannot be paused (409)."""
    with pool.connection() as connection:
        pipeline = pipelines.get(connection, key)
        status = pipelines.request_pause(connection, pipeline.id)
    log.info("pause requested", extra={"action": "pause_requested", **_log_fields(pipeline, status)})
    response.status_code = 202 if status is Status.PAUSE_REQUESTED else 200
    return Paused(status=status, pipeline=pipeline.name)


@router.post(
    "/pipelines/{id}/reload-config",
    summary="Apply the stored throttle to the current run",
    responses={
        202: {"model": Reloaded, "description": "RUNNING: the throttle applies from the next batch that is read"},
        **documented(404),
    },
)
def reload_config(pool: StorePool, key: Key, response: Response) -> Reloaded:
    """202 during a run: the run applies the stored `batch_size`, `max_rows_per_second` and `pause_between_batches`.
    200 otherwise: the next run uses the whole stored definition."""
    with pool.connection() as connection:
        reload = revisions.reload(connection, key)
    response.status_code = 202 if reload.running else 200
    return Reloaded.of(reload)


@router.get("/pipelines/{id}/status", summary="Read status and progress", responses=documented(404))
def get_status(pool: StorePool, key: Key) -> StatusBody:
    """Status, open requests, lease, progress of the current run, and the newest run."""
    with pool.connection() as connection:
        pipeline = pipelines.get(connection, key)
        newest = runs.list_page(connection, pipeline.id, limit=1)
    return StatusBody.of(pipeline, newest[0] if newest else None)


@router.get("/pipelines/{id}/state", summary="Read the checkpoint", responses=documented(404))
def get_state(pool: StorePool, key: Key) -> StateBody:
    """The checkpoint in full precision, and the state of an unfinished full load if there is one."""
    with pool.connection() as connection:
        pipeline = pipelines.get(connection, key)
        return StateBody.of(pipeline, states.load(connection, pipeline.id))
