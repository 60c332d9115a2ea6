"""Reads that change nothing: validate, preview, compare, trace; tables of a source and registered Python tasks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from vitrine.compare import reconcile
from vitrine.compare.trace import judge, look_up, texts_of_reject
from vitrine.core.rows import Finding
from vitrine.core.status import Status
from vitrine.definition import connectors, registry
from vitrine.definition.model import Definition, Mode
from vitrine.definition.pipeline import Pipeline
from vitrine.errors import ConfigError, NotFound, TransientError, VitrineError
from vitrine.explain import Surroundings, surroundings_of, why_it_waits
from vitrine.operations.bodies.checks import ComparisonBody, PreviewBody, RejectBody, RejectPage, ReportBody, TraceBody
from vitrine.operations.bodies.overview import TableBody, TablePage, TransformBody, TransformList
from vitrine.operations.context import Context, Role, allowed, give_slot_back, take_slot
from vitrine.plan import planner, validation
from vitrine.plan.planner import CheckedDefinition
from vitrine.postgres import Connection
from vitrine.sql.checkpoint import lineage_of
from vitrine.store import checkpoint, history, pipelines, schedules, state
from vitrine.store.schedules import Mart


def chain_findings(context: Context, definition: Definition) -> tuple[Finding, ...]:
    """All of them; ConfigError if the pipeline would wait for itself."""
    with context.connection() as connection:
        found = list(upstream_findings(connection, definition))
        marts = schedules.list_marts(connection)
    return (*found, *cursor_findings(definition, marts))


def upstream_findings(connection: Connection, definition: Definition) -> Iterator[Finding]:
    """ConfigError if the pipeline would wait for itself."""
    if not definition.after:
        return
    schedules.refuse_cycle(connection, definition.name, definition.after)
    enabled = schedules.list_enabled(connection, definition.after)
    for name in definition.after:
        if name not in enabled:
            text = "does not exist yet; create it first, or apply both files together"
            yield Finding("UPSTREAM", f"after: pipeline '{name}' {text}")
        elif not enabled[name]:
            text = "is disabled, so that no run of it starts this one; enable it"
            yield Finding("UPSTREAM", f"after: pipeline '{name}' {text}")


def cursor_findings(definition: Definition, marts: Sequence[Mart]) -> Iterator[Finding]:
    """A cursor of a mart must grow when a row is written to the mart: the horizon covers no other time.

    Called while no connection to the store is held, because it parses the query.
    """
    query, column = definition.query, definition.incremental_key
    if definition.mode is not Mode.INCREMENTAL or query is None or column is None or definition.source != "default":
        return
    try:
        found = lineage_of(query, column, {mart.relation: mart.columns for mart in marts})
    except VitrineError:
        return  # refused for other reasons
    for mart in marts:
        copied = [name for relation, name in found.origins if relation == mart.relation] if found else []
        if copied and copied != [mart.touch_column]:
            remedy = f"use '{mart.touch_column}'" if mart.touch_column else f"give '{mart.pipeline}' a touch_column"
            text = (
                f"incremental_key: '{column}' is the column '{copied[0]}' of a mart, {'.'.join(mart.relation)}, and has"
                " the time of its source: a row that arrives there late may never be read;"
                f" {remedy}, which has the time of writing, or read in mode full"
            )
            yield Finding("MART_CURSOR", text, column)


Answer = TypeVar("Answer")

NO_RIGHT, ROW_SECURITY = "42501", "ROW_SECURITY"
"""SQLSTATE of a statement that the account may not execute."""

CHECK_TIMEOUT = "CHECK_TIMEOUT"
"""The code of a check that took longer than VITRINE_CHECK_TIMEOUT."""


@allowed(Role.OPERATOR)
def validate(context: Context, subject: str | Definition) -> ReportBody:
    """How a stored pipeline, or a definition that is not stored, would run; VitrineError with the reasons if not."""
    definition = _definition(context, subject)
    report = ask(context, definition, validation.inspect)
    with context.connection() as connection:
        due = schedules.first_due(connection, definition, context.settings.zone)
    findings = (*report.findings, *chain_findings(context, definition))
    return ReportBody.of(definition, replace(report, findings=findings), due)


@allowed(Role.OPERATOR)
def preview(context: Context, subject: str | Definition, *, limit: int = 20) -> PreviewBody:
    """The first rows of a stored pipeline, or of a definition, after its transforms; nothing is written."""
    definition = _definition(context, subject)
    return PreviewBody.of(ask(context, definition, lambda checked: validation.preview(checked, limit)))


@allowed(Role.OPERATOR)
def compare(context: Context, key: str, *, with_values: bool = False) -> ComparisonBody:
    """A mart beside its source as of now, in figures: counts and control column or, `with_values`, every value."""
    with context.connection() as connection:
        pipeline = pipelines.get(connection, key)
        quarantined = history.sink_facts(connection, pipeline.id).open_rejects
    return ComparisonBody.of(
        ask(
            context,
            pipeline.definition,
            lambda checked: reconcile.compare_checked(checked, quarantined, with_values=with_values),
        )
    )


@allowed(Role.VIEWER)
def rejects(context: Context, key: str, *, after: int = 0, limit: int = 50, with_rows: bool = False) -> RejectPage:
    """One page of the rows in quarantine, oldest first; the rows themselves only `with_rows`, for operators."""
    if with_rows:
        context.caller.require(Role.OPERATOR)
    with context.connection() as connection:
        pipeline = pipelines.get(connection, key)
        found = checkpoint.list_page(connection, pipeline.id, after=after, limit=limit + 1, with_rows=with_rows)
    items = [RejectBody.of(one) for one in found[:limit]]
    return RejectPage(items=items, next=items[-1].id if len(found) > limit else None)


def _definition(context: Context, subject: str | Definition) -> Definition:
    if isinstance(subject, Definition):
        context.caller.require(
            Role.ADMIN
        )  # its query is executed, like that of a pipeline which an administrator stores
        return subject
    with context.connection() as connection:
        return pipelines.get(connection, subject).definition


def ask(context: Context, definition: Definition, question: Callable[[CheckedDefinition], Answer]) -> Answer:
    return ask_both(context, planner.check(definition, context.settings), question)


def ask_both(
    context: Context,
    checked: CheckedDefinition,
    question: Callable[[CheckedDefinition], Answer],
    *,
    seconds: float | None = None,
) -> Answer:
    """The answer of source and target; called while no connection to the store is held.

    In a server, and if `seconds` are given, the time is limited: TransientError after it.
    """
    if context.caller.via != "cli":
        longest = context.settings.check_timeout.total_seconds()
        seconds = longest if seconds is None else min(seconds, longest)
    try:
        return question(checked) if seconds is None else _limited(context, checked, question, seconds)
    except ConfigError as exc:
        # as an error of the definition: one of the store has the driver's exception as its cause
        raise ConfigError(f"{exc}{_remedy(context, exc)}", code=exc.code, place=exc.place) from exc


def _remedy(context: Context, exc: ConfigError) -> str:
    """For an account that may not read: in a server, another one than that of the commands."""
    # a policy that hides rows has the same state, and its error names the remedy
    is_refused = getattr(exc.__cause__, "sqlstate", None) == NO_RIGHT and exc.code != ROW_SECURITY
    if context.caller.via == "cli" or not is_refused:
        return ""
    return "; grant the account of the API the right to read it (docs/accounts.md), or use the command line"


def _limited(
    context: Context, checked: CheckedDefinition, question: Callable[[CheckedDefinition], Answer], seconds: float
) -> Answer:
    """Time and number of checks are limited: they must not take the threads of a server, nor load the source."""
    take_slot()

    def answer() -> Answer:
        try:
            return question(checked)
        finally:
            give_slot_back()  # here, because a check that does not end must keep its place

    is_server = context.caller.via != "cli"
    hint = " (VITRINE_CHECK_TIMEOUT); the command line has no such limit" if is_server else ""
    try:
        return validation.within(seconds, answer)
    except TimeoutError:
        checked.cancel()
        raise TransientError(
            f"pipeline '{checked.definition.name}': source or target did not answer within {seconds:g} s{hint}",
            code=CHECK_TIMEOUT,
        ) from None


@allowed(Role.OPERATOR)
def trace(context: Context, pipeline_key: str, key: Sequence[str]) -> TraceBody:
    """The row of a key at the source, after each transform and in the target, and where it stands; nothing is written.

    `key`: the values of the key columns, in their order.
    """
    with context.connection() as connection:
        pipeline = pipelines.get(connection, pipeline_key)
        position = state.load_state(connection, pipeline.id).position
        around = surroundings_of(connection, pipeline, context.settings)
    found = ask(context, pipeline.definition, lambda checked: look_up(checked, tuple(key), position))
    with context.connection() as connection:
        reject = checkpoint.find(connection, pipeline.id, texts_of_reject(found))
    reason = reject.reason if reject else found.facts.quarantine
    facts = replace(found.facts, quarantine=reason, halted=_why_no_run_starts(pipeline, around))
    return TraceBody.of(
        pipeline,
        found,
        judge(facts),
        waiting=why_it_waits(pipeline, around),
        reject=RejectBody.of(reject) if reject else None,
        checkpoint=position.cursor,
    )


def _why_no_run_starts(pipeline: Pipeline, around: Surroundings) -> str | None:
    """None: the next run starts by itself, or when it is requested."""
    is_halted = pipeline.status in (Status.PAUSED, Status.FAILED) or not pipeline.definition.enabled
    return why_it_waits(pipeline, around) if is_halted or not around.runners else None


SOURCE_TYPE = "postgres"
"""The connector of the sources in the settings."""


@allowed(Role.OPERATOR)
def list_tables(
    context: Context,
    source: str,
    *,
    schema: str | None = None,
    table: str | None = None,
    after: str = "",
    limit: int = 100,
) -> TablePage:
    """Readable tables of a source, by its reader's account; `after` is the full name of a table."""
    known = sorted({"default", *(name.lower() for name in context.settings.sources)})
    if source not in known:
        raise NotFound(f"there is no source of that name; configured: {', '.join(known)}", code="UNKNOWN_SOURCE")
    connector = connectors.source(SOURCE_TYPE)
    if connector.source is None or connector.source.tables is None:
        raise ConfigError(f"connector '{connector.name}' cannot list what it reads", code="NO_TABLES")
    list_tables = connectors.load_class(connector, connector.source.tables)
    before, _, name = after.partition(".")
    found = list_tables(
        context.settings.source_url(source),
        context.settings.section(connector.name, connector.settings),
        schema=schema,
        table=table,
        after=(before, name),
        limit=limit + 1,
    )
    items = [TableBody.of(one) for one in found[:limit]]
    return TablePage(source=source, items=items, next=items[-1].full_name if len(found) > limit else None)


@allowed(Role.VIEWER)
def list_transforms(context: Context) -> TransformList:
    """Transforms, then readers, each in the order of names."""
    registry.load(context.settings.transform_modules)
    tasks = (*registry.transforms.tasks(), *registry.readers.tasks())
    return TransformList(items=[TransformBody.of(task) for task in tasks])
