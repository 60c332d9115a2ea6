"""Waits for the end of a request, and logs why it takes time."""

import logging
from collections.abc import Iterator
from itertools import chain, repeat

from vitrine_airflow import calls
from vitrine_airflow.answers import Request, Status
from vitrine_airflow.client import AsyncClient, Client

log = logging.getLogger(__name__)

FIRST_SECONDS, STEP_SECONDS = 5, 30


def wait_for_end(client: Client, request_id: str) -> Request:
    """The request as soon as it has ended."""
    notes = Notes()
    for seconds in _steps():
        request = client.send(calls.request(request_id, wait=seconds))
        if request.has_ended:
            return request
        notes.add(request, client.send(calls.status(request.pipeline)))
    raise AssertionError("unreachable")


async def wait_for_end_async(client: AsyncClient, request_id: str) -> Request:
    """The same for an event loop."""
    notes = Notes()
    for seconds in _steps():
        request = await client.send(calls.request(request_id, wait=seconds))
        if request.has_ended:
            return request
        notes.add(request, await client.send(calls.status(request.pipeline)))
    raise AssertionError("unreachable")


def _steps() -> Iterator[int]:
    # the first one is short, so that the log soon says that no runner is alive, or that the pipeline is paused
    return chain([FIRST_SECONDS], repeat(STEP_SECONDS))


class Notes:
    """Log lines about a request that has not ended; none is repeated in a row."""

    def __init__(self) -> None:
        self._last = ""

    def add(self, request: Request, status: Status) -> None:
        reason = f": {status.waiting}" if status.waiting else ""
        line = f"request {request.id} of pipeline '{request.pipeline}' is {request.state}{reason}"
        if line != self._last:
            log.info(line)
            self._last = line
