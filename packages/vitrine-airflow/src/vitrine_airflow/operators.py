"""Operators that make a request, and succeed or fail with it."""

import logging
from abc import abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from airflow.sdk import BaseOperator, Context
from airflow.sdk.configuration import conf

from vitrine_airflow import calls, results
from vitrine_airflow.answers import Request, Requested
from vitrine_airflow.calls import Call
from vitrine_airflow.client import Client
from vitrine_airflow.errors import ApiError, Refused
from vitrine_airflow.failing import airflow_errors
from vitrine_airflow.hook import VitrineHook
from vitrine_airflow.stopping import pause
from vitrine_airflow.triggers import VitrineRequestTrigger
from vitrine_airflow.waiting import wait_for_end

log = logging.getLogger(__name__)

STATE_KEY = "vitrine_request"
"""Where a task instance keeps its request between its tries."""


class RequestOperator(BaseOperator):
    """Makes one request and waits for its end. A task that dies leaves the request alone, and its next try continues to
    wait for it.

    :param pipeline: The name of the pipeline, or its UUID (templated).
    :param vitrine_conn_id: The connection, of the type `vitrine`.
    :param deferrable: Wait in the triggerer, without a worker slot.
    """

    template_fields: Collection[str] = ("pipeline", "vitrine_conn_id")
    ui_color = "#e6eef7"
    cancel_on_kill: bool = False

    def __init__(
        self,
        *,
        pipeline: str,
        vitrine_conn_id: str = VitrineHook.default_conn_name,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.vitrine_conn_id = vitrine_conn_id
        self.deferrable = deferrable
        self._waits_for: tuple[Client, str] | None = None  # the request, and how on_kill reaches it

    @abstractmethod
    def call(self) -> Call[Requested]:
        """The call that makes the request."""

    @abstractmethod
    def result(self, request: Request) -> dict[str, Any]:
        """The value for XCom; Failed with the sentence for the task."""

    def execute(self, context: Context) -> dict[str, Any]:
        with airflow_errors():
            client = VitrineHook(self.vitrine_conn_id).get_conn()
            request_id = self._find_open(client, context) or self._make(client, context)
            return self._finish(client, request_id)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Continues after the trigger has fired."""
        with airflow_errors():
            return self._finish(VitrineHook(self.vitrine_conn_id).get_conn(), str(event["request_id"]))

    def on_kill(self) -> None:
        """Airflow calls it in a signal handler, while the task waits for an answer."""
        if not self.cancel_on_kill or self._waits_for is None:
            return
        client, request_id = self._waits_for
        try:
            pause(client, self.pipeline, request_id)
        except ApiError as exc:
            log.warning("pipeline '%s' could not be paused: %s", self.pipeline, exc)

    def _find_open(self, client: Client, context: Context) -> str | None:
        """The request of an earlier try of this task, if it asked for the same and has not ended.

        If this task pauses its requests, a paused one is asked for again, which resumes it; otherwise a user has paused
        the pipeline, and the task waits.
        """
        stored = context["task_state_store"].get(STATE_KEY)
        if not isinstance(stored, dict) or stored.get("asked") != self._asked():
            return None
        request_id = str(stored["request_id"])
        try:
            request = client.send(calls.request(request_id))
        except Refused:  # the pipeline was deleted and created again
            return None
        if request.has_ended or (request.state == "paused" and self.cancel_on_kill):
            return None
        log.info("request %s of an earlier try is %s; this try waits for it", request_id, request.state)
        return request_id

    def _make(self, client: Client, context: Context) -> str:
        requested = client.send(self.call())
        context["task_state_store"].set(STATE_KEY, {"asked": self._asked(), "request_id": requested.request_id})
        log.info(
            "request %s was made at %s; pipeline '%s' is %s",
            requested.request_id,
            client.endpoint.url,
            self.pipeline,
            requested.status,
        )
        return requested.request_id

    def _asked(self) -> dict[str, Any]:
        call = self.call()
        return {"connection": self.vitrine_conn_id, "path": call.path, "body": call.body}

    def _finish(self, client: Client, request_id: str) -> dict[str, Any]:
        self._waits_for = client, request_id
        if self.deferrable:
            request = client.send(calls.request(request_id))
            if not request.has_ended:
                self._defer(request_id)
        else:
            request = wait_for_end(client, request_id)
        return self.result(request)

    def _defer(self, request_id: str) -> NoReturn:
        trigger = VitrineRequestTrigger(
            vitrine_conn_id=self.vitrine_conn_id,
            pipeline=self.pipeline,
            request_id=request_id,
            cancel_on_kill=self.cancel_on_kill,
        )
        self.defer(trigger=trigger, method_name=self.execute_complete.__name__, timeout=self.execution_timeout)


class VitrineRunOperator(RequestOperator):
    """Runs a pipeline once. Succeeds when every change that was committed before the request is in the mart; returns
    the counts of the run.

    :param pipeline: The name of the pipeline, or its UUID (templated).
    :param mode: `full`: once, an incremental pipeline reads everything and removes what vanished at the source
        (templated; empty for an ordinary run).
    :param backfill_from: With `backfill_to`: read this range of the cursor once more (templated).
    :param backfill_to: The first value behind the range (templated).
    :param allow_shrink: Allow this full load to delete more of the mart than `options.max_delete_ratio`.
    :param cancel_on_kill: Pause the pipeline when a user ends the task. Otherwise the run continues without the task.
    :param vitrine_conn_id: The connection, of the type `vitrine`.
    :param deferrable: Wait in the triggerer, without a worker slot.
    """

    template_fields: Collection[str] = (*RequestOperator.template_fields, "mode", "backfill_from", "backfill_to")

    def __init__(
        self,
        *,
        mode: str | None = None,
        backfill_from: str | int | None = None,
        backfill_to: str | int | None = None,
        allow_shrink: bool = False,
        cancel_on_kill: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (backfill_from is None) != (backfill_to is None):
            raise ValueError("backfill_from and backfill_to belong together: give both, or neither")
        self.mode = mode
        self.backfill_from = backfill_from
        self.backfill_to = backfill_to
        self.allow_shrink = allow_shrink
        self.cancel_on_kill = cancel_on_kill

    def call(self) -> Call[Requested]:
        options: dict[str, Any] = {}
        if self.mode:
            options["mode"] = self.mode
        if self.allow_shrink:
            options["allow_shrink"] = True
        if self.backfill_from is not None:
            options["backfill"] = {"from": self.backfill_from, "to": self.backfill_to}
        return calls.run(self.pipeline, options)

    def result(self, request: Request) -> dict[str, Any]:
        figures = results.counts(request)
        log.info(
            "pipeline '%s' has finished: %s rows read, %s written in run %s",
            request.pipeline,
            figures["rows_read"],
            figures["rows_written"],
            figures["run_id"],
        )
        return figures


class VitrineReconcileOperator(RequestOperator):
    """Compares every value of a mart with its source. Returns the number of rows on both sides; fails if they differ.

    :param pipeline: The name of the pipeline, or its UUID (templated).
    :param vitrine_conn_id: The connection, of the type `vitrine`.
    :param deferrable: Wait in the triggerer, without a worker slot.
    """

    def call(self) -> Call[Requested]:
        return calls.reconcile(self.pipeline)

    def result(self, request: Request) -> dict[str, Any]:
        return results.comparison(request)
