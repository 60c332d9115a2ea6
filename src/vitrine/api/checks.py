"""Routes for checks, traces, plans, files, and what pipelines can be made of."""

from typing import Annotated

from fastapi import APIRouter, Body, Path, Query

from vitrine.api.connections import Service
from vitrine.api.parameters import Change, Key, Limit, StateParameter, body_errors
from vitrine.api.problems import documented
from vitrine.definition.model import Definition
from vitrine.operations import checks, control, history, plans
from vitrine.operations.bodies.checks import (
    MAX_KEY_COLUMNS,
    ComparisonBody,
    KeyValue,
    PreviewBody,
    RejectPage,
    ReportBody,
    ResendBody,
    TraceBody,
)
from vitrine.operations.bodies.common import DEFINITION_EXAMPLE, INCREMENTAL_EXAMPLE
from vitrine.operations.bodies.control import Requested
from vitrine.operations.bodies.overview import TablePage, TransformList
from vitrine.operations.bodies.pipelines import ReconcileBody, ReportPage
from vitrine.operations.bodies.plans import AppliedBody, ApplyBody, PlanBody
from vitrine.store.history import NEWEST_RUNS

router = APIRouter(tags=["checks"])

Unsaved = Annotated[
    Definition,
    Body(
        openapi_examples={
            "full": {"summary": "A full load", "value": DEFINITION_EXAMPLE},
            "incremental": {"summary": "An incremental load", "value": INCREMENTAL_EXAMPLE},
        }
    ),
]
Rows = Annotated[int, Query(ge=1, le=100, description="Maximum number of rows.")]


@router.post("/validate", summary="Validate a definition", responses=documented(400, 413, 415, 422, 504))
def validate_definition(service: Service, definition: Unsaved) -> ReportBody:
    """How a definition that is not stored would run: lane, columns, key, and findings with their places in the query.
    One that could not run is refused with every reason (422). Nothing is stored."""
    return checks.validate(service, definition)


def _validate_pipeline(service: Service, key: Key) -> ReportBody:
    """The same for a stored pipeline. A source or target that does not answer in time is reported with 504."""
    return checks.validate(service, key)


for _method in ("GET", "POST"):
    router.add_api_route(
        "/pipelines/{id}/validate",
        _validate_pipeline,
        methods=[_method],
        name=f"validate_pipeline_{_method.lower()}",
        summary="Validate a pipeline",
        responses=documented(404, 422, 504),
    )


@router.post("/preview", summary="Preview a definition", responses=documented(400, 413, 415, 422, 504))
def preview_definition(service: Service, definition: Unsaved, limit: Rows = 20) -> PreviewBody:
    """The first rows of a definition that is not stored, after its transforms. Nothing is written."""
    return checks.preview(service, definition, limit=limit)


@router.get("/pipelines/{id}/preview", summary="Preview a pipeline", responses=documented(404, 422, 504))
def preview_pipeline(service: Service, key: Key, limit: Rows = 20) -> PreviewBody:
    """The first rows of the pipeline in the order of its key or cursor, after its transforms. Nothing is written. At
    most 1 MB of values is returned; `cut` says what ended the preview."""
    return checks.preview(service, key, limit=limit)


@router.get(
    "/pipelines/{id}/reconcile", summary="Compare a mart with its source now", responses=documented(404, 422, 504)
)
def compare_pipeline(service: Service, key: Key) -> ComparisonBody:
    """Compares the number of rows and the values of the control column, at once and under the reader's account. It
    takes no lease, so a run may write meanwhile; a difference is checked twice. 504 if it takes longer than
    VITRINE_CHECK_TIMEOUT: POST asks for the comparison as a run, which has no such limit and compares every column."""
    return checks.compare(service, key)


@router.post(
    "/pipelines/{id}/reconcile",
    status_code=202,
    summary="Request a comparison or a repair",
    responses=documented(400, 404, 409, 413, 415, 422),
)
def request_comparison(service: Service, key: Key, body: ReconcileBody | None = None) -> Requested:
    """The next free runner compares every value of the mart with its source, under the pipeline's lease. The result is
    stored with the run; `GET /requests/{request_id}` returns it. Nothing is written, and the pipeline returns to the
    status it had, with its last error. `deep` finds the keys that differ and keeps the report; `repair` also corrects
    them through the pipeline's own query, transforms and target, without moving the checkpoint, and compares them once
    more."""
    return control.request_reconcile(service, key, body)


@router.get(
    "/pipelines/{id}/reconciliations", summary="List reports of deep reconciles", responses=documented(404, 422)
)
def list_reconciliations(
    service: Service,
    key: Key,
    limit: Limit = 20,
    before: Annotated[
        int | None, Query(ge=1, le=NEWEST_RUNS, description="Start before this id: `next` of the previous page.")
    ] = None,
) -> ReportPage:
    """The reports, newest first; the last 50 are kept. Each names at most 100 keys of every kind of difference."""
    return history.list_reconciliations(service, key, before=before, limit=limit)


@router.post(
    "/pipelines/{id}/rejects/replay", status_code=202, summary="Replay rejects", responses=documented(404, 409)
)
def replay_rejects(service: Service, key: Key) -> Requested:
    """The next free runner reads the keys in quarantine once more and writes the rows that fit now, which closes their
    rejects. The checkpoint stays, and the pipeline returns to the status it had."""
    return control.replay_rejects(service, key)


