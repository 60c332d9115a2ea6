"""Validates a definition against source and target without moving a row."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

from vitrine.engine import check_rules, plan
from vitrine.engine.plan import CheckedDefinition, Prepared
from vitrine.errors import ConfigError, TransientError, VitrineError
from vitrine.flow.rows import Column, Finding
from vitrine.model import Definition
from vitrine.postgres import connect
from vitrine.settings import Settings
from vitrine.store import schedules

Answer = TypeVar("Answer")

PREFLIGHT_SECONDS = 5.0
"""A definition is stored without the answer of a database that takes longer."""

NOT_VALIDATED = "NOT_VALIDATED"
"""The finding about a definition whose source or target could not be asked."""


@dataclass(frozen=True)
class Report:
    """The result of `validate`: how the pipeline would run, with warnings."""

    lane: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    target_exists: bool
    rows_expected: int | None
    findings: tuple[Finding, ...]
    first_due_at: datetime | None = None  # if it were stored now; None: not scheduled, or disabled

    @property
    def warnings(self) -> tuple[str, ...]:
        return warnings_of(self.findings)


def warnings_of(findings: Sequence[Finding]) -> tuple[str, ...]:
    """The sentences of findings that ask for a decision."""
    return tuple(finding.text for finding in findings if not finding.note)


def validate(definition: Definition, settings: Settings) -> Report:
    """Check every rule with the configured connections; VitrineError if the pipeline cannot run."""
    return replace(inspect(plan.check(definition, settings)), first_due_at=_first_due(definition, settings))


def inspect(checked: CheckedDefinition) -> Report:
    """The same without the schedule: only source and target are asked."""
    built = plan.prepare(checked)
    try:
        return Report(
            lane=built.lane,
            columns=built.source.columns,
            key=built.plan.target.key,
            target_exists=built.plan.target.exists,
            rows_expected=built.source.rows_expected,
            findings=tuple(findings_of(checked.definition, built)),
        )
    finally:
        built.close()


def preflight(checked: CheckedDefinition, *, seconds: float = PREFLIGHT_SECONDS) -> tuple[Finding, ...]:
    """Findings about a definition that is about to be stored; ConfigError if no run of it could succeed.

    It is stored without the databases if they do not respond in time: then the only finding says so.
    """
    try:
        return within(seconds, lambda: _find(checked))
    except TimeoutError:
        checked.cancel()
        return (_not_validated(f"source or target did not respond within {seconds:g} s"),)
    except TransientError as exc:
        return (_not_validated(str(exc)),)


def _not_validated(reason: str) -> Finding:
    return Finding(NOT_VALIDATED, f"not validated: {reason}")


def _find(checked: CheckedDefinition) -> tuple[Finding, ...]:
    built = plan.prepare(checked)
    try:
        return tuple(findings_of(checked.definition, built))
    finally:
        built.close()


def within(seconds: float, ask: Callable[[], Answer]) -> Answer:
    """The answer of a database, or TimeoutError; a connection that is being opened cannot be cancelled, so the thread
    that asks is not waited for."""
    found: Future[Answer] = Future()

    def answer() -> None:
        try:
            found.set_result(ask())
        except BaseException as exc:  # noqa: BLE001 – raised again in the thread that waits
            found.set_exception(exc)

    threading.Thread(target=answer, name="preflight", daemon=True).start()
    return found.result(seconds)


def _first_due(definition: Definition, settings: Settings) -> datetime | None:
    with connect(settings.store_url, name="vitrine:validate") as store:
        return schedules.first_due(store, definition, settings.zone)


def findings_of(definition: Definition, built: Prepared) -> list[Finding]:
    """What source and target report about a definition, and what follows from how it reads."""
    found = [*built.plan.target.findings, *built.source.findings, *_of_watermark(built)]
    return [*found, *_of_deletes(definition, built), *check_rules.notes(definition)]


def _of_deletes(definition: Definition, built: Prepared) -> list[Finding]:
    if not built.plan.incremental or definition.options.delete_mode != "none":
        return []
    text = (
        "rows that are deleted at the source stay in the mart: an incremental run reads only rows that exist; set"
        " options.delete_mode to soft_column or reconcile_keys, or ask for full runs"
    )
    return [Finding("DELETES", text, note=True)]


def _of_watermark(built: Prepared) -> list[Finding]:
    column = built.plan.cursor_column
    if not built.plan.incremental or column is None:
        return []
    try:
        mark = built.plan.source.watermark(column)
    except ConfigError:
        raise  # every run would be refused, not only one that starts now
    except VitrineError as exc:
        return [Finding(exc.code, f"an incremental run would be refused now: {exc}", column)]
    if mark is None or mark.blocker is None:
        return []
    text = f"the checkpoint waits for an open transaction ({mark.blocker}); rows are still written"
    return [Finding("HORIZON_STALLED", text, column)]
