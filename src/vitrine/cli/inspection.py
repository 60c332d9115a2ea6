"""Commands that show pipelines: list, show, status, runs, logs, request."""

import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, TypeVar
from uuid import UUID

import typer

from vitrine.cli import backends, exit_codes, output
from vitrine.cli.arguments import AsJson, Name

if TYPE_CHECKING:
    from vitrine.operations.bodies.pipelines import (
        InvalidPipelineBody,
        ListedPipelineBody,
        ManagedByBody,
        PipelineBody,
        PipelinePage,
    )
    from vitrine.operations.bodies.runs import CheckResultBody, LogLineBody, RequestBody, RunBody, StateBody, StatusBody
    from vitrine.settings import Settings

NUMBERS = ("rows", "seconds")
GROUPS = ("promise", "late", "verdict", "owner", "tags")
WIDE_ONLY = ("promise", "late", "mode", "target", "schedule", "verdict", "owner", "tags")

Shown = TypeVar("Shown")


def list_all(
    stale: Annotated[
        bool, typer.Option("--stale", help="Only marts that are older than their freshness or schedule allows.")
    ] = False,
    failed: Annotated[bool, typer.Option("--failed", help="Only pipelines whose last run failed.")] = False,
    status: Annotated[
        list[str] | None,
        typer.Option(help="Only pipelines in this status, such as RUNNING; can be repeated.", show_default=False),
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Only pipelines with this tag.", show_default=False)] = None,
    owner: Annotated[str | None, typer.Option(help="Only pipelines of this owner.", show_default=False)] = None,
    target: Annotated[
        str | None, typer.Option(help="Only this target; with * at the end, all that begin so.", show_default=False)
    ] = None,
    sort: Annotated[
        Literal["name", "age"] | None,
        typer.Option(
            help="age: the oldest mart first. Default: name; with --stale or --failed, age.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List pipelines with status, age of the mart and last run."""
    from vitrine.operations.bodies.pipelines import PipelinePage

    by_age = (sort or ("age" if stale or failed else "name")) == "age"
    with backends.opened() as backend:
        pages = backend.definitions.pages(_filters(stale, failed, status, tag, owner, target))
        if as_json:
            texts, invalid = _rendered(pages, output.json_text, by_age=by_age)
            output.show_page(PipelinePage(items=[], invalid=invalid, next=None), texts)
        else:
            _show(*_rendered(pages, _rendering(backend.settings), by_age=by_age))


def _rendered(
    pages: "Iterable[PipelinePage]", render: "Callable[[ListedPipelineBody], Shown]", *, by_age: bool
) -> "tuple[list[Shown], list[InvalidPipelineBody]]":
    """What is shown of each pipeline, and those that are not valid; the bodies of a page are not kept."""
    invalid: list[InvalidPipelineBody] = []
    found: list[tuple[datetime | None, Shown]] = []
    for page in pages:
        invalid += page.invalid
        found += [(one.fresh_as_of, render(one)) for one in page.items]
    if by_age:
        found.sort(key=lambda one: one[0] or datetime.min.replace(tzinfo=UTC))
    return [shown for _, shown in found], invalid


def _filters(
    stale: bool, failed: bool, status: list[str] | None, tag: str | None, owner: str | None, target: str | None
):
    from pydantic import ValidationError

    from vitrine import input_errors
    from vitrine.operations.bodies.filters import Filters

    given = {
        "stale": stale or None,
        "failed": failed or None,
        "status": [one.upper() for one in status] if status else None,
        "tag": tag,
        "owner": owner,
        "target": target,
    }
    try:
        return Filters.model_validate({name: value for name, value in given.items() if value is not None})
    except ValidationError as exc:
        first, *_ = input_errors.explain(exc.errors(), Filters)
        raise typer.BadParameter(f"--{first.sentence}") from None


class Line(NamedTuple):
    """What the table shows of a pipeline."""

    cells: dict[str, str]  # by column
    error: str | None  # why its last run failed
    late: str | None  # why its mart is late


def _show(found: Sequence[Line], invalid: "Sequence[InvalidPipelineBody]") -> None:
    if found:
        left_out = {column for column in WIDE_ONLY if not output.is_wide()}
        left_out |= {column for column in GROUPS if not any(line.cells[column] for line in found)}
        columns = [column for column in found[0].cells if column not in left_out]
        rows = ([line.cells[column] for column in columns] for line in found)
        output.show_table(columns, rows, right=("age", *NUMBERS), wrap=("pipeline",))
    elif not invalid:
        output.show("No pipeline.")
    for sentence in (sentence for line in found for sentence in (line.late, line.error) if sentence):
        output.show_wrapped(sentence, "  ")
    for one in invalid:
        text = f"{one.name}: the stored definition is not valid: {one.reason} [DEFINITION_INVALID]"
        output.show_wrapped(text, "  ")


def _rendering(settings: "Settings") -> "Callable[[ListedPipelineBody], Line]":
    from vitrine.text import red

    now = datetime.now(UTC)

    def render(one: "ListedPipelineBody") -> Line:
        run, error, age = one.last_run, one.last_error, output.age(one.fresh_as_of, now)
        cells = {
            "pipeline": one.name,
            "status": red(_status(one)) if one.status == "FAILED" else _status(one),
            "age": red(f"{age} !") if one.stale else age,
            "promise": _promise(one),
            "late": one.late_cause or "",
            "verdict": _verdict(one),
            "mode": str(one.mode),
            "target": one.target_table,
            "schedule": _schedule(one),
            "next due": _due(one, settings),
            "last run": str(run.status) if run else "never",
            "rows": f"{run.rows_read:,}" if run else "",
            "seconds": f"{run.seconds:.2f}" if run and run.seconds is not None else "",
            "owner": one.owner,
            "tags": ", ".join(one.tags),
        }
        failure = f"{one.name}: {error.message} [{error.code}]" if error else None
        return Line(cells, failure, f"{one.name} is late: {one.late_reason}" if one.late_reason else None)

    return render


def _schedule(one: "ListedPipelineBody") -> str:
    """What starts its runs."""
    after = f"after {', '.join(one.after)}" if one.after else ""
    return ", ".join(filter(None, (one.schedule_interval, after)))


def _due(one: "ListedPipelineBody", settings: "Settings") -> str:
    from vitrine.core.status import HALTED

    if one.next_due_at is None or one.status in HALTED:
        return ""
    return f"{one.next_due_at.astimezone(settings.zone):%m-%d %H:%M}"


def _promise(one: "ListedPipelineBody") -> str:
    """How old the mart may be."""
    from vitrine.definition.model import format_duration

    freshness = one.options.freshness
    if freshness is not None:
        return format_duration(freshness)
    return f"2 × {one.schedule_interval}" if one.schedule_interval else ""


def _verdict(one: "ListedPipelineBody") -> str:
    from vitrine.text import red

    return red(one.verdict) if one.verdict == "different" else one.verdict or ""


def _status(one: "ListedPipelineBody") -> str:
    if not one.enabled:
        return f"{one.status} (disabled)"
    return f"{one.status} (postponed)" if one.postponed and one.status == "IDLE" else str(one.status)


COUNTS = ("seconds", "read", "written", "deleted", "rejected")
MANY_REJECTS = 200


def show(name: Name, as_json: AsJson = False) -> None:
    """Show the definition of a pipeline as YAML."""
    from vitrine.definition import files

    with backends.opened() as backend:
        pipeline = backend.definitions.get(name)
    if as_json:
        output.show_body(pipeline)
    else:
        output.show_lines(files.format_text(pipeline.definition(), id=str(pipeline.id)).rstrip("\n"))


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
    from vitrine.core.status import HALTED

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
    from vitrine.cli import requests
    from vitrine.settings import parse_duration

    try:
        longest = parse_duration(wait or "0s")
    except ValueError as exc:
        raise typer.BadParameter(f"--wait: {exc}") from None
    with backends.opened() as backend:
        found = requests.wait_for_end(backend.history, request_id, longest)
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
