"""Control of one pipeline or many: run, resume, roll back, reconcile, replay, resend, pause, reload."""

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING
from uuid import UUID

from vitrine.core.status import RequestKind, RunOptions, Status
from vitrine.operations.bodies.control import (
    BackfillBody,
    Paused,
    Reloaded,
    Requested,
    RunModeBody,
    RunOptionsBody,
    RunRequestBody,
)
from vitrine.operations.context import Context, Role, allowed, recorded
from vitrine.postgres import Connection
from vitrine.store import pipelines
from vitrine.store.pipelines import Stored

if TYPE_CHECKING:
    from vitrine.operations.bodies.checks import ResendBody
    from vitrine.operations.bodies.pipelines import ReconcileBody

log = logging.getLogger(__name__)


@allowed(Role.OPERATOR)
def run(context: Context, key: str, options: RunRequestBody | None = None) -> Requested:
    """A run, a full run, or a backfill, which is refused where it is known already that it cannot work."""
    if options is not None and options.backfill is not None:
        return _request_backfill(context, key, options.backfill)
    return request_run(context, key, options)


def request_run(context: Context, key: str, options: RunModeBody | None) -> Requested:
    """For callers that have checked the role."""
    is_full = options is not None and options.mode == "full"
    kind = RequestKind.FULL if is_full else RequestKind.RUN
    with context.connection() as connection:
        return _request(context, connection, key, _run_options(options), kind=kind)


@allowed(Role.OPERATOR)
def resume(context: Context, key: str, options: RunOptionsBody | None = None) -> Requested:
    with context.connection() as connection:
        return _request(context, connection, key, _run_options(options), resume=True)


@allowed(Role.OPERATOR)
def roll_back(context: Context, key: str) -> Requested:
    """Refused if it is known already that there is nothing to go back to; a runner may find that out later."""
    from vitrine.plan import backfill  # `vitrine run` does not need it, and would start later

    with context.connection() as connection:
        pipeline = pipelines.get(connection, key)
        check = backfill.prepare_rollback_check(connection, context.settings, pipeline)
    check()
    with context.connection() as connection:
        return _request(context, connection, key, None, kind=RequestKind.ROLLBACK)


@allowed(Role.OPERATOR)
def request_reconcile(context: Context, key: str, body: "ReconcileBody | None" = None) -> Requested:
    """The comparison of every value as a run, or a repair; the result is stored with the run, and with the request."""
    options = body.options() if body else None
    with context.connection() as connection:
        return _request(context, connection, key, options, kind=RequestKind.RECONCILE)


@allowed(Role.OPERATOR)
def replay_rejects(context: Context, key: str) -> Requested:
    """Read and write the keys in quarantine once more."""
    with context.connection() as connection:
        return _request(context, connection, key, None, kind=RequestKind.REPLAY)


@allowed(Role.OPERATOR)
def resend(context: Context, key: str, body: "ResendBody") -> Requested:
    """Read and write one key once more; with `delete`, remove it if the source does not have it."""
    from vitrine.core import keys

    options = RunOptions(key=keys.to_text(tuple(body.key)), delete=body.delete)
    with context.connection() as connection:
        return _request(context, connection, key, options, kind=RequestKind.RESEND)


def _request_backfill(context: Context, key: str, wanted: BackfillBody) -> Requested:
    from vitrine.plan import backfill

    with context.connection() as connection:
        pipeline = pipelines.get(connection, key)
    start, end = backfill.check_backfill(pipeline.definition, context.settings, str(wanted.start), str(wanted.end))
    options = RunOptions(backfill_from=start, backfill_to=end)
    with context.connection() as connection:
        return _request(context, connection, key, options, kind=RequestKind.BACKFILL)


@allowed(Role.OPERATOR)
def pause(context: Context, key: str) -> Paused:
    with context.connection() as connection, recorded(context, connection, "pipelines.pause") as record:
        pipeline = pipelines.lock_stored(connection, key)
        status = pipelines.request_pause(connection, pipeline.id)
        record.add(pipeline, before={"status": pipeline.status}, after={"status": status})
    log.info("pause requested", extra={"action": "pause_requested", **_log_fields(pipeline, status)})
    return Paused(status=status, pipeline=pipeline.name)


@allowed(Role.OPERATOR)
def reload(context: Context, key: str) -> Reloaded:
    from vitrine.operations import changes

    with context.connection() as connection, recorded(context, connection, "pipelines.reload") as record:
        reloaded = changes.reload(connection, key)
        record.add(reloaded.pipeline, after={"config_version": reloaded.pipeline.config_version})
    return Reloaded.of(reloaded)


def _request(
    context: Context,
    connection: Connection,
    key: str,
    options: RunOptions | None,
    *,
    kind: RequestKind = RequestKind.RUN,
    resume: bool = False,
) -> Requested:
    operation = f"pipelines.{'resume' if resume else kind}"
    with recorded(context, connection, operation) as record:
        pipeline = pipelines.lock(connection, key)
        status, request_id = pipelines.request_run(
            connection, pipeline.id, trigger=context.caller.via, kind=kind, options=options, resume=resume
        )
        given = {name: value for name, value in asdict(options).items() if value} if options else {}
        record.add(
            pipeline,
            before={"status": pipeline.status},
            after={"status": status, "request_id": request_id, **given},
        )
    log.info(
        "%s requested",
        kind,
        extra={"action": f"{kind}_requested", "request_id": str(request_id), **_log_fields(pipeline, status)},
    )
    return Requested(request_id=UUID(str(request_id)), status=status, pipeline=pipeline.name)


def _run_options(body: RunOptionsBody | None) -> RunOptions | None:
    return RunOptions(allow_shrink=body.allow_shrink) if body else None


def _log_fields(pipeline: Stored, status: Status) -> dict[str, object]:
    return {"pipeline": pipeline.name, "pipeline_id": str(pipeline.id), "status": status}
