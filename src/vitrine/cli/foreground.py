"""Runs a pipeline in the process of the command."""

import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING

from vitrine.cli import building, output, process

if TYPE_CHECKING:
    from uuid import UUID

    from vitrine.pipeline import Claim, Pipeline
    from vitrine.postgres import Connection
    from vitrine.runner.executor import Executed
    from vitrine.service.bodies.control import RunRequestBody
    from vitrine.service.context import Context
    from vitrine.settings import Settings
    from vitrine.status import Status
    from vitrine.store.runs import Request

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
        from vitrine.service.context import Context, local_caller

        return Context(self._settings, local_caller(), lambda: nullcontext(self._store))

    def claim(self, name: str, body: "RunRequestBody") -> "Claim":
        """A run of the pipeline, claimed for this process; Held, and nothing is requested, if it cannot start now."""
        from vitrine.service import control
        from vitrine.status import LEASED
        from vitrine.store import leases, pipelines, schedules

        if schedules.get_due(self._store).leases:
            leases.expire_leases(self._store)
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
        from vitrine.store import leases, runs

        while True:
            claim = self._claim_request(pipeline, request_id)
            if claim is not None:
                self.execute(claim)
            request = runs.get_request(self._store, request_id)
            if request.state not in ("pending", "running") or self._stop.wait(POLL_SECONDS):
                return request
            leases.expire_leases(self._store)

    def _claim_request(self, pipeline: "Pipeline", request_id: "UUID") -> "Claim | None":
        """The request, claimed for this process; None while another one stands before it, or a runner has it."""
        from vitrine.store import pipelines

        with self._store.transaction():
            if pipelines.lock(self._store, pipeline.id).request_id != request_id:
                return None
            return self._claim(pipeline)

    def _claim(self, pipeline: "Pipeline") -> "Claim | None":
        from vitrine.store import claims

        runner = f"{building.runner_name()}:cli"
        return claims.claim_next(self._store, runner=runner, ttl=self._settings.lease_ttl, only=pipeline.id)
