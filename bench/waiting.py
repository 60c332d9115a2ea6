"""Waiting for a condition that another process brings about."""

import time
from collections.abc import Callable

LONGEST_SECONDS = 600.0


def wait_until(condition: Callable[[], bool], what: str, *, pause: float = 0.005) -> None:
    """`what` completes the sentence of the TimeoutError: 'all pipelines are IDLE'."""
    deadline = time.monotonic() + LONGEST_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {LONGEST_SECONDS:g} s in vain until {what}")
        time.sleep(pause)
