"""The command `rollback`."""

import sys
import threading
from typing import TYPE_CHECKING

from vitrine.cli import building, exit_codes, output, process
from vitrine.cli.arguments import Name

if TYPE_CHECKING:
    from vitrine.service.bodies.runs import RequestBody


def rollback(name: Name) -> None:
    """Make the previous generation of a mart visible again.

    With its checkpoint; the pipeline is paused. Carried out by the first runner that is free, or by this process. Exit
    code 0 done, 1 refused or failed, 3 paused or interrupted before it was done.
    """
    from vitrine.cli import backends
    from vitrine.service.bodies.runs import RequestBody
    from vitrine.store import pipelines

    stop = threading.Event()
    if building.uses_api():
        _through_api(name, stop)
        return
    from vitrine.cli.foreground import Foreground

    settings = building.service_settings()
    with building.connect_store(settings) as store, backends.opened() as backend:
        pipelines.expire_leases(store)
        pipeline = pipelines.get(store, name)
        requested = backend.control.roll_back(name)
        _announce(requested.status, pipeline.name, pipeline.lease_owner)
        process.on_stop_signals(stop.set)
        request = Foreground(store, settings, stop).carry_out(pipeline, requested.request_id)
        _report(RequestBody.of(request, pipeline))


def _through_api(name: str, stop: threading.Event) -> None:
    from datetime import timedelta

    from vitrine.cli import backends, waiting

    with backends.opened() as backend:
        requested = backend.control.roll_back(name)
        current = backend.history.status(name)
        _announce(requested.status, requested.pipeline, current.lease_owner)
        process.on_stop_signals(stop.set)
        step = timedelta(seconds=10)
        _report(
            waiting.until_stopped(backend.history, requested.request_id, stop, step=step, progress=lambda found: None)
        )


def _announce(status: str, name: str, owner: str | None) -> None:
    if status == "RUNNING":
        output.show(f"{name} is RUNNING on {owner}; the rollback follows that run")


def _report(request: "RequestBody") -> None:
    """Print how the request ended, and exit."""
    from vitrine.cli import backends

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
