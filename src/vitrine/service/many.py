"""Run, pause or resume every pipeline that passes filters; one that refuses does not stop the others."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from vitrine.errors import NotFound, StoredDefinitionInvalid, TransitionRefused
from vitrine.service import control
from vitrine.service.bodies.filters import Filters
from vitrine.service.bodies.many import MANY, ChangedMany, RefusedRun, RequestedRuns, RunManyBody
from vitrine.service.context import Context
from vitrine.service.permissions import allowed
from vitrine.service.roles import Role
from vitrine.store import selecting

Done = TypeVar("Done")


@allowed(Role.OPERATOR)
def run(context: Context, body: RunManyBody) -> RequestedRuns:
    """Request a run of every selected pipeline, each by itself."""
    result = _each(
        context, body, lambda key: control.request_run(context, key, body), dry_run=body.dry_run, after=body.after
    )
    return RequestedRuns(
        matched=len(result.names),
        dry_run=body.dry_run,
        names=result.names,
        requested=[requested for _, requested in result.done],
        refused=result.refused,
        next=result.next,
    )


@allowed(Role.OPERATOR)
def pause(context: Context, filters: Filters, *, dry_run: bool = False, after: str = "") -> ChangedMany:
    return _change(context, filters, control.pause, dry_run=dry_run, after=after)


@allowed(Role.OPERATOR)
def resume(context: Context, filters: Filters, *, dry_run: bool = False, after: str = "") -> ChangedMany:
    """Continue paused requests; a pipeline that is not paused gets a run."""
    return _change(context, filters, control.resume, dry_run=dry_run, after=after)


def _change(
    context: Context, filters: Filters, change: Callable[[Context, str], Any], *, dry_run: bool, after: str
) -> ChangedMany:
    result = _each(context, filters, lambda key: change(context, key), dry_run=dry_run, after=after)
    return ChangedMany(
        matched=len(result.names),
        names=result.names,
        changed=[name for name, _ in result.done],
        refused=result.refused,
        next=result.next,
    )


@dataclass(frozen=True)
class _Result(Generic[Done]):
    names: list[str]
    done: list[tuple[str, Done]]
    refused: list[RefusedRun]
    next: str | None


def _each(
    context: Context, filters: Filters, change: Callable[[str], Done], *, dry_run: bool, after: str
) -> _Result[Done]:
    """Call `change` with the id of each selected pipeline; not for a dry run."""
    with context.connection() as connection:
        found = selecting.list_names(connection, context.settings.zone, filters.selection, after=after, limit=MANY + 1)
    selected = found[:MANY]
    done: list[tuple[str, Done]] = []
    refused: list[RefusedRun] = []
    for pipeline_id, name in () if dry_run else selected:
        try:
            done.append((name, change(str(pipeline_id))))
        except (StoredDefinitionInvalid, TransitionRefused, NotFound) as exc:  # NotFound: deleted since
            refused.append(RefusedRun(pipeline=name, code=exc.code, reason=str(exc)))
    return _Result([name for _, name in selected], done, refused, selected[-1][1] if len(found) > MANY else None)
