"""Routes for traces: why one row of a mart is as it is."""

from typing import Annotated

from fastapi import APIRouter, Query

from vitrine.api.connections import Service
from vitrine.api.parameters import Key
from vitrine.api.problems import documented
from vitrine.service import control, tracing
from vitrine.service.bodies.control import Requested
from vitrine.service.bodies.tracing import MAX_KEY_COLUMNS, KeyValue, ResendBody, TraceBody

router = APIRouter(tags=["checks"])

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


@router.get("/pipelines/{id}/trace", summary="Trace a row", responses=documented(404, 422, 504))
def trace_row(service: Service, key: Key, row_key: RowKey) -> TraceBody:
    """The row of one key at the source, after each transform and in the target, column by column, and where it stands:
    `standing`, a sentence, and the remedy. It takes no lease and writes nothing; a difference is looked up twice. A
    value that is no value of the key's type is refused with KEY_VALUE, a key that a transform makes with
    KEY_OF_TRANSFORM."""
    return tracing.trace(service, key, row_key)


@router.post(
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
