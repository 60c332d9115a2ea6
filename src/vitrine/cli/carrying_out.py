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
    from vitrine.service.bodies.runs import RequestBody, RunBody, StatusBody

STEP = timedelta(seconds=10)
NO_RUNNER = "no runner is alive"
"""How the status says so; this process carries out its own request all the same."""


def request(name: str, work: str, ask: "Callable[[Control], Requested]", *, quiet: bool = False) -> "RequestBody":
    """The request at its end, or as it is when a signal ends the wait. What it waits for is shown, unless `quiet`."""
    stop = threading.Event()

    def announce(requested: "Requested", current: "StatusBody") -> None:
        if not quiet:
            _announce(requested, current, work)

    return _through_api(name, ask, announce, stop) if building.uses_api() else _here(name, ask, announce, stop)


Announce = Callable[["Requested", "StatusBody"], None]
"""Called with the request, and the status of its pipeline."""


def _announce(requested: "Requested", current: "StatusBody", work: str) -> None:
    """Says what the request waits for: one that stands before it is carried out by a runner only."""
    is_next = current.request_id in (None, requested.request_id)
    if not is_next and current.status == "RUNNING":
        output.show(f"{requested.pipeline} is RUNNING on {current.lease_owner}; the {work} follows that run")
    elif not is_next:
        kind = current.requested_kind or "run"
        output.show(f"{requested.pipeline} waits for a {kind} that was requested before; the {work} follows it")
    if current.waiting and current.waiting.startswith(NO_RUNNER) and (not is_next or building.uses_api()):
        output.show(current.waiting)


def ended_run(name: str, work: str, ask: "Callable[[Control], Requested]", *, quiet: bool) -> "RunBody":
    """The run that has carried out the request; otherwise the command ends."""
    found = request(name, work, ask, quiet=quiet)
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
        announce(requested, backend.history.status(name))
        process.on_stop_signals(stop.set)
        return RequestBody.of(Foreground(store, settings, stop).carry_out(pipeline, requested.request_id), pipeline)


def _through_api(
    name: str, ask: "Callable[[Control], Requested]", announce: Announce, stop: threading.Event
) -> "RequestBody":
    from vitrine.cli import backends, waiting

    with backends.opened() as backend:
        requested = ask(backend.control)
        announce(requested, backend.history.status(name))
        process.on_stop_signals(stop.set)
        return waiting.until_stopped(
            backend.history, requested.request_id, stop, step=STEP, progress=lambda found: None
        )
