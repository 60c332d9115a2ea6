"""Commands that show a pipeline: show, status, runs, logs, request."""

import sys
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from vitrine.cli import backends, exit_codes, output
from vitrine.cli.arguments import AsJson, Name

if TYPE_CHECKING:
    from datetime import datetime

    from vitrine.service.bodies.pipelines import ManagedByBody, PipelineBody
    from vitrine.service.bodies.runs import CheckResultBody, LogLineBody, RequestBody, RunBody, StatusBody
    from vitrine.service.bodies.state import StateBody
    from vitrine.settings import Settings

COUNTS = ("seconds", "read", "written", "deleted", "rejected")
MANY_REJECTS = 200


def show(name: Name, as_json: AsJson = False) -> None:
    """Show the definition of a pipeline as YAML."""
    from vitrine import pipeline_files

    with backends.opened() as backend:
        pipeline = backend.definitions.get(name)
    if as_json:
        output.show_body(pipeline)
    else:
        output.show_lines(pipeline_files.format_text(pipeline.definition(), id=str(pipeline.id)).rstrip("\n"))


def status(name: Name, as_json: AsJson = False) -> None:
    """Show status, progress, freshness and last runs of a pipeline.

    Also its checkpoint, and why it waits.
    """
    with backends.opened() as backend:
        current = backend.history.status(name)
        if as_json:
            output.show_body(current)
            return
        pipeline = backend.definitions.get(name)
        state = backend.history.state(name)
        history = backend.history.list_runs(name, limit=5)
        rejects = len(backend.checks.rejects(name, limit=MANY_REJECTS).items)
    settings = backend.settings
    _show_status(current, pipeline, settings)
    _show_state(state)
    if rejects:
        count = f"{MANY_REJECTS} or more" if rejects >= MANY_REJECTS else f"{rejects:,}"
        output.show(f"in quarantine: {count} row(s); see vitrine rejects {pipeline.name}")
    _show_runs(history.items, settings)


def _show_status(current: "StatusBody", pipeline: "PipelineBody", settings: "Settings") -> None:
    from vitrine.status import HALTED

    disabled = "" if current.enabled else ", disabled"
    output.show(f"{current.pipeline} is {current.status}{disabled}, version {pipeline.config_version}")
    if pipeline.owner:
        output.show(f"owner: {pipeline.owner}")
    if pipeline.tags:
        output.show(f"tags: {', '.join(pipeline.tags)}")
    if current.managed_by:
        output.show_wrapped(f"file: {_file(current.managed_by, settings)}", "  ")
    if current.progress:
        output.show(f"progress: {_progress(current)}")
    if current.waiting:
        output.show_wrapped(f"waits: {current.waiting}", "  ")
    for kind, place in ((current.requested_kind, "requested"), (current.rerun_kind, "requested next")):
        if kind is not None and kind != "run":
            output.show(f"{place}: {kind}")
    if current.fresh_as_of:
        covers = current.freshness_covers
        shown = "the source" if covers == "everything" else f"{covers} of the source"
        output.show(f"the mart shows {shown} as of {output.local_time(current.fresh_as_of, settings)}")
    if current.stale_at:
        promised = f"it may be that old until {output.local_time(current.stale_at, settings)}"
        late = f"; it is late [{current.late_cause}]: {current.late_reason}" if current.late_cause else ""
        output.show_wrapped(f"{promised}{late}", "  ")
    if current.verdict_at:
        at = output.local_time(current.verdict_at, settings)
        output.show(f"last deep reconcile, at {at}: {current.verdict}")
    if current.verified_until:
        output.show(f"proven equal to the source as of {output.local_time(current.verified_until, settings)}")
    if current.next_due_at and current.status not in HALTED:
        due = output.local_time(current.next_due_at, settings)
        times = f"postponed {current.postponed} time(s), " if current.postponed else ""
        output.show(f"next due: {due} ({times}{pipeline.schedule_interval})")
    if current.upstreams:
        shown = [f"{one.name} ({_success(one.succeeded_at, settings)})" for one in current.upstreams]
        output.show_wrapped(f"runs after: {', '.join(shown)}", "  ")
    if current.last_run and current.last_run.checks:
        output.show(f"checks in the last run: {_passed(current.last_run.checks)}")
    if current.last_error:
        at = output.local_time(current.last_error.at, settings)
        output.show_wrapped(f"last error, at {at}: {current.last_error.message} [{current.last_error.code}]", "  ")


def _file(managed: "ManagedByBody", settings: "Settings") -> str:
    applied = f"{managed.file}, applied at {output.local_time(managed.applied_at, settings)}"
    return f"{applied}; changed since, and the next apply of it replaces the change" if managed.differs else applied


def _passed(results: "list[CheckResultBody]") -> str:
    failed = [one for one in results if not one.passed]
    counts = f"{len(results) - len(failed)} of {len(results)} passed"
    return f"{counts}; not passed: {', '.join(f'{one.name} ({one.severity})' for one in failed)}" if failed else counts


