"""Routes for the status of a pipeline and the state of its reads."""

from typing import Annotated

from fastapi import APIRouter, Body, Response

from vitrine.api.connections import Service
from vitrine.api.parameters import ExpectedVersion, Key
from vitrine.api.problems import documented
from vitrine.service import history
from vitrine.service.bodies.runs import StatusBody
from vitrine.service.bodies.state import StateBody, StateChange

router = APIRouter(tags=["pipelines"])


@router.get("/pipelines/{id}/status", summary="Read status and progress", responses=documented(404))
def get_status(service: Service, key: Key) -> StatusBody:
    """Status, open requests, lease, progress of the current run with the time left, freshness, due time, why the
    pipeline waits, and the newest run."""
    return history.status(service, key)


@router.get("/pipelines/{id}/state", summary="Read the checkpoint", responses=documented(404))
def get_state(service: Service, key: Key, response: Response) -> StateBody:
    """The checkpoint in full precision, and the state of an unfinished full load if there is one. Send the ETag as
    If-Match when you change the state."""
    return _with_etag(history.state(service, key), response)


@router.post(
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
