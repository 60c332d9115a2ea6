"""Why a mart is older than it should be, in one sentence: the only place that decides it for the pages."""

from vitrine.console import parts, texts
from vitrine.service.bodies.pipelines import ListedPipelineBody, PipelineBody
from vitrine.status import Status


def cause(item: ListedPipelineBody) -> str | None:
    """None: the mart is not late, or the list does not show why."""
    if not item.stale:
        return None
    if item.last_error is not None:
        return item.last_error.message
    return {
        Status.PAUSED: texts.LATE_PAUSED,
        Status.PAUSE_REQUESTED: texts.LATE_PAUSED,
        Status.RUN_REQUESTED: texts.LATE_WAITING,
        Status.RUNNING: texts.LATE_RUNNING,
    }.get(item.status, texts.LATE_IDLE if item.next_due_at is None else texts.LATE_DUE)


def promise(item: PipelineBody) -> str:
    """How old the mart may become."""
    freshness = item.options.freshness
    if freshness is not None:
        return texts.PROMISE.format(duration=parts.duration(freshness.total_seconds()))
    if item.schedule_interval:
        return texts.SCHEDULE.format(schedule=item.schedule_interval)
    return texts.NO_PROMISE
