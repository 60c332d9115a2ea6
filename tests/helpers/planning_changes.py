"""Plans of changed pipelines, and what the runs after them really do to a mart."""

from collections.abc import Callable
from typing import Any

from tests.helpers.running import run
from vitrine.cli.backends.local import local_context
from vitrine.definition.model import StateChoice
from vitrine.definition.pipeline import Pipeline
from vitrine.operations import changes, plans
from vitrine.operations.bodies.plans import PlanBody, RunPlanBody
from vitrine.postgres import Connection, raw
from vitrine.settings import Settings
from vitrine.store import history

Figures = tuple[int | None, int | None, int | None]


def planned(settings: Settings, pipeline: Pipeline, *, state: StateChoice | None = None, **fields: Any) -> PlanBody:
    return plans.plan_change(local_context(settings), pipeline.name, fields, state=state)


def of_run(plan: PlanBody, name: str) -> RunPlanBody:
    (found,) = [one for one in plan.runs if one.run == name]
    return found


def figures(found: RunPlanBody) -> Figures:
    return found.added, found.changed, found.removed


def rows_of(connection: Connection, table: str) -> dict[Any, dict[str, Any]]:
    rows = connection.execute(raw(f"SELECT * FROM {table}")).fetchall()
    return {row["id"]: row for row in rows}


def effect(connection: Connection, table: str, action: Callable[[], object]) -> Figures:
    """How many rows an action adds to a table, changes in it and removes from it; a column that is new holds NULL."""
    before = rows_of(connection, table)
    action()
    after = rows_of(connection, table)
    changed = sum(
        any(after[key][name] != before[key].get(name) for name in after[key]) for key in before.keys() & after.keys()
    )
    return len(after.keys() - before.keys()), changed, len(before.keys() - after.keys())


def carry_out(
    connection: Connection,
    settings: Settings,
    pipeline: Pipeline,
    *,
    state: StateChoice | None = None,
    full: bool = False,
    **fields: Any,
) -> tuple[int, int]:
    """Change the pipeline, run it, and return `rows_written` and `rows_deleted` of the run."""
    changed = changes.change(connection, settings, pipeline.id, fields, state=state)
    executed = run(connection, settings, changed, full=full)
    assert executed.error is None, executed.error
    (newest, *_) = history.list_runs(connection, pipeline.id)
    return newest.rows_written, newest.rows_deleted
