"""The command that runs pipelines: run."""

import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from vitrine.cli import building, exit_codes, output, process
from vitrine.cli.arguments import AsJson, pipeline_names
from vitrine.cli.process import Interrupts, OnInterrupt

if TYPE_CHECKING:
    from vitrine.cli.backends import Backend
    from vitrine.cli.requests import Foreground
    from vitrine.operations.bodies.control import Requested, RunRequestBody
    from vitrine.operations.bodies.runs import RequestBody
    from vitrine.runner.run import Executed
    from vitrine.settings import Settings


def run(
    name: Annotated[
        str | None,
        typer.Argument(help="Name or id of the pipeline.", show_default=False, autocompletion=pipeline_names),
    ] = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="Read everything once and remove what vanished at the source; for incremental pipelines."
        ),
    ] = False,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="With --to: read this range of incremental_key once more, without moving the checkpoint. --from"
            " belongs to the range, --to does not.",
            metavar="VALUE",
            show_default=False,
        ),
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", help="The end of the range.", metavar="VALUE", show_default=False)
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Run every FAILED pipeline, one after the other.")] = False,
    allow_shrink: Annotated[
        bool, typer.Option(help="Allow this full load to delete more than max_delete_ratio of the mart.")
    ] = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Only request the run; the next free runner carries it out.")
    ] = False,
    on_interrupt: Annotated[
        OnInterrupt,
        typer.Option(
            help="What Ctrl-C does after the current batch: release the pipeline, so that the next free runner"
            " continues it, or pause it until it is resumed. With --api, release leaves the run to its runner."
        ),
    ] = "release",
    as_json: AsJson = False,
) -> None:
    """Run one pipeline, or all that are FAILED.

    In this process; with --api, by a runner, and the command waits for it. Exit code 0 finished, 1 failed, 3 paused or
    interrupted, 4 held by another runner; of several pipelines, the first of 1, 4 and 3 that occurred. A second
    Ctrl-C ends the command at once.
    """
    if full and name is None:
        raise typer.BadParameter("--full needs the name of a pipeline")
    if failed is (name is not None):
        raise typer.BadParameter("give the name of a pipeline, or --failed for all that are FAILED")
    body = _body(name, full=full, start=start, end=end, allow_shrink=allow_shrink)
    loaded = building.load_settings()
    if no_wait or loaded.api_url is not None:
        _through_runner(name, body, on_interrupt, wait=not no_wait, as_json=as_json)
        return
    if as_json:
        raise typer.BadParameter("--json shows a request: give --no-wait or --api")
    process.tune_for_rows()
    settings = building.service_settings(loaded)
    from vitrine.cli.requests import Foreground

    stop = threading.Event()
    with building.connect_store(settings) as store:
        foreground = Foreground(store, settings, stop)
        if name is None:
            sys.exit(_run_failed(foreground, settings, body, on_interrupt, stop))
        if body.backfill is not None:
            _run_backfill(foreground, settings, name, body, on_interrupt, stop)
        _run_named(foreground, settings, name, body, on_interrupt, stop)


def _body(name: str | None, *, full: bool, start: str | None, end: str | None, allow_shrink: bool) -> "RunRequestBody":
    from pydantic import ValidationError

    from vitrine import input_errors
    from vitrine.operations.bodies.control import BackfillBody, RunRequestBody

    if (start is None) is not (end is None):
        raise typer.BadParameter("give --from and --to together")
    if start is not None and name is None:
        raise typer.BadParameter("--from and --to need the name of a pipeline")
    backfill = BackfillBody(start=start, end=end) if start is not None and end is not None else None
    try:
        return RunRequestBody(mode="full" if full else None, allow_shrink=allow_shrink, backfill=backfill)
    except ValidationError as exc:
        first, *_ = input_errors.explain(exc.errors(), RunRequestBody)
        raise typer.BadParameter(first.sentence) from None


# -- in this process --------------------------------------------------------------------------------------------------


def _watch_signals(settings: "Settings", name: str, on_interrupt: OnInterrupt, stop: threading.Event) -> None:
    """Let the first Ctrl-C end the run as asked for, and the second one at once."""
    seconds = settings.lease_ttl.total_seconds()
    becomes = (
        f"it is then PAUSED until `vitrine resume {name}`"
        if on_interrupt == "pause"
        else f"the next free runner, or `vitrine run {name}`, then continues it"
    )
    Interrupts(
        _pausing(settings, name, stop) if on_interrupt == "pause" else stop.set,
        first=f"'{name}' ends after its current batch; {becomes}. Ctrl-C again ends the command at once",
        second=f"ended at once; the current batch of '{name}' is rolled back, and it can continue after {seconds:g} s",
    ).install()


