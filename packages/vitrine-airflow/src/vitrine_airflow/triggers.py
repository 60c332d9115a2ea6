"""Wait in the triggerer, without a worker slot."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from vitrine_airflow import calls
from vitrine_airflow.errors import ApiError
from vitrine_airflow.freshness import Freshness
from vitrine_airflow.hook import VitrineHook
from vitrine_airflow.stopping import pause_async
from vitrine_airflow.waiting import wait_for_end_async


class VitrineRequestTrigger(BaseTrigger):
    """Fires when a request has ended. It also fires when it cannot wait any longer: the task then asks the API itself
    and fails with its sentence."""

    def __init__(self, *, vitrine_conn_id: str, pipeline: str, request_id: str, cancel_on_kill: bool) -> None:
        super().__init__()
        self.vitrine_conn_id = vitrine_conn_id
        self.pipeline = pipeline
        self.request_id = request_id
        self.cancel_on_kill = cancel_on_kill

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.{type(self).__name__}", {
            "vitrine_conn_id": self.vitrine_conn_id,
            "pipeline": self.pipeline,
            "request_id": self.request_id,
            "cancel_on_kill": self.cancel_on_kill,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            client = await VitrineHook(self.vitrine_conn_id).aget_conn()
            state = (await wait_for_end_async(client, self.request_id)).state
        except ApiError as exc:
            self.log.warning("%s", exc)
            state = "unknown"
        yield TriggerEvent({"request_id": self.request_id, "state": state})

    async def on_kill(self) -> None:
        """Airflow calls it when a user ends the task, and not when a triggerer stops."""
        if self.cancel_on_kill:
            client = await VitrineHook(self.vitrine_conn_id).aget_conn()
            await pause_async(client, self.pipeline, self.request_id)


class VitrineFreshnessTrigger(BaseTrigger):
    """Fires when a mart is fresh enough, or when the API refuses to say."""

    def __init__(
        self, *, vitrine_conn_id: str, pipeline: str, poke_interval: float, max_age: float | None, as_of: str | None
    ) -> None:
        super().__init__()
        self.vitrine_conn_id = vitrine_conn_id
        self.pipeline = pipeline
        self.poke_interval = poke_interval
        self.max_age = max_age
        self.as_of = as_of

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.{type(self).__name__}", {
            "vitrine_conn_id": self.vitrine_conn_id,
            "pipeline": self.pipeline,
            "poke_interval": self.poke_interval,
            "max_age": self.max_age,
            "as_of": self.as_of,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        wanted = Freshness.read(self.max_age, self.as_of)
        try:
            client = await VitrineHook(self.vitrine_conn_id).aget_conn()
            while not wanted.is_met(await client.send(calls.status(self.pipeline))):
                await asyncio.sleep(self.poke_interval)
        except ApiError as exc:
            self.log.warning("%s", exc)
        yield TriggerEvent({"pipeline": self.pipeline})
