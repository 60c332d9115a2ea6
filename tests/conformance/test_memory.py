"""A pair of connectors from outside the package."""

from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.helpers import plugins
from tests.helpers.memory_case import MemorySinkCase, MemorySourceCase
from vitrine_testing import SinkConformance, SourceConformance


@pytest.fixture(scope="module", autouse=True)
def _memory_connector(memory_folder: Path) -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    with plugins.installed(memory_folder):
        yield


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    folder.mkdir()
    return folder


class TestMemorySink(SinkConformance):
    options = MappingProxyType({"memory_request_rows": 1})  # a unit is several requests

    @pytest.fixture
    def case(self, documents: Path) -> MemorySinkCase:
        return MemorySinkCase(documents)


class TestMemorySource(SourceConformance):
    @pytest.fixture
    def case(self, documents: Path) -> MemorySourceCase:
        return MemorySourceCase(documents)
