"""When a pipeline starts by itself the next time."""

from collections.abc import Sequence
from datetime import datetime

from vitrine.console import texts
from vitrine.status import HALTED, Status


def next_start(
    status: Status, next_due_at: datetime | None, after: Sequence[str], *, enabled: bool
) -> tuple[str | None, str]:
    """The time, or None and what starts it."""
    if not enabled:
        return None, texts.WHEN_ENABLED
    if next_due_at is None and not after:
        return None, texts.NO_SCHEDULE
    if status in HALTED:
        return None, texts.WHEN_RUN_AGAIN if status is Status.FAILED else texts.WHEN_RESUMED
    if next_due_at is not None:
        return next_due_at.isoformat(), ""
    return None, texts.AFTER.format(names=", ".join(after))
