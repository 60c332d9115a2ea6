"""The conformance suite of sinks: subclass it, give it a case, and every promise of a sink is tested."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from vitrine import settings
from vitrine.postgres import Connection
from vitrine_testing.cases import SinkCase
from vitrine_testing.lists import ListTable
from vitrine_testing.sinks.checks import CheckTests
from vitrine_testing.sinks.failures import FailureTests
from vitrine_testing.sinks.loads import LoadTests
from vitrine_testing.sinks.reading import ReadingTests
from vitrine_testing.sinks.writing import WritingTests
from vitrine_testing.workbench import Workbench


class SinkConformance(WritingTests, FailureTests, LoadTests, ReadingTests, CheckTests):
    """Subclass it as `class TestMySink(SinkConformance)` with a fixture `case` that returns a SinkCase."""

    options: Mapping[str, Any] = MappingProxyType({})
    """Options of the pipelines under test, for example to make requests small."""

    @pytest.fixture
    def case(self) -> SinkCase:
        raise NotImplementedError("override the fixture `case`: it returns your SinkCase")

    @pytest.fixture
    def bench(
        self,
        case: SinkCase,
        monkeypatch: pytest.MonkeyPatch,
        vitrine_store_url: str,
        vitrine_connection: Connection,
        vitrine_lists: dict[str, ListTable],
    ) -> Workbench:
        for name, value in {"VITRINE_DATABASE_URL": vitrine_store_url, **case.settings()}.items():
            monkeypatch.setenv(name, value)
        return Workbench(case, settings.load(), vitrine_connection, vitrine_lists, self.options)
