"""Wait for a condition, never for a number of seconds."""

import time
from collections.abc import Callable
from typing import TypeVar

Seen = TypeVar("Seen")


def wait_until(condition: Callable[[], Seen | None], timeout: float = 20, what: str = "the condition") -> Seen:
    """Poll until the condition returns something true, and return that; AssertionError after the timeout."""
    deadline = time.monotonic() + timeout
    while not (seen := condition()):
        assert time.monotonic() < deadline, f"{what} was not reached within {timeout:g} s"
        time.sleep(0.02)
    return seen
