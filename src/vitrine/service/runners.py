"""Who works on what: runner processes, their leases, and the load of each source."""

from vitrine.service.bodies.runners import LeaseBody, RunnerBody, RunnersBody, SourceBody
from vitrine.service.context import Context
from vitrine.service.permissions import allowed
from vitrine.service.roles import Role
from vitrine.settings import CONNECTIONS_OF_A_RUN, Settings
from vitrine.store import runners
from vitrine.store.runners import SourceCount

MAX_RUNNERS = 200
MAX_LEASES = 500
MAX_COUNTED = 100_000
"""So many pipelines that run or wait are counted at most."""


@allowed(Role.VIEWER)
def read(context: Context) -> RunnersBody:
    """The runners seen last, the longest runs, and every source."""
    with context.connection() as connection:
        found = runners.list_all(connection, limit=MAX_RUNNERS + 1)
        leases = runners.list_leases(connection, limit=MAX_LEASES + 1)
        counts = runners.count_sources(connection, limit=MAX_COUNTED)
    return RunnersBody(
        runners=[RunnerBody.of(one) for one in found[:MAX_RUNNERS]],
        leases=[LeaseBody.of(one) for one in leases[:MAX_LEASES]],
        sources=_sources(context.settings, counts),
        is_cut=len(found) > MAX_RUNNERS or len(leases) > MAX_LEASES,
    )


def _sources(settings: Settings, counts: list[SourceCount]) -> list[SourceBody]:
    busy = {one.name: one for one in counts}
    configured = {"default", *(name.lower() for name in settings.sources)}
    limits = {name.lower(): limit for name, limit in settings.source_connections.items()}
    return [
        _source(name, busy.get(name), limits.get(name), name in configured) for name in sorted({*configured, *busy})
    ]


def _source(name: str, count: SourceCount | None, limit: int | None, is_configured: bool) -> SourceBody:
    running, waiting = (count.running, count.waiting) if count else (0, 0)
    return SourceBody(
        name=name,
        running=running,
        waiting=waiting,
        connections=running * CONNECTIONS_OF_A_RUN,
        max_connections=limit,
        is_configured=is_configured,
    )
