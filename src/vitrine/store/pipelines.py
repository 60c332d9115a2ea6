"""Pipelines in the store: their definitions, and the events that move their statuses."""

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from types import MappingProxyType
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb
from pydantic import ValidationError

from vitrine import schedule
from vitrine.errors import ConfigError, DataError, NotFound, TransitionRefused
from vitrine.model import NAME, Claim, Definition, Pipeline, PipelineId, RequestId, RunId, RunOptions, suspended_clock
from vitrine.postgres import Connection
from vitrine.status import Event, RunStatus, Status, steps
from vitrine.store import checkpoints, staging
from vitrine.store.database import execute, fetch_all, fetch_one, transaction

MAX_ATTEMPTS = 3
DUE_AT_ONCE = 200
PLAIN = RunOptions()
NO_LIMITS: Mapping[str, int] = MappingProxyType({})


def get(connection: Connection, key: str | UUID) -> Pipeline:
    """By id or by name; NotFound otherwise."""
    return _found(fetch_one(connection, "get_pipeline", **_names(key)), key)


def list_page(connection: Connection, *, after: str = "", limit: int = 200) -> list[Pipeline]:
    return [_pipeline(row) for row in fetch_all(connection, "list_pipelines", after=after, limit=limit)]


def create(
    connection: Connection, definition: Definition, pipeline_id: UUID | None = None, *, zone: tzinfo = UTC
) -> Pipeline:
    """A new pipeline, IDLE; ConfigError if its name or target is taken. `zone` is that of cron lines."""
    with transaction(connection):
        due = first_due(connection, definition, zone)
        with _unique(definition):
            row = fetch_one(connection, "insert_pipeline", id=pipeline_id, next_due_at=due, **_columns(definition))
        if row is None:
            raise NotFound("the store returned no id for the new pipeline")
        _write_steps(connection, row["id"], definition)
        return get(connection, row["id"])


def lock(connection: Connection, key: str | UUID) -> Pipeline:
    """Inside a transaction: nobody else changes, claims or deletes the pipeline until it ends."""
    return _found(fetch_one(connection, "lock_pipeline", **_names(key)), key)


def update(connection: Connection, pipeline_id: PipelineId, definition: Definition, *, zone: tzinfo = UTC) -> Pipeline:
    """Store a changed definition; disabling a running pipeline pauses it, enabling one again gives a new due time."""
    with transaction(connection):
        due = first_due(connection, definition, zone)
        with _unique(definition):
            execute(connection, "update_pipeline", id=pipeline_id, next_due_at=due, **_columns(definition))
        execute(connection, "delete_steps", id=pipeline_id)
        _write_steps(connection, pipeline_id, definition)
        return get(connection, pipeline_id)


def delete(connection: Connection, key: str | UUID, *, force: bool = False) -> None:
    """Remove a pipeline with its history; the target stays. TransitionRefused while a runner holds it.

    By force even then: the runner finds its lease gone and commits nothing more, and its staging is swept up later.
    """
    with transaction(connection):
        pipeline = lock(connection, key)
        if fetch_one(connection, "delete_pipeline", id=pipeline.id, force=force) is None:
            raise TransitionRefused(
                f"pipeline '{pipeline.name}' is being run by {pipeline.lease_owner}; pause it first", code="RUNNING"
            )
        if pipeline.lease_owner is None:
            # never while it is held: the batch in flight has the table, and waits for the row that we have
            staging.drop_all(connection, pipeline.id)


def request_run(
    connection: Connection, key: str | UUID, *, trigger: str, options: RunOptions = PLAIN
) -> tuple[Status, RequestId]:
    """Ask for a run; the same request id comes back while that run has not started."""
    # Locked first: an UPDATE that waits for another one keeps the step of the status it saw before, and finds no row
    with transaction(connection):
        pipeline = lock(connection, key)
        row = fetch_one(
            connection,
            "request_run",
            id=pipeline.id,
            trigger=trigger,
            options=Jsonb(asdict(options)),
            **_pairs(Event.RUN),
        )
        if row is None:
            raise TransitionRefused(f"pipeline '{pipeline.name}' is disabled; enable it first", code="DISABLED")
        execute(connection, "notify", name=pipeline.name)
    return Status(row["status"]), RequestId(row["request_id"])


