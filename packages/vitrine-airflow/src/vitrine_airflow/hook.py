"""The connection type `vitrine`."""

from typing import Any

from airflow.sdk import BaseHook, Connection

from vitrine_airflow import calls
from vitrine_airflow.client import AsyncClient, Client
from vitrine_airflow.endpoint import Endpoint, read_connection
from vitrine_airflow.errors import ApiError, Refused


class VitrineHook(BaseHook):
    """Clients for the API that a connection names.

    :param vitrine_conn_id: The connection, of the type `vitrine`.
    """

    conn_name_attr = "vitrine_conn_id"
    default_conn_name = "vitrine_default"
    conn_type = "vitrine"
    hook_name = "Vitrine"

    def __init__(self, vitrine_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.vitrine_conn_id = vitrine_conn_id

    def get_conn(self) -> Client:
        return Client(self._endpoint(self.get_connection(self.vitrine_conn_id)))

    async def aget_conn(self) -> AsyncClient:
        return AsyncClient(self._endpoint(await self.aget_connection(self.vitrine_conn_id)))

    def test_connection(self) -> tuple[bool, str]:
        """Whether the API answers and knows the token, in one sentence."""
        try:
            caller = self.get_conn().send_once(calls.whoami())
        except ApiError as exc:
            return False, str(exc)
        if caller.role == "viewer":
            return (
                True,
                f"connected as {caller.name}; the role viewer can wait for fresh marts, but cannot request runs",
            )
        return True, f"connected as {caller.name} with the role {caller.role}"

    def _endpoint(self, connection: Connection) -> Endpoint:
        if connection.conn_type != self.conn_type:
            raise Refused(
                f"connection '{self.vitrine_conn_id}' is of the type {connection.conn_type}; it must be"
                f" {self.conn_type}",
                code="CONNECTION",
            )
        return read_connection(
            self.vitrine_conn_id,
            host=connection.host,
            port=connection.port,
            schema=connection.schema,
            password=connection.password,
            extra=connection.extra,
        )
