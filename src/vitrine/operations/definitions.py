"""Definitions of pipelines: list, read, create, change, enable, delete.

Functions that change something import the engine when they are called: `vitrine list` must start quickly.
"""

from collections.abc import Mapping, Sequence
from datetime import tzinfo
from typing import Any

from vitrine import explain
from vitrine.core.rows import Finding
from vitrine.definition.model import Definition, StateChoice, Step
from vitrine.definition.pipeline import Pipeline
from vitrine.errors import ConfigError, WorkRefused
from vitrine.explain import Lateness
from vitrine.operations.bodies.filters import EVERY, Filters
from vitrine.operations.bodies.pipelines import (
    FindingBody,
    InvalidPipelineBody,
    ListedPipelineBody,
    NewestRunBody,
    PipelineBody,
    PipelinePage,
    StoredPipelineBody,
)
from vitrine.operations.context import Context, Role, allowed, check_slot, recorded, stored_facts
from vitrine.settings import Settings
from vitrine.store import pipelines, schedules
from vitrine.store.filters import Listed, list_pipelines
from vitrine.store.pipelines import Invalid

MANAGED_BY_FILE = "MANAGED_BY_FILE"


@allowed(Role.VIEWER)
def list_page(context: Context, filters: Filters = EVERY, *, after: str = "", limit: int = 50) -> PipelinePage:
    """Pipelines that pass the filters, in the order of their names, after the given name."""
    zone = context.settings.zone
    with context.connection() as connection:
        found = list_pipelines(connection, zone, filters.selection, after=after, limit=limit + 1)
        shown = found[:limit]
        listed = [one for one in shown if isinstance(one, Listed)]
        late = explain.late_causes(connection, context.settings, [one.pipeline for one in listed])
    # without validation, like the bodies in it: it would validate each of them again
    return PipelinePage.model_construct(
        items=[_listed(one, zone, late.get(one.pipeline.id)) for one in listed],
        invalid=[InvalidPipelineBody(name=one.name, reason=one.reason) for one in shown if isinstance(one, Invalid)],
        next=shown[-1].name if len(found) > limit else None,
    )


def _listed(one: Listed, zone: tzinfo, late: Lateness | None) -> ListedPipelineBody:
    newest = NewestRunBody.of(one.newest_run) if one.newest_run else None
    cause, reason = (late.cause, late.sentence) if late else (None, None)
    return ListedPipelineBody.of(one.pipeline, zone, last_run=newest, late_cause=cause, late_reason=reason)


@allowed(Role.VIEWER)
def get(context: Context, key: str) -> PipelineBody:
    with context.connection() as connection:
        return PipelineBody.of(pipelines.get(connection, key), context.settings.zone)


@allowed(Role.ADMIN)
def create(context: Context, definition: Definition, *, validate: bool = True) -> StoredPipelineBody:
    """Store a new pipeline, after source and target have been asked."""
    from vitrine.operations import changes

    with check_slot():
        findings = _checked(definition, context.settings, ask=validate)
    with context.connection() as connection, recorded(context, connection, "pipelines.create") as record:
        pipeline = changes.create(connection, context.settings, definition)
        record.add(pipeline, after=stored_facts(pipeline))
    return _stored(context, pipeline, findings)


@allowed(Role.ADMIN)
def change(
    context: Context,
    key: str,
    fields: Mapping[str, Any],
    *,
    state: StateChoice | None = None,
    expected_version: int | None = None,
    validate: bool = True,
) -> StoredPipelineBody:
    """Change the given fields; source and target are asked if the change concerns them."""
    return _change(context, key, fields, state=state, expected_version=expected_version, validate=validate)


