"""What definitions would do to their marts, and definitions applied from documents: all of them, or none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitrine.compare import impact
from vitrine.compare.impact import Forecast, Known, RunName
from vitrine.compare.row_changes import Budget
from vitrine.core.rows import Finding
from vitrine.core.status import RequestKind, RunStatus
from vitrine.definition.context import RunInfo
from vitrine.definition.model import Definition, Mode, StateChoice
from vitrine.definition.pipeline import Pipeline, Run
from vitrine.definition.yaml import Document
from vitrine.errors import ConfigError, NotFound
from vitrine.operations import changes, checks
from vitrine.operations.bodies.pipelines import FindingBody
from vitrine.operations.bodies.plans import (
    AppliedBody,
    AppliedPipelineBody,
    ApplyBody,
    ColumnChangeBody,
    PlanBody,
    RunPlanBody,
    StatePlanBody,
)
from vitrine.operations.changes import Applied, StateEffect
from vitrine.operations.checks import ask_both
from vitrine.operations.context import Context, Record, Role, allowed, recorded, stored_facts
from vitrine.plan import planner, validation
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import history, pipelines, state
from vitrine.store.pipelines import Invalid

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
    effect = changes.state_effect(old or new, new, has_checkpoint=has_checkpoint, state=state)
    checked = planner.check(
        new,
        context.settings,
        run=RunInfo(SESSION, installation=stored.installation, show_keys=context.settings.show_keys_in_errors),
        known=planner.Known(
            stored.installation, stored.known.quarantined, {} if effect.resets else (stored.facts or {})
        ),
    )
    budget = Budget(_seconds(context, seconds))
    wanted = _wanted(new, effect, state if has_checkpoint else None)
    found = ask_both(
        context,
        checked,
        lambda asked: impact.forecast(asked, stored.known, wanted, budget),
        seconds=None if seconds is None else seconds + 1,
    )
    chain = checks.chain_findings(context, new)
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
            return old, changes.merge(old, fields) if fields else old
        context.caller.require(Role.ADMIN)
        try:
            return pipelines.get(connection, subject.name).definition, subject
        except NotFound:
            return None, subject


def _stored(connection: Connection, old: Definition | None, new: Definition) -> _Stored:
    options = new.options
    if old is None:
        first = Known(deletes_due=options.delete_mode == "reconcile_keys")
        return _Stored(known=first, installation=history.installation_id(connection))
    pipeline: Pipeline = pipelines.get(connection, old.name)
    context = history.sink_facts(connection, pipeline.id)
    known = Known(
        state.load_state(connection, pipeline.id),
        context.open_rejects,
        deletes_due=options.delete_mode == "reconcile_keys"
        and state.are_deletes_due(connection, pipeline.id, options.delete_interval),
    )
    rate = _rate(history.list_runs(connection, pipeline.id, limit=RUNS_FOR_RATE))
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
        changes=[one.field for one in changes.differences(old, new)] if old else [],
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


@allowed(Role.ADMIN)
def apply_documents(context: Context, body: ApplyBody) -> AppliedBody:
    """One ConfigError lists every mistake of every document; nothing has changed then."""
    documents = [one.document for one in body.documents]
    refused: list[str] = []
    warnings: list[str] = []
    if body.ask:
        with context.connection() as connection:
            work = changes.new_work(connection, documents)
        refused, warnings = _ask(work, context.settings)
    with context.connection() as connection:
        applied = store_documents(
            context,
            connection,
            documents,
            body.state,
            refused=refused,
            delete=body.delete,
            dry_run=body.dry_run,
            mark=True,
        )
    return AppliedBody(
        dry_run=body.dry_run, pipelines=[AppliedPipelineBody.of(one) for one in applied], warnings=warnings
    )


def store_documents(
    context: Context,
    connection: Connection,
    documents: Sequence[Document],
    state: StateChoice | None = None,
    *,
    refused: Sequence[str] = (),
    delete: Sequence[str] = (),
    dry_run: bool = False,
    mark: bool = False,
) -> list[Applied]:
    """Apply the documents, and record it; source and target are not asked.

    With `mark`, the documents are files of the caller, which manage the pipelines from now on.
    """
    with recorded(context, connection, "pipelines.apply") as record:
        applied = changes.apply_all(
            connection, context.settings, documents, state, refused=refused, delete=delete, dry_run=dry_run, mark=mark
        )
        for one in () if dry_run else applied:
            _record(record, one)
    return applied


def _record(record: Record, applied: Applied) -> None:
    """The same rows as if each pipeline had been created, changed or deleted by itself."""
    marked = {"managed_by": applied.file} if applied.file is not None else {}
    match applied:
        case Applied(outcome="created", new=Pipeline() as new):
            record.add(new, after={**stored_facts(new), **marked}, operation="pipelines.create")
        case Applied(outcome="changed" | "unchanged", old=Pipeline() | Invalid() as old, new=Pipeline() as new):
            facts = {"state": "reset"} if applied.resets else {}
            record.add_change(old, new, operation="pipelines.change", **facts, **marked)
        case Applied(outcome="deleted", old=Pipeline() | Invalid() as old):
            facts = {"status": old.status, **stored_facts(old)}
            record.add(old, before=facts, operation="pipelines.delete")
        case _:
            pass


def _ask(work: Sequence[tuple[Document, Definition]], settings: Settings) -> tuple[list[str], list[str]]:
    """Reasons of sources and targets against the definitions, and their warnings."""
    refused: list[str] = []
    warnings: list[str] = []
    silent: set[str] = set()  # sources that did not respond: the wait is not repeated for every document
    for document, definition in work:
        if definition.source in silent:
            warnings.append(f"{document.origin}: not validated: source '{definition.source}' did not respond")
            continue
        try:
            checked = planner.check(definition, settings)
        except ConfigError:
            continue  # reported when the documents are applied
        try:
            findings = validation.preflight(checked)
        except ConfigError as exc:
            refused += [f"{reason}. To store it anyway, give --no-validate" for reason in document.mistakes(exc)]
            continue
        if any(finding.code == validation.NOT_VALIDATED for finding in findings):
            silent.add(definition.source)
        warnings += [f"{document.origin}: {warning}" for warning in validation.warnings_of(findings)]
    return refused, warnings
