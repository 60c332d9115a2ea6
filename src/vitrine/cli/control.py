"""Commands that control pipelines: resume, pause, enable, disable, reload, reset, delete, rollback."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from vitrine.cli import backends, exit_codes, output, process, requests
from vitrine.cli.arguments import AsJson, Name, Yes
from vitrine.cli.process import confirm

if TYPE_CHECKING:
    from vitrine.operations.bodies.runs import RequestBody, StateBody


def resume(name: Name, as_json: AsJson = False) -> None:
    """Continue a paused pipeline from its checkpoint.

    The next free runner carries it out.
    """
    with backends.opened() as backend:
        requested = backend.control.resume(name)
        waiting = None if as_json else backend.history.status(name).waiting
    if as_json:
        output.show_body(requested)
        return
    output.show(f"{requested.pipeline}: {requested.status}, request {requested.request_id}")
    if waiting:
        output.show(waiting)


def pause(name: Name, as_json: AsJson = False) -> None:
    """Pause a pipeline; a running one, after its current batch."""
    with backends.opened() as backend:
        paused = backend.control.pause(name)
    if as_json:
        output.show_body(paused)
    else:
        output.show(f"{paused.pipeline}: {paused.status}")


def enable(name: Name, as_json: AsJson = False) -> None:
    """Let a pipeline run again, by its schedule and by request."""
    _set_enabled(name, True, as_json)


def disable(name: Name, as_json: AsJson = False) -> None:
    """Keep a pipeline from running.

    An active run is paused after its current batch.
    """
    _set_enabled(name, False, as_json)


def _set_enabled(name: str, enabled: bool, as_json: bool) -> None:
    with backends.opened() as backend:
        pipeline = backend.definitions.set_enabled(name, enabled)
    if as_json:
        output.show_body(pipeline)
    else:
        output.show(f"{pipeline.name}: {'enabled' if pipeline.enabled else 'disabled'}, {pipeline.status}")
        for warning in pipeline.warnings:
            output.show_wrapped(f"warning: {warning}", "  ")


def reload(name: Name, as_json: AsJson = False) -> None:
    """Make the active run use the stored throttle.

    batch_size, max_rows_per_second and pause_between_batches.
    """
    with backends.opened() as backend:
        reloaded = backend.control.reload(name)
    if as_json:
        output.show_body(reloaded)
        return
    if reloaded.applies == "next_run":
        output.show(f"{reloaded.pipeline} is {reloaded.status}; the next run uses the stored configuration")
        return
    output.show(f"{reloaded.pipeline}: the run uses the stored throttle from its next batch")
    if reloaded.waiting:
        output.show(f"for the next run: {', '.join(reloaded.waiting)}")


def reset(
    name: Name,
    to: Annotated[
        str | None,
        typer.Option(
            help="Only go back to this value of the cursor column, instead of forgetting the checkpoint.",
            show_default=False,
        ),
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Forget the checkpoint, so that the next run reads everything.

    The mart stays as it is. With --to, the next run reads again from that value on.
    """
    from vitrine.operations.bodies.runs import StateChange

    with backends.opened() as backend:
        state = backend.history.state(name)
        confirm(_question(state, to), yes=yes)
        change = StateChange(action="reset") if to is None else StateChange(action="rewind", value=to)
        changed = backend.history.change_state(name, change)
    if as_json:
        output.show_body(changed)
    elif to is None:
        output.show(
            f"{changed.pipeline}: the checkpoint is forgotten; `vitrine run {changed.pipeline}` reads everything"
        )
    else:
        output.show(f"{changed.pipeline}: the checkpoint is {' / '.join(changed.cursor or ())}")


def _question(state: "StateBody", to: str | None) -> str:
    present = f" (it is {' / '.join(state.cursor)})" if state.cursor else ""
    unfinished = " and its unfinished full load" if state.generation_open else ""
    if to is None:
        return f"Forget the checkpoint of '{state.pipeline}'{present}{unfinished}? Its next run then reads everything."
    return f"Set the checkpoint of '{state.pipeline}'{present} back to {to}? Its next run then reads again from there."


def delete(
    name: Name,
    force: Annotated[
        bool, typer.Option("--force", help="Also during a run: its current batch is rolled back.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Delete a pipeline with its history; its mart stays."""
    from vitrine.errors import VitrineError

    with backends.opened() as backend:
        try:
            pipeline = backend.definitions.get(name)
        except VitrineError as exc:
            if exc.code != "DEFINITION_INVALID":
                raise
            key, mart = name, "its mart"
        else:
            # by id: another pipeline may have taken the name while the question was open
            key, name, mart = str(pipeline.id), pipeline.name, pipeline.target_table
        confirm(
            f"Delete pipeline '{name}' with its checkpoint, its history and the rows in its quarantine ({mart} stays)?",
            yes=yes,
        )
        backend.definitions.delete(key, force=force)
    output.show(f"{name}: deleted; {mart} stays")


def rollback(name: Name) -> None:
    """Make the previous generation of a mart visible again.

    With its checkpoint; the pipeline is paused. Carried out by the first runner that is free, or by this process. Exit
    code 0 done, 1 refused or failed, 3 paused or interrupted before it was done.
    """
    _report(requests.request(name, "rollback", lambda control: control.roll_back(name)))


def _report(request: "RequestBody") -> None:
    """Print how the request ended, and exit."""

    name = request.pipeline
    if request.state == "failed":
        run = request.run
        reason = (
            f" ({run.error_code}): {run.error_message}"
            if run
            else f": the run before it failed; `vitrine rollback {name}` goes back now"
        )
        process.stop(f"'{name}' was not rolled back{reason}")
    if request.state != "succeeded":
        output.show(f"{name}: the rollback is {request.state}; it is carried out when a runner takes it")
        sys.exit(exit_codes.PAUSED)
    with backends.opened() as backend:
        now = backend.history.status(name)
    fresh = f" and shows the data as of {now.fresh_as_of:%Y-%m-%d %H:%M:%S %Z}" if now.fresh_as_of else ""
    output.show(
        f"{name}: the previous generation is live again{fresh}; the pipeline is {now.status}, `vitrine run {name}`"
        " resumes it"
    )
