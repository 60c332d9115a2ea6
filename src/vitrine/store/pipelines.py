"""Pipelines in the store: their definitions, and what operators request of them."""

import hashlib
import json
import re
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, tzinfo
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import psycopg
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb
from pydantic import ValidationError

from vitrine import input_errors
from vitrine.core import status
from vitrine.core.status import STEPS, PipelineId, RequestId, RequestKind, RunOptions, RunRequest, Status
from vitrine.definition.model import NAME, Definition, Mode
from vitrine.definition.pipeline import AppliedFile, LastError, Pipeline, Verification
from vitrine.errors import ConfigError, DataError, NotFound, StoredDefinitionInvalid, TransitionRefused
from vitrine.postgres import Connection
from vitrine.store import schedules
from vitrine.store.database import execute, fetch_all, fetch_one, transaction
from vitrine.store.schedules import first_due

AUTO_BATCH_SIZE = 5000
"""How `auto` is stored, unless batch_size_exact is set: earlier releases use this number as batch size."""


class Invalid(NamedTuple):
    """A pipeline whose stored definition is not valid: written without validation, or by a release that allowed it."""

    id: PipelineId
    name: str
    status: Status
    config_version: int
    lease_owner: str | None
    fields: Mapping[str, Any]  # of the definition, as `plain_fields` has them
    reason: str  # every wrong field, with what it should be
    file: AppliedFile | None = None  # None: no file manages the definition

    def error(self) -> StoredDefinitionInvalid:
        return StoredDefinitionInvalid(
            f"the stored definition of '{self.name}' is not valid ({self.reason}); apply a valid one with `vitrine"
            " apply`, or delete the pipeline"
        )


Stored = Pipeline | Invalid


def columns(definition: Definition) -> dict[str, Any]:
    columns = definition.model_dump(exclude={"tasks", "options", "checks", "after"})
    options = definition.options.model_dump(mode="json", exclude_defaults=True)
    automatic = definition.batch_size == "auto"
    return {
        **columns,
        "batch_size": AUTO_BATCH_SIZE if automatic else definition.batch_size,
        "batch_size_exact": not automatic,
        "key_columns": list(definition.key_columns),
        "tags": list(definition.tags),
        "checks": Jsonb([check.model_dump(mode="json", exclude_defaults=True) for check in definition.checks]),
        "options": Jsonb(options),
    }


_DEFINITION_FIELDS: Sequence[str] = tuple(name for name in Definition.model_fields if name != "type")


def plain_fields(definition: Definition) -> dict[str, Any]:
    """A definition as JSON has it, without the options that have their default."""
    options = definition.options.model_dump(mode="json", exclude_defaults=True)
    return definition.model_dump(mode="json", exclude={"type", "options"}) | {"options": options}


def of_row(row: DictRow) -> Pipeline:
    """ConfigError if the stored definition is not valid."""
    stored = read_row(row)
    if isinstance(stored, Invalid):
        raise stored.error()
    return stored


def read_row(row: DictRow) -> Stored:
    fields = {name: row[name] for name in _DEFINITION_FIELDS}
    if row["batch_size"] == AUTO_BATCH_SIZE and not row["batch_size_exact"]:
        fields["batch_size"] = "auto"
    try:
        return _of_row(row, Definition.model_validate(fields))
    except ValidationError as exc:
        return Invalid(
            id=row["id"],
            name=row["name"],
            status=Status(row["status"]),
            config_version=row["config_version"],
            lease_owner=row["lease_owner"],
            fields=fields,
            reason="; ".join(error.sentence for error in input_errors.explain(exc.errors(), schema=_schema())),
            file=_file(row),
        )


@cache
def _schema() -> input_errors.Schema:
    return input_errors.schema_of(Definition)


