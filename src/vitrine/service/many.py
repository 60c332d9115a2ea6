"""Run, pause or resume every pipeline that passes filters; one that refuses does not stop the others."""

from collections.abc import Callable
from typing import Any

from vitrine.errors import NotFound, StoredDefinitionInvalid, TransitionRefused
from vitrine.service import control
from vitrine.service.bodies.control import Requested
from vitrine.service.bodies.filters import Filters
from vitrine.service.bodies.many import MANY, ChangedMany, RefusedRun, RequestedRuns, RunManyBody
from vitrine.service.context import Context
from vitrine.service.permissions import allowed
from vitrine.service.roles import Role
from vitrine.store import selecting


@allowed(Role.OPERATOR)
def run(context: Context, body: RunManyBody) -> RequestedRuns:
    """Request a run of every selected pipeline, each by itself."""
    requested: list[Requested] = []
    refused: list[RefusedRun] = []
    with context.connection() as connection:
        found = selecting.list_names(
            connection, context.settings.zone, body.selection, after=body.after, limit=MANY + 1
        )
        selected = found[:MANY]
        for pipeline_id, name in () if body.dry_run else selected:
            try:
                requested.append(control.request_run(context, connection, str(pipeline_id), body))
            except (StoredDefinitionInvalid, TransitionRefused, NotFound) as exc:  # NotFound: deleted since
                refused.append(RefusedRun(pipeline=name, code=exc.code, reason=str(exc)))
    names = [name for _, name in selected]
    return RequestedRuns(
        matched=len(names),
        dry_run=body.dry_run,
        names=names,
        requested=requested,
        refused=refused,
        next=names[-1] if len(found) > MANY else None,
    )


@allowed(Role.OPERATOR)
def pause(context: Context, filters: Filters, *, dry_run: bool = False, after: str = "") -> ChangedMany:
    return _each(context, filters, control.pause, dry_run=dry_run, after=after)


@allowed(Role.OPERATOR)
def resume(context: Context, filters: Filters, *, dry_run: bool = False, after: str = "") -> ChangedMany:
    """Continue paused requests; a pipeline that is not paused gets a run."""
    return _each(context, filters, control.resume, dry_run=dry_run, after=after)


def _each(
    context: Context, filters: Filters, change: Callable[[Context, str], Any], *, dry_run: bool, after: str
) -> ChangedMany:
    with context.connection() as connection:
        found = selecting.list_names(connection, context.settings.zone, filters.selection, after=after, limit=MANY + 1)
    names = [name for _, name in found[:MANY]]
    changed: list[str] = []
    refused: list[RefusedRun] = []
    for pipeline_id, name in () if dry_run else found[:MANY]:
        try:
            change(context, str(pipeline_id))
            changed.append(name)
        except (StoredDefinitionInvalid, TransitionRefused, NotFound) as exc:  # NotFound: deleted since
            refused.append(RefusedRun(pipeline=name, code=exc.code, reason=str(exc)))
    return ChangedMany(
        matched=len(names),
        names=names,
        changed=changed,
        refused=refused,
        next=names[-1] if len(found) > MANY else None,
    )
