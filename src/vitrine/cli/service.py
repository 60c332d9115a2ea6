"""Commands of the service: migrate, api, runner, run."""

import logging
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from vitrine.cli import building, output, process
from vitrine.cli.arguments import Name

if TYPE_CHECKING:
    from collections.abc import Callable

    from vitrine.model import Claim, RequestKind, RunOptions
    from vitrine.postgres import Connection
    from vitrine.runner.executor import Executed
    from vitrine.settings import Settings

log = logging.getLogger(__name__)


def migrate() -> None:
    """Update the store (schema etl) to the newest revision; can be repeated, and run by several processes at once."""
    from vitrine.store.migrate import migrate as migrate_store

    revision = migrate_store(building.service_settings().store_url)
    output.show(f"The store is at revision {revision}.")


def api() -> None:
    """Serve the REST API on VITRINE_API_HOST and VITRINE_API_PORT."""
    with building.requires_extra("api", "the API"):
        from vitrine.api import server

    settings = building.logging_settings()
    settings.source_url("default")
    server.serve(settings, ready=lambda: _log_start(f"API at http://{settings.api_host}:{settings.api_port}"))


def runner(
    concurrency: Annotated[int, typer.Option(min=1, max=64, help="Pipelines to run at the same time.")] = 4,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port for /metrics, /ready and /live; 0 for none. Default: VITRINE_METRICS_PORT, which is 0.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Claim requested pipelines and run them; several runners can work at the same time. SIGTERM releases the runs.

    Exit code 1 when a run hangs in user code: start the runner again.
    """
    import threading

    from vitrine.runner.manager import PipelineManager

    process.tune_for_rows()
    settings = building.logging_settings()
    settings.source_url("default")
    stop = threading.Event()
    manager = PipelineManager(
        settings,
        building.dispatcher(settings, stop),
        name=building.runner_name(),
        concurrency=concurrency,
        stop=stop,
    )
    port = settings.metrics_port if metrics_port is None else metrics_port
    with _probes(settings, port, manager.is_ready) if port else nullcontext():
        process.on_stop_signals(manager.request_stop)
        _log_start("runner started")
        if not manager.run():
            process.abandon()


def run(
    name: Name,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="Read everything once and remove what vanished at the source; for incremental pipelines."
        ),
    ] = False,
    allow_shrink: Annotated[
        bool, typer.Option(help="Allow this full load to delete more than max_delete_ratio of the mart.")
    ] = False,
) -> None:
    """Run one pipeline in this process. Exit code 0 finished, 1 failed, 3 paused, 4 held by another runner."""
    import threading

    from vitrine.flow.protocols import Outcome
    from vitrine.model import RequestKind, RunOptions

    process.tune_for_rows()
    settings = building.service_settings()
    stop = threading.Event()
    with building.connect_store(settings) as store:
        kind = RequestKind.FULL if full else RequestKind.RUN
        claim = _claim(store, settings, name, kind, RunOptions(allow_shrink=allow_shrink))
        name = claim.definition.name
        process.on_stop_signals(stop.set)
        with output.progress_bar(name) as watch:
            executed, status = building.foreground_dispatcher(settings, stop).dispatch(
                claim,
                watch=watch,
                retry=False,
                on_hang=lambda error: process.abandon(f"vitrine: '{name}' failed ({error.code}): {error}\n"),
            )
    if executed.error is not None:
        process.stop(f"'{name}' failed ({executed.error.code}): {executed.error}")
    output.show(_summary(name, executed))
    if executed.outcome is Outcome.RELEASED:
        output.show(f"Stopped; '{name}' is {status}, and its next run continues where this one stopped.")
    sys.exit(0 if executed.outcome is Outcome.FINISHED else process.PAUSED)


def _claim(store: "Connection", settings: "Settings", name: str, kind: "RequestKind", options: "RunOptions") -> "Claim":
    """The run of the pipeline, claimed for this process; exits when another runner holds it."""
    from vitrine.status import LEASED
    from vitrine.store import pipelines

    pipelines.expire_leases(store)
    with store.transaction():
        pipeline = pipelines.lock(store, name)
        if pipeline.status in LEASED:
            text = f"'{pipeline.name}' is {pipeline.status} on {pipeline.lease_owner}; wait for it, or pause it"
            process.stop(text, process.HELD)
        _, request_id = pipelines.request_run(store, pipeline.id, trigger="cli", kind=kind, options=options)
        first = pipelines.get(store, pipeline.id).request
        if first is not None and first.id != request_id:
            text = f"'{pipeline.name}' waits for a {first.label} that was requested before; wait for it, or pause it"
            process.stop(text, process.HELD)
        claim = pipelines.claim_next(
            store, runner=f"{building.runner_name()}:cli", ttl=settings.lease_ttl, only=pipeline.id
        )
    if claim is None:
        text = f"'{pipeline.name}' waits for its next attempt at {pipeline.next_attempt_at}; pause it, then run it"
        process.stop(text, process.HELD)
    return claim


def _summary(name: str, executed: "Executed") -> str:
    counts = executed.counts
    quarantined = f", {counts.rejected:,} quarantined" if counts.rejected else ""
    return (
        f"{name}: {executed.outcome}, {counts.read:,} rows read, {counts.written:,} written, {counts.deleted:,} deleted"
        f"{quarantined} in {executed.seconds:.2f} s"
    )


def _probes(settings: "Settings", port: int, is_ready: "Callable[[], bool]") -> AbstractContextManager[object]:
    from vitrine import metrics
    from vitrine.runner import probes

    return probes.serving(settings.metrics_host, port, metrics.switch_on(), is_ready)


def _log_start(text: str) -> None:
    log.info(text, extra={"action": "started"})
