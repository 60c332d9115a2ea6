"""The conformance suites on the server of the other tests."""

from pathlib import Path

import pytest

from tests.helpers import plugins
from vitrine.embedded import EmbeddedPostgres
from vitrine_testing.fixtures import vitrine_connection, vitrine_lists, vitrine_store_url

__all__ = ["vitrine_connection", "vitrine_lists", "vitrine_store_url"]


@pytest.fixture(scope="session")
def vitrine_postgres(postgres: EmbeddedPostgres) -> EmbeddedPostgres:
    return postgres


@pytest.fixture(scope="session")
def memory_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The connector of tests/plugins, installed into a folder."""
    return plugins.install(plugins.MEMORY_CONNECTOR, tmp_path_factory.mktemp("installed"))