def _pausing(settings: "Settings", name: str, stop: threading.Event) -> Callable[[], None]:
    def pause() -> None:
        from vitrine.cli.backends.local import local_backend
        from vitrine.errors import VitrineError

        try:
            local_backend(settings).control.pause(name)
        except VitrineError:
            stop.set()  # the store is unavailable, or the run has just ended

    return pause


def _run_named(
    foreground: "Foreground",
    settings: "Settings",
    name: str,
    body: "RunRequestBody",
    on_interrupt: OnInterrupt,
    stop: threading.Event,
) -> NoReturn:
    from vitrine.cli.requests import Held
    from vitrine.core.protocols import Outcome

    try:
        claim = foreground.claim(name, body)
    except Held as held:
        process.stop(str(held), exit_codes.HELD)
    name = claim.definition.name
    _watch_signals(settings, name, on_interrupt, stop)
    executed, status = foreground.execute(claim)
    if executed.error is not None:
        process.stop(f"'{name}' failed ({executed.error.code}): {executed.error}")
    output.show(f"{name}: {_summary(executed)}")
    if executed.outcome is Outcome.RELEASED:
        output.show(f"Stopped; '{name}' is {status}, and its next run continues where this one stopped.")
    elif executed.outcome is Outcome.PAUSED:
        output.show(f"'{name}' is {status}; `vitrine resume {name}` continues where this run stopped.")
    sys.exit(exit_codes.DONE if executed.outcome is Outcome.FINISHED else exit_codes.PAUSED)


def _run_backfill(
    foreground: "Foreground",
    settings: "Settings",
    name: str,
    body: "RunRequestBody",
    on_interrupt: OnInterrupt,
    stop: threading.Event,
) -> NoReturn:
    from vitrine.cli.backends.local import local_context
    from vitrine.operations import control
    from vitrine.operations.bodies.runs import RequestBody
    from vitrine.store import pipelines

    requested = control.run(local_context(settings), name, body)
    with foreground.context.connection() as store:
        pipeline = pipelines.get(store, name)
    _watch_signals(settings, pipeline.name, on_interrupt, stop)
    request = foreground.carry_out(pipeline, requested.request_id)
    _end(RequestBody.of(request, pipeline))


def _run_failed(
    foreground: "Foreground",
    settings: "Settings",
    body: "RunRequestBody",
    on_interrupt: OnInterrupt,
    stop: threading.Event,
) -> int:
    """Run every FAILED pipeline, with one line for each; returns the exit code."""
    from vitrine.store import pipelines

    with foreground.context.connection() as store:
        names = pipelines.list_failed(store)
    codes: set[int] = set()
    interrupted = False
    for name in names:
        interrupted = interrupted or stop.is_set()
        if interrupted:
            code, line = exit_codes.PAUSED, "not started, and still FAILED"
        else:
            _watch_signals(settings, name, on_interrupt, stop)
            code, line = _outcome(foreground, name, body)
            interrupted = code == exit_codes.PAUSED and on_interrupt == "pause"
        output.show(f"{name}: {line}")
        codes.add(code)
    if not codes:
        output.show("No enabled pipeline is FAILED.")
    return exit_codes.worst(codes)


def _outcome(foreground: "Foreground", name: str, body: "RunRequestBody") -> tuple[int, str]:
    """Run one of several pipelines; its exit code, and what its line says. No failure of one ends the others."""
    from vitrine.cli.requests import Held
    from vitrine.core.protocols import Outcome
    from vitrine.errors import VitrineError

    try:
        executed, _ = foreground.execute(foreground.claim(name, body))
    except Held as held:
        return exit_codes.HELD, str(held)
    except VitrineError as exc:
        return exit_codes.FAILED, f"failed ({exc.code}): {exc}"
    if executed.error is not None:
        return exit_codes.FAILED, f"failed ({executed.error.code}): {executed.error}"
    return exit_codes.DONE if executed.outcome is Outcome.FINISHED else exit_codes.PAUSED, _summary(executed)


def _summary(executed: "Executed") -> str:
    counts = executed.counts
    quarantined = f", {counts.rejected:,} quarantined" if counts.rejected else ""
    return (
        f"{executed.outcome}, {counts.read:,} rows read, {counts.written:,} written, {counts.deleted:,} deleted"
        f"{quarantined} in {executed.seconds:.2f} s"
    )


# -- by a runner ------------------------------------------------------------------------------------------------------


