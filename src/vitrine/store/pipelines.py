"""Pipelines in the store: their definitions and the events that change their status."""

import re
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import psycopg
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb
from pydantic import ValidationError

from vitrine import input_errors, schedule
from vitrine.errors import (
    CheckpointMoved,
    ConfigError,
    DataError,
    NotFound,
    StoredDefinitionInvalid,
    TransitionRefused,
)
from vitrine.model import (
    NAME,
    RETURNING,
    AppliedFile,
    Claim,
    Definition,
    LastError,
    Mode,
    Pipeline,
    PipelineId,
    RequestId,
    RequestKind,
    RunId,
    RunOptions,
    RunRequest,
    Verification,
    suspended_clock,
)
from vitrine.postgres import Connection
from vitrine.status import RETURNS, STEPS, Event, RunStatus, Status
from vitrine.store import chains, checkpoints, files, notifications, requests
from vitrine.store.database import execute, fetch_all, fetch_one, transaction

MAX_ATTEMPTS = 3
AUTO_BATCH_SIZE = 5000
"""How `auto` is stored, unless batch_size_exact is set: earlier releases use this number as batch size."""

DUE_LIMIT = 200
"""Due times that one statement consumes."""

SCHEDULE = "schedule"
"""The trigger of a request that a due time has made."""

PROMISING = frozenset({None, RequestKind.RUN, RequestKind.FULL})
"""The kinds after which every change that was committed before the request is in the mart; None is an ordinary run."""

FAILURES = frozenset({Event.FAIL, Event.POSTPONE, Event.RETRY})
"""The events after which a pipeline shows the error of its run."""

DEFAULT_OPTIONS = RunOptions()
NO_LIMITS: Mapping[str, int] = MappingProxyType({})


def get(connection: Connection, key: str | UUID) -> Pipeline:
    """The pipeline with this id or name; NotFound if there is none."""
    return of_row(_found(fetch_one(connection, "get_pipeline", **_id_or_name(key)), key))


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
            row = fetch_one(connection, "insert_pipeline", id=pipeline_id, next_due_at=due, **_columns(definition))
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
        values = {"id": pipeline_id, "next_due_at": due, "digest": files.digest(definition), **_columns(definition)}
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
        chains.lock(connection)
        row = _lock_row(connection, key)
        refuse_other_version(row["name"], row["config_version"], expected_version)
        chains.refuse_dependants(connection, row["id"], row["name"], besides)
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


def _place(pipeline: Pipeline, kind: RequestKind, options: RunOptions | None, *, resume: bool) -> requests.Placed:
    queue = requests.Queue(pipeline.request, pipeline.rerun, pipeline.rerun_held)
    if kind is RequestKind.FULL and pipeline.definition.mode is Mode.FULL:
        kind = RequestKind.RUN  # every run of it is a full one
    new = RunRequest(RequestId(uuid4()), kind, options or DEFAULT_OPTIONS)
    if resume:
        placed = requests.resume(pipeline.status, queue, new, options)
    else:
        placed = requests.place(pipeline.status, queue, new)
    if placed is not None:
        return placed
    waiting = " and ".join(f"a {one.label}" for one in (pipeline.request, pipeline.rerun) if one)
    text = (
        f"pipeline '{pipeline.name}' is {pipeline.status} with {waiting} requested, and a {new.label} can only follow"
    )
    remedy = "resume that first" if pipeline.status in (Status.PAUSED, Status.FAILED) else "wait until one has ended"
    if pipeline.status is Status.PAUSE_REQUESTED and requests.keeps_pause(new):
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
        pipeline = lock_stored(connection, key)
        row = fetch_one(connection, "request_pause", id=pipeline.id, steps=STEPS)
    if row is None:
        raise TransitionRefused(
            f"pipeline '{pipeline.name}' is FAILED: there is nothing to pause; run it, or disable it"
        )
    return Status(row["status"])


def first_due(connection: Connection, definition: Definition, zone: tzinfo = UTC) -> datetime | None:
    """The first due time, by the database's clock; None if the definition is disabled or has no schedule."""
    if definition.schedule is None or not definition.enabled:
        return None
    row = fetch_one(connection, "get_time")
    return definition.schedule.next_after(row["now"], zone=zone) if row else None


class Due(NamedTuple):
    """What a poll has to do."""

    schedules: bool
    reconciles: bool
    leases: bool  # some have expired


def get_due(connection: Connection) -> Due:
    """Whether `fire_schedules`, `fire_reconciles` and `expire_leases` would find anything."""
    row = fetch_one(connection, "get_due")
    return Due(**row) if row else Due(schedules=True, reconciles=True, leases=True)


