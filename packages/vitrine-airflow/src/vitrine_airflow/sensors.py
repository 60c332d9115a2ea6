"""A sensor for the freshness of a mart."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import BaseSensorOperator, Context
from airflow.sdk.configuration import conf

from vitrine_airflow import calls
from vitrine_airflow.failing import airflow_errors
from vitrine_airflow.freshness import Freshness
from vitrine_airflow.hook import VitrineHook
from vitrine_airflow.triggers import VitrineFreshnessTrigger


class VitrineFreshnessSensor(BaseSensorOperator):
    """Waits until a mart is fresh enough. It requests no run: the schedule of the pipeline, or another task, does.

    :param pipeline: The name of the pipeline, or its UUID (templated).
    :param max_age: The mart has every change that was committed before this long ago.
    :param as_of: The mart has every change that was committed before this time, instead of `max_age` (templated).
    :param vitrine_conn_id: The connection, of the type `vitrine`.
    :param deferrable: Wait in the triggerer, without a worker slot.
    """

    template_fields: Collection[str] = ("pipeline", "vitrine_conn_id", "as_of")
    ui_color = "#e6eef7"

    def __init__(
        self,
        *,
        pipeline: str,
        max_age: timedelta | None = None,
        as_of: str | datetime | None = None,
        vitrine_conn_id: str = VitrineHook.default_conn_name,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (max_age is None) == (as_of is None):
            raise ValueError("give either max_age or as_of: how old the mart may be, or which changes it must have")
        self.pipeline = pipeline
        self.max_age = max_age
        self.as_of = as_of
        self.vitrine_conn_id = vitrine_conn_id
        self.deferrable = deferrable

    def execute(self, context: Context) -> Any:
        if not self.deferrable:
            return super().execute(context)
        return self._finish(context)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> None:
        """Continues after the trigger has fired."""
        self._finish(context)

    def poke(self, context: Context) -> bool:
        with airflow_errors():
            client = VitrineHook(self.vitrine_conn_id).get_conn()
            return Freshness.read(*self._wanted()).is_met(client.send(calls.status(self.pipeline)))

    def _finish(self, context: Context) -> None:
        if self.poke(context):
            return
        max_age, as_of = self._wanted()
        self.defer(
            trigger=VitrineFreshnessTrigger(
                vitrine_conn_id=self.vitrine_conn_id,
                pipeline=self.pipeline,
                poke_interval=self.poke_interval,
                max_age=max_age,
                as_of=as_of,
            ),
            method_name=self.execute_complete.__name__,
            timeout=timedelta(seconds=self.timeout),
        )

    def _wanted(self) -> tuple[float | None, str | None]:
        """Both bounds, in the form in which a trigger stores them."""
        return (
            None if self.max_age is None else self.max_age.total_seconds(),
            self.as_of.isoformat() if isinstance(self.as_of, datetime) else self.as_of,
        )