def request_pause(connection: Connection, key: str | UUID) -> Status:
    """PAUSED at once, or PAUSE_REQUESTED until the current batch is done; refused for a FAILED pipeline."""
    with transaction(connection):
        pipeline = lock(connection, key)
        row = fetch_one(connection, "request_pause", id=pipeline.id, **_pairs(Event.PAUSE))
    if row is None:
        raise TransitionRefused(
            f"pipeline '{pipeline.name}' is FAILED: there is nothing to pause; run it, or disable it"
        )
    return Status(row["status"])


def first_due(connection: Connection, definition: Definition, zone: tzinfo = UTC) -> datetime | None:
    """When the definition would be due first, by the database's clock; None where it is disabled or not scheduled."""
    rhythm = definition.schedule
    if rhythm is None or not definition.enabled:
        return None
    row = fetch_one(connection, "clock")
    return rhythm.next_after(row["now"], zone=zone) if row else None


def fire_schedules(connection: Connection, zone: tzinfo = UTC) -> list[str]:
    """Consume every due time that has come; names of the pipelines that will run for it.

    What was missed meanwhile is one run: the next due time is the first in the future, by the database's clock.
    """
    fired: list[str] = []
    while due := fetch_all(connection, "list_due", limit=DUE_AT_ONCE):
        following = [_following(row, zone) for row in due]
        seen = {"ids": [row["id"] for row in due], "due": [row["next_due_at"] for row in due], "following": following}
        rows = fetch_all(connection, "fire_schedules", **seen, **_pairs(Event.SCHEDULE))
        fired += [row["name"] for row in rows if row["status"] == Status.RUN_REQUESTED]
        if len(rows) < DUE_AT_ONCE:
            break  # all there were, or others are at it
    if fired:
        execute(connection, "notify", name=fired[0])  # runners that have a free slot
    return fired


def _following(row: DictRow, zone: tzinfo) -> datetime | None:
    try:
        return schedule.parse(row["schedule_interval"]).next_after(row["now"], last=row["next_due_at"], zone=zone)
    except (ValueError, TypeError):
        return None  # put into the table past the checks: this run ends FAILED and tells, and no other follows


def seconds_until_due(connection: Connection) -> float | None:
    """How long until the next due time, by the database's clock; None where nothing is scheduled."""
    row = fetch_one(connection, "seconds_until_due")
    return row["seconds"] if row else None


def expire_leases(connection: Connection) -> list[DictRow]:
    """Take dead leases away and end what is left of their holders' sessions."""
    events = [(event, *pair) for event in (Event.EXPIRE, Event.CRASH_LOOP) for pair in steps(event)]
    event, old, new = (list(column) for column in zip(*events, strict=True))
    rows = fetch_all(connection, "expire_leases", event=event, old=old, new=new, max_attempts=MAX_ATTEMPTS)
    for row in rows:
        end_sessions(connection, row["lease_token"])
    return rows


def end_sessions(connection: Connection, token: int) -> None:
    """End every session of a lease in this cluster, as far as our role may."""
    fetch_all(connection, "terminate_sessions", token=token)


def cancel_queries(connection: Connection, claim: Claim) -> None:
    """Cancel what the sessions of a run wait for, as far as our role may; the sessions go on."""
    fetch_all(connection, "cancel_queries", token=claim.token)


def claim_next(
    connection: Connection,
    *,
    runner: str,
    ttl: timedelta,
    only: PipelineId | None = None,
    runs_per_source: Mapping[str, int] = NO_LIMITS,
) -> Claim | None:
    """Take one requested pipeline under a new token and open its run; None when there is nothing to take.

    A pipeline whose source has as many runs as `runs_per_source` allows is left for later, without a lease.
    A row that somebody put into the table past the checks ends FAILED here, and the next one is taken.
    """
    while True:
        before = suspended_clock()
        with transaction(connection):
            crowded = _crowded(connection, runs_per_source) if runs_per_source else []
            row = fetch_one(
                connection, "claim_next", runner=runner, ttl=ttl, only=only, crowded=crowded, **_pairs(Event.CLAIM)
            )
            if row is None:
                return None
            try:
                return _open_run(connection, row, runner, before)
            except ValidationError as exc:
                _fail_unreadable(connection, row, runner, exc)


