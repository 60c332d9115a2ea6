"""Deep reconciles and repairs as runs, and what they have found."""

from typing import Any

from tests.helpers.running import run
from vitrine.core.status import RequestKind, RunOptions, RunStatus
from vitrine.definition.pipeline import Pipeline
from vitrine.postgres import Connection
from vitrine.runner.run import Executed
from vitrine.settings import Settings
from vitrine.store import history

Report = dict[str, Any]


def reconcile(
    connection: Connection,
    settings: Settings,
    pipeline: Pipeline,
    *,
    repair: bool = False,
    allow_shrink: bool = False,
) -> Executed:
    """A deep reconcile, or a repair."""
    wanted = RunOptions(deep=True, repair=repair, allow_shrink=allow_shrink)
    return run(connection, settings, pipeline, kind=RequestKind.RECONCILE, options=wanted)


def report(connection: Connection, settings: Settings, pipeline: Pipeline, **options: bool) -> Report:
    """The report of a deep reconcile that succeeds."""
    executed = reconcile(connection, settings, pipeline, **options)
    assert executed.error is None, executed.error
    return last_result(connection, pipeline)


def last_result(connection: Connection, pipeline: Pipeline) -> Report:
    (newest, *_) = history.list_runs(connection, pipeline.id)
    assert newest.status is RunStatus.SUCCESS, newest
    assert newest.result is not None
    return newest.result


def keys(found: Report) -> dict[str, list[str]]:
    """The keys of each kind of difference, sorted."""
    return {kind: sorted(found[kind]["keys"]) for kind in ("missing", "extra", "different")}


NOTHING: dict[str, list[str]] = {"missing": [], "extra": [], "different": []}
