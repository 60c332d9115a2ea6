"""Wait for a condition, never for a number of seconds."""

import time
from collections.abc import Callable
from typing import TypeVar

Seen = TypeVar("Seen")


def wait_until(condition: Callable[[], Seen | None], timeout: float = 20, what: str = "the condition") -> Seen:
    """What the condition gives once it is true of something; an AssertionError when the time is over."""
    deadline = time.monotonic() + timeout
    while not (seen := condition()):
        assert time.monotonic() < deadline, f"{what} did not come true within {timeout:g} s"
        time.sleep(0.02)
    return seen
