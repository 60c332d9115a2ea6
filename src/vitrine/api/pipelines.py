"""Routes for pipelines: their configuration and their control."""

from typing import Annotated

from fastapi import APIRouter, Body, Query, Response
from pydantic import Field

from vitrine.api import parameters
from vitrine.api.connections import Service
from vitrine.api.parameters import (
    PREFIX,
    Change,
    ExpectedVersion,
    Key,
    StateParameter,
    Validate,
    body_errors,
    with_etag,
)
from vitrine.api.problems import documented
from vitrine.core.status import Status
from vitrine.definition.model import Definition, Step
from vitrine.operations import control, definitions, many
from vitrine.operations.bodies.common import DEFINITION_EXAMPLE, INCREMENTAL_EXAMPLE, STEPS_EXAMPLE
from vitrine.operations.bodies.control import Paused, Reloaded, Requested, RunOptionsBody, RunRequestBody
from vitrine.operations.bodies.filters import Filters, RequestedRuns, RunManyBody
from vitrine.operations.bodies.pipelines import PipelineBody, PipelinePage, StoredPipelineBody

router = APIRouter(tags=["pipelines"])


class ListParameters(Filters):
    limit: int = Field(default=50, ge=1, le=200, description="Maximum number of items on a page.")
    after: str = Field(
        default="",
        pattern="^[a-z0-9_]*$",
        max_length=63,
        description="Start after this name: `next` of the previous page, with the same filters.",
    )


@router.get("/pipelines", summary="List pipelines", responses=documented(422))
def list_pipelines(service: Service, parameters: Annotated[ListParameters, Query()]) -> PipelinePage:
    """Pipelines that pass every given filter, sorted by name, one page at a time; each with its newest run."""
    return definitions.list_page(service, parameters, after=parameters.after, limit=parameters.limit)


