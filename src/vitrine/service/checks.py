"""Checks that change nothing: validate a definition, preview its rows, compare a mart with its source, list rejects."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from vitrine.engine import plan, reconcile, validation
from vitrine.engine import preview as previews
from vitrine.engine.plan import CheckedDefinition
from vitrine.errors import ConfigError, TransientError
from vitrine.model import Definition
from vitrine.service import chain_findings, check_slots
from vitrine.service.bodies.checks import ComparisonBody, PreviewBody, RejectBody, RejectPage, ReportBody
from vitrine.service.context import Context
from vitrine.service.permissions import allowed
from vitrine.service.roles import Role
from vitrine.store import pipelines, runs, schedules
from vitrine.store import rejects as quarantine

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
    findings = (*report.findings, *chain_findings.of_chain(context, definition))
    return ReportBody.of(definition, replace(report, findings=findings), due)


@allowed(Role.OPERATOR)
def preview(context: Context, subject: str | Definition, *, limit: int = 20) -> PreviewBody:
    """The first rows of a stored pipeline, or of a definition, after its transforms; nothing is written."""
    definition = _definition(context, subject)
    return PreviewBody.of(ask(context, definition, lambda checked: previews.preview(checked, limit)))


@allowed(Role.OPERATOR)
def compare(context: Context, key: str, *, with_values: bool = False) -> ComparisonBody:
    """A mart beside its source as of now, in figures: counts and control column or, `with_values`, every value."""
    with context.connection() as connection:
        pipeline = pipelines.get(connection, key)
        quarantined = runs.context(connection, pipeline.id).open_rejects
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
        found = quarantine.list_page(connection, pipeline.id, after=after, limit=limit + 1, with_rows=with_rows)
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
    return ask_both(context, plan.check(definition, context.settings), question)


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
    check_slots.take()

    def answer() -> Answer:
        try:
            return question(checked)
        finally:
            check_slots.give_back()  # here, because a check that does not end must keep its place

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
