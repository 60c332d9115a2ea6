"""Routes for plans: what a definition would do to its mart, before it is stored."""

from typing import Annotated

from fastapi import APIRouter, Body, Query

from vitrine.api.checks import Unsaved
from vitrine.api.connections import Service
from vitrine.api.parameters import Key, StateParameter, body_errors
from vitrine.api.problems import documented
from vitrine.service import plans
from vitrine.service.bodies.changes import Change
from vitrine.service.bodies.examples import DEFINITION_EXAMPLE
from vitrine.service.bodies.plans import PlanBody

router = APIRouter(tags=["checks"])

Seconds = Annotated[
    float | None,
    Query(
        ge=0.1,
        le=600,
        description="How long rows are compared at most; 70 % of VITRINE_CHECK_TIMEOUT is the upper limit. Figures that"
        " are not complete by then are estimates from a sample, or missing.",
    ),
]


@router.post("/plan", summary="Plan a definition", responses=documented(400, 413, 415, 422, 503, 504))
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


@router.post(
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
