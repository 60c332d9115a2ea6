"""What a page about many pipelines shows: figures that are read at once for all of them."""

from collections.abc import Sequence
from typing import Literal
from uuid import UUID

from vitrine.service.bodies.overview import GroupCounts, HealthBody, RecentRunBody, StateCounts
from vitrine.service.context import Context
from vitrine.service.permissions import allowed
from vitrine.service.roles import Role
from vitrine.store import figures
from vitrine.store.figures import Sparkline

MAX_COUNT = 1000
"""Larger numbers are shown as `1000+`."""

RECENT_RUNS = 30


@allowed(Role.VIEWER)
def counts(context: Context) -> StateCounts:
    with context.connection() as connection:
        return StateCounts(**figures.count_states(connection, context.settings.zone))


@allowed(Role.VIEWER)
def groups(context: Context, by: Literal["owner", "tag"]) -> list[GroupCounts]:
    """The owners or tags in the order of their names, at most 200, with the states of their pipelines."""
    with context.connection() as connection:
        return [GroupCounts(**one) for one in figures.count_groups(connection, context.settings.zone, by)]


@allowed(Role.VIEWER)
def recent_runs(context: Context, ids: Sequence[UUID], *, limit: int = RECENT_RUNS) -> dict[UUID, list[RecentRunBody]]:
    """The newest runs of each of these pipelines, oldest first."""
    with context.connection() as connection:
        found = figures.list_recent_runs(connection, ids, limit=limit)
    return {one: [RecentRunBody.of(run) for run in runs] for one, runs in found.items()}


@allowed(Role.VIEWER)
def sparklines(context: Context, ids: Sequence[UUID], *, limit: int = RECENT_RUNS) -> dict[UUID, Sparkline]:
    """The newest runs of each of these pipelines in short: what a row of a table shows of them."""
    with context.connection() as connection:
        return figures.list_sparklines(connection, ids, limit=limit)


@allowed(Role.VIEWER)
def health(context: Context) -> HealthBody:
    """Runners, queue, active runs and the oldest transaction that a checkpoint waits for."""
    with context.connection() as connection:
        return HealthBody.of(figures.get_health(connection, limit=MAX_COUNT + 1))
