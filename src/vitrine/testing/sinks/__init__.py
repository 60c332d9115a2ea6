"""The conformance suite of sinks: subclass it, give it a case, and every promise of a sink is tested."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from vitrine import settings
from vitrine.postgres import Connection
from vitrine.testing.cases import SinkCase
from vitrine.testing.lists import ListTable
from vitrine.testing.sinks.checks import CheckTests
from vitrine.testing.sinks.failures import FailureTests
from vitrine.testing.sinks.loads import LoadTests
from vitrine.testing.sinks.reading import ReadingTests
from vitrine.testing.sinks.writing import WritingTests
from vitrine.testing.workbench import Workbench


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
