"""Registered tasks for the time of one test."""

import pytest

from vitrine.definition import registry
from vitrine.definition.registry import Kind, Task


def register(monkeypatch: pytest.MonkeyPatch, task: Task) -> None:
    """Like the decorators of the registry, and undone after the test."""
    registry.load()  # a task that is loaded later would stay hidden behind this one
    tasks = registry.readers if task.kind is Kind.READER else registry.transforms
    monkeypatch.setitem(vars(tasks)["_tasks"], task.name, task)
