"""Makes a request and waits for its end; the first runner that is free executes it, or this command."""

import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from vitrine.cli import building, exit_codes, output, process

if TYPE_CHECKING:
    from vitrine.cli.backends.protocols import Control, History
    from vitrine.core.status import Status
    from vitrine.definition.pipeline import Claim, Pipeline
    from vitrine.operations.bodies.control import Requested, RunRequestBody
    from vitrine.operations.bodies.runs import RequestBody, RunBody, StatusBody
    from vitrine.operations.context import Context
    from vitrine.postgres import Connection
    from vitrine.runner.run import Executed
    from vitrine.settings import Settings
    from vitrine.store.history import Request

STEP = timedelta(seconds=20)
OPEN = ("pending", "running")


def wait_for_end(history: "History", request_id: UUID, longest: timedelta) -> "RequestBody":
    """The request as soon as it has ended, or as it is after that time."""
    deadline = time.monotonic() + longest.total_seconds()
    while True:
        remaining = timedelta(seconds=max(0.0, deadline - time.monotonic()))
        found = history.request(request_id, min(STEP, remaining))
        if found.state not in OPEN or not remaining:
            return found


def wait_until_stopped(
    history: "History",
    request_id: UUID,
    stop: threading.Event,
    *,
    step: timedelta,
    progress: "Callable[[RequestBody], None]",
) -> "RequestBody":
    """The request as soon as it has ended, or as it is when `stop` is set; calls `progress` after every step.

    The waits are made in another thread: a request to the API cannot be interrupted.
    """
    found: list[RequestBody] = [history.request(request_id, timedelta(0))]
    errors: list[BaseException] = []
    changed = threading.Event()

    def follow() -> None:
        try:
            while found[-1].state in OPEN and not stop.is_set():
                found.append(history.request(request_id, step))
                changed.set()
        except BaseException as exc:  # noqa: BLE001 – raised again in the thread that waits
            errors.append(exc)
        changed.set()

    thread = threading.Thread(target=follow, name="waiting", daemon=True)
    thread.start()
    while found[-1].state in OPEN and not stop.is_set() and not errors:
        changed.wait(0.2)
        changed.clear()
        progress(found[-1])
    if errors:
        raise errors[0]
    return found[-1]


POLL_SECONDS = 0.25


class Held(Exception):
    """The pipeline cannot run in this process now; the text is a sentence."""


class Foreground:
    """One connection to the store, and what `stop` interrupts."""

    def __init__(self, store: "Connection", settings: "Settings", stop: threading.Event) -> None:
        self._store = store
        self._settings = settings
        self._stop = stop

    @property
    def context(self) -> "Context":
        """For service functions on this connection, so that they join its transaction."""
        from vitrine.operations.context import Context, local_caller

        return Context(self._settings, local_caller(), lambda: nullcontext(self._store))

    def claim(self, name: str, body: "RunRequestBody") -> "Claim":
        """A run of the pipeline, claimed for this process; Held, and nothing is requested, if it cannot start now."""
        from vitrine.core.status import LEASED
        from vitrine.operations import control
        from vitrine.store import pipelines, queue, schedules

        if schedules.get_due(self._store).leases:
            queue.expire_leases(self._store)
        with self._store.transaction():
            pipeline = pipelines.lock(self._store, name)
            if pipeline.status in LEASED:
                raise Held(
                    f"'{pipeline.name}' is {pipeline.status} on {pipeline.lease_owner}; wait for it, or pause it"
                )
            requested = control.run(self.context, str(pipeline.id), body)
            first = pipelines.get(self._store, pipeline.id).request
            if first is not None and first.id != requested.request_id:
                raise Held(
                    f"'{pipeline.name}' waits for a {first.label} that was requested before; wait for it, or pause it"
                )
            claim = self._claim(pipeline)
        if claim is None:
            raise Held(
                f"'{pipeline.name}' waits for its next attempt at {pipeline.next_attempt_at}; pause it, then run it"
            )
        return claim

    def execute(self, claim: "Claim") -> "tuple[Executed, Status | None]":
        name = claim.definition.name
        with output.progress_bar(name) as watch:
            return building.foreground_dispatcher(self._settings, self._stop).dispatch(
                claim,
                watch=lambda counts, expected: watch(counts.read, expected),
                retry=False,
                on_hang=lambda error: process.abandon(f"vitrine: '{name}' failed ({error.code}): {error}\n"),
            )

    def carry_out(self, pipeline: "Pipeline", request_id: "UUID") -> "Request":
        """The request once it has ended, or as it is after a stop; carried out by a runner, or by this process."""
        from vitrine.store import history, queue

        while True:
            claim = self._claim_request(pipeline, request_id)
            if claim is not None:
                self.execute(claim)
            request = history.get_request(self._store, request_id)
            if request.state not in ("pending", "running") or self._stop.wait(POLL_SECONDS):
                return request
            queue.expire_leases(self._store)

    def _claim_request(self, pipeline: "Pipeline", request_id: "UUID") -> "Claim | None":
        """The request, claimed for this process; None while another one stands before it, or a runner has it."""
        from vitrine.store import pipelines

        with self._store.transaction():
            if pipelines.lock(self._store, pipeline.id).request_id != request_id:
                return None
            return self._claim(pipeline)

    def _claim(self, pipeline: "Pipeline") -> "Claim | None":
        from vitrine.store import queue

        runner = f"{building.runner_name()}:cli"
        return queue.claim_next(self._store, runner=runner, ttl=self._settings.lease_ttl, only=pipeline.id)


POLL_STEP = timedelta(seconds=10)
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
    from vitrine.operations.bodies.runs import RequestBody
    from vitrine.store import pipelines, queue

    settings = building.service_settings()
    with building.connect_store(settings) as store, backends.opened() as backend:
        queue.expire_leases(store)
        pipeline = pipelines.get(store, name)
        requested = ask(backend.control)
        announce(requested, backend.history.status(name))
        process.on_stop_signals(stop.set)
        return RequestBody.of(Foreground(store, settings, stop).carry_out(pipeline, requested.request_id), pipeline)


def _through_api(
    name: str, ask: "Callable[[Control], Requested]", announce: Announce, stop: threading.Event
) -> "RequestBody":
    from vitrine.cli import backends

    with backends.opened() as backend:
        requested = ask(backend.control)
        announce(requested, backend.history.status(name))
        process.on_stop_signals(stop.set)
        return wait_until_stopped(
            backend.history, requested.request_id, stop, step=POLL_STEP, progress=lambda found: None
        )
