"""Connectors for the time of one test."""

from typing import Any

import pytest
from pydantic import BaseModel

from tests.helpers.memory import MemorySink, MemorySource
from vitrine.core.rows import Column, Finding, Lane, SourceInfo, TargetInfo
from vitrine.definition import connectors as plugins
from vitrine.definition.connectors import Connector, SinkSpec, SourceSpec
from vitrine.definition.context import SinkJob, SourceJob

INDEX = r"[a-z0-9][a-z0-9_-]{0,99}"


def install(monkeypatch: pytest.MonkeyPatch, *connectors: Connector) -> None:
    """Installed together with the package's own, and removed after the test."""
    found = {**plugins.installed(), **{connector.name: connector for connector in connectors}}
    monkeypatch.setattr(plugins, "installed", lambda: found)


class FakeSettings(BaseModel):
    """What source and sink say about themselves."""

    columns: tuple[Column, ...] = (Column("id", "integer"), Column("modified", "timestamp with time zone"))
    source_lanes: tuple[Lane, ...] = (Lane.ROWS,)
    sink_lanes: tuple[Lane, ...] = (Lane.ROWS,)
    key: tuple[str, ...] = ("id",)
    fingerprint: str = "query"
    findings: tuple[Finding, ...] = ()  # of the sink


class FakeSource(MemorySource):
    """Answers without a system behind it."""

    def __init__(self, job: SourceJob[Any, FakeSettings]) -> None:
        super().__init__([])
        self.job = job

    def describe(self) -> SourceInfo:
        settings = self.job.settings
        return SourceInfo(settings.columns, settings.source_lanes, settings.fingerprint)


class FakeSink(MemorySink):
    """Answers without a system behind it."""

    def __init__(self, job: SinkJob[Any, FakeSettings]) -> None:
        super().__init__()
        self.job = job
        self.described: tuple[Column, ...] | None = None

    def describe(self, columns: Any = ()) -> TargetInfo:
        self.described = tuple(columns)
        settings = self.job.settings
        return TargetInfo(True, settings.key, settings.sink_lanes, findings=settings.findings)


FAKE = Connector(
    "fake",
    settings=FakeSettings,
    source=SourceSpec(f"{__name__}:FakeSource"),
    sink=SinkSpec(f"{__name__}:FakeSink", pattern=INDEX, grammar="fake:name in lower-case letters", scheme="fake"),
)
"""Reads and writes nothing; its settings say what it answers."""

SEARCH = Connector(
    "search",
    sink=SinkSpec(
        f"{__name__}:FakeSink",
        pattern=INDEX,
        grammar="idx:index in lower-case letters, digits, - and _",
        scheme="idx",
    ),
)
"""A sink whose targets are indexes."""
