"""The case of registered Python readers: functions that yield the rows of a list."""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest

from tests.helpers.tasks import register
from vitrine.core.copytext import values
from vitrine.core.rows import Column, Cursor, Kind, Row, kind_of
from vitrine.definition.registry import Kind as TaskKind
from vitrine.definition.registry import Task
from vitrine_testing import SAMPLES, Fault, NotSimulated, Texts

HELD = frozenset({Kind.BOOLEAN, Kind.INTEGER, Kind.FLOAT, Kind.DECIMAL, Kind.TEXT, Kind.BYTES, Kind.UUID, Kind.TIME})
"""Kinds of which Python can hold every sample: not infinity, months, or the bounds of an array."""

_numbers = itertools.count(1)


class PythonReaderCase:
    """A SourceCase; values are decoded as a reader of a user would have them."""

    connector = "python"
    types: Collection[str] = [name for name in SAMPLES if kind_of(name) in HELD]

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._rows: dict[str, list[Row]] = {}
        self._columns: dict[str, Sequence[Column]] = {}

    def settings(self) -> Mapping[str, str]:
        return {}

    def create(self, columns: Sequence[Column], rows: Sequence[Texts]) -> Mapping[str, Any]:
        name = f"reader{next(_numbers)}"
        self._columns[name] = columns
        self._rows[name] = [self._decoded(name, row) for row in rows]

        def read(cursor: Cursor | None) -> Iterator[Row]:
            yield from self._rows[name]

        pairs = tuple((column.name, column.type) for column in columns)
        register(self._monkeypatch, Task(name, TaskKind.READER, read, None, pairs))
        return {"python_task": name}

    def put(self, source: Mapping[str, Any], row: Texts) -> None:
        name = source["python_task"]
        self._rows[name].append(self._decoded(name, row))

    def add_column(self, source: Mapping[str, Any]) -> None:
        raise NotSimulated("a reader declares its columns in the code")

    def late_commit(self, source: Mapping[str, Any]) -> AbstractContextManager[Texts]:
        raise NotSimulated("a reader has no transactions")

    def fault(self, source: Mapping[str, Any], fault: Fault) -> AbstractContextManager[None]:
        raise NotSimulated("a reader runs in this process")

    def _decoded(self, name: str, row: Texts) -> Row:
        decoders = {column.name: values.decoder(column.type) for column in self._columns[name]}
        return {key: None if text is None else decoders[key](values.escape(text)) for key, text in row.items()}
