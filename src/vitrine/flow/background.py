"""Work that takes long in one call, so that a pause, a stop or a lost lease must interrupt it."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from vitrine.flow.protocols import RunControl

Result = TypeVar("Result")

POLL_SECONDS = 0.1
CANCEL_SECONDS = 0.5
"""Between two calls of `cancel`: one that arrives between two statements has no effect."""


def interruptible(work: Callable[[], Result], control: RunControl, cancel: Callable[[], None]) -> Result:
    """The result of the work, which is done in another thread; Stop, or LeaseLost, if the run should end.

    Returns only after the work has ended: `cancel` is called until it has.
    """
    found: Future[Result] = Future()

    def do() -> None:
        try:
            found.set_result(work())
        except BaseException as exc:  # noqa: BLE001  raised again in the thread that waits
            found.set_exception(exc)

    worker = threading.Thread(target=do, name="background", daemon=True)
    worker.start()
    try:
        while worker.is_alive():
            worker.join(POLL_SECONDS)
            if worker.is_alive():
                # guarantee: D25
                control.check()
    finally:
        while worker.is_alive():
            cancel()
            worker.join(CANCEL_SECONDS)
    return found.result()
