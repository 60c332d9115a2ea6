"""Run, pause or resume every pipeline that passes filters; one that refuses does not stop the others."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from vitrine.errors import NotFound, StoredDefinitionInvalid, TransitionRefused
from vitrine.operations.bodies.filters import MANY, ChangedMany, Filters, RefusedRun, RequestedRuns, RunManyBody
from vitrine.operations.context import Context, Role, allowed
from vitrine.operations.control import pause, request_run, resume
from vitrine.store.filters import list_pipeline_names

if TYPE_CHECKING:
    pass


Done = TypeVar("Done")


@allowed(Role.OPERATOR)
def run_many(context: Context, body: RunManyBody) -> RequestedRuns:
    """Request a run of every selected pipeline, each by itself."""
    result = _each(context, body, lambda key: request_run(context, key, body), dry_run=body.dry_run, after=body.after)
    return RequestedRuns(
        matched=len(result.names),
        dry_run=body.dry_run,
        names=result.names,
        requested=[requested for _, requested in result.done],
        refused=result.refused,
        next=result.next,
    )


@allowed(Role.OPERATOR)
def pause_many(context: Context, filters: Filters, *, dry_run: bool = False, after: str = "") -> ChangedMany:
    return _change(context, filters, pause, dry_run=dry_run, after=after)


@allowed(Role.OPERATOR)
def resume_many(context: Context, filters: Filters, *, dry_run: bool = False, after: str = "") -> ChangedMany:
    """Continue paused requests; a pipeline that is not paused gets a run."""
    return _change(context, filters, resume, dry_run=dry_run, after=after)


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
        found = list_pipeline_names(connection, context.settings.zone, filters.selection, after=after, limit=MANY + 1)
    selected = found[:MANY]
    done: list[tuple[str, Done]] = []
    refused: list[RefusedRun] = []
    for pipeline_id, name in () if dry_run else selected:
        try:
            done.append((name, change(str(pipeline_id))))
        except (StoredDefinitionInvalid, TransitionRefused, NotFound) as exc:  # NotFound: deleted since
            refused.append(RefusedRun(pipeline=name, code=exc.code, reason=str(exc)))
    return _Result([name for _, name in selected], done, refused, selected[-1][1] if len(found) > MANY else None)