def _change(
    context: Context,
    key: str,
    fields: Mapping[str, Any],
    *,
    state: StateChoice | None = None,
    expected_version: int | None = None,
    validate: bool,
) -> StoredPipelineBody:
    from vitrine.operations import changes

    findings: tuple[Finding, ...] = ()
    with context.connection() as connection:
        stored = pipelines.get(connection, key)
    with check_slot():
        if expected_version in (None, stored.config_version):
            merged = changes.merge(stored.definition, fields)
            if not changes.only_disables(changes.changed_fields(stored.definition, merged), merged):
                # the parser keeps its answers: no connection is held while it works
                _checked(merged, context.settings, ask=False)
        if validate:
            with context.connection() as connection:
                work = changes.work_changed_by(
                    connection, context.settings, key, fields, state=state, expected_version=expected_version
                )
            findings = _checked(work, context.settings, ask=True) if work else ()
    with context.connection() as connection, recorded(context, connection, "pipelines.change") as record:
        changes.lock_chains(connection, fields)
        old = pipelines.lock(connection, key)
        pipeline = changes.change(
            connection, context.settings, key, fields, state=state, expected_version=expected_version
        )
        record.add_change(old, pipeline, **({"state": state} if state else {}))
    return _stored(context, pipeline, (*findings, *_about_file(old, pipeline)))


def _about_file(old: Pipeline, new: Pipeline) -> Sequence[Finding]:
    """What a change does to the file that manages the pipeline."""
    if old.file is not None and new.file is None:
        text = f"the file {old.file.name} does not manage the pipeline any more, because it defines '{old.name}'"
        return [Finding(MANAGED_BY_FILE, f"{text}; rename it there, too")]
    if new.file is not None and new.file.differs and new.definition != old.definition:
        text = f"'{new.name}' is managed by the file {new.file.name}, and the next apply of it replaces this change"
        return [Finding(MANAGED_BY_FILE, f"{text}; change the file, too")]
    return ()


@allowed(Role.ADMIN)
def detach_file(context: Context, key: str) -> PipelineBody:
    """The definition is not managed by its file any more, until the file is applied again."""
    with context.connection() as connection, recorded(context, connection, "pipelines.detach_file") as record:
        old = pipelines.lock(connection, key)
        if old.file is not None:
            pipelines.detach_file(connection, old.id)
            record.add(old, before={"managed_by": old.file.name}, after={"managed_by": None})
        return PipelineBody.of(pipelines.get(connection, key), context.settings.zone)


@allowed(Role.ADMIN)
def replace_tasks(
    context: Context,
    key: str,
    steps: Sequence[Step],
    *,
    state: StateChoice | None = None,
    expected_version: int | None = None,
    validate: bool = True,
) -> StoredPipelineBody:
    """Replace the whole task plan; without steps, source_query and python_task apply again."""
    fields = {"tasks": [step.model_dump(mode="json") for step in steps]}
    return _change(context, key, fields, state=state, expected_version=expected_version, validate=validate)


@allowed(Role.OPERATOR)
def set_enabled(
    context: Context, key: str, enabled: bool, *, expected_version: int | None = None
) -> StoredPipelineBody:
    """Enable or disable a pipeline. Disabling a running one pauses it after its current batch."""
    return _change(context, key, {"enabled": enabled}, expected_version=expected_version, validate=False)


@allowed(Role.ADMIN)
def delete(context: Context, key: str, *, force: bool = False, expected_version: int | None = None) -> None:
    with context.connection() as connection, recorded(context, connection, "pipelines.delete") as record:
        schedules.lock_chains(connection)
        facts = stored_facts(pipelines.lock_stored(connection, key))
        deleted = pipelines.delete(connection, key, force=force, expected_version=expected_version)
        record.add(deleted, before={"status": deleted.status, **facts}, after={"force": True} if force else None)


def _checked(definition: Definition, settings: Settings, *, ask: bool) -> tuple[Finding, ...]:
    """Findings of source and target, if they are asked; called while no connection to the store is held.

    WorkRefused if no run could succeed.
    """
    from vitrine.plan import planner, validation

    checked = planner.check(definition, settings)
    if not ask:
        return ()
    try:
        return validation.preflight(checked)
    except ConfigError as exc:
        raise WorkRefused(str(exc), code=exc.code, place=exc.place) from exc


def _stored(context: Context, pipeline: Pipeline, findings: Sequence[Finding]) -> StoredPipelineBody:
    from vitrine.plan import validation

    return StoredPipelineBody.of(
        pipeline,
        context.settings.zone,
        warnings=list(validation.warnings_of(findings)),
        findings=[FindingBody.of(finding) for finding in findings],
    )