def fire_schedules(connection: Connection, zone: tzinfo = UTC) -> list[str]:
    """Consume every due time that has passed; names of the pipelines for which this requested a run.

    Due times that were missed cause one run together: the next due time is the first one in the future.
    """
    fired: list[str] = []
    while due := fetch_all(connection, "list_due", limit=DUE_LIMIT):
        following = [_next_due(row, zone) for row in due]
        seen = {"ids": [row["id"] for row in due], "due": [row["next_due_at"] for row in due], "following": following}
        rows = fetch_all(connection, "fire_schedules", **seen, steps=STEPS)
        fired += [row["name"] for row in rows if row["status"] == Status.RUN_REQUESTED]
        if len(rows) < DUE_LIMIT:
            break  # these were all, or other runners are consuming the others
    if fired:
        execute(connection, "notify", name=fired[0])  # one notification wakes up every runner
    return fired


def fire_reconciles(connection: Connection) -> list[str]:
    """Request a deep reconcile of every idle pipeline whose `reconcile_interval` has passed; their names."""
    options = Jsonb(RunOptions(deep=True).stored())
    rows = fetch_all(connection, "fire_reconciles", kind=RequestKind.RECONCILE, options=options, steps=STEPS)
    return [row["name"] for row in rows]


def _next_due(row: DictRow, zone: tzinfo) -> datetime | None:
    """After a postponed run, the regular due time is the next one, or counts as the last one if it has passed."""
    regular = row["regular_due_at"]
    if regular is not None and regular > row["now"]:
        return regular
    last = regular or row["next_due_at"]
    try:
        return schedule.parse(row["schedule_interval"]).next_after(row["now"], last=last, zone=zone)
    except (ValueError, TypeError):
        return None  # written to the table without validation: this run ends FAILED with the reason, and is the last


def seconds_until_due(connection: Connection) -> float | None:
    """Seconds until the next due time, by the database's clock; None if no pipeline is scheduled."""
    row = fetch_one(connection, "seconds_until_due")
    return row["seconds"] if row else None


def expire_leases(connection: Connection) -> list[DictRow]:
    """End expired leases and the sessions that their holders still have open."""
    returning = sorted(RETURNING)
    rows = fetch_all(connection, "expire_leases", max_attempts=MAX_ATTEMPTS, returning=returning, steps=STEPS)
    for row in rows:
        end_sessions(connection, row["lease_token"])
    return rows


def end_sessions(connection: Connection, token: int) -> None:
    """Terminate every session of a lease in this cluster that our role may terminate."""
    fetch_all(connection, "terminate_sessions", token=token)


def claim_next(
    connection: Connection,
    *,
    runner: str,
    ttl: timedelta,
    only: PipelineId | None = None,
    runs_per_source: Mapping[str, int] = NO_LIMITS,
) -> Claim | None:
    """Claim one requested pipeline under a new token and insert its run; None if no pipeline is claimable.

    A pipeline whose source has as many runs as `runs_per_source` allows stays in the queue. A pipeline that was
    written to the table without validation, and is not valid, ends FAILED here, and the next one is claimed.
    """
    while True:
        before = suspended_clock()
        with transaction(connection):
            full_sources = _list_full_sources(connection, runs_per_source) if runs_per_source else []
            row = fetch_one(
                connection,
                "claim_next",
                runner=runner,
                ttl=ttl,
                only=only,
                full_sources=full_sources,
                steps=STEPS,
            )
            if row is None:
                return None
            try:
                return _open_run(connection, row, runner, before)
            except ConfigError as exc:
                _fail_invalid(connection, row, runner, str(exc))


def _list_full_sources(connection: Connection, runs_per_source: Mapping[str, int]) -> list[str]:
    """Sources at their limit; other claims wait until the transaction ends before they count."""
    fetch_one(connection, "lock_source_limits")
    return list_full_sources(connection, runs_per_source)


def list_full_sources(connection: Connection, runs_per_source: Mapping[str, int]) -> list[str]:
    """Sources whose runs have all the connections that are allowed."""
    allowed = {"sources": list(runs_per_source), "runs": list(runs_per_source.values())}
    return [row["source"] for row in fetch_all(connection, "list_full_sources", **allowed)]


def is_source_full(connection: Connection, source: str, runs_per_source: Mapping[str, int]) -> bool:
    """Whether a run of this source would have to wait, because others have all the connections that are allowed."""
    if source not in runs_per_source:
        return False
    return bool(list_full_sources(connection, {source: runs_per_source[source]}))


