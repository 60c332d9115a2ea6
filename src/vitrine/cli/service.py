"""Commands of the service: migrate, api, runner, run."""

import logging
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from vitrine.cli import building, output, process

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from vitrine.model import Claim, RequestKind, RunOptions
    from vitrine.postgres import Connection
    from vitrine.runner.executor import Executed
    from vitrine.settings import Settings
    from vitrine.status import Status

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
    name: Annotated[str | None, typer.Argument(help="Name or id of the pipeline.", show_default=False)] = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="Read everything once and remove what vanished at the source; for incremental pipelines."
        ),
    ] = False,
    failed: Annotated[bool, typer.Option("--failed", help="Run every FAILED pipeline, one after the other.")] = False,
    allow_shrink: Annotated[
        bool, typer.Option(help="Allow this full load to delete more than max_delete_ratio of the mart.")
    ] = False,
) -> None:
    """Run one pipeline, or all that are FAILED, in this process.

    Exit code 0 finished, 1 failed, 3 paused or stopped, 4 held by another runner; of several pipelines, the first of
    1, 4 and 3 that occurred.
    """
    import threading

    from vitrine.model import RequestKind, RunOptions

    if full and name is None:
        raise typer.BadParameter("--full needs the name of a pipeline")
    if failed is (name is not None):
        raise typer.BadParameter("give the name of a pipeline, or --failed for all that are FAILED")
    process.tune_for_rows()
    settings = building.service_settings()
    stop = threading.Event()
    options = RunOptions(allow_shrink=allow_shrink)
    with building.connect_store(settings) as store:
        if name is None:
            sys.exit(_run_failed(store, settings, options, stop))
        _run_named(store, settings, name, RequestKind.FULL if full else RequestKind.RUN, options, stop)


class _Held(Exception):
    """The pipeline cannot run in this process now; the text is a sentence."""


def _run_named(
    store: "Connection",
    settings: "Settings",
    name: str,
    kind: "RequestKind",
    options: "RunOptions",
    stop: "threading.Event",
) -> NoReturn:
    from vitrine.flow.protocols import Outcome

    try:
        claim = _claim(store, settings, name, kind, options)
    except _Held as held:
        process.stop(str(held), process.HELD)
    name = claim.definition.name
    process.on_stop_signals(stop.set)
    executed, status = _execute(claim, settings, stop)
    if executed.error is not None:
        process.stop(f"'{name}' failed ({executed.error.code}): {executed.error}")
    output.show(f"{name}: {_summary(executed)}")
    if executed.outcome is Outcome.RELEASED:
        output.show(f"Stopped; '{name}' is {status}, and its next run continues where this one stopped.")
    sys.exit(0 if executed.outcome is Outcome.FINISHED else process.PAUSED)


def _run_failed(store: "Connection", settings: "Settings", options: "RunOptions", stop: "threading.Event") -> int:
    """Run every FAILED pipeline, with one line for each; returns the exit code."""
    from vitrine.store import pipelines

    process.on_stop_signals(stop.set)
    codes: set[int] = set()
    for name in pipelines.list_failed(store):
        code, line = (
            (process.PAUSED, "not started") if stop.is_set() else _outcome(store, settings, name, options, stop)
        )
        output.show(f"{name}: {line}")
        codes.add(code)
    if not codes:
        output.show("No enabled pipeline is FAILED.")
    return next((code for code in (process.FAILED, process.HELD, process.PAUSED) if code in codes), 0)


def _outcome(
    store: "Connection", settings: "Settings", name: str, options: "RunOptions", stop: "threading.Event"
) -> tuple[int, str]:
    """Run one of several pipelines; its exit code, and what its line says. No failure of one ends the others."""
    from vitrine.errors import VitrineError
    from vitrine.flow.protocols import Outcome
    from vitrine.model import RequestKind

    try:
        executed, _ = _execute(_claim(store, settings, name, RequestKind.RUN, options), settings, stop)
    except _Held as held:
        return process.HELD, str(held)
    except VitrineError as exc:
        return process.FAILED, f"failed ({exc.code}): {exc}"
    except ValueError:  # written to the table without validation
        return process.FAILED, "failed (CONFIG): the stored definition is not valid; correct it, then run it again"
    if executed.error is not None:
        return process.FAILED, f"failed ({executed.error.code}): {executed.error}"
    return 0 if executed.outcome is Outcome.FINISHED else process.PAUSED, _summary(executed)


def _execute(claim: "Claim", settings: "Settings", stop: "threading.Event") -> "tuple[Executed, Status | None]":
    name = claim.definition.name
    with output.progress_bar(name) as watch:
        return building.foreground_dispatcher(settings, stop).dispatch(
            claim,
            watch=watch,
            retry=False,
            on_hang=lambda error: process.abandon(f"vitrine: '{name}' failed ({error.code}): {error}\n"),
        )


def _claim(store: "Connection", settings: "Settings", name: str, kind: "RequestKind", options: "RunOptions") -> "Claim":
    """The run of the pipeline, claimed for this process; _Held, and nothing is requested, if it cannot start now."""
    from vitrine.status import LEASED
    from vitrine.store import pipelines

    pipelines.expire_leases(store)
    with store.transaction():
        pipeline = pipelines.lock(store, name)
        if pipeline.status in LEASED:
            raise _Held(f"'{pipeline.name}' is {pipeline.status} on {pipeline.lease_owner}; wait for it, or pause it")
        _, request_id = pipelines.request_run(store, pipeline.id, trigger="cli", kind=kind, options=options)
        first = pipelines.get(store, pipeline.id).request
        if first is not None and first.id != request_id:
            text = f"'{pipeline.name}' waits for a {first.label} that was requested before; wait for it, or pause it"
            raise _Held(text)
        claim = pipelines.claim_next(
            store, runner=f"{building.runner_name()}:cli", ttl=settings.lease_ttl, only=pipeline.id
        )
    if claim is None:
        text = f"'{pipeline.name}' waits for its next attempt at {pipeline.next_attempt_at}; pause it, then run it"
        raise _Held(text)
    return claim


def _summary(executed: "Executed") -> str:
    counts = executed.counts
    quarantined = f", {counts.rejected:,} quarantined" if counts.rejected else ""
    return (
        f"{executed.outcome}, {counts.read:,} rows read, {counts.written:,} written, {counts.deleted:,} deleted"
        f"{quarantined} in {executed.seconds:.2f} s"
    )


def _probes(settings: "Settings", port: int, is_ready: "Callable[[], bool]") -> AbstractContextManager[object]:
    from vitrine import metrics
    from vitrine.runner import probes

    return probes.serving(settings.metrics_host, port, metrics.switch_on(), is_ready)


def _log_start(text: str) -> None:
    log.info(text, extra={"action": "started"})