def _of_row(row: DictRow, definition: Definition) -> Pipeline:
    return Pipeline(
        id=row["id"],
        definition=definition,
        status=Status(row["status"]),
        config_version=row["config_version"],
        request=_request(row["request_id"], row["requested_kind"], row["requested_options"]),
        rerun=_request(row["rerun_request_id"], row["rerun_kind"], row["rerun_options"]),
        rerun_held=row["rerun_held"],
        requested_at=row["requested_at"],
        attempt=row["attempt"],
        next_attempt_at=row["next_attempt_at"],
        next_due_at=row["next_due_at"],
        postponed=row["postponed"],
        last_error=_last_error(row),
        fresh_as_of=row["fresh_as_of"],
        verification=Verification(row["verified_until"], row["verdict"], row["verdict_at"]),
        lease_owner=row["lease_owner"],
        lease_expires_at=row["lease_expires_at"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        status_since=row["status_since"],
        read_at=row.get("read_at", row["updated_at"]),
        file=_file(row),
    )


def _file(row: DictRow) -> AppliedFile | None:
    name = row["file_name"]
    return None if name is None else AppliedFile(name, row["file_applied_at"], row["file_differs"])


def _last_error(row: DictRow) -> LastError | None:
    code = row["last_error_code"]
    return None if code is None else LastError(code, row["last_error_message"] or "", row["last_error_at"])


_OPTIONS = frozenset(field.name for field in fields(RunOptions))


def _request(request_id: UUID | None, kind: str | None, options: Mapping[str, Any] | None) -> RunRequest | None:
    """A stored request; options that only a newer release knows are left out."""
    if request_id is None:
        return None
    known = {name: value for name, value in (options or {}).items() if name in _OPTIONS}
    return RunRequest(RequestId(request_id), kind or RequestKind.RUN, RunOptions(**known))


def file_digest(definition: Definition) -> bytes:
    """Equal for equal definitions, also of a release that has further fields: defaults are left out."""
    fields = definition.model_dump(mode="json", exclude_defaults=True, exclude={"type", "options"})
    options = definition.options.model_dump(mode="json", exclude_defaults=True)
    return hashlib.sha256(json.dumps([fields, options], sort_keys=True).encode()).digest()


def mark_file(connection: Connection, applied: Sequence[tuple[Pipeline, str]]) -> None:
    """Record which file each of these pipelines, as it is stored, was applied from."""
    execute(
        connection,
        "mark_files",
        ids=[pipeline.id for pipeline, _ in applied],
        versions=[pipeline.config_version for pipeline, _ in applied],
        names=[name for _, name in applied],
        digests=[file_digest(pipeline.definition) for pipeline, _ in applied],
    )


def detach_file(connection: Connection, pipeline_id: PipelineId) -> None:
    """No file manages the pipeline any more."""
    execute(connection, "detach_file", id=pipeline_id)


DEFAULT_OPTIONS = RunOptions()


def get(connection: Connection, key: str | UUID) -> Pipeline:
    """The pipeline with this id or name; NotFound if there is none."""
    return of_row(_found(fetch_one(connection, "get_pipeline", **_id_or_name(key)), key))


def list_all(connection: Connection) -> list[Stored]:
    """Every pipeline, in the order of names."""
    return [read_row(row) for row in fetch_all(connection, "list_pipelines")]


def create(
    connection: Connection, definition: Definition, pipeline_id: UUID | None = None, *, zone: tzinfo = UTC
) -> Pipeline:
    """Store a new pipeline, IDLE; ConfigError if its name or target is taken. `zone`: time zone for cron schedules."""
    with transaction(connection):
        due = first_due(connection, definition, zone)
        _refuse_held_target(connection, definition, pipeline_id)
        with _name_conflicts(definition):
            row = fetch_one(connection, "insert_pipeline", id=pipeline_id, next_due_at=due, **columns(definition))
        if row is None:
            raise NotFound("the store returned no id for the new pipeline")
        _insert_steps(connection, row["id"], definition)
        return get(connection, row["id"])


def lock(connection: Connection, key: str | UUID) -> Pipeline:
    """Lock the pipeline until the transaction ends: no other session changes, claims or deletes it."""
    return of_row(_lock_row(connection, key))


def lock_stored(connection: Connection, key: str | UUID) -> Stored:
    """The same for a pipeline whose definition may not be valid."""
    return read_row(_lock_row(connection, key))


def _lock_row(connection: Connection, key: str | UUID) -> DictRow:
    return _found(fetch_one(connection, "lock_pipeline", **_id_or_name(key)), key)


def lock_all(connection: Connection, names: Collection[str]) -> None:
    """Lock these pipelines, before their chains are: the end of a run locks in this order, too."""
    fetch_all(connection, "lock_rows", names=sorted(names))


def update(connection: Connection, pipeline_id: PipelineId, definition: Definition, *, zone: tzinfo = UTC) -> Pipeline:
    """Store a changed definition. Disabling a running pipeline pauses it; enabling one again sets a new due time."""
    with transaction(connection):
        _lock_row(connection, pipeline_id)
        due = first_due(connection, definition, zone)
        values = {"id": pipeline_id, "next_due_at": due, "digest": file_digest(definition), **columns(definition)}
        _refuse_held_target(connection, definition, pipeline_id)
        with _name_conflicts(definition):
            execute(connection, "update_pipeline", **values, steps=STEPS)
        execute(connection, "delete_steps", id=pipeline_id)
        _insert_steps(connection, pipeline_id, definition)
        return get(connection, pipeline_id)


def _refuse_held_target(connection: Connection, definition: Definition, pipeline_id: UUID | None) -> None:
    """TransitionRefused while a disabled pipeline still writes to the target; an index refuses it in any case."""
    if not definition.enabled:
        return
    held = fetch_one(connection, "get_target_holder", target=definition.target_table, id=pipeline_id)
    if held is not None:
        raise TransitionRefused(
            f"pipeline '{held['name']}' is disabled, but {held['lease_owner']} still runs it and writes to"
            f" '{definition.target_table}'; wait until its run has ended",
            code="TARGET_TAKEN",
        )


class Deleted(NamedTuple):
    """What is known of a pipeline even if its definition is not valid."""

    id: PipelineId
    name: str
    status: str


def delete(
    connection: Connection,
    key: str | UUID,
    *,
    force: bool = False,
    expected_version: int | None = None,
    besides: Collection[str] = (),
) -> Deleted:
    """Delete a pipeline with its history; the target stays. TransitionRefused while a runner holds the lease.

    With `force` even then: the runner finds its lease lost and commits nothing more; its staging is removed later.
    Refused as well while other pipelines run after it, `besides` those that the same transaction deletes or changes.
    """
    with transaction(connection):
        schedules.lock_chains(connection)
        row = _lock_row(connection, key)
        refuse_other_version(row["name"], row["config_version"], expected_version)
        schedules.refuse_dependants(connection, row["id"], row["name"], besides)
        if fetch_one(connection, "delete_pipeline", id=row["id"], force=force) is None:
            raise TransitionRefused(
                f"pipeline '{row['name']}' is being run by {row['lease_owner']}; pause it first", code="RUNNING"
            )
        return Deleted(PipelineId(row["id"]), row["name"], row["status"])


def refuse_other_version(name: str, version: int, expected: int | None) -> None:
    if expected is not None and expected != version:
        raise TransitionRefused(
            f"pipeline '{name}' is at version {version}, not {expected}; read it again", code="VERSION_CONFLICT"
        )


def request_run(
    connection: Connection,
    key: str | UUID,
    *,
    trigger: str,
    kind: RequestKind = RequestKind.RUN,
    options: RunOptions | None = None,
    resume: bool = False,
) -> tuple[Status, RequestId]:
    """Request a run, or another kind of work; until it starts, every further equal request returns the same id.

    A run that is requested succeeds only when every change committed before this call is in the mart. With `resume`, a
    paused request of any kind continues; it promises no more than it did before, and keeps its options unless others
    are given. A requested pause is only cancelled. TransitionRefused if the request can neither be merged nor follow.
    """
    with transaction(connection):
        pipeline = lock(connection, key)
        if not pipeline.definition.enabled:
            raise TransitionRefused(f"pipeline '{pipeline.name}' is disabled; enable it first", code="DISABLED")
        placed = _place(pipeline, kind, options, resume=resume)
        current, rerun = placed.queue.current or placed.answer, placed.queue.rerun
        row = fetch_one(
            connection,
            "request_run",
            id=pipeline.id,
            trigger=trigger,
            resume=resume,
            answers_current=placed.answer is current,
            request_id=current.id,
            kind=current.kind,
            options=Jsonb(current.options.stored()),
            rerun_request_id=rerun.id if rerun else None,
            rerun_kind=rerun.kind if rerun else None,
            rerun_options=Jsonb(rerun.options.stored()) if rerun else None,
            rerun_held=placed.queue.held,
            steps=STEPS,
        )
        if row is None:
            raise TransitionRefused(f"pipeline '{pipeline.name}' is {pipeline.status}: nothing can be requested now")
        execute(connection, "notify", name=pipeline.name)
    return Status(row["status"]), placed.answer.id


def _place(pipeline: Pipeline, kind: RequestKind, options: RunOptions | None, *, resume: bool) -> status.Placed:
    queue = status.Queue(pipeline.request, pipeline.rerun, pipeline.rerun_held)
    if kind is RequestKind.FULL and pipeline.definition.mode is Mode.FULL:
        kind = RequestKind.RUN  # every run of it is a full one
    new = RunRequest(RequestId(uuid4()), kind, options or DEFAULT_OPTIONS)
    if resume:
        placed = status.resume(pipeline.status, queue, new, options)
    else:
        placed = status.place(pipeline.status, queue, new)
    if placed is not None:
        return placed
    waiting = " and ".join(f"a {one.label}" for one in (pipeline.request, pipeline.rerun) if one)
    text = (
        f"pipeline '{pipeline.name}' is {pipeline.status} with {waiting} requested, and a {new.label} can only follow"
    )
    remedy = "resume that first" if pipeline.status in (Status.PAUSED, Status.FAILED) else "wait until one has ended"
    if pipeline.status is Status.PAUSE_REQUESTED and status.keeps_pause(new):
        text, remedy = (
            f"pipeline '{pipeline.name}' is PAUSE_REQUESTED",
            f"wait until it is PAUSED, then ask for a {kind}",
        )
    raise TransitionRefused(f"{text}; {remedy}", code="REQUEST_CONFLICT")


def request_pause(connection: Connection, key: str | UUID) -> Status:
    """PAUSED immediately, or PAUSE_REQUESTED until the current batch is committed; a FAILED pipeline is refused.

    The definition need not be valid: a run that began before must be stoppable.
    """
    with transaction(connection):
        # guarantee: D2
        pipeline = lock_stored(connection, key)
        row = fetch_one(connection, "request_pause", id=pipeline.id, steps=STEPS)
    if row is None:
        raise TransitionRefused(
            f"pipeline '{pipeline.name}' is FAILED: there is nothing to pause; run it, or disable it"
        )
    return Status(row["status"])


def request_reload(connection: Connection, pipeline_id: PipelineId) -> Definition | None:
    """Let the current run apply the stored throttle; the definition it captured, or None if there is no run."""
    if fetch_one(connection, "request_reload", id=pipeline_id) is None:
        return None
    row = fetch_one(connection, "get_running_config", id=pipeline_id)
    return Definition.model_validate(row["config"]) if row else None


def list_metrics(connection: Connection, stale_crons: Sequence[UUID] = ()) -> list[DictRow]:
    """Values for the metrics of every pipeline: ages in seconds by the database's clock, None if there is none.

    `stale_crons`: pipelines whose mart is older than their cron line allows, which the database cannot compute.
    """
    return fetch_all(connection, "list_pipeline_metrics", stale_crons=list(stale_crons))


def _id_or_name(key: str | UUID) -> dict[str, Any]:
    """Both readings of a key: 32 hexadecimal digits are an id and can be a name."""
    name = key if isinstance(key, str) and re.fullmatch(NAME, key) else ""
    try:
        return {"id": key if isinstance(key, UUID) else UUID(key), "name": name}
    except ValueError:
        return {"id": None, "name": name}


def _found(row: DictRow | None, key: str | UUID) -> DictRow:
    if row is None:
        raise NotFound(f"there is no pipeline '{key}'; `vitrine list` shows all pipelines")
    return row


def _insert_steps(connection: Connection, pipeline_id: UUID, definition: Definition) -> None:
    for step in definition.tasks:
        execute(
            connection,
            "insert_step",
            id=pipeline_id,
            **(step.model_dump() | {"options": Jsonb(step.options)}),
        )


@contextmanager
def _name_conflicts(definition: Definition) -> Generator[None]:
    """Turn the violation of a unique index into a ConfigError that names the conflict."""
    try:
        yield
    except DataError as exc:
        violated = exc.__cause__
        if not isinstance(violated, psycopg.errors.UniqueViolation):
            raise
        taken = {
            "one_pipeline_per_target": (
                "TARGET_TAKEN",
                f"another enabled pipeline already writes to '{definition.target_table}'; one pipeline per target",
            ),
            "etl_pipelines_name_key": ("NAME_TAKEN", f"there is already a pipeline '{definition.name}'"),
            "etl_pipelines_pkey": ("ID_TAKEN", "another pipeline has this id"),
        }
        if (constraint := violated.diag.constraint_name or "") not in taken:
            raise
        code, text = taken[constraint]
        raise ConfigError(text, code=code) from exc


def list_failed(connection: Connection) -> list[str]:
    """Names of the enabled pipelines that are FAILED, in order."""
    return [row["name"] for row in fetch_all(connection, "list_failed")]
