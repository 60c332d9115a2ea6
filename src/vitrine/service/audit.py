"""The audit log: every change records who asked for it, in the transaction of the change."""

import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from vitrine.failpoints import reach
from vitrine.ids import PipelineId
from vitrine.pipeline import Pipeline
from vitrine.postgres import Connection
from vitrine.service.context import Context
from vitrine.service.permissions import allowed
from vitrine.service.roles import Role
from vitrine.store import audit
from vitrine.store.audit import AuditFilters
from vitrine.store.database import transaction
from vitrine.store.pipeline_rows import Stored

if TYPE_CHECKING:
    from vitrine.service.bodies.audit import AuditBody, AuditPage

Facts = Mapping[str, Any]
EXPORT_PAGE = 1000
NO_FILTERS = AuditFilters()


class Named(Protocol):
    """A pipeline, or what is left of it."""

    @property
    def id(self) -> PipelineId: ...

    @property
    def name(self) -> str: ...


class Record:
    """The rows that a change will leave in the audit log."""

    def __init__(self, context: Context, connection: Connection, operation: str) -> None:
        self._caller = context.caller
        self._connection = connection
        self._operation = operation
        self._rows: list[dict[str, Any]] = []

    def add(
        self,
        pipeline: Named | None = None,
        *,
        before: Facts | None = None,
        after: Facts | None = None,
        operation: str | None = None,
    ) -> None:
        self._rows.append(
            {
                "operation": operation or self._operation,
                "pipeline": pipeline.name if pipeline else None,
                "pipeline_id": pipeline.id if pipeline else None,
                "before": _plain(before),
                "after": _plain(after),
            }
        )

    def add_change(self, old: Stored, new: Pipeline, *, operation: str | None = None, **facts: Any) -> None:
        """The fields that differ, before and after; no row if there is neither a difference nor another fact."""
        before, after = differing(old, new)
        if before or after or facts:
            self.add(new, before=before, after={**after, **facts}, operation=operation)

    def write(self) -> None:
        caller = self._caller
        for row in self._rows:
            audit.insert(
                self._connection,
                actor=caller.name,
                role=caller.role,
                via=caller.via,
                address=caller.address,
                **row,
            )


@contextmanager
def recorded(context: Context, connection: Connection, operation: str) -> Generator[Record]:
    """A transaction around a change: the change and its rows in the audit log are stored together, or not at all."""
    # guarantee: D17
    with transaction(connection):
        record = Record(context, connection, operation)
        yield record
        reach("before_audit")
        record.write()


def stored_facts(stored: Stored) -> Facts:
    """What is recorded of a pipeline that is created or deleted: every field that has not its default."""
    from vitrine import revisions  # slow to import, and `vitrine status` must start quickly

    return revisions.flat(stored)


def differing(old: Stored, new: Stored) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields and options that have another value, before and after; a field with its default is null."""
    from vitrine import revisions

    found = revisions.differences(old, new)
    return {one.field: one.old for one in found}, {one.field: one.new for one in found}


def _plain(facts: Facts | None) -> dict[str, Any] | None:
    """As JSON can hold them: ids and times as text."""
    return None if facts is None else json.loads(json.dumps(dict(facts), default=str))


@allowed(Role.ADMIN)
def list_page(
    context: Context, filters: AuditFilters = NO_FILTERS, *, before: int | None = None, limit: int = 50
) -> "AuditPage":
    """Newest first; `before` is the id of the last entry of the page before."""
    from vitrine.service.bodies.audit import AuditBody, AuditPage  # `vitrine run` does not need them

    with context.connection() as connection:
        found = audit.list_page(connection, filters, before=before or audit.NEWEST, limit=limit + 1)
    items = [AuditBody.of(entry) for entry in found[:limit]]
    return AuditPage(items=items, next=items[-1].id if len(found) > limit else None)


def export(context: Context, filters: AuditFilters = NO_FILTERS) -> Iterator["AuditBody"]:
    """Every entry, newest first, a page at a time."""
    page = list_page(context, filters, limit=EXPORT_PAGE)
    yield from page.items
    while page.next is not None:
        page = list_page(context, filters, before=page.next, limit=EXPORT_PAGE)
        yield from page.items
