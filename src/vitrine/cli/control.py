"""Commands that control pipelines: resume, pause, enable, disable, reload."""

from vitrine.cli import backends, output
from vitrine.cli.arguments import AsJson, Name


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
