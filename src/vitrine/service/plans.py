"""The plan of a change: what a definition would do to its mart, before it is stored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitrine import revisions
from vitrine.engine import forecast, plan
from vitrine.engine.forecast import Forecast, Known, RunName
from vitrine.engine.row_changes import Budget
from vitrine.errors import NotFound
from vitrine.flow.jobs import RunInfo
from vitrine.flow.rows import Finding
from vitrine.model import Definition, Mode, StateChoice
from vitrine.pipeline import Pipeline, Run
from vitrine.postgres import Connection
from vitrine.requests import RequestKind
from vitrine.revisions import StateEffect
from vitrine.service import chain_findings
from vitrine.service.bodies.pipelines import FindingBody
from vitrine.service.bodies.plans import ColumnChangeBody, PlanBody, RunPlanBody, StatePlanBody
from vitrine.service.checks import ask_both
from vitrine.service.context import Context
from vitrine.service.permissions import allowed
from vitrine.service.roles import Role
from vitrine.status import RunStatus
from vitrine.store import pipelines, runs
from vitrine.store import state as states

SECONDS = 60.0
"""How long rows are compared where no other limit is given."""

SERVER_SHARE = 0.7
"""The part of VITRINE_CHECK_TIMEOUT for rows; the answer must be complete before the rest of it has passed."""

RUNS_FOR_RATE = 10
MOVING = frozenset({*Mode, RequestKind.FULL})
"""Kinds of runs that read all rows or those after the checkpoint."""

SESSION = "vitrine:plan"
CURSOR_NOT_INDEXED = "CURSOR_NOT_INDEXED"


@dataclass(frozen=True)
class _Stored:
    """What the store has of the pipeline; the defaults are those of a pipeline that does not exist."""

    definition: Definition | None = None
    known: Known = Known()  # noqa: RUF009  immutable
    facts: Mapping[str, Any] | None = None
    installation: str = ""
    rate: float | None = None  # rows per second of the last runs; None: there were none


@allowed(Role.OPERATOR)
def plan_change(
    context: Context,
    subject: str | Definition,
    fields: Mapping[str, Any] | None = None,
    *,
    state: StateChoice | None = None,
    seconds: float | None = None,
) -> PlanBody:
    """What a stored pipeline would do with these fields changed, or a definition in place of the stored one."""
    old, new = _definitions(context, subject, fields or {})
    if new != old:
        context.caller.require(Role.ADMIN)  # its query is executed, like that of a pipeline which is stored
    with context.connection() as connection:
        stored = _stored(connection, old, new)
    has_checkpoint = stored.known.state.has_checkpoint
    effect = revisions.state_effect(old or new, new, has_checkpoint=has_checkpoint, state=state)
    checked = plan.check(
        new,
        context.settings,
        run=RunInfo(SESSION, installation=stored.installation, show_keys=context.settings.show_keys_in_errors),
        known=plan.Known(stored.installation, stored.known.quarantined, {} if effect.resets else (stored.facts or {})),
    )
    budget = Budget(_seconds(context, seconds))
    wanted = _wanted(new, effect, state if has_checkpoint else None)
    found = ask_both(
        context,
        checked,
        lambda asked: forecast.forecast(asked, stored.known, wanted, budget),
        seconds=None if seconds is None else seconds + 1,
    )
    chain = chain_findings.of_chain(context, new)
    return _body(old, new, stored, effect, found, chain)


def _seconds(context: Context, seconds: float | None) -> float:
    longest = SECONDS if seconds is None else seconds
    if context.caller.via == "cli":
        return longest
    return min(longest, context.settings.check_timeout.total_seconds() * SERVER_SHARE)


def _definitions(
    context: Context, subject: str | Definition, fields: Mapping[str, Any]
) -> tuple[Definition | None, Definition]:
    """The stored definition, if there is one, and the one to plan."""
    with context.connection() as connection:
        if isinstance(subject, str):
            old = pipelines.get(connection, subject).definition
            return old, revisions.merge(old, fields) if fields else old
        context.caller.require(Role.ADMIN)
        try:
            return pipelines.get(connection, subject.name).definition, subject
        except NotFound:
            return None, subject


def _stored(connection: Connection, old: Definition | None, new: Definition) -> _Stored:
    options = new.options
    if old is None:
        first = Known(deletes_due=options.delete_mode == "reconcile_keys")
        return _Stored(known=first, installation=runs.installation(connection))
    pipeline: Pipeline = pipelines.get(connection, old.name)
    context = runs.context(connection, pipeline.id)
    known = Known(
        states.load(connection, pipeline.id),
        context.open_rejects,
        deletes_due=options.delete_mode == "reconcile_keys"
        and states.are_deletes_due(connection, pipeline.id, options.delete_interval),
    )
    rate = _rate(runs.list_page(connection, pipeline.id, limit=RUNS_FOR_RATE))
    return _Stored(old, known, context.facts, context.installation, rate)


def _rate(newest: Sequence[Run]) -> float | None:
    """Rows per second of the runs that have read rows and succeeded."""
    moved = [
        run
        for run in newest
        if run.status is RunStatus.SUCCESS and run.kind in MOVING and run.rows_read and run.seconds
    ]
    seconds = sum(run.seconds or 0 for run in moved)
    return sum(run.rows_read for run in moved) / seconds if seconds else None


def _wanted(new: Definition, effect: StateEffect, given: StateChoice | None) -> Sequence[RunName]:
    if new.mode is Mode.FULL:
        return ("next",)
    if effect.choices:
        return (*effect.choices, "full")
    return (given or "next", "full")


def _body(
    old: Definition | None,
    new: Definition,
    stored: _Stored,
    effect: StateEffect,
    found: Forecast,
    chain: Sequence[Finding],
) -> PlanBody:
    findings = [one for one in (*found.findings, *chain) if not one.fatal]
    return PlanBody(
        name=new.name,
        stored=old is not None,
        changes=[one.field for one in revisions.differences(old, new)] if old else [],
        target=new.target_table,
        mode=new.mode,
        target_exists=found.target.exists,
        rebuilds=found.target.rewrites,
        state=StatePlanBody(
            has_checkpoint=stored.known.state.has_checkpoint,
            resets=effect.resets,
            choices=list(effect.choices),
            sentence=_state_sentence(new, stored, effect),
        ),
        columns=[ColumnChangeBody.of(one) for one in found.columns],
        runs=[RunPlanBody.of(one, rate=stored.rate, rows_expected=found.rows_expected) for one in found.runs],
        rows_expected=found.rows_expected,
        cursor=_cursor(new, findings),
        refusals=[FindingBody.of(one) for one in found.refusals],
        findings=[FindingBody.of(one) for one in findings],
        left_out=list(found.left_out),
    )


def _state_sentence(new: Definition, stored: _Stored, effect: StateEffect) -> str:
    if effect.reason is not None:
        return effect.reason
    if new.mode is Mode.FULL:
        return "mode full has no checkpoint: every run reads everything"
    if not stored.known.state.has_checkpoint:
        return "there is no checkpoint: the next run reads everything"
    if effect.resets:
        return "the checkpoint is deleted: the next run reads everything, and removes nothing from the mart"
    return "the checkpoint stays: the next run reads what changed since the last one"


def _cursor(new: Definition, findings: Sequence[Finding]) -> str | None:
    if new.mode is Mode.FULL:
        return None
    unindexed = [one.text for one in findings if one.code == CURSOR_NOT_INDEXED]
    if unindexed:
        return "; ".join(unindexed)
    return f"'{new.incremental_key}': an index serves it, or its tables are small"
