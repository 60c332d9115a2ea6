"""One Vitrine and one Airflow for all tests; each test has pipelines of its own."""

from collections.abc import Iterator

import pytest

import airflow_processes
import vitrine_service
from airflow_processes import Airflow
from tests.helpers.folders import open_folder
from tests.helpers.processes import free_port
from vitrine_service import Vitrine


@pytest.fixture(scope="session")
def vitrine() -> Iterator[Vitrine]:
    with open_folder("vitrine-airflow-") as folder, vitrine_service.running(folder) as service:
        yield service


@pytest.fixture(scope="session")
def airflow(vitrine: Vitrine) -> Iterator[Airflow]:
    connections = {
        "vitrine_default": vitrine.connection(),
        "wrong_token": vitrine.connection(token="vtr_wrong"),
        "wrong_port": vitrine.connection(port=free_port(), retry_for="0"),
    }
    with open_folder("airflow-") as folder, airflow_processes.running(folder, connections) as service:
        yield service
