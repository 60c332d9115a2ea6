"""Elasticsearch as a sink."""

import os
from collections.abc import Iterator
from types import MappingProxyType

import pytest

from tests.helpers.search_case import SearchSinkCase
from tests.helpers.search_proxy import SearchProxy
from vitrine_testing import SinkConformance

BREAKING = ("test_05", "test_07", "test_20_a_run", "test_20_a_call", "test_21", "test_22", "test_23_the_constructor")
MANY_ROWS = "test_05"


class TestElasticsearchSink(SinkConformance):
    options = MappingProxyType({"bulk_documents": 2, "strict_shrink": True})  # a unit is several requests
    stride = int(os.environ.get("VITRINE_TEST_STRIDE", "12"))  # VITRINE_TEST_STRIDE=1 takes ten minutes

    @pytest.fixture
    def case(self, elasticsearch_url: str, request: pytest.FixtureRequest) -> Iterator[SearchSinkCase]:
        """A proxy only where a connection is to break: it has threads and sockets in this process."""
        if request.function.__name__.startswith(MANY_ROWS):
            self.options = MappingProxyType({**self.options, "bulk_documents": 100})  # otherwise 500 requests
        is_broken = request.function.__name__.startswith(BREAKING)
        proxy = SearchProxy(elasticsearch_url) if is_broken else None
        case = SearchSinkCase(elasticsearch_url, proxy)
        yield case
        case.close()
        if proxy is not None:
            proxy.close()