@router.post(
    "/pipelines",
    status_code=201,
    summary="Create a pipeline",
    responses=parameters.to_pipeline() | documented(400, 409, 413, 415, 422, 429),
)
def create_pipeline(
    service: Service,
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
    pipeline = definitions.create(service, definition, validate=validate)
    response.headers["Location"] = f"{PREFIX}/pipelines/{pipeline.id}"
    return with_etag(pipeline, response)


@router.get("/pipelines/{id}", summary="Read a pipeline", responses=documented(404))
def get_pipeline(service: Service, key: Key, response: Response) -> PipelineBody:
    """Definition and status. Send the ETag as If-Match when you change the pipeline."""
    return with_etag(definitions.get(service, key), response)


@router.post(
    "/pipelines/{id}/update-config",
    name="update_config_by_post",
    summary="Change a pipeline (another name of PATCH)",
    responses=documented(400, 404, 409, 412, 413, 415, 422, 429),
)
@router.patch(
    "/pipelines/{id}/update-config",
    name="update_config",
    summary="Change a pipeline (another name of PATCH)",
    responses=documented(400, 404, 409, 412, 413, 415, 422, 429),
)
@router.patch(
    "/pipelines/{id}", summary="Change a pipeline", responses=documented(400, 404, 409, 412, 413, 415, 422, 429)
)
def change_pipeline(
    service: Service,
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
    and target are asked as for a new pipeline, unless only the schedule, the throttle or a text changes. If a file
    manages the pipeline, `warnings` says that the next apply of it replaces the change."""
    fields = change.model_dump(mode="json", exclude_unset=True)
    state = fields.pop("state", None)
    with body_errors():
        pipeline = definitions.change(
            service, key, fields, state=state, expected_version=expected_version, validate=validate
        )
    return with_etag(pipeline, response)


@router.get(
    "/pipelines/{id}/tasks",
    summary="Read the task plan",
    responses={200: {"content": {"application/json": {"example": STEPS_EXAMPLE}}}, **documented(404)},
)
def get_tasks(service: Service, key: Key, response: Response) -> list[Step]:
    """The steps in order; empty if the pipeline has only `source_query` and `python_task`."""
    return list(with_etag(definitions.get(service, key), response).tasks)


@router.put(
    "/pipelines/{id}/tasks",
    summary="Replace the task plan",
    responses=documented(400, 404, 409, 412, 413, 415, 422),
)
def replace_tasks(
    service: Service,
    key: Key,
    expected_version: ExpectedVersion,
    response: Response,
    steps: Annotated[
        list[Step],
        Body(
            max_length=100,
            openapi_examples={
                "plan": {"summary": "A query and a transform", "value": STEPS_EXAMPLE},
                "none": {"summary": "No plan: source_query applies again", "value": []},
            },
        ),
    ],
    state: StateParameter = None,
    validate: Validate = True,
) -> StoredPipelineBody:
    """Replaces every step of the pipeline, under the rules of a change of `tasks`: not during a run, and with a
    checkpoint only with `state`. An empty list removes the plan; `source_query` and `python_task` then apply again."""
    with body_errors():
        pipeline = definitions.replace_tasks(
            service, key, steps, state=state, expected_version=expected_version, validate=validate
        )
    return with_etag(pipeline, response)


@router.post("/pipelines/{id}/enable", summary="Enable a pipeline", responses=documented(404, 409, 412, 422))
def enable_pipeline(
    service: Service, key: Key, expected_version: ExpectedVersion, response: Response
) -> StoredPipelineBody:
    """It can run again, and a schedule starts anew: the first due time lies in the future. Refused (409) if another
    enabled pipeline writes to its target."""
    return with_etag(definitions.set_enabled(service, key, True, expected_version=expected_version), response)


@router.post("/pipelines/{id}/disable", summary="Disable a pipeline", responses=documented(404, 409, 412))
def disable_pipeline(
    service: Service, key: Key, expected_version: ExpectedVersion, response: Response
) -> StoredPipelineBody:
    """No schedule and no request starts it any more. A current run is paused after its batch."""
    return with_etag(definitions.set_enabled(service, key, False, expected_version=expected_version), response)


@router.post("/pipelines/{id}/detach-file", summary="Stop managing a pipeline by its file", responses=documented(404))
def detach_file(service: Service, key: Key, response: Response) -> PipelineBody:
    """`managed_by` becomes null, and the console edits the definition again; the definition does not change. The next
    apply of the file manages it again. Without a file, nothing happens."""
    return with_etag(definitions.detach_file(service, key), response)


@router.delete(
    "/pipelines/{id}", status_code=204, summary="Delete a pipeline", responses=documented(404, 409, 412, 422)
)
def delete_pipeline(
    service: Service,
    key: Key,
    expected_version: ExpectedVersion,
    force: Annotated[
        bool,
        Query(description="Delete even during a run: its current batch is rolled back, and it commits nothing more."),
    ] = False,
) -> None:
    """Deletes the pipeline with its state and history. The target table is kept. Refused during a run, unless `force`
    is set."""
    definitions.delete(service, key, force=force, expected_version=expected_version)


@router.post(
    "/runs", status_code=202, summary="Request runs of many pipelines", responses=documented(400, 413, 415, 422)
)
def run_pipelines(
    service: Service,
    body: Annotated[
        RunManyBody,
        Body(
            openapi_examples={
                "failed": {"summary": "Every pipeline that has failed", "value": {"status": "FAILED"}},
                "count": {
                    "summary": "Which stale pipelines of a tag would run",
                    "value": {"stale": True, "tag": "search", "dry_run": True},
                },
            }
        ),
    ],
) -> RequestedRuns:
    """Requests a run of every pipeline that passes the filters, which are those of the list; at most 1000 at a time,
    `next` is the place to continue. Each request is made for itself: `refused` has those that were not possible, with
    the reason. With `dry_run` nothing is requested."""
    return many.run_many(service, body)


@router.post(
    "/pipelines/{id}/run",
    status_code=202,
    summary="Request a run",
    responses=parameters.to_request() | documented(400, 404, 409, 413, 415, 422),
)
def run_pipeline(service: Service, key: Key, options: RunRequestBody | None = None) -> Requested:
    """The next free runner starts the run. An equal request before the start returns the same `request_id`; one with
    other options follows it, and a third is refused (409). A request while the pipeline is RUNNING adds one more run.
    A PAUSED or FAILED pipeline continues from its checkpoint. The request succeeds only when every change committed
    before it is in the mart. `{"mode": "full"}` asks for a full run: once, an incremental pipeline reads everything and
    removes what vanished at the source. If its query uses `$1` otherwise than as a lower bound, the request fails
    (PARAM), and the pipeline returns to the status it had. `{"backfill": {"from": …, "to": …}}` reads this range of
    `incremental_key` once more and upserts its rows; the checkpoint stays, and the pipeline returns to the status it
    had. It is refused (422) for a full pipeline, for values that are not of the cursor's type, and where `$1` is not a
    lower bound."""
    return control.run(service, key, options)


@router.post(
    "/pipelines/{id}/resume",
    status_code=202,
    summary="Resume a paused pipeline",
    responses=parameters.to_request() | documented(400, 404, 409, 413, 415, 422),
)
def resume_pipeline(service: Service, key: Key, options: RunOptionsBody | None = None) -> Requested:
    """Continues the paused request, of any kind, which promises the changes committed before it was made and keeps its
    options unless others are given. Cancels a requested pause. In any other status the same as run."""
    return control.resume(service, key, options)


@router.post(
    "/pipelines/{id}/rollback",
    status_code=202,
    summary="Go back to the previous generation",
    responses=parameters.to_request() | documented(404, 409, 422),
)
def roll_back_pipeline(service: Service, key: Key) -> Requested:
    """The next free runner makes the generation visible again that was live before, restores its checkpoint and leaves
    the pipeline PAUSED; `resume` continues it. During a run the rollback follows that run. Refused (409,
    NOTHING_TO_ROLL_BACK) if no earlier generation is recorded, or if the target keeps none, as PostgreSQL tables do. If
    only the runner finds that out, the request fails with this code, and the pipeline returns to the status it had."""
    return control.roll_back(service, key)


@router.post(
    "/pipelines/{id}/pause",
    summary="Pause a pipeline",
    responses={
        202: {"model": Paused, "description": "PAUSE_REQUESTED: the run stops after its current batch"},
        **documented(404, 409),
    },
)
def pause_pipeline(service: Service, key: Key, response: Response) -> Paused:
    """200 when the pipeline is PAUSED at once, 202 when the run stops after its current batch. The pipeline stays
    paused, schedule included, until it is resumed. A FAILED pipeline cannot be paused (409)."""
    paused = control.pause(service, key)
    response.status_code = 202 if paused.status is Status.PAUSE_REQUESTED else 200
    return paused


@router.post(
    "/pipelines/{id}/reload-config",
    summary="Apply the stored throttle to the current run",
    responses={
        202: {"model": Reloaded, "description": "RUNNING: the throttle applies from the next batch that is read"},
        **documented(404),
    },
)
def reload_config(service: Service, key: Key, response: Response) -> Reloaded:
    """202 during a run: the run applies the stored `batch_size`, `max_rows_per_second` and `pause_between_batches`.
    200 otherwise: the next run uses the whole stored definition."""
    reloaded = control.reload(service, key)
    response.status_code = 202 if reloaded.applies == "next_batch" else 200
    return reloaded