def _crowded(connection: Connection, runs_per_source: Mapping[str, int]) -> list[str]:
    """Sources at their limit; until the transaction ends, nobody else counts."""
    fetch_one(connection, "hold_limits")
    allowed = {"sources": list(runs_per_source), "runs": list(runs_per_source.values())}
    return [row["source"] for row in fetch_all(connection, "list_crowded", **allowed)]


def _open_run(connection: Connection, row: DictRow, runner: str, taken_at: float) -> Claim:
    pipeline = _pipeline(row)
    return Claim(
        pipeline_id=pipeline.id,
        definition=pipeline.definition,
        run_id=_insert_run(connection, row, runner, pipeline.definition.model_dump(mode="json")),
        token=row["lease_token"],
        taken_at=taken_at,
        attempt=pipeline.attempt,
        options=RunOptions(**row["requested_options"]),
        config_version=pipeline.config_version,
    )


def _insert_run(connection: Connection, row: DictRow, runner: str, config: dict[str, Any]) -> RunId:
    opened = fetch_one(
        connection,
        "open_run",
        pipeline_id=row["id"],
        request_id=row["request_id"],
        attempt=row["attempt"],
        trigger=row["requested_trigger"] or "api",
        due_at=row["requested_due_at"],
        kind=row["mode"],
        config=Jsonb(config),
        runner=runner,
        token=row["lease_token"],
    )
    if opened is None:
        raise NotFound("the store returned no id for the new run")
    return RunId(opened["id"])


def _fail_unreadable(connection: Connection, row: DictRow, runner: str, exc: ValidationError) -> None:
    run_id = _insert_run(connection, row, runner, {})
    leaving = {"id": row["id"], "token": row["lease_token"], "event": Event.FAIL, "attempt": 0, "delay": timedelta(0)}
    execute(connection, "leave", **leaving, **_pairs(Event.FAIL))
    fields = ", ".join(".".join(map(str, error["loc"])) or "the row" for error in exc.errors())
    text = f"the stored definition is not valid ({fields}); correct it through the API or `vitrine apply`"
    execute(connection, "close_run", run_id=run_id, status=RunStatus.FAILED, error_code="CONFIG", error_message=text)


def heartbeat(connection: Connection, claim: Claim, ttl: timedelta) -> Status | None:
    """Prolong the lease; the pipeline's status, or None when the lease is lost."""
    row = fetch_one(connection, "heartbeat", id=claim.pipeline_id, token=claim.token, ttl=ttl)
    return Status(row["status"]) if row else None


def held_status(connection: Connection, claim: Claim) -> Status | None:
    """The pipeline's status while the lease is ours, expired or not; None when it is not."""
    row = fetch_one(connection, "held_status", id=claim.pipeline_id, token=claim.token)
    return Status(row["status"]) if row else None


def glance(connection: Connection, claim: Claim) -> tuple[Status, int | None]:
    """The pipeline's status, and the version whose pace its run shall take; LeaseLost when it is not ours any more."""
    row = fetch_one(connection, "glance", id=claim.pipeline_id, token=claim.token)
    if row is None:
        raise checkpoints.lost(claim)
    return Status(row["status"]), row["reload_version"]


def request_reload(connection: Connection, pipeline_id: PipelineId) -> Definition | None:
    """Ask the run under way to take the pace as it is stored; what that run captured, or None where nobody runs."""
    if fetch_one(connection, "request_reload", id=pipeline_id) is None:
        return None
    row = fetch_one(connection, "running_config", id=pipeline_id)
    return Definition.model_validate(row["config"]) if row else None


