"""Makes a request and waits for its end; it is carried out by the first runner that is free, or by this process."""

import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from vitrine.cli import building, exit_codes, output, process

if TYPE_CHECKING:
    from vitrine.cli.backends.protocols import Control
    from vitrine.service.bodies.control import Requested
    from vitrine.service.bodies.runs import RequestBody, RunBody

Announce = Callable[["Requested", str | None], None]
"""Called with the request, and the runner that has the pipeline, if one has it."""

STEP = timedelta(seconds=10)


def request(
    name: str, ask: "Callable[[Control], Requested]", announce: Announce = lambda requested, owner: None
) -> "RequestBody":
    """The request at its end, or as it is when a signal ends the wait."""
    stop = threading.Event()
    return _through_api(name, ask, announce, stop) if building.uses_api() else _here(name, ask, announce, stop)


def ended_run(name: str, work: str, ask: "Callable[[Control], Requested]", *, quiet: bool) -> "RunBody":
    """The run that has carried out the request; otherwise the command ends."""

    def announce(requested: "Requested", owner: str | None) -> None:
        if requested.status == "RUNNING" and not quiet:
            output.show(f"{requested.pipeline} is RUNNING on {owner}; the {work} follows that run")

    found = request(name, ask, announce)
    if found.state == "failed":
        run = found.run
        reason = f" ({run.error_code}): {run.error_message}" if run else ": the run before it failed"
        process.stop(f"the {work} of '{found.pipeline}' failed{reason}")
    if found.state != "succeeded" or found.run is None:
        output.show(f"{found.pipeline}: the {work} is {found.state}; it is carried out when a runner takes it")
        sys.exit(exit_codes.PAUSED)
    return found.run


def _here(name: str, ask: "Callable[[Control], Requested]", announce: Announce, stop: threading.Event) -> "RequestBody":
    from vitrine.cli import backends
    from vitrine.cli.foreground import Foreground
    from vitrine.service.bodies.runs import RequestBody
    from vitrine.store import leases, pipelines

    settings = building.service_settings()
    with building.connect_store(settings) as store, backends.opened() as backend:
        leases.expire_leases(store)
        pipeline = pipelines.get(store, name)
        requested = ask(backend.control)
        announce(requested, pipeline.lease_owner)
        process.on_stop_signals(stop.set)
        return RequestBody.of(Foreground(store, settings, stop).carry_out(pipeline, requested.request_id), pipeline)


def _through_api(
    name: str, ask: "Callable[[Control], Requested]", announce: Announce, stop: threading.Event
) -> "RequestBody":
    from vitrine.cli import backends, waiting

    with backends.opened() as backend:
        requested = ask(backend.control)
        announce(requested, backend.history.status(name).lease_owner)
        process.on_stop_signals(stop.set)
        return waiting.until_stopped(
            backend.history, requested.request_id, stop, step=STEP, progress=lambda found: None
        )
