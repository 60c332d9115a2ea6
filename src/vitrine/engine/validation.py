"""Validates a definition against source and target without moving a row."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from vitrine.engine import plan
from vitrine.engine.plan import CheckedDefinition, Prepared
from vitrine.errors import ConfigError, TransientError, VitrineError
from vitrine.flow.rows import Column
from vitrine.model import Definition
from vitrine.postgres import connect
from vitrine.settings import Settings
from vitrine.store import pipelines

Answer = TypeVar("Answer")

PREFLIGHT_SECONDS = 5.0
"""A definition is stored without the answer of a database that takes longer."""

NOT_VALIDATED = "not validated"
"""Begins the warning about a definition whose source or target could not be asked."""


@dataclass(frozen=True)
class Report:
    """The result of `validate`: how the pipeline would run, with warnings."""

    lane: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    target_exists: bool
    rows_expected: int | None
    first_due_at: datetime | None  # if it were stored now; None: not scheduled, or disabled
    warnings: tuple[str, ...]


def validate(definition: Definition, settings: Settings) -> Report:
    """Check every rule with the configured connections; VitrineError if the pipeline cannot run."""
    built = plan.prepare(plan.check(definition, settings))
    try:
        return Report(
            lane=built.lane,
            columns=built.source.columns,
            key=built.plan.target.key,
            target_exists=built.plan.target.exists,
            rows_expected=built.source.rows_expected,
            first_due_at=_first_due(definition, settings),
            warnings=tuple(_warnings(built)),
        )
    finally:
        built.close()


def preflight(checked: CheckedDefinition, *, seconds: float = PREFLIGHT_SECONDS) -> tuple[str, ...]:
    """Warnings about a definition that is about to be stored; ConfigError if no run of it could succeed.

    It is stored without the databases if they do not respond in time: then the only warning says so.
    """
    try:
        return within(seconds, lambda: _find(checked))
    except TimeoutError:
        checked.cancel()
        return (f"{NOT_VALIDATED}: source or target did not respond within {seconds:g} s",)
    except TransientError as exc:
        return (f"{NOT_VALIDATED}: {exc}",)


def _find(checked: CheckedDefinition) -> tuple[str, ...]:
    built = plan.prepare(checked)
    try:
        return tuple(_warnings(built))
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
        return pipelines.first_due(store, definition, settings.zone)


def _warnings(built: Prepared) -> list[str]:
    findings = [*built.plan.target.findings, *built.source.findings]
    return [finding.text for finding in findings] + _watermark_warnings(built)


def _watermark_warnings(built: Prepared) -> list[str]:
    if not built.plan.incremental or built.plan.cursor_column is None:
        return []
    try:
        mark = built.plan.source.watermark(built.plan.cursor_column)
    except ConfigError:
        raise  # every run would be refused, not only one that starts now
    except VitrineError as exc:
        return [f"an incremental run would be refused now: {exc}"]
    if mark is None or mark.blocker is None:
        return []
    return [f"the checkpoint waits for an open transaction ({mark.blocker}); rows are still written"]
