"""The command `rollback`."""

import sys
from typing import TYPE_CHECKING

from vitrine.cli import building, output, process
from vitrine.cli.arguments import Name

if TYPE_CHECKING:
    import threading

    from vitrine.model import Claim, Pipeline, RequestId
    from vitrine.postgres import Connection
    from vitrine.settings import Settings
    from vitrine.store.runs import Request

POLL_SECONDS = 0.25


def rollback(name: Name) -> None:
    """Make the previous generation of a mart visible again, with its checkpoint, and pause the pipeline.

    Carried out by the first runner that is free, or by this process. Exit code 0 done, 1 refused or failed, 3 paused or
    interrupted before it was done.
    """
    import threading

    from vitrine.engine import rollback as rolling
    from vitrine.model import RequestKind
    from vitrine.status import Status
    from vitrine.store import pipelines

    settings = building.service_settings()
    stop = threading.Event()
    with building.connect_store(settings) as store:
        pipelines.expire_leases(store)
        pipeline = pipelines.get(store, name)
        rolling.prepare_check(store, settings, pipeline)()
        status, request_id = pipelines.request_run(store, pipeline.id, trigger="cli", kind=RequestKind.ROLLBACK)
        if status is Status.RUNNING:
            output.show(f"{pipeline.name} is RUNNING on {pipeline.lease_owner}; the rollback follows that run")
        process.on_stop_signals(stop.set)
        request = _wait(store, settings, pipeline, request_id, stop)
        _report(store, pipeline, request)


def _wait(
    store: "Connection", settings: "Settings", pipeline: "Pipeline", request_id: "RequestId", stop: "threading.Event"
) -> "Request":
    """The request once it has ended, or as it is when the command is interrupted."""
    from vitrine.store import pipelines, runs

    while True:
        claim = _claim(store, settings, pipeline, request_id)
        if claim is not None:
            building.foreground_dispatcher(settings, stop).dispatch(claim, retry=False)
        request = runs.get_request(store, request_id)
        if request.state not in ("pending", "running") or stop.wait(POLL_SECONDS):
            return request
        pipelines.expire_leases(store)


def _claim(store: "Connection", settings: "Settings", pipeline: "Pipeline", request_id: "RequestId") -> "Claim | None":
    """The request, claimed for this process; None while another one stands before it, or a runner has it."""
    from vitrine.store import pipelines

    with store.transaction():
        if pipelines.lock(store, pipeline.id).request_id != request_id:
            return None
        runner = f"{building.runner_name()}:cli"
        return pipelines.claim_next(store, runner=runner, ttl=settings.lease_ttl, only=pipeline.id)


def _report(store: "Connection", pipeline: "Pipeline", request: "Request") -> None:
    """Print how the request ended, and exit."""
    from vitrine.store import generations, pipelines

    name = pipeline.name
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
        sys.exit(process.PAUSED)
    now, live = pipelines.get(store, pipeline.id), generations.load(store, pipeline.id).live
    shown = f"generation {live.number}" if live else "the previous generation"
    fresh = f" and shows the data as of {now.fresh_as_of:%Y-%m-%d %H:%M:%S %Z}" if now.fresh_as_of else ""
    output.show(f"{name}: {shown} is live again{fresh}; the pipeline is {now.status}, `vitrine run {name}` resumes it")
