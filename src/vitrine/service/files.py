"""Applies pipelines from documents: creates, changes and deletes all of them, or none."""

from collections.abc import Sequence

from vitrine import revisions
from vitrine.documents import Document
from vitrine.engine import plan, validation
from vitrine.errors import ConfigError
from vitrine.model import Definition, StateChoice
from vitrine.pipeline import Pipeline
from vitrine.postgres import Connection
from vitrine.revisions import Applied
from vitrine.service import audit
from vitrine.service.bodies.files import AppliedBody, AppliedPipelineBody, ApplyBody
from vitrine.service.context import Context
from vitrine.service.permissions import allowed
from vitrine.service.roles import Role
from vitrine.settings import Settings
from vitrine.store.pipeline_rows import Invalid


@allowed(Role.ADMIN)
def apply(context: Context, body: ApplyBody) -> AppliedBody:
    """One ConfigError lists every mistake of every document; nothing has changed then."""
    documents = [one.document for one in body.documents]
    refused: list[str] = []
    warnings: list[str] = []
    if body.ask:
        with context.connection() as connection:
            work = revisions.new_work(connection, documents)
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
    with audit.recorded(context, connection, "pipelines.apply") as record:
        applied = revisions.apply_all(
            connection, context.settings, documents, state, refused=refused, delete=delete, dry_run=dry_run, mark=mark
        )
        for one in () if dry_run else applied:
            _record(record, one)
    return applied


def _record(record: audit.Record, applied: Applied) -> None:
    """The same rows as if each pipeline had been created, changed or deleted by itself."""
    marked = {"managed_by": applied.file} if applied.file is not None else {}
    match applied:
        case Applied(outcome="created", new=Pipeline() as new):
            record.add(new, after={**audit.stored_facts(new), **marked}, operation="pipelines.create")
        case Applied(outcome="changed" | "unchanged", old=Pipeline() | Invalid() as old, new=Pipeline() as new):
            facts = {"state": "reset"} if applied.resets else {}
            record.add_change(old, new, operation="pipelines.change", **facts, **marked)
        case Applied(outcome="deleted", old=Pipeline() | Invalid() as old):
            facts = {"status": old.status, **audit.stored_facts(old)}
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
            checked = plan.check(definition, settings)
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
