"""Fixtures of the tests on a real Elasticsearch."""

from collections.abc import Iterator

import pytest

from tests.helpers import search_cluster
from tests.helpers.search_cluster import Cluster
from vitrine import failpoints
from vitrine.postgres import Connection
from vitrine.settings import Settings


@pytest.fixture
def cluster(elasticsearch_url: str, index_name: str, settings: Settings, connection: Connection) -> Iterator[Cluster]:
    """A name in the cluster, reached through a proxy that can break."""
    with search_cluster.opened(elasticsearch_url, index_name, settings, connection) as opened:
        yield opened
    failpoints.install("")
