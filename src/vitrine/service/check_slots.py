"""Bounds how many definitions are checked at once, so that a flood of them does not delay other calls."""

import threading
from collections.abc import Generator
from contextlib import contextmanager

from vitrine.errors import TransientError

TOO_MANY_CHECKS = "TOO_MANY_CHECKS"

AT_ONCE = 4
"""Checks use one parser, and connections to sources and targets."""

WAIT_SECONDS = 0.25
"""A call that waits occupies a thread that other calls need."""

# guarantee: H12
_slots = threading.BoundedSemaphore(AT_ONCE)


@contextmanager
def slot() -> Generator[None]:
    """One of the checks at once; TransientError if none is free in time."""
    take()
    try:
        yield
    finally:
        give_back()


def take() -> None:
    """The same for a check that ends in another thread, which calls `give_back`."""
    if not _slots.acquire(timeout=WAIT_SECONDS):
        raise TransientError(
            f"{AT_ONCE} definitions are being checked already; try again in a moment", code=TOO_MANY_CHECKS
        )


def give_back() -> None:
    _slots.release()