def _open_run(connection: Connection, row: DictRow, runner: str, taken_at: float) -> Claim:
    pipeline = of_row(row)
    _refuse_unguarded_target(row, pipeline.definition)
    kind, options = _known_request(row)
    run_id, taken_over = _insert_run(connection, row, runner, pipeline.definition.model_dump(mode="json"))
    return Claim(
        pipeline_id=pipeline.id,
        definition=pipeline.definition,
        run_id=run_id,
        token=row["lease_token"],
        taken_at=taken_at,
        attempt=pipeline.attempt,
        options=options,
        config_version=pipeline.config_version,
        taken_over=taken_over,
        tag=row["tag"],
        kind=kind,
        request_id=row["request_id"],
        scheduled=row["requested_trigger"] == SCHEDULE and not _is_joined(row),
        postponed=row["postponed"],
    )


def _refuse_unguarded_target(row: DictRow, definition: Definition) -> None:
    """ConfigError if the row names another target than its last step: the index on targets does not know that one."""
    if row["target_table"] != definition.target_table:
        raise ConfigError(
            f"the stored target_table '{row['target_table']}' is not that of the last step,"
            f" '{definition.target_table}'; correct it through the API or `vitrine apply`"
        )


def _is_joined(row: DictRow) -> bool:
    """Whether a person has asked for the same while the request was waiting."""
    return row["promised_at"] is not None and row["promised_at"] >= row["requested_at"]


def _known_request(row: DictRow) -> tuple[RequestKind, RunOptions]:
    """What the claimed request asks for; ConfigError if only a newer release knows it."""
    kind, options = row["requested_kind"] or RequestKind.RUN, row["requested_options"]
    try:
        return RequestKind(kind), RunOptions(**options)
    except (ValueError, TypeError) as exc:
        named = " and ".join([f"kind '{kind}'", *(f"option '{name}'" for name in options)])
        raise ConfigError(f"this runner does not know a request of {named}; upgrade it, then request again") from exc


def _insert_run(connection: Connection, row: DictRow, runner: str, config: dict[str, Any]) -> tuple[RunId, bool]:
    """The id of the new run, and whether the run before it lost its lease."""
    inserted = fetch_one(
        connection,
        "insert_run",
        pipeline_id=row["id"],
        request_id=row["request_id"],
        promised_at=row["promise"] if row["requested_kind"] in PROMISING else None,
        attempt=row["attempt"],
        trigger=row["requested_trigger"] or "api",
        due_at=row["requested_due_at"],
        kind=row["mode"] if row["requested_kind"] in (None, RequestKind.RUN) else row["requested_kind"],
        config=Jsonb(config),
        runner=runner,
        token=row["lease_token"],
    )
    if inserted is None:
        raise NotFound("the store returned no id for the new run")
    return RunId(inserted["id"]), inserted["taken_over"]


def _fail_invalid(connection: Connection, row: DictRow, runner: str, text: str) -> None:
    run_id, _ = _insert_run(connection, row, runner, {})
    event = Event.RETURN_IDLE if row["requested_kind"] in RETURNING else Event.FAIL
    error = ("CONFIG", text) if event in FAILURES else None
    _end_lease(connection, row["id"], row["lease_token"], event, error=error)
    _record_run_end(connection, run_id, RunStatus.FAILED, "CONFIG", text)
    if event is Event.FAIL:
        notifications.record_failure(connection, row["id"], code="CONFIG", run_id=run_id, status=Status.FAILED)


def heartbeat(connection: Connection, claim: Claim, ttl: timedelta) -> Status | None:
    """Extend the lease; the pipeline's status, or None if the lease is lost."""
    row = fetch_one(connection, "heartbeat", id=claim.pipeline_id, token=claim.token, ttl=ttl)
    return Status(row["status"]) if row else None


def get_lease_status(connection: Connection, claim: Claim) -> Status | None:
    """The pipeline's status while the lease is ours, expired or not; None if another runner has it."""
    row = fetch_one(connection, "get_lease_status", id=claim.pipeline_id, token=claim.token)
    return Status(row["status"]) if row else None


def poll_run(connection: Connection, claim: Claim) -> tuple[Status, int | None]:
    """The pipeline's status and the version whose throttle the run must apply; LeaseLost if the lease is lost."""
    row = fetch_one(connection, "poll_run", id=claim.pipeline_id, token=claim.token)
    if row is None:
        raise checkpoints.lease_lost(claim)
    return Status(row["status"]), row["reload_version"]


def request_reload(connection: Connection, pipeline_id: PipelineId) -> Definition | None:
    """Let the current run apply the stored throttle; the definition it captured, or None if there is no run."""
    if fetch_one(connection, "request_reload", id=pipeline_id) is None:
        return None
    row = fetch_one(connection, "get_running_config", id=pipeline_id)
    return Definition.model_validate(row["config"]) if row else None


