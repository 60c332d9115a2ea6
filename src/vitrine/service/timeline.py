"""What happened to a pipeline: its runs, and what people and programs asked for, in one order."""

from vitrine.ids import RunId
from vitrine.pipeline import Run
from vitrine.service.bodies.overview import TimelineChange, TimelineEntry, TimelinePage, TimelineRun
from vitrine.service.context import Context
from vitrine.service.permissions import allowed
from vitrine.service.roles import Role
from vitrine.store import audit, figures, pipelines, runs
from vitrine.store.figures import Change


@allowed(Role.VIEWER)
def list_page(
    context: Context, key: str, *, before_run: int | None = None, before_change: int | None = None, limit: int = 30
) -> TimelinePage:
    """Newest first; the two positions of a page lead to the next one."""
    run_bound, change_bound = RunId(before_run or runs.NEWEST), before_change or audit.NEWEST
    with context.connection() as connection:
        pipeline = pipelines.get(connection, key)
        found_runs = runs.list_page(connection, pipeline.id, limit=limit + 1, before=run_bound)
        found_changes = figures.list_changes(connection, pipeline.name, before=change_bound, limit=limit + 1)
    return merge(found_runs, found_changes, limit)


def merge(found_runs: list[Run], found_changes: list[Change], limit: int) -> TimelinePage:
    """One page of both; each list has more than `limit` entries if there are more."""
    entries = [_of_run(one) for one in found_runs] + [_of_change(one) for one in found_changes]
    entries.sort(key=lambda entry: entry.at, reverse=True)
    shown = entries[:limit]
    shown_runs = [entry.run.id for entry in shown if entry.run]
    shown_changes = [entry.change.id for entry in shown if entry.change]
    more = len(entries) > len(shown)
    return TimelinePage(
        items=shown,
        next_run=_next(shown_runs, [one.id for one in found_runs]) if more else None,
        next_change=_next(shown_changes, [one.id for one in found_changes]) if more else None,
    )


def _next(shown: list[int], found: list[int]) -> int | None:
    """Where the next page of one list begins: behind the last entry that is shown, or again at its beginning."""
    if shown:
        return min(shown)
    return found[0] + 1 if found else None


def _of_run(run: Run) -> TimelineEntry:
    short = TimelineRun.model_validate(run, from_attributes=True)
    return TimelineEntry(at=run.started_at, run=short, change=None)


def _of_change(change: Change) -> TimelineEntry:
    return TimelineEntry(at=change.at, run=None, change=TimelineChange.of(change))
