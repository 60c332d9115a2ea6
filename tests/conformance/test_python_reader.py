"""Registered Python readers as a source."""

import pytest

from tests.helpers.reader_case import PythonReaderCase
from vitrine_testing import SourceConformance


class TestPythonReader(SourceConformance):
    @pytest.fixture
    def case(self, monkeypatch: pytest.MonkeyPatch) -> PythonReaderCase:
        return PythonReaderCase(monkeypatch)
