"""PostgreSQL as a sink and as a source."""

import os

import pytest

from tests.helpers.postgres_case import PostgresSinkCase, PostgresSourceCase
from tests.helpers.proxy import Proxy
from vitrine.embedded import EmbeddedPostgres
from vitrine_testing import SinkConformance, SourceConformance
from vitrine_testing.fixtures import DATABASE

BREAKING = (
    "test_07",
    "test_20_a_run_is_interrupted",
    "test_22",
    "test_23_the_constructor",
    "test_11_a_source_that_is_down",
)


def _proxy_of(request: pytest.FixtureRequest) -> Proxy | None:
    """Only where a connection is to break: a proxy is slow, and has threads and sockets in this process."""
    is_broken = request.function.__name__.startswith(BREAKING)
    return request.getfixturevalue("proxy") if is_broken else None


class TestPostgresSink(SinkConformance):
    shares_target = False
    # each point of a run with one of the three failures; VITRINE_TEST_STRIDE=1: each point with each of them
    stride = int(os.environ.get("VITRINE_TEST_STRIDE", "3"))

    @pytest.fixture
    def case(self, postgres: EmbeddedPostgres, request: pytest.FixtureRequest) -> PostgresSinkCase:
        return PostgresSinkCase(postgres.tcp_url(DATABASE), _proxy_of(request))


class TestPostgresSource(SourceConformance):
    @pytest.fixture
    def case(
        self, postgres: EmbeddedPostgres, vitrine_store_url: str, request: pytest.FixtureRequest
    ) -> PostgresSourceCase:
        return PostgresSourceCase(postgres.tcp_url(DATABASE), _proxy_of(request))