def _success(at: "datetime | None", settings: "Settings") -> str:
    return f"succeeded at {output.local_time(at, settings)}" if at else "not yet since the last wave"


def _progress(current: "StatusBody") -> str:
    progress = current.progress
    if progress is None:
        return ""
    of = f" of about {progress.rows_expected:,}" if progress.rows_expected else ""
    percent = f" ({progress.percent:.0f} %)" if progress.percent is not None else ""
    left = f", about {progress.seconds_left:,.0f} s left" if progress.seconds_left is not None else ""
    return f"{progress.rows_read:,}{of} rows{percent}{left}"


def _show_state(state: "StateBody") -> None:
    if state.cursor:
        output.show(f"checkpoint: {' / '.join(state.cursor)}")
    if state.horizon_blocker:
        output.show(f"held back by {state.horizon_blocker}, open for {state.horizon_lag_seconds or 0:.0f} s")


def runs(
    name: Name,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="How many runs, newest first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the runs of a pipeline, newest first."""
    with backends.opened() as backend:
        page = backend.history.list_runs(name, limit=limit)
    if as_json:
        output.show_body(page)
    elif page.items:
        _show_runs(page.items, backend.settings)
    else:
        output.show(f"{name} has no run yet")


def _show_runs(history: "list[RunBody]", settings: "Settings") -> None:
    if not history:
        return
    wide = output.is_wide()
    columns = ("run", *(("kind", "trigger") if wide else ()), "status", "started")
    rows = [
        (
            str(one.id),
            *((one.kind, one.trigger) if wide else ()),
            str(one.status),
            f"{one.started_at.astimezone(settings.zone):%m-%d %H:%M:%S}",
            f"{one.seconds:.2f}" if one.seconds is not None else "",
            *(f"{count:,}" for count in (one.rows_read, one.rows_written, one.rows_deleted, one.rows_rejected)),
        )
        for one in history
    ]
    output.show_table((*columns, *COUNTS), rows, right=COUNTS)
    for one in history:
        if one.error_message:
            output.show_wrapped(f"run {one.id}: {one.error_message} [{one.error_code}]", "  ")
        for check in one.checks or ():
            if not check.passed and check.severity == "warn":  # the others are the error of the run
                output.show_wrapped(f"run {one.id}: warning, check '{check.name}': {check.text}", "  ")


def logs(
    name: Name,
    run: Annotated[
        int | None, typer.Argument(help="Id of the run; without it, the newest.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the last log lines of a run."""
    from vitrine.errors import NotFound

    with backends.opened() as backend:
        if run is None:
            newest = backend.history.list_runs(name, limit=1).items
            if not newest:
                raise NotFound(f"pipeline '{name}' has no run yet; start one with `vitrine run {name}`")
            run = newest[0].id
        log = backend.history.run_log(name, run)
    if as_json:
        output.show_body(log)
        return
    if log.dropped:
        output.show(f"({log.dropped:,} earlier line(s) are not kept)")
    for line in log.lines:
        output.show_wrapped(_log_line(line, backend.settings), "  ")
    if not log.lines:
        output.show(f"run {log.run_id} of {log.pipeline} has no lines yet")


def _log_line(line: "LogLineBody", settings: "Settings") -> str:
    fields = " ".join(f"{name}={value}" for name, value in line.fields.items())
    at = f"{line.at.astimezone(settings.zone):%Y-%m-%d %H:%M:%S}"
    return f"{at} {line.level:<7} {line.text} {fields}".rstrip()


def request(
    request_id: Annotated[UUID, typer.Argument(help="Id of the request, as `run` shows it.", show_default=False)],
    wait: Annotated[
        str | None,
        typer.Option(
            help="Wait for its end, at most this long, such as 30s or 10m.", metavar="DURATION", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a request for a run. Exit code 0 succeeded, 1 failed, 3 not finished, or paused."""
    from vitrine.cli import waiting
    from vitrine.settings import parse_duration

    try:
        longest = parse_duration(wait or "0s")
    except ValueError as exc:
        raise typer.BadParameter(f"--wait: {exc}") from None
    with backends.opened() as backend:
        found = waiting.for_end(backend.history, request_id, longest)
    if as_json:
        output.show_body(found)
    else:
        output.show(f"{found.pipeline}: the request is {found.state}{_of_run(found)}")
    sys.exit({"succeeded": exit_codes.DONE, "failed": exit_codes.FAILED}.get(found.state, exit_codes.PAUSED))


def _of_run(found: "RequestBody") -> str:
    run = found.run
    if run is None:
        return ""
    if run.error_message:
        return f", run {run.id}: {run.error_message} [{run.error_code}]"
    return f", run {run.id}: {run.rows_read:,} rows read, {run.rows_written:,} written, {run.rows_deleted:,} deleted"
