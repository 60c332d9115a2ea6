"""Routes for checks: validation, preview, comparison with the source, rejects."""

from typing import Annotated

from fastapi import APIRouter, Body, Query

from vitrine.api.connections import Service
from vitrine.api.parameters import Key, Limit
from vitrine.api.problems import documented
from vitrine.model import Definition
from vitrine.service import checks, control, history
from vitrine.service.bodies.checks import ComparisonBody, PreviewBody, RejectPage, ReportBody
from vitrine.service.bodies.control import Requested
from vitrine.service.bodies.examples import DEFINITION_EXAMPLE, INCREMENTAL_EXAMPLE
from vitrine.service.bodies.reconciliation import ReconcileBody, ReportPage
from vitrine.store import runs

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
        int | None, Query(ge=1, le=runs.NEWEST, description="Start before this id: `next` of the previous page.")
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
        int, Query(ge=0, le=runs.NEWEST, description="Start after this id: `next` of the previous page.")
    ] = 0,
    rows: Annotated[bool, Query(description="Return the rows themselves as well: needs the role operator.")] = False,
) -> RejectPage:
    """Rows in quarantine with the reasons, oldest first, one page at a time."""
    return checks.rejects(service, key, after=after, limit=limit, with_rows=rows)
