"""Errors as Airflow's: those that a retry cannot help end the task at once."""

from collections.abc import Generator
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from vitrine_airflow.errors import ApiError, Failed, Refused


@contextmanager
def airflow_errors() -> Generator[None]:
    try:
        yield
    except Refused as exc:
        raise AirflowFailException(str(exc)) from None
    except (ApiError, Failed) as exc:
        raise AirflowException(str(exc)) from None
