"""Fixtures of the conformance suite; name this module in `pytest_plugins`."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from vitrine.embedded import EmbeddedPostgres
from vitrine.postgres import Connection, connect
from vitrine.store.migrate import migrate
from vitrine_testing.lists import ListTable, list_connector

DATABASE = "vitrine_conformance"


@pytest.fixture(scope="session")
def vitrine_postgres() -> Iterator[EmbeddedPostgres]:
    """The server of the store; override it to use one that is running already."""
    with (
        tempfile.TemporaryDirectory(prefix="vitrine-conformance-", ignore_cleanup_errors=True) as folder,
        EmbeddedPostgres(Path(folder), fast=True) as server,
    ):
        yield server


@pytest.fixture(scope="session")
def vitrine_store_url(vitrine_postgres: EmbeddedPostgres) -> str:
    """A migrated store, which all tests share: each has pipelines and targets of its own."""
    vitrine_postgres.ensure_database(DATABASE)
    url = vitrine_postgres.url(DATABASE)
    migrate(url)
    return url


@pytest.fixture
def vitrine_connection(vitrine_store_url: str) -> Iterator[Connection]:
    with connect(vitrine_store_url, name="vitrine:testing") as connection:
        yield connection


@pytest.fixture
def vitrine_lists() -> Iterator[dict[str, ListTable]]:
    """The connector of the suite's own source is installed; its tables by name."""
    with list_connector() as tables:
        yield tables