def leave(
    connection: Connection,
    claim: Claim,
    event: Event,
    run_status: RunStatus,
    *,
    error_code: str | None = None,
    error_message: str | None = None,
    attempt: int = 0,
    delay: timedelta = timedelta(0),
) -> Status | None:
    """Let go of the lease and close the run, together; None (nothing touched) when the lease was lost before."""
    with transaction(connection):
        if fetch_one(connection, "lock_pipeline", **_names(claim.pipeline_id)) is None:
            return None
        row = fetch_one(
            connection,
            "leave",
            id=claim.pipeline_id,
            token=claim.token,
            event=event,
            attempt=attempt,
            delay=delay,
            **_pairs(event),
        )
        if row is None:
            return None
        execute(
            connection,
            "close_run",
            run_id=claim.run_id,
            status=run_status,
            error_code=error_code,
            error_message=error_message,
        )
        if row["status"] == Status.RUN_REQUESTED:
            execute(connection, "notify", name=claim.definition.name)
    return Status(row["status"])


def watch(connection: Connection) -> list[DictRow]:
    """What is watched of every pipeline: ages in seconds by the database's clock, None where there is none."""
    return fetch_all(connection, "watch_pipelines")


def _pairs(event: Event) -> dict[str, Any]:
    old, new = (list(column) for column in zip(*steps(event), strict=True))
    return {"old": old, "new": new}


def _names(key: str | UUID) -> dict[str, Any]:
    """A key may be read both ways: 32 hexadecimal digits are an id, and may be a name too."""
    name = key if isinstance(key, str) and re.fullmatch(NAME, key) else ""
    try:
        return {"id": key if isinstance(key, UUID) else UUID(key), "name": name}
    except ValueError:
        return {"id": None, "name": name}


def _found(row: DictRow | None, key: str | UUID) -> Pipeline:
    if row is None:
        raise NotFound(f"there is no pipeline '{key}'; `vitrine list` shows what there is")
    return _pipeline(row)


def _columns(definition: Definition) -> dict[str, Any]:
    columns = definition.model_dump(exclude={"tasks", "options"})
    options = definition.options.model_dump(mode="json", exclude_defaults=True)
    return {
        **columns,
        "key_columns": list(definition.key_columns),
        "options": Jsonb(options),
    }


def _write_steps(connection: Connection, pipeline_id: UUID, definition: Definition) -> None:
    for step in definition.tasks:
        execute(
            connection,
            "insert_step",
            id=pipeline_id,
            **(step.model_dump() | {"options": Jsonb(step.options)}),
        )


@contextmanager
def _unique(definition: Definition) -> Generator[None]:
    """A violated unique index becomes a sentence."""
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


_DEFINITION_FIELDS: Sequence[str] = tuple(Definition.model_fields)


def _pipeline(row: DictRow) -> Pipeline:
    fields = {name: row[name] for name in _DEFINITION_FIELDS}
    return Pipeline(
        id=row["id"],
        definition=Definition.model_validate(fields),
        status=Status(row["status"]),
        config_version=row["config_version"],
        request_id=row["request_id"],
        rerun_request_id=row["rerun_request_id"],
        requested_at=row["requested_at"],
        attempt=row["attempt"],
        next_attempt_at=row["next_attempt_at"],
        next_due_at=row["next_due_at"],
        fresh_as_of=row["fresh_as_of"],
        lease_owner=row["lease_owner"],
        lease_expires_at=row["lease_expires_at"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


@dataclass(frozen=True)
class Listed:
    """What a list shows of a pipeline and of its newest run."""

    name: str
    status: str
    enabled: bool
    mode: str
    target_table: str
    schedule_interval: str | None
    next_due_at: datetime | None
    run_status: str | None  # None, like the two after it: the pipeline has no run
    rows_read: int | None
    seconds: float | None  # None also while the run is active


def list_with_newest_run(connection: Connection) -> list[Listed]:
    """Every pipeline in the order of names, by one statement; definitions are not validated."""
    return [Listed(**row) for row in fetch_all(connection, "list_with_newest_run")]
