"""How old the mart of a pipeline may become."""

from vitrine import schedule
from vitrine.console import parts, texts
from vitrine.schedule import Cron
from vitrine.service.bodies.pipelines import PipelineBody


def promise(item: PipelineBody) -> str:
    """In a few words: the option `freshness` or, without one, the schedule."""
    freshness = item.options.freshness
    if freshness is not None:
        return texts.PROMISE.format(duration=parts.duration(freshness.total_seconds()))
    if item.schedule_interval:
        return texts.SCHEDULE.format(schedule=item.schedule_interval)
    return texts.NO_PROMISE


def longest_age(item: PipelineBody) -> tuple[float, str] | None:
    """In seconds, and as a legend; None: nothing is promised."""
    if item.stale_at is None:
        return None
    seconds = (item.stale_at - (item.fresh_as_of or item.created_at)).total_seconds()
    text = texts.LEGEND_PROMISE_NOW if _varies(item) else texts.LEGEND_PROMISE
    return seconds, text.format(duration=parts.duration(seconds))


def _varies(item: PipelineBody) -> bool:
    """The due times of a cron line are not equally far apart."""
    if item.options.freshness is not None or item.schedule_interval is None:
        return False
    return isinstance(schedule.parse(item.schedule_interval), Cron)