def end_run(
    connection: Connection,
    claim: Claim,
    event: Event,
    run_status: RunStatus,
    *,
    error_code: str | None = None,
    error_message: str | None = None,
    attempt: int = 0,
    delay: timedelta = timedelta(0),
    batch_seq: int | None = None,
) -> Status | None:
    """End the lease and record the end of the run, in one transaction; None, and no change, if the lease is lost.

    An event of RETURNS stands for the one that leads back to the status before the request.
    CheckpointMoved, and no change, if the state does not have the given batch_seq: batches of the run are lost.
    """
    with transaction(connection):
        if fetch_one(connection, "lock_row", id=claim.pipeline_id) is None:
            return None
        ended = _end_lease(
            connection,
            claim.pipeline_id,
            claim.token,
            event,
            attempt=attempt,
            delay=delay,
            batch_seq=batch_seq,
            succeeded=run_status is RunStatus.SUCCESS,
            error=(error_code, error_message or "") if error_code and event in FAILURES else None,
        )
        if ended is None:
            if batch_seq is not None and get_lease_status(connection, claim) is not None:
                raise CheckpointMoved(
                    f"the database server lost the last batches of '{claim.definition.name}' when it crashed; the next"
                    " run continues from the checkpoint",
                    code="BATCHES_LOST",
                )
            return None
        rejected = _record_run_end(connection, claim.run_id, run_status, error_code, error_message)
        _record_messages(connection, claim, event, ended, error_code or "", rejected)
        fired = _end_wave(connection, claim.pipeline_id, event) if ended.chained else []
        status = Status.RUN_REQUESTED if claim.pipeline_id in fired else ended.status
        if fired or status is Status.RUN_REQUESTED:
            execute(connection, "notify", name=claim.definition.name)
    return status


def _end_wave(connection: Connection, pipeline_id: PipelineId, event: Event) -> list[PipelineId]:
    """Start what waited for the end of this run: the pipelines after it, and itself if it was busy; their ids."""
    if event is Event.FINISH:
        chains.record_success(connection, pipeline_id)
    return chains.fire(connection, around=pipeline_id)


def _record_messages(
    connection: Connection, claim: Claim, event: Event, ended: "_Ended", code: str, rejected: int
) -> None:
    """Store the messages about the end of a run; most ends have none, and need no statement."""
    about = {"run_id": claim.run_id}
    if event in (Event.FAIL, Event.POSTPONE):
        notifications.record_failure(connection, claim.pipeline_id, code=code, status=ended.status, **about)
    elif event in (Event.FINISH, Event.FINISH_PAUSED) and "failure" in ended.alerts:
        notifications.record_recovery(connection, claim.pipeline_id, **about)
    if rejected or ended.rejects_noted:
        notifications.record_rejects(connection, claim.pipeline_id, **about)


class _Ended(NamedTuple):
    """A pipeline whose lease has ended."""

    status: Status
    alerts: list[str]  # conditions that a message has reported and none has ended yet
    rejects_noted: int
    chained: bool  # it runs after another one, or another one after it


def _end_lease(
    connection: Connection,
    pipeline_id: PipelineId,
    token: int,
    event: Event,
    *,
    attempt: int = 0,
    delay: timedelta = timedelta(0),
    batch_seq: int | None = None,
    succeeded: bool = False,
    error: tuple[str, str] | None = None,  # code and sentence, kept with the pipeline until a run succeeds
) -> _Ended | None:
    code, message = error or (None, None)
    row = fetch_one(
        connection,
        "end_run",
        id=pipeline_id,
        token=token,
        event=event,
        attempt=attempt,
        delay=delay,
        batch_seq=batch_seq,
        succeeded=succeeded,
        returns=event in RETURNS,
        error_code=code,
        error_message=message,
        steps=STEPS,
    )
    if row is None:
        return None
    return _Ended(Status(row["status"]), row["alerts"], row["rejects_noted"], row["chained"])


def _record_run_end(
    connection: Connection, run_id: RunId, status: RunStatus, error_code: str | None, error_message: str | None
) -> int:
    """How many rows the run has put into quarantine."""
    values = {"run_id": run_id, "status": status, "error_code": error_code, "error_message": error_message}
    row = fetch_one(connection, "record_run_end", **values)
    return row["rows_rejected"] if row else 0


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


def _columns(definition: Definition) -> dict[str, Any]:
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


def list_failed(connection: Connection) -> list[str]:
    """Names of the enabled pipelines that are FAILED, in order."""
    return [row["name"] for row in fetch_all(connection, "list_failed")]