def _through_runner(
    name: str | None, body: "RunRequestBody", on_interrupt: OnInterrupt, *, wait: bool, as_json: bool
) -> None:
    from vitrine.cli import backends

    with backends.opened() as backend:
        if name is None:
            _request_failed(backend, body, on_interrupt, wait=wait, as_json=as_json)
            return
        requested = backend.control.run(name, body)
        if not wait:
            _show_requested(backend, requested, as_json=as_json)
            return
        found = _follow(backend, requested, on_interrupt)
    if as_json:
        output.show_body(found)
        sys.exit(_code(found))
    _end(found)


def _show_requested(backend: "Backend", requested: "Requested", *, as_json: bool) -> None:
    if as_json:
        output.show_body(requested)
        return
    output.show(f"{requested.pipeline}: {requested.status}, request {requested.request_id}")
    if waiting := backend.history.status(requested.pipeline).waiting:
        output.show_wrapped(waiting)


def _request_failed(
    backend: "Backend", body: "RunRequestBody", on_interrupt: OnInterrupt, *, wait: bool, as_json: bool
) -> None:
    """Request a run of every FAILED pipeline, then wait for one after the other."""
    from vitrine.operations.bodies.filters import RunManyBody

    many = RunManyBody.model_validate(
        {"status": "FAILED", "enabled": True, "allow_shrink": body.allow_shrink, "mode": body.mode}
    )
    answer = backend.control.run_many(many)
    if as_json:
        output.show_body(answer)
        return
    codes: set[int] = set()
    for refused in answer.refused:
        output.show(f"{refused.pipeline}: {refused.reason} [{refused.code}]")
        codes.add(exit_codes.FAILED)
    for requested in answer.requested:
        if not wait:
            output.show(f"{requested.pipeline}: {requested.status}, request {requested.request_id}")
            continue
        found = _follow(backend, requested, on_interrupt)
        output.show(f"{found.pipeline}: {_described(found)}")
        codes.add(_code(found))
    if not answer.matched:
        output.show("No enabled pipeline is FAILED.")
    sys.exit(exit_codes.worst(codes))


PENDING_SECONDS = 2.0
"""After this long, the reason why a run does not start is shown."""


def _follow(backend: "Backend", requested: "Requested", on_interrupt: OnInterrupt) -> "RequestBody":
    """The request at its end, or when Ctrl-C ends the wait for it."""
    import time

    from vitrine.cli import requests

    stop = threading.Event()
    name, request_id = requested.pipeline, requested.request_id

    def leave() -> None:
        if on_interrupt == "pause":
            backend.control.pause(name)
        stop.set()

    becomes = (
        f"'{name}' is paused after its current batch; `vitrine resume {name}` continues it"
        if on_interrupt == "pause"
        else f"'{name}' continues on its runner; `vitrine request {request_id} --wait 1h` waits for it, and"
        f" `vitrine pause {name}` stops it"
    )
    Interrupts(leave, first=becomes, second="ended at once").install()
    since, explained = time.monotonic(), False

    with output.progress_bar(name) as bar:

        def show_progress(found: "RequestBody") -> None:
            nonlocal explained
            if found.run is not None and found.state == "running":
                bar(found.run.rows_read, found.run.rows_expected)
            elif not explained and time.monotonic() - since > PENDING_SECONDS:
                explained = True
                if reason := backend.history.status(name).waiting:
                    output.show_wrapped(f"{name} waits: {reason}", "  ")

        step = timedelta(seconds=1 if sys.stdout.isatty() else 20)
        return requests.wait_until_stopped(backend.history, request_id, stop, step=step, progress=show_progress)


def _code(found: "RequestBody") -> int:
    return {"succeeded": exit_codes.DONE, "failed": exit_codes.FAILED}.get(found.state, exit_codes.PAUSED)


def _described(found: "RequestBody") -> str:
    run = found.run
    if found.state == "failed":
        return f"failed ({run.error_code}): {run.error_message}" if run else "failed: the run before it failed"
    if run is None or found.state != "succeeded":
        return found.state
    quarantined = f", {run.rows_rejected:,} quarantined" if run.rows_rejected else ""
    seconds = f" in {run.seconds:.2f} s" if run.seconds is not None else ""
    return (
        f"finished, {run.rows_read:,} rows read, {run.rows_written:,} written, {run.rows_deleted:,} deleted"
        f"{quarantined}{seconds}"
    )


def _end(found: "RequestBody") -> NoReturn:
    if found.state == "failed":
        process.stop(f"'{found.pipeline}' {_described(found)}")
    output.show(f"{found.pipeline}: {_described(found)}")
    for check in (found.run.checks if found.run else None) or ():
        if not check.passed:
            output.show_wrapped(f"warning, check '{check.name}': {check.text}", "  ")
    sys.exit(_code(found))