@router.get("/pipelines/{id}/rejects", summary="List rejects", responses=documented(404, 422))
def list_rejects(
    service: Service,
    key: Key,
    limit: Limit = 50,
    after: Annotated[
        int, Query(ge=0, le=NEWEST_RUNS, description="Start after this id: `next` of the previous page.")
    ] = 0,
    rows: Annotated[bool, Query(description="Return the rows themselves as well: needs the role operator.")] = False,
) -> RejectPage:
    """Rows in quarantine with the reasons, oldest first, one page at a time."""
    return checks.rejects(service, key, after=after, limit=limit, with_rows=rows)


plan_router = APIRouter(tags=["checks"])

Seconds = Annotated[
    float | None,
    Query(
        ge=0.1,
        le=600,
        description="How long rows are compared at most; 70 % of VITRINE_CHECK_TIMEOUT is the upper limit. Figures that"
        " are not complete by then are estimates from a sample, or missing.",
    ),
]


@plan_router.post("/plan", summary="Plan a definition", responses=documented(400, 413, 415, 422, 503, 504))
def plan_definition(
    service: Service,
    definition: Unsaved,
    state: StateParameter = None,
    seconds: Seconds = None,
) -> PlanBody:
    """What a definition that is not stored would do to its mart: rows added, changed and removed, columns, state. If a
    pipeline of this name exists, the definition is planned in its place, as `apply` would store it. Nothing is
    written."""
    return plans.plan_change(service, definition, state=state, seconds=seconds)


@plan_router.post(
    "/pipelines/{id}/plan",
    summary="Plan a change of a pipeline",
    responses=documented(400, 404, 413, 415, 422, 503, 504),
)
def plan_pipeline(
    service: Service,
    key: Key,
    change: Annotated[
        Change | None,
        Body(
            openapi_examples={
                "query": {
                    "summary": "A new query",
                    "value": {"source_query": DEFINITION_EXAMPLE["source_query"]},
                },
                "nothing": {"summary": "No change: what the next run would do", "value": {}},
            }
        ),
    ] = None,
    seconds: Seconds = None,
) -> PlanBody:
    """What the pipeline would do to its mart if these fields were changed, with the body of a PATCH; without fields,
    what its next run would do. A change needs the role admin, because its query is executed. Nothing is written."""
    fields = change.model_dump(mode="json", exclude_unset=True) if change else {}
    state = fields.pop("state", None)
    with body_errors():
        return plans.plan_change(service, key, fields, state=state, seconds=seconds)


trace_router = APIRouter(tags=["checks"])

RowKey = Annotated[
    list[KeyValue],
    Query(
        alias="key",
        min_length=1,
        max_length=MAX_KEY_COLUMNS,
        description="The key of the row. For a key of several columns the parameter is repeated, once for each column,"
        " in the order of `key_columns`.",
        examples=[["17"]],
    ),
]


@trace_router.get("/pipelines/{id}/trace", summary="Trace a row", responses=documented(404, 422, 504))
def trace_row(service: Service, key: Key, row_key: RowKey) -> TraceBody:
    """The row of one key at the source, after each transform and in the target, column by column, and where it stands:
    `standing`, a sentence, and the remedy. It takes no lease and writes nothing; a difference is looked up twice. A
    value that is no value of the key's type is refused with KEY_VALUE, a key that a transform makes with
    KEY_OF_TRANSFORM."""
    return checks.trace(service, key, row_key)


@trace_router.post(
    "/pipelines/{id}/trace/resend",
    status_code=202,
    summary="Resend a row",
    responses=documented(400, 404, 409, 413, 415, 422),
)
def resend_row(service: Service, key: Key, body: ResendBody) -> Requested:
    """The next free runner reads this key once more and writes it through the transforms to the target, under the
    pipeline's lease. The checkpoint stays, and the pipeline returns to the status it had. A key that only the target
    has is deleted only with `delete`. The result of the run names where the row stands then."""
    return control.resend(service, key, body)


file_router = APIRouter(tags=["pipelines"])


@file_router.post("/apply", summary="Apply many definitions", responses=documented(400, 413, 415, 422))
def apply_documents(service: Service, body: ApplyBody) -> AppliedBody:
    """Creates and changes the pipelines of the documents and deletes the named ones in one transaction: all of them, or
    none. One refusal (422, NOT_APPLIED) lists every mistake of every document with its place. `vitrine apply` uses
    it."""
    return plans.apply_documents(service, body)


source_router = APIRouter(tags=["sources"])

NO_CONTROL_CHARACTERS = r"^[^\x00-\x1f]*$"
"""PostgreSQL has no names with a zero character, and refuses the text."""


@source_router.get(
    "/sources/{name}/tables",
    summary="List the tables of a source",
    responses=documented(404, 422),
    response_model_by_alias=True,
)
def list_tables(
    service: Service,
    name: Annotated[str, Path(max_length=63, description="Name of a configured source.", examples=["default"])],
    limit: Limit = 100,
    after: Annotated[
        str,
        Query(
            max_length=127,
            pattern=NO_CONTROL_CHARACTERS,
            description="Start after this table: `next` of the previous page.",
        ),
    ] = "",
    schema: Annotated[
        str | None,
        Query(min_length=1, max_length=63, pattern=NO_CONTROL_CHARACTERS, description="Only tables of this schema."),
    ] = None,
    table: Annotated[
        str | None,
        Query(min_length=1, max_length=63, pattern=NO_CONTROL_CHARACTERS, description="Only tables of this name."),
    ] = None,
) -> TablePage:
    """Tables and views of the allowed schemas that the reader's account may read, with row estimate, key and columns
    that may serve as incremental_key."""
    return checks.list_tables(service, name, schema=schema, table=table, after=after, limit=limit)


@source_router.get("/transforms", summary="List the registered Python tasks", responses=documented())
def list_transforms(service: Service) -> TransformList:
    """Transforms of rows and of frames, and readers, with their options."""
    return checks.list_transforms(service)
