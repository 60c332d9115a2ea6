"""Waits for the end of a request."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from vitrine.cli.backends.protocols import History
    from vitrine.service.bodies.runs import RequestBody

STEP = timedelta(seconds=20)
OPEN = ("pending", "running")


def for_end(history: "History", request_id: UUID, longest: timedelta) -> "RequestBody":
    """The request as soon as it has ended, or as it is after that time."""
    deadline = time.monotonic() + longest.total_seconds()
    while True:
        remaining = timedelta(seconds=max(0.0, deadline - time.monotonic()))
        found = history.request(request_id, min(STEP, remaining))
        if found.state not in OPEN or not remaining:
            return found


def until_stopped(
    history: "History",
    request_id: UUID,
    stop: threading.Event,
    *,
    step: timedelta,
    progress: "Callable[[RequestBody], None]",
) -> "RequestBody":
    """The request as soon as it has ended, or as it is when `stop` is set; calls `progress` after every step.

    The waits are made in another thread: a request to the API cannot be interrupted.
    """
    found: list[RequestBody] = [history.request(request_id, timedelta(0))]
    errors: list[BaseException] = []
    changed = threading.Event()

    def follow() -> None:
        try:
            while found[-1].state in OPEN and not stop.is_set():
                found.append(history.request(request_id, step))
                changed.set()
        except BaseException as exc:  # noqa: BLE001 – raised again in the thread that waits
            errors.append(exc)
        changed.set()

    thread = threading.Thread(target=follow, name="waiting", daemon=True)
    thread.start()
    while found[-1].state in OPEN and not stop.is_set() and not errors:
        changed.wait(0.2)
        changed.clear()
        progress(found[-1])
    if errors:
        raise errors[0]
    return found[-1]
