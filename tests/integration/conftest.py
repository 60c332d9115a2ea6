"""Fixtures of several tests: an API on the store, a real Elasticsearch."""

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from tests.helpers import search_cluster
from tests.helpers.search_cluster import Cluster
from vitrine import failpoints
from vitrine.api.app import create_app
from vitrine.postgres import Connection
from vitrine.settings import Settings


@pytest.fixture
def client(settings: Settings) -> Iterator[TestClient]:
    """An API on the store; an unhandled exception is a response with the status 500."""
    with TestClient(create_app(settings), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def cluster(elasticsearch_url: str, index_name: str, settings: Settings, connection: Connection) -> Iterator[Cluster]:
    """A name in the cluster, reached through a proxy that can break."""
    with search_cluster.opened(elasticsearch_url, index_name, settings, connection) as opened:
        yield opened
    failpoints.install("")
