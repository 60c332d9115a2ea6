"""Pauses the run of a request when a user ends the task that waits for it."""

import logging

from vitrine_airflow import calls
from vitrine_airflow.answers import Status
from vitrine_airflow.client import AsyncClient, Client

log = logging.getLogger(__name__)

SECONDS = 2.0
"""For each call: Airflow kills a task five seconds after it has asked it to end."""


def pause(client: Client, pipeline: str, request_id: str) -> None:
    """Pauses the pipeline if this is its current request; the run of another request is left alone."""
    if _is_current(client.send_once(calls.status(pipeline), timeout=SECONDS), request_id):
        _log(pipeline, client.send_once(calls.pause(pipeline), timeout=SECONDS))


async def pause_async(client: AsyncClient, pipeline: str, request_id: str) -> None:
    """The same for an event loop."""
    if _is_current(await client.send(calls.status(pipeline)), request_id):
        _log(pipeline, await client.send(calls.pause(pipeline)))


def _is_current(status: Status, request_id: str) -> bool:
    if status.request_id == request_id:
        return True
    log.info("pipeline '%s' has another request or none; it is not paused", status.pipeline)
    return False


def _log(pipeline: str, status: str) -> None:
    log.info("pipeline '%s' is %s, because the task was ended", pipeline, status)
