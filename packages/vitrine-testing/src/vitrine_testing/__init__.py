"""Conformance suites for connectors: write one case, subclass a suite, run pytest."""

import pytest

for _module in ("runs", "scenarios", "sinks", "sources", "workbench"):
    pytest.register_assert_rewrite(f"vitrine_testing.{_module}")

from vitrine_testing.cases import REFUSED, Fault, NotSimulated, SinkCase, SourceCase, Texts  # noqa: E402
from vitrine_testing.data import SAMPLES  # noqa: E402
from vitrine_testing.sinks import SinkConformance  # noqa: E402
from vitrine_testing.sources import SourceConformance  # noqa: E402

__all__ = [
    "REFUSED",
    "SAMPLES",
    "Fault",
    "NotSimulated",
    "SinkCase",
    "SinkConformance",
    "SourceCase",
    "SourceConformance",
    "Texts",
]
